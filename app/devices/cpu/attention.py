"""MULTIHEAD_ATTENTION on the CPU: between NumPy's products the softmax is a loop that LLVM compiled, which reads and
writes scores while a cache has them."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.coordinates import CallKernel
from app.devices.cpu.llvm.kernels import LoopCode, RowLoops
from app.devices.cpu.llvm.loop_calls import RowCall
from app.devices.cpu.threads import Threads
from app.formula.structures import Questions, Structures
from app.formula.values import FLOAT32, Input, Parameter
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.attention.multihead import Attention
from app.operators.attention.softmax import NOTHING, Added, weights
from app.operators.compiled import CompiledOperator
from app.programs.walks import collapse


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
        self._code, self._structures = loops, structures
        self._calls: dict[Hashable, RowCall] = {}
        """Those of scores and what is added to them, by how they lie: pieces of an operator are of few sizes."""

    @property
    def is_ready(self) -> bool:
        """Whether there is nothing to compile, and nobody to start."""
        return bool(self._calls) and all(call.is_ready for call in list(self._calls.values()))

    def __call__(self, xp: Any, scores: Any, scale: float, added: Added = NOTHING) -> None:
        given = {name: each for name, each in zip(_TERMS, added, strict=False) if each is not None}
        terms = [np.broadcast_to(each, scores.shape) for each in given.values()]
        form = (scores.shape, *((each.dtype, each.strides) for each in terms), scale, added.filtered)
        call = self._calls.get(form)
        if call is None:
            loops = self._loops({name: each.dtype for name, each in given.items()})
            outer, steps = collapse(scores.shape[:-1], [each.strides[:-1] for each in (*terms, scores)])
            strides = [[*each, array.strides[-1]] for each, array in zip(steps, (*terms, scores), strict=True)]
            arguments = loops.arguments({"Scale": scale, "Filtered": added.filtered})
            items = [each.itemsize for each in (*terms, scores)]
            sizes = [*outer, scores.shape[-1]]
            call = RowCall(loops, arguments, sizes, [strides[-1], *strides], [items[-1], *items], self._code.team)
            self._calls[form] = call
        memory = scores.reshape(-1).view("uint8").data
        call([memory, *map(_reached, given.values())], memory, lambda: False)

    def _loops(self, types: Mapping[str, "np.dtype[Any]"]) -> RowLoops:
        """For terms of these types, by name."""
        made = tuple((name, dtype.name) for name, dtype in types.items())
        return self._structures.find(
            ("softmax of scores", made), {}, lambda questions: _rows(questions, made, self._code)
        )


_TERMS = ("Relative", "Mask", "Keys")
"""Of `Added`, in its order."""


def _reached(x: Array) -> Buffer:
    """The bytes from its first element to its last one."""
    far = sum((size - 1) * step for size, step in zip(x.shape, x.strides, strict=True))
    return (
        np.lib.stride_tricks.as_strided(x, (far // x.itemsize + 1,), (x.itemsize,), writeable=False).view(np.uint8).data
    )


def _rows(questions: Questions, types: Sequence[tuple[str, str]], loops: LoopCode) -> RowLoops:
    values = {name: Input(_COMPUTED.get(dtype, dtype), name, DataType(dtype.upper())) for name, dtype in types}
    relative, mask, keys = map(values.get, _TERMS)
    added = Added(relative, mask, keys)
    scale, filtered = (Parameter(FLOAT32, name) for name in ("Scale", "Filtered"))
    expression = weights(Input(FLOAT32, "Scores", DataType.FLOAT32), scale, added, filtered)
    return RowLoops(questions.ask, expression, ["Scores", *values], DataType.FLOAT32, loops)


_COMPUTED = {"float16": FLOAT32}
"""In what numbers are computed that are stored otherwise."""
