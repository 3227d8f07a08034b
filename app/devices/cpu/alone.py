"""Calls that are made by themselves, where no graph's table has them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import add, le

import numpy as np

from app.devices.cpu.calls import Call, Calls, Of, pieces
from app.devices.cpu.llvm.nests import LINE
from app.devices.cpu.threads import RAN, Threads, parts
from app.devices.device import Cancelled, ExecutionRecord
from app.memory.addresses import address_of
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
    _make_all(calls, [each.ctypes.data for each in inputs], [each.ctypes.data for each in outputs], threads, cancelled)


def _make_all(
    calls: Calls, inputs: Sequence[int], outputs: Sequence[int], threads: Threads, cancelled: Callable[[], bool]
) -> None:
    """The same over what is at these addresses."""
    memory = {Of.INPUT: inputs, Of.OUTPUT: outputs}
    if calls.own_bytes:
        own = np.empty(calls.own_bytes + LINE, np.uint8)
        memory[Of.OWN] = [-(-own.ctypes.data // LINE) * LINE]
    for stage in calls.stages:
        if sum([call.work for call in stage]) >= WORTH_A_THREAD:

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
    """Implements `Compiled`: nothing but calls. None of them reads what it or another one of its stage writes."""

    def __init__(self, compiled: Dispatchable, calls: Calls, threads: Threads, kept: Sequence[Array] = ()) -> None:
        """`kept` is memory that calls have the address of."""
        self._reaches = [desc.data_bytes for desc in (*compiled.inputs.values(), *compiled.outputs.values())]
        self._calls, self._kept = calls, kept
        self._threads = threads
        self._work = sum(call.work for stage in calls.stages for call in stage)
        self._codes = {call.code for stage in calls.stages for call in stage}

    @property
    def runs_inline(self) -> bool:
        return self._work <= INLINE and all(code.is_compiled for code in self._codes)

    @property
    def own_bytes(self) -> int:
        return self._calls.own_bytes

    def calls(self) -> Calls:
        return self._calls

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        if not all(map(le, self._reaches, [each.nbytes for each in (*inputs, *outputs)])):
            raise ValueError("a buffer ends before its tensor")
        given, taken = [address_of(each) for each in inputs], [address_of(each) for each in outputs]
        ends = list(map(add, (*given, *taken), self._reaches))
        apart = {
            number: np.frombuffer(outputs[number], np.uint8, self._reaches[len(given) + number]).copy()
            for number, (start, end) in enumerate(zip(taken, ends[len(given) :], strict=True))
            if any(start < other and first < end for first, other in zip(given, ends, strict=False))
        }
        for number, own in apart.items():
            taken[number] = own.ctypes.data
        _make_all(self._calls, given, taken, self._threads, cancelled)
        for number, own in apart.items():
            np.frombuffer(outputs[number], np.uint8, own.size)[:] = own
        return RAN


def portions(whole: range, work: int, threads: int) -> Iterator[range]:
    """`whole`, of which each is so much `work`, for a stage's calls: none so long that a thread that is not to go on
    would not see it."""
    total = work * len(whole)
    return parts(whole, max(pieces(total, threads), total // MOST_OF_A_CALL))
