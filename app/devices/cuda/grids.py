"""CUDA kernels around the arithmetic of a formula: how threads walk the tensors' layouts."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.devices.cuda.functions import PRIMITIVES
from app.devices.cuda.layouts import Access, Layout
from app.devices.cuda.lowering import Arithmetic

TOGETHER = 2
"""Elements that are computed at a time where formulas are long: as many copies of it has the compiler to make."""

WARP = 32

THREADS = 128
"""Of a block. One block for each tile beats a persistent grid by 3 to 8% on an H200."""

TURNED_TOGETHER, TURNING_BLOCKS = 16, 8
"""Elements of a tile that a thread loads before the first is there, and blocks that are to fit on a multiprocessor."""

KERNEL = "dmlserve_kernel"


@dataclass(frozen=True, slots=True)
class Tuning:
    """Vectors that a thread of a packed kernel computes, and blocks that are to fit on a multiprocessor (0: any)."""

    vectors: int
    blocks: int


LONG = {
    **dict.fromkeys(("acosh", "asinh", "log1p"), Tuning(2, 16)),
    **dict.fromkeys(("sine_of<false>", "cosine_of<false>", "tangent_of<false>"), Tuning(2, 16)),
    "rounded_sum": Tuning(2, 10),
    "gelu(": Tuning(4, 16),
    "power_of_one": Tuning(4, 6),
}
"""Functions in which one instruction waits for another so long that vectors are worth their registers, or that compute
something beforehand."""


def tune(arithmetic: Arithmetic, layout: Layout) -> Tuning:
    """What an H200 was fastest with, of 13 shapes (`tests/benchmarks/gpu.md`): memory needs many threads, long
    arithmetic two vectors each, so that the instructions of one fill the waits of the other."""
    if not is_packed(layout) or layout.width == 1 or arithmetic.is_long:
        return Tuning(1, 0)
    for name, tuning in LONG.items():
        if f" {name}" in arithmetic.source:
            return tuning
    if arithmetic.far:
        return Tuning(2, 16)
    return Tuning(2, 12) if "double" in arithmetic.parameters else Tuning(1, 0)


def is_packed(layout: Layout) -> bool:
    """Whether the kernel needs no coordinates."""
    return layout.rank == 1 and Access.ANY not in layout.steps


def elements_of_block(arithmetic: Arithmetic, layout: Layout) -> int:
    """Elements that a block computes; 0 of a tile, which may have fewer."""
    if layout.tile:
        return 0
    return THREADS * layout.width * tune(arithmetic, layout).vectors


def render(arithmetic: Arithmetic, layout: Layout) -> str:
    """The source of the kernel. Its parameters: a pointer for each input, the output's, the elements to compute, then
    if there are several dimensions their sizes and each tensor's strides, then the arithmetic's."""
    kernel = (_packed if is_packed(layout) else _tiled if layout.tile else _strided)(arithmetic, layout)
    return PRIMITIVES + arithmetic.source + kernel


def _signature(arithmetic: Arithmetic, blocks: int = 0, extra: Sequence[str] = ()) -> str:
    inputs = [f"const {kind}* in{number}" for number, kind in enumerate(arithmetic.inputs)]
    parameters = [f"{kind} p{number}" for number, kind in enumerate(arithmetic.parameters)]
    declared = ", ".join([*inputs, f"{arithmetic.output}* out", "unsigned long long count", *extra, *parameters])
    bounds = f"{THREADS}, {blocks}" if blocks else f"{THREADS}"
    return f'extern "C" __global__ void __launch_bounds__({bounds}) {KERNEL}({declared})'


def _element(arithmetic: Arithmetic, arguments: Sequence[str], *, near: bool = False) -> str:
    parameters = [f"p{number}" for number in range(len(arithmetic.parameters))]
    return f"element<{'true' if near else 'false'}>({', '.join([*arguments, *parameters, 'far'])})"


def _single(arithmetic: Arithmetic, place: str, arguments: Sequence[str]) -> str:
    """The block that computes one element, as exactly as it must be."""
    if not arithmetic.far:
        return f"{{ {place} = {_element(arithmetic, arguments)}; }}"
    near, far = (_element(arithmetic, arguments, near=near) for near in (True, False))
    return f"{{ far = false; const {arithmetic.output} y = {near}; {place} = far ? {far} : y; }}"


_BYTES = ("signed char", "unsigned char")
"""Kept four to a word: left to itself, the compiler takes three times as many instructions to get at them."""


def _vectors(arithmetic: Arithmetic, width: int) -> str:
    types = dict.fromkeys([*arithmetic.inputs, arithmetic.output])
    return "".join(
        f"struct __align__(sizeof({kind}) * {width}) {_vector(kind)} "
        + (
            f"{{ unsigned words[{width // 4}]; }};\n"
            if _in_words(kind, width) and not arithmetic.is_long
            else f"{{ {kind} at[{width}]; }};\n"
        )
        for kind in types
    )


def _in_words(kind: str, width: int) -> bool:
    return kind in _BYTES and width % 4 == 0


def _vector(kind: str) -> str:
    return f"vector_{kind.replace(' ', '_')}"


def _get(vector: str, kind: str, width: int, at: int) -> str:
    """Element `at` of a vector."""
    if not _in_words(kind, width):
        return f"{vector}.at[{at}]"
    return f"byte_of<{at % 4}, {'true' if kind == 'signed char' else 'false'}>({vector}.words[{at // 4}])"


def _compute(arithmetic: Arithmetic, width: int, loaded: Sequence[str | None], result: str = "r") -> list[str]:
    """Lines that fill the vector `result`. `loaded` names each input's vector; None is an input that does not move."""
    lines = [f"{_vector(arithmetic.output)} {result};"]
    if arithmetic.is_long and width >= TOGETHER:
        return [*lines, *_in_turns(arithmetic, width, loaded, result)]
    others_are_one = all(name is None or number in arithmetic.in_words for number, name in enumerate(loaded))
    if arithmetic.in_words and others_are_one and _in_words(arithmetic.output, width):
        return [*lines, *(_words(arithmetic, loaded, at, f"{result}.words[{at}]") for at in range(width // 4))]
    results = []
    for at in range(width):
        given = [
            f"a{number}" if name is None else _get(name, kind, width, at)
            for number, (name, kind) in enumerate(zip(loaded, arithmetic.inputs, strict=True))
        ]
        results.append(_element(arithmetic, given, near=True))
    if _in_words(arithmetic.output, width):
        fours = (", ".join(results[at : at + 4]) for at in range(0, width, 4))
        return [*lines, *(f"{result}.words[{number}] = word_of({each});" for number, each in enumerate(fours))]
    return [*lines, *(f"{result}.at[{at}] = {each};" for at, each in enumerate(results))]


def _in_turns(arithmetic: Arithmetic, width: int, loaded: Sequence[str | None], result: str) -> list[str]:
    """The same by a loop, in which vectors turn, so that the formula is not there once for each of their elements."""
    rest = width - TOGETHER
    lines = ["#pragma unroll 1", f"for (int turn = 0; turn < {width // TOGETHER}; ++turn) {{"]
    for at in range(TOGETHER):
        given = [f"a{number}" if name is None else f"{name}.at[{at}]" for number, name in enumerate(loaded)]
        lines += [f"    const {arithmetic.output} y{at} = {_element(arithmetic, given, near=True)};"]
    for name in [*filter(None, loaded), result]:
        lines += [
            "    #pragma unroll",
            f"    for (int k = 0; k < {rest}; ++k) {name}.at[k] = {name}.at[k + {TOGETHER}];",
        ]
    return [*lines, *(f"    {result}.at[{rest + at}] = y{at};" for at in range(TOGETHER)), "}"]


def _long(arithmetic: Arithmetic, layout: Layout) -> str:
    """One dimension, of a formula that is to be there as seldom as can be: the last tile has no code of its own."""
    width = layout.width
    lines = [
        "bool far = false;",
        f"const unsigned long long i = ((unsigned long long)blockIdx.x * {THREADS} + threadIdx.x) * {width};",
        "if (i >= count) return;",
        f"const bool whole = i + {width} <= count;",
    ]
    loaded: list[str | None] = []
    for n, (kind, step) in enumerate(zip(arithmetic.inputs, layout.steps, strict=False)):
        if step is Access.NONE:
            lines += [f"const {kind} a{n} = *in{n};"]
            loaded.append(None)
        else:
            vector, last = _vector(kind), "count - 1"
            lines += [f"{vector} a{n};", f"if (whole) a{n} = *reinterpret_cast<const {vector}*>(in{n} + i);"]
            lines += ["else", "    #pragma unroll"]
            lines += [f"    for (int k = 0; k < {width}; ++k) a{n}.at[k] = in{n}[i + k < count ? i + k : {last}];"]
            loaded.append(f"a{n}")
    lines += _compute(arithmetic, width, loaded)
    lines += [
        f"if (whole) *reinterpret_cast<{_vector(arithmetic.output)}*>(out + i) = r;",
        "else",
        "    #pragma unroll",
    ]
    lines += [f"    for (int k = 0; k < {width}; ++k) if (i + k < count) out[i + k] = r.at[k];"]
    return f"\n{_vectors(arithmetic, width)}\n{_signature(arithmetic)}\n{_block(lines)}"


def _words(arithmetic: Arithmetic, loaded: Sequence[str | None], at: int, result: str) -> str:
    """The line that makes word `at` of a vector."""
    given = []
    for number, name in enumerate(loaded):
        single = f"a{number}" if name is None else f"{name}.words[{at}]"
        is_repeated = name is None and number in arithmetic.in_words
        given.append(f"(unsigned char){single} * 0x01010101u" if is_repeated else single)
    parameters = [f"p{number}" for number in range(len(arithmetic.parameters))]
    return f"{result} = elements({', '.join([*given, *parameters, 'far'])});"


def _packed(arithmetic: Arithmetic, layout: Layout) -> str:
    """One dimension. A block computes a tile; in the last, and where quick ways do not lead, elements one by one."""
    width, tuning = layout.width, tune(arithmetic, layout)
    if arithmetic.is_long and width > 1:
        return _long(arithmetic, layout)
    vectors = tuning.vectors
    inputs = list(zip(arithmetic.inputs, layout.steps, strict=False))
    lines = ["bool far = false;"]
    lines += [f"const {kind} a{n} = *in{n};" for n, (kind, step) in enumerate(inputs) if step is Access.NONE]
    tile = elements_of_block(arithmetic, layout)
    if width == 1:
        singles = [f"a{n}" if step is Access.NONE else f"in{n}[k]" for n, (_, step) in enumerate(inputs)]
        lines += [f"const unsigned long long k = (unsigned long long)blockIdx.x * {THREADS} + threadIdx.x;"]
        lines += [f"if (k < count) {_single(arithmetic, 'out[k]', singles)}"]
        return f"\n{_signature(arithmetic)}\n{_block(lines)}"
    lines += [
        f"const unsigned long long tile = (unsigned long long)blockIdx.x * {tile};",
        f"const unsigned long long i = tile + threadIdx.x * {width};",
        "unsigned left = ~0u;",  # vectors, by the bits of their numbers
        f"if (tile + {tile} <= count) {{",
        "    left = 0u;",
    ]
    body: list[str] = []
    places = [f"i + {v * THREADS * width}" for v in range(vectors)]
    for v, place in enumerate(places):
        body += [
            f"const {_vector(kind)} a{n}_{v} = *reinterpret_cast<const {_vector(kind)}*>(in{n} + {place});"
            for n, (kind, step) in enumerate(inputs)
            if step is not Access.NONE
        ]
    for v, place in enumerate(places):
        loaded = [None if step is Access.NONE else f"a{n}_{v}" for n, (_, step) in enumerate(inputs)]
        store = f"*reinterpret_cast<{_vector(arithmetic.output)}*>(out + {place}) = r{v};"
        body += _compute(arithmetic, width, loaded, f"r{v}")
        # One look for all of a vector: a branch for each element would keep the compiler from interleaving them.
        body += [f"if (!far) {store}", f"left |= (unsigned)far << {v};", "far = false;"] if arithmetic.far else [store]
    body += ["if (left == 0u) return;"]
    lines += [*(f"    {line}" for line in body), "}", "#pragma unroll 1"]
    lines += [
        f"for (auto start = i; start < tile + {tile} && start < count; start += {THREADS * width}, left >>= 1) {{",
        "    if (!(left & 1u)) continue;",
        *(f"    {line}" for line in _one_by_one(arithmetic, layout)),
        "}",
    ]
    return f"\n{_vectors(arithmetic, width)}\n{_signature(arithmetic, tuning.blocks)}\n{_block(lines)}"


def _one_by_one(arithmetic: Arithmetic, layout: Layout) -> list[str]:
    """Lines that compute the vector from `start` on by one element after the other, the last may be a part of one. It
    is loaded and stored as a whole: a GPU that reads the host's memory waits for each access."""
    width, out = layout.width, arithmetic.output
    lines = [f"const bool whole = start + {width} <= count;"]
    singles = []
    for n, (kind, step) in enumerate(zip(arithmetic.inputs, layout.steps, strict=False)):
        singles.append(f"a{n}" if step is Access.NONE else f"at{n}[k]")
        if step is not Access.NONE:
            lines += [
                f"{_vector(kind)} b{n};",
                f"{kind}* const at{n} = reinterpret_cast<{kind}*>(&b{n});",
                f"if (whole) b{n} = *reinterpret_cast<const {_vector(kind)}*>(in{n} + start);",
                f"else for (int k = 0; k < {width}; ++k) at{n}[k] = in{n}[start + k < count ? start + k : start];",
            ]
    return [
        *lines,
        f"{_vector(out)} made;",
        f"{out}* const to = reinterpret_cast<{out}*>(&made);",
        "#pragma unroll 1",
        f"for (int k = 0; k < {width}; ++k) {_single(arithmetic, 'to[k]', singles)}",
        f"if (whole) *reinterpret_cast<{_vector(out)}*>(out + start) = made;",
        f"else for (int k = 0; start + k < count && k < {width}; ++k) out[start + k] = to[k];",
    ]


def _strided(arithmetic: Arithmetic, layout: Layout) -> str:
    """Several dimensions, or gaps. Neighbouring threads compute neighbours along the output's innermost dimension."""
    rank, width, count = layout.rank, layout.width, len(layout.steps)
    struct = f"struct shape {{ unsigned sizes[{rank}]; unsigned strides[{count}][{rank}]; }};\n"
    lines = [
        "bool far = false;",
        f"const unsigned long long i = ((unsigned long long)blockIdx.x * {THREADS} + threadIdx.x) * {width};",
        "if (i >= count) return;",
        "unsigned left = (unsigned)i;",  # a tensor has fewer than 2^32 elements
        f"unsigned long long {', '.join(f'o{number} = 0' for number in range(count))};",
        "#pragma unroll",
        f"for (int axis = {rank - 1}; axis > 0; --axis) {{",
        "    const unsigned size = shape.sizes[axis], above = left / size, at = left - above * size;",
        *(f"    o{n} += (unsigned long long)at * shape.strides[{n}][axis];" for n in range(count)),
        "    left = above;",
        "}",
        *(f"o{n} += (unsigned long long)left * shape.strides[{n}][0];" for n in range(count)),
    ]
    last = count - 1
    if width == 1:
        lines += [_single(arithmetic, f"out[o{last}]", [f"in{n}[o{n}]" for n in range(last)])]
        return f"\n{struct}\n{_signature(arithmetic, extra=['const shape shape'])}\n{_block(lines)}"
    singles = []
    loaded: list[str | None] = []
    for n, (kind, step) in enumerate(zip(arithmetic.inputs, layout.steps, strict=False)):
        if step is Access.NONE:
            lines += [f"const {kind} a{n} = in{n}[o{n}];"]
            loaded.append(None)
            singles.append(f"a{n}")
        else:
            lines += [f"{_vector(kind)} a{n} = *reinterpret_cast<const {_vector(kind)}*>(in{n} + o{n});"]
            loaded.append(f"a{n}")
            singles.append(f"at{n}[j]")
    out = _vector(arithmetic.output)
    store = f"*reinterpret_cast<{out}*>(out + o{last}) = r;"
    lines += _compute(arithmetic, width, loaded)
    if arithmetic.far:
        lines += [f"if (!far) {{ {store} return; }}"]
        for n, (kind, name) in enumerate(zip(arithmetic.inputs, loaded, strict=True)):
            if name:
                lines += [f"const {_vector(kind)} b{n} = {name};"]
                lines += [f"const {kind}* const at{n} = reinterpret_cast<const {kind}*>(&b{n});"]
        lines += [f"{out} made;", f"{arithmetic.output}* const to = reinterpret_cast<{arithmetic.output}*>(&made);"]
        lines += ["#pragma unroll 1", f"for (int j = 0; j < {width}; ++j) {_single(arithmetic, 'to[j]', singles)}"]
        store = f"*reinterpret_cast<{out}*>(out + o{last}) = made;"
    lines += [store]
    vectors = _vectors(arithmetic, width)
    return f"\n{struct}{vectors}\n{_signature(arithmetic, extra=['const shape shape'])}\n{_block(lines)}"


def _tiled(arithmetic: Arithmetic, layout: Layout) -> str:
    """Several dimensions, where some inputs lie along another than the output. A block reads tiles of these along
    theirs, and computes along the output's."""
    rank, count, across, tile = layout.rank, len(layout.steps), layout.across, layout.tile
    last, inner, each = count - 1, rank - 1, tile * tile // THREADS
    together = min(TURNED_TOGETHER, each)
    struct = f"struct shape {{ unsigned sizes[{rank}]; unsigned strides[{count}][{rank}]; }};\n"
    lines = [
        "bool far = false;",
        f"const unsigned wide = shape.sizes[{inner}], high = shape.sizes[{across}];",
        f"const unsigned tiles = (wide + {tile - 1}) / {tile}, rows = (high + {tile - 1}) / {tile};",
        f"unsigned left = blockIdx.x / tiles; const unsigned x0 = (blockIdx.x - left * tiles) * {tile};",
        f"unsigned above = left / rows; const unsigned y0 = (left - above * rows) * {tile};",
        "left = above;",
        f"unsigned long long {', '.join(f'o{number} = 0' for number in range(count))};",
        "#pragma unroll",
        f"for (int axis = {rank - 2}; axis >= 0; --axis) {{",
        f"    if (axis == {across}) continue;",
        "    const unsigned size = shape.sizes[axis]; above = left / size; const unsigned at = left - above * size;",
        *(f"    o{n} += (unsigned long long)at * shape.strides[{n}][axis];" for n in range(count)),
        "    left = above;",
        "}",
    ]
    arguments = []
    for n, kind in enumerate(arithmetic.inputs):
        if not layout.turned[n]:
            x, y = (f"shape.strides[{n}][{axis}]" for axis in (inner, across))
            arguments.append(f"in{n}[o{n} + (unsigned long long)column * {x} + (unsigned long long)row * {y}]")
            continue
        arguments.append(f"tile{n}[column - x0][row - y0]")
        # A row more than a bank has of words, or of parts of one, keeps what is read across in different banks.
        lines += [
            f"__shared__ {kind} tile{n}[{tile}][{tile} + (sizeof({kind}) < 4 ? 4 / sizeof({kind}) : 1)];",
            "#pragma unroll 1",
            f"for (int part = 0; part < {each}; part += {together}) {{",
            f"    {kind} held[{together}];",
            "    #pragma unroll",
            f"    for (int k = 0; k < {together}; ++k) {{",
            f"        const unsigned at = threadIdx.x + (part + k) * {THREADS};",
            f"        const unsigned column = x0 + at / {tile}, row = y0 + at % {tile};",
            f"        held[k] = in{n}[o{n} + (unsigned long long)(column < wide ? column : wide - 1) * "
            f"shape.strides[{n}][{inner}] + (row < high ? row : high - 1)];",
            "    }",
            "    #pragma unroll",
            f"    for (int k = 0; k < {together}; ++k) {{",
            f"        const unsigned at = threadIdx.x + (part + k) * {THREADS};",
            f"        tile{n}[at / {tile}][at % {tile}] = held[k];",
            "    }",
            "}",
        ]
    place = f"out[o{last} + (unsigned long long)row * shape.strides[{last}][{across}] + column]"
    lines += [
        "__syncthreads();",
        f"#pragma unroll {1 if arithmetic.is_long else 2 if arithmetic.far else 8}",
        f"for (int k = 0; k < {each}; ++k) {{",
        f"    const unsigned at = threadIdx.x + k * {THREADS}, row = y0 + at / {tile}, column = x0 + at % {tile};",
        f"    if (column < wide && row < high) {_single(arithmetic, place, arguments)}",
        "}",
    ]
    return f"\n{struct}\n{_signature(arithmetic, TURNING_BLOCKS, ['const shape shape'])}\n{_block(lines)}"


def _block(lines: Sequence[str]) -> str:
    return "{\n" + "".join(f"    {line}\n" for line in lines) + "}\n"
