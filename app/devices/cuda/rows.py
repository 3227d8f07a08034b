"""CUDA kernels of formulas with reductions: a block for each group, which it goes over once for each reduction and once
more for the elements. Groups that fit are read into registers first, and then no more.

Sums are added in float64, each thread's part first. Nothing is written before all reductions are done, so the output
may be one of the inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.contract.constants import DataType
from app.devices.cuda.c_types import C_TYPES
from app.devices.cuda.functions import PRIMITIVES, library
from app.devices.cuda.grids import KERNEL, THREADS
from app.devices.cuda.lowering import Lowering
from app.devices.layout import packed_along
from app.formula.expansions import Ask
from app.formula.values import Position, Reduction, Value, parts
from app.programs.dispatchable import Dispatchable
from app.programs.walks import collapse

REDUCERS = r"""
template <class T> DEVICE T shared_by_all(T value)
{
    __shared__ T kept;
    __syncthreads();
    if (threadIdx.x == 0) kept = value;
    __syncthreads();
    return kept;
}
template <class T> union words { T value; int at[(sizeof(T) + 3) / 4]; };
/* All the threads' values joined, for all of them: by lanes, then by warps. The order of joining must not matter. */
template <class T, class Join> DEVICE T reduced(T value, Join join)
{
    #pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
        words<T> mine, other;
        mine.value = value;
        #pragma unroll
        for (int n = 0; n < sizeof(mine.at) / 4; ++n) other.at[n] = __shfl_xor_sync(~0u, mine.at[n], apart);
        value = join(value, other.value);
    }
    __shared__ T values[THREADS / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = value;
    __syncthreads();
    value = values[0];
    #pragma unroll
    for (int warp = 1; warp < THREADS / 32; ++warp) value = join(value, values[warp]);
    return value;
}
template <class T> DEVICE T larger(T a, T b) { return a > b || a != a ? a : b; }
template <class T> struct place { T value; long long at; };
/* NaN before numbers, the larger before the smaller, and of equals the first; at < 0 is none. */
template <class T> DEVICE place<T> first(place<T> a, place<T> b)
{
    if (a.at < 0) return b;
    if (b.at < 0) return a;
    bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    if (nan_a != nan_b) return nan_a ? a : b;
    if (!nan_a && a.value != b.value) return a.value > b.value ? a : b;
    return a.at < b.at ? a : b;
}
"""


BLOCKS = 16
"""That are to fit on a multiprocessor, so that some compute while others wait; half as many where more is kept."""

MOST_KEPT = 16
"""Elements of a group that a thread holds in registers."""


@dataclass(frozen=True, slots=True)
class Rows:
    """How an operator's groups lie: `outer` sizes of the dimensions that tell groups apart and `inner` of those within
    one, with each tensor's strides, in elements, the output's last."""

    outer: list[int]
    inner: list[int]
    outer_strides: list[list[int]]
    inner_strides: list[list[int]]

    @classmethod
    def of(cls, compiled: Dispatchable, output: str) -> "Rows":
        """Those of an `output` whose formula reduces."""
        sizes, axes = compiled.outputs[output].Sizes, compiled.program.maps[output].axes
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
        )

    @property
    def groups(self) -> int:
        return int(np.prod(self.outer, dtype=np.int64))

    @property
    def kind(self) -> "RowClass":
        """What of this chooses code."""
        kept = -(-self.inner[0] // THREADS)
        return RowClass(
            len(self.outer),
            len(self.inner),
            kept if len(self.inner) == 1 and kept <= MOST_KEPT else 0,
            tuple(steps == [1] for steps in self.inner_strides),
        )

    @property
    def shape(self) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        """The kernel's argument."""
        width = int(np.prod(self.inner, dtype=np.int64))
        flat = [width, *self.outer, *self.inner]
        flat += [step for each in (*self.outer_strides, *self.inner_strides) for step in each]
        return np.array(flat, np.uint32)


@dataclass(frozen=True, slots=True)
class RowClass:
    """Rows that one kernel serves: how many outer and inner dimensions they have; how many elements each thread reads
    into registers, 0 where a group has too many, or more than one dimension; and which tensors have a group's elements
    one after the other, the output last."""

    outer: int
    inner: int
    kept: int
    units: tuple[bool, ...]


