"""BATCH_NORMALIZATION_TRAINING, and the gradients of batch normalization.

Source: the DML_BATCH_NORMALIZATION_TRAINING_OPERATOR_DESC, DML_BATCH_NORMALIZATION_GRAD_OPERATOR_DESC and
DML_BATCH_NORMALIZATION_TRAINING_GRAD_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import Float
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates
from app.formula.values import Value, cast, maximum, sqrt, widen
from app.operators.accuracy import SUM
from app.operators.fusion import OptionalFusedActivation, activation_violations
from app.operators.normalization.fields import (
    ACTIVATION,
    IN_FLOAT64,
    POPULATION,
    Groups,
    activated,
    group_axes,
    repetition_violations,
)
from app.operators.operator import InputTensorDesc, Operator, OptionalInputTensorDesc, OutputTensorDesc
from app.operators.parameters import TensorParameters

_ONE_OF_A_GROUP = {"Sizes": [1, 1, 2, 1]}


class BatchNormalizationTraining(Operator):
    """Elements less their group's mean, in units of its standard deviation, times a scale, plus a bias; also the means
    and variances."""

    Type: Literal["DML_OPERATOR_BATCH_NORMALIZATION_TRAINING", "BATCH_NORMALIZATION_TRAINING"]
    InputTensor: InputTensorDesc
    ScaleTensor: InputTensorDesc
    BiasTensor: InputTensorDesc
    FusedAddTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None
    OutputMeanTensor: OutputTensorDesc = None
    OutputVarianceTensor: OutputTensorDesc = None
    Epsilon: Float = Field(description="Added to the variance, so that it is not 0.", examples=[1e-5])
    FusedActivation: OptionalFusedActivation = None

    formula_text = (
        "f(x, s, b, a) = act(s * (x - m) / sqrt(v + Epsilon) + b + a), m and v = mean and variance over the dimensions "
        "in which ScaleTensor has size 1; s = Scale, b = Bias, a = FusedAdd or 0, act = FusedActivation, else the "
        "identity; OutputMeanTensor = m, OutputVarianceTensor = v"
    )
    accuracy = SUM
    support = SupportTable.of("4_1 1-8 F32-16")
    same_sizes = (
        ("InputTensor", "FusedAddTensor", "OutputTensor"),
        ("ScaleTensor", "BiasTensor", "OutputMeanTensor", "OutputVarianceTensor"),
    )
    same_ranks = (("InputTensor", "ScaleTensor"),)
    example: ClassVar[Mapping[str, Any]] = dict.fromkeys(("ScaleTensor", "BiasTensor"), _ONE_OF_A_GROUP)
    by_coordinates = True
    notes = (POPULATION, IN_FLOAT64, ACTIVATION)

    def axes(self) -> tuple[int, ...]:
        return group_axes(self.InputTensor, self.ScaleTensor)

    def implied_sizes(self, name: str) -> list[int]:
        return (self.InputTensor if name == "OutputTensor" else self.ScaleTensor).Sizes

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from repetition_violations(self, ("ScaleTensor",))
        yield from activation_violations(self, level)

    def formula(
        self, p: TensorParameters, x: Operand, scale: Operand, bias: Operand, add: Operand | None
    ) -> dict[str, Value]:
        groups, exact = Groups(p, x, scale), widen(x.here)
        apart = exact - groups.mean(exact)
        y = apart * (1 / sqrt(groups.mean(apart * apart) + widen(p.Epsilon)))
        y = y * widen(scale.here) + widen(bias.here)
        if add:
            y = y + widen(add.here)
        mean = groups.total(lambda at: widen(x[at])) / groups.count
        return {
            "OutputTensor": activated(p, y, x.type, self.FusedActivation),
            "OutputMeanTensor": cast(mean, x.type),
            "OutputVarianceTensor": cast(variance_of(groups, x), x.type),
        }


def variance_of(groups: Groups, x: Operand) -> Value:
    """The variances of groups, in float64, where the coordinates are those of a group's first element.

    In one pass over the differences from that element, which lie about the mean as the elements do: what cancels is at
    most as many times the variance as the group has elements.
    """
    first = widen(x[coordinates(x.rank)])
    mean = groups.total(lambda at: widen(x[at]) - first) / groups.count
    square = groups.total(lambda at: (widen(x[at]) - first) * (widen(x[at]) - first)) / groups.count
    return maximum(square - mean * mean, 0)


class Gradient(Operator):
    """Gradients of the input, the scale and the bias of a batch normalization, from that of its output."""

    InputTensor: InputTensorDesc
    InputGradientTensor: InputTensorDesc
    MeanTensor: InputTensorDesc
    VarianceTensor: InputTensorDesc
    ScaleTensor: InputTensorDesc
    OutputGradientTensor: OutputTensorDesc = None
    OutputScaleGradientTensor: OutputTensorDesc = None
    OutputBiasGradientTensor: OutputTensorDesc = None
    Epsilon: Float = Field(description="Added to the variance, as it was before.", examples=[1e-5])

    same_sizes = (
        ("InputTensor", "InputGradientTensor", "OutputGradientTensor"),
        ("MeanTensor", "VarianceTensor", "ScaleTensor", "OutputScaleGradientTensor", "OutputBiasGradientTensor"),
    )
    same_ranks = (("InputTensor", "MeanTensor"),)
    example: ClassVar[Mapping[str, Any]] = dict.fromkeys(
        ("MeanTensor", "VarianceTensor", "ScaleTensor"), _ONE_OF_A_GROUP
    )
    by_coordinates = True

    def implied_sizes(self, name: str) -> list[int]:
        return (self.InputTensor if name == "OutputGradientTensor" else self.MeanTensor).Sizes

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from repetition_violations(self, ("MeanTensor",))

    def of_groups(
        self, p: TensorParameters, groups: Groups, x: Operand, gradient: Operand, mean: Operand, variance: Operand
    ) -> dict[str, Value]:
        """The gradients of the scale and of the bias."""
        here = coordinates(x.rank)
        middle = widen(mean[here])
        product = groups.total(lambda at: widen(gradient[at]) * (widen(x[at]) - middle))
        scale = product / sqrt(widen(variance[here]) + widen(p.Epsilon))
        bias = groups.total(lambda at: widen(gradient[at]))
        return {
            "OutputScaleGradientTensor": cast(scale, x.type),
            "OutputBiasGradientTensor": cast(bias, x.type),
        }


_OF_GROUPS = (
    "dScale = sum(g * (x - Mean) / sqrt(Variance + Epsilon)), dBias = sum(g), over the dimensions in which MeanTensor "
    "has size 1; g = InputGradient"
)


class BatchNormalizationGrad(Gradient):
    """Gradients of BATCH_NORMALIZATION: of its input, scale and bias, where means and variances are constants."""

    Type: Literal["DML_OPERATOR_BATCH_NORMALIZATION_GRAD", "BATCH_NORMALIZATION_GRAD"]

    formula_text = f"dX = g * Scale / sqrt(Variance + Epsilon), {_OF_GROUPS}"
    accuracy = SUM
    support = SupportTable.of("3_1 1-8 F32-16")
    notes = (
        "MeanTensor, VarianceTensor and ScaleTensor repeat where they have size 1, as the operator's page implies.",
        IN_FLOAT64,
    )

    def formula(
        self, p: TensorParameters, x: Operand, gradient: Operand, mean: Operand, variance: Operand, scale: Operand
    ) -> dict[str, Value]:
        factor = widen(scale.here) / sqrt(widen(variance.here) + widen(p.Epsilon))
        made = self.of_groups(p, Groups(p, x, mean), x, gradient, mean, variance)
        return {"OutputGradientTensor": cast(widen(gradient.here) * factor, x.type)} | made


class BatchNormalizationTrainingGrad(Gradient):
    """Gradients of BATCH_NORMALIZATION_TRAINING: of its input, scale and bias, through means and variances as well."""

    Type: Literal["DML_OPERATOR_BATCH_NORMALIZATION_TRAINING_GRAD", "BATCH_NORMALIZATION_TRAINING_GRAD"]

    formula_text = (
        "dX = Scale / sqrt(Variance + Epsilon) * (g - mean(g) - (x - mean(x)) * mean(g * (x - mean(x))) / "
        f"(Variance + Epsilon)), {_OF_GROUPS}, as mean is over these"
    )
    accuracy = SUM
    support = SupportTable.of("4_1 1-8 F32-16")
    notes = (
        "InputCentered, which the page defines by itself, is read as the input less its mean, computed from the input.",
        IN_FLOAT64,
    )

    def axes(self) -> tuple[int, ...]:
        return group_axes(self.InputTensor, self.MeanTensor)

    def formula(
        self, p: TensorParameters, x: Operand, gradient: Operand, mean: Operand, variance: Operand, scale: Operand
    ) -> dict[str, Value]:
        groups = Groups(p, x, mean)
        exact, g = widen(x.here), widen(gradient.here)
        apart = exact - groups.mean(exact)
        square = widen(variance.here) + widen(p.Epsilon)
        inner = g - groups.mean(g) - apart * groups.mean(g * apart) / square
        made = self.of_groups(p, groups, x, gradient, mean, variance)
        return {"OutputGradientTensor": cast(widen(scale.here) / sqrt(square) * inner, x.type)} | made
