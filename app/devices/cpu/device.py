"""The CPU: formulas as loops compiled with LLVM, or as NumPy calls on cache-sized blocks; several threads on a big
tensor.
"""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from threadpoolctl import threadpool_limits

from app.contract.constants import DataType
from app.devices.cpu.alone import CallsKernel, TooMuchWork
from app.devices.cpu.arrays import array_kernel
from app.devices.cpu.attention import attention_kernel
from app.devices.cpu.byte_tables import byte_table_kernel
from app.devices.cpu.calls import Calls, calls_of_loop
from app.devices.cpu.conversions import Conversions
from app.devices.cpu.convolution import convolution_kernel, filter_packing_of
from app.devices.cpu.coordinates import CallKernel, CoordinateKernel
from app.devices.cpu.copies import copies_kernel
from app.devices.cpu.ended_windows import ended_windows_kernel
from app.devices.cpu.firsts import firsts_kernel
from app.devices.cpu.integer_convolutions import integer_convolution_kernel, integer_filter_packing_of
from app.devices.cpu.integer_products import integer_packing_of, integer_product_kernel
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import Loop, LoopCode
from app.devices.cpu.llvm.loop_calls import LoopCall
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.maximum_gradients import maximum_gradient_kernel
from app.devices.cpu.numpy import lowering
from app.devices.cpu.packed import packed_kernel
from app.devices.cpu.packs import PackKey
from app.devices.cpu.pools import pool_kernel
from app.devices.cpu.positions import position_kernel
from app.devices.cpu.products import product_kernel, product_packing_of
from app.devices.cpu.quantizing import quantizing_kernel
from app.devices.cpu.random_words import random_kernel
from app.devices.cpu.recurrent import recurrent_kernel
from app.devices.cpu.response_gradients import response_gradient_kernel
from app.devices.cpu.routines import Routine, routine_of, run_routine
from app.devices.cpu.rows import NumpyRowKernel
from app.devices.cpu.runs import Run
from app.devices.cpu.scans import scan_kernel
from app.devices.cpu.scatters import scatter_kernel
from app.devices.cpu.simpler import simpler, with_channels_last
from app.devices.cpu.split_totals import split_total_kernel
from app.devices.cpu.tables import Table, Tables, by_take, is_tabled
from app.devices.cpu.threads import RAN, Threads
from app.devices.cpu.tiles import TILED, tiles_kernel
from app.devices.cpu.times import step_seconds
from app.devices.cpu.transposed import transposed_kernel
from app.devices.cpu.weighted_sums import weighted_sums_kernel
from app.devices.cpu.window_sums import window_sums_kernel
from app.devices.device import Cancelled, DeviceInfo, ExecutionRecord, InTurn, Kernel
from app.devices.layout import BLOCK_BYTES, Index, blocks, walk
from app.devices.schedules import OneByOne, Prepare, Segment, known_inputs, schedule_kernel
from app.formula.structures import Questions, Structures
from app.graphs.schedule import InitializedGraph
from app.graphs.schedule import Step as GraphStep
from app.memory.arrays import Array, numpy_type
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator
from app.programs.dispatchable import Dispatchable
from app.programs.program import Map

D = TypeVar("D", bound=Dispatchable)

COMPILED = 1 << 8
"""Outputs of so many elements are worth the 10 to 30 ms that a loop for their formula takes to compile, once."""


COMPILED_ROWS = 4
"""How many times as much those are worth that go by coordinates, which take some 100 ms to compile; in a graph, which
is made for more than one dispatch, as much as others."""


_OF_CALLS = (scan_kernel, firsts_kernel, quantizing_kernel, scatter_kernel, maximum_gradient_kernel)
_PACKED_CALLS = (
    *_OF_CALLS,
    partial(integer_product_kernel, known=None),
    partial(integer_convolution_kernel, known=None),
)
_OF_COORDINATES = (pool_kernel, position_kernel, random_kernel, window_sums_kernel)
"""What makes kernels of their own for operators that have no formula of an element, of these where tensors are packed
first, and for others by coordinates."""

