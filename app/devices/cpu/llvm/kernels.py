"""Loops compiled for this processor, in the place of NumPy's calls where they are quicker."""

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal, TypeAlias

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.llvm import nests
from app.devices.cpu.llvm.calling import UNREAD
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.frames import Arguments, start_of_frame
from app.devices.cpu.llvm.lanes import LANES, lanes
from app.devices.cpu.llvm.lowering import Element, lower, lower_part
from app.devices.cpu.llvm.math.functions import EXPANSIONS, ROWS_FOR_HALF
from app.devices.cpu.llvm.math.shares import in_shares
from app.devices.cpu.llvm.nest import Access
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.llvm.types import bytes_of
from app.devices.cpu.llvm.vectors import LOOK_DECLARATION, look_call
from app.formula.expansions import Ask
from app.formula.stages import FormulaStages
from app.formula.structures import Structures
from app.formula.values import INT64, Parameter, Value
from app.memory.addresses import address_of
from app.memory.arrays import Array
from app.memory.buffers import Buffer

Accesses = tuple[Access, ...]
"""The steps of all arrays along the innermost dimension, the output's last."""

Taken: TypeAlias = Literal["rows", "apart", "beside"]
"""How groups are."""

STREAMED = 3 << 24
"""Bytes of an output and all that is read for it, of which the cache would not have the output any more when all is
computed: stores past it spare reading what they overwrite."""

HEAVY = 300
"""The work of an element from which memory is nothing that a loop waits for, and to compile it twice takes long."""

SHORT_ROW = 1 << 10
"""Bytes of a row that are mostly its ends, for which there is no such store."""

SMALL_WORK = 1 << 27
"""Work that is done in 2 ms. On a virtual machine whose processors sleep, another thread is hardly sooner awake."""

SLOW = 8
"""The further work of a division or a root, with which a pass over what is in the cache takes twice as long or more."""

LOOKED_UP = 64
"""The work of an element that is looked up by 16 bits, most of which is to wait for the cache."""

LOOKED_UP_BYTE = 12
"""The same by 8, in the first cache."""


class LoopCode:
    """The code of loops: each source is written once. A `team` of so many threads runs it."""

    def __init__(self, compiler: Compiler, structures: Structures, threads: int = 1) -> None:
        self.team = Team(compiler, threads)
        self._compiler = compiler
        self._structures = structures

    def of(self, loops: "_Loops", dimensions: int, layout: Accesses, streams: bool = False) -> Code:
        """That of `loops` over so many dimensions, whose output goes past the cache if it `streams`."""
        return self._structures.find(
            (loops, dimensions, layout, streams),
            {},
            lambda _: Code(self._compiler, loops.write(dimensions, layout, streams)),
        )

    def look_up(self, size: int, bits: int) -> "LookUp":
        """What looks results of `size` bytes up by so many bits."""
        return self._structures.find((LookUp, self, size, bits), {}, lambda _: LookUp(size, bits, self))


@dataclass(frozen=True, slots=True)
class Codes:
    """That of a nest, and that of one whose output goes past the cache, if it is large enough."""

    plain: Code
    streaming: Code | None

    @property
    def are_compiled(self) -> bool:
        return self.plain.is_compiled and (self.streaming is None or self.streaming.is_compiled)

    def choose(self, inputs: Sequence[Buffer], reads: Iterable[int], written: Buffer) -> Code:
        """By where tensors are, of which those inputs are read: an output that takes the place of one is in the cache
        already."""
        if self.streaming is None:
            return self.plain
        place = address_of(written)
        return self.plain if any(address_of(inputs[number]) == place for number in reads) else self.streaming


@dataclass(slots=True)
class _Way:
    """What follows from the strides and the bytes of an element that all tensors have, in bytes, the output's last."""

    strides: Sequence[Sequence[int]]
    item_sizes: Sequence[int]
    layout: Accesses
    moved: int
    """How many bytes of an element are read and written."""
    codes: Codes
    brief: Codes
    """What is not worth several threads."""
    steps: "array[int]"
    """What a frame has behind the sizes, and where in it the buffers' addresses go."""
    places: list[int]


