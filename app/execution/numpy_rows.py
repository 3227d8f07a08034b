"""Formulas with reductions, on NumPy: one value for each group of elements, then the elements by it.

A formula is cut into stages. A group that fits into a block goes through all of them while it is in the cache, and what
one stage has computed for all elements, such as exponentials, the next ones find there. A longer one is cut into blocks
again: each stage goes over all of it, and computes anew what it needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.buffers import Buffer
from app.contract.constants import DataType
from app.execution.device import Ran
from app.execution.layout import blocks, collapse
from app.execution.numpy_lowering import Array, Program, lower, numpy_type
from app.execution.numpy_threads import BLOCK_ELEMENTS, RAN, Threads, run_program
from app.formula.values import (
    FLOAT64,
    Constant,
    Input,
    Operation,
    Parameter,
    Position,
    Reduction,
    Value,
    cast,
    parts,
)
from app.operators.compiled import CompiledOperator

POSITION = "(position)"
"""The name under which programs find where elements are in their group."""

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A step towards the values `result`: of each element, then reduced to one by `reduction`, or of each group.

    `elements` is the name under which later stages find the elements' values, if they are kept.
    """

    program: Program
    source: int | None
    """The input that has the values already, by its place."""
    dtype: np.dtype[Any]
    result: str
    reduction: str | None
    elements: str | None


class _Stages:
    """Cuts a formula into stages. With `keep`, what is computed of all elements for a reduction is not again later."""

    def __init__(self, inputs: Sequence[str], keep: bool) -> None:
        self.stages: list[Stage] = []
        self._inputs = [*inputs, POSITION]
        self._keep = keep
        self._known: dict[Value, Value] = {}

    def cut(self, node: Value) -> Value:
        """`node` over inputs and the stages' results."""
        if node not in self._known:
            self._known[node] = self._cut(node)
        return self._known[node]

    def lower(self, node: Value, stored: DataType) -> Program:
        """The program of what `cut` has made."""
        return lower(node, self._names, stored)

    @property
    def _names(self) -> list[str]:
        made = [name for stage in self.stages for name in (stage.result, stage.elements) if name]
        return [*self._inputs, *made]

    def _cut(self, node: Value) -> Value:
        match node:
            case Position():
                return Input(node.type, POSITION, _stored(node))
            case Reduction():
                return self._reduce(node)
            case Operation() if _is_of_groups(node):
                return self._stage(self._with_reductions(node), None)
            case Operation():
                return Operation(node.type, node.name, tuple(map(self.cut, node.arguments)))
        return node

    def _with_reductions(self, node: Value) -> Value:
        """`node`, which is the same for all of a group, over the results of reductions."""
        if isinstance(node, Operation):
            return Operation(node.type, node.name, tuple(map(self._with_reductions, node.arguments)))
        return self.cut(node)

    def _reduce(self, node: Reduction) -> Value:
        argument = self.cut(node.argument)
        elements = f"(elements {len(self.stages)})" if self._keep and isinstance(argument, Operation) else None
        if node.name == "sum":  # partial sums are added in float64
            made = cast(self._stage(argument, node.name, elements, FLOAT64), node.type)
        else:
            made = self._stage(argument, node.name, elements, node.type)
        if elements:
            self._known[node.argument] = Input(argument.type, elements, _stored(argument))
        return made

    def _stage(
        self, node: Value, reduction: str | None, elements: str | None = None, type_: str | None = None
    ) -> Value:
        program = self.lower(node, _stored(node))
        result = f"(result {len(self.stages)})"
        source = self._names.index(node.name) if isinstance(node, Input) and node.stored == _stored(node) else None
        self.stages.append(Stage(program, source, np.dtype(node.type), result, reduction, elements))
        made = type_ or node.type
        return Input(made, result, DataType(made.upper()))


def _stored(node: Value) -> DataType:
    return DataType(node.type.upper())


def _is_of_groups(node: Value) -> bool:
    """Whether `node` is the same for all elements of a group."""
    match node:
        case Reduction() | Constant() | Parameter():
            return True
        case Operation():
            return all(map(_is_of_groups, node.arguments))
    return False


class NumpyRowKernel:
    """Implements `Kernel`, for operators that reduce."""

    def __init__(self, compiled: CompiledOperator, threads: Threads) -> None:
        sizes = compiled.output.Sizes
        # Two more layouts see to it that elements keep their places in groups, and that groups stay apart.
        places = packed_along(sizes, [axis in compiled.axes for axis in range(len(sizes))])
        groups = packed_along(sizes, [axis not in compiled.axes for axis in range(len(sizes))])
        self._sizes, strides = collapse(sizes, [places, groups, *compiled.layouts()])
        self._places, groups, *steps = strides
        self._axes = tuple(axis for axis, step in enumerate(groups) if step == 0)
        types = [numpy_type(data_type) for data_type in compiled.element_types()]
        self._views = [
            (dtype, [each * dtype.itemsize for each in step]) for dtype, step in zip(types, steps, strict=True)
        ]

        width = int(np.prod([self._sizes[axis] for axis in self._axes]))
        self._long = width > BLOCK_ELEMENTS
        stages = _Stages(list(compiled.inputs), keep=not self._long)
        for node in parts(compiled.expression):
            if isinstance(node, Reduction):  # first, so that what they keep is there for all that comes after
                stages.cut(node)
        final = stages.cut(compiled.expression)
        self._final = stages.lower(final, compiled.stored_types[compiled.output_name])
        self._stages = stages.stages
        self._positioned = any(isinstance(node, Position) for node in parts(compiled.expression))
        outer = [1 if axis in self._axes else size for axis, size in enumerate(self._sizes)]
        self._groups = [self._whole(index) for index in blocks(outer, max(BLOCK_ELEMENTS // width, 1))]
        inner = [size if axis in self._axes else 1 for axis, size in enumerate(self._sizes)]
        self._parts = list(blocks(inner, BLOCK_ELEMENTS)) if self._long else []
        self._threads = threads

    def dispatch(self, inputs: Sequence[Buffer], output: Buffer, cancelled: Callable[[], bool]) -> Ran:
        arrays: list[Array] = [
            np.ndarray(self._sizes, dtype, buffer, 0, strides)
            for buffer, (dtype, strides) in zip([*inputs, output], self._views, strict=True)
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
        return RAN

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

            def work(turn: int, stage: Stage = stage, partial: list[Any] = partial, places: list[Any] = places) -> None:
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


def packed_along(sizes: Sequence[int], chosen: Sequence[bool]) -> list[int]:
    """Row-major strides of the chosen dimensions, 0 for the others."""
    strides = [0] * len(sizes)
    step = 1
    for axis in range(len(sizes) - 1, -1, -1):
        if chosen[axis]:
            strides[axis] = step
            step *= sizes[axis]
    return strides


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
