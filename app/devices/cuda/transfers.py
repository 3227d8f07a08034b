"""Tensors on their way between host memory and a GPU, through pinned memory where they do not lie in it."""

from collections import deque
from collections.abc import Callable, Sequence

from app.devices.cuda.context import Context
from app.devices.cuda.pinned import PinnedMemory, Slot
from app.devices.device import Cancelled
from app.memory.addresses import address_of
from app.memory.buffers import Buffer
from app.stages import staged

MOST_CHUNK, LEAST_CHUNK, LEAST_COPIED = 8 << 20, 1 << 20, 2 << 20
"""Bytes of one tensor that are moved at a time; what a team copies on the host is more, since 2 MiB take it 22 us where
1 MiB takes 17."""

STREAMS = 3
"""That take turns: one in, one computing, one out."""


class HostTensor:
    """A tensor's buffer on the host: the `size` bytes that its layout reaches."""

    __slots__ = ("_buffer", "address", "pinned", "size")

    def __init__(self, buffer: Buffer, size: int, pinned: PinnedMemory) -> None:
        self.size = size
        self._buffer = buffer
        self.address = address_of(buffer)
        self.pinned = pinned.holds(self.address, size)


def chunk_bytes(size: int, *, copied: bool) -> int:
    """Of a tensor of `size` bytes, how many to move at a time, if they are `copied` on the host or not."""
    if copied:
        return min(max(size // 8, min(max(size // 2, LEAST_CHUNK // 2), LEAST_COPIED)), MOST_CHUNK)
    return min(max(size // 16, LEAST_CHUNK), MOST_CHUNK)


def move(
    device: Context, pairs: Sequence[tuple[HostTensor, int]], cancelled: Callable[[], bool], *, inward: bool
) -> None:
    """Copy tensors to, or if not `inward` from, these addresses on the device, and wait until they are there.

    Raises Cancelled soon after `cancelled()` turns true.
    """
    parts: list[tuple[HostTensor, int, int, int]] = []
    for host, address in pairs:
        most = min(chunk_bytes(host.size, copied=not host.pinned), device.slots.size)
        starts = range(0, host.size, most)
        parts += [(host, start, min(most, host.size - start), address + start) for start in starts]

    def begin(slot: Slot, turn: int) -> None:
        host, start, size, address = parts[turn]
        place = host.address + start if host.pinned else slot.host_address
        if not inward:
            device.to_host(place, address, size, slot.stream)
            return
        if not host.pinned:
            device.copying.copy(place, host.address + start, size, host.size)
        device.to_device(address, place, size, slot.stream)

    def end(slot: Slot, turn: int) -> None:
        host, start, size, _ = parts[turn]
        if not (inward or host.pinned):
            device.copying.copy(host.address + start, slot.host_address, size, host.size)

    if parts:
        staged("transfer", streamed, device, len(parts), begin, end, cancelled)


def streamed(
    device: Context,
    count: int,
    begin: Callable[[Slot, int], None],
    end: Callable[[Slot, int], None],
    cancelled: Callable[[], bool],
) -> None:
    """Do `count` pieces of work, each in a slot, one after the other in each: `begin` queues one on the slot's stream,
    and `end` is called once the device has done it. Raises Cancelled."""
    with device.slots.take_some(min(STREAMS, count)) as slots:
        under_way: deque[int] = deque()

        def finish() -> None:
            turn = under_way.popleft()
            slot = slots[turn % len(slots)]
            slot.stream.synchronize()
            end(slot, turn)

        try:
            for turn in range(count):
                if cancelled():
                    raise Cancelled
                if len(under_way) == len(slots):
                    finish()
                under_way.append(turn)
                begin(slots[turn % len(slots)], turn)
            while under_way:
                finish()
        finally:
            for turn in under_way:  # the buffers are the GPU's until then
                slots[turn % len(slots)].stream.synchronize()
