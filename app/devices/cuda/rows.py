"""CUDA kernels of formulas with reductions: a block for each group, or a warp where groups are short, which goes over
it once for each reduction and once more for the elements. Groups that fit are read into registers first, and then no
more.

Sums are added in float64, or in two floats where these have all digits, each thread's part first. Nothing is written
before all reductions are done, so the output may be one of the inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.contract.constants import DataType
from app.devices.cuda.c_types import C_TYPES
from app.devices.cuda.functions import PRIMITIVES, library
from app.devices.cuda.grids import KERNEL, THREADS
from app.devices.cuda.layouts import ACCESS_BYTES
from app.devices.cuda.lowering import Lowering
from app.devices.cuda.reducers import GROUPS, REDUCERS
from app.devices.layout import packed_along
from app.formula.expansions import Ask
from app.formula.values import BOOL, FLOAT32, FLOAT64, Constant, Input, Operation, Position, Reduction, Value, parts
from app.programs.dispatchable import Dispatchable
from app.programs.walks import collapse

BLOCKS = 16
"""That are to fit on a multiprocessor, so that some compute while others wait; half as many where more is kept."""

MOST_KEPT = {32: 32, THREADS: 16}
"""Elements of a group that a thread holds in registers, by the threads that a group has."""

FEW_KEPT = 8
"""Of which no more is kept than BLOCKS leave registers for."""


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
        made = compiled.program.maps[output]
        sizes, axes = compiled.outputs[output].Sizes, made.axes
        # Two more layouts see to it that elements keep their places in groups, and that groups stay apart.
        places = packed_along(sizes, [axis in axes for axis in range(len(sizes))])
        groups = packed_along(sizes, [axis not in axes for axis in range(len(sizes))])
        # The places decide on the order of the inner dimensions, so that a position is a place.
        merged, (places, groups, *steps) = collapse(sizes, [places, groups, *compiled.layouts(output)])
        inner = [axis for axis, step in enumerate(groups) if step == 0]
        outer = [axis for axis, step in enumerate(groups) if step != 0]
        inner.sort(key=lambda axis: -places[axis])
        return cls(
            [merged[axis] for axis in outer] or [1],
            [merged[axis] for axis in inner] or [1],
            [[each[axis] for axis in outer] or [0] for each in steps],
            [[each[axis] for axis in inner] or [0] for each in steps],
            [data_type.bytes for data_type in compiled.element_types(output)],
            len(_reduced(made.expression)),
        )

    @property
    def groups(self) -> int:
        return int(np.prod(self.outer, dtype=np.int64))

    def kind(self, *, aligned: bool) -> "RowClass":
        """What of this chooses code, and whether all addresses are `aligned` to what a thread loads at once."""
        units = tuple(steps == [1] for steps in self.inner_strides)
        width = self._width() if aligned and all(units) else 1
        for threads, most in MOST_KEPT.items():
            kept = -(-self.inner[0] // (threads * width))
            if len(self.inner) == 1 and kept * width * self.reduced <= most:
                return RowClass(len(self.outer), 1, threads, kept, width, units)
        return RowClass(len(self.outer), len(self.inner), THREADS, 0, 1, units)

    def _width(self) -> int:
        """Elements that a thread loads at once."""
        steps = [step for each in self.outer_strides for step, size in zip(each, self.outer, strict=True) if size > 1]
        width = ACCESS_BYTES // max(self.bytes_of_elements)
        while width > 1 and any(each % width for each in (self.inner[0], *steps)):
            width //= 2
        return max(width, 1)

    @property
    def shape(self) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        """The kernel's argument."""
        width = int(np.prod(self.inner, dtype=np.int64))
        flat = [width, *self.outer, *self.inner]
        flat += [step for each in (*self.outer_strides, *self.inner_strides) for step in each]
        return np.array(flat, np.uint32)


@dataclass(frozen=True, slots=True)
class RowClass:
    """Rows that one kernel serves: how many outer and inner dimensions they have; how many threads go over a group; how
    many times each of these reads into registers, 0 where a group has too many elements, or more than one dimension;
    how many neighbours it reads then; and which tensors have a group's elements one after the other, the output last.
    """

    outer: int
    inner: int
    threads: int
    kept: int
    width: int
    units: tuple[bool, ...]

    @property
    def groups_of_block(self) -> int:
        return THREADS // self.threads


