"""LOCAL_RESPONSE_NORMALIZATION_GRAD on the CPU, as two formulas that LLVM compiled, one after the other, with what the
first makes in memory of their own."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from app.contract.constants import NEWEST, DataType
from app.contract.tensors import TensorDesc
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.coordinates import CoordinateKernel
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.threads import RAN, Threads
from app.devices.device import ExecutionRecord
from app.formula.structures import Structures
from app.memory.buffers import Buffer
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
) -> "ResponseGradientKernel | None":
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

    def kernel(stage: Operator) -> CoordinateKernel:
        judged = compile_operator(stage, NEWEST, structures)
        return CoordinateKernel(judged, "OutputTensor", threads, structures, team, least)

    return ResponseGradientKernel(
        kernel(ResponseRatios(**inputs, OutputTensor=ratios, **attributes)),
        kernel(ResponseGradients(**inputs, RatioTensor=ratios, OutputTensor=made, **attributes)),
        ratios.total_bytes,
    )


class ResponseGradientKernel:
    """Implements `Compiled`."""

    def __init__(self, ratios: CoordinateKernel, gradients: CoordinateKernel, own_bytes: int) -> None:
        self._ratios, self._gradients = ratios, gradients
        self.own_bytes = own_bytes

    @property
    def runs_inline(self) -> bool:
        return self._ratios.runs_inline and self._gradients.runs_inline

    def calls(self) -> Calls | None:
        ratios, gradients = self._ratios.calls(), self._gradients.calls()
        if ratios is None or gradients is None:
            return None
        stages = [[_moved(call, Of.OUTPUT, 0) for call in stage] for stage in ratios.stages]
        stages += [[_moved(call, Of.INPUT, 2) for call in stage] for stage in gradients.stages]
        return Calls(stages, self.own_bytes)

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        own = np.empty(self.own_bytes, np.uint8).data
        self._ratios.dispatch(inputs, [own], cancelled)
        self._gradients.dispatch([*inputs, own], outputs, cancelled)
        return RAN


def _moved(call: Call, of: Of, number: int) -> Call:
    """The call with that tensor in the kernel's own memory."""
    is_it = [each.of is of and each.number == number for each in call.pointers]
    pointers = [
        Pointer(each.place, Of.OWN, 0, each.offset) if moves else each
        for each, moves in zip(call.pointers, is_it, strict=True)
    ]
    return call._replace(pointers=pointers)
