"""What a kernel does, as calls of compiled functions, so that one call of Python's does that of many kernels."""

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.frames import start_of_frame
from app.devices.cpu.llvm.kernels import LookUp, Loop
from app.devices.device import Kernel
from app.devices.layout import blocks

WORTH_A_CALL = 1 << 19
"""Work, in bytes and instructions, that takes a thread some 10 us: with less, threads would wait for one another."""


class Of(Enum):
    """What memory an address is in. That of the watch is the dispatch's, which loops ask whether to go on."""

    INPUT = "input"
    OUTPUT = "output"
    OWN = "own"
    WATCH = "watch"


class Pointer(NamedTuple):
    """The word of a frame at `place` is the address of the byte `offset` of an input or output, by its `number` among
    these, or of the kernel's own memory."""

    place: int
    of: Of
    number: int = 0
    offset: int = 0


class Call(NamedTuple):
    """A function with its frame, in which addresses of tensors are left out, and about how many bytes and instructions
    it is."""

    code: Code
    frame: "array[int]"
    pointers: Sequence[Pointer]
    work: int


@dataclass(frozen=True, eq=False, slots=True)
class Calls:
    """All that a kernel does: stages, one after the other, each of calls that several threads may make at once.

    The kernel has `own_bytes` of memory of its own while it runs, with anything in them.
    """

    stages: Sequence[Sequence[Call]]
    own_bytes: int = 0


class Compiled(Kernel, Protocol):
    """A kernel that may be nothing but calls."""

    def calls(self) -> Calls | None:
        """Those, over tensors of which none that is read is written; None if there is something that Python does."""


def calls_of(kernel: Kernel) -> Calls | None:
    """What the kernel is, if it is nothing but calls."""
    calls: Callable[[], Calls | None] | None = getattr(kernel, "calls", None)  # a Protocol is no quick isinstance
    return calls() if calls else None


def in_own(calls: Calls, places: Mapping[tuple[Of, int], int]) -> list[list[Call]]:
    """The stages of `calls`, with these inputs and outputs, each by its number, in the kernel's own memory: so many
    bytes on."""

    def moved(each: Pointer) -> Pointer:
        place = places.get((each.of, each.number))
        return each if place is None else each._replace(of=Of.OWN, number=0, offset=each.offset + place)

    return [[call._replace(pointers=[*map(moved, call.pointers)]) for call in stage] for stage in calls.stages]


def chained(first: Calls, second: Calls, number: int, own_bytes: int) -> Calls:
    """One after the other: what the `first` makes is the input of the `second` with that number, and lies in so many
    bytes of the kernel's own."""
    return Calls([*in_own(first, {(Of.OUTPUT, 0): 0}), *in_own(second, {(Of.INPUT, number): 0})], own_bytes)


def pieces(work: int, threads: int) -> int:
    """In how many calls to do so much work on at most so many threads."""
    return max(1, min(work // WORTH_A_CALL, 2 * threads)) if threads > 1 else 1


def call_of_nest(
    code: Code,
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
    starts: Sequence[int],
    reads: Sequence[int],
    end: "array[int]",
    work: int,
) -> Call:
    """The call of a nest of `nests.py` over these sizes: strides and where the first elements are, in bytes, of the
    inputs by number that it `reads`, and of the output. `end` is what its frame has after these."""
    frame, places = start_of_frame(sizes, strides)
    pointers = [
        Pointer(place, Of.INPUT, number, start) for place, number, start in zip(places, reads, starts, strict=False)
    ]
    pointers.append(Pointer(places[-1], Of.OUTPUT, 0, starts[-1]))
    return Call(code, frame + end, pointers, work)


def calls_of_loop(
    loop: Loop | LookUp,
    arguments: "array[int]",
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
    item_sizes: Sequence[int],
    threads: int,
) -> list[Call]:
    """The calls of a loop over tensors of these sizes, whose strides are in bytes, the output's last, for at most so
    many threads."""
    elements = math.prod(sizes)
    used = loop.used(strides)
    code = loop.codes_for(sizes, strides, item_sizes).plain
    made = []
    for block in blocks(sizes, -(-elements // pieces(loop.work * elements, threads))):
        part = part_of(block, sizes)
        counts = [len(along) for along in part]
        starts = [sum(along.start * step for along, step in zip(part, steps, strict=True)) for steps in used]
        work = loop.work * math.prod(counts)
        made.append(call_of_nest(code, counts, used, starts, loop.reads, arguments, work))
    return made


def part_of(index: Sequence[slice | int], sizes: Sequence[int]) -> list[range]:
    """The coordinates of a block of a tensor of these sizes, along all dimensions."""
    slices = [slice(each, each + 1) if isinstance(each, int) else each for each in index]
    slices += [slice(None)] * (len(sizes) - len(slices))
    return [range(size)[each] for size, each in zip(sizes, slices, strict=True)]
