"""BATCH_NORMALIZATION: means and variances that are given.

Source: the DML_BATCH_NORMALIZATION_OPERATOR_DESC page of DirectML's reference.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import Bool, Float
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.values import Value, multiply_add, sqrt
from app.operators.accuracy import Accuracy
from app.operators.fusion import OptionalFusedActivation, activation_violations
from app.operators.normalization.fields import ACTIVATION, activated, repetition_violations
from app.operators.operator import InputTensorDesc, Operator, OutputTensorDesc
from app.operators.parameters import Parameters

_STATISTICS = ("MeanTensor", "VarianceTensor")
_REPEATED = (*_STATISTICS, "ScaleTensor", "BiasTensor")


class BatchNormalization(Operator):
    """Elements less a mean, in units of a standard deviation, times a scale, plus a bias: all of these are given."""

    Type: Literal["DML_OPERATOR_BATCH_NORMALIZATION", "BATCH_NORMALIZATION"]
    InputTensor: InputTensorDesc
    MeanTensor: InputTensorDesc
    VarianceTensor: InputTensorDesc
    ScaleTensor: InputTensorDesc
    BiasTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    Spatial: Bool = Field(
        description="Without effect from feature level 4_0 on. Before, if false, means and variances are not repeated "
        "along height and width.",
        examples=[True],
    )
    Epsilon: Float = Field(description="Added to the variance, so that it is not 0.", examples=[1e-5])
    FusedActivation: OptionalFusedActivation = None

    formula_text = (
        "f(x, m, v, s, b) = act(s * (x - m) / sqrt(v + Epsilon) + b), m = Mean, v = Variance, s = Scale, b = Bias, "
        "each repeated where its size is 1, act = FusedActivation, else the identity"
    )
    accuracy = Accuracy(3, "the sum of the magnitudes of its terms")
    support = SupportTable.of(
        "3_1 1-8 F32-16",
        "1_0 4 F32-16",
    )
    same_sizes = (("InputTensor", "OutputTensor"),)
    same_ranks = (("InputTensor", *_REPEATED, "OutputTensor"),)
    example: ClassVar[Mapping[str, Any]] = {name: {"Sizes": [1, 1, 2, 1]} for name in _REPEATED}
    notes = (
        "Below feature level 4_0 and with Spatial false, MeanTensor and VarianceTensor have the sizes of InputTensor "
        "along the last two dimensions.",
        ACTIVATION,
    )

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from repetition_violations(self, _REPEATED)
        if level < FeatureLevel.V4_0 and not self.Spatial:
            whole = self.InputTensor.Sizes
            for name in _STATISTICS:
                sizes = getattr(self, name).Sizes
                if sizes[-2:] != whole[-2:]:
                    yield Violation(
                        (name, "Sizes"),
                        f"Sizes of {name} is {sizes} but InputTensor has {whole}; the last two must be equal below "
                        "feature level 4_0 if Spatial is false.",
                        sizes,
                        [*sizes[:-2], *whole[-2:]],
                    )
        yield from activation_violations(self, level)

    def formula(self, p: Parameters, x: Value, mean: Value, variance: Value, scale: Value, bias: Value) -> Value:
        y = multiply_add((x - mean) / sqrt(variance + p.Epsilon), scale, bias)
        return activated(p, y, x.type, self.FusedActivation)
