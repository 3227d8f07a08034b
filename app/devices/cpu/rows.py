"""Formulas with reductions, on the CPU, stage by stage: as loops over one group after another, or over groups side by
side, or as NumPy's calls, which are for groups of integers, for very long ones and where nothing is compiled.

For these, a group that fits into a block goes through all of them while it is in the cache, and what
one stage has computed for all elements, such as exponentials, the next ones find there. A longer one is cut into blocks
again: each stage goes over all of it, and computes anew what it needs.
"""

import math
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.calls import Calls, Of, Pointer, call_of_nest, part_of, pieces
from app.devices.cpu.llvm.kernels import Loop, LoopCode, RowLoops, Taken, layout_of
from app.devices.cpu.llvm.lanes import LANES
from app.devices.cpu.llvm.loop_calls import RowCall
from app.devices.cpu.routines import Routine, routine_of, run_routine
from app.devices.cpu.threads import BLOCK_ELEMENTS, RAN, Threads
from app.devices.device import ExecutionRecord
from app.devices.layout import BLOCK_BYTES, blocks, grouped
from app.formula.expansions import Ask
from app.formula.stages import FormulaStage, FormulaStages
from app.formula.structures import Structures
from app.formula.values import Position, Value, parts
from app.memory.addresses import whole_lines
from app.memory.arrays import Array, numpy_type
from app.memory.buffers import Buffer
from app.programs.dispatchable import Dispatchable
from app.programs.program import Map

Slices = tuple[slice, ...]

SHORT = 1 << 6
"""Groups of fewer elements are computed side by side, however they lie: a vector of one group's is mostly its ends, and
the sum of what is in it."""

LONGEST = 1 << 14
"""Elements of a group up to which lanes have memory for all of theirs: 8 MiB for a thread, of a softmax."""

LONGEST_ROW = 1 << 20
"""Elements of a group that one thread takes through all stages by a loop, with memory for as many of each stage that
keeps them. It has done so before eight threads have, stage by stage, by loops and NumPy's sums of parts."""

APART = 3
"""How many times as much it takes to copy what is apart, to compute it and to copy it back."""

FEW = 16
"""Fewer neighbours are no lanes of long groups: each has vectors of its own, of elements that are gathered for them."""


@dataclass(frozen=True, eq=False, slots=True)
class _Rows:
    """What is made of a formula with reductions, for all sizes and numbers: `loops`, or `stages`, of which `routines`
    has those of all and the one that computes the output after them."""

    loops: RowLoops | None
    stages: Sequence[FormulaStage[Routine]]
    routines: Sequence[Routine]
    positioned: bool
    """Whether the formula asks where elements are in their group."""
    compiled: set[Hashable] = field(default_factory=set)
    """Forms of tensors for which the loops among `routines` have been compiled."""

    @classmethod
    def of(
        cls, ask: Ask, made: Map, inputs: Sequence[str], loops: LoopCode | None, *, keep: bool, way: "_Way | None"
    ) -> "_Rows":
        """With `keep`, stages keep elements for later ones. They are one loop if there is a `way` for it."""
        positioned = any(isinstance(node, Position) for node in parts(made.expression))
        if loops and way:
            try:
                return cls(
                    RowLoops(ask, made.expression, inputs, made.stored, loops, way.along, way.taken), (), (), positioned
                )
            except LookupError:
                pass

        def lowered(node: Value, names: Sequence[str], stored: DataType) -> Routine:
            return routine_of(ask, node, names, stored, loops)

        cut = FormulaStages[Routine](inputs, keep, lowered)
        final = cut.whole(made.expression, made.stored)
        return cls(None, cut.stages, [*(stage.program for stage in cut.stages), final], positioned)


