"""CUDA kernels of formulas that go by coordinates: a block for each part of a row of the output, a thread for each
element where rows are short, or a block for each element where there are few, or totals go along rows, and are long.

The formula's totals are loops. What is computed stands in the outermost loop that has all indices it is made of, so
that no loop does again what an inner one might. Reductions of a block are those of `rows.py`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from app.contract.constants import DataType
from app.devices.cuda.c_types import C_TYPES, convert
from app.devices.cuda.folds import CHOICE, fold_of, is_position
from app.devices.cuda.functions import PRIMITIVES, library
from app.devices.cuda.grids import KERNEL, THREADS
from app.devices.cuda.lowering import Lowering
from app.devices.cuda.places import DIVISION, CoordinateClass, is_long, narrowed_integers
from app.devices.cuda.reducers import REDUCERS
from app.devices.cuda.vectors import NEIGHBOURS, Along, goes_up
from app.formula.coordinates import Coordinate, Element, Index, Total
from app.formula.expansions import Ask
from app.formula.uniform import is_uniform, uniform_parts
from app.formula.values import INT64, Operation, Value, parts


@dataclass(eq=False, slots=True)
class Scope:
    """The body of the kernel, or of a loop: what is known there, and its lines."""

    indices: frozenset[Index]
    """Those that change with each turn of the loop."""
    outer: "Scope | None"
    lines: list[str] = field(default_factory=list)
    written: dict[Value, str] = field(default_factory=dict)


class CoordinateLowering(Lowering):
    """Writes a formula as the body of a kernel."""

    looks_again = False

    def __init__(self, ask: Ask, root: Value, inputs: Sequence[tuple[str, DataType]], stored: DataType) -> None:
        super().__init__(ask, root, inputs, stored, exact=True)
        self._uniform = uniform_parts(root)
        self._free: dict[Value, frozenset[Index]] = {}
        self._indices: dict[Index, str] = {}
        self._names = 0
        self._counter = "long long"
        """What loops count with."""
        self._shared: dict[Total, bool] = {}
        self._window: tuple[int, ...] = ()
        self._along: Index | None = None
        self._inner = -1
        self._width = 1
        self._uses: dict[Value, int] = {}
        self._guards: dict[Value, list[tuple[str, Scope]]] = {}
        self._scope = Scope(frozenset(), None)
        self._lines = self._scope.lines

    def source(self, kind: CoordinateClass) -> tuple[str, int, tuple[Value, ...]]:
        """The kernel, the elements that a block computes, 0 if it goes by rows, and what its last arguments are."""
        if kind.narrow:
            self._root, self._counter, self._window = narrowed_integers(self._root), "int", kind.window
            self._uniform = uniform_parts(self._root)
        for node in parts(self._root):
            if isinstance(node, Total) and not self._free_of(node) and self._uniform.issuperset(node.counts):
                self._shared[node] = (kind.few or self._is_along_rows(node)) and bool(self.ask(is_long, *node.counts))
        shared = any(self._shared.values())
        rank = kind.ranks[-1]
        chunk = 0 if shared else kind.chunk
        if chunk or kind.width > 1:
            self.go_along(rank - 1, kind.width)
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
                "const unsigned long long i = blockIdx.x;"
                if shared
                else "const unsigned long long i = (unsigned long long)blockIdx.x * THREADS + threadIdx.x;",
                "if (i >= count) return;",
                "unsigned left = (unsigned)i;",  # a tensor has fewer than 2^32 elements
                *places_of(range(rank)),
                *self._scope.lines,
                f"if (threadIdx.x == 0) {store}" if shared else store,
            ]
        text, arguments = self.kernel(kind.ranks, lines, shared=shared)
        return text, 1 if shared else 0 if chunk else THREADS, arguments

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
        head = f'extern "C" __global__ void __launch_bounds__({THREADS}) {KERNEL}({", ".join(declared)})'
        source = (
            f"{PRIMITIVES}#define THREADS {THREADS}\n{REDUCERS if shared else ''}{CHOICE}{DIVISION}"
            f"{NEIGHBOURS if self._width > 1 else ''}{more}{library(self._functions)}\n"
            f"struct shape {{ {' '.join(members)} }};\n\n{head}\n{braced(lines)}"
        )
        return source, tuple(value for _, value in self._arguments.values())

    @property
    def along_rows(self) -> frozenset[Index]:
        """What changes from one element of a row to the next."""
        assert self._along, "threads go along rows"
        return frozenset([self._along])

    def go_along(self, axis: int | Index, width: int) -> None:
        """From here on the coordinate along `axis` is an index, or threads go along an index. `width` is how many
        neighbours a thread computes."""
        self._inner, self._width = (axis, width) if isinstance(axis, int) else (-1, width)
        self._along = Index(INT64) if isinstance(axis, int) else axis
        self._free.clear()

    def enter(self, scope: Scope) -> None:
        """Write in `scope` what belongs nowhere else."""
        self._scope, self._lines = scope, scope.lines

    def _neighbours(self, rank: int, inner: Sequence[str], outer: Sequence[str]) -> list[str]:
        """The body of a kernel whose threads have some neighbours along a row each."""
        last, width, kind = rank - 1, self._width, C_TYPES[self.stored.value.lower()]
        return [
            "const unsigned long long i = (unsigned long long)blockIdx.x * THREADS + threadIdx.x;",
            "if (i >= count) return;",
            "unsigned left = divided((unsigned)i, shape.pieces_magic, shape.pieces_shift);",
            f"const long long from = (long long)((unsigned)i - left * shape.pieces) * {width};",
            *places_of(range(last)),
            *outer,
            f"neighbours<{kind}, {width}> made;",
            "#pragma unroll",
            f"for (int k = 0; k < {width}; ++k)",
            braced([f"const long long c{last} = from + k;", *inner]),
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

    def _is_along_rows(self, total: Total) -> bool:
        """Whether threads that take turns at its terms read elements that lie together."""
        fastest = total.indices[-1]
        elements = [node for node in parts(total.argument) if isinstance(node, Element) and node.at]
        return any(fastest in self._free_of(node.at[-1]) for node in elements)

    def is_uniform(self, node: Value) -> bool:
        return node in self._uniform or (node not in self._free and is_uniform(node))

    # Where values stand

    def write(self, node: Value) -> str:
        """The C++ expression of `node`: a name or a literal, known from where it stands on."""
        home = self._home(node)
        found = home.written.get(node)
        if found is None:
            before, self._scope, self._lines = self._scope, home, home.lines
            found = home.written[node] = self._write(node)
            self._scope, self._lines = before, before.lines
        return found

    def _home(self, node: Value) -> Scope:
        """The outermost scope that knows all that `node` is made of."""
        home, free = self._scope, self._free_of(node)
        while home.outer and free.isdisjoint(home.indices):
            home = home.outer
        return home

    def declare(self, kind: str, expression: str) -> str:
        name = self._new("v")
        self._lines.append(f"const {C_TYPES[kind]} {name} = {expression};")
        return name

    def _new(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _free_of(self, node: Value) -> frozenset[Index]:
        """The indices that `node` changes with."""
        for each in () if node in self._free else parts(node):
            if each not in self._free:
                free = frozenset[Index]().union(*[self._free[operand] for operand in each.operands()])
                match each:
                    case Index():
                        free = frozenset([each])
                    case Coordinate() if each.axis == self._inner and self._along:
                        free = frozenset([self._along])
                    case Total():
                        free -= set(each.indices)
                self._free[each] = free
        return self._free[node]

    def _write(self, node: Value) -> str:
        match node:
            case Coordinate():
                return f"c{node.axis}"
            case Index():
                return self._indices[node]
            case Element():
                return self._element(node)
            case Total():
                return self._total(node)
            case Operation(name="where"):
                self._guard(node)
        return super()._write(node)

    # Elements

    def _element(self, node: Element) -> str:
        number, scope = [name for name, _ in self.inputs].index(node.name), self._scope
        stored, last = C_TYPES[node.stored.value.lower()], len(node.at) - 1
        first = self._first(node) if self._width > 1 and scope.indices == self.along_rows else None
        steps = [
            f"inside({self.write(at)}, shape.sizes{number}[{axis}]) * shape.strides{number}[{axis}]"
            for axis, at in enumerate(node.at[: last if first else None])
        ]
        if first is None:
            value, test = f"in{number}[{' + '.join(steps) or '0'}]", self._test(node, scope)
            value = f"({test} ? {value} : ({stored})0)" if test else value
        else:
            assert scope.outer, "neighbours are in the kernel"
            name, test = self._new("near"), self._test(node, scope.outer)
            scope.outer.lines += [
                f"neighbours<{stored}, {self._width}> {name} = {{}};",
                f"{f'if ({test}) ' if test else ''}gathered({name}, {' + '.join([f'in{number}', *steps])}, {first}, "
                f"shape.sizes{number}[{last}], shape.strides{number}[{last}]);",
            ]
            value = f"{name}.at[k]"
        return self.declare(node.type, convert(value, node.stored.value.lower(), node.type))

    def _first(self, node: Element) -> str | None:
        """The last coordinate of the first of a thread's elements, if these are neighbours."""
        along = Along(
            lambda each: each is self._along or goes_up(each, self._inner),
            lambda each: not self._free_of(each).isdisjoint(self.along_rows),
            self.is_one,
        )
        return along.first(node, self.write)

    def _guard(self, node: Operation) -> None:
        """Elements that only one side of a choice needs are read where it is chosen. In a total's loop, all are, so
        that no read waits for another."""
        if self._free_of(node) - (self.along_rows if self._along else frozenset()):
            return
        test, home = self.write(node.arguments[0]), self._home(node.arguments[0])
        for sign, side in zip(("", "!"), node.arguments[1:], strict=True):
            for element in self._only_of(side):
                self._guards.setdefault(element, []).append((sign + test, home))

    def _only_of(self, node: Value) -> Iterator[Element]:
        """The elements that nothing else is made of."""
        self._uses = self._uses or Counter(each for parent in parts(self._root) for each in parent.operands())
        if self._uses[node] == 1:
            if isinstance(node, Element):
                yield node
            elif isinstance(node, Operation):
                for each in node.arguments:
                    yield from self._only_of(each)

    def _test(self, node: Element, scope: Scope) -> str:
        """What of an element's guards is known in `scope`."""
        known = [scope]
        while known[-1].outer:
            known.append(known[-1].outer)
        return " && ".join(test for test, home in self._guards.get(node, []) if any(home is each for each in known))

    # Totals

    def _total(self, node: Total) -> str:
        made, at = self._new("a"), self._new("at")
        outer, lines = self._scope, self._lines
        counts = [self.write(each) for each in node.counts]
        shared = self._shared.get(node, False)
        if shared:
            inner, at = self._turns(node, counts), f"j{made}"
        else:
            inner = outer
            for index in node.indices:
                self._indices[index] = self._new("i")
                inner = Scope(frozenset([index]), inner)
        self._scope, self._lines = inner, inner.lines
        fold = fold_of(node, made, self.write(node.argument), at, "unsigned" if shared else "long long")
        self._scope, self._lines = outer, lines
        lines += [f"{fold.kind} {made} = {fold.start};"]
        inner.lines += [fold.update]
        if shared:
            sizes = " * ".join([f"({each} < 0 ? 0 : {each})" for each in counts])
            lines += [f"const unsigned n{made} = (unsigned)({sizes});"]
            inner.lines.insert(0, f"unsigned rest = j{made};")
            lines += [
                f"for (unsigned j{made} = threadIdx.x; j{made} < n{made}; j{made} += THREADS)",
                braced(inner.lines),
            ]
            lines += [f"const {fold.packed} all_{made} = {fold.reduced()};"]
            return self.declare(node.type, fold.result(f"all_{made}"))
        if is_position(node):
            lines += [f"long long {at} = 0;"]
            inner.lines += [f"++{at};"]
        if self._window:
            # Elements are read wherever their coordinates are, so that reads need not wait for a look at counts.
            known = [f"{self._indices[index]} < {count}" for index, count in zip(node.indices, counts, strict=True)]
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

    def _turns(self, node: Total, counts: Sequence[str]) -> Scope:
        """The body of a loop in which a thread takes its turns at all combinations, `rest` being which it is."""
        scope = Scope(frozenset(node.indices), self._scope)
        for index, count in reversed([*zip(node.indices, counts, strict=True)][1:]):
            name, above = self._new("i"), self._new("above")
            scope.lines += [f"const unsigned {above} = rest / (unsigned){count};"]
            scope.lines += [f"const long long {name} = rest - {above} * (unsigned){count};", f"rest = {above};"]
            self._indices[index] = name
        name = self._indices[node.indices[0]] = self._new("i")
        scope.lines += [f"const long long {name} = rest;"]
        return scope


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


def braced(lines: Sequence[str]) -> str:
    inner = "\n".join(lines).replace("\n", "\n    ")
    return f"{{\n    {inner}\n}}"
