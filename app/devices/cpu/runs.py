"""Kernels of a graph that are nothing but calls of compiled functions, as one table that threads go through.

A table is made once, with the addresses of what is kept; a dispatch writes those of its own tensors. Dispatches at the
same time have a table each.
"""

import os
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import numpy as np

from app.devices.cpu.calls import Call, Calls, Of, Pointer, calls_of
from app.devices.cpu.llvm.bytes import zeros
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Function
from app.devices.cpu.llvm.coordinate_loops import Watch
from app.devices.cpu.llvm.tables import (
    END,
    FIRST,
    HEAD_WORDS,
    LOT,
    MOVE_WORDS,
    SOURCES,
    STAGE_WORDS,
    binds,
    source,
)
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.llvm.waiting import lot
from app.devices.cpu.threads import RAN
from app.devices.device import ExecutionRecord, Kernel, ensuring, kept_bytes
from app.devices.schedules import KernelPart, Rooms
from app.graphs.schedule import Place, Room, Step
from app.memory.addresses import LINE, address_of, whole_lines
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.looks import look

BETWEEN_LOOKS = 1 << 28
"""Work, in bytes and instructions, after which a run looks whether it is cancelled: some 20 ms."""

WORTH_A_THREAD = 1 << 21
"""Work that several threads can share for which another one is asked that is awake: some 50 us."""

WORTH_WAKING = 1 << 23
"""The same for one that sleeps: to wake it takes about half as long."""

PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""What this process may run on: threads that wait for one another after each stage only pay on several."""

READY, READY_BYTES = 8, 8 << 20
"""How many tables are kept for the next dispatches, and bytes of all of these."""


class _Placed(NamedTuple):
    """A call, and where its kernel's inputs and outputs lie."""

    call: Call
    places: Mapping[Of, Sequence[Place]]


Stages: TypeAlias = Sequence[Sequence[_Placed]]


