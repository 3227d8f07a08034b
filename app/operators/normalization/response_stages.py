"""LOCAL_RESPONSE_NORMALIZATION_GRAD as two formulas, for devices that have loops: what each element's neighbours need
of it, then the gradients. They are no operators that requests know."""

from typing import Literal

from app.contract.scalars import Bool, Float, Uint
from app.contract.support import SupportTable
from app.formula.coordinates import Operand, coordinates
from app.formula.values import Value, cast, widen
from app.operators.accuracy import SUM
from app.operators.normalization.local_response import around, power_of, share, sum_of_squares
from app.operators.operator import InputTensorDesc, Operator, OutputTensorDesc, StatedOutputTensorDesc
from app.operators.parameters import TensorParameters


class ResponseRatios(Operator):
    """g * x * s^(-Beta - 1), of float64."""

    Type: Literal["LOCAL_RESPONSE_RATIOS"] = "LOCAL_RESPONSE_RATIOS"
    InputTensor: InputTensorDesc
    InputGradientTensor: InputTensorDesc
    OutputTensor: StatedOutputTensorDesc
    CrossChannel: Bool
    LocalSize: Uint
    Alpha: Float
    Beta: Float
    Bias: Float

    formula_text = "f(x, g) = g * x * s^(-Beta - 1)"
    accuracy = SUM
    support = SupportTable.of("3_1 4 F64-16")
    same_types = (("InputTensor", "InputGradientTensor"),)
    by_coordinates = True

    def formula(self, p: TensorParameters, x: Operand, gradient: Operand) -> Value:
        here = coordinates(x.rank)
        s = sum_of_squares(p, x, cross_channel=self.CrossChannel)
        return widen(gradient[here]) / power_of(p, s) * widen(x[here]) / s


class ResponseGradients(Operator):
    """g * s^-Beta - 2 * Alpha * Beta / LocalSize * x * the sum of the ratios around."""

    Type: Literal["LOCAL_RESPONSE_GRADIENTS"] = "LOCAL_RESPONSE_GRADIENTS"
    InputTensor: InputTensorDesc
    InputGradientTensor: InputTensorDesc
    RatioTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc
    CrossChannel: Bool
    LocalSize: Uint
    Alpha: Float
    Beta: Float
    Bias: Float

    formula_text = "f(x, g, r) = g * s^-Beta - 2 * Alpha * Beta / LocalSize * x * sum(r_j)"
    accuracy = SUM
    support = SupportTable.of("3_1 4 F64-16")
    same_types = (("InputTensor", "InputGradientTensor", "OutputTensor"),)
    by_coordinates = True

    def formula(self, p: TensorParameters, x: Operand, gradient: Operand, ratios: Operand) -> Value:
        here = coordinates(x.rank)
        shares = widen(gradient[here]) / power_of(p, sum_of_squares(p, x, cross_channel=self.CrossChannel))
        total = around(p, ratios, lambda element: element, cross_channel=self.CrossChannel, is_in=True)
        return cast(shares - share(p) * 2 * widen(p.Beta) * widen(x[here]) * total, x.type)
