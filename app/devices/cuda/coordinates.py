"""CUDA kernels of formulas that go by coordinates: a block for each part of a row of the output, a thread for each
element where rows are short, or a block for each element where there are few, or totals go along rows, and are long.

The formula's totals are loops, or of long ones the threads of a block or of a warp take turns at the terms and join
what they have, as in `rows.py`.
"""

from collections.abc import Sequence
from functools import partial

from app.contract.constants import DataType
from app.devices.cuda.c_types import C_TYPES
from app.devices.cuda.folds import CHOICE, Fold, fold_of, is_position, real_fold
from app.devices.cuda.functions import PRIMITIVES, library
from app.devices.cuda.grids import KERNEL, THREADS
from app.devices.cuda.places import DIVISION, LEAST_OF_TEAMS, CoordinateClass, narrowed_integers
from app.devices.cuda.real_operations import added, real_term
from app.devices.cuda.reducers import REDUCERS
from app.devices.cuda.scopes import Scope, ScopedLowering, uses_in
from app.devices.cuda.sums import TWICE, twice
from app.devices.cuda.totals import LONG, is_along_rows, is_long, is_row
from app.devices.cuda.turns import Turns, braced
from app.devices.cuda.vectors import NEIGHBOURS
from app.formula.coordinates import Total
from app.formula.expansions import Ask
from app.formula.uniform import uniform_parts
from app.formula.values import Value, is_float, parts

_OF_THREADS = "const unsigned long long i = (unsigned long long)blockIdx.x * THREADS + threadIdx.x;"
_OF_TEAMS = (
    "const unsigned long long team = (unsigned long long)blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;",
    # A warp's threads exchange what they have, so those that are left over have the last element, too.
    "const unsigned long long i = TEAM < 32 && team >= count ? count - 1 : team;",
)
"""Which element a thread computes."""


