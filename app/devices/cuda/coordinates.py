"""CUDA kernels of formulas that go by coordinates: a block for each part of a row of the output, a thread for each
element where rows are short, or a block for each element where there are few, or totals go along rows, and are long.

The formula's totals are loops. What is computed stands in the outermost loop that has all indices it is made of, so
that no loop does again what an inner one might. Reductions of a block are those of `rows.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from app.contract.constants import DataType
from app.devices.cuda.functions import PRIMITIVES, library
from app.devices.cuda.grids import KERNEL, THREADS
from app.devices.cuda.lowering import C_TYPES, Lowering, convert, literal
from app.devices.cuda.rows import REDUCERS
from app.formula.coordinates import Coordinate, Element, Index, Total, accumulated_type
from app.formula.expansions import Ask
from app.formula.ranges import Ranges
from app.formula.uniform import is_uniform, typed, uniform_parts
from app.formula.values import INT64, Number, Value, integer_range, is_float, parts
from app.programs.dispatchable import Dispatchable

FEW = 1 << 14
"""Elements of an output that are fewer leave most of a GPU idle if each is computed by one thread."""

CHUNKS = (512, 256, 128)
"""Elements of a row that a block computes, at most a fourth of them for nothing: what they have in common, its threads
find out once."""

LONG, MOST = 1 << 8, 1 << 32
"""Totals of so many combinations are worth a block's threads, which count them with 32 bits."""

MOST_TERMS, MOST_WORK = 1 << 28, 1 << 40
"""Terms that one thread may compute for an element, and that a kernel may for all: seconds of an H200's time, since a
kernel under way cannot be stopped. More is NumPy's, which can."""

_PLACES = r"""
/* n / d for any 32-bit n and d > 0: with 2^(l-1) < d <= 2^l, `magic` is 2^32 (2^l - d) / d + 1 and `shift` is l. */
DEVICE unsigned divided(unsigned n, unsigned magic, unsigned shift)
{
    unsigned high = (unsigned)(((unsigned long long)n * magic) >> 32);
    return (unsigned)(((unsigned long long)high + n) >> shift);
}
/* The coordinate nearest to `at` that is inside. */
DEVICE unsigned long long inside(long long at, unsigned size)
{
    return (unsigned)(at < 0 ? 0 : at < (long long)size ? at : (long long)size - 1);
}
"""

_CHOICE = r"""
/* NaN before numbers, the better before the worse, and of equals the first or the last; at < 0 is none. */
template <bool LEAST, bool LAST, class T> DEVICE place<T> chosen(place<T> a, place<T> b)
{
    if (a.at < 0) return b;
    if (b.at < 0) return a;
    bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    if (nan_a != nan_b) return nan_a ? a : b;
    if (!nan_a && a.value != b.value) return (a.value > b.value) != LEAST ? a : b;
    return (a.at < b.at) != LAST ? a : b;
}
template <class T> DEVICE T smaller(T a, T b) { return a < b || a != a ? a : b; }
"""


@dataclass(frozen=True, slots=True)
class CoordinateClass:
    """What of the tensors chooses code: the ranks of the inputs and, last, of the output, whether that has few
    elements, and which of CHUNKS its rows are cut into, or 0."""

    ranks: tuple[int, ...]
    few: bool
    chunk: int