_PACKINGS = (product_packing_of, filter_packing_of, integer_packing_of, integer_filter_packing_of)
"""What some kernels pack of inputs that are known."""


class NumpyDevice:
    """Implements `Device`. `helpers` is where idle threads take blocks of a big tensor.

    With a `compiler`, outputs of at least `least` elements are computed by loops, and by coordinates those for which
    COMPILED_ROWS times as many values are computed. What is made of formulas is kept in
    `structures`.
    """

    name = "numpy"
    kind: Literal["cpu", "cuda"] = "cpu"

    def __init__(
        self,
        helpers: Executor,
        threads: int,
        compiler: Compiler | None = None,
        least: int = COMPILED,
        structures: Structures | None = None,
    ) -> None:
        # A BLAS' own threads look for work for 20 ms after each product, and keep processors from all else meanwhile:
        # on two of them requests took 30 times as long. So products are shared by our threads.
        threadpool_limits(1, "blas")
        self._compiler = compiler
        self._least = least
        self._structures = structures or Structures()
        self._graphs: WeakKeyDictionary[InitializedGraph, Kernel] = WeakKeyDictionary()
        """The kernels of graphs that there are, so that each has its matrices packed once."""
        self._loops = LoopCode(compiler, self._structures, threads) if compiler else None
        self._conversions = Conversions(self._loops) if self._loops else None
        self._threads = Threads(helpers, threads, self._conversions)
        self._tables = Tables(self._loops)

    @property
    def team(self) -> Team | None:
        """The threads that share compiled work, if there is any."""
        return self._loops.team if self._loops else None

    def info(self) -> DeviceInfo:
        total, available = _memory()
        parts = [f"NumPy {np.__version__}"] + ([f"LLVM {self._compiler.version}"] if self._compiler else [])
        return DeviceInfo(
            name=self.name,
            kind=self.kind,
            description=f"{' and '.join(parts)} on {platform.machine()}, {self._threads.most} threads",
            memory_total_bytes=total,
            memory_available_bytes=available,
            data_types=list(DataType),
            kernels_cached=self._compiler.kernels if self._compiler else None,
        )

    def prepare(self, work: Dispatchable | InitializedGraph) -> Kernel:
        if not isinstance(work, InitializedGraph):
            return self._kernel(work, None)
        known = self._graphs.get(work)
        if known is None:  # else under another of the device's names
            made = schedule_kernel(work, self._kernel_of_step(work), self._join)
            known = self._graphs.setdefault(work, made)
        return known

    def _join(self, steps: Sequence[tuple[Kernel, GraphStep]], kept: Sequence[Buffer]) -> Segment:
        return Run(steps, kept, self._loops.team) if self._loops else OneByOne(steps, kept)

    def packed(self, graph: InitializedGraph) -> dict[PackKey, int]:
        """What kernels of the graph keep a second time, packed, and how many bytes it has."""
        found: dict[PackKey, int] = {}
        if not self._compiler or graph.only:
            return found
        for step in graph.schedule.steps:
            known = known_inputs(graph, step)
            for packing_of in _PACKINGS:
                packing = packing_of(step.dispatchable, self._compiler, known) if known else None
                if packing:
                    found[packing.key(known)] = packing.nbytes
        return found

    def step_seconds(
        self, graph: InitializedGraph, take: Callable[[int], Buffer], cancelled: Callable[[], bool]
    ) -> list[float]:
        """Seconds of each of the graph's steps, over zeros in memory that `take` gives. Raises Cancelled."""
        return step_seconds(graph, self._kernel_of_step(graph), take, cancelled)

    def _kernel_of_step(self, graph: InitializedGraph) -> Prepare:
        # What has constants is made for many dispatches, too. Loops and NumPy differ in the last bits.
        least = 1 if graph.kept or graph.is_model else self._least
        return lambda step, known: self._kernel(step, known, least)

    def _kernel(self, compiled: Dispatchable, known: Mapping[str, Buffer] | None, least: int | None = None) -> Kernel:
        """`known` are inputs that are the same for all dispatches; it is None outside of graphs. `least` is how many
        elements are worth a loop, if not as many as usual."""
        least, elements = least or self._least, compiled.elements
        if self._loops and elements >= least:
            compiled = simpler(compiled, self._structures)
        if compiled.program.call:
            by_loop = self._of_call(compiled, known, least) if isinstance(compiled, CompiledOperator) else None
            by_loop = by_loop or product_kernel(compiled, self.team, self._threads, known)
            return by_loop or CallKernel(compiled, self._threads)
        loops = self._loops if elements >= least else None
        is_of_run = loops is not None and known is not None
        if loops and elements >= TILED:
            by_tiles = _first_of([tiles_kernel], compiled, loops.team)
            if by_tiles:
                return by_tiles
        if loops and not compiled.program.is_by_position:
            by_copies = copies_kernel(compiled, loops, is_of_run=is_of_run)
            if by_copies:
                return by_copies
        # Only such an operator makes one of several elements: to ask each of these kernels takes a while.
        if isinstance(compiled, CompiledOperator) and type(compiled.operator).by_coordinates:
            by_own: Kernel | None = None
            if loops:
                own = (
                    *_OF_COORDINATES,
                    partial(weighted_sums_kernel, structures=self._structures),
                    partial(ended_windows_kernel, threads=self._threads, structures=self._structures),
                )
                makes = partial(_first_of, own, team=loops.team)
                by_own = makes(compiled) or packed_kernel(compiled, loops, makes)
                by_own = by_own or split_total_kernel(compiled, loops.team, self._threads, self._structures)
            by_own = by_own or array_kernel(compiled, has_loops=loops is not None, is_of_run=is_of_run)
            if by_own:
                return by_own
            compiled = with_channels_last(compiled, self._structures) if loops else compiled
        if loops and known is not None:
            by_table = byte_table_kernel(compiled, loops, known, self._structures)
            if by_table:
                return by_table
        by_rows = least * (COMPILED_ROWS if known is None else 1)
        kernels: list[Kernel] = []
        for output, made in compiled.program.maps.items():
            kernels.append(
                CoordinateKernel(compiled, output, self._threads, self._structures, self.team, by_rows)
                if made.by_coordinates
                else NumpyRowKernel(compiled, output, self._threads, loops, self._structures)
                if made.axes
                else NumpyKernel(compiled, output, self._threads, loops, self._structures, self._tables)
            )
        return kernels[0] if len(kernels) == 1 else InTurn(kernels)

    def _of_call(self, compiled: CompiledOperator, known: Mapping[str, Buffer] | None, least: int) -> Kernel | None:
        """By loops of its own, for an operator that has no formula of an element."""
        loops, conversions = self._loops, self._conversions
        if loops is None or conversions is None:
            return None
        made: Kernel | None = convolution_kernel(compiled, loops, conversions, known)
        made = made or transposed_kernel(compiled, loops.team, known)
        made = made or recurrent_kernel(compiled, loops.team, conversions)
        if made or compiled.elements < least:
            return made
        return (
            attention_kernel(compiled, loops, self._structures, self._threads)
            or _first_of(
                (
                    partial(integer_product_kernel, known=known),
                    partial(integer_convolution_kernel, known=known),
                    *_OF_CALLS,
                ),
                compiled,
                loops.team,
            )
            or packed_kernel(compiled, loops, partial(_first_of, _PACKED_CALLS, team=loops.team))
            or response_gradient_kernel(compiled, loops.team, self._threads, self._structures, least)
        )