class RowLowering(Lowering):
    """Writes a formula as one function for each reduction's elements, and one for the output's."""

    looks_again = False

    def __init__(self, ask: Ask, root: Value, inputs: Sequence[tuple[str, DataType]], stored: DataType) -> None:
        super().__init__(ask, root, inputs, stored)
        self.smooth = False
        self.half = stored is DataType.FLOAT16 and all(map(_is_for_half, parts(root)))
        self._functions_written: list[str] = []
        self.reductions = [node for node in parts(root) if isinstance(node, Reduction)]
        self._known: dict[Value, str] = {}
        self._wholes: dict[int, list[tuple[str, Value]]] = {}
        """Functions of what reductions alone make, by the number of the stage before which they are computed."""
        self._given: dict[str, list[str]] = {}
        """What is known to each function."""
        self._saved: set[int] = set()
        """Reductions of which the arguments stay in registers, since what comes later needs them."""

    def source(self, rows: "RowClass") -> tuple[str, tuple[Value, ...]]:
        """The kernel, and what its last arguments are."""
        for number, node in enumerate(self.reductions):
            self._know_wholes(number, node.argument)
            self._define(f"stage{number}", node.argument, node.argument.type)
            later = [each.argument for each in self.reductions[number + 1 :]]
            if rows.kept and node.argument.type == FLOAT32 and self._is_needed(node.argument, [*later, self._root]):
                self._saved.add(number)
                self._known[node.argument] = f"s{number}"
            self._known[node] = f"r{number}"
        self._know_wholes(len(self.reductions), self._root)
        self._define("element", self._root, None)
        kernel = self._kernel(rows)
        arguments = tuple(value for _, value in self._arguments.values())
        define = f"#define THREADS {THREADS}\n"
        body = "\n".join(self._functions_written)
        signature = self._declared()
        body = body.replace("PARAMETERS", "".join(f", {each}" for each in signature))
        source = PRIMITIVES + define + REDUCERS + GROUPS + library(self._functions) + body + kernel
        return source, arguments

    def _know_wholes(self, number: int, root: Value) -> None:
        """What of `root` is made of reductions alone is computed once for a group, before stage `number`."""
        found, seen, waiting = list[Value](), set[Value](), [root]
        while waiting:
            node = waiting.pop()
            if node in seen or node in self._known or not isinstance(node, Operation):
                continue
            seen.add(node)
            if self._is_whole(node):
                found.append(node)
            else:
                waiting += node.operands()
        for node in found:
            name = f"whole{sum(map(len, self._wholes.values()))}"
            self._define(name, node, node.type)
            self._wholes.setdefault(number, []).append((name, node))
        for name, node in self._wholes.get(number, []):
            self._known[node] = name.replace("whole", "w")

    @staticmethod
    def _is_whole(node: Value) -> bool:
        """Whether it is the same for a group's elements, but not for all groups."""
        waiting, reduces = [node], False
        while waiting:
            each = waiting.pop()
            if isinstance(each, Input | Position):
                return False
            if isinstance(each, Reduction):
                reduces = True
            else:
                waiting += each.operands()
        return reduces

    def _is_needed(self, node: Value, roots: Sequence[Value]) -> bool:
        """Whether any of `roots` is made of an operation's result by itself, not by a reduction of it."""
        if not isinstance(node, Operation):
            return False
        waiting, seen = list(roots), set[Value]()
        while waiting:
            each = waiting.pop()
            if each is node:
                return True
            if each not in seen and not isinstance(each, Reduction):
                seen.add(each)
                waiting += each.operands()
        return False

    def _write(self, node: Value) -> str:
        if node in self._known:
            return self._known[node]
        match node:
            case Position():
                return "at"
            case Operation(name="divide", arguments=(share, Reduction(name="sum", argument=term) as total)) if (
                share is term and _is_fraction(term)
            ):
                a, b = self.write(share), self.write(total)
                made = (
                    f"{a} * (1.0f / {b})" if self.half else self.call("fraction_of", [a, b, f"1.0f / {b}"], far=False)
                )
                return self.declare(node.type, made)
            case Operation(name="where", arguments=(test, nothing, Operation() as term)) if _is_fraction(node):
                chosen, zero, other = (self.write(each) for each in (test, nothing, term))
                other = self.declare(node.type, f"whatever_is_taken({other})")
                return self.declare(node.type, f"{chosen} ? {zero} : {other}")
        return super()._write(node)

    def _declared(self) -> list[str]:
        return [f"{C_TYPES[value.type]} {name}" for name, value in self._arguments.values()]

    def _define(self, name: str, node: Value, kind: str | None) -> None:
        self._lines, self._written = [], {}
        value = self.write(node) if kind else self.result()
        kind = kind or self.stored.value.lower()
        inputs = [f"{C_TYPES[stored.value.lower()]} x{n}" for n, (_, stored) in enumerate(self.inputs)]
        results = [f"{C_TYPES[node.type]} {known}" for node, known in self._known.items()]
        self._given[name] = list(self._known.values())
        declared = ", ".join([*inputs, "long long at", "bool& far", *results])
        lines = "".join(f"    {line}\n" for line in [*self._lines, f"return {value};"])
        self._functions_written.append(
            f"template <bool NEAR> DEVICE {C_TYPES[kind]} {name}({declared}PARAMETERS)\n{{\n{lines}}}\n"
        )

    def _kernel(self, rows: "RowClass") -> str:
        tensors, outer, inner = len(self.inputs) + 1, rows.outer, rows.inner
        last, threads, width = tensors - 1, rows.threads, rows.width
        names = [name for name, _ in self._arguments.values()]
        stored = [C_TYPES[stored.value.lower()] for _, stored in self.inputs]
        pointers = [f"const {kind}* in{n}" for n, kind in enumerate(stored)]
        out = C_TYPES[self.stored.value.lower()]
        declared = [*pointers, f"{out}* out", "unsigned long long count", "const shape shape", *self._declared()]
        kept, known = rows.kept, _reduced(self._root)
        held = [n for n, (name, _) in enumerate(self.inputs) if kept and name in known]

        def call(name: str, loaded: bool = False) -> str:
            """`loaded`: what is held in registers is not all."""
            at = f"c * {width} + v"
            elements = [
                f"x{n}[{at}]" if n in held else f"y{n}[v]" if loaded else "0" if kept else f"in{n}[o{n}]"
                for n in range(last)
            ]
            others = [f"{each}[{at}]" if each[0] == "s" else each for each in self._given[name]]
            if name.startswith("whole"):
                elements, others = ["0"] * last, ["0" if each[0] == "s" else each for each in self._given[name]]
                return f"{name}<false>({', '.join([*elements, '0', 'far', *others, *names])})"
            return f"{name}<false>({', '.join([*elements, '(long long)(j + v)', 'far', *others, *names])})"

        places = [
            f"unsigned long long {', '.join(f'o{n} = g{n}' for n in range(tensors))}; unsigned left = j;",
            "#pragma unroll",
            f"for (int axis = {inner - 1}; axis > 0; --axis) {{",
            "    const unsigned above = left / shape.inner[axis], here = left - above * shape.inner[axis];",
            *(f"    o{n} += (unsigned long long)here * shape.inner_strides[{n}][axis];" for n in range(tensors)),
            "    left = above;",
            "}",
            *(
                f"o{n} += {'left' if unit else f'(unsigned long long)left * shape.inner_strides[{n}][0]'};"
                for n, unit in enumerate(rows.units)
            ),
        ]
        across = ["#pragma unroll", f"for (int v = 0; v < {width}; ++v) {{"]
        loop = [f"for (unsigned j = thread, c = 0; j < shape.width; j += {threads}) {{"]
        if kept:  # all but the last of a thread's elements are there for certain
            loop = [
                "#pragma unroll",
                f"for (int c = 0; c < {kept}; ++c) {{",
                f"    const unsigned j = (thread + c * {threads}) * {width};",
                f"    if (c == {kept - 1} && j >= shape.width) break;",
            ]
        lines = [
            f"const unsigned thread = threadIdx.x % {threads};",
            f"unsigned rest = blockIdx.x * {rows.groups_of_block} + threadIdx.x / {threads};",
            "if (rest >= count) return;",
            "bool far = false;",
            f"unsigned long long {', '.join(f'g{n} = 0' for n in range(tensors))};",
            "#pragma unroll",
            f"for (int axis = {outer - 1}; axis >= 0; --axis) {{",
            "    const unsigned above = rest / shape.outer[axis], here = rest - above * shape.outer[axis];",
            *(f"    g{n} += (unsigned long long)here * shape.outer_strides[{n}][axis];" for n in range(tensors)),
            "    rest = above;",
            "}",
        ]
        if held:
            lines += [f"{stored[n]} x{n}[{kept * width}];" for n in held]
            loads = [f"read<{width}>(x{n} + c * {width}, in{n} + o{n});" for n in held]
            lines += [*loop, *(f"    {line}" for line in [*places, *loads]), "}"]

        def wholes(number: int) -> list[str]:
            made = self._wholes.get(number, [])
            return [f"const {C_TYPES[node.type]} {self._known[node]} = {call(name)};" for name, node in made]

        for number, node in enumerate(self.reductions):
            lines += wholes(number)
            value = call(f"stage{number}")
            if number in self._saved:
                lines += [f"{C_TYPES[node.argument.type]} s{number}[{kept * width}];"]
                value = f"(s{number}[c * {width} + v] = {value})"
            begin, update, end = self._fold(number, node, value, rows)
            lines += [f"{C_TYPES[node.type]} r{number};", "{", f"    {begin}", *(f"    {line}" for line in loop)]
            lines += [f"        {line}" for line in [*([] if kept else places), *across]]
            lines += [*(f"            {line}" for line in update), "        }", "    }"]
            lines += [*(f"    {line}" for line in end), "}"]
        others = [n for n in range(last) if n not in held]
        lines += [
            *wholes(len(self.reductions)),
            *loop,
            *(f"    {line}" for line in places),
            *(f"    {stored[n]} y{n}[{width}]; read<{width}>(y{n}, in{n} + o{n});" for n in others),
            f"    several<{out}, {width}> made;",
            *(f"    {line}" for line in across),
            f"        made.at[v] = {call('element', loaded=True)};",
            "    }",
            f"    *(several<{out}, {width}>*)(out + o{last}) = made;",
            "}",
        ]
        struct = (
            f"struct shape {{ unsigned width; unsigned outer[{outer}]; unsigned inner[{inner}]; "
            f"unsigned outer_strides[{tensors}][{outer}]; unsigned inner_strides[{tensors}][{inner}]; }};\n"
        )
        body = "".join(f"    {line}\n" for line in lines)
        many = kept * width * len(held)
        blocks = BLOCKS if 0 < many <= FEW_KEPT else BLOCKS // 2
        if many > MOST_KEPT[THREADS] and any(node.type == FLOAT64 for node in parts(self._root)):
            # Halves take half as many registers, and many lanes that wait for float64.
            blocks = BLOCKS * 3 // 4 if self.stored is DataType.FLOAT16 else BLOCKS // 4
        elif self.half and len(self.reductions) > 2 and many > FEW_KEPT and width > 1:
            blocks = BLOCKS // 4  # whose lanes wait for each other: what is next to do is done meanwhile
        head = f'extern "C" __global__ void __launch_bounds__({THREADS}, {blocks}) {KERNEL}({", ".join(declared)})'
        return f"\n{struct}\n{head}\n{{\n{body}}}\n"

    def _fold(self, number: int, node: Reduction, value: str, rows: "RowClass") -> tuple[str, list[str], list[str]]:
        """What a reduction begins with, does with each `value`, and ends with."""
        kind, result, threads = C_TYPES[node.argument.type], C_TYPES[node.type], rows.threads
        if node.name == "sum":
            whole, begin, update, part = f"r{number} = ({result})", "double all = 0;", f"all += (double){value};", "all"
            if _is_fraction(node.argument) and not (rows.kept and (self.half or _is_count(node.argument))):
                begin, update, part = (
                    "exact_sum all = {2.0f, 0.0f};",
                    f"add_to(all, {value});",
                    "make_float2(all.all - 2.0f, all.lost)",
                )
                joined = f"reduced<{threads}>({part}, sum_of_both)"
                return begin, [update], [f"const float2 both = {joined};", f"{whole}(both.x + both.y);"]
            if _is_fraction(node.argument):
                begin, update = "float all = 0;", f"all += {value};"
            join = f"reduced<{threads}>(all, [](auto a, auto b) {{ return a + b; }})"
            return begin, [update], [f"{whole}{join};"]
        if node.name == "maximum" or rows.kept:
            # A thread without elements takes the first one's, which changes no maximum.
            join = f"reduced<{threads}>(any ? all : shared, []({kind} a, {kind} b) {{ return largest_of(a, b); }})"
            end = [
                f"{kind} shared = all;",
                f"if (shape.width < {threads * rows.width}) shared = shared_by_all<{threads}>(all);",
                f"all = {join};",
                *([f"r{number} = all;"] if node.name == "maximum" else _first_of_kept(number, kind, value, rows)),
            ]
            return (
                f"{kind} all; bool any = false;",
                [f"{kind} one = {value}; all = any ? largest_of(all, one) : one; any = true;"],
                end,
            )
        begin = f"place<{kind}> all = {{0, -1}};"
        updates = [
            f"{kind} one = {value};",  # a thread meets its elements in order, so of equals the first stays
            "if (all.at < 0 || one > all.value || (one != one && all.value == all.value))",
            f"    all = place<{kind}>{{one, (long long)j}};",
        ]
        join = f"reduced(all, [](place<{kind}> a, place<{kind}> b) {{ return first(a, b); }}).at"
        return begin, updates, [f"r{number} = ({result}){join};"]