class CoordinateLowering(ScopedLowering):
    """Writes a formula as the body of a kernel."""

    def __init__(self, ask: Ask, root: Value, inputs: Sequence[tuple[str, DataType]], stored: DataType) -> None:
        super().__init__(ask, root, inputs, stored)
        self._shared: dict[Total, bool] = {}
        self._is_brief = False
        self._group, self._at_once = THREADS, 1
        """Threads that share an element's terms, and how many of these each loads at once."""

    def source(self, kind: CoordinateClass) -> tuple[str, int, tuple[Value, ...]]:
        """The kernel, the elements that a block computes, 0 if it goes by rows, and what its last arguments are."""
        self.decide(kind.decisions, kind.packed)
        self._is_brief = kind.brief
        if kind.narrow:
            self._root, self._counter = narrowed_integers(self._root), "int"
            self._window, self._step = kind.window, kind.step
            self._uniform = uniform_parts(self._root)
        for node in parts(self._root):
            if isinstance(node, Total) and not self._free_of(node) and self._uniform.issuperset(node.counts):
                by_teams = kind.group < THREADS and is_row(node, kind.ranks[-1] - 1)
                is_shared = partial(is_long, LEAST_OF_TEAMS if by_teams else LONG)
                self._shared[node] = (kind.few or is_along_rows(node)) and bool(self.ask(is_shared, *node.counts))
        shared = any(self._shared.values())
        if shared:
            self._group, self._at_once = kind.group, kind.neighbours
        rank = kind.ranks[-1]
        chunk = 0 if shared else kind.chunk
        if chunk or kind.width > 1:
            self.go_along(rank - 1, kind.width, beyond=not kind.even)
            self.enter(Scope(self.along_rows, self._scope))
        result = self.result()
        store = f"out[{_offset(rank)}] = {result};"
        if kind.width > 1:
            assert self._scope.outer, "neighbours are in the kernel"
            lines = self._neighbours(rank, [*self._scope.lines, f"made.at[k] = {result};"], self._scope.outer.lines)
        elif chunk:
            assert self._scope.outer, "rows are in the kernel"
            lines = self._rows(chunk, rank, [*self._scope.lines, store], self._scope.outer.lines)
        else:
            lines = [
                *(_OF_TEAMS if shared else [_OF_THREADS]),
                "if (i >= count) return;",
                "unsigned left = (unsigned)i;",  # a tensor has fewer than 2^32 elements
                *places_of(range(rank)),
                *self._scope.lines,
                f"if (threadIdx.x % TEAM == 0) {store}" if shared else store,
            ]
        text, arguments = self.kernel(kind.ranks, lines, shared=shared)
        return text, THREADS // self._group if shared else 0 if chunk else THREADS, arguments

    def kernel(
        self,
        ranks: Sequence[int],
        lines: Sequence[str],
        *,
        shared: bool,
        more: str = "",
        members: Sequence[str] = (),
        pointers: Sequence[str] = (),
    ) -> tuple[str, tuple[Value, ...]]:
        """The source of a kernel with these `lines`, and what its last arguments are. `shared`: a block's threads join
        values. `more` is defined before it, `members` are the last of what it is told of sizes, and `pointers` come
        after the output's."""
        members = [*_members(ranks, len(self.inputs)), *members]
        stored = [C_TYPES[stored.value.lower()] for _, stored in self.inputs]
        declared = [f"const {each}* __restrict__ in{n}" for n, each in enumerate(stored)]
        declared += [f"{C_TYPES[self.stored.value.lower()]}* __restrict__ out", *pointers, "unsigned long long count"]
        declared += [
            "const shape shape",
            *(f"{C_TYPES[value.type]} {name}" for name, value in self._arguments.values()),
        ]
        if self.has_far:
            lines = twice(lines, "THREADS" if "__syncthreads" in "".join(lines) else "TEAM" if shared else "1")
        body = braced(lines)
        has_neighbours = "neighbours<" in body or "times_of<" in body
        bounds = f"{THREADS}, {self._blocks}" if self._is_batched else f"{THREADS}"
        head = f'extern "C" __global__ void __launch_bounds__({bounds}) {KERNEL}({", ".join(declared)})'
        source = (
            f"{PRIMITIVES}#define THREADS {THREADS}\n#define TEAM {self._group}\n"
            f"{REDUCERS if shared else ''}{TWICE if self.has_far else ''}{CHOICE}{DIVISION}"
            f"{NEIGHBOURS if has_neighbours else ''}{more}{library(self._functions)}\n"
            f"struct shape {{ {' '.join(members)} }};\n\n{head}\n{body}"
        )
        return source, tuple(value for _, value in self._arguments.values())

    def _neighbours(self, rank: int, inner: Sequence[str], outer: Sequence[str]) -> list[str]:
        """The body of a kernel whose threads have some neighbours along a row each."""
        last, width, kind = rank - 1, self._width, C_TYPES[self.stored.value.lower()]
        return [
            _OF_THREADS,
            "if (i >= count) return;",
            "unsigned left = divided((unsigned)i, shape.pieces_magic, shape.pieces_shift);",
            f"const {self._counter} from = ({self._counter})((unsigned)i - left * shape.pieces) * {width};",
            *places_of(range(last)),
            *outer,
            f"neighbours<{kind}, {width}> made;",
            "#pragma unroll",
            f"for (int k = 0; k < {width}; ++k)",
            braced([f"const {self._counter} c{last} = from + k;", *inner]),
            f"scattered(out{''.join(f' + {each}' for each in _steps(last))}, made, from, shape.sizes[{last}], "
            f"shape.strides[{last}]);",
        ]

    def _rows(self, chunk: int, rank: int, inner: Sequence[str], outer: Sequence[str]) -> list[str]:
        """The body of a kernel whose blocks have a chunk of a row each."""
        last = rank - 1
        across = [
            f"const long long c{last} = (long long)start + turn;",
            f"if (c{last} >= shape.sizes[{last}]) break;",
            *inner,
        ]
        return [
            "unsigned left = divided(blockIdx.x, shape.pieces_magic, shape.pieces_shift);",
            f"const unsigned start = (blockIdx.x - left * shape.pieces) * {chunk}u;",
            *places_of(range(last)),
            *outer,
            "#pragma unroll",
            f"for (unsigned turn = threadIdx.x; turn < {chunk}u; turn += THREADS)",
            braced(across),
        ]

    # Totals

    def _total(self, node: Total) -> str:
        if self._shared.get(node, False):
            return self._shared_total(node)
        made, at = self._new("a"), self._new("at")
        outer, lines = self._scope, self._lines
        counts = [self.write(each) for each in node.counts]
        inner = outer
        for index in node.indices:
            self._indices[index] = self._new("i")
            inner = Scope(frozenset([index]), inner)
        self._scope, self._lines = inner, inner.lines
        turn = held = ""
        is_whole = bool(self._window) and self._window[-1] % 2 == 0 and self._uniform.issuperset(node.counts)
        if is_whole and self.stored is DataType.FLOAT16 and self.is_real(node):
            turn, held = self._indices[node.indices[-1]], self._new("held")
            outer.lines.append(f"float {held} = 0.0f;")
        fold = self._fold_of(node, made, at, "long long", turn, held)
        self._scope, self._lines = outer, lines
        lines += [f"{fold.kind} {made} = {fold.start};"]
        inner.lines += [fold.update]
        if fold.settle and not self._is_brief:
            inner.lines += [fold.settle]
        if is_position(node):
            lines += [f"long long {at} = 0;"]
            inner.lines += [f"++{at};"]
        if self._window:
            # Elements are read wherever their coordinates are, so that reads need not wait for a look at counts.
            known = [f"{self._indices[index]} < {count}" for index, count in zip(node.indices, counts, strict=True)]
            if not self._uniform.issuperset(node.counts):
                last = inner.lines.index(fold.update)
                inner.lines[last:] = [f"if ({' && '.join(known)})", braced(inner.lines[last:])]
            counts = [*map(str, self._window)]
        for index, count in zip(reversed(node.indices), reversed(counts), strict=True):
            name = self._indices[index]
            assert inner.outer, "each index has a loop"
            loop = ["#pragma unroll"] if self._window else []
            loop += [f"for ({self._counter} {name} = 0; {name} < {count}; ++{name})", braced(inner.lines)]
            inner = inner.outer
            inner.lines += loop
        return self.declare(node.type, fold.result(fold.pack))

    def _shared_total(self, node: Total) -> str:
        """By a group of threads."""
        made, along, self._along = self._new("a"), self._along, None
        counts = [self.write(each) for each in node.counts]
        sizes = " * ".join([f"({each} < 0 ? 0 : {each})" for each in counts])
        self._lines.append(f"const unsigned n{made} = (unsigned)({sizes});")
        width = self._at_once
        turns = self.turns(node, made, counts, width)
        lines = turns.loop("0", f"threadIdx.x % TEAM * {width}", f"TEAM * {width}", f"n{made}")
        self._lines += [*lines, *turns.joined(f"all_{made}")]
        self._along = along
        return self.declare(node.type, turns.fold.result(f"all_{made}"))

    def turns(self, node: Total, made: str, counts: Sequence[str], width: int) -> Turns:
        """The total `made` of neighbouring terms, along the last index or where threads go already."""
        outer, lines, along = self._scope, self._lines, self._along
        if along is None:
            self.go_along(node.indices[-1], width)
        scope = self._combination(node, counts)
        scope.loads = []
        inner = Scope(self.along_rows, scope)
        self.enter(inner)
        self._has_neighbours = True
        at = "j + k" if along is None else "j"
        # Of a thread's terms, which are in order, one place will do; sums are added side by side.
        kept = 1 if along is None and (is_position(node) or self.is_real(node)) else width
        turn = held = ""
        if self.stored is DataType.FLOAT16 and self.is_real(node) and (along is not None or width > 1):
            # Two neighbours, or two of the turns that a thread takes at once.
            turn, held = ("k", "held[0]") if along is None else ("(u + (turns == 1))", "held[k]")
        place = f"{made}[{'k' if kept == width else 0}]"
        fold = self._fold_of(node, place, at, "unsigned", turn, held)
        self._scope, self._lines, self._along = outer, lines, along
        self._has_neighbours = along is not None and self._width > 1
        column = f"const long long {self._indices[node.indices[-1]]} = from + k;"
        each = [*([column] if along is None else []), *inner.lines, fold.update]
        self._is_batched |= bool(scope.loads)
        declared = [f"float held[{width}] = {{}};"] if turn else []
        return Turns(made, fold, width, kept, scope.lines, scope.loads, each, declared)

    def is_real(self, node: Total) -> bool:
        """Whether floats are added up or multiplied without float64."""
        return self._in_reals and node.name in ("sum", "product") and is_float(node.type)

    def _fold_of(self, node: Total, made: str, at: str, place: str, turn: str = "", held: str = "") -> Fold:
        """That of the total `made`, whose argument is written here; `turn` and `held` are those of `added`."""
        if not self.is_real(node):
            return fold_of(node, made, self.write(node.argument), at, place)
        self.function("real_sums")
        if node.name == "product":
            return real_fold(node, made, f"{made} = times({made}, {real_term(self, node.argument)}, far);")
        self._uses = self._uses or uses_in(self._root)
        alone = self._uses[node.argument] == 1
        return real_fold(node, made, added(self, made, node.argument, alone=alone, turn=turn, held=held))

    def _combination(self, node: Total, counts: Sequence[str]) -> Scope:
        """The body of a loop over all combinations, `rest` being which it is, or which is the first of neighbours."""
        scope = Scope(frozenset(node.indices), self._scope)
        for index, count in reversed([*zip(node.indices, counts, strict=True)][1:]):
            name, above = self._new("i"), self._new("above")
            quotient, size = self.divided(count)
            scope.lines += [
                f"const unsigned {above} = {quotient};",
                f"const long long {name} = rest - {above} * {size};",
                f"rest = {above};",
            ]
            self._indices[index] = name
        name = self._indices[node.indices[0]] = self._new("i")
        scope.lines += [f"const long long {name} = rest;"]
        if self._along is node.indices[-1]:
            scope.lines.append(f"const long long from = {self._indices[node.indices[-1]]};")
            self._indices[node.indices[-1]] = self._new("i")
        return scope

    def divided(self, count: str) -> tuple[str, str]:
        """`rest` over a count, and the count."""
        return f"rest / (unsigned){count}", f"(unsigned){count}"


