"""Graphs on the host: one kernel after the other, over inputs, outputs, kept tensors and scratch."""

from collections.abc import Callable, Sequence

import numpy as np

from app.devices.device import ExecutionRecord, Kernel
from app.graphs.schedule import Place, Room, Schedule, Step
from app.memory.buffers import Buffer
from app.programs.dispatchable import Dispatchable

INLINE_STEPS, INLINE_ELEMENTS = 32, 1 << 16
"""A graph of at most so many kernels, and elements that these write, is computed where its request arrived."""


class ScheduleKernel:
    """Implements `Kernel`: `steps` of a graph whose kept tensors are in `kept`.

    Its outputs are the graph's, and after them scratch of the schedule's `scratch_bytes` if that is not 0.
    """

    def __init__(
        self,
        schedule: Schedule,
        steps: Sequence[Step],
        kept: Sequence[Buffer],
        prepare: Callable[[Dispatchable], Kernel],
    ) -> None:
        self._kept = kept
        self._outputs = len(schedule.outputs)
        self._kernels = [(prepare(step.dispatchable), step) for step in steps]
        elements = sum(step.dispatchable.elements for step in steps)
        self._is_small = len(steps) <= INLINE_STEPS and elements <= INLINE_ELEMENTS

    @property
    def runs_inline(self) -> bool:
        return self._is_small and all(kernel.runs_inline for kernel, _ in self._kernels)

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        rooms = {
            Room.INPUT: inputs,
            Room.OUTPUT: outputs,
            Room.KEPT: self._kept,
            Room.SCRATCH: outputs[self._outputs :],
        }

        def at(place: Place) -> Buffer:
            buffer = rooms[place.room][place.number]
            if place.offset or buffer.nbytes > place.size:
                return buffer[place.offset : place.offset + place.size]
            return buffer

        for kernel, step in self._kernels:
            for place in step.clears:
                np.frombuffer(at(place), np.uint8)[:] = 0
            ran = kernel.dispatch([at(each) for each in step.reads], [at(each) for each in step.writes], cancelled)
        return ran
