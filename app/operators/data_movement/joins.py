"""Operators that make one tensor of several, and several of one.

Source: the DML_JOIN_OPERATOR_DESC and DML_SPLIT_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import Uint
from app.contract.support import SupportTable
from app.contract.tensors import TensorDesc, element_name
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates, whole
from app.formula.values import Value, where
from app.operators.accuracy import EXACT
from app.operators.axes import axis_violations
from app.operators.operator import (
    Count,
    InputTensorDesc,
    InputTensorDescs,
    Operator,
    OutputTensorDesc,
    OutputTensorDescs,
)
from app.operators.parameters import STRUCTURAL, TensorParameters


class Split(Operator):
    """Parts of a tensor, one after the other along a dimension."""

    Type: Literal["DML_OPERATOR_SPLIT", "SPLIT"]
    InputTensor: InputTensorDesc
    OutputCount: Count = None
    OutputTensors: OutputTensorDescs
    Axis: Annotated[Uint, STRUCTURAL] = Field(description="The dimension along which the tensor is split.")

    formula_text = (
        "f(x)[k][c] = x[c], but at begin + c along Axis, where begin is the sum of the sizes of outputs 0 to k - 1 "
        "there"
    )
    accuracy = EXACT
    by_coordinates = True
    same_types = (("InputTensor", "OutputTensors"),)
    same_sizes = ()
    same_ranks = (("InputTensor", "OutputTensors"),)
    counts: ClassVar = {"OutputCount": ("OutputTensors",)}
    example: ClassVar = {"OutputTensors": [{"Sizes": [1, 1, 2, 1]}, {"Sizes": [1, 1, 2, 2]}], "Axis": 3}
    support = SupportTable.of(
        "4_1 1-8 F64-16 I64-8 U64-8",
        "3_0 1-8 F32-16 I32-8 U32-8",
        "2_1 4 F32-16 I32-8 U32-8",
        "1_0 4 F32-16 I32-16 U32-16",
    )

    def is_bitwise(self) -> bool:
        return True

    def implied_sizes(self, name: str) -> None:
        return None

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        wrong = list(axis_violations(self.Axis, "InputTensor", self.InputTensor.rank))
        if not wrong:
            wrong += different_parts("OutputTensors", self.OutputTensors, "InputTensor", self.InputTensor, self.Axis)
        yield from wrong
        if wrong:
            return
        size, total = self.InputTensor.Sizes[self.Axis], sum(each.Sizes[self.Axis] for each in self.OutputTensors)
        if total != size:
            yield Violation(
                ("OutputTensors",),
                f"OutputTensors have {total} elements in all along Axis {self.Axis}; InputTensor has {size} there.",
                total,
                size,
            )

    def formula(self, p: TensorParameters, x: Operand) -> dict[str, Value]:
        names = [element_name("OutputTensors", k) for k in range(len(self.OutputTensors))]
        sizes = _Sums([p.out(name).sizes[self.Axis] for name in names])
        made: dict[str, Value] = {}
        for k, name in enumerate(names):
            at = coordinates(x.rank)
            at[self.Axis] = at[self.Axis] + sizes.below(k)
            made[name] = x[at]
        return made


class Join(Operator):
    """Tensors one after the other along a dimension."""

    Type: Literal["DML_OPERATOR_JOIN", "JOIN"]
    InputCount: Count = None
    InputTensors: InputTensorDescs
    OutputTensor: OutputTensorDesc = None
    Axis: Annotated[Uint, STRUCTURAL] = Field(description="The dimension along which the tensors are joined.")

    formula_text = (
        "f(x0, x1, ...)[c] = xk[c], but at c - begin along Axis, where begin, the sum of the sizes of x0 to xk-1 "
        "there, is the largest that is not above c"
    )
    accuracy = EXACT
    by_coordinates = True
    same_types = (("InputTensors", "OutputTensor"),)
    same_sizes = ()
    same_ranks = (("InputTensors", "OutputTensor"),)
    sizes_from = ("InputTensors", "Axis")
    counts: ClassVar = {"InputCount": ("InputTensors",)}
    example: ClassVar = {"InputTensors": [{}, {"Sizes": [1, 1, 2, 1]}], "Axis": 3}
    support = SupportTable.of(
        "4_1 1-8 F64-16 I64-8 U64-8",
        "3_0 4-5 F32-16 I32-8 U32-8",
        "2_1 4 F32-16 I32-8 U32-8",
        "1_0 4 F32-16 I32-16 U32-16",
    )
    notes = (
        "From feature level 3_0 to 4_0 tensors have 4 or 5 dimensions, as the operator's page has it; the feature "
        "level history has up to 8 from 3_1 on.",
    )

    def is_bitwise(self) -> bool:
        return True

    def implied_sizes(self, name: str) -> list[int]:
        sizes = list(self.InputTensors[0].Sizes)
        sizes[self.Axis] = sum(each.Sizes[self.Axis] for each in self.InputTensors)
        return sizes

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        first = self.InputTensors[0]
        wrong = list(axis_violations(self.Axis, "InputTensors[0]", first.rank))
        yield from wrong or different_parts("InputTensors", self.InputTensors, "InputTensors[0]", first, self.Axis)

    def formula(self, p: TensorParameters, inputs: list[Operand]) -> Value:
        sizes = _Sums([each.sizes[self.Axis] for each in inputs])

        def joined(first: int, last: int, place: Value) -> Value:
            """Of inputs `first` to below `last`, at `place` along Axis. Halves keep formulas of many inputs flat."""
            if last - first == 1:
                at = coordinates(inputs[first].rank)
                at[self.Axis] = place
                return inputs[first][at]
            middle = (first + last) // 2
            size = sizes.between(first, middle)
            return where(place < size, joined(first, middle, place), joined(middle, last, place - size))

        return joined(0, len(inputs), coordinates(inputs[0].rank)[self.Axis])


class _Sums:
    """Sums of neighbouring values, made of sums of halves: a formula that is as deep as there are values would be too
    deep for what walks formulas."""

    def __init__(self, values: Sequence[Value]) -> None:
        self._values = values
        self._made: dict[tuple[int, int], Value] = {}

    def between(self, first: int, last: int) -> Value:
        """Of values `first` to below `last`, of which there is one at least."""
        if last - first == 1:
            return self._values[first]
        if (first, last) not in self._made:
            half = 1 << (last - first - 1).bit_length() - 1
            self._made[first, last] = self.between(first, first + half) + self.between(first + half, last)
        return self._made[first, last]

    def below(self, last: int) -> Value:
        """Of all values before `last`."""
        return self.between(0, last) if last else whole(0)


def different_parts(
    field: str, parts: Sequence[TensorDesc], model_name: str, model: TensorDesc, axis: int
) -> Iterator[Violation]:
    """Tensors of the array `field` whose sizes are not those of `model`, beside `axis`."""
    for k, desc in enumerate(parts):
        expected = [*model.Sizes[:axis], desc.Sizes[axis], *model.Sizes[axis + 1 :]]
        if desc.Sizes != expected:
            name = element_name(field, k)
            yield Violation(
                (field, k, "Sizes"),
                f"{name} has Sizes {desc.Sizes} but {model_name} has {model.Sizes}; they must be equal but for Axis "
                f"{axis}.",
                desc.Sizes,
                expected,
            )
