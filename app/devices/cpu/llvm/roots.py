"""Roots of float32 from a guess at their inverse, which AVX-512 has an instruction for; see `vectors.py`."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from app.devices.cpu.llvm.types import literal
from app.formula.values import FLOAT32

PURE, READS = "nounwind willreturn memory(none)", "nounwind willreturn memory(read)"
"""What the functions do besides giving something: nothing, or to read a table."""

AS_IT_IS_ROUNDED = ", i32 4"
"""The last argument of instructions that could round in another way."""

Native: TypeAlias = Callable[[str, Sequence[str], str], list[str]]
"""Lines that compute the last argument, a name, of the arguments of the function called as the first one says."""

GUESS_DECLARATION = "declare float @guess.float(float)"


def guess_call(x: str) -> str:
    """An expression."""
    return f"call float @guess.float(float {x})"


ROOT_DECLARATION = "declare float @root.float(float)"

ROOT_INSTRUCTIONS = 14
"""How many a root is where it is guessed first."""


def root_call(x: str) -> str:
    """An expression."""
    return f"call float @root.float(float {x})"


_FEW, _MANY = 2.0**-100, 2.0**100
"""Roots of less would have digits that are lost on the way, so it is made more first."""

_AS_THEY_ARE = 1 << 4 * 2 | 1 << 4 * 5
"""Of the eight classes that numbers are of, each with four bits, those whose root is the number itself: 0, infinity."""


def defined(head: str, body: Sequence[str], does: str = PURE) -> list[str]:
    """A function that does nothing besides giving something, or what is told."""
    return [f"define {head} alwaysinline {does} {{", *body, "}"]


AT_ONCE = "declare float @llvm.sqrt.f32(float)"
"""What functions of one number call."""


def root_at_once(linkage: str) -> list[str]:
    body = [
        "%root = call float @llvm.sqrt.f32(float %x)",
        "ret float %root",
    ]
    return defined(f"{linkage} float @root.float(float %x)", body)


def inverse_of_root(linkage: str) -> list[str]:
    body = [
        "%root = call float @llvm.sqrt.f32(float %x)",
        "%inverse = fdiv float 1.0, %root",
        "ret float %inverse",
    ]
    return defined(f"{linkage} float @guess.float(float %x)", body)


def guessed_of_1(linkage: str) -> list[str]:
    """By the instruction that several are guessed by."""
    body = [
        "%first = insertelement <8 x float> zeroinitializer, float %x, i32 0",
        *guess(8, "i8")("", ["%first"], "%all"),
        "%guess = extractelement <8 x float> %all, i32 0",
        "ret float %guess",
    ]
    return defined(f"{linkage} float @guess.float(float %x)", body)


def guess(width: int, mask: str) -> Native:
    def write(name: str, given: Sequence[str], made: str) -> list[str]:
        kind = f"<{width} x float>"
        intrinsic = f"llvm.x86.avx512.rsqrt14.ps.{32 * width}"
        return [f"{made} = call {kind} @{intrinsic}({kind} {given[0]}, {kind} zeroinitializer, {mask} -1)"]

    return write


def root_by_guess(width: int, mask: str, more: str) -> Native:
    """From y, within 2^-14 of 1 / sqrt(x), come g = x y and h = y / 2, and by one step each (R. Goldschmidt) the root
    and half of its inverse to their last digits or so. What x is more than g^2 has no rounding, and tells the last one
    right (P. Markstein), as it does for every float32."""

    def write(name: str, given: Sequence[str], made: str) -> list[str]:
        kind, (x,) = f"<{width} x float>", given
        few, many, back, half = (f"splat (float {literal(FLOAT32, each)})" for each in (_FEW, _MANY, _MANY**-0.5, 0.5))

        def fused(a: str, b: str, c: str) -> str:
            return f"call {kind} @llvm.fma.v{width}f32({kind} {a}, {kind} {b}, {kind} {c})"

        bits = 32 * width
        lines = {
            "small": f"fcmp olt {kind} {x}, {few}",
            "larger": f"fmul {kind} {x}, {many}",
            "m": f"select <{width} x i1> {made}.small, {kind} {made}.larger, {kind} {x}",
        }
        rest = {
            "g": f"fmul {kind} {made}.m, {made}.y",
            "h": f"fmul {kind} {made}.y, {half}",
            "minus": f"fneg {kind} {made}.h",
            "r": fused(f"{made}.minus", f"{made}.g", half),
            "nearer": fused(f"{made}.g", f"{made}.r", f"{made}.g"),
            "inverse": fused(f"{made}.h", f"{made}.r", f"{made}.h"),
            "less": f"fneg {kind} {made}.nearer",
            "rest": fused(f"{made}.less", f"{made}.nearer", f"{made}.m"),
            "root": fused(f"{made}.rest", f"{made}.inverse", f"{made}.nearer"),
            "smaller": f"fmul {kind} {made}.root, {back}",
            "own": f"select <{width} x i1> {made}.small, {kind} {made}.smaller, {kind} {made}.root",
        }
        table = f"<{width} x i32> splat (i32 {_AS_THEY_ARE})"
        return [
            *(f"{made}.{each} = {line}" for each, line in lines.items()),
            *guess(width, mask)(name, [f"{made}.m"], f"{made}.y"),
            *(f"{made}.{each} = {line}" for each, line in rest.items()),
            f"{made} = call {kind} @llvm.x86.avx512.mask.fixupimm.ps.{bits}"
            f"({kind} {made}.own, {kind} {x}, {table}, i32 0, {mask} -1{more})",
        ]

    return write


INTRINSICS = [
    *(f"declare <{n} x float> @llvm.fma.v{n}f32(<{n} x float>, <{n} x float>, <{n} x float>)" for n in (8, 16)),
    "declare <8 x float> @llvm.x86.avx512.rsqrt14.ps.256(<8 x float>, <8 x float>, i8)",
    "declare <16 x float> @llvm.x86.avx512.rsqrt14.ps.512(<16 x float>, <16 x float>, i16)",
    "declare <8 x float> @llvm.x86.avx512.mask.fixupimm.ps.256(<8 x float>, <8 x float>, <8 x i32>, i32, i8)",
    "declare <16 x float> @llvm.x86.avx512.mask.fixupimm.ps.512(<16 x float>, <16 x float>, <16 x i32>, i32, i16, i32)",
]