class _Loops:
    """What the loops of one formula need besides their arrays, and what they take. It knows no sizes and no numbers."""

    innermost = -1
    """The dimension along which vectors are."""

    def __init__(
        self,
        elements: Sequence[Element],
        inputs: Sequence[str],
        code: LoopCode,
        source: Callable[[Sequence[str], int, Accesses, bool], str],
    ) -> None:
        """`source` gives the nest over the arrays of some inputs, those that are read, and the output."""
        self.reads = [n for n, name in enumerate(inputs) if any(name in element.inputs for element in elements)]
        self.used = _picked(self.reads, len(inputs))
        """Of something that each tensor has, the output's last, that of those which the nest is given: what it reads,
        and the output."""
        self.vector_floats = code.team.compiler.vector_floats
        """How many float32 a register has."""
        self._code = code
        self._inputs = len(inputs)
        self._read_names = [inputs[number] for number in self.reads]
        self.work = work_of([each for each in elements if not each.quick])
        """What it takes to compute an element, in bytes and instructions."""
        self.of_float64 = sum(each.of_float64 for each in elements)
        """How many of these instructions are of float64."""
        self.arguments = Arguments([value for element in elements for value in element.parameters]).of
        """The end of a frame, by the numbers of a request."""
        self._source = source
        self._latest: _Way | None = None

    def write(self, dimensions: int, layout: Accesses, streams: bool) -> str:
        """The source of the nest."""
        return self._source(self._read_names, dimensions, layout, streams)

    def is_small(self, elements: int) -> bool:
        """Whether so many are computed in less time than it takes to hand them to another thread, by compiled code."""
        return elements * self.work < SMALL_WORK

    def way(self, strides: Sequence[Sequence[int]], item_sizes: Sequence[int]) -> _Way:
        """That of tensors with these strides in bytes, the output's last. Few differ from those before them."""
        known = self._latest
        if known is None or known.strides != strides or known.item_sizes != item_sizes:
            known = self._latest = self._way(strides, item_sizes, known)
        return known

    def _way(self, strides: Sequence[Sequence[int]], item_sizes: Sequence[int], other: _Way | None) -> _Way:
        dimensions, items, used = len(strides[-1]), self.used(item_sizes), self.used(strides)
        layout = self.layout(used, items)
        if other and (other.layout, len(other.strides[-1])) == (layout, dimensions):
            codes, brief = other.codes, other.brief
        else:
            codes = Codes(self._code.of(self, dimensions, layout), None)
            brief = Codes(codes.plain.in_halves(), None)
        moved = sum(size for size, step in zip(items, layout, strict=True) if step != "same")
        frame, places = start_of_frame([0] * dimensions, used)
        return _Way(strides, item_sizes, layout, moved, codes, brief, frame[dimensions:], self.places(places))

    def layout(self, strides: Sequence[Sequence[int]], item_sizes: Sequence[int]) -> Accesses:
        """Of arrays with these strides in bytes."""
        return layout_of(strides, item_sizes, self.innermost)

    def places(self, used: Sequence[int]) -> list[int]:
        """For each buffer where in a frame its address goes, from where those go that are `used`."""
        *read, written = used
        known = dict(zip(self.reads, read, strict=True))
        return [*[known.get(number, UNREAD) for number in range(self._inputs)], written]

    def codes_for(self, sizes: Sequence[int], strides: Sequence[Sequence[int]], item_sizes: Sequence[int]) -> "Codes":
        """Those for blocks whose tensors have these strides in bytes, the output's last, of tensors of such `sizes`."""
        way = self.way(strides, item_sizes)
        size, row = way.moved * math.prod(sizes), item_sizes[-1] * sizes[-1]
        if way.layout[-1] != "packed" or size < STREAMED or row < SHORT_ROW or self.work >= HEAVY:
            return way.codes
        return Codes(way.codes.plain, self._code.of(self, len(strides[-1]), way.layout, True))

    def _run(
        self, arguments: "array[int]", inputs: Sequence[Array], output: Array, numbers: Sequence[int] = ()
    ) -> None:
        """Compute one block. `numbers` are what the nest's frame has after the arrays."""
        arrays = self.used([*inputs, output])
        shape = output.shape
        strides = [_broadcast(each.strides, each.shape) if each.shape != shape else each.strides for each in arrays]
        frame, places = start_of_frame(shape, strides)
        code = self._code.of(self, len(shape), layout_of(strides, [each.itemsize for each in arrays]))
        for place, each in zip(places, arrays, strict=True):
            frame[place] = each.ctypes.data
        frame += array("q", numbers) + arguments
        code(frame)


class Loop(_Loops):
    """Implements `Routine`: the loops of one formula, for arrays of any layout. Raises LookupError, as `lower` does."""

    registers: Sequence[np.dtype[Any]] = ()

    def __init__(self, ask: Ask, expression: Value, inputs: Sequence[str], stored: DataType, code: LoopCode) -> None:
        element = lower(ask, expression, stored)
        super().__init__(
            element.every,
            inputs,
            code,
            lambda read, *form: nests.elements(element, read, *form),
        )

    def run(self, arguments: "array[int]", inputs: Sequence[Array], output: Array, registers: Sequence[Array]) -> None:
        """Compute one block. Inputs may have dimensions of size 1 where the output has others."""
        self._run(arguments, inputs, output)