def _first_of(makers: Sequence[Callable[[D, Team], CallsKernel | None]], compiled: D, team: Team) -> CallsKernel | None:
    for make in makers:
        with suppress(TooMuchWork):
            made = make(compiled, team)
            if made:
                return made
    return None


class _Form(NamedTuple):
    """What is made of a formula, for all sizes and numbers: its routine, and the elements of all tensors, the output's
    last, with their bytes."""

    routine: Routine
    types: list[np.dtype[Any]]
    item_sizes: list[int]
    is_tabled: bool
    """Whether its results may be worth a table."""

    @classmethod
    def of(cls, inputs: Mapping[str, DataType], made: Map, loops: LoopCode | None, questions: Questions) -> "_Form":
        types = [numpy_type(each) for each in (*inputs.values(), made.stored)]
        routine = routine_of(questions.ask, made.expression, list(inputs), made.stored, loops)
        return cls(routine, types, [each.itemsize for each in types], is_tabled(routine, types))


class NumpyKernel:
    """Implements `Kernel`, for an `output` of which each element is computed by itself."""

    # Of most. A dispatch that is the first of its kind takes as long for each thing that it sets as for a comparison.
    _blocks: Sequence[Index] = ()
    _call: LoopCall | None = None
    _table: Table | None = None
    _looked_up: tuple[Array, LoopCall | None] | None = None
    """The table, and what looks it up."""

    def __init__(
        self,
        compiled: Dispatchable,
        output: str,
        threads: Threads,
        loops: LoopCode | None,
        structures: Structures,
        tables: Tables,
    ) -> None:
        program, numbers = compiled.program, compiled.numbers
        made = program.maps[output]
        build = partial(_Form.of, program.inputs, made, loops)
        self._form = form = structures.find((made, loops is not None), numbers, build)
        routine, item_sizes = form.routine, form.item_sizes
        self._arguments = arguments = routine.arguments(numbers)
        self._elements = elements = compiled.outputs[output].elements
        self._is_small = routine.is_small(elements)
        self._threads = threads
        self._sizes, self._strides = sizes, strides = walk(compiled, output, item_sizes)
        if loops and isinstance(routine, Loop):
            self._call = LoopCall(routine, arguments, sizes, strides, item_sizes, loops.team)
        elif isinstance(routine, lowering.Calls):
            most = routine.block(elements, threads.most)
            if elements > most:
                self._blocks = list(blocks(sizes, most))
        if form.is_tabled:
            self._tables = tables
            self._table = tables.of(routine, arguments, form.types[-1])

    @property
    def kept_bytes(self) -> int:
        table = self._table.bytes if self._table else 0  # which others may have, too
        return BLOCK_BYTES * len(self._blocks) + table

    @property
    def runs_inline(self) -> bool:
        if not self._is_small:
            return False
        if self._table and self._table.is_due(self._elements):
            return False
        call = self._looked_up[1] if self._looked_up else self._call
        return call is None or call.is_ready

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        results, call = (self._table and self._found()) or (None, self._call)
        if call:
            call(inputs, outputs[0], cancelled)
            return RAN
        arrays: list[Array] = [
            np.ndarray(self._sizes, dtype, buffer, 0, strides)  # which raises if the buffer ends too early
            for buffer, dtype, strides in zip([*inputs, *outputs], self._form.types, self._strides, strict=True)
        ]
        routine, arguments = (self._form.routine, self._arguments) if results is None else (by_take(results), ())
        if not self._blocks:
            if cancelled():
                raise Cancelled
            run_routine(routine, arguments, arrays[:-1], arrays[-1])
            return RAN

        def work(turn: int) -> None:
            *parts, part = [array[self._blocks[turn]] for array in arrays]
            run_routine(routine, arguments, parts, part)

        try:
            self._threads.share(len(self._blocks), work, cancelled)
        finally:
            arrays.clear()  # a helper in the executor's queue, cancelled or not, is not to keep the tensors
        return RAN

    def calls(self) -> Calls | None:
        form, loop = self._form, self._form.routine
        if not isinstance(loop, Loop):
            return None
        made = calls_of_loop(loop, self._arguments, self._sizes, self._strides, form.item_sizes, self._threads.most)
        return Calls([made])

    def _found(self) -> tuple[Array, LoopCall | None] | None:
        """The table if there is one, made if it is due, and what looks it up if that is a loop."""
        if self._looked_up is None and self._table:
            results = self._table.found(self._elements)
            if results is not None:
                self._looked_up = results, self._tables.call(results, self._sizes, self._strides, self._form.item_sizes)
        return self._looked_up


def _memory() -> tuple[int | None, int | None]:
    """Bytes of memory of the machine, and of those free to use; not what a container limits it to."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError):
        return None, None
