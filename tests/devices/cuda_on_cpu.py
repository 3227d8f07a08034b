"""CUDA kernels, or their arithmetic alone, built as C++ for the CPU, to be held against NumPy where there is no GPU.

Functions that are approximate on a GPU are the C library's here: what is tested is what we wrote, not the hardware.
"""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.contract.constants import DataType
from app.devices.cuda.coordinates import CoordinateLowering
from app.devices.cuda.functions import PRIMITIVES
from app.devices.cuda.grids import KERNEL, THREADS
from app.devices.cuda.lowering import Arithmetic, lower
from app.devices.cuda.places import CoordinateClass, Coordinates
from app.devices.cuda.reducers import REDUCERS
from app.devices.cuda.splits import LANES, SplitLowering, Splits
from app.devices.cuda.sums import TWICE
from app.formula.structures import Questions
from app.formula.uniform import Numbers, evaluator, typed
from app.formula.values import Value
from app.memory.arrays import Array, numpy_type
from app.operators.compiled import CompiledOperator
from app.programs.dispatchable import Dispatchable
from tests.operators.descriptors import expression_of, output_name_of

COMPILER = shutil.which("g++") or shutil.which("clang++")

_PRIMITIVES = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
using std::fabs; using std::truncf; using std::copysignf; using std::fmaf; using std::fma; using std::pow;
#define DEVICE static inline
/* Of zeros, a GPU takes the positive one. */
static inline float max_of_gpu(float a, float b) { return a != a || a < b || (a == b && std::signbit(a)) ? b : a; }
#define fmaxf max_of_gpu
#define DEVICE_MEMBER inline
#define OUT_OF_LINE static
#define INFINITE __builtin_inff()
#define NOT_A_NUMBER __builtin_nanf("")
typedef unsigned short half_bits;
DEVICE float opposite(float x) { return -x; }
DEVICE int zero_minus(int x) { return (int)(0u - (unsigned)x); }
DEVICE int ones_of(unsigned long long x) { return __builtin_popcountll(x); }
DEVICE float normcdff(float x) { return (float)(std::erfc((double)x * -0.70710678118654752) / 2); }
DEVICE double normcdf(double x) { return std::erfc(x * -0.70710678118654752) / 2; }
template <class To, class From> static To as(From x) { To y; std::memcpy(&y, &x, sizeof y); return y; }
DEVICE float float_of_bits(unsigned x) { return as<float>(x); }
DEVICE unsigned bits_of_float(float x) { return as<unsigned>(x); }
DEVICE double double_of_bits(unsigned long long x) { return as<double>(x); }
DEVICE float float_of_half(half_bits x) {
    unsigned sign = (x & 0x8000u) << 16, rest = x & 0x7fffu;
    if (rest >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    bool normal = rest >= 0x400u;
    float size = std::ldexp((float)(normal ? (rest & 0x3ffu) | 0x400u : rest), normal ? (int)(rest >> 10) - 25 : -24);
    return sign ? -size : size;
}
DEVICE half_bits half_of_double(double x) {
    half_bits sign = std::signbit(x) ? 0x8000 : 0;
    double size = std::fabs(x);
    if (size != size) return sign | 0x7e00;
    if (size >= 65520.0) return sign | 0x7c00;
    int exponent; std::frexp(size, &exponent);
    if (exponent < -13) exponent = -13;
    double units = std::nearbyint(std::ldexp(size, 11 - exponent)); /* to nearest even */
    if (units >= 2048.0) { units *= 0.5; ++exponent; }
    return sign | (half_bits)(units < 1024.0 ? units : (exponent + 14) * 1024 + (units - 1024.0));
}
DEVICE half_bits half_of_float(float x) { return half_of_double(x); }
template <int AT, bool SIGNED> DEVICE int products_of_bytes(unsigned factors, unsigned bytes, int c) {
    bytes >>= 16 * AT;
    unsigned first = SIGNED ? (unsigned)(short)factors : (unsigned short)factors;
    unsigned second = SIGNED ? (unsigned)((int)factors >> 16) : factors >> 16;
    return (int)((unsigned)c + first * (bytes & 255u) + second * (bytes >> 8 & 255u));
}
template <unsigned WHICH> DEVICE unsigned bytes_of_both(unsigned a, unsigned b) {
    unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned made = 0;
    for (int n = 0; n < 4; ++n) made |= (unsigned)(both >> 8 * (WHICH >> 4 * n & 7u) & 255u) << 8 * n;
    return made;
}
template <bool SIGNED> DEVICE unsigned saturated_word(int a, int b, int c, int d) {
    int given[4] = {a, b, c, d};
    unsigned made = 0;
    for (int n = 0; n < 4; ++n) {
        int least = SIGNED ? -128 : 0, most = SIGNED ? 127 : 255;
        made |= ((unsigned)(given[n] < least ? least : given[n] > most ? most : given[n]) & 255u) << 8 * n;
    }
    return made;
}
/* The sum as a float that is no more, to the last bit: a long double has 64 of them. */
DEVICE float sum_down(long double a, long double b) {
    volatile long double sum = a + b, back = sum - a;
    long double lost = (a - (sum - back)) + (b - back);
    float y = sum;
    return y > sum || (y == sum && lost < 0) ? std::nextafter(y, -INFINITE) : y;
}
DEVICE float product_plus_down(float a, float b, float c) {
    long double product = (long double)a * b;
    return product + c == 0 && (c != 0 || std::signbit(c)) ? -0.0f : sum_down(product, c);
}
DEVICE float product_plus_up(float a, float b, float c) { return -sum_down(-(long double)a * b, -c); }
DEVICE float plus_down(float a, float b) { return sum_down(a, b); }
DEVICE int nearest_integer(float x) { return std::fabs(x) < 1e9f ? (int)std::rint(x) : 0; }
DEVICE unsigned shifted_left(unsigned low, unsigned high, int n) {
    return (unsigned)((((unsigned long long)high << 32 | low) << n) >> 32);
}
DEVICE float reciprocal_approx(float x) { return 1.0f / x; }
DEVICE float reciprocal_of_normal(float x) { return 1.0f / x; }
DEVICE float sqrt_approx(float x) { return std::sqrt(x); }
DEVICE float log2_approx(float x) { return std::log2(x); }
DEVICE float exp2_flushed(float x) { return std::exp2(x); }
DEVICE float exp2_approx(float x) { return std::exp2(x); }
DEVICE float sqrt_flushed(float x) { return std::sqrt(x); }
DEVICE float log2_flushed(float x) { return std::log2(x); }
"""

Element = Callable[..., Array]


def arithmetic_of(compiled: CompiledOperator) -> Arithmetic:
    """The lowered formula of an operator."""
    inputs = [(name, compiled.stored_types[name]) for name in compiled.inputs]
    return lower(
        Questions(compiled.numbers).ask,
        expression_of(compiled),
        inputs,
        compiled.stored_types[output_name_of(compiled)],
    )


def build(folder: Path, operators: Sequence[CompiledOperator]) -> list[Element]:
    """A function of one-dimensional arrays for each operator. The compiler is called once, for all different ones."""
    outputs = [output_name_of(each) for each in operators]
    return _elements(
        folder,
        [
            (arithmetic_of(operator), operator.stored_types[output], operator.numbers)
            for operator, output in zip(operators, outputs, strict=True)
        ],
    )


def build_outputs(folder: Path, operator: CompiledOperator) -> dict[str, Element]:
    """The same for each output of an operator."""
    inputs = list(operator.program.inputs.items())
    made = [
        (lower(Questions(operator.numbers).ask, each.expression, inputs, each.stored), each.stored, operator.numbers)
        for each in operator.program.maps.values()
    ]
    return dict(zip(operator.program.maps, _elements(folder, made), strict=True))


def _elements(folder: Path, made: Sequence[tuple[Arithmetic, DataType, Numbers]]) -> list[Element]:
    assert COMPILER
    numbers: dict[str, int] = {}
    parts = [_PRIMITIVES]
    for each, _, _ in made:
        if each.source not in numbers:
            numbers[each.source] = len(numbers)
            parts.append(
                f"namespace n{numbers[each.source]} {{\n{each.source}\n}}\n{_loop(each, numbers[each.source])}"
            )
    loaded = _built(folder / "arithmetic.cpp", parts)
    return [
        _element(loaded[f"loop{numbers[arithmetic.source]}"], arithmetic, stored, values)
        for arithmetic, stored, values in made
    ]


def _built(file: Path, parts: Sequence[str], level: str = "-O1") -> ctypes.CDLL:
    """The library that `parts` are the source of."""
    assert COMPILER
    file.write_text("\n".join(parts))
    made = file.with_suffix(".so")
    options = ["-std=c++17", level, "-ffp-contract=off", "-shared", "-fPIC", "-pthread", "-w", *_fused_multiply_add()]
    subprocess.run([COMPILER, *options, "-o", made, file], check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(made))


def _fused_multiply_add() -> list[str]:
    """fmaf is a slow function where the processor's own is not asked for."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return ["-mfma"] if " fma " in flags else []


def _loop(arithmetic: Arithmetic, number: int, *, flags: bool = False) -> str:
    """Of elements, or of whether these are far."""
    inputs = [f"const {kind}* x{n}" for n, kind in enumerate(arithmetic.inputs)]
    parameters = [f"const {kind}* p{n}" for n, kind in enumerate(arithmetic.parameters)]
    given = [f"x{n}[i]" for n in range(len(inputs))] + [f"*p{n}" for n in range(len(parameters))]
    output = "bool" if flags else arithmetic.output
    declared = ", ".join([*inputs, f"{output}* out", "long long count", *parameters])
    near, far = (f"n{number}::element<{each}>({', '.join([*given, 'far'])})" for each in ("true", "false"))
    body = (
        f"for (long long i = 0; i < count; ++i) {{ bool far = false; {arithmetic.output} y = {near}; "
        f"out[i] = {'far' if flags else f'far ? {far} : y'}; }}"
    )
    return f'extern "C" void loop{number}({declared}) {{ {body} }}'


def _loop_of_words(arithmetic: Arithmetic, number: int) -> str:
    """Of whole words; inputs that are none are one element each."""
    inputs = [
        f"const {'unsigned' if n in arithmetic.in_words else kind}* x{n}" for n, kind in enumerate(arithmetic.inputs)
    ]
    given = [f"x{n}[i]" if n in arithmetic.in_words else f"*x{n}" for n in range(len(inputs))]
    call = f"n{number}::elements({', '.join([*given, 'far'])})"
    body = f"for (long long i = 0; i < count; ++i) {{ bool far = false; out[i] = {call}; fars[i] = far; }}"
    return (
        f'extern "C" void words{number}({", ".join(inputs)}, unsigned* out, long long count, bool* fars) {{ {body} }}'
    )


def build_words(folder: Path, operator: CompiledOperator) -> Callable[..., tuple[Array, Array]]:
    """A function of arrays of bytes, four of which it makes at once: of those, and which fours are far."""
    arithmetic = arithmetic_of(operator)
    parts = [_PRIMITIVES, f"namespace n0 {{\n{arithmetic.source}\n}}\n{_loop_of_words(arithmetic, 0)}"]
    function = _built(folder / "words.cpp", parts).words0

    def words(*inputs: Array) -> tuple[Array, Array]:
        output, fars = np.empty(inputs[0].size, inputs[0].dtype), np.empty(inputs[0].size // 4, bool)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*inputs, output)]
        function(*pointers, ctypes.c_longlong(fars.size), ctypes.c_void_p(fars.ctypes.data))
        return output, fars

    return words


def far_of(folder: Path, operator: CompiledOperator) -> Element | None:
    """Which elements are far, as a function of arrays; None if none can be."""
    arithmetic = arithmetic_of(operator)
    if not arithmetic.far:
        return None
    parts = [_PRIMITIVES, f"namespace n0 {{\n{arithmetic.source}\n}}\n{_loop(arithmetic, 0, flags=True)}"]
    file = folder / f"far{len(list(folder.iterdir()))}.cpp"
    return _element(_built(file, parts).loop0, arithmetic, DataType.UINT8, operator.numbers)


def _element(function: Callable[..., object], arithmetic: Arithmetic, stored: DataType, numbers: Numbers) -> Element:
    def element(*inputs: Array) -> Array:
        output = np.empty(inputs[0].shape, numpy_type(stored))
        parameters = [np.array(typed(each.type, evaluator(each)(numbers))) for each in arithmetic.arguments]
        packed = [np.ascontiguousarray(array) for array in inputs]
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*packed, output)]
        function(*pointers, ctypes.c_longlong(output.size), *(ctypes.c_void_p(p.ctypes.data) for p in parameters))
        return output

    return element


