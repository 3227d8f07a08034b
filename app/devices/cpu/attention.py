"""MULTIHEAD_ATTENTION on the CPU: between NumPy's products the softmax is a loop that LLVM compiled, which reads and
writes scores while a cache has them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from app.contract.constants import DataType
from app.devices.cpu.coordinates import CallKernel
from app.devices.cpu.llvm.kernels import LoopCode, RowCall, RowLoops
from app.devices.cpu.threads import Threads
from app.formula.structures import Questions, Structures
from app.formula.values import FLOAT32, Input, Parameter
from app.memory.arrays import Array
from app.operators.attention.multihead import Attention
from app.operators.attention.softmax import weights
from app.operators.compiled import CompiledOperator


def attention_kernel(
    compiled: CompiledOperator, loops: LoopCode, structures: Structures, threads: Threads
) -> "AttentionKernel | None":
    """For the operator, if it is one of these."""
    operator = compiled.operator
    if not isinstance(operator, Attention):
        return None
    return AttentionKernel(compiled, threads, _Softmax(loops, structures))


class AttentionKernel(CallKernel):
    """Implements `Kernel`."""

    def __init__(self, compiled: CompiledOperator, threads: Threads, softmax: "_Softmax") -> None:
        super().__init__(compiled, threads)
        self._softmax = softmax

    @property
    def runs_inline(self) -> bool:
        return super().runs_inline and self._softmax.is_ready

    @property
    def _call(self) -> Callable[..., Mapping[str, Array]]:
        return partial(super()._call, by=self._softmax)


class _Softmax:
    """Implements `Softmax`. Safe to use from several threads.

    Weights take the place of scores: those of a row are written when all of its scores have been read.
    """

    def __init__(self, loops: LoopCode, structures: Structures) -> None:
        self._team = loops.team
        self._loops = structures.find("softmax of scores", {}, lambda questions: _rows(questions, loops))
        self._calls: dict[tuple[int, int, float], RowCall] = {}
        """Those of so many rows of so many scores, times a scale: pieces of an operator are of few sizes."""

    @property
    def is_ready(self) -> bool:
        """Whether there is nothing to compile, and nobody to start."""
        return bool(self._calls) and all(call.is_ready for call in list(self._calls.values()))

    def __call__(self, xp: Any, scores: Any, scale: float) -> None:
        length = scores.shape[-1]
        form = (scores.size // length, length, scale)
        call = self._calls.get(form)
        if call is None:
            steps = [4 * length, 4]
            arguments = self._loops.arguments({"Scale": scale})
            call = RowCall(self._loops, arguments, form[:2], [steps, steps], [4, 4], self._team)
            self._calls[form] = call
        memory = scores.reshape(-1).view("uint8").data
        call([memory], memory, lambda: False)


def _rows(questions: Questions, loops: LoopCode) -> RowLoops:
    expression = weights(Input(FLOAT32, "Scores", DataType.FLOAT32), Parameter(FLOAT32, "Scale"))
    return RowLoops(questions.ask, expression, ["Scores"], DataType.FLOAT32, loops)
