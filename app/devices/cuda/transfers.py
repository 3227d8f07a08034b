"""Tensors on their way between host memory and a GPU, through pinned memory where they do not lie in it."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from app.devices.cuda.context import Context
from app.devices.cuda.pinned import PinnedMemory, Slot
from app.devices.device import Cancelled
from app.devices.helpers import run_with
from app.memory.buffers import Buffer
from app.stages import staged

MOST_CHUNK, LEAST_CHUNK = 8 << 20, 1 << 20
"""Bytes of one tensor that are moved at a time."""

LEAST_COPIED = 2 << 20
"""The least of one that is copied on the host. Each chunk takes some 30 us of Python, one thread at a time: 16 MiB go
at 12 GB/s so, and at 8.7 in chunks of half the size."""


class HostTensor:
    """A tensor's buffer on the host: the `size` bytes that its layout reaches."""

    def __init__(self, buffer: Buffer, size: int, pinned: PinnedMemory) -> None:
        self.size = size
        self.bytes = np.frombuffer(buffer, np.uint8)
        self.address: int = self.bytes.__array_interface__["data"][0]
        self.pinned = pinned.holds(self.address, size)

    def reading(self, slot: Slot, offset: int, span: slice) -> int:
        """An address in pinned memory where the bytes of `span` are, copied there first if they are elsewhere."""
        if self.pinned:
            return self.address + int(span.start)
        size = span.stop - span.start
        slot.host[offset : offset + size] = self.bytes[span]
        return slot.host_address + offset


def move(
    device: Context, pairs: Sequence[tuple[HostTensor, int]], cancelled: Callable[[], bool], *, inward: bool
) -> None:
    """Copy tensors to, or if not `inward` from, these addresses on the device, and wait until they are there.

    Raises Cancelled soon after `cancelled()` turns true.
    """
    most = min(MOST_CHUNK, device.slots.size)
    parts = [(host, address, start) for host, address in pairs for start in range(0, host.size, most)]

    def prepare(slot: Slot) -> Callable[[int], None]:
        def work(turn: int) -> None:
            host, address, start = parts[turn]
            span = slice(start, min(start + most, host.size))
            size = span.stop - span.start
            if inward:
                device.to_device(address + start, host.reading(slot, 0, span), size, slot.stream)
                slot.stream.synchronize()
                return
            pinned = host.address + start if host.pinned else slot.host_address
            device.to_host(pinned, address + start, size, slot.stream)
            slot.stream.synchronize()
            if not host.pinned:
                host.bytes[span] = slot.host[:size]

        return work

    if parts:
        staged("transfer", spread, device, len(parts), prepare, cancelled)


def spread(
    device: Context, count: int, prepare: Callable[[Slot], Callable[[int], None]], cancelled: Callable[[], bool]
) -> None:
    """Do `count` pieces of work, on this thread and on as many others as slots are free."""
    turns = itertools.count()  # hands each piece to one thread

    def work() -> None:
        with device.slots.take() as slot:
            piece: Callable[[int], None] | None = None
            while (turn := next(turns)) < count:
                if cancelled():
                    raise Cancelled
                piece = piece or prepare(slot)
                piece(turn)

    run_with(device.copiers, min(count, device.slots.idle()) - 1, work)
