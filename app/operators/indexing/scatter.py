"""Operators that write elements to where indices lead.

Source: the DML_SCATTER*_OPERATOR_DESC pages of DirectML's reference.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from app.contract.constants import FeatureLevel
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.operators.accuracy import EXACT
from app.operators.axes import all_but
from app.operators.indexing.places import (
    INDICES,
    NEGATIVE,
    TUPLES,
    AxisUint,
    IndicesCount,
    InputCount,
    along_axis_violations,
    fit_violations,
    right_aligned,
    tuple_sizes,
    tuple_violations,
)
from app.operators.indexing.updates import put_last
from app.operators.operator import InputTensorDesc, Operator, OutputTensorDesc


class Scattering(Operator):
    """Moves elements of UpdatesTensor to where IndicesTensor says; all others are InputTensor's."""

    InputTensor: InputTensorDesc
    IndicesTensor: InputTensorDesc
    UpdatesTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None

    only_queues = True
    same_types = (("InputTensor", "UpdatesTensor", "OutputTensor"),)
    same_ranks = (("InputTensor", "IndicesTensor", "UpdatesTensor", "OutputTensor"),)
    notes: ClassVar[tuple[str, ...]] = (
        NEGATIVE,
        "An update whose index is out of range is left out. DirectML's documentation does not say.",
        "Of several updates of one element the last one stays. DirectML says that this is invalid.",
    )


class Scatter(Scattering):
    """Elements of a tensor replaced, each at an index of its own along an axis. Also called SCATTER_ELEMENTS."""

    Type: Literal["DML_OPERATOR_SCATTER", "SCATTER", "DML_OPERATOR_SCATTER_ELEMENTS", "SCATTER_ELEMENTS"]
    Axis: AxisUint

    formula_text = (
        "y = x, then y[c with coordinate Axis replaced by indices[c]] = updates[c] for every c of IndicesTensor"
    )
    accuracy = EXACT
    notes = (
        *Scattering.notes,
        "It is there from feature level 1_0 on, as its page has it; the feature level history has it from 2_0 on.",
    )
    support = SupportTable.of(
        f"4_1 1-8 F64-16 I64-8 U64-8{INDICES}",
        f"3_0 1-8 F32-16 I32-8 U32-8{INDICES}",
        "2_1 4 F32-16 I32-8 U32-8, IndicesTensor U32",
        "1_0 4 F32-16, IndicesTensor U32",
    )
    same_sizes = (("InputTensor", "OutputTensor"), ("IndicesTensor", "UpdatesTensor"))
    example: ClassVar[Mapping[str, Any]] = {
        "IndicesTensor": {"Sizes": [1, 1, 2, 2]},
        "UpdatesTensor": {"Sizes": [1, 1, 2, 2]},
        "Axis": 3,
    }
    example_data: ClassVar[Mapping[str, tuple[float, ...]]] = {"IndicesTensor": (2, 0, 1, 2)}

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from along_axis_violations(self, self.Axis)

    def batch_axes(self) -> Iterator[Mapping[str, int]]:
        yield from all_but(self, self.Axis, self.InputTensor.rank)

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        x, indices = inputs["InputTensor"], inputs["IndicesTensor"]
        at, inside = _places(xp, indices, x.shape[self.Axis])
        first = xp.zeros((), xp.int64)  # of each sequence along the axis, the cell of coordinate 0
        for axis, (size, step) in enumerate(zip(indices.shape, _steps(x.shape), strict=True)):
            if axis == self.Axis:
                at *= step
            else:
                shape = [1] * x.ndim
                shape[axis] = size
                first = first + xp.arange(size, dtype=xp.int64).reshape(shape) * step
        at += first
        return {"OutputTensor": _updated(xp, x, at, inside, inputs["UpdatesTensor"], 1)}


