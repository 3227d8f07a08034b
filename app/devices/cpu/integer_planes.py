"""Channels of 8-bit integers as they lie padded in a kernel's own memory, for convolutions."""

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from app.devices.cpu.alone import portions
from app.devices.cpu.calls import Call, Of, Pointer
from app.devices.cpu.convolution_loops import Space
from app.devices.cpu.integer_packing import NO_ZERO
from app.devices.cpu.llvm import integer_windows as loops
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.integer_windows import WINDOWS
from app.memory.arrays import Array


@dataclass(frozen=True, slots=True)
class Groups:
    """Of channels, and the filters that go with each."""

    count: int
    filters: int
    channels: int
    elements_are_signed: bool
    filters_are_signed: bool
    zero_line: int | None
    """How many bytes the zero points of filters are apart; None if there are none."""


@dataclass(frozen=True, slots=True)
class Planes:
    """How channels lie padded: `sizes` and strides, those of the tensor along y and x."""

    space: Space
    strides: tuple[int, int]
    phases: tuple[int, int]
    sizes: tuple[int, int]

    @classmethod
    def of(cls, space: Space) -> "Planes":
        """What an element of a filter meets at neighbouring positions lies together."""
        along = [*zip(space.positions, space.extents, space.strides, space.dilations, strict=True)][1:]
        strides = [1 if count == 1 else stride for count, _, stride, _ in along]
        reaches = [(extent - 1) * dilation for _, extent, _, dilation in along]
        phases = [min(stride, reach + 1) for stride, reach in zip(strides, reaches, strict=True)]
        sizes = [count + reach // stride for (count, *_), reach, stride in zip(along, reaches, strides, strict=True)]
        return cls(space, _pair(strides), _pair(phases), _pair(sizes))

    @classmethod
    def whole(cls, space: Space) -> "Planes":
        """They lie as in the tensor."""
        along = [*zip(space.positions, space.extents, space.strides, space.dilations, strict=True)][1:]
        sizes = [(count - 1) * stride + (extent - 1) * dilation + 1 for count, extent, stride, dilation in along]
        return cls(space, (1, 1), (1, 1), _pair(sizes))

    @property
    def channel_bytes(self) -> int:
        return math.prod(self.phases) * math.prod(self.sizes)

    def terms(self, depth: int) -> Array:
        """Of a filter over so many channels, how far behind a position's first byte each element meets one."""
        (_, rows, columns), (_, *dilations) = self.space.extents, self.space.dilations
        far = []
        for extent, dilation, stride in zip((rows, columns), dilations, self.strides, strict=True):
            reached = np.arange(extent, dtype=np.int64) * dilation
            far.append((reached % stride, reached // stride))
        (phase_y, y), (phase_x, x) = ([each[:, None] for each in far[0]], far[1])
        plane = phase_y * self.phases[1] + phase_x
        taps = (plane * self.sizes[0] + y) * self.sizes[1] + x
        channels = np.arange(depth, dtype=np.int64)[:, None] * self.channel_bytes
        return np.ascontiguousarray(channels + taps.reshape(1, -1))

    def code(self, compiler: Compiler) -> Code:
        """What writes channels so."""
        return Code(compiler, loops.source(self.strides[1] if self.strides[1] <= 2 else 0))

    def calls(
        self, code: Code, reads: Sequence[str], items: range, channels: int, to: int, threads: int
    ) -> Iterator[Call]:
        """What writes so many channels of each item behind the first bytes `to` of the kernel's own memory."""
        space = self.space
        size = math.prod(space.sizes)
        frame = dict.fromkeys(WINDOWS, 0) | {
            "zero": NO_ZERO.ctypes.data,
            "end_group": len(items),
            "group": channels * size,
            "channel": size,
            "padded_group": channels * self.channel_bytes,
            "padded_channel": self.channel_bytes,
        }
        named = {
            "size": space.sizes[1:],
            "stride": self.strides,
            "start": space.starts[1:],
            "phases": self.phases,
            "padded": self.sizes,
        }
        for name, (y, x) in named.items():
            frame |= {f"{name}_y": y, f"{name}_x": x}
        pointers = [
            Pointer(0, Of.INPUT, reads.index("InputTensor"), items.start * channels * size),
            *pointer_to("InputZeroPointTensor", 1, reads),
            Pointer(2, Of.OWN, 0, to),
        ]
        for part in portions(range(channels), len(items) * self.channel_bytes, threads):
            frame |= {"first": part.start, "end": part.stop}
            yield Call(code, array("q", frame.values()), pointers, len(items) * len(part) * self.channel_bytes)


def pointer_to(name: str, place: int, reads: Sequence[str]) -> list[Pointer]:
    """That of an input that may be left out."""
    return [Pointer(place, Of.INPUT, reads.index(name))] if name in reads else []


def _pair(numbers: Sequence[int]) -> tuple[int, int]:
    first, second = numbers
    return first, second
