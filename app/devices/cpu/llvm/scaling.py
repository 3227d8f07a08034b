"""x * 2^n with one rounding, for a whole n for which there may be no such float, by what the processor has."""

import struct

from app.devices.cpu.llvm.math.primitives import FORMATS
from app.formula.values import FLOAT32, FLOAT64

_NAMES = {FLOAT32: ("float", "i32", 23), FLOAT64: ("double", "i64", 52)}
"""LLVM's name of a float and of its bits, and how many of these are below the exponent."""


def declaration(type_: str) -> str:
    """Of the function of the NumPy type that takes an `x` near 1, and n plus the format's rounder. n is of up to half
    more than the format's largest exponent."""
    name, _, _ = _NAMES[type_]
    return f"declare {name} @scale.{name}({name}, {name})"


def call(type_: str, x: str, raised: str) -> str:
    """An expression."""
    name, _, _ = _NAMES[type_]
    return f"call {name} @scale.{name}({name} {x}, {name} {raised})"


def defined(source: str, *, at_once: bool) -> str:
    """A module with a definition for each of these declarations. `at_once` says that the processor has an instruction
    for it, which AVX-512 calls `scalef`; without it LLVM would call a function of C."""
    for type_ in _NAMES:
        if declaration(type_) in source:
            body = _by_instruction(type_) if at_once else _by_products(type_)
            source = source.replace(declaration(type_), "\n".join(body))
    return source


def _head(type_: str) -> list[str]:
    name, _, _ = _NAMES[type_]
    return [f"define internal {name} @scale.{name}({name} %x, {name} %raised) alwaysinline {{"]


def _by_instruction(type_: str) -> list[str]:
    """n is what the bits have beyond those of the rounder, and their lower half is as good, for which there are more
    instructions."""
    name, bits, _ = _NAMES[type_]
    function = f"@llvm.ldexp.f{bits[1:]}.i32"
    return [
        f"declare {name} {function}({name}, i32)",
        *_head(type_),
        f"%beyond = bitcast {name} %raised to {bits}",
        f"%start = bitcast {name} {_number(FORMATS[type_].rounder)} to {bits}",
        f"%whole = sub {bits} %beyond, %start",
        "%n = add i32 %whole, 0" if bits == "i32" else f"%n = trunc {bits} %whole to i32",
        f"%result = call {name} {function}({name} %x, i32 %n)",
        f"ret {name} %result",
        "}",
    ]


def _by_products(type_: str) -> list[str]:
    """By way of a product that is farther from where exponents end, so that nothing is lost."""
    name, bits, below = _NAMES[type_]
    form = FORMATS[type_]
    return [
        *_head(type_),
        f"%shrinks = fcmp olt {name} %raised, {_number(form.rounder)}",
        f"%away = select i1 %shrinks, {name} {_number(form.scale)}, {name} {_number(-form.scale)}",
        f"%back = select i1 %shrinks, {name} {_number(2.0**-form.scale)}, {name} {_number(2.0**form.scale)}",
        f"%moved = fadd {name} %raised, %away",
        f"%number = bitcast {name} %moved to {bits}",
        f"%exponent = shl {bits} %number, {below}",
        f"%one = bitcast {name} {_number(1)} to {bits}",
        f"%sum = add {bits} %exponent, %one",
        f"%power = bitcast {bits} %sum to {name}",
        f"%product = fmul {name} %x, %power",
        f"%result = fmul {name} %product, %back",
        f"ret {name} %result",
        "}",
    ]


def _number(value: float) -> str:
    """To the last bit, as LLVM has it of either type."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
