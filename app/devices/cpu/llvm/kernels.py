"""Loops compiled for this processor, in the place of NumPy's calls where they are quicker."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.llvm import nests
from app.devices.cpu.llvm.compiler import Compiler, Function
from app.devices.cpu.llvm.lowering import Element, bytes_of, lower, lower_part
from app.devices.cpu.llvm.nests import Step
from app.formula.stages import Stages
from app.formula.values import Value
from app.memory.addresses import address_of
from app.memory.arrays import Array
from app.memory.buffers import Buffer

OnBuffers = Callable[[Sequence[Buffer], Buffer], None]
"""Computes an output from inputs, each from its buffer's beginning."""

Layout = tuple[Step, ...]
"""The steps of all arrays along the innermost dimension, the output's last."""

WORTH_A_BLOCK, LARGEST_BLOCK = 1 << 25, 1 << 26
"""The least and the most work of a block, in bytes and instructions. With less, a second thread is woken too late and
what Python does between two blocks, out of the cache, tells; with more, a dispatch is not soon cancelled."""

BRIEF = 1 << 27
"""Work that is done in 2 ms. On a virtual machine whose processors sleep, another thread is hardly sooner awake."""


class _Loops:
    """What the loops of one formula need besides their arrays, and what they take."""

    def __init__(
        self,
        elements: Sequence[Element],
        inputs: Sequence[str],
        compiler: Compiler,
        source: Callable[[Sequence[str], int, Layout], str],
    ) -> None:
        """`source` gives the nest over the arrays of some inputs, those that are read, and the output."""
        self._numbers = [n for n, name in enumerate(inputs) if any(name in element.inputs for element in elements)]
        self._read = [inputs[number] for number in self._numbers]
        self._work = _work_of(elements)
        values = [value for element in elements for value in element.parameters]
        self._attributes = b"".join(value.tobytes().ljust(8, b"\0") for value in values)
        self._compiler = compiler
        self._source = source
        self._calls: dict[tuple[Any, ...], _Call] = {}

    def block(self, elements: int, threads: int) -> int:
        """How many of `elements` to compute at a time, on at most so many threads."""
        total = elements * self._work
        pieces = total // WORTH_A_BLOCK
        even = pieces // threads * threads or pieces  # as many for each thread
        wanted = min(even, 2 * threads) if threads > 1 else 1
        return -(-elements // max(total // LARGEST_BLOCK, wanted, 1))

    def is_brief(self, elements: int) -> bool:
        """Whether so many are computed, now, in less time than it takes to hand them to another thread."""
        return bool(self._calls) and elements * self._work < BRIEF

    def _run(self, inputs: Sequence[Array], output: Array, numbers: Sequence[int] = ()) -> None:
        """Compute one block. `numbers` are what the nest's frame has after the arrays."""
        arrays = self._used(inputs, output)
        call = self._call(arrays)
        frame = call.start + array("q", numbers) + array("q", self._attributes)
        for place, each in zip(call.places, arrays, strict=True):
            frame[place] = each.ctypes.data
        call.function(frame.buffer_info()[0])

    def _used(self, inputs: Sequence[Array], output: Array) -> list[Array]:
        """What the nest is given: those that it reads, and the output."""
        return [*(inputs[number] for number in self._numbers), output]

    def _call(self, arrays: Sequence[Array]) -> "_Call":
        form = tuple([(each.shape, each.strides) for each in arrays])
        call = self._calls.get(form)  # a dispatch has few: that of its blocks, and of the last ones
        if call is None:
            start, places, layout = _start(arrays)
            function = self._compiler.function(self._source(self._read, arrays[-1].ndim, layout))
            call = self._calls[form] = _Call(function, start, places)
        return call


class Loop(_Loops):
    """Implements `Program`: the loops of one formula, for arrays of any layout. Raises LookupError, as `lower` does."""

    registers: Sequence[np.dtype[Any]] = ()

    def __init__(self, expression: Value, inputs: Sequence[str], stored: DataType, compiler: Compiler) -> None:
        element = lower(expression, stored)
        super().__init__(
            [*element.kept, element],
            inputs,
            compiler,
            lambda read, dimensions, layout: nests.elements(element, read, dimensions, layout),
        )

    def run(self, inputs: Sequence[Array], output: Array, registers: Sequence[Array]) -> None:
        """Compute one block. Inputs may have dimensions of size 1 where the output has others."""
        self._run(inputs, output)

    def on_buffers(self, inputs: Sequence[Array], output: Array) -> OnBuffers:
        """What `run` does with these, for any buffers that such arrays would lie in.

        It makes no arrays, which would take longer than to compute a thousand elements.
        """
        function, start, (*read, written) = self._call(self._used(inputs, output))
        unaddressed = start + array("q", self._attributes)
        numbered = list(zip(self._numbers, read, strict=True))

        def run(inputs: Sequence[Buffer], output: Buffer) -> None:
            frame = unaddressed[:]
            for number, place in numbered:
                frame[place] = address_of(inputs[number])
            frame[written] = address_of(output)
            function(frame.buffer_info()[0])

        return run


class RowLoops(_Loops):
    """The same of a formula with reductions, for groups along the innermost dimension."""

    def __init__(self, expression: Value, inputs: Sequence[str], stored: DataType, compiler: Compiler) -> None:
        elements: list[Element] = []

        def lowered(node: Value, names: Sequence[str], stored: DataType) -> Element:
            elements.append(lower_part(node, stored, f"element{len(elements)}"))
            return elements[-1]

        cut = Stages(inputs, True, lowered)
        final = cut.whole(expression, stored)
        if any(stage.reduction and stage.program.output not in ("float", "double") for stage in cut.stages):
            raise LookupError("rows of integers are reduced by NumPy")
        self._kept = [stage.dtype for stage in cut.stages if stage.elements]
        super().__init__(
            elements,
            inputs,
            compiler,
            lambda read, dimensions, layout: nests.rows(cut.stages, final, read, dimensions, layout),
        )

    def run(self, inputs: Sequence[Array], output: Array, position_step: int) -> None:
        """Compute one block of whole groups, in which positions go up by `position_step`."""
        kept = [np.empty(output.shape[-1], dtype) for dtype in self._kept]
        self._run(inputs, output, [position_step, *(each.ctypes.data for each in kept)])


class _Call(NamedTuple):
    """What a nest is called with for arrays of one form."""

    function: Function
    start: "array[int]"
    """What all frames begin with, but for the arrays' addresses."""
    places: Sequence[int]
    """Of these addresses in the frame."""


def _start(arrays: Sequence[Array]) -> tuple["array[int]", Sequence[int], Layout]:
    """What frames begin with, where in them the arrays' addresses go, and how the arrays, the output last, go along the
    innermost dimension."""
    shape = arrays[-1].shape
    start = array("q", shape)
    places: list[int] = []
    layout: list[Step] = []
    for each in arrays:
        strides = each.strides
        if each.shape != shape:
            strides = tuple(0 if size == 1 else stride for size, stride in zip(each.shape, strides, strict=True))
        places.append(len(start))
        start.append(0)
        start.extend(strides)
        layout.append("packed" if strides[-1] == each.itemsize else "same" if strides[-1] == 0 else "strided")
    return start, places, tuple(layout)


def _work_of(elements: Sequence[Element]) -> int:
    """What it takes to compute one of each, in bytes and instructions."""
    types = [type_ for element in elements for type_ in (*element.inputs.values(), element.output)]
    return sum(map(bytes_of, types)) + sum(len(element.body) for element in elements)
