"""Tensors on the host that lie alike, computed in chunks: while one is computed others are on their way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Lane:
    """One tensor's way to the kernel and back."""

    host: HostTensor
    element_bytes: int
    is_one: bool
    """Whether it is one element, for all of the output's."""
    offset: int
    """In a slot."""
    by_copy: bool
    """Whether the kernel has it on the device, in the slot."""

    def span(self, start: int, count: int) -> tuple[int, int]:
        """Where in the tensor the bytes of a chunk begin, and how many they are."""
        return (0, self.element_bytes) if self.is_one else (start * self.element_bytes, count * self.element_bytes)

    def pinned_address(self, slot: Slot, begin: int) -> int:
        """Where the chunk's bytes are in pinned memory."""
        return self.host.address + begin if self.host.pinned else slot.host_address + self.offset

    def kernel_address(self, slot: Slot, begin: int) -> int:
        """Where the kernel has them."""
        return slot.address + self.offset if self.by_copy else self.pinned_address(slot, begin)


class Chunks:
    """One output's kernel over tensors on the host, the output last."""

    def __init__(
        self,
        device: Context,
        tensors: Sequence[HostTensor],
        element_bytes: Sequence[int],
        are_one: Sequence[bool],
        count: int,
    ) -> None:
        """`count` elements are computed."""
        self._device = device
        self._count = count
        space = room(device.slots.size, len(tensors))
        copied = not all(host.pinned or is_one for host, is_one in zip(tensors, are_one, strict=True))
        is_large = sum(each.size for each in tensors) > ON_HOST[copied]
        *self._inputs, self._output = self._lanes = [
            Lane(
                host,
                size,
                is_one,
                space * number,
                is_large or is_one or not self._is_direct(host, size, tensors[-1], element_bytes[-1]),
            )
            for number, (host, size, is_one) in enumerate(zip(tensors, element_bytes, are_one, strict=True))
        ]
        self._on_host = not all(lane.by_copy for lane in self._lanes)
        self._each = count
        if copied or any(lane.by_copy and not lane.is_one for lane in self._lanes):
            widest = max(element_bytes)
            self._each = max(min(chunk_bytes(count * widest, copied=copied), space) // widest // 16 * 16, 1)

    def dispatch(self, launch: Callable[[Slot], Bound], cancelled: Callable[[], bool]) -> None:
        """Compute them, by what `launch` gives for a slot, and wait until they are there. Raises Cancelled."""
        device, lanes = self._device, self._lanes

        def begin(slot: Slot, turn: int) -> None:
            start, count = self._chunk(turn)
            spans = [lane.span(start, count) for lane in lanes]
            for lane, (first, size) in zip(self._inputs, spans, strict=False):
                place = lane.pinned_address(slot, first)
                if not lane.host.pinned:
                    device.copying.copy(place, lane.host.address + first, size, lane.host.size)
                if lane.by_copy:
                    device.to_device(lane.kernel_address(slot, first), place, size, slot.stream)
            places = [lane.kernel_address(slot, first) for lane, (first, _) in zip(lanes, spans, strict=True)]
            launch(slot).bind(places, count, on_host=self._on_host)(slot.stream)
            if self._output.by_copy:
                first, size = spans[-1]
                device.to_host(self._output.pinned_address(slot, first), places[-1], size, slot.stream)

        def end(slot: Slot, turn: int) -> None:
            out = self._output
            if not out.host.pinned:
                first, size = out.span(*self._chunk(turn))
                device.copying.copy(out.host.address + first, out.pinned_address(slot, first), size, out.host.size)

        streamed(device, -(-self._count // self._each), begin, end, cancelled)

    def _chunk(self, turn: int) -> tuple[int, int]:
        """Its first element, and how many there are."""
        start = turn * self._each
        return start, min(self._each, self._count - start)

    def _is_direct(self, host: HostTensor, size: int, out: HostTensor, out_size: int) -> bool:
        """Whether the kernel may have a tensor of elements of `size` bytes where it is, in pinned memory or, copied, in
        a slot's: aligned, and apart from the output or, element by element, in its place."""
        if not host.pinned:
            return True
        in_place = host.address == out.address and size == out_size and host.size == out.size
        apart = host.address + host.size <= out.address or out.address + out.size <= host.address
        is_aligned = host.address % ACCESS_BYTES == 0
        return self._device.uses_host_addresses and is_aligned and (in_place or apart or not out.pinned)
