"""Calls that are made by themselves, where no graph's table has them."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from app.devices.cpu.calls import Call, Calls, Of, pieces
from app.devices.cpu.llvm.nests import LINE
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import RAN, Threads, parts
from app.devices.device import Cancelled, ExecutionRecord
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.programs.dispatchable import Dispatchable

WORTH_A_THREAD = 1 << 23
"""Work of a stage, in products, that takes a thread some 300 us, for which another one is woken."""

INLINE = 1 << 22
"""Work that is done in less than a millisecond."""

MOST_OF_A_CALL = 1 << 25
"""Work, after which a thread looks whether it is to go on: some 5 ms."""


def make_calls(
    calls: Calls, inputs: Sequence[Array], outputs: Sequence[Array], threads: Threads, cancelled: Callable[[], bool]
) -> None:
    """Make all of them, over arrays that lie as they say. Raises Cancelled."""
    own = np.empty(calls.own_bytes + LINE, np.uint8)
    memory = {
        Of.INPUT: [each.ctypes.data for each in inputs],
        Of.OUTPUT: [each.ctypes.data for each in outputs],
        Of.OWN: [-(-own.ctypes.data // LINE) * LINE],
    }
    for stage in calls.stages:
        if sum(call.work for call in stage) >= WORTH_A_THREAD:

            def work(turn: int, stage: Sequence[Call] = stage) -> None:
                _make(stage[turn], memory)

            threads.share(len(stage), work, cancelled)
            continue
        if cancelled():
            raise Cancelled
        for call in stage:
            _make(call, memory)


def _make(call: Call, memory: Mapping[Of, Sequence[int]]) -> None:
    frame = call.frame[:]
    for pointer in call.pointers:
        frame[pointer.place] = memory[pointer.of][pointer.number] + pointer.offset
    call.code(frame)


class CallsKernel:
    """Implements `Compiled`: nothing but calls. None of them writes what another one reads, or it itself."""

    def __init__(self, compiled: Dispatchable, calls: Calls, threads: Threads) -> None:
        self._inputs = [Tensor(compiled, name, desc) for name, desc in compiled.inputs.items()]
        self._outputs = [Tensor(compiled, name, desc) for name, desc in compiled.outputs.items()]
        self._calls = calls
        self._threads = threads
        self._work = sum(call.work for stage in calls.stages for call in stage)
        self._codes = {call.code for stage in calls.stages for call in stage}

    @property
    def runs_inline(self) -> bool:
        return self._work <= INLINE and all(code.is_compiled for code in self._codes)

    def calls(self) -> Calls:
        return self._calls

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        given = [tensor.stored(buffer).elements for tensor, buffer in zip(self._inputs, inputs, strict=True)]
        taken = [tensor.stored(buffer).elements for tensor, buffer in zip(self._outputs, outputs, strict=True)]
        made = [np.empty_like(each) if any(np.may_share_memory(each, x) for x in given) else each for each in taken]
        make_calls(self._calls, given, made, self._threads, cancelled)
        for each, own in zip(taken, made, strict=True):
            if own is not each:
                each[...] = own
        return RAN


def portions(whole: range, work: int, threads: int) -> Iterator[range]:
    """`whole`, of which each is so much `work`, for a stage's calls: none so long that a thread that is not to go on
    would not see it."""
    total = work * len(whole)
    return parts(whole, max(pieces(total, threads), total // MOST_OF_A_CALL))
