"""Operators that read the elements that indices lead to.

Source: the DML_GATHER*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import Uint
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates
from app.formula.values import INT64, Constant, Value
from app.operators.accuracy import EXACT
from app.operators.axes import axis_violations
from app.operators.indexing.places import (
    INDICES,
    NEGATIVE,
    TUPLES,
    AxisUint,
    IndicesCount,
    InputCount,
    Moved,
    along_axis_violations,
    fit_violations,
    leading_violations,
    place,
    right_aligned,
    tuple_sizes,
    tuple_violations,
)
from app.operators.operator import InputTensorDesc, OutputTensorDesc
from app.operators.parameters import STRUCTURAL, TensorParameters

CLAMPED = (
    "An index out of range reads the nearest element along its dimension. DirectML says that reads are clamped to the "
    "tensor's memory, or nothing."
)
_ZERO = Constant(INT64, 0)


class Gathering(Moved):
    """Moves elements of InputTensor to where IndicesTensor has their indices."""

    InputTensor: InputTensorDesc
    IndicesTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None

    same_types = (("InputTensor", "OutputTensor"),)
    same_sizes = ()
    same_ranks = (("InputTensor", "IndicesTensor", "OutputTensor"),)
    sizes_from: ClassVar[tuple[str, ...]] = ("InputTensor", "IndicesTensor")
    notes: ClassVar[tuple[str, ...]] = (NEGATIVE, CLAMPED)


class Gather(Gathering):
    """Slices of a tensor along an axis, by their indices."""

    Type: Literal["DML_OPERATOR_GATHER", "GATHER"]
    Axis: AxisUint
    IndexDimensions: Annotated[
        Uint,
        STRUCTURAL,
        Field(description="How many of the last dimensions of IndicesTensor have a meaning; they replace Axis."),
    ]

    formula_text = (
        "y[a..., i..., b...] = x[a..., indices[i...], b...], a = the coordinates before Axis, i = the last "
        "IndexDimensions coordinates of IndicesTensor, b = the coordinates after Axis"
    )
    accuracy = EXACT
    support = SupportTable.of(
        f"4_1 1-8 F64-16 I64-8 U64-8{INDICES}",
        f"3_0 1-8 F32-16 I32-8 U32-8{INDICES}",
        "2_1 4 F32-16 I32-8 U32-8, IndicesTensor U32",
        "1_0 4 F32-16, IndicesTensor U32",
    )
    sizes_from = ("InputTensor", "IndicesTensor", "Axis", "IndexDimensions")
    example: ClassVar[Mapping[str, Any]] = {
        "IndicesTensor": {"Sizes": [1, 1, 1, 2]},
        "Axis": 3,
        "IndexDimensions": 1,
    }
    example_data: ClassVar[Mapping[str, tuple[float, ...]]] = {"IndicesTensor": (2, 0)}
    notes = (
        NEGATIVE,
        CLAMPED,
        "IndexDimensions may be as many as IndicesTensor has, and 0, where there is one index and the output has no "
        "dimension in the place of Axis.",
        "Sizes are judged alike at all feature levels. DirectML's documentation does not say what 2_1 relaxed.",
    )

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        found = [
            *axis_violations(self.Axis, "InputTensor", self.InputTensor.rank),
            *leading_violations("IndicesTensor", self.IndicesTensor.Sizes, "IndexDimensions", self.IndexDimensions, 0),
        ]
        yield from found or fit_violations("OutputTensor", self._sizes(), self.InputTensor.rank, self.sizes_from)

    def _sizes(self) -> list[int]:
        """The output's sizes, in as many dimensions as are made."""
        sizes, indices = self.InputTensor.Sizes, self.IndicesTensor.Sizes
        return [
            *sizes[: self.Axis],
            *indices[len(indices) - self.IndexDimensions :],
            *sizes[self.Axis + 1 :],
        ]

    def implied_sizes(self, name: str) -> list[int]:
        return right_aligned(self._sizes(), self.InputTensor.rank, 1)

    def formula(self, p: TensorParameters, x: Operand, indices: Operand) -> Value:
        axis, end = self.Axis, self.Axis + self.IndexDimensions
        at = right_aligned(coordinates(x.rank), x.rank + self.IndexDimensions - 1, _ZERO)
        index = indices[right_aligned(at[axis:end], x.rank, _ZERO)]
        return x[[*at[:axis], place(index, x.sizes[axis]), *at[end:]]]