class LookUp(_Loops):
    """The loop that takes results of `size` bytes from a table, by an input's `bits`, 16 or 8. Its argument is the
    table's address."""

    def __init__(self, size: int, bits: int, code: LoopCode) -> None:
        result = f"i{8 * size}"
        declared: frozenset[str] = frozenset()
        body: tuple[str, ...] = (
            "%table = inttoptr i64 %p0 to ptr",
            f"%number = zext i{bits} %x0 to i64",
            f"%place = getelementptr {result}, ptr %table, i64 %number",
            f"%result = load {result}, ptr %place",
            f"ret {result} %result",
        )
        if (bits, size) == (8, 1):
            declared = frozenset({LOOK_DECLARATION})
            body = (f"%result = {look_call('%x0', '%p0')}", "ret i8 %result")
        element = Element("element", declared, body, {"X": f"i{bits}"}, result, (Parameter(INT64, "Table"),))
        super().__init__([element], ["X"], code, lambda read, *form: nests.elements(element, read, *form))
        self.work = LOOKED_UP if bits == 16 else LOOKED_UP_BYTE


class RowLoops(_Loops):
    """The same of a formula with reductions, for groups along so many of the last dimensions, one after the other: the
    innermost one, or more of them if what is `apart` is gathered first; or `beside` one another along the dimension
    before these (`lanes.py`)."""

    def __init__(
        self,
        ask: Ask,
        expression: Value,
        inputs: Sequence[str],
        stored: DataType,
        code: LoopCode,
        along: int = 1,
        taken: Taken = "rows",
    ) -> None:
        elements: list[Element] = []
        expansions = ROWS_FOR_HALF if stored is DataType.FLOAT16 else EXPANSIONS

        def lowered(node: Value, names: Sequence[str], stored: DataType) -> Element:
            elements.append(lower_part(ask, node, stored, f"element{len(elements)}", expansions))
            return elements[-1]

        cut = FormulaStages(inputs, True, lowered)
        final = cut.whole(in_shares(expression), stored)
        if any(stage.reduction and stage.program.output not in ("float", "double") for stage in cut.stages):
            raise LookupError("rows of integers are reduced by NumPy")
        read = {name for element in elements for name in element.inputs}
        stages = [stage if stage.elements in read else replace(stage, elements=None) for stage in cut.stages]
        self.kept = [stage.dtype.itemsize for stage in stages if stage.elements]
        """Bytes of what is kept of an element between stages, of all groups that are taken at a time."""
        self.along, self._taken = along, taken
        self.at_once = LANES if taken == "beside" else 1
        """Groups that are taken at a time."""
        types = {name: type_ for element in elements for name, type_ in element.inputs.items()}
        copied = [bytes_of(types[name]) for name in inputs if name in read]
        if taken == "apart":
            self.kept = [*copied, bytes_of(final.output), *self.kept]
        elif taken == "beside":
            self.innermost = -1 - along
            self.kept = [LANES * each for each in [*copied, *self.kept]]

        def source(read: Sequence[str], dimensions: int, layout: Accesses, streams: bool) -> str:
            if taken == "rows":
                return nests.rows(stages, final, read, dimensions, layout, streams)
            nest = nests.gathered if taken == "apart" else lanes
            return nest(stages, final, read, dimensions, along, layout)

        super().__init__(elements, inputs, code, source)

    def layout(self, strides: Sequence[Sequence[int]], item_sizes: Sequence[int]) -> Accesses:
        made = super().layout(strides, item_sizes)
        if self._taken != "apart":
            return made
        uniform = [not any(each[-self.along :]) for each in strides]
        return tuple(
            "strided" if step == "same" and not is_one else step for step, is_one in zip(made, uniform, strict=True)
        )

    def codes_for(self, sizes: Sequence[int], strides: Sequence[Sequence[int]], item_sizes: Sequence[int]) -> "Codes":
        """Nothing but rows goes past the cache."""
        is_plain = self._taken != "rows"
        return self.way(strides, item_sizes).codes if is_plain else super().codes_for(sizes, strides, item_sizes)


def _picked(reads: Sequence[int], count: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Picks those of `count` that are read, and the last one."""
    if len(reads) == count:
        return itemgetter(slice(None))
    return itemgetter(*reads, -1) if reads else itemgetter(slice(-1, None))


def layout_of(strides: Sequence[Sequence[int]], item_sizes: Sequence[int], axis: int = -1) -> Accesses:
    """How arrays go along a dimension."""
    return tuple(
        [
            "packed" if each[axis] == size else "same" if each[axis] == 0 else "strided"
            for each, size in zip(strides, item_sizes, strict=True)
        ]
    )


def _broadcast(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))


def work_of(elements: Sequence[Element]) -> int:
    """What it takes to compute one of each, in bytes and instructions."""
    types = [type_ for element in elements for type_ in (*element.inputs.values(), element.output)]
    return sum(map(bytes_of, types)) + sum(element.instructions + SLOW * element.slow for element in elements)