class RowLowering(Lowering):
    """Writes a formula as one function for each reduction's elements, and one for the output's."""

    looks_again = False

    def __init__(self, ask: Ask, root: Value, inputs: Sequence[tuple[str, DataType]], stored: DataType) -> None:
        super().__init__(ask, root, inputs, stored)
        self.smooth = self.half = False
        self._functions_written: list[tuple[str, str, str]] = []
        self.reductions = [node for node in parts(root) if isinstance(node, Reduction)]
        self._known: dict[Value, str] = {}

    def source(self, rows: "RowClass") -> tuple[str, tuple[Value, ...]]:
        """The kernel, and what its last arguments are."""
        for number, node in enumerate(self.reductions):
            self._define(f"stage{number}", node.argument, node.argument.type)
            self._known[node] = f"r{number}"
        self._define("element", self._root, None)
        kernel = self._kernel(rows)
        arguments = tuple(value for _, value in self._arguments.values())
        define = f"#define THREADS {THREADS}\n"
        body = "\n".join(text for _, _, text in self._functions_written)
        signature = self._declared()
        body = body.replace("PARAMETERS", "".join(f", {each}" for each in signature))
        source = PRIMITIVES + define + REDUCERS + library(self._functions) + body + kernel
        return source, arguments

    def _write(self, node: Value) -> str:
        if node in self._known:
            return self._known[node]
        if isinstance(node, Position):
            return "at"
        return super()._write(node)

    def _declared(self) -> list[str]:
        return [f"{C_TYPES[value.type]} {name}" for name, value in self._arguments.values()]

    def _define(self, name: str, node: Value, kind: str | None) -> None:
        self._lines, self._written = [], {}
        value = self.write(node) if kind else self.result()
        kind = kind or self.stored.value.lower()
        inputs = [f"{C_TYPES[stored.value.lower()]} x{n}" for n, (_, stored) in enumerate(self.inputs)]
        results = [f"{C_TYPES[node.type]} {known}" for node, known in self._known.items()]
        declared = ", ".join([*inputs, "long long at", "bool& far", *results])
        lines = "".join(f"    {line}\n" for line in [*self._lines, f"return {value};"])
        text = f"template <bool NEAR> DEVICE {C_TYPES[kind]} {name}({declared}PARAMETERS)\n{{\n{lines}}}\n"
        self._functions_written.append((name, C_TYPES[kind], text))

    def _kernel(self, rows: "RowClass") -> str:
        tensors, outer, inner = len(self.inputs) + 1, rows.outer, rows.inner
        last = tensors - 1
        names = [name for name, _ in self._arguments.values()]
        stored = [C_TYPES[stored.value.lower()] for _, stored in self.inputs]
        pointers = [f"const {kind}* in{n}" for n, kind in enumerate(stored)]
        out = C_TYPES[self.stored.value.lower()]
        declared = [*pointers, f"{out}* out", "unsigned long long count", "const shape shape", *self._declared()]
        kept = rows.kept
        elements = [f"x{n}[c]" if kept else f"in{n}[o{n}]" for n in range(last)]

        def call(name: str, known: int) -> str:
            given = [*elements, "(long long)j", "far", *(f"r{n}" for n in range(known)), *names]
            return f"{name}<false>({', '.join(given)})"

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
        loop = [f"for (unsigned j = threadIdx.x; j < shape.width; j += {THREADS}) {{"]
        if kept:  # all but the last of a thread's elements are there for certain
            loop = [
                "#pragma unroll",
                f"for (int c = 0; c < {kept}; ++c) {{",
                f"    const unsigned j = threadIdx.x + c * {THREADS};",
                f"    if (c == {kept - 1} && j >= shape.width) break;",
            ]
        lines = [
            "bool far = false;",
            "unsigned rest = blockIdx.x;",
            f"unsigned long long {', '.join(f'g{n} = 0' for n in range(tensors))};",
            "#pragma unroll",
            f"for (int axis = {outer - 1}; axis >= 0; --axis) {{",
            "    const unsigned above = rest / shape.outer[axis], here = rest - above * shape.outer[axis];",
            *(f"    g{n} += (unsigned long long)here * shape.outer_strides[{n}][axis];" for n in range(tensors)),
            "    rest = above;",
            "}",
        ]
        if kept:
            lines += [f"{kind} x{n}[{kept}];" for n, kind in enumerate(stored)]
            loads = [f"x{n}[c] = in{n}[o{n}];" for n in range(last)]
            lines += [*loop, *(f"    {line}" for line in [*places, *loads]), "}"]
        for number, node in enumerate(self.reductions):
            kind, result = C_TYPES[node.argument.type], C_TYPES[node.type]
            value = call(f"stage{number}", number)
            match node.name:
                case "sum":
                    start, update = "double all = 0;", [f"all += (double){value};"]
                    join = "reduced(all, [](double a, double b) { return a + b; })"
                case "maximum":
                    start = f"{kind} all; bool any = false;"
                    update = [f"{kind} one = {value}; all = any ? larger(all, one) : one; any = true;"]
                    # A thread without elements takes the first one's, which changes no maximum.
                    join = f"reduced(any ? all : shared, []({kind} a, {kind} b) {{ return larger(a, b); }})"
                case _:
                    start = f"place<{kind}> all = {{0, -1}};"
                    update = [
                        f"{kind} one = {value};",  # a thread meets its elements in order, so of equals the first stays
                        "if (all.at < 0 || one > all.value || (one != one && all.value == all.value))",
                        f"    all = place<{kind}>{{one, (long long)j}};",
                    ]
                    join = f"reduced(all, [](place<{kind}> a, place<{kind}> b) {{ return first(a, b); }}).at"
            lines += [f"{result} r{number};", "{", f"    {start}", *(f"    {line}" for line in loop)]
            lines += [f"        {line}" for line in [*([] if kept else places), *update]]
            lines += ["    }"]
            if node.name == "maximum":
                lines += [f"    {kind} shared = all;"]
                lines += [f"    if (shape.width < {THREADS}) shared = shared_by_all(all);"]  # thread 0 has one, always
            lines += [f"    r{number} = ({result}){join};", "}"]
        lines += [
            *loop,
            *(f"    {line}" for line in places),
            f"    out[o{last}] = {call('element', len(self.reductions))};",
            "}",
        ]
        struct = (
            f"struct shape {{ unsigned width; unsigned outer[{outer}]; unsigned inner[{inner}]; "
            f"unsigned outer_strides[{tensors}][{outer}]; unsigned inner_strides[{tensors}][{inner}]; }};\n"
        )
        body = "".join(f"    {line}\n" for line in lines)
        blocks = BLOCKS if 0 < kept <= MOST_KEPT // 2 else BLOCKS // 2
        head = f'extern "C" __global__ void __launch_bounds__({THREADS}, {blocks}) {KERNEL}({", ".join(declared)})'
        return f"\n{struct}\n{head}\n{{\n{body}}}\n"
