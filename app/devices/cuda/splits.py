"""Kernels of few and long totals, which one block for each element would leave most of a GPU idle with, or would read
across memory: the terms are split over blocks, and what these have is joined, always in the same order.

A total's first kernel makes partial totals. Where threads go along the output's rows, as the input's lie, a block has
some rows of terms in flight; else all its threads take turns at the terms of one element. The second kernel joins the
partial totals, and the last one computes the element.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from app.contract.constants import DataType
from app.devices.cuda import turns
from app.devices.cuda.coordinates import CoordinateLowering, places_of
from app.devices.cuda.folds import Fold, fold_of, real_fold
from app.devices.cuda.grids import THREADS
from app.devices.cuda.places import Coordinates, ranks_of, shape_of
from app.devices.cuda.totals import LONG, is_long, terms_of, width_across, width_of_terms
from app.devices.cuda.turns import braced
from app.devices.cuda.vectors import fitting
from app.formula.coordinates import Total
from app.formula.decided import Decisions
from app.formula.expansions import Ask
from app.formula.outlines import Outline
from app.formula.values import Value
from app.programs.dispatchable import Dispatchable

MOST_ELEMENTS = 1 << 17
"""Of an output; more keep a GPU busy with a thread for each."""

LEAST_WORK = 1 << 18
"""Terms of all elements that are worth a second kernel."""

MOST_TERMS = 1 << 31

MULTIPROCESSORS = 132
"""Of a large GPU, all of which are to be busy."""

TURNS = 8
"""That a thread takes at least."""

FEW_SPLITS = 32
"""That one thread joins."""

JOINED_TOGETHER = 8
"""Partial totals that are loaded before the first of them is there."""

LANES = 32
"""Threads that go along a row, at most."""

PARTIAL_BYTES = 16
"""That a partial total takes, at most."""

_DIVISOR = r"""
struct divisor { unsigned size, magic, shift; };
/* What `divided` takes for a size. */
DEVICE divisor divisor_of(unsigned size)
{
    unsigned shift = 0;
    while (shift < 32 && (1ull << shift) < size) ++shift;
    return divisor{size, size ? (unsigned)(((1ull << 32) * ((1ull << shift) - size)) / size + 1) : 0, shift};
}
"""


@dataclass(frozen=True, slots=True)
class SplitClass:
    """What chooses code: the tensors' ranks, the output's last; threads of a block that go along a row, 0 if none do;
    neighbours that each of them has, of a row or of the terms; whether a block's threads join partial totals, not one;
    and as in `CoordinateClass`."""

    ranks: tuple[int, ...]
    lanes: int
    width: int
    joined_by_blocks: bool
    even: bool
    decisions: Decisions
    packed: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Splits:
    """How the terms of an output's totals are split."""

    kind: SplitClass
    stages: int
    """Totals, of which the later ones may need the earlier."""
    elements: int
    blocks: int
    """Of a kernel that makes partial totals."""
    shape: np.ndarray[tuple[int], np.dtype[np.uint32]]
    scratch_bytes: int

    @classmethod
    def of(cls, compiled: Dispatchable, output: str, coordinates: Coordinates) -> "Splits | None":
        """None if an output is better made at once."""
        made, root, numbers = compiled.outputs[output], coordinates.outline.root, compiled.numbers
        if made.elements >= MOST_ELEMENTS or made.elements * coordinates.terms < LEAST_WORK:
            return None
        totals = [each for each in coordinates.outline.outer_totals if terms_of(each, numbers) >= LONG]
        terms = [terms_of(each, numbers) for each in totals]
        if not totals or max(terms) >= MOST_TERMS:
            return None
        width = width_across(root, totals, numbers, made.rank - 1)
        lanes, groups = 0, 1
        if not width:
            width = width_of_terms(root, totals, numbers)
        else:
            while width > 1 and made.Sizes[-1] // LANES < width:
                width //= 2
            width = fitting(width, made.Sizes[-1])
            lanes = min(LANES, 1 << max(-(-made.Sizes[-1] // width) - 1, 0).bit_length())
            groups = -(-made.Sizes[-1] // (lanes * width))
        rows = THREADS // lanes if lanes else THREADS * width
        blocks = (made.elements // made.Sizes[-1] if lanes else made.elements) * groups
        # As many as there is room for at once: of more, the last would have the GPU to themselves.
        most = MULTIPROCESSORS * (turns.BLOCKS_ACROSS if lanes else turns.BLOCKS)
        splits = max(min(-(-max(terms) // (rows * TURNS)), most // blocks), 1)
        if splits == 1 and not lanes:
            return None
        step = 1 if lanes else width
        each = [-(-count // (splits * step)) * step for count in terms]
        shape = [*shape_of(compiled, made, groups), blocks // groups, splits, made.elements, *each]
        even = not lanes or made.Sizes[-1] % (lanes * width) == 0
        kind = SplitClass(
            ranks_of(compiled, made),
            lanes,
            width,
            splits > FEW_SPLITS,
            even,
            coordinates.kind.decisions,
            coordinates.kind.packed,
        )
        scratch = (splits + len(totals)) * made.elements * PARTIAL_BYTES
        return cls(kind, len(totals), made.elements, blocks * splits, np.array(shape, np.uint32), scratch)

    def on(self, *, aligned: bool) -> "Splits":
        """The same of tensors whose addresses are `aligned` to what a thread loads at once, or are not."""
        return self if aligned else replace(self, kind=replace(self.kind, packed=()))


class SplitLowering(CoordinateLowering):
    """Writes one of the kernels."""

    def __init__(self, ask: Ask, root: Value, inputs: Sequence[tuple[str, DataType]], stored: DataType) -> None:
        super().__init__(ask, root, inputs, stored)
        self._totals: list[Total] = []
        self._made: dict[Total, str] = {}
        """Totals that are known, by what they are, packed, or where."""

    def partial(self, kind: SplitClass, number: int) -> tuple[str, tuple[Value, ...]]:
        """The kernel that makes partial totals of the total that is `number`."""
        self._take(kind)
        total, rank = self._totals[number], kind.ranks[-1]
        last, lanes, width = rank - 1, kind.lanes, kind.width
        if lanes:
            self._blocks = turns.BLOCKS_ACROSS
            self.go_along(last, width, beyond=not kind.even)
        self._know(number, f"row * shape.sizes[{last}] + inside(c{last}, shape.sizes[{last}])" if lanes else "row")
        kernel = self._scope
        counts = [self.write(each) for each in total.counts]
        loop = self.turns(total, "all", counts, width)
        if lanes:
            loop = replace(loop, each=[f"const long long c{last} = from + k;", *loop.each])
        fold = loop.fold
        begin, step = f"threadIdx.x * {width}", f"THREADS * {width}"
        if lanes:
            begin, step = f"threadIdx.x / {lanes}", f"THREADS / {lanes}"
        lines = [
            "unsigned left = divided(blockIdx.x, shape.pieces_magic, shape.pieces_shift);",
            "const unsigned group = blockIdx.x - left * shape.pieces;",
            "const unsigned split = left / shape.outer;",
            "const unsigned long long row = left = left - split * shape.outer;",
            *places_of(range(last) if lanes else range(rank)),
            *(
                [f"const long long from = ((long long)group * {lanes} + threadIdx.x % {lanes}) * {width};"]
                if lanes
                else []
            ),
            *kernel.lines,
            f"const unsigned long long terms = {' * '.join(f'(unsigned long long){each}' for each in counts)};",
            f"const unsigned long long first = (unsigned long long)split * shape.terms[{number}];",
            f"const unsigned long long beyond = first + shape.terms[{number}];",
            "const unsigned end = (unsigned)(beyond < terms ? beyond : terms);",
            *loop.loop("(unsigned)first", begin, step, "end"),
            f"{fold.in_memory}* const partial = ({fold.in_memory}*)scratch;",
            *(self._joined_rows(fold, lanes, width, last) if lanes else loop.joined("whole")),
            *([] if lanes else [f"if (threadIdx.x == 0) partial[row * shape.splits + split] = {fold.kept('whole')};"]),
        ]
        return self._kernel(kind, lines, shared=not lanes)

    @staticmethod
    def _joined_rows(fold: Fold, lanes: int, width: int, last: int) -> list[str]:
        """What a block's rows of threads have, joined by those of the first."""
        return [
            f"__shared__ {fold.packed} of_rows[THREADS];",
            "#pragma unroll",
            f"for (int k = 0; k < {width}; ++k)",
            braced(
                [
                    "__syncthreads();",
                    f"of_rows[threadIdx.x] = {fold.pack};",
                    "__syncthreads();",
                    f"if (threadIdx.x < {lanes} && from + k < (long long)shape.sizes[{last}])",
                    braced(
                        [
                            f"{fold.packed} a = of_rows[threadIdx.x];",
                            f"for (int n = 1; n < THREADS / {lanes}; ++n)",
                            braced(
                                [
                                    f"const {fold.packed} b = of_rows[threadIdx.x + n * {lanes}];",
                                    f"a = {fold.joined};",
                                ]
                            ),
                            f"partial[(row * shape.sizes[{last}] + from + k) * shape.splits + split] = "
                            f"{fold.kept('a')};",
                        ]
                    ),
                ]
            ),
        ]

    def joined(self, kind: SplitClass, number: int) -> tuple[str, tuple[Value, ...]]:
        """The kernel that joins the partial totals of the total that is `number`, and of the last makes the element."""
        self._take(kind)
        total, rank, shared = self._totals[number], kind.ranks[-1], kind.joined_by_blocks
        self._know(number, "i")
        fold = self._known_fold(total)
        thread, threads = ("threadIdx.x", "THREADS") if shared else ("0", "1")
        lines = [
            "const unsigned long long i = blockIdx.x;"
            if shared
            else "const unsigned long long i = (unsigned long long)blockIdx.x * THREADS + threadIdx.x;",
            "if (i >= count) return;",
            f"const {fold.in_memory}* const partial = (const {fold.in_memory}*)scratch + i * shape.splits;",
            f"const {fold.kind} none = {fold.start};",
            f"{fold.packed} mine = {fold.pack};",
            f"#pragma unroll {JOINED_TOGETHER}",
            f"for (unsigned n = {thread}; n < shape.splits; n += {threads})",
            braced([f"const {fold.packed} a = mine, b = {fold.taken('partial[n]')};", f"mine = {fold.joined};"]),
            f"const {fold.packed} whole = "
            + (
                f"reduced(mine, [&]({fold.packed} a, {fold.packed} b) {{ return {fold.joined}; }});"
                if shared
                else "mine;"
            ),
        ]
        if number + 1 < len(self._totals):
            whole = fold.kept("whole")
            store = f"(({fold.in_memory}*)(scratch + {_results(number)}))[i] = {whole};"
        else:
            self._made[total] = "whole"
            result = self.result()
            lines += ["unsigned left = (unsigned)i;", *places_of(range(rank)), *self._scope.lines]
            place = " + ".join(f"(unsigned long long)c{n} * shape.strides[{n}]" for n in range(rank))
            store = f"out[{place}] = {result};"
        return self._kernel(kind, [*lines, f"if (threadIdx.x == 0) {store}" if shared else store], shared=shared)

    def _take(self, kind: SplitClass) -> None:
        self.decide(kind.decisions, kind.packed)
        self._totals = [
            each for each in Outline(self._root).outer_totals if self.ask(partial(is_long, LONG), *each.counts)
        ]

    def _kernel(self, kind: SplitClass, lines: Sequence[str], *, shared: bool) -> tuple[str, tuple[Value, ...]]:
        members = [f"unsigned outer, splits, elements, terms[{len(self._totals)}];"]
        pointers = ["unsigned char* __restrict__ scratch"]
        return self.kernel(kind.ranks, lines, shared=shared, more=_DIVISOR, members=members, pointers=pointers)

    def _know(self, number: int, element: str) -> None:
        """The totals before `number` are known, those of the output's element that is number `element`."""
        for place, each in enumerate(self._totals[:number]):
            fold = self._known_fold(each)
            stored = f"((const {fold.in_memory}*)(scratch + {_results(place)}))[{element}]"
            self._made[each] = fold.taken(stored)

    def _total(self, node: Total) -> str:
        known = self._made.get(node)
        if known is None:
            return super()._total(node)
        return self.declare(node.type, self._known_fold(node).result(known))

    def _known_fold(self, total: Total) -> Fold:
        """Of a total that is made already."""
        if self.is_real(total):
            self.function("real_sums")
            return real_fold(total, "none", "")
        return fold_of(total, "none", "", "", "unsigned")

    def divided(self, count: str) -> tuple[str, str]:
        """By what is known before the loop."""
        by = self._new("by")
        self._lines.append(f"const divisor {by} = divisor_of((unsigned){count});")
        return f"divided(rest, {by}.magic, {by}.shift)", f"{by}.size"


def _results(number: int) -> str:
    """Where what is known of a total lies in the scratch memory."""
    return f"(unsigned long long)(shape.splits + {number}) * shape.elements * {PARTIAL_BYTES}"