class GatherElements(Gathering):
    """Elements of a tensor, each by an index of its own along an axis."""

    Type: Literal["DML_OPERATOR_GATHER_ELEMENTS", "GATHER_ELEMENTS"]
    Axis: AxisUint

    formula_text = "y[c] = x[c with coordinate Axis replaced by indices[c]]"
    accuracy = EXACT
    support = SupportTable.of(
        f"4_1 1-8 F64-16 I64-8 U64-8{INDICES}",
        f"3_0 1-8 F32-16 I32-8 U32-8{INDICES}",
        "2_1 4 F32-16 I32-8 U32-8, IndicesTensor U32",
    )
    sizes_from = ("IndicesTensor",)
    example: ClassVar[Mapping[str, Any]] = {"IndicesTensor": {"Sizes": [1, 1, 2, 2]}, "Axis": 3}
    example_data: ClassVar[Mapping[str, tuple[float, ...]]] = {"IndicesTensor": (2, 0, 1, 1)}

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from along_axis_violations(self, self.Axis)

    def implied_sizes(self, name: str) -> list[int]:
        return self.IndicesTensor.Sizes

    def formula(self, p: TensorParameters, x: Operand, indices: Operand) -> Value:
        at = coordinates(x.rank)
        at[self.Axis] = place(indices[at], x.sizes[self.Axis])
        return x[at]


class ByTuples(Gathering):
    """Finds slices by the coordinates that they have along several dimensions."""

    InputDimensionCount: InputCount
    IndicesDimensionCount: IndicesCount

    notes = (NEGATIVE, CLAMPED, TUPLES)

    @property
    def batches(self) -> int:
        """How many of the first dimensions with a meaning are batches, which the coordinates leave out."""
        return 0

    @property
    def _counts(self) -> tuple[int, int]:
        return self.InputDimensionCount, self.IndicesDimensionCount

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        found = [*tuple_violations(self, self._counts, self.batches)]
        yield from found or fit_violations("OutputTensor", self._sizes(), self.InputTensor.rank, self.sizes_from)

    def _sizes(self) -> list[int]:
        """The output's sizes, in as many dimensions as are made."""
        return tuple_sizes(self.InputTensor.Sizes, self.IndicesTensor.Sizes, self._counts, self.batches)

    def implied_sizes(self, name: str) -> list[int]:
        return right_aligned(self._sizes(), self.InputTensor.rank, 1)

    def formula(self, p: TensorParameters, x: Operand, indices: Operand) -> Value:
        length: int = p.ask(int, indices.sizes[-1])
        rows, first = self.IndicesDimensionCount - 1, x.rank - self.InputDimensionCount
        made = rows + self.InputDimensionCount - self.batches - length
        at = right_aligned(coordinates(x.rank), made, _ZERO)
        row = right_aligned(at[:rows], x.rank - 1, _ZERO)
        taken = [place(indices[[*row, along]], x.sizes[first + self.batches + along]) for along in range(length)]
        return x[[*[_ZERO] * first, *at[: self.batches], *taken, *at[rows:]]]


