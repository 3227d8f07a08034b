"""Operators that make ones of indices, and indices of what is not zero.

Source: the DML_ONE_HOT_OPERATOR_DESC and DML_NONZERO_COORDINATES_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from app.contract.constants import DataType, FeatureLevel
from app.contract.scalars import UINT_MAX
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates
from app.formula.values import INT64, Constant, Value, equal, where
from app.operators.accuracy import EXACT
from app.operators.arrays import spans
from app.operators.axes import axis_violations
from app.operators.indexing import nonzero_on_gpu
from app.operators.indexing.places import (
    INDICES,
    NEGATIVE,
    AxisUint,
    Moved,
    place,
)
from app.operators.operator import InputTensorDesc, Operator, OutputTensorDesc, StatedOutputTensorDesc
from app.operators.parameters import TensorParameters

PIECE = 1 << 15
"""Coordinates that are found together, while they are in the cache."""

SIZE_OF_HALF = 0x7FFF
"""The bits of a FLOAT16 but for its sign."""


class OneHot(Moved):
    """One value at the place along an axis that an index says, another one everywhere else."""

    Type: Literal["DML_OPERATOR_ONE_HOT", "ONE_HOT"]
    IndicesTensor: InputTensorDesc
    ValuesTensor: InputTensorDesc
    OutputTensor: StatedOutputTensorDesc
    Axis: AxisUint

    formula_text = (
        "y[c] = OnValue if c[Axis] == indices[c with coordinate Axis 0], else OffValue; OffValue = values[0], "
        "OnValue = values[1]"
    )
    accuracy = EXACT
    support = SupportTable.of(
        f"4_1 1-8 F64-16 I64-8 U64-8{INDICES}",
        f"3_0 1-8 F32-16 I32-8 U32-8{INDICES}",
        "2_1 4 F32-16 I32-8 U32-8, IndicesTensor U32",
        "2_0 4 F32-16, IndicesTensor U32",
    )
    same_types = (("ValuesTensor", "OutputTensor"),)
    same_sizes = ()
    same_ranks = (("IndicesTensor", "ValuesTensor", "OutputTensor"),)
    example: ClassVar[Mapping[str, Any]] = {
        "IndicesTensor": {"Sizes": [1, 1, 2, 1]},
        "ValuesTensor": {"Sizes": [1, 1, 1, 2]},
        "OutputTensor": {},
        "Axis": 3,
    }
    example_data: ClassVar[Mapping[str, tuple[float, ...]]] = {"IndicesTensor": (2, 0), "ValuesTensor": (0, 1)}
    notes = (NEGATIVE, "Where the index is out of range, all along the axis is OffValue.")

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        found = [*axis_violations(self.Axis, "IndicesTensor", self.IndicesTensor.rank)]
        yield from found
        if not found:
            sizes = self.OutputTensor.Sizes
            allowed = [*sizes[: self.Axis], 1, *sizes[self.Axis + 1 :]]
            if self.IndicesTensor.Sizes != allowed:
                yield Violation(
                    ("IndicesTensor", "Sizes"),
                    f"IndicesTensor has Sizes {self.IndicesTensor.Sizes} but OutputTensor has {sizes}; they must be "
                    f"equal but for 1 along Axis, which is {self.Axis}.",
                    self.IndicesTensor.Sizes,
                    allowed,
                )
        if self.ValuesTensor.elements < 2:
            yield Violation(
                ("ValuesTensor", "Sizes"),
                f"ValuesTensor has Sizes {self.ValuesTensor.Sizes}; it must have two elements, OffValue and OnValue.",
                self.ValuesTensor.Sizes,
                "2 or more elements",
            )

    def implied_sizes(self, name: str) -> None:
        return None

    def formula(self, p: TensorParameters, indices: Operand, values: Operand) -> Value:
        at = coordinates(indices.rank)
        own, at[self.Axis] = at[self.Axis], Constant(INT64, 0)
        fastest: int = p.ask(_fastest, *values.sizes)
        off, on = (values[[number * (axis == fastest) for axis in range(values.rank)]] for number in (0, 1))
        return where(equal(own, place(indices[at], p.out("OutputTensor").sizes[self.Axis])), on, off)


def _fastest(*sizes: int) -> int:
    """The last dimension along which there are two elements or more."""
    return max(axis for axis, size in enumerate(sizes) if size > 1)


class NonzeroCoordinates(Operator):
    """How many elements are not 0, and the coordinates of each."""

    Type: Literal["DML_OPERATOR_NONZERO_COORDINATES", "NONZERO_COORDINATES"]
    InputTensor: InputTensorDesc
    OutputCountTensor: OutputTensorDesc = None
    OutputCoordinatesTensor: OutputTensorDesc = None

    formula_text = (
        "OutputCount = number of elements != 0; row m of OutputCoordinatesTensor = the last N coordinates of the m-th "
        "non-zero element in row-major order"
    )
    accuracy = EXACT
    support = SupportTable.of(
        "4_0 1-8 F32-16 I32-8 U32-8, OutputCountTensor U32, OutputCoordinatesTensor 2-8 U32",
        "3_0 4-5 F32-16 I32-8 U32-8, OutputCountTensor OutputCoordinatesTensor U32",
    )
    same_types = ()
    same_sizes = ()
    notes = (
        "-0 is 0, and NaN is not.",
        "Rows of OutputCoordinatesTensor behind the last non-zero element are 0. DirectML leaves them undefined.",
        "N, the last size of OutputCoordinatesTensor, is from the number of dimensions of InputTensor without leading "
        "1s to all of them, which it is if OutputCoordinatesTensor is null.",
    )

    def implied_sizes(self, name: str) -> list[int]:
        desc, rank = self.InputTensor, self.InputTensor.rank
        stated = self.tensors().get(name)
        made = stated.rank if stated else rank
        if name == "OutputCountTensor":
            return [1] * made
        least = next((rank - axis for axis, size in enumerate(desc.Sizes) if size > 1), 1)
        columns = min(max(stated.Sizes[-1], least), rank) if stated else rank
        return [*[1] * (max(made, 2) - 2), desc.elements, columns]

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        return DataType.UINT32

    only_queues = makes_in = True

    def call(self, xp: Any, inputs: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        x = inputs["InputTensor"]
        sizes = self.implied_sizes("OutputCoordinatesTensor")
        made = into.get("OutputCoordinatesTensor") if into else None
        if made is None or not (xp is np or made.flags.c_contiguous):
            made = xp.empty(sizes, xp.uint32)
        rows = made[(0,) * (len(sizes) - 2)]
        count = _found(x, rows) if xp is np else nonzero_on_gpu.find(xp, x, rows)
        return {
            "OutputCountTensor": xp.asarray(count, xp.uint32).reshape(self.implied_sizes("OutputCountTensor")),
            "OutputCoordinatesTensor": made,
        }


def _found(x: Any, rows: Any) -> int:
    """How many elements of `x` are not 0. `rows` become the coordinates of each, and 0 behind these."""
    bits = x.view(np.uint16) & SIZE_OF_HALF if x.dtype == np.float16 else x  # which NumPy converts one by one
    found = np.flatnonzero(bits != 0)  # of booleans it looks at eight at once
    count = len(found)
    rows[count:] = 0
    type_ = np.dtype(np.uint32 if x.size <= UINT_MAX else np.uint64)
    for piece in spans(count, PIECE):
        rest = found[piece].astype(type_)
        for back in range(1, rows.shape[-1]):
            size = type_.type(x.shape[-back])
            whole = rest // size
            rows[piece, -back] = rest - whole * size  # which takes a fifth of a remainder
            rest = whole
        rows[piece, 0] = rest
    return count
