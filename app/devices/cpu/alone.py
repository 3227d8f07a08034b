"""Calls that are made by themselves, where no graph's table has them."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from operator import add, le
from typing import NamedTuple

import numpy as np

from app.devices.cpu.calls import Calls, Of, pieces
from app.devices.cpu.llvm.kernels import Code
from app.devices.cpu.threads import RAN, Threads, parts
from app.devices.device import Cancelled, ExecutionRecord
from app.memory.addresses import address_of, aligned
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.programs.dispatchable import Dispatchable

WORTH_A_THREAD = 1 << 23
"""Work of a stage, in products, that takes a thread some 300 us, for which another one is woken."""

INLINE = 1 << 22
"""Work that is done in less than a millisecond."""

MOST_OF_A_CALL = 1 << 25
"""Work, after which a thread looks whether it is to go on: some 5 ms."""


class _Call(NamedTuple):
    """A call, and its addresses: the place in its frame, the number of the memory among all, and how many bytes on."""

    code: Code
    frame: "array[int]"
    addresses: Sequence[tuple[int, int, int]]


class _Making:
    """Makes all calls. What can be found before a dispatch is. Safe to use from several threads."""

    def __init__(self, calls: Calls, inputs: int, outputs: int) -> None:
        """Over so many inputs and outputs."""
        first = {Of.INPUT: 0, Of.OUTPUT: inputs, Of.OWN: inputs + outputs}
        self._stages = [
            [
                _Call(call.code, call.frame, [(at, first[of] + number, on) for at, of, number, on in call.pointers])
                for call in stage
            ]
            for stage in calls.stages
        ]
        self._are_shared = [sum(call.work for call in stage) >= WORTH_A_THREAD for stage in calls.stages]
        self._own_bytes = calls.own_bytes

    def run(self, memory: list[int], threads: Threads, cancelled: Callable[[], bool]) -> None:
        """Over what is at these addresses, the outputs' last. Raises Cancelled."""
        if self._own_bytes:
            _held, start = aligned(self._own_bytes)
            memory = [*memory, start]

        def make(call: _Call) -> None:
            frame = call.frame[:]
            for place, number, on in call.addresses:
                frame[place] = memory[number] + on
            call.code(frame)

        for stage, is_shared in zip(self._stages, self._are_shared, strict=True):
            if is_shared:

                def work(turn: int, stage: Sequence[_Call] = stage) -> None:
                    make(stage[turn])

                threads.share(len(stage), work, cancelled)
                continue
            if cancelled():
                raise Cancelled
            for call in stage:
                make(call)


def make_calls(
    calls: Calls, inputs: Sequence[Array], outputs: Sequence[Array], threads: Threads, cancelled: Callable[[], bool]
) -> None:
    """Make all of them, over arrays that lie as they say. Raises Cancelled."""
    addresses = [each.ctypes.data for each in (*inputs, *outputs)]
    _Making(calls, len(inputs), len(outputs)).run(addresses, threads, cancelled)


class CallsKernel:
    """Implements `Compiled`: nothing but calls. None of them reads what it or another one of its stage writes."""

    def __init__(self, compiled: Dispatchable, calls: Calls, threads: Threads, kept: Sequence[Array] = ()) -> None:
        """`kept` is memory that calls have the address of."""
        self._inputs = len(compiled.inputs)
        self._reaches = [desc.data_bytes for desc in (*compiled.inputs.values(), *compiled.outputs.values())]
        self._calls, self._kept = calls, kept
        self._making = _Making(calls, self._inputs, len(compiled.outputs))
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
        buffers = [*inputs, *outputs]
        if not all(map(le, self._reaches, [each.nbytes for each in buffers])):
            raise ValueError("a buffer ends before its tensor")
        memory = list(map(address_of, buffers))
        apart = {
            number: np.frombuffer(buffers[number], np.uint8, self._reaches[number]).copy()
            for number in self._over_inputs(memory)
        }
        for number, own in apart.items():
            memory[number] = own.ctypes.data
        self._making.run(memory, self._threads, cancelled)
        for number, own in apart.items():
            np.frombuffer(buffers[number], np.uint8, own.size)[:] = own
        return RAN

    def _over_inputs(self, memory: Sequence[int]) -> set[int]:
        """Which of the tensors at these addresses are outputs that lie over an input."""
        ends = list(map(add, memory, self._reaches))
        given, found = range(self._inputs), set()
        for number in range(self._inputs, len(memory)):
            start, end = memory[number], ends[number]
            for other in given:
                if start < ends[other] and memory[other] < end:
                    found.add(number)
        return found


def portions(whole: range, work: int, threads: int) -> Iterator[range]:
    """`whole`, of which each is so much `work`, for a stage's calls: none so long that a thread that is not to go on
    would not see it."""
    total = work * len(whole)
    return parts(whole, max(pieces(total, threads), total // MOST_OF_A_CALL))
