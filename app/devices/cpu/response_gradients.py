"""LOCAL_RESPONSE_NORMALIZATION_GRAD on the CPU, as two formulas that LLVM compiled, one after the other, with what the
first makes in memory of their own."""

import math
from typing import Any

from app.contract.constants import NEWEST, DataType
from app.contract.tensors import TensorDesc
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.calls import Calls, chained
from app.devices.cpu.coordinates import CoordinateKernel
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.threads import Threads
from app.formula.structures import Structures
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.normalization.local_response import LocalResponseNormalizationGrad, is_three_quarters
from app.operators.normalization.response_stages import ResponseGradients, ResponseRatios
from app.operators.operator import Operator

MOST_CHANNELS = 1 << 7
"""Of a region across them: of larger ones, sums made of one another are quicker."""

MOST_ALONG = 3
"""Elements along a side of a region in a channel, likewise."""


def response_gradient_kernel(
    compiled: CompiledOperator, team: Team, threads: Threads, structures: Structures, least: int
) -> CallsKernel | None:
    """For the operator, if it has the power that needs no pow, which loops do not have."""
    operator = compiled.operator
    if not isinstance(operator, LocalResponseNormalizationGrad) or not is_three_quarters(operator.Beta):
        return None
    channels = min(operator.LocalSize, operator.InputTensor.Sizes[1])
    if channels > MOST_CHANNELS if operator.CrossChannel else operator.LocalSize > MOST_ALONG:
        return None
    attributes: dict[str, Any] = {
        name: getattr(operator, name) for name in ("CrossChannel", "LocalSize", "Alpha", "Beta", "Bias")
    }
    x, made = operator.InputTensor, compiled.outputs["OutputGradientTensor"]
    given = [x, operator.InputGradientTensor, made]
    if operator.CrossChannel and all(each.is_packed for each in given):
        # What is not summed along is one long row.
        sizes = [*x.Sizes[:2], 1, math.prod(x.Sizes[2:])]
        given = [TensorDesc(DataType=each.DataType, Sizes=sizes) for each in given]
    x, gradient, made = given
    inputs: dict[str, Any] = {"InputTensor": x, "InputGradientTensor": gradient}
    ratios = TensorDesc(DataType=DataType.FLOAT64, Sizes=x.Sizes)

    def calls(stage: Operator) -> Calls | None:
        judged = compile_operator(stage, NEWEST, structures)
        return CoordinateKernel(judged, "OutputTensor", threads, structures, team, least).calls()

    first = calls(ResponseRatios(**inputs, OutputTensor=ratios, **attributes))
    second = calls(ResponseGradients(**inputs, RatioTensor=ratios, OutputTensor=made, **attributes))
    if first is None or second is None:
        return None
    return CallsKernel(compiled, chained(first, second, 2, ratios.total_bytes), team)