class Run:
    """Implements `Segment`: the steps of a graph. Safe to use from several threads."""

    def __init__(self, steps: Sequence[tuple[Kernel, Step]], kept: Sequence[Buffer], team: Team) -> None:
        self._kernels = [kernel for kernel, _ in steps]
        self._team = team
        self._walk, self._bind = Code(team.compiler, source()), Code(team.compiler, binds())
        clear = Code(team.compiler, zeros())
        stages: list[Sequence[_Placed]] = []
        works: list[Sequence[int]] = []
        self._parts: list[KernelPart | Walk] = []
        own_bytes = 0
        known = [(calls_of(kernel), kernel, step) for kernel, step in steps]
        for _, group in groupby(known, lambda each: each[0] is None):
            first = len(stages)
            for found, kernel, step in group:
                look()
                if found is None:
                    self._parts.append(KernelPart(kernel, step))
                else:
                    stages += _placed(found, step, clear)
                    own_bytes = max(own_bytes, found.own_bytes)
            works += [[placed.call.work for placed in stage] for stage in stages[first:]]
            self._parts += walks(range(first, len(stages)), works, team)
        self._is_alone = all(part.helpers == 0 for part in self._parts if isinstance(part, Walk))
        self._codes = [placed.call.code for stage in stages for placed in stage]
        self._layout = _Layout(stages, kept, own_bytes)
        self._ready: deque[_Table] = deque(maxlen=min(READY, READY_BYTES // self._layout.table_bytes))
        self._is_quick = False
        self._functions: Sequence[Function] = ()  # while these live, so does their code

    @property
    def runs_inline(self) -> bool:
        if not self._is_quick:
            is_ready = self._is_alone or self._team.is_started
            is_quick = is_ready and all(kernel.runs_inline for kernel in self._kernels)
            self._is_quick = is_quick and bool(self._functions)  # it stays so: their code is held
            return is_quick
        return all(part.runs_inline for part in self._parts if isinstance(part, KernelPart))

    @property
    def own_bytes(self) -> int:
        parts = [part.own_bytes for part in self._parts if isinstance(part, KernelPart)]
        return self._layout.table_bytes + max(parts, default=0)

    @property
    def kept_bytes(self) -> int:
        tables = (self._ready.maxlen or 0) * self._layout.table_bytes
        return tables + self._layout.kept_bytes + sum(map(kept_bytes, self._kernels))

    def run(self, rooms: Rooms, cancelled: Callable[[], bool]) -> ExecutionRecord:
        watch, table = Watch(ensuring(cancelled)), self._taken()
        try:
            table.bind(rooms, watch)
            for part in self._parts:
                if isinstance(part, KernelPart):
                    part.run(rooms, cancelled)
                    continue
                watch.look()
                table.walk(part, self._team)
                watch.look()
        finally:
            self._ready.append(table)
        return RAN

    def _taken(self) -> "_Table":
        """A table that nobody else uses."""
        try:
            return self._ready.popleft()
        except IndexError:
            pass
        if not self._functions:
            self._functions = [code.function() for code in (self._walk, self._bind, *self._codes)]
        return _Table(self._layout, self._functions, self._team)


class Walk(NamedTuple):
    """Stages, from the `first` to before the one of number `end`, between two looks, how many helpers they are worth,
    and whether these are woken for them."""

    first: int
    end: int
    helpers: int
    wakes: bool


def walks(stages: range, works: Sequence[Sequence[int]], team: Team) -> Iterator[Walk]:
    """Those through `stages`; `works` are those of all calls of each."""
    threads = min(team.most, PROCESSORS)
    first, total = stages.start, 0
    for number in stages:
        work = sum(works[number])
        if total and total + work > BETWEEN_LOOKS:
            yield _walk(first, number, works, threads)
            first, total = number, 0
        total += work
    if first < stages.stop:
        yield _walk(first, stages.stop, works, threads)


def _walk(first: int, end: int, works: Sequence[Sequence[int]], threads: int) -> Walk:
    shared = [stage for stage in works[first:end] if len(stage) > 1]
    work = sum(map(sum, shared))
    helpers = min(max(map(len, shared)), threads) - 1 if shared and work >= WORTH_A_THREAD else 0
    return Walk(first, end, helpers, work >= WORTH_WAKING)


def _placed(found: Calls, step: Step, clear: Code) -> Iterator[list[_Placed]]:
    """The stages of a step. None has more work than there is to be between two looks, unless one call has."""
    if step.clears:
        yield [
            _Placed(Call(clear, array("q", [0, place.size]), [Pointer(0, Of.OUTPUT)], place.size), {Of.OUTPUT: [place]})
            for place in step.clears
        ]
    places = {Of.INPUT: step.reads, Of.OUTPUT: step.writes}
    for stage in found.stages:
        for part in between_looks(stage):
            yield [_Placed(call, places) for call in part]


def between_looks(stage: Sequence[Call]) -> Iterator[Sequence[Call]]:
    """The stage, as several ones if it has more work than there is to be between two looks."""
    part: list[Call] = []
    work = 0
    for call in stage:
        if part and work + call.work > BETWEEN_LOOKS:
            yield part
            part, work = [], 0
        part.append(call)
        work += call.work
    yield part


class Table(NamedTuple):
    """What `llvm/tables.py` says, without addresses: the `first_call`, words that are addresses in the table itself,
    and of which words, and where the frames of the calls are."""

    words: "array[int]"
    first_call: int
    inner: Sequence[tuple[int, int]]
    frames: Sequence[int]


def table_of(stages: Sequence[Sequence[Call]]) -> Table:
    """That of these stages."""
    call = first_call = HEAD_WORDS + STAGE_WORDS * len(stages)
    calls = [call for stage in stages for call in stage]
    words = array("q", bytes(8 * (first_call + 2 * len(calls))))
    inner, frames = [], []
    for start, stage in zip(range(HEAD_WORDS, first_call, STAGE_WORDS), stages, strict=True):
        words[start] = len(stage)
        inner.append((start + 3, call))
        call += 2 * len(stage)
    for number, each in enumerate(calls):
        inner.append((first_call + 2 * number + 1, len(words)))
        frames.append(len(words))
        words += each.frame
    return Table(words, first_call, inner, frames)


class _Layout:
    """What all tables of a run have: a head, the stages, the calls, the frames."""

    def __init__(self, stages: Stages, kept: Sequence[Buffer], own_bytes: int) -> None:
        self.kept = kept
        self.own_bytes = own_bytes
        self.stages = len(stages)
        self.words, self.first_call, self.inner, frames = table_of([[each.call for each in stage] for stage in stages])
        self.own: list[tuple[int, int]] = []
        """Words that are addresses in the memory of its own, and of which bytes."""
        reaches: dict[tuple[Room, int], int] = {}
        pointers: list[tuple[int, tuple[Room, int] | None, int]] = []
        for start, placed in zip(frames, [each for stage in stages for each in stage], strict=True):
            for pointer in placed.call.pointers:
                if pointer.of is Of.OWN:
                    self.own.append((start + pointer.place, pointer.offset))
                    continue
                word = start + pointer.place
                if pointer.of is Of.WATCH:
                    pointers.append((word, None, 0))
                    continue
                place, offset = placed.places[pointer.of][pointer.number], pointer.offset
                if place.room is Room.KEPT:
                    self.words[word] = address_of(kept[place.number]) + place.offset + offset
                else:
                    key = place.room, place.number
                    reaches[key] = max(reaches.get(key, 0), place.offset + place.size)
                    pointers.append((word, key, place.offset + offset))
        self.buffers = sorted(reaches, key=lambda key: key[0] is not Room.INPUT)
        """Of a dispatch, those that are used; the last one is written."""
        numbers: dict[tuple[Room, int] | None, int] = {None: 0} | {key: n for n, key in enumerate(self.buffers, 1)}
        self.moves = array("q", [each for word, key, offset in pointers for each in (word, numbers[key], offset)])
        """Words that are addresses in these, or of the watch, as `binds` takes them."""
        places = range(SOURCES + 1, SOURCES + 1 + len(self.buffers))
        self.bounds = array("q", [*places, *[reaches[key] for key in self.buffers]])

    @property
    def table_bytes(self) -> int:
        """Of a table, with the memory of its own and what it takes to begin both at cache lines."""
        return 8 * len(self.words) + self.own_bytes + 3 * LINE

    @property
    def kept_bytes(self) -> int:
        """Of what tables are made of."""
        return 8 * (len(self.words) + len(self.moves) + len(self.bounds))


class _Table:
    """A table for one dispatch at a time."""

    def __init__(self, layout: _Layout, functions: Sequence[Function], team: Team) -> None:
        """`functions` are the one that goes through the table, the one that binds it, and that of each call."""
        self._layout = layout
        size = 8 * len(layout.words)
        self._held: Array = np.empty(layout.table_bytes, np.uint8)
        start = -self._held.ctypes.data % LINE
        self._words = self._held[start : start + size].view(np.int64)
        self._words[:] = layout.words
        self._address = self._held.ctypes.data + start
        memory = self._address + whole_lines(size)
        for word, other in layout.inner:
            self._words[word] = self._address + 8 * other
        for word, offset in layout.own:
            self._words[word] = memory + offset
        self._functions = functions  # dispatches that find them at once may each find others, if some were dropped
        self._walk, self._bind, *called = functions
        for number, function in enumerate(called):
            self._words[layout.first_call + 2 * number] = function.address
        self._words[0] = self._walk.address
        lot(team.compiler, self._address + 8 * LOT)
        moves, count = layout.moves.buffer_info()
        numbers = [self._address, moves, count // MOVE_WORDS, layout.stages]
        self._frame = array("q", [*numbers, *[0] * (1 + len(layout.buffers))])
        self._call_over = team.compiler.call_over

    def bind(self, rooms: Rooms, watch: Watch) -> None:
        """Make it ready for a dispatch over these buffers. Raises ValueError of one that ends too early."""
        layout = self._layout
        self._frame[SOURCES] = id(watch)
        buffers = [rooms[room][number] for room, number in layout.buffers]
        self._call_over(self._bind.address, layout.bounds, self._frame, *buffers)

    def walk(self, walk: Walk, team: Team) -> None:
        """Go through these stages, together with those of the team who are free; all are done when this returns."""
        stages = self._address + 8 * HEAD_WORDS
        self._words[FIRST] = stages + 8 * STAGE_WORDS * walk.first
        self._words[END] = stages + 8 * STAGE_WORDS * walk.end
        team.sharing(self._walk, self._words, walk.helpers, wakes=walk.wakes)(self._address)
