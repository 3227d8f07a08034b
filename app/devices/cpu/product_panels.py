"""How the second matrix of a product is packed: panels, that is as many columns as tiles have, one after the other."""

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from app.devices.cpu.alone import portions
from app.devices.cpu.calls import Call, Of, Pointer
from app.devices.cpu.llvm import tiles
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.team import Team
from app.memory.arrays import Array


def packed(matrix: Array, wide: int) -> Array:
    """Panels of so many columns, one after the other, and behind them zeros."""
    depth, columns = matrix.shape
    whole, rest = divmod(columns, wide)
    made = np.empty((whole + (rest > 0), depth, wide), matrix.dtype)
    made[:whole] = matrix[:, : whole * wide].reshape(depth, whole, wide).swapaxes(0, 1)
    if rest:
        made[whole, :, :rest] = matrix[:, whole * wide :]
        made[whole, :, rest:] = 0
    return made


class Turned(NamedTuple):
    """Of turned matrices, which the input numbered 1 has, into memory of a kernel's own. Steps are in elements."""

    size: int
    """Bytes of an element."""
    depth: int
    columns: int
    column: int
    """The step from one column to the next. Terms of each lie one after the other."""
    wide: int
    """Columns of a panel."""
    sizes: Sequence[int]
    """Of what leads the matrices."""
    given: Sequence[int]
    """Steps from matrix to matrix, as they are given, and as they are packed."""
    made: Sequence[int]

    def calls(self, team: Team) -> Iterator[Call]:
        """Behind the last columns there is the last one again: products with it are computed, though nothing becomes of
        them, and where memory happened to hold subnormal numbers processors would take a hundred times as long."""
        whole, rest = divmod(self.columns, self.wide)
        end = self.columns * self.column
        if whole:
            yield from self._calls(team, (0, 0), (whole, self.wide), self.column)
        if rest:
            panel = whole * self.depth * self.wide
            yield from self._calls(team, (end - rest * self.column, panel), (1, rest), self.column)
            yield from self._calls(team, (end - self.column, panel + rest), (1, self.wide - rest), 0)

    def _calls(self, team: Team, begin: tuple[int, int], shape: tuple[int, int], column: int) -> Iterator[Call]:
        """So many panels with so many columns each, where they `begin` as given and as made, each `column` behind the
        one before."""
        count, along = shape
        sizes = [*self.sizes, count]
        steps = [*self.given, self.wide * self.column], [*self.made, self.depth * self.wide]
        code = Code(team.compiler, tiles.source(self.size, team.compiler.vector_floats, len(sizes)))
        cut = sizes.index(max(sizes))
        work = 2 * self.size * math.prod(sizes) // sizes[cut] * along * self.depth
        for part in portions(range(sizes[cut]), work, team.most):
            numbers: list[int] = []
            for axis, (size, *own) in enumerate(zip(sizes, *steps, strict=True)):
                numbers += [len(part) if axis == cut else size, *[self.size * step for step in own]]
            numbers += [self.depth, along, self.size * column, self.size * self.wide]
            given, made = (
                self.size * (start + part.start * each[cut]) for start, each in zip(begin, steps, strict=True)
            )
            pointers = [Pointer(0, Of.INPUT, 1, given), Pointer(1, Of.OWN, 0, made)]
            yield Call(code, array("q", [0, 0, *numbers]), pointers, work * len(part))