assert "float_of_half" in PRIMITIVES  # these stand in for those


# Whole kernels of formulas that go by coordinates

_LANES = 8
"""Threads of a block here, where 128 would only take turns."""

_IN_ROWS, _OF_ROWS = "of_rows[THREADS]", 2 * LANES
"""Kernels whose threads go along rows have more."""

_IN_TILES = "tile0["
"""Those that turn tiles have as many as on a GPU."""

_BY_ELEMENT = re.compile(rf"blockIdx\.x \* {THREADS}\b|tile \+ threadIdx\.x")
"""Those of formulas that go by position have, too, but one does not wait for another."""

_TEAM = re.compile(r"#define TEAM (\d+)\n")

# One function starts the threads of all kernels. As a template it would take the compiler longer than a kernel does.
_THREADS = rf"""
#include <atomic>
#include <pthread.h>
#include <utility>
#define THREADS {_LANES}
#define TEAM THREADS
#define __restrict__
#define __align__(bytes) alignas(bytes)
#define __shared__ static
#define __syncthreads() pthread_barrier_wait(&barrier)
struct grid_index {{ unsigned x; }};
static thread_local grid_index blockIdx, threadIdx;
static pthread_barrier_t barrier;
template <int TEAM_, class T, class Join> static T reduced(T value, Join join) {{
    static T values[1024];
    values[threadIdx.x] = value;
    pthread_barrier_wait(&barrier);
    T all = values[0];
    for (int n = 1; n < TEAM_; ++n) all = join(all, values[n]);
    pthread_barrier_wait(&barrier);
    return all;
}}
template <class T, class Join> static T reduced(T value, Join join) {{ return reduced<THREADS>(value, join); }}
template <bool VALUE> struct truth {{ static constexpr bool value = VALUE; }};
template <int GROUP> static bool any_of(bool is) {{
    static std::atomic<bool> found;
    if (GROUP == 1) return is;
    pthread_barrier_wait(&barrier);
    found = false;
    pthread_barrier_wait(&barrier);
    if (is) found = true;
    pthread_barrier_wait(&barrier);
    return found;
}}
template <auto FUNCTION> struct from_table;
template <class... A, void (*FUNCTION)(A...)> struct from_table<FUNCTION> {{
    template <std::size_t... N> static void call(void** table, std::index_sequence<N...>) {{
        FUNCTION(*(std::remove_const_t<A>*)table[N]...);
    }}
    static void call(void** table) {{ call(table, std::index_sequence_for<A...>()); }}
}};
struct launch {{ void (*call)(void**); void** table; unsigned blocks; bool together; }};
struct lane {{ const launch* of; unsigned thread; }};
static void* run(void* given) {{
    const lane& mine = *(const lane*)given;
    const launch& all = *mine.of;
    threadIdx.x = mine.thread;
    for (blockIdx.x = 0; blockIdx.x < all.blocks; ++blockIdx.x) {{
        all.call(all.table);
        if (all.together) pthread_barrier_wait(&barrier); /* the next block has the same memory */
    }}
    return nullptr;
}}
static void launched(void (*call)(void**), void** table, unsigned blocks, unsigned threads, bool together) {{
    launch all = {{call, table, blocks, together}};
    lane lanes[1024];
    for (unsigned n = 0; n < threads; ++n) lanes[n] = {{&all, n}};
    if (!together) {{ for (unsigned n = 0; n < threads; ++n) run(&lanes[n]); return; }}
    pthread_t started[1024];
    pthread_barrier_init(&barrier, nullptr, threads);
    for (unsigned n = 0; n < threads; ++n) pthread_create(&started[n], nullptr, run, &lanes[n]);
    for (unsigned n = 0; n < threads; ++n) pthread_join(started[n], nullptr);
    pthread_barrier_destroy(&barrier);
}}
"""