@dataclass(frozen=True, slots=True)
class Coordinates:
    """How the tensors of an output lie that is made by coordinates."""

    kind: CoordinateClass
    elements: int
    terms: int
    """Of an element, at most."""
    shape: np.ndarray[tuple[int], np.dtype[np.uint32]]
    """The kernel's argument: of the output sizes, what divides by them, strides, and chunks of a row with what divides
    by these; of each input sizes and strides.

    Some 64 bytes for each tensor. Of 50 and more, kernels have more than 4 KiB of arguments, which CUDA 12.1 permits.
    """
    blocks: int
    """Of a kernel that goes by rows."""

    @classmethod
    def of(cls, compiled: Dispatchable, output: str) -> "Coordinates":
        made, inputs = compiled.outputs[output], list(compiled.inputs.values())
        divisions = [division(size) for size in made.Sizes]
        flat = [*made.Sizes, *(magic for magic, _ in divisions), *(shift for _, shift in divisions), *made.strides]
        chunk = _chunk(made.Sizes[-1])
        chunks = -(-made.Sizes[-1] // chunk) if chunk else 1
        flat += [chunks, *division(chunks)]
        for desc in inputs:
            flat += [*desc.Sizes, *desc.strides]
        ranks = (*(desc.rank for desc in inputs), made.rank)
        terms = Ranges(compiled.program.maps[output].expression, compiled.numbers, made.Sizes).terms()
        kind = CoordinateClass(ranks, made.elements < FEW, chunk)
        blocks = made.elements // made.Sizes[-1] * chunks
        return cls(kind, made.elements, terms, np.array(flat, np.uint32), blocks)

    def is_too_much(self, *, shared: bool) -> bool:
        """Whether a kernel, whose blocks' threads may have `shared` the terms of an element, is not to be started."""
        return self.terms > (MOST if shared else MOST_TERMS) or self.elements * self.terms > MOST_WORK


def _chunk(size: int) -> int:
    return next((chunk for chunk in CHUNKS if -(-size // chunk) * chunk * 3 <= 4 * size), 0)


def division(size: int) -> tuple[int, int]:
    """What `divided` takes for a divisor."""
    shift = (size - 1).bit_length()
    return ((1 << 32) * ((1 << shift) - size)) // size + 1, shift


@dataclass(eq=False, slots=True)
class _Scope:
    """The body of the kernel, or of a loop: what is known there, and its lines."""

    indices: frozenset[Index]
    """Those that change with each turn of the loop."""
    outer: "_Scope | None"
    lines: list[str] = field(default_factory=list)
    written: dict[Value, str] = field(default_factory=dict)


class CoordinateLowering(Lowering):
    """Writes a formula as the body of a kernel."""

    def __init__(self, ask: Ask, root: Value, inputs: Sequence[tuple[str, DataType]], stored: DataType) -> None:
        super().__init__(ask, root, inputs, stored, exact=True)
        self._uniform = uniform_parts(root)
        self._free: dict[Value, frozenset[Index]] = {}
        self._indices: dict[Index, str] = {}
        self._names = 0
        self._shared: dict[Total, bool] = {}
        self._along: Index | None = None
        self._inner = -1
        self._scope = _Scope(frozenset(), None)
        self._lines = self._scope.lines

    def source(self, kind: CoordinateClass) -> tuple[str, int, tuple[Value, ...]]:
        """The kernel, the elements that a block computes, 0 if it goes by rows, and what its last arguments are."""
        for node in parts(self._root):
            if isinstance(node, Total) and not self._free_of(node) and self._uniform.issuperset(node.counts):
                self._shared[node] = (kind.few or self._is_along_rows(node)) and bool(self.ask(_is_long, *node.counts))
        shared = any(self._shared.values())
        rank, last = kind.ranks[-1], len(self.inputs)
        chunk = 0 if shared else kind.chunk
        if chunk:
            self._along, self._inner = Index(INT64), rank - 1
            self._free.clear()  # that coordinate is an index from here on
            self._scope = _Scope(frozenset([self._along]), self._scope)
            self._lines = self._scope.lines
        result = self._store(self.write(self._root), self._root.type)
        store = f"out[{' + '.join(f'(unsigned long long)c{n} * shape.strides[{n}]' for n in range(rank))}] = {result};"
        if chunk:
            assert self._scope.outer, "rows are in the kernel"
            lines = self._rows(chunk, rank, [*self._scope.lines, store], self._scope.outer.lines)
        else:
            lines = [
                "const unsigned long long i = blockIdx.x;"
                if shared
                else "const unsigned long long i = (unsigned long long)blockIdx.x * THREADS + threadIdx.x;",
                "if (i >= count) return;",
                "unsigned left = (unsigned)i;",  # a tensor has fewer than 2^32 elements
                *_places(range(rank)),
                *self._scope.lines,
                f"if (threadIdx.x == 0) {store}" if shared else store,
            ]
        members = [f"unsigned {name}[{rank}];" for name in ("sizes", "magic", "shifts", "strides")]
        members += ["unsigned chunks, chunks_magic, chunks_shift;"]
        members += [
            f"unsigned {name}{n}[{each}];" for n, each in enumerate(kind.ranks[:last]) for name in ("sizes", "strides")
        ]
        stored = [C_TYPES[stored.value.lower()] for _, stored in self.inputs]
        declared = [f"const {each}* __restrict__ in{n}" for n, each in enumerate(stored)]
        declared += [f"{C_TYPES[self.stored.value.lower()]}* __restrict__ out", "unsigned long long count"]
        declared += [
            "const shape shape",
            *(f"{C_TYPES[value.type]} {name}" for name, value in self._arguments.values()),
        ]
        head = f'extern "C" __global__ void __launch_bounds__({THREADS}) {KERNEL}({", ".join(declared)})'
        source = (
            f"{PRIMITIVES}#define THREADS {THREADS}\n{REDUCERS + _CHOICE if shared else ''}{_PLACES}"
            f"{library(self._functions)}\nstruct shape {{ {' '.join(members)} }};\n\n{head}\n{_braced(lines)}"
        )
        return source, 1 if shared else 0 if chunk else THREADS, tuple(value for _, value in self._arguments.values())

    def _rows(self, chunk: int, rank: int, inner: Sequence[str], outer: Sequence[str]) -> list[str]:
        """The body of a kernel whose blocks have a chunk of a row each."""
        last = rank - 1
        across = [
            f"const long long c{last} = (long long)start + turn;",
            f"if (c{last} >= shape.sizes[{last}]) break;",
            *inner,
        ]
        return [
            "unsigned left = divided(blockIdx.x, shape.chunks_magic, shape.chunks_shift);",
            f"const unsigned start = (blockIdx.x - left * shape.chunks) * {chunk}u;",
            *_places(range(last)),
            *outer,
            "#pragma unroll",
            f"for (unsigned turn = threadIdx.x; turn < {chunk}u; turn += THREADS)",
            _braced(across),
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
        home, free = self._scope, self._free_of(node)
        while home.outer and free.isdisjoint(home.indices):
            home = home.outer
        found = home.written.get(node)
        if found is None:
            before, self._scope, self._lines = self._scope, home, home.lines
            found = home.written[node] = self._write(node)
            self._scope, self._lines = before, before.lines
        return found

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
        return super()._write(node)

    # Elements

    def _element(self, node: Element) -> str:
        number = [name for name, _ in self.inputs].index(node.name)
        steps = [
            f"inside({self.write(at)}, shape.sizes{number}[{axis}]) * shape.strides{number}[{axis}]"
            for axis, at in enumerate(node.at)
        ]
        return self.declare(
            node.type, convert(f"in{number}[{' + '.join(steps) or '0'}]", node.stored.value.lower(), node.type)
        )

    # Totals

    def _total(self, node: Total) -> str:
        made, at = self._new("a"), self._new("at")
        outer, lines = self._scope, self._lines
        counts = [self.write(each) for each in node.counts]
        shared = self._shared.get(node, False)
        if shared:
            inner, at = self._turns(node, counts), f"(long long)j{made}"
        else:
            inner = outer
            for index in node.indices:
                self._indices[index] = self._new("i")
                inner = _Scope(frozenset([index]), inner)
        self._scope, self._lines = inner, inner.lines
        fold = _fold(node, made, self.write(node.argument), at)
        self._scope, self._lines = outer, lines
        lines += fold.start
        inner.lines += fold.update
        if shared:
            sizes = " * ".join([f"({each} < 0 ? 0 : {each})" for each in counts])
            lines += [f"const unsigned n{made} = (unsigned)({sizes});"]
            inner.lines.insert(0, f"unsigned rest = j{made};")
            lines += [
                f"for (unsigned j{made} = threadIdx.x; j{made} < n{made}; j{made} += THREADS)",
                _braced(inner.lines),
            ]
            lines += [fold.join]
        else:
            if _is_position(node):
                lines += [f"long long {at} = 0;"]
                inner.lines += [f"++{at};"]
            for index, count in zip(reversed(node.indices), reversed(counts), strict=True):
                name = self._indices[index]
                assert inner.outer, "each index has a loop"
                loop = [f"for (long long {name} = 0; {name} < {count}; ++{name})", _braced(inner.lines)]
                inner = inner.outer
                inner.lines += loop
        return self.declare(node.type, fold.result)

    def _turns(self, node: Total, counts: Sequence[str]) -> _Scope:
        """The body of a loop in which a thread takes its turns at all combinations, `rest` being which it is."""
        scope = _Scope(frozenset(node.indices), self._scope)
        for index, count in reversed([*zip(node.indices, counts, strict=True)][1:]):
            name, above = self._new("i"), self._new("above")
            scope.lines += [f"const unsigned {above} = rest / (unsigned){count};"]
            scope.lines += [f"const long long {name} = rest - {above} * (unsigned){count};", f"rest = {above};"]
            self._indices[index] = name
        name = self._indices[node.indices[0]] = self._new("i")
        scope.lines += [f"const long long {name} = rest;"]
        return scope


def _places(axes: range) -> list[str]:
    """The coordinates along these dimensions, the first ones, of the place that is number `left`."""
    lines = []
    for axis in reversed(axes[1:]):
        lines += [
            f"const unsigned above{axis} = divided(left, shape.magic[{axis}], shape.shifts[{axis}]);",
            f"const long long c{axis} = left - above{axis} * shape.sizes[{axis}];",
            f"left = above{axis};",
        ]
    return [*lines, "const long long c0 = left;"] if axes else lines


def _is_long(*counts: Number) -> bool:
    return LONG <= math.prod(max(int(each), 0) for each in counts) < MOST


def _is_position(node: Total) -> bool:
    return node.name.startswith(("first", "last"))


@dataclass(frozen=True, slots=True)
class _Fold:
    """How a total is made: before its loop, in each turn, by joining those of several threads; and its value."""

    start: list[str]
    update: list[str]
    join: str
    result: str


def _fold(node: Total, made: str, value: str, at: str) -> _Fold:
    """The total `made` of an argument's `value`, the combination that is number `at`."""
    type_ = accumulated_type(node)
    kind, least = C_TYPES[type_], node.name.endswith("minimum")
    sign = "<" if least else ">"
    if _is_position(node):
        last = node.name.startswith("last")
        best = f"best_{made}"
        is_better = f"{made} < 0 || {value} {sign}{'=' if last else ''} {best}"
        if is_float(type_):
            is_better += f" || ({value} != {value}" + (")" if last else f" && {best} == {best})")
        join = f"chosen<{_truth(least)}, {_truth(last)}>(a, b)"
        return _Fold(
            [f"{kind} {best} = 0;", f"long long {made} = -1;"],
            [f"if ({is_better}) {{ {best} = {value}; {made} = {at}; }}"],
            f"{made} = reduced(place<{kind}>{{{best}, {made}}}, "
            f"[](place<{kind}> a, place<{kind}> b) {{ return {join}; }}).at;",
            f"{made} < 0 ? 0 : {made}",
        )
    if node.name in ("maximum", "minimum"):
        if is_float(type_):
            nothing: Number = math.inf if least else -math.inf
            is_beyond = f"{value} {sign} {made} || {value} != {value}"
        else:
            nothing = integer_range(type_)[least]
            is_beyond = f"{value} {sign} {made}"
        start = literal(typed(type_, nothing))
        update, join = f"if ({is_beyond}) {made} = {value};", f"{'smaller' if least else 'larger'}(a, b)"
    else:
        operator, start = ("+", "0") if node.name == "sum" else ("*", "1")
        wide = "unsigned long long" if np.dtype(type_).itemsize == 8 else "unsigned"
        wide = kind if is_float(type_) else wide  # integers wrap around, which only unsigned ones may do in C++
        update = f"{made} = ({kind})(({wide}){made} {operator} ({wide}){value});"
        join = f"({kind})(({wide})a {operator} ({wide})b)"
    return _Fold(
        [f"{kind} {made} = {start};"],
        [update],
        f"{made} = reduced({made}, []({kind} a, {kind} b) {{ return {join}; }});",
        convert(made, type_, node.type),
    )


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _braced(lines: Sequence[str]) -> str:
    inner = "\n".join(lines).replace("\n", "\n    ")
    return f"{{\n    {inner}\n}}"
