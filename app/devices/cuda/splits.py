"""Kernels of few and long totals, which one block for each element would leave most of a GPU idle with, or would read
across memory: the terms are split over blocks, and what these have is joined, always in the same order.

A total's first kernel makes partial totals. Where threads go along the output's rows, as the input's lie, a block has
some rows of terms in flight; else all its threads take turns at the terms of one element. The second kernel joins the
partial totals, and the last one computes the element.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.contract.constants import DataType
from app.devices.cuda.coordinates import CoordinateLowering, Scope, braced, places_of
from app.devices.cuda.folds import Fold, fold_of
from app.devices.cuda.grids import ACCESS_BYTES, THREADS
from app.devices.cuda.places import LONG, Coordinates, is_long, ranks_of, shape_of
from app.devices.cuda.vectors import fitting, going_along
from app.formula.coordinates import Element, Index, Total
from app.formula.expansions import Ask
from app.formula.uniform import Numbers, evaluator, uniform_parts
from app.formula.values import Value, parts
from app.programs.dispatchable import Dispatchable

MOST_ELEMENTS = 1 << 17
"""Of an output; more keep a GPU busy with a thread for each."""

LEAST_WORK = 1 << 18
"""Terms of all elements that are worth a second kernel."""

MOST_TERMS = 1 << 31

BLOCKS = 1 << 11
"""That are wanted: some 16 on each multiprocessor of a large GPU."""

TURNS = 8
"""That a thread takes at least."""

FEW_SPLITS = 32
"""That one thread joins."""

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
    neighbours that each of them has, of a row or of the terms; and whether a block's threads join partial totals, not
    one."""

    ranks: tuple[int, ...]
    lanes: int
    width: int
    joined_by_blocks: bool


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
        made, root, numbers = compiled.outputs[output], compiled.program.maps[output].expression, compiled.numbers
        if made.elements >= MOST_ELEMENTS or made.elements * coordinates.terms < LEAST_WORK:
            return None
        totals = [each for each in outer_totals(root) if _terms(each, numbers) >= LONG]
        terms = [_terms(each, numbers) for each in totals]
        if not totals or max(terms) >= MOST_TERMS:
            return None
        width = _width(root, totals, numbers, made.rank - 1)
        lanes, groups = 0, 1
        if not width:
            width = _width_of_terms(root, totals, numbers)
        else:
            while width > 1 and made.Sizes[-1] // LANES < width:
                width //= 2
            width = fitting(width, made.Sizes[-1])
            lanes = min(LANES, 1 << max(-(-made.Sizes[-1] // width) - 1, 0).bit_length())
            groups = -(-made.Sizes[-1] // (lanes * width))
        rows = THREADS // lanes if lanes else THREADS * width
        blocks = (made.elements // made.Sizes[-1] if lanes else made.elements) * groups
        splits = max(min(-(-max(terms) // (rows * TURNS)), BLOCKS // blocks), 1)
        if splits == 1 and not lanes:
            return None
        step = 1 if lanes else width
        each = [-(-count // (splits * step)) * step for count in terms]
        shape = [*shape_of(compiled, made, groups), blocks // groups, splits, made.elements, *each]
        kind = SplitClass(ranks_of(compiled, made), lanes, width, splits > FEW_SPLITS)
        scratch = (splits + len(totals)) * made.elements * PARTIAL_BYTES
        return cls(kind, len(totals), made.elements, blocks * splits, np.array(shape, np.uint32), scratch)


def outer_totals(root: Value) -> list[Total]:
    """Those that no other total's indices change, each after those that it needs; their counts are the same for all
    elements."""
    uniform = uniform_parts(root)
    inner: dict[Value, frozenset[Value]] = {}
    found = []
    for node in parts(root):
        free = frozenset[Value]().union(*[inner[each] for each in node.operands()])
        if isinstance(node, Total):
            free -= set(node.indices)
            if not free and uniform.issuperset(node.counts):
                found.append(node)
        elif isinstance(node, Index):
            free = frozenset([node])
        inner[node] = free
    return found


def _terms(total: Total, numbers: Numbers) -> int:
    return math.prod(max(int(evaluator(each)(numbers)), 0) for each in total.counts)


def _width(root: Value, totals: Sequence[Total], numbers: Numbers, axis: int) -> int:
    """How many neighbours along rows of the output make one load of what is added up; 0 if terms lie together."""
    along = going_along(root, axis, numbers)
    found = []
    for total in totals:
        elements = [node for node in parts(total.argument) if isinstance(node, Element) and node.at]
        if any(total.indices[-1] in parts(each.at[-1]) for each in elements):
            return 0
        found += [node.stored.bytes for node in elements if along.first(node, lambda _: "")]
    return ACCESS_BYTES // max(found) if found else 0


def _width_of_terms(root: Value, totals: Sequence[Total], numbers: Numbers) -> int:
    """How many neighbouring terms make one load, and do not go beyond a row of terms."""
    width = ACCESS_BYTES
    for total in totals:
        along = going_along(root, total.indices[-1], numbers)
        elements = [node for node in parts(total.argument) if isinstance(node, Element) and node.at]
        found = [node.stored.bytes for node in elements if along.first(node, lambda _: "")]
        width = min(width, ACCESS_BYTES // max(found)) if found else 1
        while int(evaluator(total.counts[-1])(numbers)) % width:
            width //= 2
    return width


class SplitLowering(CoordinateLowering):
    """Writes one of the kernels."""

    def __init__(self, ask: Ask, root: Value, inputs: Sequence[tuple[str, DataType]], stored: DataType) -> None:
        super().__init__(ask, root, inputs, stored)
        self._totals = [each for each in outer_totals(self._root) if self.ask(is_long, *each.counts)]
        self._made: dict[Total, str] = {}
        """Totals that are known, by what they are, packed, or where."""

    def partial(self, kind: SplitClass, number: int) -> tuple[str, tuple[Value, ...]]:
        """The kernel that makes partial totals of the total that is `number`."""
        total, rank = self._totals[number], kind.ranks[-1]
        last, lanes, width = rank - 1, kind.lanes, kind.width
        if lanes or width > 1:
            self.go_along(last if lanes else total.indices[-1], width)
        self._know(number, f"row * shape.sizes[{last}] + inside(c{last}, shape.sizes[{last}])" if lanes else "row")
        kernel = self._scope
        counts = [self.write(each) for each in total.counts]
        turn = self._turns(total, counts)
        inner = Scope(self.along_rows, turn) if lanes or width > 1 else turn
        self.enter(inner)
        value = self.write(total.argument)
        fold = fold_of(total, "all[k]", value, "j" if lanes else "j + k", "unsigned")
        of_each = [*(inner.lines if inner is not turn else []), fold.update]
        each = ["#pragma unroll", f"for (int k = 0; k < {width}; ++k)"]
        column = [f"const long long c{last} = from + k;"] if lanes else []
        if width > 1 and not lanes:
            column = [f"const long long {self._indices[total.indices[-1]]} = from + k;"]
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
            f"{fold.kind} all[{width}];",
            *each,
            braced([f"all[k] = {fold.kind}{fold.start};" if fold.start[0] == "{" else f"all[k] = {fold.start};"]),
            "#pragma unroll 4",
            f"for (unsigned j = (unsigned)first + {begin}; j < end; j += {step})",
            braced(["unsigned rest = j;", *turn.lines, *each, braced([*column, *of_each])]),
            f"{fold.packed}* const partial = ({fold.packed}*)scratch;",
            *(self._joined_rows(fold, lanes, width, last) if lanes else _joined_block(fold, width)),
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
                            f"partial[(row * shape.sizes[{last}] + from + k) * shape.splits + split] = a;",
                        ]
                    ),
                ]
            ),
        ]

    def joined(self, kind: SplitClass, number: int) -> tuple[str, tuple[Value, ...]]:
        """The kernel that joins the partial totals of the total that is `number`, and of the last makes the element."""
        total, rank, shared = self._totals[number], kind.ranks[-1], kind.joined_by_blocks
        self._know(number, "i")
        fold = fold_of(total, "none", "", "", "unsigned")
        thread, threads = ("threadIdx.x", "THREADS") if shared else ("0", "1")
        lines = [
            "const unsigned long long i = blockIdx.x;"
            if shared
            else "const unsigned long long i = (unsigned long long)blockIdx.x * THREADS + threadIdx.x;",
            "if (i >= count) return;",
            f"const {fold.packed}* const partial = (const {fold.packed}*)scratch + i * shape.splits;",
            f"const {fold.kind} none = {fold.start};",
            f"{fold.packed} mine = {fold.pack};",
            f"for (unsigned n = {thread}; n < shape.splits; n += {threads})",
            braced([f"const {fold.packed} a = mine, b = partial[n];", f"mine = {fold.joined};"]),
            f"const {fold.packed} whole = "
            + (
                f"reduced(mine, []({fold.packed} a, {fold.packed} b) {{ return {fold.joined}; }});"
                if shared
                else "mine;"
            ),
        ]
        if number + 1 < len(self._totals):
            store = f"(({fold.packed}*)(scratch + {_results(number)}))[i] = whole;"
        else:
            self._made[total] = "whole"
            result = self.result()
            lines += ["unsigned left = (unsigned)i;", *places_of(range(rank)), *self._scope.lines]
            place = " + ".join(f"(unsigned long long)c{n} * shape.strides[{n}]" for n in range(rank))
            store = f"out[{place}] = {result};"
        return self._kernel(kind, [*lines, f"if (threadIdx.x == 0) {store}" if shared else store], shared=shared)

    def _kernel(self, kind: SplitClass, lines: Sequence[str], *, shared: bool) -> tuple[str, tuple[Value, ...]]:
        members = [f"unsigned outer, splits, elements, terms[{len(self._totals)}];"]
        pointers = ["unsigned char* __restrict__ scratch"]
        return self.kernel(kind.ranks, lines, shared=shared, more=_DIVISOR, members=members, pointers=pointers)

    def _know(self, number: int, element: str) -> None:
        """The totals before `number` are known, those of the output's element that is number `element`."""
        for place, each in enumerate(self._totals[:number]):
            packed = fold_of(each, "none", "", "", "unsigned").packed
            self._made[each] = f"((const {packed}*)(scratch + {_results(place)}))[{element}]"

    def _total(self, node: Total) -> str:
        known = self._made.get(node)
        if known is None:
            return super()._total(node)
        return self.declare(node.type, fold_of(node, "none", "", "", "unsigned").result(known))

    def _turns(self, node: Total, counts: Sequence[str]) -> Scope:
        """With what divides known before the loop."""
        scope = Scope(frozenset(node.indices), self._scope)
        for index, count in reversed([*zip(node.indices, counts, strict=True)][1:]):
            name, above, by = self._new("i"), self._new("above"), self._new("by")
            self._lines.append(f"const divisor {by} = divisor_of((unsigned){count});")
            scope.lines += [
                f"const unsigned {above} = divided(rest, {by}.magic, {by}.shift);",
                f"const long long {name} = rest - {above} * {by}.size;",
                f"rest = {above};",
            ]
            self._indices[index] = name
        name = self._indices[node.indices[0]] = self._new("i")
        scope.lines += [f"const long long {name} = rest;"]
        last = self._indices[node.indices[-1]]
        if self._along is node.indices[-1]:  # of the first of the neighbours
            scope.lines.append(f"const long long from = {last};")
            self._indices[node.indices[-1]] = self._new("i")
        return scope


def _joined_block(fold: Fold, width: int) -> list[str]:
    """What a block's threads have, joined."""
    return [
        f"auto packed = [&](int k) {{ return {fold.pack}; }};",
        f"{fold.packed} mine = packed(0);",
        "#pragma unroll",
        f"for (int k = 1; k < {width}; ++k)",
        braced([f"const {fold.packed} a = mine, b = packed(k);", f"mine = {fold.joined};"]),
        f"const {fold.packed} whole = reduced(mine, []({fold.packed} a, {fold.packed} b) {{ return {fold.joined}; }});",
        "if (threadIdx.x == 0) partial[row * shape.splits + split] = whole;",
    ]


def _results(number: int) -> str:
    """Where what is known of a total lies in the scratch memory."""
    return f"(unsigned long long)(shape.splits + {number}) * shape.elements * {PARTIAL_BYTES}"