_HEAD = re.compile(rf'extern "C" __global__ void __launch_bounds__\({THREADS}(, \d+)?\) {KERNEL}\(')


class BuiltKernels:
    """Kernels of formulas, built from their sources, those of `operators` all at once."""

    def __init__(self, folder: Path, operators: Sequence[CompiledOperator] = (), sources: Sequence[str] = ()) -> None:
        self._folder = folder
        self._built: dict[str, _Built] = {}
        of_operators = {coordinate_source(each, output)[0] for each in operators for output in each.program.maps}
        self._build(of_operators | {*sources})

    @property
    def sources(self) -> list[str]:
        """Of all that were built."""
        return [*self._built]

    def find(self, source: str) -> "_Built":
        """The kernel of this source, built now if it was not before."""
        if source not in self._built:
            self._build({source})
        return self._built[source]

    def _build(self, sources: AbstractSet[str]) -> None:
        if not sources:
            return
        parts = [_PRIMITIVES, _THREADS, *(_namespace(source, number) for number, source in enumerate(sources))]
        library = _built(self._folder / f"kernels{len(self._built)}.cpp", parts, "-O0")
        for number, source in enumerate(sources):
            whole = "for (unsigned turn = threadIdx.x" in source or bool(_BY_ELEMENT.search(source))
            together = REDUCERS in source or _IN_ROWS in source or _IN_TILES in source
            groups = THREADS // int((_TEAM.findall(source) or [THREADS])[0])
            self._built[source] = _Built(library[f"kernel{number}"], together, whole, groups)


