"""Tensors on the host that lie alike, computed in chunks: while one is computed others are on their way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from app.devices.cuda.context import Context
from app.devices.cuda.layouts import ACCESS_BYTES
from app.devices.cuda.pinned import Slot, room
from app.devices.cuda.transfers import HostTensor, chunk_bytes, streamed

ON_HOST = {False: 32 << 20, True: 128 << 20}
"""Bytes of all tensors up to which a kernel reads and writes pinned memory by itself, by whether something is copied on
the host. It is done before a copy to the device would begin; but copies move more at a time."""


class Bound(Protocol):
    """A kernel that can be bound to addresses, the output's last, and be queued."""

    def bind(self, pointers: Sequence[int], count: int, *, on_host: bool) -> Callable[[object], None]:
        """For `count` elements, which it may have `on_host`."""


class Way(Enum):
    """How a kernel gets at a tensor on the host."""

    SLOT = auto()
    """It is copied, on the host, to and from a slot."""
    PINNED = auto()
    """It lies in pinned memory, and is copied to and from the device."""
    DIRECT = auto()
    """It lies in pinned memory, where the kernel may read and write it."""

    @classmethod
    def of(cls, host: HostTensor, size: int, out: HostTensor, out_size: int, device: Context) -> "Way":
        """That of a tensor of elements of `size` bytes. A kernel may have it where it is if it is aligned, and apart
        from the output or, element by element, in its place."""
        if not host.pinned:
            return cls.SLOT
        in_place = host.address == out.address and size == out_size and host.size == out.size
        apart = host.address + host.size <= out.address or out.address + out.size <= host.address
        is_aligned = host.address % ACCESS_BYTES == 0
        direct = device.uses_host_addresses and is_aligned and (in_place or apart or not out.pinned)
        return cls.DIRECT if direct else cls.PINNED


@dataclass(frozen=True, slots=True)
class Lane:
    """One tensor's way to the kernel and back."""

    element_bytes: int
    is_one: bool
    """Whether it is one element, for all of the output's."""
    offset: int
    """In a slot."""
    pinned: bool
    by_copy: bool
    """Whether the kernel has it on the device, in the slot."""

    def span(self, start: int, count: int) -> tuple[int, int]:
        """Where in the tensor the bytes of a chunk begin, and how many they are."""
        return (0, self.element_bytes) if self.is_one else (start * self.element_bytes, count * self.element_bytes)

    def pinned_address(self, host: HostTensor, slot: Slot, begin: int) -> int:
        """Where the chunk's bytes are in pinned memory."""
        return host.address + begin if self.pinned else slot.host_address + self.offset

    def kernel_address(self, host: HostTensor, slot: Slot, begin: int) -> int:
        """Where the kernel has them."""
        return slot.address + self.offset if self.by_copy else self.pinned_address(host, slot, begin)


class Chunks:
    """One output's kernel over tensors on the host, the output last, that lie in these ways."""

    def __init__(
        self,
        device: Context,
        ways: Sequence[Way],
        size: int,
        element_bytes: Sequence[int],
        are_one: Sequence[bool],
        count: int,
    ) -> None:
        """Together they are `size` bytes, and `count` elements are computed."""
        self._device = device
        self._count = count
        space = room(device.slots.size, len(ways))
        copied = any(way is Way.SLOT and not is_one for way, is_one in zip(ways, are_one, strict=True))
        is_large = size > ON_HOST[copied]
        self._lanes = [
            Lane(each, is_one, space * number, way is not Way.SLOT, is_large or is_one or way is Way.PINNED)
            for number, (way, each, is_one) in enumerate(zip(ways, element_bytes, are_one, strict=True))
        ]
        self._output = self._lanes[-1]
        self._on_host = not all(lane.by_copy for lane in self._lanes)
        self._each = count
        if copied or any(lane.by_copy and not lane.is_one for lane in self._lanes):
            widest = max(element_bytes)
            self._each = max(min(chunk_bytes(count * widest, copied=copied), space) // widest // 16 * 16, 1)

    def dispatch(
        self, hosts: Sequence[HostTensor], launch: Callable[[Slot], Bound], cancelled: Callable[[], bool]
    ) -> None:
        """Compute them, by what `launch` gives for a slot, and wait until they are there. Raises Cancelled."""
        device, out, result = self._device, self._output, hosts[-1]

        def begin(slot: Slot, turn: int) -> None:
            start, count = self._chunk(turn)
            parts = [(lane, host, *lane.span(start, count)) for lane, host in zip(self._lanes, hosts, strict=True)]
            for lane, host, first, size in parts[:-1]:
                place = lane.pinned_address(host, slot, first)
                if not lane.pinned:
                    device.copying.copy(place, host.address + first, size, host.size)
                if lane.by_copy:
                    device.to_device(lane.kernel_address(host, slot, first), place, size, slot.stream)
            places = [lane.kernel_address(host, slot, first) for lane, host, first, _ in parts]
            launch(slot).bind(places, count, on_host=self._on_host)(slot.stream)
            if out.by_copy:
                *_, first, size = parts[-1]
                device.to_host(out.pinned_address(result, slot, first), places[-1], size, slot.stream)

        def end(slot: Slot, turn: int) -> None:
            if not out.pinned:
                first, size = out.span(*self._chunk(turn))
                device.copying.copy(result.address + first, out.pinned_address(result, slot, first), size, result.size)

        streamed(device, -(-self._count // self._each), begin, end, cancelled)

    def _chunk(self, turn: int) -> tuple[int, int]:
        """Its first element, and how many there are."""
        start = turn * self._each
        return start, min(self._each, self._count - start)
