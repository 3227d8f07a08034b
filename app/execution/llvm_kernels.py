"""Loops compiled for this processor, in the place of NumPy's calls where they are quicker."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.execution import llvm_loops
from app.execution.llvm_compiler import Compiler, Function
from app.execution.llvm_loops import Step
from app.execution.llvm_lowering import Element, bytes_of, lower
from app.execution.numpy_lowering import Array
from app.execution.stages import Stages
from app.formula.values import Value

Layout = tuple[Step, ...]
"""The steps of all operands along the innermost dimension, the output's last."""


WORTH_A_BLOCK, LARGEST_BLOCK = 1 << 24, 1 << 26
"""The least and the most work of a block, in bytes and instructions. With less, a second thread is woken too late and
what Python does between two blocks, out of the cache, tells; with more, a dispatch is not soon cancelled."""


class Loop:
    """Implements `Program`: the loops of one formula, for arrays of any layout. Raises LookupError, as `lower` does."""

    registers: Sequence[np.dtype[Any]] = ()

    def __init__(self, expression: Value, inputs: Sequence[str], stored: DataType, compiler: Compiler) -> None:
        element = lower(expression, stored)
        self._work = _work_of([element])
        self._read = [list(inputs).index(name) for name in element.inputs]
        self._attributes = _packed(element)
        self._functions = _Functions(
            compiler, lambda dimensions, layout: llvm_loops.elements(element, dimensions, layout)
        )

    def block(self, elements: int, threads: int) -> int:
        """How many of `elements` to compute at a time, on at most so many threads."""
        return _block(elements, self._work, threads)

    def is_brief(self, elements: int) -> bool:
        """Whether so many are computed in less time than it takes to hand them to another thread."""
        return elements * self._work < 2 * WORTH_A_BLOCK

    def run(self, inputs: Sequence[Array], output: Array, registers: Sequence[Array]) -> None:
        """Compute one block. Inputs may have dimensions of size 1 where the output has others."""
        frame, layout = _frame([*(inputs[number] for number in self._read), output])
        frame.frombytes(self._attributes)
        self._functions.get(output.ndim, layout)(frame.buffer_info()[0])


class RowLoops:
    """The same of a formula with reductions, for groups along the innermost dimension."""

    def __init__(self, expression: Value, inputs: Sequence[str], stored: DataType, compiler: Compiler) -> None:
        elements: list[Element] = []

        def lowered(node: Value, names: Sequence[str], stored: DataType) -> Element:
            elements.append(lower(node, stored, f"element{len(elements)}"))
            return elements[-1]

        stages = Stages(inputs, True, lowered)
        final = stages.whole(expression, stored)
        self._work = _work_of(elements)
        self._read = [name for name in inputs if any(name in element.inputs for element in elements)]
        self._numbers = [list(inputs).index(name) for name in self._read]
        self._kept = [stage.dtype for stage in stages.stages if stage.elements]
        self._attributes = b"".join(map(_packed, elements))
        self._functions = _Functions(
            compiler,
            lambda dimensions, layout: llvm_loops.rows(stages.stages, final, self._read, dimensions, layout),
        )

    def block(self, elements: int, threads: int) -> int:
        """How many of `elements` to compute at a time, at least a group, on at most so many threads."""
        return _block(elements, self._work, threads)

    def is_brief(self, elements: int) -> bool:
        """Whether so many are computed in less time than it takes to hand them to another thread."""
        return elements * self._work < 2 * WORTH_A_BLOCK

    def run(self, inputs: Sequence[Array], output: Array, position_step: int) -> None:
        """Compute one block of whole groups, in which positions go up by `position_step`."""
        kept = [np.empty(output.shape[-1], dtype) for dtype in self._kept]
        frame, layout = _frame([*(inputs[number] for number in self._numbers), output])
        frame.append(position_step)
        frame.extend(each.__array_interface__["data"][0] for each in kept)
        frame.frombytes(self._attributes)
        self._functions.get(output.ndim, layout)(frame.buffer_info()[0])


class _Functions:
    """The compiled functions of one formula, by what they have to be compiled for."""

    def __init__(self, compiler: Compiler, source: Callable[[int, Layout], str]) -> None:
        self._compiler = compiler
        self._source = source
        self._known: dict[tuple[int, Layout], Function] = {}

    def get(self, dimensions: int, layout: Layout) -> Function:
        """The one for arrays of so many dimensions and this layout."""
        function = self._known.get((dimensions, layout))
        if function is None:
            function = self._compiler.function(self._source(dimensions, layout))
            self._known[dimensions, layout] = function
        return function


def _frame(arrays: Sequence[Array]) -> tuple["array[int]", Layout]:
    """What all frames begin with, and how the arrays, the output last, go along the innermost dimension."""
    shape = arrays[-1].shape
    frame = array("q", shape)
    layout: list[Step] = []
    for each in arrays:
        strides = each.strides
        if each.shape != shape:
            strides = tuple(0 if size == 1 else stride for size, stride in zip(each.shape, strides, strict=True))
        frame.append(each.__array_interface__["data"][0])
        frame.extend(strides)
        layout.append("packed" if strides[-1] == each.itemsize else "same" if strides[-1] == 0 else "strided")
    return frame, tuple(layout)


def _packed(element: Element) -> bytes:
    """The attributes, each in the lowest bytes of eight."""
    return b"".join(value.tobytes().ljust(8, b"\0") for value in element.parameters)


def _work_of(elements: Sequence[Element]) -> int:
    """What it takes to compute one of each, in bytes and instructions."""
    types = [type_ for element in elements for type_ in (*element.inputs.values(), element.output)]
    return sum(map(bytes_of, types)) + sum(len(element.body) for element in elements)


def _block(elements: int, work: int, threads: int) -> int:
    total = elements * work
    wanted = min(total // WORTH_A_BLOCK, 2 * threads if threads > 1 else 1)
    return -(-elements // max(total // LARGEST_BLOCK, wanted, 1))
