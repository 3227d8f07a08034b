"""Calls that are made by themselves, where no graph's table has them."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from app.devices.cpu.calls import Call, Calls, Of
from app.devices.cpu.llvm.nests import LINE
from app.devices.cpu.threads import Threads
from app.devices.device import Cancelled
from app.memory.arrays import Array

WORTH_A_THREAD = 1 << 23
"""Work of a stage, in products, that takes a thread some 300 us, for which another one is woken."""


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
