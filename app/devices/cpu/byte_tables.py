"""Kernels of graphs whose formula is, from some place on, a function of one byte, as activations are between the
QuantizeLinear and DequantizeLinear of ONNX models: what comes behind that place is looked up, in a table of all 256
bytes that the same formula made. A result is the same, to the last bit."""

from array import array
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.calls import Call, Calls, Of, calls_of_loop, chained
from app.devices.cpu.llvm.kernels import Loop, LoopCode
from app.devices.layout import packed_along, walk
from app.formula.structures import Questions, Structures
from app.formula.values import Input, Value, parts, replaced, stored_whole
from app.memory.addresses import address_of
from app.memory.arrays import Array, numpy_type
from app.memory.buffers import Buffer
from app.programs.dispatchable import Dispatchable
from app.programs.program import Map

WORTH = 24
"""The work of an element, by `Loop.work`, from which it is sooner looked up."""

LEAST, MOST = 1 << 10, 16 << 20
"""Elements that are worth a table, which takes as long as 256 of them, and the most whose bytes may lie between."""

BITS, BYTES = 8, ("uint8", "int8")
_BYTE = "byte"


class _Cut(NamedTuple):
    """A formula in two: `first` makes the byte, unless that is an `input` as it is; `second` is over the byte and
    the `numbers`, which are inputs that are the same for all elements."""

    first: Loop | None
    input: str
    second: Loop
    numbers: Sequence[str]
    byte: DataType


def byte_table_kernel(
    compiled: Dispatchable, loops: LoopCode, known: Mapping[str, Buffer], structures: Structures
) -> CallsKernel | None:
    """For a kernel of one output by position, if it is worth a table. `known` are inputs that all dispatches share."""
    (output, made), *others = compiled.program.maps.items()
    elements = compiled.outputs[output].elements
    if others or made.by_coordinates or made.axes or not LEAST <= elements <= MOST:
        return None
    names, most = list(compiled.program.inputs), loops.team.most
    items = [numpy_type(each).itemsize for each in compiled.element_types(output)]
    sizes, strides = walk(compiled, output, items)
    numbers = frozenset(name for name, steps in zip(names, strides, strict=False) if name in known and not any(steps))
    build = partial(_cut, made, names, numbers, loops)
    cut = structures.find((made, numbers, "of a byte"), compiled.numbers, build)
    if cut is None:
        return None
    table = _table(cut, compiled, made.stored, known)
    address = array("q", [address_of(table.view(np.uint8).data)])
    packed = packed_along(sizes, [True] * len(sizes))
    between = packed if cut.first else strides[names.index(cut.input)]
    look_up = loops.look_up(table.itemsize, BITS)
    last = calls_of_loop(look_up, address, sizes, [between, strides[-1]], [1, table.itemsize], most)
    if cut.first is None:
        number = names.index(cut.input)
        calls = Calls([[_of_input(call, number) for call in last]])
    else:
        arguments = cut.first.arguments(compiled.numbers)
        first = calls_of_loop(cut.first, arguments, sizes, [*strides[:-1], packed], [*items[:-1], 1], most)
        calls = chained(Calls([first]), Calls([last]), 0, elements)
    return CallsKernel(compiled, calls, loops.team, [table])


def _of_input(call: Call, number: int) -> Call:
    """The same over another input than the first."""
    pointers = [each._replace(number=number) if each.of is Of.INPUT else each for each in call.pointers]
    return call._replace(pointers=pointers)


def _cut(
    made: Map, names: Sequence[str], numbers: Collection[str], loops: LoopCode, questions: Questions
) -> _Cut | None:
    """`made`, over inputs of these `names`, at the first byte that it is a function of; None if there is none, if it is
    not worth a table, or if no loop makes it."""
    place = _place(made.expression, numbers)
    if place is None:
        return None
    byte = stored_whole(place.type)
    rest = replaced(made.expression, {place: Input(place.type, _BYTE, byte)})
    read = {each.name for each in parts(rest) if isinstance(each, Input)}
    inside = [name for name in names if name in read]
    try:
        second = Loop(questions.ask, rest, [_BYTE, *inside], made.stored, loops)
        if second.work < WORTH:
            return None
        if isinstance(place, Input):
            return _Cut(None, place.name, second, inside, byte)
        return _Cut(Loop(questions.ask, place, names, byte, loops), "", second, inside, byte)
    except LookupError:
        return None  # NumPy is as quick at something in it


def _place(root: Value, numbers: Collection[str]) -> Value | None:
    """The first byte that `root` is a function of, beside these numbers; None if it is none of just one."""
    byte_of: dict[Value, Value | None] = {}
    """Of what differs from element to element."""
    for node in parts(root):
        made_of = {byte_of[each] for each in node.operands() if each in byte_of}
        if isinstance(node, Input) and node.name not in numbers:
            made_of = {None}
        if made_of:
            byte = made_of.pop() if len(made_of) == 1 else None
            byte_of[node] = byte or (node if node.type in BYTES and node is not root else None)
    return byte_of.get(root)


def _table(cut: _Cut, compiled: Dispatchable, stored: DataType, known: Mapping[str, Buffer]) -> Array:
    """What `second` makes of each byte, by its bits."""
    every = np.arange(1 << BITS, dtype=np.uint8).view(numpy_type(cut.byte))
    results: Array = np.empty(1 << BITS, numpy_type(stored))
    types = {name: numpy_type(compiled.program.inputs[name]) for name in cut.numbers}
    numbers: list[Array] = [np.ndarray((1,), dtype, known[name]) for name, dtype in types.items()]
    cut.second.run(cut.second.arguments(compiled.numbers), [every, *numbers], results, [])
    return results
