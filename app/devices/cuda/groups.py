"""How the groups of a formula that reduces lie, and what of it chooses a kernel: `rows.py` has these."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.devices.cuda.grids import THREADS, WARP
from app.devices.cuda.layouts import ACCESS_BYTES
from app.devices.layout import grouped
from app.formula.values import Input, Reduction, Value, parts
from app.programs.dispatchable import Dispatchable

MOST_KEPT = {1: 8, 2: 8, 4: 8, 8: 8, 16: 8, WARP: 32, THREADS: 16, 256: 16, 512: 16, 1024: 16}
"""Elements of a group that a thread holds in registers, by the threads that a group has."""

MOST_KEPT_ACROSS = {1: 8, 4: 16, 8: 16, 16: 16}
"""The same where each warp has one of a group's threads."""

MOST_THREADS = max(MOST_KEPT)
"""Of a block."""

MOST_BLOCKS, LEAST_MULTIPROCESSORS = 8, 16
"""Of a cluster, which go over one group together; and multiprocessors that a GPU has for each of them at least. They
have neighbouring ones, which on small GPUs, and on parts of large ones, are few."""

MOST_ELEMENTS = 1 << 31
"""Of a group. Threads count them with 32 bits, and a step beyond the last one, too: at 2^32 it would lead back to the
first, and the loop would never end."""

LEAST_OF_THREAD = 4
"""Elements of a group that are worth a thread of a further block."""

LEAST_ACROSS, LEAST_SIDE_BY_SIDE = 1 << 10, 16
"""Groups that are worth it, and of these as many next to each other."""

LEAST_TOGETHER = 4
"""Neighbours that threads of a group read at once, of a group that has as many."""

MOST_UNSETTLED = 1 << 11
"""Terms of a thread whose losses are added up without a look at how many they have become."""


@dataclass(frozen=True, slots=True)
class Rows:
    """How an operator's groups lie: `outer` sizes of the dimensions that tell groups apart and `inner` of those within
    one, with each tensor's strides, in elements, the output's last; bytes of their elements; and how many inputs
    reductions are of."""

    outer: list[int]
    inner: list[int]
    outer_strides: list[list[int]]
    inner_strides: list[list[int]]
    bytes_of_elements: list[int]
    reduced: int

    @classmethod
    def of(cls, compiled: Dispatchable, output: str) -> "Rows":
        """Those of an `output` whose formula reduces."""
        merged, places, groups, steps = grouped(compiled, output)
        inner = [axis for axis, step in enumerate(groups) if step == 0]
        outer = [axis for axis, step in enumerate(groups) if step != 0]
        # The places decide on the order of the inner dimensions, so that a position is a place.
        inner.sort(key=lambda axis: -places[axis])
        return cls(
            [merged[axis] for axis in outer] or [1],
            [merged[axis] for axis in inner] or [1],
            [[each[axis] for axis in outer] or [0] for each in steps],
            [[each[axis] for axis in inner] or [0] for each in steps],
            [data_type.bytes for data_type in compiled.element_types(output)],
            len(reduced_inputs(compiled.program.maps[output].expression)),
        )

    @property
    def groups(self) -> int:
        return int(np.prod(self.outer, dtype=np.int64))

    @property
    def elements(self) -> int:
        """Of a group."""
        return int(np.prod(self.inner, dtype=np.int64))

    def kind(self, *, aligned: bool, clustered: int = 0) -> "RowClass":
        """What of this chooses code, and whether all addresses are `aligned` to what a thread loads at once. The GPU
        has `clustered` multiprocessors, or none that know clusters."""
        units = tuple(steps[-1] == 1 for steps in self.inner_strides)
        width = self._width(units) if aligned else 1
        vectors = -(-self.inner[0] // width)
        across = self._are_across
        elements = self.elements
        blocks = 1 if across or not clustered else self._blocks_of(elements, clustered)
        most_kept = MOST_KEPT_ACROSS if across else MOST_KEPT
        if blocks > 1:
            most_kept = {blocks * MOST_THREADS: MOST_KEPT[MOST_THREADS]}
        for threads, most in most_kept.items():
            kept = -(-vectors // threads)
            apart = not across and kept > 1 and threads * width < LEAST_TOGETHER
            if len(self.inner) == 1 and kept * width * self.reduced <= most and not apart:
                return RowClass(len(self.outer), 1, threads, kept, width, units, across=across)
        threads = next((count for count, most in most_kept.items() if elements <= count * most), max(most_kept))
        wide = elements > threads * MOST_UNSETTLED
        return RowClass(len(self.outer), len(self.inner), threads, 0, width, units, wide, across)

    def _blocks_of(self, elements: int, clustered: int) -> int:
        """How many go over a group of so many elements that one would read them again: more than one if groups are so
        few that all their blocks compute at once."""
        blocks, most = 1, min(MOST_BLOCKS, clustered // LEAST_MULTIPROCESSORS)
        if elements * self.reduced > MOST_THREADS * MOST_KEPT[MOST_THREADS]:
            while 2 * blocks <= min(most, clustered // self.groups, elements // (MOST_THREADS * LEAST_OF_THREAD)):
                blocks *= 2
        return blocks

    @property
    def _are_across(self) -> bool:
        """Whether groups lie side by side, in all tensors that have one of their own for each."""
        enough = self.groups >= LEAST_ACROSS and self.outer[-1] >= LEAST_SIDE_BY_SIDE
        return enough and all(each[-1] in (0, 1) for each in self.outer_strides)

    def _width(self, units: Sequence[bool]) -> int:
        """Elements that a thread loads at once: of each tensor as many or, where all of these are one, that."""
        if not units[-1] or any(steps[-1] > 1 for steps in self.inner_strides):
            return 1
        steps = [self.inner[-1]]
        for unit, inner, outer in zip(units, self.inner_strides, self.outer_strides, strict=True):
            if unit:
                steps += [*inner[:-1], *(step for step, size in zip(outer, self.outer, strict=True) if size > 1)]
        width = ACCESS_BYTES // max(self.bytes_of_elements)
        while width > 1 and any(step % width for step in steps):
            width //= 2
        return max(width, 1)

    @property
    def shape(self) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        """The kernel's argument."""
        flat = [self.elements, *self.outer, *self.inner]
        flat += [step for each in (*self.outer_strides, *self.inner_strides) for step in each]
        return np.array(flat, np.uint32)


@dataclass(frozen=True, slots=True)
class RowClass:
    """Rows that one kernel serves: how many outer and inner dimensions they have; how many threads go over a group; how
    many times each of these reads into registers, 0 where a group has too many elements, or more than one dimension;
    how many neighbours it reads then; which tensors have a group's elements one after the other, the output last;
    whether groups are so wide that what their sums lose needs a look on the way; and whether threads next to each other
    have different groups, those that are `across`."""

    outer: int
    inner: int
    threads: int
    kept: int
    width: int
    units: tuple[bool, ...]
    wide: bool = False
    across: bool = False

    @property
    def threads_of_block(self) -> int:
        threads = self.threads * WARP if self.across and self.threads > 1 else self.threads
        return min(max(THREADS, threads), MOST_THREADS)

    @property
    def groups_of_block(self) -> int:
        return max(self.threads_of_block // self.threads, 1)

    @property
    def blocks_of_group(self) -> int:
        """Several are a cluster."""
        return max(self.threads // self.threads_of_block, 1)


def reduced_inputs(root: Value) -> set[str]:
    """The inputs that reductions are of."""
    arguments = [node.argument for node in parts(root) if isinstance(node, Reduction)]
    return {node.name for argument in arguments for node in parts(argument) if isinstance(node, Input)}
