"""Calls that are made by themselves, where no graph's table has them."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from operator import add

import numpy as np

from app.devices.cpu.calls import Calls, Of, pieces
from app.devices.cpu.llvm import tables
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Function
from app.devices.cpu.llvm.coordinate_loops import Watch
from app.devices.cpu.llvm.tables import END, FIRST, HEAD_WORDS, LOT, STAGE_WORDS
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.llvm.waiting import lot
from app.devices.cpu.runs import between_looks, table_of, walks
from app.devices.cpu.threads import RAN, parts
from app.devices.device import ExecutionRecord, ensuring
from app.devices.layout import check_ends
from app.memory.addresses import address_of, aligned
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator
from app.programs.dispatchable import Dispatchable

INLINE = 1 << 22
"""Work that is done in less than a millisecond."""

MOST_OF_A_CALL = 1 << 25
"""Work, after which a thread looks whether it is to go on: some 5 ms."""

CALL_BYTES = 1 << 11
"""Of memory, that a call takes to be made ready, and some 15 us."""

MOST_CALLS, LONGEST_CALL = 1 << 12, 1 << 34
"""In how many a kernel's work may be done, and work of one that cannot be cut: of large windows, as of padding, there
would be gigabytes of calls, over tensors of a few MiB."""


class TooMuchWork(Exception):
    """Calls would be too many, or one too long. It is for kernels that look themselves whether to go on."""


class Making:
    """Makes all calls, as a table of their own that threads go through. What can be found before a dispatch is. Safe to
    use from several threads."""

    def __init__(self, calls: Calls, inputs: int, outputs: int, team: Team) -> None:
        """Over so many inputs and outputs."""
        first = {Of.INPUT: 0, Of.OUTPUT: inputs, Of.OWN: inputs + outputs, Of.WATCH: inputs + outputs + 1}
        stages = [part for stage in calls.stages for part in between_looks(stage)]
        made = [call for stage in stages for call in stage]
        self._table = table_of(stages)
        self._addresses = [
            (start + at, first[of] + number, on)
            for start, call in zip(self._table.frames, made, strict=True)
            for at, of, number, on in call.pointers
        ]
        """Words of the table, the number of the memory among all, and how many bytes on."""
        self._inner = [(word, 8 * other) for word, other in self._table.inner]
        """Words that are addresses in the table itself, and how many bytes on."""
        self._walks = list(walks(range(len(stages)), [[call.work for call in stage] for stage in stages], team))
        self._is_alone = all(walk.helpers == 0 for walk in self._walks)
        self._codes = [Code(team.compiler, tables.source()), *[call.code for call in made]]
        self._called: tuple[array[int], Sequence[Function]] | None = None
        """The table with the addresses of functions, and these; while they live, so does their code."""
        self._own_bytes, self._team = calls.own_bytes, team
        self.kept_bytes = CALL_BYTES * len(made)

    @property
    def is_ready(self) -> bool:
        """Whether there is nothing to compile, and nobody to start."""
        is_compiled = self._called is not None or all(code.is_compiled for code in self._codes)
        return is_compiled and (self._is_alone or self._team.is_started)

    def run(self, memory: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Over what is at these addresses, the outputs' last. Raises Cancelled."""

        watch, team = Watch(ensuring(cancelled)), self._team
        called, functions = self._called = self._called or self._compiled()
        words = called[:]
        _held, own = aligned(self._own_bytes) if self._own_bytes else (None, 0)
        memory = [*memory, own, id(watch)]
        for word, number, on in self._addresses:
            words[word] = memory[number] + on
        table = words.buffer_info()[0]
        for word, on in self._inner:
            words[word] = table + on
        if not self._is_alone:
            lot(team.compiler, table + 8 * LOT)
        walked, stages = functions[0], table + 8 * HEAD_WORDS
        for walk in self._walks:
            watch.look()
            words[FIRST], words[END] = stages + 8 * STAGE_WORDS * walk.first, stages + 8 * STAGE_WORDS * walk.end
            team.sharing(walked, words, walk.helpers, wakes=walk.wakes)(table)
            watch.end()

    def over(self, inputs: Sequence[Array], outputs: Sequence[Array], cancelled: Callable[[], bool]) -> None:
        """The same over arrays that lie as the calls say. Raises Cancelled."""
        self.run([each.ctypes.data for each in (*inputs, *outputs)], cancelled)

    def _compiled(self) -> "tuple[array[int], Sequence[Function]]":
        words, functions = self._table.words[:], [code.function() for code in self._codes]
        words[0] = functions[0].address
        for number, function in enumerate(functions[1:]):
            words[self._table.first_call + 2 * number] = function.address
        return words, functions


