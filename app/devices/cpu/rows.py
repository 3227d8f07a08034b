"""Formulas with reductions, on the CPU, stage by stage: as loops over one group after another, or as NumPy's calls.

For these, a group that fits into a block goes through all of them while it is in the cache, and what
one stage has computed for all elements, such as exponentials, the next ones find there. A longer one is cut into blocks
again: each stage goes over all of it, and computes anew what it needs.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import RowLoops
from app.devices.cpu.programs import Program, program_of, run_program
from app.devices.cpu.threads import BLOCK_ELEMENTS, RAN, Threads
from app.devices.device import Ran
from app.devices.layout import blocks, collapse, packed_along
from app.formula.stages import Stage, Stages
from app.formula.values import Position, Value, parts
from app.memory.arrays import Array, numpy_type
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator

Slices = tuple[slice, ...]


class NumpyRowKernel:
    """Implements `Kernel`, for an `output` whose formula reduces."""

    def __init__(self, compiled: CompiledOperator, output: str, threads: Threads, compiler: Compiler | None) -> None:
        sizes, made = compiled.outputs[output].Sizes, compiled.program.maps[output]
        # Two more layouts see to it that elements keep their places in groups, and that groups stay apart.
        places = packed_along(sizes, [axis in made.axes for axis in range(len(sizes))])
        groups = packed_along(sizes, [axis not in made.axes for axis in range(len(sizes))])
        self._sizes, strides = collapse(sizes, [places, groups, *compiled.layouts(output)])
        self._places, groups, *steps = strides
        self._axes = tuple(axis for axis, step in enumerate(groups) if step == 0)
        types = [numpy_type(data_type) for data_type in compiled.element_types(output)]
        self._views = [
            (dtype, [each * dtype.itemsize for each in step]) for dtype, step in zip(types, steps, strict=True)
        ]

        width = int(np.prod([self._sizes[axis] for axis in self._axes]))
        self._long = width > BLOCK_ELEMENTS
        names, stored = list(compiled.inputs), compiled.stored_types[output]
        self._loops = self._loops_of(made.expression, names, stored, compiler) if compiler else None
        if self._loops is None:
            stages = Stages[Program](names, not self._long, functools.partial(program_of, compiler=compiler))
            self._final = stages.whole(made.expression, stored)
            self._stages = stages.stages
        elements = compiled.outputs[output].elements
        self._elements = elements
        self._positioned = any(isinstance(node, Position) for node in parts(made.expression))
        outer = [1 if axis in self._axes else size for axis, size in enumerate(self._sizes)]
        most = self._loops.block(elements, threads.most) if self._loops else BLOCK_ELEMENTS
        self._groups = [self._whole(index) for index in blocks(outer, max(most // width, 1))]
        inner = [size if axis in self._axes else 1 for axis, size in enumerate(self._sizes)]
        self._parts = list(blocks(inner, BLOCK_ELEMENTS)) if self._long else []
        self._threads = threads

    @property
    def runs_inline(self) -> bool:
        if self._loops:
            return self._loops.is_brief(self._elements)
        programs = [*(stage.program for stage in self._stages), self._final]
        return self._elements <= BLOCK_ELEMENTS and all(each.is_brief(self._elements) for each in programs)

    def dispatch(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]) -> Ran:
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
                    if self._loops:
                        self._loops.run(parts, part, self._places[-1])
                    else:
                        self._run(parts, part)

                self._threads.share(len(self._groups), work, cancelled)
        finally:
            arrays.clear()  # as in NumpyKernel
        return RAN

    def _loops_of(
        self, expression: Value, inputs: Sequence[str], stored: DataType, compiler: Compiler
    ) -> RowLoops | None:
        """Loops that take group after group through all stages, if groups lie along the innermost dimension."""
        if self._long or self._axes != (len(self._sizes) - 1,):
            return None
        try:
            return RowLoops(expression, inputs, stored, compiler)
        except LookupError:
            return None

    @np.errstate(all="ignore")
    def _run(self, inputs: list[Array], output: Array) -> None:
        """A block of whole groups."""
        known = [*inputs, self._position((slice(None),) * output.ndim)]
        of_groups = [1 if axis in self._axes else size for axis, size in enumerate(output.shape)]
        for stage in self._stages:
            if stage.source is None:
                values: Array = np.empty(output.shape if stage.reduction else of_groups, stage.dtype)
                run_program(stage.program, known, values)
            else:
                values = known[stage.source]
            known.append(
                _reduced(stage.reduction, values, known[len(inputs)], self._axes) if stage.reduction else values
            )
            if stage.elements:
                known.append(values)
        run_program(self._final, known, output)

    def _dispatch_long(self, arrays: list[Array], cancelled: Callable[[], bool]) -> None:
        """One group of more elements than a block has."""
        *inputs, output = arrays
        results: list[Array] = []
        one = (1,) * output.ndim

        def known(part: Slices) -> list[Array]:
            return [*(array[part] for array in inputs), self._position(part), *results]

        for stage in self._stages:
            if stage.reduction is None:
                values: Array = np.empty(one, stage.dtype)
                run_program(stage.program, known((slice(0, 1),) * output.ndim), values)
                results.append(values)
                continue
            partial: list[Array | None] = [None] * len(self._parts)
            places: list[Array | None] = [None] * len(self._parts)

            @np.errstate(all="ignore")
            def work(
                turn: int, stage: Stage[Program] = stage, partial: list[Any] = partial, places: list[Any] = places
            ) -> None:
                part = self._slices(self._parts[turn])
                seen = known(part)
                values: Array = np.empty(output[part].shape, stage.dtype)
                run_program(stage.program, seen, values)
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
            run_program(self._final, known(part), output[part])

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
        if self._positioned:
            for axis in self._axes:
                shape = [1] * len(self._sizes)
                shape[axis] = -1
                total = total + (np.arange(self._sizes[axis])[part[axis]] * self._places[axis]).reshape(shape)
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