class GatherNd(ByTuples):
    """Slices of a tensor, by tuples of coordinates along its first dimensions."""

    Type: Literal["DML_OPERATOR_GATHER_ND", "GATHER_ND"]

    formula_text = (
        "y[i..., b...] = x[indices[i..., 0], ..., indices[i..., t-1], b...], t = IndicesTensor.Sizes[last] = "
        "coordinates per tuple, b = the remaining input coordinates"
    )
    accuracy = EXACT
    support = SupportTable.of(
        f"4_1 1-8 F64-16 I64-8 U64-8{INDICES}",
        f"3_0 1-8 F32-16 I32-8 U32-8{INDICES}",
        "2_1 4 F32-16 I32-8 U32-8, IndicesTensor U32",
    )
    sizes_from = ("InputTensor", "IndicesTensor", "InputDimensionCount", "IndicesDimensionCount")
    example: ClassVar[Mapping[str, Any]] = {
        "IndicesTensor": {"Sizes": [1, 1, 2, 2]},
        "InputDimensionCount": 2,
        "IndicesDimensionCount": 2,
    }
    example_data: ClassVar[Mapping[str, tuple[float, ...]]] = {"IndicesTensor": (1, 2, 0, 1)}


class GatherNd1(ByTuples):
    """The same within each of several batches."""

    Type: Literal["DML_OPERATOR_GATHER_ND1", "GATHER_ND1"]
    BatchDimensionCount: Annotated[
        Uint,
        STRUCTURAL,
        Field(description="How many of the first dimensions with a meaning are batches; 0: there is one batch."),
    ]

    formula_text = (
        "y[n..., i..., b...] = x[n..., indices[n..., i..., 0], ..., indices[n..., i..., t-1], b...], n = the first "
        "BatchDimensionCount meaningful coordinates, t = IndicesTensor.Sizes[last] = coordinates per tuple, b = the "
        "remaining input coordinates"
    )
    accuracy = EXACT
    support = SupportTable.of(
        f"4_1 1-8 F64-16 I64-8 U64-8{INDICES}",
        f"3_0 1-8 F32-16 I32-8 U32-8{INDICES}",
    )
    sizes_from = (
        *("InputTensor", "IndicesTensor", "InputDimensionCount", "IndicesDimensionCount"),
        "BatchDimensionCount",
    )
    example: ClassVar[Mapping[str, Any]] = {
        "IndicesTensor": {"Sizes": [1, 1, 2, 1]},
        "InputDimensionCount": 2,
        "IndicesDimensionCount": 2,
        "BatchDimensionCount": 1,
    }
    example_data: ClassVar[Mapping[str, tuple[float, ...]]] = {"IndicesTensor": (2, 0)}

    @property
    def batches(self) -> int:
        return self.BatchDimensionCount

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        counted = [*tuple_violations(self, self._counts)]  # else nobody knows which dimensions have a meaning
        yield from counted or [*self._batch_violations()] or super().rules(level)

    def _batch_violations(self) -> Iterator[Violation]:
        least = min(self._counts)
        if self.batches >= least:
            yield Violation(
                ("BatchDimensionCount",),
                f"BatchDimensionCount is {self.batches}; it must be less than InputDimensionCount and "
                f"IndicesDimensionCount, which are {self._counts[0]} and {self._counts[1]}.",
                self.batches,
                f"0 to {least - 1}",
            )
            return
        sizes, indices = (
            desc.Sizes[desc.rank - count :]
            for desc, count in zip((self.InputTensor, self.IndicesTensor), self._counts, strict=True)
        )
        if sizes[: self.batches] != indices[: self.batches]:
            allowed = [
                *self.IndicesTensor.Sizes[: self.IndicesTensor.rank - len(indices)],
                *sizes[: self.batches],
                *indices[self.batches :],
            ]
            yield Violation(
                ("IndicesTensor", "Sizes"),
                f"IndicesTensor has Sizes {self.IndicesTensor.Sizes} but InputTensor has {self.InputTensor.Sizes}; of "
                f"the last {len(indices)} (IndicesDimensionCount) and {len(sizes)} (InputDimensionCount) the first "
                f"{self.batches} (BatchDimensionCount) must be equal.",
                self.IndicesTensor.Sizes,
                allowed,
            )
