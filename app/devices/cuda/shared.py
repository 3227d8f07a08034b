"""Memory on a GPU that is another process's, and dispatches over tensors that lie there."""

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from time import perf_counter
from typing import Any, TypeAlias

from app.devices.cuda.arenas import Recording
from app.devices.cuda.context import Context
from app.devices.cuda.layouts import ACCESS_BYTES
from app.devices.cuda.schedules import CudaScheduleKernel
from app.devices.cuda.transfers import HostTensor, move
from app.devices.device import Cancelled, DeviceFailed, ExecutionRecord, OnDevice, Tensor
from app.devices.layout import check_ends
from app.memory.buffers import Buffer

Span: TypeAlias = tuple[int, int]
"""Addresses on the device: the first one, and the one after the last."""

READY = 4
"""For how many sets of addresses a dispatch's work is kept."""

BRIEF_SECONDS = 0.001
"""What a thread that has other things to do may wait for: on a virtual machine whose processors sleep, to wake another
one takes half of that."""


class NotShared(Exception):
    """A handle that leads to no memory on the GPU; says why."""


class SharedMemory:
    """What a CUDA IPC handle leads to, open as long as this lives. Safe to use from several threads."""

    def __init__(self, handle: bytes, device: Context) -> None:
        """Raises NotShared."""
        self.device = device
        if device.out_of_service is not None:
            raise NotShared(f"{device.name} is out of service: {device.out_of_service}")
        try:
            device.use()
            self.address = device.open_shared(handle)
            weakref.finalize(self, _close, device, self.address).atexit = False
            self.size = device.bytes_from(self.address)
        except device.errors as error:
            raise NotShared(f"it cannot be opened on {device.name}: {error}") from None


def _close(device: Context, address: int) -> None:
    """By whichever thread was the last to use it, or collects garbage. On a lost GPU there is nothing to close."""
    with suppress(*device.errors), device.meanwhile():
        device.close_shared(address)


class ResidentKernel:
    """An operator or a graph over tensors of which some lie on the device already: these are read and written where
    they are. Safe to use from several threads.

    A copy of a tensor takes part in its place if vectors of it would not be aligned, if it is an input that overlaps
    an output, and if it is an output that overlaps one before: then it is written after that. What lies between the
    elements of an output is not kept.
    """

    def __init__(self, work: CudaScheduleKernel, reads: Sequence[int], writes: Sequence[int]) -> None:
        """`reads` and `writes` are the bytes that layouts of inputs and outputs reach."""
        self._work = work
        self._device = work.device
        self._reads = reads
        self._writes = writes
        self._bytes = sum(reads) + sum(writes)
        self._recorded: dict[tuple[int, ...], Recording] = {}
        self._took = inf
        """Seconds, the last time."""

    @property
    def runs_inline(self) -> bool:
        """Whether a dispatch over tensors that all are on the device takes, now, hardly longer than to hand it to
        another thread: if the last one did, and while nothing else runs there, which it would wait for."""
        return self._took < BRIEF_SECONDS and not self._device.long_dispatches

    def dispatch(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        """Compute `outputs`, which are there when this returns. Raises Cancelled, if nothing is computed yet, and
        DeviceFailed."""
        try:
            self._dispatch(inputs, outputs, cancelled)
            return self._device.ran
        except DeviceFailed as failure:
            if failure.cause != "memory":
                raise
        # Not within that: a failure holds what of the memory it had already.
        self._recorded.clear()
        self._device.free_memory()
        self._dispatch(inputs, outputs, cancelled)
        return self._device.ran

    def _dispatch(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], cancelled: Callable[[], bool]) -> None:
        device = self._device
        with device.at_work(self._bytes, is_brief=self._took < BRIEF_SECONDS):
            self._work.upload()
            places = _Places(device)
            try:
                reads = places.of_inputs(inputs, self._reads, outputs, self._writes)
                writes = places.of_outputs(outputs, self._writes)
                scratch = places.taken(self._work.scratch_bytes) if self._work.scratch_bytes else 0
                if places.arriving:
                    move(device, places.arriving, cancelled, inward=True)
                if cancelled():
                    raise Cancelled
                key = (*reads, *writes, scratch)
                # Whoever has it uses it alone.
                recording = self._recorded.pop(key, None) or self._work.record(reads, writes, scratch)
                started = perf_counter()
                with device.slots.take() as slot:
                    try:
                        for copy in places.before:
                            device.within(*copy, slot.stream)
                        recording(slot)
                        for copy in places.after:
                            device.within(*copy, slot.stream)
                    finally:
                        slot.stream.synchronize()  # the memory is the GPU's until then
                self._took = perf_counter() - started
                if len(self._recorded) >= READY:
                    self._recorded.clear()
                self._recorded[key] = recording
                if places.leaving:
                    move(device, places.leaving, cancelled, inward=False)
            finally:
                places.memory.clear()


class _Places:
    """Where on the device a dispatch has its tensors, and what is to be copied before it and after it."""

    def __init__(self, device: Context) -> None:
        self._device = device
        self.memory: list[Any] = []
        self.arriving: list[tuple[HostTensor, int]] = []
        self.leaving: list[tuple[HostTensor, int]] = []
        self.before: list[tuple[int, int, int]] = []
        """Copies on the device: where to, from where, and bytes."""
        self.after: list[tuple[int, int, int]] = []

    def taken(self, size: int) -> int:
        """The address of memory for this dispatch."""
        self.memory.append(self._device.pool.malloc(size))
        address: int = self.memory[-1].ptr
        return address

    def of_inputs(
        self, inputs: Sequence[Tensor], sizes: Sequence[int], outputs: Sequence[Tensor], written: Sequence[int]
    ) -> list[int]:
        """Addresses. Raises ValueError for a tensor that ends before its layout does."""
        check_ends(inputs, sizes)
        spans = [
            _span(tensor, size) for tensor, size in zip(outputs, written, strict=True) if isinstance(tensor, OnDevice)
        ]
        addresses = []
        for tensor, size in zip(inputs, sizes, strict=True):
            if not isinstance(tensor, OnDevice):
                address = self.taken(size)
                self.arriving.append((self._host(tensor, size), address))
            elif _is_usable(tensor, size, spans):
                address = tensor.address
            else:
                address = self.taken(size)
                self.before.append((address, tensor.address, size))
            addresses.append(address)
        return addresses

    def of_outputs(self, outputs: Sequence[Tensor], sizes: Sequence[int]) -> list[int]:
        """The same of outputs."""
        check_ends(outputs, sizes)
        spans: list[Span] = []
        addresses = []
        for tensor, size in zip(outputs, sizes, strict=True):
            if not isinstance(tensor, OnDevice):
                address = self.taken(size)
                self.leaving.append((self._host(tensor, size), address))
            else:
                if _is_usable(tensor, size, spans):
                    address = tensor.address
                else:
                    address = self.taken(size)
                    self.after.append((tensor.address, address, size))
                spans.append(_span(tensor, size))
            addresses.append(address)
        return addresses

    def _host(self, tensor: Buffer, size: int) -> HostTensor:
        return HostTensor(tensor, size, self._device.pinned)


def _span(tensor: OnDevice, size: int) -> Span:
    return tensor.address, tensor.address + size


def _is_usable(tensor: OnDevice, size: int, spans: Sequence[Span]) -> bool:
    """Whether vectors of it are aligned, and it is apart from what lies in the spans."""
    begin, end = _span(tensor, size)
    if begin % ACCESS_BYTES:
        return False
    for first, last in spans:  # noqa: SIM110 - a generator would take longer than the rest of this
        if begin < last and first < end:
            return False
    return True
