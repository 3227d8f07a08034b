"""Operators that take a step of training.

Source: the DML_ADAM_OPTIMIZER_OPERATOR_DESC page of DirectML's reference.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import Float
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.values import Value, cast, power, sqrt, widen
from app.operators.accuracy import SUM
from app.operators.operator import InputTensorDesc, Operator, OutputTensorDesc
from app.operators.parameters import Parameters


class AdamOptimizer(Operator):
    """A step of Adam: new parameters, and new first and second moments of their gradient."""

    Type: Literal["DML_OPERATOR_ADAM_OPTIMIZER", "ADAM_OPTIMIZER"]
    InputParametersTensor: InputTensorDesc
    InputFirstMomentTensor: InputTensorDesc
    InputSecondMomentTensor: InputTensorDesc
    GradientTensor: InputTensorDesc
    TrainingStepTensor: InputTensorDesc
    OutputParametersTensor: OutputTensorDesc = None
    OutputFirstMomentTensor: OutputTensorDesc = None
    OutputSecondMomentTensor: OutputTensorDesc = None
    LearningRate: Float = Field(description="Size of the step.", examples=[0.001])
    Beta1: Float = Field(0.9, description="How much of the first moment stays, from 0 to 1.")
    Beta2: Float = Field(0.999, description="How much of the second moment stays, from 0 to 1.")
    Epsilon: Float = Field(1e-8, description="Added to the divisor, so that it is not 0.")

    formula_text = (
        "f(x, m, v, g, t) = x - LearningRate * a * m' / (sqrt(v') + Epsilon), m' = Beta1 * m + (1 - Beta1) * g, "
        "v' = Beta2 * v + (1 - Beta2) * g * g, a = sqrt(1 - Beta2^t) / (1 - Beta1^t)"
    )
    accuracy = SUM
    in_place = ("InputParametersTensor", "InputFirstMomentTensor", "InputSecondMomentTensor", "GradientTensor")
    same_types = (
        (
            *("InputParametersTensor", "InputFirstMomentTensor", "InputSecondMomentTensor", "GradientTensor"),
            *("OutputParametersTensor", "OutputFirstMomentTensor", "OutputSecondMomentTensor"),
        ),
    )
    one_element = ("TrainingStepTensor",)
    example_data: ClassVar[Mapping[str, Sequence[float]]] = {"InputSecondMomentTensor": (0, 1, 4)}
    support = SupportTable.of("3_0 4 F32-16, TrainingStepTensor 4 F32-16 U32")
    notes = (
        "All is computed in float64 and rounded once.",
        "TrainingStepTensor may be UINT32, which the text of the operator's page says and TensorFlow's plugin for "
        "DirectML states; the page's table says FLOAT32 and FLOAT16.",
        "The training step counts from 1 on, and the operator does not add to it. At 0 the formula divides 0 by 0, so "
        "the parameters are NaN.",
        "Beta1 and Beta2 beyond 0 to 1 are refused. DirectML's documentation says that they lie there.",
        "Tensors have 4 dimensions, as in the only table of the operator's page; the feature level history extends the "
        "operator in 4_0.",
        "in_place is for OutputParametersTensor; the other outputs have buffers of their own.",
    )

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        for name in ("Beta1", "Beta2"):
            beta = getattr(self, name)
            if not 0 <= beta <= 1:
                yield Violation((name,), f"{name} is {beta}; it must lie from 0 to 1.", beta, "0 to 1")

    def formula(
        self, p: Parameters, parameter: Value, first: Value, second: Value, gradient: Value, step: Value
    ) -> dict[str, Value]:
        x, m, v, g, t = (widen(each) for each in (parameter, first, second, gradient, step))
        rate, beta1, beta2, epsilon = (widen(p[name]) for name in ("LearningRate", "Beta1", "Beta2", "Epsilon"))
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        correction = sqrt(1 - power(beta2, t)) / (1 - power(beta1, t))
        x = x - rate * correction * m / (sqrt(v) + epsilon)
        made = {"OutputParametersTensor": x, "OutputFirstMomentTensor": m, "OutputSecondMomentTensor": v}
        return {name: cast(value, parameter.type) for name, value in made.items()}
