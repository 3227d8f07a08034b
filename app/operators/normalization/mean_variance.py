"""MEAN_VARIANCE_NORMALIZATION*: means and variances of the elements themselves, over groups.

Source: the DML_MEAN_VARIANCE_NORMALIZATION*_OPERATOR_DESC pages of DirectML's reference.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import Bool, Float
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.values import FLOAT64, Number, Parameter, Value, sqrt, sum_of, widen
from app.operators.accuracy import SUM
from app.operators.axes import AXES, AxisList, axes_violations
from app.operators.fusion import Fused, OptionalFusedActivation, activation_violations
from app.operators.normalization.fields import ACTIVATION, IN_FLOAT64, POPULATION, activated, repetition_violations
from app.operators.operator import Count, InputTensorDesc, Operator, OptionalInputTensorDesc, OutputTensorDesc
from app.operators.parameters import Parameters

_REPEATED = ("ScaleTensor", "BiasTensor")

_COUNT = "(elements of a group)"
"""The parameter that says how many there are."""


class Normalization(Operator):
    """Elements less their group's mean, in units of its standard deviation, times a scale, plus a bias."""

    InputTensor: InputTensorDesc
    ScaleTensor: OptionalInputTensorDesc = None
    BiasTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None

    same_sizes = (("InputTensor", "OutputTensor"),)
    same_ranks = (("InputTensor", *_REPEATED, "OutputTensor"),)
    example: ClassVar[Mapping[str, Any]] = {name: {"Sizes": [1, 1, 1, 3]} for name in _REPEATED}

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from repetition_violations(self, _REPEATED)
        if level < FeatureLevel.V5_2:
            for missing, given in (_REPEATED, _REPEATED[::-1]):
                if getattr(self, missing) is None and getattr(self, given) is not None:
                    yield Violation(
                        (missing,),
                        f"{missing} is null but {given} is given; below feature level 5_2 both are or none is.",
                        None,
                        None,
                    )
        yield from activation_violations(self, level)

    def numbers(self) -> dict[str, Number]:
        sizes = self.InputTensor.Sizes
        return super().numbers() | {_COUNT: float(math.prod(sizes[axis] for axis in self.axes()))}

    def normalized(self, p: Parameters, element: Value, *, mean: bool, variance: bool) -> Value:
        """The `element` less the mean, which without `mean` is 0, and if `variance` by the root of the mean square."""
        x = widen(element)
        apart = x - self._mean(x) if mean else x
        if not variance:
            return apart
        return apart * (1 / sqrt(self._mean(apart * apart) + widen(p.Epsilon)))

    def _mean(self, x: Value) -> Value:
        """Of the group of `x`, which without axes is `x` alone."""
        return sum_of(x) / Parameter(FLOAT64, _COUNT) if self.axes() else x


def finished(
    p: Parameters, y: Value, type_: str, scale: Value | None, bias: Value | None, activation: Fused | None
) -> Value:
    """What is left to do with the float64 `y`: scale and bias, if there are any, and the activation."""
    if scale:
        y = y * widen(scale)
    if bias:
        y = y + widen(bias)
    return activated(p, y, type_, activation)


class MeanVarianceNormalization(Normalization):
    """Groups are the elements of a channel or, across channels, of all of them, in each image of the batch."""

    Type: Literal["DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION", "MEAN_VARIANCE_NORMALIZATION"]
    CrossChannel: Bool = Field(description="Whether a group goes across channels.", examples=[False])
    NormalizeVariance: Bool = Field(description="Whether to divide by the standard deviation as well.", examples=[True])
    Epsilon: Float = Field(1e-5, description="Added to the variance, so that it is not 0.")
    FusedActivation: OptionalFusedActivation = None

    formula_text = (
        "f(x, s, b) = act(s * (x - mean) / sqrt(variance + Epsilon) + b), without the division unless "
        "NormalizeVariance, over the dimensions 2 and 3 or, with CrossChannel, 1 to 3; s = Scale or 1, b = Bias or 0, "
        "each repeated where its size is 1, act = FusedActivation, else the identity"
    )
    accuracy = SUM
    support = SupportTable.of("1_0 4 F32-16")
    notes = (POPULATION, IN_FLOAT64, ACTIVATION)

    def axes(self) -> tuple[int, ...]:
        return (1, 2, 3) if self.CrossChannel else (2, 3)

    def formula(self, p: Parameters, x: Value, scale: Value | None, bias: Value | None) -> Value:
        y = self.normalized(p, x, mean=True, variance=self.NormalizeVariance)
        return finished(p, y, x.type, scale, bias, self.FusedActivation)