def make_calls(
    calls: Calls, inputs: Sequence[Array], outputs: Sequence[Array], team: Team, cancelled: Callable[[], bool]
) -> None:
    """Make all of them, over arrays that lie as they say. Raises Cancelled."""
    Making(calls, len(inputs), len(outputs), team).over(inputs, outputs, cancelled)


class CallsKernel:
    """Implements `Compiled`: nothing but calls. None of them reads what it or another one of its stage writes."""

    def __init__(
        self, compiled: Dispatchable, calls: Calls, team: Team, kept: Sequence[Array] = (), inline: int = INLINE
    ) -> None:
        """`kept` is memory that calls have the address of; up to so much work is done `inline`."""
        self._inputs = len(compiled.inputs)
        self._reaches = [desc.data_bytes for desc in (*compiled.inputs.values(), *compiled.outputs.values())]
        self._calls, self._kept = calls, kept
        self._making = Making(calls, self._inputs, len(compiled.outputs), team)
        self._most_apart = 0
        """Bytes of outputs that may lie over inputs, which are read until all is made."""
        if isinstance(compiled, CompiledOperator) and compiled.operator.in_place:
            self._most_apart = sum(desc.data_bytes for desc in compiled.outputs.values())
        self._is_small = sum(call.work for stage in calls.stages for call in stage) <= inline

    @property
    def runs_inline(self) -> bool:
        return self._is_small and self._making.is_ready

    @property
    def own_bytes(self) -> int:
        return self._calls.own_bytes + self._most_apart

    @property
    def kept_bytes(self) -> int:
        return self._making.kept_bytes + sum(each.nbytes for each in self._kept)

    def calls(self) -> Calls:
        return self._calls

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        buffers = [*inputs, *outputs]
        check_ends(buffers, self._reaches)
        memory = list(map(address_of, buffers))
        apart = {
            number: np.frombuffer(buffers[number], np.uint8, self._reaches[number]).copy()
            for number in self._over_inputs(memory)
        }
        for number, own in apart.items():
            memory[number] = own.ctypes.data
        self._making.run(memory, cancelled)
        for number, own in apart.items():
            np.frombuffer(buffers[number], np.uint8, own.size)[:] = own
        return RAN

    def _over_inputs(self, memory: Sequence[int]) -> set[int]:
        """Which of the tensors at these addresses are outputs that lie over an input."""
        ends = list(map(add, memory, self._reaches))
        given, found = range(self._inputs), set()
        for number in range(self._inputs, len(memory)):
            start, end = memory[number], ends[number]
            for other in given:
                if start < ends[other] and memory[other] < end:
                    found.add(number)
        return found


def portions(whole: range, work: int, threads: int) -> Iterator[range]:
    """`whole`, of which each is so much `work`, for a stage's calls: none so long that a thread that is not to go on
    would not see it, if that can be. Raises TooMuchWork."""
    total = work * len(whole)
    count = min(max(pieces(total, threads), total // MOST_OF_A_CALL), len(whole))
    if count > MOST_CALLS or work > LONGEST_CALL:
        raise TooMuchWork
    return parts(whole, count)
