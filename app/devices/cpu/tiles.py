"""Copies that turn rows into columns, as a transposed tensor is stored, on the CPU by loops that LLVM compiled."""

import math
from array import array
from collections.abc import Iterator

from app.devices.cpu.alone import CallsKernel, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.llvm import tiles
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.team import Team
from app.devices.layout import walk
from app.formula.values import Input
from app.memory.arrays import numpy_type
from app.programs.dispatchable import Dispatchable

WIDEST = 16
"""Elements of a tile each way at most."""

TILED = 1 << 13
"""Elements, of which fewer are in the cache while a loop goes along columns, and soon done."""


def tiles_kernel(compiled: Dispatchable, team: Team) -> CallsKernel | None:
    """For what copies an input as it is, if its elements lie one behind the other along another dimension than the
    output's, and there are tiles of both."""
    if len(compiled.outputs) != 1 or len(compiled.inputs) != 1:
        return None
    ((output, made),) = compiled.program.maps.items()
    node = made.expression
    if not isinstance(node, Input) or node.type != numpy_type(made.stored).name or node.stored != made.stored:
        return None
    sizes, (given, taken) = walk(compiled, output)
    size = made.stored.bits // 8
    width = min(4 * team.compiler.vector_floats // size, WIDEST)
    *outer, along = range(len(sizes))
    down = next((axis for axis in outer if given[axis] == 1), None)
    if down is None or taken[along] != 1 or min(sizes[down], sizes[along]) < width:
        return None
    outer.remove(down)
    code = Code(team.compiler, tiles.source(size, width, len(outer)))
    # Of the longest dimension there are parts for threads; of the rows that are turned they are whole tiles.
    split = max([*outer, down], key=lambda axis: sizes[axis])
    step = width if split == down else 1
    work = 2 * size * math.prod(sizes) // sizes[split]

    def calls() -> Iterator[Call]:
        for part in portions(range(-(-sizes[split] // step)), work * step, team.most):
            begin, end = part.start * step, min(part.stop * step, sizes[split])
            counts = [*sizes]
            counts[split] = end - begin
            numbers = [each for axis in outer for each in (counts[axis], given[axis] * size, taken[axis] * size)]
            numbers += [counts[down], counts[along], given[along] * size, taken[down] * size]
            pointers = [
                Pointer(0, Of.INPUT, offset=begin * given[split] * size),
                Pointer(1, Of.OUTPUT, offset=begin * taken[split] * size),
            ]
            yield Call(code, array("q", [0, 0, *numbers]), pointers, work * (end - begin))

    return CallsKernel(compiled, Calls([list(calls())]), team)