class ScatterNd(Scattering):
    """Slices of a tensor replaced, at tuples of coordinates along its first dimensions."""

    Type: Literal["DML_OPERATOR_SCATTER_ND", "SCATTER_ND"]
    InputDimensionCount: InputCount
    IndicesDimensionCount: IndicesCount

    formula_text = (
        "y = x, then y[indices[i..., 0], ..., indices[i..., t-1], b...] = updates[i..., b...], "
        "t = IndicesTensor.Sizes[last] = coordinates per tuple, b = the remaining coordinates"
    )
    accuracy = EXACT
    notes = (*Scattering.notes, TUPLES)
    support = SupportTable.of(
        f"4_1 1-8 F64-16 I64-8 U64-8{INDICES}",
        f"3_0 1-8 F32-16 I32-8 U32-8{INDICES}",
        "2_1 4 F32-16 I32-8 U32-8, IndicesTensor U32",
    )
    same_sizes = (("InputTensor", "OutputTensor"),)
    example: ClassVar[Mapping[str, Any]] = {
        "IndicesTensor": {"Sizes": [1, 1, 2, 2]},
        "UpdatesTensor": {"Sizes": [1, 1, 1, 2]},
        "InputDimensionCount": 2,
        "IndicesDimensionCount": 2,
    }
    example_data: ClassVar[Mapping[str, tuple[float, ...]]] = {"IndicesTensor": (1, 2, 0, 1)}

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        counts, rank = (self.InputDimensionCount, self.IndicesDimensionCount), self.InputTensor.rank
        basis = ("InputTensor", "IndicesTensor", "InputDimensionCount", "IndicesDimensionCount")
        found = [*tuple_violations(self, counts)]
        if found:
            yield from found
            return
        implied = tuple_sizes(self.InputTensor.Sizes, self.IndicesTensor.Sizes, counts)
        found = [*fit_violations("UpdatesTensor", implied, rank, basis)]
        yield from found
        sizes = right_aligned(implied, rank, 1)
        if not found and self.UpdatesTensor.Sizes != sizes:
            yield Violation(
                ("UpdatesTensor", "Sizes"),
                f"UpdatesTensor has Sizes {self.UpdatesTensor.Sizes}; InputTensor {self.InputTensor.Sizes} and "
                f"IndicesTensor {self.IndicesTensor.Sizes} with InputDimensionCount {self.InputDimensionCount}, "
                f"IndicesDimensionCount {self.IndicesDimensionCount} imply {sizes}.",
                self.UpdatesTensor.Sizes,
                sizes,
            )

    def batch_axes(self) -> Iterator[Mapping[str, int]]:
        length = self.IndicesTensor.Sizes[-1]  # of a tuple; the dimensions that it leaves are last in all tensors
        for axis in range(self.InputTensor.rank - self.InputDimensionCount + length, self.InputTensor.rank):
            yield {"InputTensor": axis, "UpdatesTensor": axis, "OutputTensor": axis}

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        x, indices = inputs["InputTensor"], inputs["IndicesTensor"]
        first, length = x.ndim - self.InputDimensionCount, indices.shape[-1]
        taken = x.shape[first : first + length]
        tuples = indices.reshape(-1, length)
        cells = xp.zeros(len(tuples), xp.int64)
        inside = xp.ones(len(tuples), xp.bool_)
        for along, size in enumerate(taken):
            at, there = _places(xp, tuples[:, along], size)
            cells *= size
            cells += at
            inside &= there
        return {
            "OutputTensor": _updated(
                xp, x, cells, inside, inputs["UpdatesTensor"], math.prod(x.shape[first + length :])
            )
        }


def _steps(sizes: Sequence[int]) -> list[int]:
    """Of packed elements of these sizes."""
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def _places(xp: Any, indices: Any, size: int) -> tuple[Any, Any]:
    """The coordinates that `indices` mean along a dimension of `size`, int64, and which of them are inside it."""
    if indices.dtype.kind == "u":
        at = xp.minimum(indices, size).astype(xp.int64)
    else:
        at = indices.astype(xp.int64)
        at += (at < 0) * xp.int64(size)
    return at, (at >= 0) & (at < size)


def _updated(xp: Any, x: Any, cells: Any, inside: Any, updates: Any, width: int) -> Any:
    """`x` in cells of `width` elements, with `updates` in those of `cells` that are `inside`."""
    count = x.size // width
    cells, updates = xp.where(inside, cells, count).reshape(-1), updates.reshape(-1, width)
    if xp is not np:
        made = x.reshape(count, width).copy()
        put_last(xp, made, cells, xp.ascontiguousarray(updates))
        return made.reshape(x.shape)
    made = xp.empty((count + 1, width), x.dtype)  # one more, for what is left out
    made[:count] = x.reshape(count, width)
    made[cells] = updates  # NumPy assigns in order, so that the last update stays
    return made[:count].reshape(x.shape)