@dataclass(frozen=True, slots=True)
class _Built:
    function: Callable[..., object]
    together: bool
    """Whether a block's threads compute an element together."""
    whole: bool
    """Whether a block does what it does with any number of threads."""
    groups: int
    """Of a block, which here is one of them."""

    def launch(self, blocks: int, table: int) -> None:
        """As the CUDA driver does it, over tensors on the host."""
        turns = blocks * self.groups if self.together or self.whole else blocks * THREADS // _LANES
        self.function(ctypes.c_void_p(table), ctypes.c_uint(turns), ctypes.c_bool(self.together))


def coordinate_source(
    operator: Dispatchable, output: str, kind: CoordinateClass | None = None
) -> tuple[str, int, tuple[Value, ...]]:
    """The kernel of an output, the elements that a block computes, and its last arguments."""
    made = operator.program.maps[output]
    inputs = list(operator.program.inputs.items())
    lowering = CoordinateLowering(Questions(operator.numbers).ask, made.expression, inputs, made.stored)
    return lowering.source(kind or Coordinates.of(operator, output).kind)


def split_sources(operator: CompiledOperator, output: str) -> list[str]:
    """The kernels of an output whose terms are split."""
    splits = Splits.of(operator, output, Coordinates.of(operator, output))
    made, sources = operator.program.maps[output], []
    inputs = list(operator.program.inputs.items())
    assert splits, "it has many terms"
    for number in range(splits.stages):
        for kernel in (SplitLowering.partial, SplitLowering.joined):
            lowering = SplitLowering(Questions(operator.numbers).ask, made.expression, inputs, made.stored)
            sources.append(kernel(lowering, splits.kind, number)[0])
    return sources


def _namespace(source: str, number: int) -> str:
    body = source.removeprefix(PRIMITIVES).replace(f"#define THREADS {THREADS}\n", "")
    assert len(_HEAD.findall(body)) == 1
    if REDUCERS in body:  # what needs a GPU of them is above
        parts = REDUCERS.partition("template <class T> DEVICE T larger(")
        body = body.replace(REDUCERS, "".join(parts[1:]))
    body = _TEAM.sub("", body.replace(TWICE, ""))
    body = _HEAD.sub(f"static void {KERNEL}(", body)
    all_of_them = _IN_TILES in body or _BY_ELEMENT.search(body)
    threads = _OF_ROWS if _IN_ROWS in body else THREADS if all_of_them else _LANES
    call = f"launched(from_table<n{number}::{KERNEL}>::call, table, blocks, {threads}, together)"
    return (
        f"#undef THREADS\n#define THREADS {threads}\nnamespace n{number} {{\n{body}\n}}\n"
        f'extern "C" void kernel{number}(void** table, unsigned blocks, bool together) {{ {call}; }}'
    )
