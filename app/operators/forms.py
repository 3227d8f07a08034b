"""The usual sets of fields, for operators that have no others or only a few more attributes."""

from typing import ClassVar

from app.contract.constants import DataType, FeatureLevel
from app.formula.values import Value
from app.operators.operator import InputTensorDesc, Operator, OptionalScaleBias, OutputTensorDesc, scaled
from app.operators.parameters import Parameters


class Unary(Operator):
    """One input; the output may take its place."""

    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None

    in_place: ClassVar[tuple[str, ...]] = ("InputTensor",)


SCALED = "g(x) = x * Scale + Bias with ScaleBias, else g(x) = x"
"""What the formulas of the following say at their ends."""


class ScaledUnary(Unary):
    """The same with ScaleBias: subclasses state `function`, the formula of what ScaleBias has made of x."""

    ScaleBias: OptionalScaleBias = None

    def formula(self, p: Parameters, x: Value) -> Value:
        return self.function(p, scaled(p, x, self.ScaleBias))

    def function(self, p: Parameters, x: Value) -> Value:
        raise NotImplementedError(self.name())  # each operator says; none is made of this class itself


class Binary(Operator):
    """Two inputs; the output may take the place of either."""

    ATensor: InputTensorDesc
    BTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None

    in_place: ClassVar[tuple[str, ...]] = ("ATensor", "BTensor")


class Predicate(Operator):
    """An output of 0 and 1 whose type, UINT8 or UINT32, is independent of the inputs'."""

    same_types: ClassVar[tuple[tuple[str, ...], ...] | None] = ()

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        """UINT8, but UINT32 at levels that have no other."""
        row = self.support.at(level)
        assert row is not None, "the operator has been judged"
        return DataType.UINT8 if DataType.UINT8 in row.of("OutputTensor").data_types else DataType.UINT32


PREDICATE_OUTPUT = "OutputTensor left out is of UINT8, or of UINT32 at feature level 1_0, which has no other."
