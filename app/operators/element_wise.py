"""ELEMENT_WISE_* operators. Source: the DML_ELEMENT_WISE_*_OPERATOR_DESC pages of DirectML's reference."""

from typing import Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import Float
from app.contract.support import FLOATS, Row, SupportTable
from app.formula.functions import constant_power
from app.formula.values import Value
from app.operators.operator import InputTensorDesc, Operator, OptionalScaleBias, OutputTensorDesc, Parameters, scaled


class ElementWiseConstantPow(Operator):
    """Each element raised to one and the same power."""

    Type: Literal["DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW", "ELEMENT_WISE_CONSTANT_POW"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    ScaleBias: OptionalScaleBias = None
    Exponent: Float = Field(description="The power.", examples=[2.5])

    formula_text = "f(x) = pow(g(x), Exponent), g(x) = x * Scale + Bias with ScaleBias, else g(x) = x"
    in_place = ("InputTensor",)
    support = SupportTable.of(
        Row(FeatureLevel.V3_0, (1, 8), FLOATS),
        Row(FeatureLevel.V1_0, (4, 4), FLOATS),
    )
    notes = (
        "A negative base gives NaN unless Exponent is a whole number. Otherwise as IEEE 754's pow: exponent 0 gives 1 "
        "(of NaN too), pow(-inf, 0.5) is +inf.",
        "Within 4 ULP, except with ScaleBias and an Exponent beyond 2^30 or so: the scaled base is rounded to float64, "
        "which the power magnifies.",
        "Integer types are refused: the operator's page lists none, although the feature level history names some at "
        "3_0.",
    )

    def formula(self, p: Parameters, x: Value) -> Value:
        return constant_power(scaled(p, x, self.ScaleBias), p.Exponent)