def _members(ranks: Sequence[int], inputs: int) -> list[str]:
    """What a kernel is told of sizes, in C++: `shape_of`."""
    made = [f"unsigned {name}[{ranks[-1]}];" for name in ("sizes", "magic", "shifts", "strides")]
    made += ["unsigned pieces, pieces_magic, pieces_shift;"]
    return made + [
        f"unsigned {name}{n}[{rank}];" for n, rank in enumerate(ranks[:inputs]) for name in ("sizes", "strides")
    ]


def _steps(rank: int) -> list[str]:
    """What of an output element's place is due to each of the first dimensions."""
    return [f"(unsigned long long)c{n} * shape.strides[{n}]" for n in range(rank)]


def _offset(rank: int) -> str:
    """An output element's place."""
    return " + ".join(_steps(rank))


def places_of(axes: range) -> list[str]:
    """The coordinates along these dimensions, the first ones, of the place that is number `left`."""
    lines = []
    for axis in reversed(axes[1:]):
        lines += [
            f"const unsigned above{axis} = divided(left, shape.magic[{axis}], shape.shifts[{axis}]);",
            f"const long long c{axis} = left - above{axis} * shape.sizes[{axis}];",
            f"left = above{axis};",
        ]
    return [*lines, "const long long c0 = left;"] if axes else lines
