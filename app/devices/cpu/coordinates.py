"""Kernels of the CPU for outputs that are not made element by element: by coordinates, or all at once by a call."""

import itertools
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.alone import CALL_BYTES, Making
from app.devices.cpu.calls import Call, Calls, Of, Pointer, part_of, pieces
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.coordinate_loops import WATCH, CoordinateLoops
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.numpy.coordinates import CoordinateCalls
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import RAN, Threads
from app.devices.device import ExecutionRecord, ensuring
from app.devices.layout import BLOCK_BYTES, Index, blocks, check_ends
from app.formula.expansions import Ask
from app.formula.structures import Structures
from app.memory.addresses import address_of
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.looks import looking
from app.programs.dispatchable import Dispatchable
from app.programs.program import Map

SMALL_WORK = 1 << 17
"""Operations on elements that take less time than it takes to hand them to another thread."""

SMALL_CALL = 1 << 10
"""The same of elements of the largest tensor, where a call does as many steps for each as it likes."""


UNEVEN = 1 << 22
"""Work of a block that is cut in two, lest a thread that gets more to do than others keeps them waiting."""

MOST_WORK = 1 << 22
"""Work that a call is taken to be at most: it looks itself whether to go on, and counts that depend on
coordinates are mostly far less than they are taken to be."""


class _Frame(NamedTuple):
    """The numbers that compute a block, and where addresses go: that of the output, and those of what is read."""

    numbers: "array[int]"
    target: int
    places: Sequence[int]