def _first_of_kept(number: int, kind: str, value: str, rows: RowClass) -> list[str]:
    """Where the first of the elements in registers is that is the largest, or NaN."""
    return [
        "unsigned found = ~0u;",
        "#pragma unroll",
        f"for (int c = {rows.kept - 1}; c >= 0; --c) {{",
        f"    const unsigned j = (thread + c * {rows.threads}) * {rows.width};",
        f"    if (c == {rows.kept - 1} && j >= shape.width) continue;",
        "    #pragma unroll",
        f"    for (int v = {rows.width - 1}; v >= 0; --v) {{",
        f"        const {kind} one = {value};",
        f"        if (one == all || one != one) found = c * {rows.width} + v;",
        "    }",
        "}",
        f"if (found != ~0u) found = (thread + found / {rows.width} * {rows.threads}) * {rows.width} + "
        f"found % {rows.width};",
        f"r{number} = reduced<{rows.threads}>(found, [](unsigned a, unsigned b) {{ return a < b ? a : b; }});",
    ]


def _reduced(root: Value) -> set[str]:
    """The inputs that reductions are of."""
    arguments = [node.argument for node in parts(root) if isinstance(node, Reduction)]
    return {node.name for argument in arguments for node in parts(argument) if isinstance(node, Input)}


def _is_fraction(node: Value) -> bool:
    """Whether a float32 is from 0 to 1, or NaN."""
    match node:
        case Operation(type="float32", name="exp_of_difference", arguments=(x, Reduction(name="maximum", argument=y))):
            return x is y
        case Operation(type="float32", name="where", arguments=(_, Constant(value=0), other)):
            return _is_fraction(other)
    return _is_count(node)


def _is_count(node: Value) -> bool:
    """Whether a float32 is 0 or 1."""
    match node:
        case Operation(type="float32", name="cast", arguments=(argument,)):
            return argument.type == BOOL
    return False


def _is_for_half(node: Value) -> bool:
    """Whether what is made of `node` has the digits of float16 if float32 and approximate functions make it."""
    if isinstance(node, Operation) and node.name not in _FOR_HALF:
        return False
    return node.type != FLOAT64


_FOR_HALF = frozenset(
    ["exp_of_difference", "subtract", "divide", "greater_equal", "equal", "where", "cast", "log1p", "add"]
)
