"""CUDA kernels of formulas with reductions: each group has a cluster of blocks, a block, or some threads of a warp, as
it is worth, which go over it once for each reduction and once more for the elements. Groups that fit are read into
registers first, and then no more. Of groups that lie side by side neighbouring threads have different ones.

Sums are added in two floats each, each thread's part first. Nothing is written before all reductions are done, so the
output may be one of the inputs; and what is too far for two floats is computed once more, with wides.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from app.contract.constants import DataType
from app.devices.cuda.c_types import C_TYPES
from app.devices.cuda.functions import PRIMITIVES, library
from app.devices.cuda.grids import KERNEL, THREADS
from app.devices.cuda.groups import RowClass, reduced_inputs
from app.devices.cuda.lowering import Lowering
from app.devices.cuda.real_operations import added, float_of_halves
from app.devices.cuda.reducers import GROUPS, REDUCERS, REDUCERS_ACROSS
from app.devices.cuda.sums import TWICE
from app.formula.expansions import Ask
from app.formula.precision import is_square
from app.formula.values import BOOL, FLOAT32, FLOAT64, Constant, Input, Operation, Position, Reduction, Value, parts

BLOCKS = 16
"""That are to fit on a multiprocessor, so that some compute while others wait; half as many where more is kept."""

MANY_KEPT = 16
"""Elements in a thread's registers, more than which leave little room for others."""

MOST_WITH_SUMS = 24
"""Of which so many blocks as are best with sums in two floats do not fit for more."""

FEW_KEPT = 8
"""Of which no more is kept than BLOCKS leave registers for."""