class CoordinateKernel:
    """Implements `Kernel`, for an `output` whose formula goes by coordinates.

    With a `team`, it is computed by loops if there are at least so many values to compute, `least`.
    """

    def __init__(
        self,
        compiled: Dispatchable,
        output: str,
        threads: Threads,
        structures: Structures,
        team: Team | None,
        least: int,
    ) -> None:
        made, desc, numbers = compiled.program.maps[output], compiled.outputs[output], compiled.numbers
        calls = structures.find(made, numbers, lambda questions: CoordinateCalls(questions.ask, made.expression))
        scalars = calls.arguments(numbers)
        self._elements, self._terms = desc.elements, calls.terms(scalars)
        self._operations = calls.operations
        self._loops: CoordinateLoops | None = None
        if team and self._elements * self._terms >= least:
            self._loops = structures.find(
                (made, desc.rank, "loops"),
                numbers,
                lambda questions: _loops_of(questions.ask, made, desc.rank, team.compiler),
            )
        if self._loops:
            self._arguments = self._loops.arguments(numbers)
        self._run = partial(calls.run, scalars)
        reads = (self._loops or calls).inputs
        self._inputs = [Tensor(compiled, name, each) for name, each in compiled.inputs.items()]
        self._reads = [place for place, tensor in enumerate(self._inputs) if tensor.name in reads]
        self._output = Tensor(compiled, output, desc)
        self._threads, self._team = threads, team
        self._blocks: Sequence[Index] = ()
        if not self._loops:
            most = self._elements if self.runs_inline else calls.block(self._elements, self._terms, threads.most)
            self._blocks = list(blocks(desc.Sizes, most))
        read = [self._inputs[place] for place in self._reads]
        self._reaches = [tensor.desc.data_bytes for tensor in (*read, self._output)]
        self._made: Making | None = None

    @property
    def runs_inline(self) -> bool:
        if self._loops:
            return self._loops.is_small(self._elements, self._terms) and self._making.is_ready
        return self._elements * self._terms * self._operations <= SMALL_WORK

    @property
    def kept_bytes(self) -> int:
        return CALL_BYTES * self._count(self._loops) if self._loops else BLOCK_BYTES * len(self._blocks)

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        if self._loops:
            self._dispatch_loops(inputs, outputs[0], cancelled)
            return RAN
        stored = {self._inputs[place].name: self._inputs[place].stored(inputs[place]) for place in self._reads}
        output = self._output.view(outputs[0])
        aliased = any(np.may_share_memory(each.elements, output) for each in stored.values())
        target: list[Array] = [np.empty(output.shape, output.dtype) if aliased else output]

        check = ensuring(cancelled)

        def work(turn: int) -> None:
            block = part_of(self._blocks[turn], self._output.desc.Sizes)
            part = target[0][tuple([slice(along.start, along.stop) for along in block])]
            self._run(stored, block, part, check)

        try:
            self._threads.share(len(self._blocks), work, cancelled)
            if aliased:
                output[...] = target[0]
        finally:
            stored.clear()  # a helper in the executor's queue, cancelled or not, is not to keep the tensors
            target.clear()
        return RAN

    def _dispatch_loops(self, inputs: Sequence[Buffer], output: Buffer, cancelled: Callable[[], bool]) -> None:
        """By loops, which get addresses: where the output is over an input, of memory that is copied there then."""
        given = [inputs[place] for place in self._reads]
        check_ends((*given, output), self._reaches)
        starts, target, size = list(map(address_of, given)), address_of(output), self._reaches[-1]
        own: Array | None = None
        if any(
            start < target + size and target < start + reach
            for start, reach in zip(starts, self._reaches, strict=False)
        ):
            own = np.frombuffer(output, np.uint8, size).copy()
            target = own.ctypes.data
        self._making.run([*starts, target], cancelled)
        if own is not None:
            np.frombuffer(output, np.uint8, size)[:] = own

    @property
    def _making(self) -> Making:
        """What makes the calls, over the inputs that are read."""
        calls = None if self._made else self.calls()
        if calls:
            assert self._team, "it has compiled them"
            stages = [[_renumbered(call, self._reads) for call in stage] for stage in calls.stages]
            self._made = Making(Calls(stages), len(self._reads), 1, self._team)
        assert self._made, "there are loops"
        return self._made

    def _frame(self, loops: CoordinateLoops, part: Sequence[range]) -> "_Frame":
        read = [self._inputs[place] for place in self._reads]
        layouts = {tensor.name: (tensor.desc.Sizes, tensor.strides) for tensor in read}
        frame, target, places = loops.frame(self._arguments, part, self._output.strides, layouts)
        return _Frame(frame, target, [places[tensor.name] for tensor in read])

    def _count(self, loops: CoordinateLoops) -> int:
        """In about how many calls it is done."""
        sizes = self._output.desc.Sizes
        return _pieces(loops.work(self._elements, self._terms, sizes[-1] if sizes else 1), self._threads.most)

    def calls(self) -> Calls | None:
        loops = self._loops
        if not loops:
            return None
        sizes = self._output.desc.Sizes
        width = sizes[-1] if sizes else 1
        made = []
        for block in blocks(sizes, -(-self._elements // self._count(loops))):
            part = part_of(block, sizes)
            frame, target, places = self._frame(loops, part)
            pointers = [Pointer(place, Of.INPUT, number) for place, number in zip(places, self._reads, strict=True)]
            pointers += Pointer(target, Of.OUTPUT), Pointer(WATCH, Of.WATCH)
            work = min(loops.work(math.prod(map(len, part)), self._terms, width), MOST_WORK)
            made.append(Call(loops.code, frame, pointers, work))
        return Calls([made])


class CallKernel:
    """Implements `Kernel`, for an operator that makes all of its outputs at once."""

    def __init__(self, compiled: Dispatchable, threads: Threads) -> None:
        """The `threads` share its products of matrices."""
        self._compiled = compiled
        self._threads = threads
        self._inputs = [Tensor(compiled, name, desc) for name, desc in compiled.inputs.items()]
        self._outputs = [Tensor(compiled, name, desc) for name, desc in compiled.outputs.items()]
        self._conversions = threads.conversions if DataType.FLOAT16 in compiled.stored_types.values() else None

    @property
    def runs_inline(self) -> bool:
        is_ready = self._conversions is None or self._conversions.are_compiled
        return self._compiled.elements <= SMALL_CALL and is_ready

    @property
    def own_bytes(self) -> int:
        return self._compiled.working_bytes

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        ensure = ensuring(cancelled)
        ensure()
        if self._conversions:
            self._conversions.get_compiled()
        arrays = {tensor.name: tensor.elements(each) for tensor, each in zip(self._inputs, inputs, strict=True)}
        for read in arrays.values():
            read.flags.writeable = False
        into = self._into(arrays, outputs)
        with looking(ensure, self._threads):
            made = self._made(arrays, into)
        ensure()
        for tensor, each in zip(self._outputs, outputs, strict=True):
            if made[tensor.name] is not into.get(tensor.name):
                tensor.store(made[tensor.name], each)
        return RAN

    def _into(self, arrays: Mapping[str, Array], outputs: Sequence[Buffer]) -> Mapping[str, Array]:
        """Where outputs may be made at once; none where one lies over an input."""
        if not self._compiled.makes_in:
            return {}
        into = {tensor.name: tensor.view(each) for tensor, each in zip(self._outputs, outputs, strict=True)}
        pairs = itertools.product(into.values(), arrays.values())
        return {} if any(np.may_share_memory(*pair) for pair in pairs) else into

    @np.errstate(all="ignore")
    def _made(self, arrays: Mapping[str, Array], into: Mapping[str, Array]) -> Mapping[str, Array]:
        made = self._call(np, arrays, into) if into else self._call(np, arrays)
        self._compiled.check_results(made)
        return made

    @property
    def _call(self) -> Callable[..., Mapping[str, Array]]:
        call = self._compiled.call
        assert call, "its program says so"
        return call


def _pieces(work: int, threads: int) -> int:
    """In how many calls to do so much work."""
    return max(pieces(work, threads), min(work // UNEVEN, 4 * threads) if threads > 1 else 1)


def _renumbered(call: Call, reads: Sequence[int]) -> Call:
    """The call with its inputs by their numbers among those that it reads."""
    pointers = [
        each._replace(number=reads.index(each.number)) if each.of is Of.INPUT else each for each in call.pointers
    ]
    return call._replace(pointers=pointers)


def _loops_of(ask: Ask, made: Map, rank: int, compiler: Compiler) -> CoordinateLoops | None:
    """Those of `made`, unless there is an operation in it that NumPy is as quick at."""
    try:
        return CoordinateLoops(ask, made.expression, made.stored, rank, compiler)
    except LookupError:
        return None
