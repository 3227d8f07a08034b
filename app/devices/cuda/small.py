"""Small dispatches on a GPU: all tensors in one slot, one wait, and no other thread."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from app.devices.cuda.context import Context
from app.devices.cuda.pinned import ALIGNMENT, Slot
from app.devices.cuda.resident import Queued, Resident
from app.devices.device import Cancelled, ExecutionRecord
from app.memory.buffers import Buffer
from app.programs.dispatchable import Dispatchable
from app.stages import staged

SMALL_BYTES = 1 << 20
"""Of all tensors together, what a dispatch takes through one slot: to copy as much on the host takes some 50 us."""

ALIKE_BYTES = 1 << 18
"""The same where tensors lie alike: a kernel may have larger ones where they are, in pinned memory, and be done before
they were copied."""

BRIEF_VALUES = 1 << 22
"""What is computed while a thread waits that has other things to do: some 10 us of a large GPU's time."""


class Passage:
    """Tensors of a dispatch, one after the other in a slot, inputs first."""

    def __init__(self, inputs: Sequence[int], outputs: Sequence[int], gapless: Sequence[bool]) -> None:
        """Both are the bytes that the tensors' layouts reach."""
        offsets, self.bytes = [], 0
        for size in (*inputs, *outputs):
            offsets.append(self.bytes)
            self.bytes += -(-size // ALIGNMENT) * ALIGNMENT
        # Where each is, in the slot and in its buffer.
        self._places = [
            (slice(start, start + size), slice(size)) for start, size in zip(offsets, (*inputs, *outputs), strict=True)
        ]
        self.inputs, self.outputs = offsets[: len(inputs)], offsets[len(inputs) :]
        self.bytes_of_inputs = self.outputs[0] if all(gapless) else self.bytes
        """What goes in: what lies between an output's elements, too, which stays as it is."""
        self._gapless = gapless

    def is_small(self, device: Context, *, alike: bool = False) -> bool:
        """Whether all of it is to take one slot."""
        return self.bytes <= min(ALIKE_BYTES if alike else SMALL_BYTES, device.slots.size)

    @staticmethod
    def of(compiled: Dispatchable) -> "Passage":
        inputs, outputs = ([desc.data_bytes for desc in part.values()] for part in (compiled.inputs, compiled.outputs))
        return Passage(inputs, outputs, [desc.gapless for desc in compiled.outputs.values()])

    def enter(self, slot: Slot, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """Copy the tensors into the slot's memory on the host."""
        count = len(inputs)
        for buffer, (there, here) in zip(inputs, self._places[:count], strict=True):
            slot.host[there] = buffer[here]
        for buffer, (there, here), gapless in zip(outputs, self._places[count:], self._gapless, strict=True):
            if not gapless:
                slot.host[there] = buffer[here]

    def leave(self, slot: Slot, outputs: Sequence[Buffer]) -> None:
        """Copy the outputs out of it."""
        for buffer, (there, here) in zip(outputs, self._places[len(self.inputs) :], strict=True):
            buffer[here] = slot.host[there]

    @contextmanager
    def through(self, slot: Slot, address: int, device: Context) -> Iterator[None]:
        """Queue the copy of what has entered to `address` on the device, what is queued in the block, and the copy of
        the outputs back."""
        if self.bytes_of_inputs:
            device.to_device(address, slot.host_address, self.bytes_of_inputs, slot.stream)
        yield
        start = self.outputs[0]
        device.to_host(slot.host_address + start, address + start, self.bytes - start, slot.stream)


class SmallKernel:
    """Implements `Kernel`, for tensors that together are small.

    A kernel that suits the host's memory reads and writes it, which is done before a copy would begin; others have the
    tensors on the device.
    """

    def __init__(self, resident: Resident, passage: Passage, device: Context) -> None:
        self._resident = resident
        self._passage = passage
        self._device = device
        self._is_quick = resident.values <= BRIEF_VALUES
        self._on_host = bool(resident.kernels) and all(kernel.suits_host for kernel in resident.kernels)
        self._bound: dict[int, list[Queued]] = {}  # by the slot's address: one thread at a time has the slot

    @property
    def runs_inline(self) -> bool:
        """While nothing runs on the GPU that a small dispatch would wait for. Others like it do not count: handed to
        other threads, as the first ones are, they would keep all that follow there."""
        return self._is_brief and not self._device.long_dispatches

    @property
    def _is_brief(self) -> bool:
        return self._is_quick and (bool(self._bound) or self._resident.is_loaded)

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        device, passage = self._device, self._passage
        with device.at_work(passage.bytes, is_brief=self._is_brief), self._slot() as slot:
            if cancelled():
                raise Cancelled
            bound = self._bound.get(slot.address)
            if bound is None:
                bound = self._bound[slot.address] = self._bind(slot)
            passage.enter(slot, inputs, outputs)
            staged("kernel", self._run, slot, bound)
            passage.leave(slot, outputs)
        return device.ran

    def _slot(self) -> AbstractContextManager[Slot]:
        """One of the device's, taken when all is compiled: whoever holds one keeps others waiting."""
        if not self._bound:
            self._device.compile_ahead(self._resident.sources())
        return self._device.slots.take()

    def _bind(self, slot: Slot) -> list[Queued]:
        start = slot.host_address if self._on_host else slot.address
        reads, writes = ([start + offset for offset in part] for part in (self._passage.inputs, self._passage.outputs))
        return self._resident.bind(reads, writes)

    def _run(self, slot: Slot, bound: Sequence[Queued]) -> None:
        """All that is queued, copies between the slot's two memories among it, until it is done."""
        try:
            self._queue(slot, bound)
        finally:
            slot.stream.synchronize()

    def _queue(self, slot: Slot, bound: Sequence[Queued]) -> None:
        if self._on_host:
            for queue in bound:
                queue(slot.stream)
            return
        with self._passage.through(slot, slot.address, self._device):
            for queue in bound:
                queue(slot.stream)
