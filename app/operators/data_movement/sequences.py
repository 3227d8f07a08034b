"""Operators on sequences, which lie along a dimension.

Source: the DML_REVERSE_SUBSEQUENCES_OPERATOR_DESC page of DirectML's reference.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import Uint
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates, whole
from app.formula.values import Value, cast, minimum, where
from app.operators.accuracy import EXACT
from app.operators.axes import axis_violations
from app.operators.operator import InputTensorDesc, Operator, OutputTensorDesc
from app.operators.parameters import STRUCTURAL, TensorParameters


class ReverseSubsequences(Operator):
    """The beginning of each sequence backwards, the rest as it is."""

    Type: Literal["DML_OPERATOR_REVERSE_SUBSEQUENCES", "REVERSE_SUBSEQUENCES"]
    InputTensor: InputTensorDesc
    SequenceLengthsTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    Axis: Annotated[Uint, STRUCTURAL] = Field(description="The dimension along which the sequences lie.")

    formula_text = (
        "f(x, lengths)[.., i, ..] = x[.., L - 1 - i, ..] if i < L, else x[.., i, ..], along Axis, L = min(lengths[.., "
        "0, ..], size along Axis)"
    )
    accuracy = EXACT
    by_coordinates = True
    same_types = (("InputTensor", "OutputTensor"),)
    same_sizes = (("InputTensor", "OutputTensor"),)
    same_ranks = (("InputTensor", "SequenceLengthsTensor", "OutputTensor"),)
    example: ClassVar = {"SequenceLengthsTensor": {"Sizes": [1, 1, 2, 1]}, "Axis": 3}
    support = SupportTable.of(
        "5_0 1-8 F64-16 I64-8 U64-8, SequenceLengthsTensor U64-32",
        "4_0 1-8 F32-16 I32-8 U32-8, SequenceLengthsTensor U32",
        "3_0 4-5 F32-16 I32-8 U32-8, SequenceLengthsTensor U32",
        "2_1 4 F32-16 I32-8 U32-8, SequenceLengthsTensor U32",
    )
    notes = (
        "Lengths beyond the dimension's size mean all of it.",
        "Tensors have 4 or 5 dimensions at feature levels 3_0 and 3_1, as the operator's page has it; the feature "
        "level history does not name that.",
    )

    def is_bitwise(self) -> bool:
        return True

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        sizes, given = self.InputTensor.Sizes, self.SequenceLengthsTensor.Sizes
        wrong = list(axis_violations(self.Axis, "InputTensor", len(sizes)))
        yield from wrong
        if wrong:
            return
        expected = [*sizes[: self.Axis], 1, *sizes[self.Axis + 1 :]]
        if given != expected:
            yield Violation(
                ("SequenceLengthsTensor", "Sizes"),
                f"SequenceLengthsTensor has Sizes {given}; it must have those of InputTensor but 1 along Axis "
                f"{self.Axis}, which is {expected}.",
                given,
                expected,
            )

    def formula(self, p: TensorParameters, x: Operand, lengths: Operand) -> Value:
        at = coordinates(x.rank)
        place = at[self.Axis]
        of = list(at)
        of[self.Axis] = whole(0)  # along which there is one length
        # The least is taken before the cast, in which a length beyond int64 would be negative.
        length = cast(minimum(lengths[of], cast(x.sizes[self.Axis], lengths.type)), "int64")
        at[self.Axis] = where(place < length, length - 1 - place, place)
        return x[at]