class MeanVarianceNormalization1(Normalization):
    """Groups are the elements that differ only along the dimensions in Axes."""

    Type: Literal["DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1", "MEAN_VARIANCE_NORMALIZATION1"]
    AxisCount: Count = Field(None, description="Number of axes; if given, the length of Axes.")
    Axes: AxisList
    NormalizeVariance: Bool = Field(description="Whether to divide by the standard deviation as well.", examples=[True])
    Epsilon: Float = Field(1e-5, description="Added to the variance, so that it is not 0.")
    FusedActivation: OptionalFusedActivation = None

    formula_text = (
        "f(x, s, b) = act(s * (x - mean) / sqrt(variance + Epsilon) + b), without the division unless "
        "NormalizeVariance, over the elements that differ from x only along Axes; s = Scale or 1, b = Bias or 0, each "
        "repeated where its size is 1, act = FusedActivation, else the identity"
    )
    accuracy = SUM
    support = SupportTable.of(
        "3_1 1-8 F32-16",
        "2_1 4 F32-16",
    )
    counts: ClassVar[Mapping[str, tuple[str, ...]]] = {"AxisCount": ("Axes",)}
    notes = (
        POPULATION,
        IN_FLOAT64,
        AXES,
        "Below feature level 4_0 ScaleTensor and BiasTensor have the size of InputTensor along dimension 1.",
        ACTIVATION,
    )

    def axes(self) -> tuple[int, ...]:
        return tuple(self.Axes)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from axes_violations(self.Axes, "InputTensor", self.InputTensor.rank)
        yield from super().rules(level)
        if level < FeatureLevel.V4_0:
            whole = self.InputTensor.Sizes
            for name in _REPEATED:
                desc = getattr(self, name)
                if desc and desc.Sizes[1:2] != whole[1:2]:
                    yield Violation(
                        (name, "Sizes"),
                        f"Sizes of {name} is {desc.Sizes} but InputTensor has {whole}; below feature level 4_0 those "
                        "of dimension 1 must be equal.",
                        desc.Sizes,
                        [*desc.Sizes[:1], *whole[1:2], *desc.Sizes[2:]],
                    )

    def formula(self, p: Parameters, x: Value, scale: Value | None, bias: Value | None) -> Value:
        y = self.normalized(p, x, mean=True, variance=self.NormalizeVariance)
        return finished(p, y, x.type, scale, bias, self.FusedActivation)


class MeanVarianceNormalization2(Normalization):
    """The same with or without the mean: without it, elements are divided by the root of their mean square."""

    Type: Literal["DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION2", "MEAN_VARIANCE_NORMALIZATION2"]
    AxisCount: Count = Field(None, description="Number of axes; if given, the length of Axes.")
    Axes: AxisList
    UseMean: Bool = Field(description="Whether to take off the mean.", examples=[True])
    UseVariance: Bool = Field(
        description="Whether to divide by the root of the mean square of what is left.", examples=[True]
    )
    Epsilon: Float = Field(1e-5, description="Added to the mean square, so that it is not 0.")
    FusedActivation: OptionalFusedActivation = None

    formula_text = (
        "f(x, s, b) = act(s * (x - m) / sqrt(v + Epsilon) + b), m = mean of x with UseMean, else 0, v = mean of "
        "(x - m)^2, without the division unless UseVariance, over the elements that differ from x only along Axes; "
        "s = Scale or 1, b = Bias or 0, each repeated where its size is 1, act = FusedActivation, else the identity"
    )
    accuracy = SUM
    support = SupportTable.of("6_3 1-8 F32-16")
    counts: ClassVar[Mapping[str, tuple[str, ...]]] = {"AxisCount": ("Axes",)}
    notes = (
        "UseMean and UseVariance are read as DirectMLX and ONNX Runtime use them. DirectML's documentation has no text "
        "for them.",
        POPULATION,
        IN_FLOAT64,
        AXES,
        ACTIVATION,
        "FusedActivation is there, as in the operator's structure; DirectML's list of what has one does not name it.",
    )

    def axes(self) -> tuple[int, ...]:
        return tuple(self.Axes) if self.UseMean or self.UseVariance else ()

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from axes_violations(self.Axes, "InputTensor", self.InputTensor.rank)
        yield from super().rules(level)

    def formula(self, p: Parameters, x: Value, scale: Value | None, bias: Value | None) -> Value:
        y = self.normalized(p, x, mean=self.UseMean, variance=self.UseVariance)
        return finished(p, y, x.type, scale, bias, self.FusedActivation)