class RowLowering(Lowering):
    """Writes a formula as one function for each reduction's elements, and one for the output's."""

    of_terms = True

    def __init__(self, ask: Ask, root: Value, inputs: Sequence[tuple[str, DataType]], stored: DataType) -> None:
        super().__init__(ask, root, inputs, stored)
        self.smooth = False
        self.half |= stored is DataType.FLOAT16 and all(map(_is_for_half, parts(root)))
        self._functions_written: list[str] = []
        self.reductions = [node for node in parts(self._root) if isinstance(node, Reduction)]
        self._uses = Counter(each for parent in parts(self._root) for each in parent.operands())
        self._forget()

    def _forget(self) -> None:
        """What was written of one body is not known in the next."""
        self._known: dict[Value, str] = {}
        self._wholes: dict[int, list[tuple[str, Value]]] = {}
        """Functions of what reductions alone make, by the number of the stage before which they are computed."""
        self._given: dict[str, list[Value]] = {}
        """What is known to each function."""
        self._saved: set[int] = set()
        """Reductions of which the arguments stay in registers, since what comes later needs them."""

    def source(self, rows: RowClass) -> tuple[str, tuple[Value, ...]]:
        """The kernel, and what its last arguments are."""
        lines = self._body(rows, near=True)
        if self.has_far:
            # Nothing has been written yet, so that elements may be read again.
            beyond = self._body(replace(rows, kept=0, width=1), near=False)
            lines = [*_closure("near", lines, "true"), *_closure("beyond", beyond, "false"), "if (!near()) beyond();"]
        else:
            lines = ["constexpr bool NEAR = false;", *lines]
        kernel = self._kernel(rows, lines)
        arguments = tuple(value for _, value in self._arguments.values())
        body = "\n".join(self._functions_written)
        given = "".join(f", {C_TYPES[value.type]} {name}" for name, value in self._arguments.values())
        body = body.replace("PARAMETERS", given)
        kernel = kernel.replace("ARGUMENTS", "".join(f", {name}" for name, _ in self._arguments.values()))
        more = (TWICE if self.has_far else "") + library(self._functions)
        reducers = REDUCERS_ACROSS if rows.across else REDUCERS
        head = f"{PRIMITIVES}#define THREADS {rows.threads_of_block}\n{reducers}{GROUPS}"
        return f"{head}{more}{body}{kernel}", arguments

    def _body(self, rows: RowClass, *, near: bool) -> list[str]:
        """What the kernel does, for which functions are defined."""
        self._forget()
        prefix = "" if near else "far_"
        if any(self._is_real_sum(node, rows) for node in self.reductions):
            self.function("real_sums")
        for number, node in enumerate(self.reductions):
            self._know_wholes(number, node.argument, prefix)
            self._define(f"stage{number}", node.argument, node.argument.type, prefix, adds=self._is_added(node))
            later = [each.argument for each in self.reductions[number + 1 :]]
            if rows.kept and node.argument.type == FLOAT32 and self._is_needed(node.argument, [*later, self._root]):
                self._saved.add(number)
                self._known[node.argument] = f"s{number}"
            self._known[node] = f"r{number}"
        self._know_wholes(len(self.reductions), self._root, prefix)
        self._define("element", self._root, None, prefix)
        return self._lines_of_body(rows, near=near, prefix=prefix)

    def _is_real_sum(self, node: Reduction, rows: RowClass) -> bool:
        """Whether it is a sum without float64, and not such that floats will do."""
        if not self._in_reals or node.name != "sum" or _is_fraction(node.argument):
            return False
        return not (self.half and rows.kept and node.type == FLOAT32 and is_square(node.argument))

    def _is_added(self, node: Reduction) -> bool:
        """Whether it adds up, without float64, what is float64."""
        return self._in_reals and node.name == "sum" and node.argument.type == FLOAT64

    def _know_wholes(self, number: int, root: Value, prefix: str) -> None:
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
            self._define(name, node, node.type, prefix)
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

    def _define(self, name: str, node: Value, kind: str | None, prefix: str, *, adds: bool = False) -> None:
        """The function `name` of what is known; if it `adds`, of a sum to which the value is added."""
        self._lines, self._written = [], {}
        inputs = [f"{C_TYPES[stored.value.lower()]} x{n}" for n, (_, stored) in enumerate(self.inputs)]
        sum_ = ["real_sum<NEAR>& all", "bool& few"] if adds else []
        if adds:
            self.function("real_sums")
            value = added(self, "all", node, alone=self._uses[node] == 1)
        else:
            value = f"return {self.write(node) if kind else self.result()};"
        kind = kind or self.stored.value.lower()
        result = "void" if adds else "auto" if self._is_real(kind) else C_TYPES[kind]
        self._given[name] = list(self._known)
        types = [f"class T{n}" for n, node in enumerate(self._known) if self._is_real(node.type)]
        results = [
            f"{f'T{n}' if self._is_real(node.type) else C_TYPES[node.type]} {known}"
            for n, (node, known) in enumerate(self._known.items())
        ]
        declared = ", ".join([*inputs, "long long at", "bool& far", *sum_, *results])
        lines = "".join(f"    {line}\n" for line in [*self._lines, value])
        self._functions_written.append(
            f"template <{', '.join(['bool NEAR', *types])}> DEVICE {result} {prefix}{name}({declared}PARAMETERS)\n"
            f"{{\n{lines}}}\n"
        )

    def _is_real(self, kind: str) -> bool:
        return kind == FLOAT64 and self._in_reals

    def _kernel(self, rows: RowClass, body: Sequence[str]) -> str:
        tensors, outer, inner = len(self.inputs) + 1, rows.outer, rows.inner
        stored = [C_TYPES[stored.value.lower()] for _, stored in self.inputs]
        pointers = [f"const {kind}* in{n}" for n, kind in enumerate(stored)]
        out = C_TYPES[self.stored.value.lower()]
        declared = [*pointers, f"{out}* out", "unsigned long long count", "const shape shape"]
        declared += [f"{C_TYPES[value.type]} {name}" for name, value in self._arguments.values()]
        apart = rows.groups_of_block if rows.across else rows.threads
        first, second = f"threadIdx.x / {apart}", f"threadIdx.x % {apart}"
        thread, group = (first, second) if rows.across else (second, first)
        first_group, blocks = f"blockIdx.x * {rows.groups_of_block} + {group}", rows.blocks_of_group
        if blocks > 1:
            thread, first_group = f"blockIdx.x % {blocks} * THREADS + threadIdx.x", f"blockIdx.x / {blocks}"
        lines = [
            f"const unsigned thread = {thread};",
            f"unsigned rest = {first_group};",
            "if (rest >= count) return;",
            "bool far = false;",
            f"unsigned long long {', '.join(f'g{n} = 0' for n in range(tensors))};",
            "#pragma unroll",
            f"for (int axis = {outer - 1}; axis >= 0; --axis) {{",
            "    const unsigned above = rest / shape.outer[axis], here = rest - above * shape.outer[axis];",
            *(f"    g{n} += (unsigned long long)here * shape.outer_strides[{n}][axis];" for n in range(tensors)),
            "    rest = above;",
            "}",
            *body,
        ]
        struct = (
            f"struct shape {{ unsigned width; unsigned outer[{outer}]; unsigned inner[{inner}]; "
            f"unsigned outer_strides[{tensors}][{outer}]; unsigned inner_strides[{tensors}][{inner}]; }};\n"
        )
        text = "".join(f"    {line}\n" for line in lines)
        threads = rows.threads_of_block
        bounds = f"{threads}, {max(self._blocks(rows) * THREADS // threads, 1)}"
        cluster = f"__cluster_dims__({blocks}, 1, 1) " if blocks > 1 else ""
        head = f'extern "C" __global__ void {cluster}__launch_bounds__({bounds}) {KERNEL}({", ".join(declared)})'
        return f"\n{struct}\n{head}\n{{\n{text}}}\n"

    def _blocks(self, rows: RowClass) -> int:
        """How many are to fit on a multiprocessor."""
        many = rows.kept * rows.width * len(self._held(rows))
        if many > MANY_KEPT and any(node.type == FLOAT64 for node in parts(self._root)):
            # Two floats for each of these leave little more than that; halves take half as many registers.
            few = many > MOST_WITH_SUMS
            return (10 if few else 12) if self.stored is DataType.FLOAT16 else 6 if few else 8
        if self.half and len(self.reductions) > 2 and many > FEW_KEPT and rows.width > 1:
            return BLOCKS // 4  # whose lanes wait for each other: what is next to do is done meanwhile
        return BLOCKS if 0 < many <= FEW_KEPT else BLOCKS // 2

    def _held(self, rows: RowClass) -> list[int]:
        """The inputs whose elements stay in registers."""
        return self._reduced() if rows.kept else []

    def _reduced(self) -> list[int]:
        """The inputs that reductions are of."""
        known = reduced_inputs(self._root)
        return [n for n, (name, _) in enumerate(self.inputs) if name in known]

    def _lines_of_body(self, rows: RowClass, *, near: bool, prefix: str) -> list[str]:
        tensors, inner, kept = len(self.inputs) + 1, rows.inner, rows.kept
        last, threads, width = tensors - 1, rows.threads, rows.width
        stored = [C_TYPES[stored.value.lower()] for _, stored in self.inputs]
        out = C_TYPES[self.stored.value.lower()]
        held = self._held(rows)
        reduced = [] if kept else self._reduced()
        together = rows.threads_of_block if rows.across and threads > 1 else threads
        is_far = f"any_of<{together}>(far)"
        if rows.blocks_of_group > 1:
            is_far = f"reduced<{threads}>((int)far, [](int a, int b) {{ return a | b; }})"
        vote = [f"if ({is_far}) return false;"] if near and self.has_far else []

        def call(name: str, *, sum_: str = "", loaded: bool = False, far: bool = False) -> str:
            """`loaded`: what is held in registers is not all. `far`: the other body's function, for one element."""
            at = f"c * {width} + v"
            elements = [
                f"x{n}[{at}]" if n in held else f"y{n}[v]" if loaded or n in reduced else "0" for n in range(last)
            ]
            is_whole, others = name.startswith("whole"), []
            for node in self._given[name]:
                known = self._known[node]
                known = ("0" if is_whole else f"{known}[{at}]") if known[0] == "s" else known
                others.append(f"as_wide({known})" if far and self._is_real(node.type) else known)
            elements, place = (["0"] * last, "0") if is_whole else (elements, "(long long)(j + v)")
            called = f"far_{name}<false>" if far else f"{prefix}{name}<NEAR>"
            given = [*elements, place, "far", *([sum_, "few"] if sum_ else []), *others]
            return f"{called}({', '.join(given)}ARGUMENTS)"

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
                for n, unit in enumerate(inner == 1 and each for each in rows.units)
            ),
        ]
        across = ["#pragma unroll", f"for (int v = 0; v < {width}; ++v) {{"]
        loop = [f"for (unsigned j = thread * {width}; j < shape.width; j += {threads * width}) {{"]
        if kept:  # all but the last of a thread's elements are there for certain
            loop = [
                "#pragma unroll",
                f"for (int c = 0; c < {kept}; ++c) {{",
                f"    const unsigned j = (thread + c * {threads}) * {width};",
                f"    if (c == {kept - 1} && j >= shape.width) break;",
            ]

        def read(n: int, to: str) -> str:
            return f"{'read' if rows.units[n] or width == 1 else 'spread'}<{width}>({to}, in{n} + o{n});"

        loads = {n: f"{kind} y{n}[{width}]; {read(n, f'y{n}')}" for n, kind in enumerate(stored) if n not in held}
        lines = ["bool few = false;"] if self.has_far else []
        if held:
            lines += [f"{stored[n]} x{n}[{kept * width}];" for n in held]
            into = [read(n, f"x{n} + c * {width}") for n in held]
            lines += [*loop, *(f"    {line}" for line in [*places, *into]), "}"]

        def wholes(number: int) -> list[str]:
            made = self._wholes.get(number, [])
            kinds = ["auto" if self._is_real(node.type) else C_TYPES[node.type] for _, node in made]
            return [
                f"const {kind} {self._known[node]} = {call(name)};"
                for kind, (name, node) in zip(kinds, made, strict=True)
            ]

        for number, node in enumerate(self.reductions):
            lines += wholes(number)
            value = call(f"stage{number}", sum_="all" if self._is_added(node) else "")
            if number in self._saved:
                lines += [f"{C_TYPES[node.argument.type]} s{number}[{kept * width}];"]
                value = f"(s{number}[c * {width} + v] = {value})"
            begin, update, end = self._fold(number, node, value, rows)
            kind = "real_sum<NEAR>" if self._is_real(node.type) else C_TYPES[node.type]
            lines += [f"{kind} r{number};", "{", f"    {begin}", *(f"    {line}" for line in loop)]
            found = [] if kept else [*places, *(loads[n] for n in reduced)]
            lines += [f"        {line}" for line in [*found, *across]]
            lines += [*(f"            {line}" for line in update), "        }", "    }"]
            lines += [*(f"    {line}" for line in end), "}"]
        lines += [*wholes(len(self.reductions)), *([] if kept else vote)]
        elements = [
            *(f"    {line}" for line in loads.values()),
            *(f"    {line}" for line in across),
            f"        made.at[v] = {call('element', loaded=True)};",
        ]
        if vote and not kept:
            again = call("element", loaded=True, far=True)
            elements += [f"        if (far) made.at[v] = {again};", "        far = false;"]
        elements += ["    }"]
        store = f"    *(several<{out}, {width}>*)(out + o{last}) = made;"
        each = [*loop, *(f"    {line}" for line in places)]
        made = f"several<{out}, {width}> made"
        if vote and kept:  # all are known before any is stored
            lines += [f"{made}_of[{kept}];", *each, "    auto& made = made_of[c];", *elements, "}", *vote]
            lines += [*each, "    const auto& made = made_of[c];", store, "}"]
        else:
            lines += [*each, f"    {made};", *elements, store, "}"]
        return lines

    def _fold(self, number: int, node: Reduction, value: str, rows: RowClass) -> tuple[str, list[str], list[str]]:
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
            if self._is_real_sum(node, rows):
                begin = "real_sum<NEAR> all = real<NEAR>(0.0f, 0.0f);"
                update = f"{value};" if self._is_added(node) else f"add_to(all, real<NEAR>({value}));"
                if self.half and rows.width % 2 == 0 and float_of_halves(node.argument):
                    begin += " float held;"
                    update = f"if (v % 2 == 0) held = {value}; else add_to(all, real<NEAR>(held + {value}));"
                total = f"reduced<{threads}>(all, [](auto a, auto b) {{ return joined(a, b); }}), few, far"
                total = f"{'total_of' if self._is_real(node.type) else 'narrowed_total'}({total})"
                return begin, [update, *(["settle(all);"] if rows.wide else [])], [f"r{number} = {total};"]
            is_narrow = self.half and rows.kept and node.type == FLOAT32 and is_square(node.argument)
            if _is_fraction(node.argument) or is_narrow:
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
            f"    all = place<{kind}>{{one, (long long)(j + v)}};",
        ]
        join = f"reduced<{threads}>(all, [](place<{kind}> a, place<{kind}> b) {{ return first(a, b); }}).at"
        return begin, updates, [f"r{number} = ({result}){join};"]


def _closure(name: str, lines: Sequence[str], near: str) -> list[str]:
    """A function that says whether it has come to its end."""
    body = [f"constexpr bool NEAR = {near};", *lines, "return true;"]
    return [f"const auto {name} = [&]() -> bool {{", *(f"    {line}" for line in body), "};"]


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