@dataclass(frozen=True, slots=True)
class _Way:
    """How loops take groups: their dimensions in this `order`, as `RowLoops` says."""

    order: tuple[int, ...]
    along: int
    taken: Taken

    @classmethod
    def of(
        cls, sizes: Sequence[int], axes: Sequence[int], places: Sequence[int], strides: Sequence[Sequence[int]]
    ) -> "_Way":
        """That of groups along these `axes`, along which elements have these `places` in their group, and each tensor
        these strides. Short ones are computed alike wherever they lie, so that their bits are the same."""
        others = [axis for axis in range(len(sizes)) if axis not in axes]
        width = math.prod([sizes[axis] for axis in axes])
        is_short, last = width < SHORT, len(sizes) - 1

        def price(axis: int) -> float:
            """What an element costs: it shares lanes with those that nobody looks at, and is reached sooner if those
            beside it lie next to it."""
            return -(-sizes[axis] // LANES) * LANES / sizes[axis] * (1 if axis == last else APART)

        # Of long ones that are beside each other elsewhere, each element would be read with a line of its own.
        beside = [axis for axis in others if is_short or (axis == last and sizes[axis] >= FEW and width <= LONGEST)]
        inner = sorted(axes, key=lambda axis: -places[axis])
        if not beside and not is_short:
            is_row = len(axes) == 1 and all(step[axes[0]] in (0, 1) for step in strides)
            return cls((*others, *inner), len(axes), "rows" if is_row else "apart")
        lane = [min(beside, key=price)] if beside else []
        outer = [axis for axis in others if axis not in lane]
        return cls((*outer, *lane, *inner), len(axes), "beside")


class NumpyRowKernel:
    """Implements `Kernel`, for an `output` whose formula reduces."""

    def __init__(
        self,
        compiled: Dispatchable,
        output: str,
        threads: Threads,
        loops: LoopCode | None,
        structures: Structures,
    ) -> None:
        made = compiled.program.maps[output]
        self._sizes, self._places, groups, steps = grouped(compiled, output)
        self._axes = tuple(axis for axis, step in enumerate(groups) if step == 0)
        width = math.prod([self._sizes[axis] for axis in self._axes])
        way = None
        if loops and width <= LONGEST_ROW:
            way = _Way.of(self._sizes, self._axes, self._places, steps)
            self._sizes, self._places, *steps = (
                [each[axis] for axis in way.order] for each in (self._sizes, self._places, *steps)
            )
            if len(self._axes) == len(self._sizes):  # one group: loops go over those along a dimension of their own
                self._sizes, self._places = [1, *self._sizes], [0, *self._places]
                steps = [[0, *step] for step in steps]
            self._axes = tuple(range(len(self._sizes) - len(self._axes), len(self._sizes)))
        types = [numpy_type(data_type) for data_type in compiled.element_types(output)]
        self._views = [
            (dtype, [each * dtype.itemsize for each in step]) for dtype, step in zip(types, steps, strict=True)
        ]
        names, numbers = list(compiled.program.inputs), compiled.numbers

        def rows_of(way: _Way | None, *, keep: bool) -> _Rows:
            key = made, loops is not None, keep, way and (way.along, way.taken)
            build = partial(_Rows.of, made=made, inputs=names, loops=loops, keep=keep, way=way)
            found: _Rows = structures.find(key, numbers, lambda questions: build(questions.ask))
            return found

        is_long = width > BLOCK_ELEMENTS
        rows = rows_of(way, keep=not is_long or way is not None)
        self._long = is_long and not rows.loops
        if self._long and way:
            rows = rows_of(None, keep=False)
        self._rows = rows
        self._loops = rows.loops
        self._arguments = [routine.arguments(numbers) for routine in rows.routines]
        self._call: RowCall | None = None
        bytes_of_steps, item_sizes = [step for _, step in self._views], [each.itemsize for each in types]
        if loops and rows.loops:
            self._loop_arguments = rows.loops.arguments(numbers)
            numbers_of_rows = self._loop_arguments, self._sizes, bytes_of_steps, item_sizes
            self._call = RowCall(rows.loops, *numbers_of_rows, loops.team)
        self._form = (len(self._sizes), self._axes, layout_of(bytes_of_steps, item_sizes))
        elements = compiled.outputs[output].elements
        self._elements = elements
        outer = [1 if axis in self._axes else size for axis, size in enumerate(self._sizes)]
        self._groups: Sequence[Slices] = ()
        if not self._call:
            self._groups = [self._whole(index) for index in blocks(outer, max(BLOCK_ELEMENTS // width, 1))]
        inner = [size if axis in self._axes else 1 for axis, size in enumerate(self._sizes)]
        self._parts = list(blocks(inner, BLOCK_ELEMENTS)) if self._long else []
        self._threads = threads

    @property
    def runs_inline(self) -> bool:
        if self._loops and self._call:
            return self._loops.is_small(self._elements) and self._call.is_ready
        routines = self._rows.routines
        if self._elements > BLOCK_ELEMENTS or not all(each.is_small(self._elements) for each in routines):
            return False
        return self._form in self._rows.compiled or not any(isinstance(each, Loop) for each in routines)

    @property
    def own_bytes(self) -> int:
        """What loops take for all elements of the groups that they are at; NumPy's calls have blocks of a few MiB."""
        return self._call.scratch_bytes if self._call else 0

    @property
    def kept_bytes(self) -> int:
        return BLOCK_BYTES * (len(self._groups) + len(self._parts))

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        if self._call:
            self._call(inputs, outputs[0], cancelled)
            return RAN
        arrays: list[Array] = [
            np.ndarray(self._sizes, dtype, buffer, 0, strides)
            for buffer, (dtype, strides) in zip([*inputs, *outputs], self._views, strict=True)
        ]
        try:
            if self._long:
                for group in self._groups:
                    self._dispatch_long([array[group] for array in arrays], cancelled)
            else:

                def work(turn: int) -> None:
                    *parts, part = [array[self._groups[turn]] for array in arrays]
                    self._run(parts, part)

                self._threads.share(len(self._groups), work, cancelled)
        finally:
            arrays.clear()  # as in NumpyKernel
        self._rows.compiled.add(self._form)
        return RAN

    def calls(self) -> Calls | None:
        loops = self._loops
        if not loops or not self._call:
            return None
        inner = self._sizes[len(self._sizes) - len(self._axes) :]
        outer, width = self._sizes[: len(self._sizes) - len(inner)], math.prod(inner)
        most = -(-self._elements // pieces(loops.work * self._elements, self._threads.most)) // width
        bytes_of_steps = [step for _, step in self._views]
        code = loops.codes_for(self._sizes, bytes_of_steps, [dtype.itemsize for dtype, _ in self._views]).plain
        used = loops.used(bytes_of_steps)
        kept = [width * each for each in loops.kept]
        made, own = [], 0
        for index in blocks([*outer, 1], max(most, loops.at_once)):
            part = part_of(index, [*outer, 1])[:-1]
            sizes = [*map(len, part), *inner]
            starts = [sum(along.start * step for along, step in zip(part, steps, strict=False)) for steps in used]
            addresses = array("q", [0] * len(kept))
            end = addresses + self._loop_arguments
            call = call_of_nest(code, sizes, used, starts, loops.reads, end, loops.work * math.prod(sizes))
            first = len(call.frame) - len(end)
            pointers = list(call.pointers)
            for number, size in enumerate(kept):
                pointers.append(Pointer(first + number, Of.OWN, offset=own))
                own += whole_lines(size)
            made.append(call._replace(pointers=pointers))
        return Calls([made], own)

    @np.errstate(all="ignore")
    def _run(self, inputs: list[Array], output: Array) -> None:
        """A block of whole groups."""
        known = [*inputs, self._position((slice(None),) * output.ndim)]
        of_groups = [1 if axis in self._axes else size for axis, size in enumerate(output.shape)]
        for stage, arguments in zip(self._rows.stages, self._arguments, strict=False):
            if stage.source is None:
                values: Array = np.empty(output.shape if stage.reduction else of_groups, stage.dtype)
                run_routine(stage.program, arguments, known, values)
            else:
                values = known[stage.source]
            known.append(
                _reduced(stage.reduction, values, known[len(inputs)], self._axes) if stage.reduction else values
            )
            if stage.elements:
                known.append(values)
        run_routine(self._rows.routines[-1], self._arguments[-1], known, output)

    def _dispatch_long(self, arrays: list[Array], cancelled: Callable[[], bool]) -> None:
        """One group of more elements than a block has."""
        *inputs, output = arrays
        results: list[Array] = []
        one = (1,) * output.ndim

        def known(part: Slices) -> list[Array]:
            return [*(array[part] for array in inputs), self._position(part), *results]

        for stage, arguments in zip(self._rows.stages, self._arguments, strict=False):
            if stage.reduction is None:
                values: Array = np.empty(one, stage.dtype)
                run_routine(stage.program, arguments, known((slice(0, 1),) * output.ndim), values)
                results.append(values)
                continue
            partial: list[Array | None] = [None] * len(self._parts)
            places: list[Array | None] = [None] * len(self._parts)

            @np.errstate(all="ignore")
            def work(
                turn: int,
                stage: FormulaStage[Routine] = stage,
                arguments: Any = arguments,
                partial: list[Any] = partial,
                places: list[Any] = places,
            ) -> None:
                part = self._slices(self._parts[turn])
                seen = known(part)
                values: Array = np.empty(output[part].shape, stage.dtype)
                run_routine(stage.program, arguments, seen, values)
                if stage.reduction == "first_maximum":
                    places[turn] = _reduced(stage.reduction, values, seen[len(inputs)], self._axes)
                    partial[turn] = _reduced("maximum", values, None, self._axes)
                else:
                    partial[turn] = _reduced(stage.reduction or "", values, None, self._axes)

            self._threads.share(len(self._parts), work, cancelled)
            gathered = np.concatenate([each.reshape(1) for each in partial if each is not None])
            at = (
                np.concatenate([each.reshape(1) for each in places if each is not None])
                if places[0] is not None
                else None
            )
            results.append(_reduced(stage.reduction, gathered, at, (0,)).reshape(one))

        def finish(turn: int) -> None:
            part = self._slices(self._parts[turn])
            run_routine(self._rows.routines[-1], self._arguments[-1], known(part), output[part])

        self._threads.share(len(self._parts), finish, cancelled)

    def _whole(self, index: Sequence[slice | int]) -> Slices:
        """An index of `blocks` over groups, as one that keeps all dimensions and takes groups whole."""
        return tuple(slice(None) if axis in self._axes else each for axis, each in enumerate(self._slices(index)))

    def _slices(self, index: Sequence[slice | int]) -> Slices:
        """An index of `blocks` as one that keeps all dimensions."""
        slices = [each if isinstance(each, slice) else slice(each, each + 1) for each in index]
        return (*slices, *[slice(None)] * (len(self._sizes) - len(slices)))

    def _position(self, part: Slices) -> Array:
        """Where the elements of `part` are in their groups, of a shape to broadcast."""
        total: Array = np.zeros((1,) * len(self._sizes), np.int64)
        if self._rows.positioned:
            for axis in self._axes:
                shape = [1] * len(self._sizes)
                shape[axis] = -1
                along = range(self._sizes[axis])[part[axis]]
                total = total + (np.arange(along.start, along.stop) * self._places[axis]).reshape(shape)
        return total


def _reduced(reduction: str, values: Array, places: Array | None, axes: tuple[int, ...]) -> Array:
    """One value for each group, in as many dimensions."""
    match reduction:
        case "maximum":
            return np.asarray(np.maximum.reduce(values, axis=axes, keepdims=True))
        case "sum":
            return np.asarray(np.add.reduce(values, axis=axes, dtype=np.float64, keepdims=True))
        case "first_maximum":
            assert places is not None
            if len(axes) == 1 and np.all(np.diff(places.reshape(-1)) > 0):  # NumPy's, too, is the first NaN if any is
                first = np.argmax(values, axis=axes[0], keepdims=True)
                return np.asarray(np.take(places.reshape(-1), first))
            largest = np.maximum.reduce(values, axis=axes, keepdims=True)
            is_largest = (values == largest) | (np.isnan(values) & np.isnan(largest))
            none = np.iinfo(np.int64).max
            return np.asarray(np.minimum.reduce(np.where(is_largest, places, none), axis=axes, keepdims=True))
    raise ValueError(f"{reduction} is no reduction")
