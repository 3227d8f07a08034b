"""Functions that processors have an instruction for, of many numbers at once, but LLVM no operation.

LLVM's vectorizer takes such a function for its form of as many numbers as it likes, where it is told that there is one.
So a loop is made quick first, of calls, and the forms are put into it then. The functions are:

- x * 2^n, rounded once, for a whole n, a float, for which there may be no such power: `scale.float`, `scale.double`.
- A float32 picked out of a table of PLACES, which a register holds, by the lowest bits of a place: `pick.TABLE`.
- The n of a float32 2^n m, and its m, from 1 to below 2: `exponent.float`, `significand.float`. Of 0 n is -infinity and
  m 1, of infinity n is infinity and m 1, of NaN both are that NaN, and of numbers below 0 m is NaN with a sign, as
  instructions have it: what is computed by itself has the same bits.
- A guess at 1 / sqrt(x) of a float32, the same of each number, however many there are at once: `guess.float`.
- The root of a float32, rounded once: `root.float`. There is an instruction for that everywhere, but one for a first
  guess at its inverse, and what makes the root of that, take half as long on Intel's processors.
- A byte looked up in a table of 256 in memory: `look.i8`.
"""

import re
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

from app.devices.cpu.llvm import roots
from app.devices.cpu.llvm.math.primitives import FORMATS
from app.devices.cpu.llvm.types import literal
from app.formula.values import FLOAT32, FLOAT64

PLACES = 16

Registers: TypeAlias = Literal["avx512", "avx2", ""]
"""Whose instructions forms are made of; none are without."""

WIDTHS, WIDTHS_OF_BYTES = (8, 16, 32), (16, 32, 64)
"""Of forms: of what is stored as float16 LLVM takes 32 at a time."""

WIDE = ' "prefer-vector-width"="512"'
"""Has LLVM take whole registers of 512 bits for a function, and not halves of them, as it does by itself for Intel's
processors, whose clock is a tenth slower then. Where there are none it says nothing."""

FOUR_VECTORS = ', !{!"llvm.loop.interleave.count", i32 4}'
"""Has LLVM take so many side by side in a loop, of vectors that with AVX-512 are one register of 32. Else they are two
of 16, and there it knows best."""

ADDRESS = "i64"
"""The type of an argument that is one for all numbers."""

_NAMES = {FLOAT32: ("float", "i32", 23), FLOAT64: ("double", "i64", 52)}
"""LLVM's name of a float and of its bits, and how many of these are below the exponent."""

_USED = "@llvm.compiler.used = appending global"
_DECLARED = re.compile(
    r"^declare (float|double|i8) @((?:pick|scale|exponent|significand|root|guess|look)\.[^(]+)\(([^)]*)\)\n",
    re.MULTILINE,
)


def scale_declaration(type_: str) -> str:
    """Of the function of the NumPy type that scales an x near 1, by an n of up to half more than the format's largest
    exponent."""
    name, _, _ = _NAMES[type_]
    return f"declare {name} @scale.{name}({name}, {name})"


def scale_call(type_: str, x: str, n: str) -> str:
    """An expression."""
    name, _, _ = _NAMES[type_]
    return f"call {name} @scale.{name}({name} {x}, {name} {n})"


def pick_declaration(table: tuple[float, ...]) -> str:
    """Of the function that picks out of `table`."""
    return f"declare float @{_name(table)}(i32)"


def pick_call(table: tuple[float, ...], place: str) -> str:
    """An expression."""
    return f"call float @{_name(table)}(i32 {place})"


Part: TypeAlias = Literal["exponent", "significand"]


def part_declaration(part: Part) -> str:
    """Of the function that has this part of a float32."""
    return f"declare float @{part}.float(float)"


def part_call(part: Part, x: str) -> str:
    """An expression."""
    return f"call float @{part}.float(float {x})"


LOOK_DECLARATION = "declare i8 @look.i8(i8, i64)"


def look_call(byte: str, table: str) -> str:
    """An expression, of the `table`'s address: LLVM takes no form of a function that is given a pointer."""
    return f"call i8 @look.i8(i8 {byte}, i64 {table})"


def prepared(source: str, registers: Registers, lacking: Collection[str]) -> tuple[str, str]:
    """A module in which the functions that it declares are known to have forms, and the module that has these.
    Functions without forms, as those that are `lacking` are, are defined in the first one; the other is empty if there
    are no others."""
    head: list[str] = []
    forms: list[str] = []
    used: list[str] = []
    for type_, name, taken in _DECLARED.findall(source):
        function = _Function(name, type_, tuple(taken.split(", ")))
        natives = {} if name in lacking else function.natives(registers)
        if natives:
            head += function.told()
            used += [f"ptr @{name}.{width}" for width in function.widths]
            forms += function.alone("linkonce_odr")
            for width in function.widths:
                forms += function.form(width, natives)
        else:
            head += function.alone("internal")
    head.append(roots.AT_ONCE)
    if used:
        head.append(f'{_USED} [{len(used)} x ptr] [{", ".join(used)}], section "llvm.metadata"')
        forms += _INTRINSICS
    return "\n".join([*head, _DECLARED.sub("", source)]), "\n".join(forms)


def without_uses(source: str) -> str:
    """A module that does not say any more that its forms are used, so that those that nobody calls may go."""
    return "\n".join(line for line in source.split("\n") if not line.startswith(_USED))


@cache
def _name(table: tuple[float, ...]) -> str:
    """It says what is in the table, so that the source of a loop does: the digits of a double that float32 has."""
    assert len(table) == PLACES
    return "pick." + ".".join(literal(FLOAT32, each)[2:11] for each in table)


def _numbers(name: str) -> list[str]:
    """What is in a table."""
    return [f"float 0x{each:0<16}" for each in name.split(".")[1:]]


@dataclass(frozen=True, slots=True)
class _Function:
    """One that is declared: of a type, and of the types that it takes."""

    name: str
    type: str
    taken: tuple[str, ...]

    def natives(self, registers: Registers) -> Mapping[int, roots.Native]:
        """What instructions there are, by how many numbers they take."""
        return _NATIVES.get((registers, self.name.partition(".")[0], self.type), {})

    @property
    def does(self) -> str:
        """Besides giving something."""
        return roots.READS if ADDRESS in self.taken else roots.PURE

    @property
    def widths(self) -> Sequence[int]:
        return WIDTHS_OF_BYTES if self.type == "i8" else WIDTHS

    def told(self) -> list[str]:
        """What the vectorizer is told."""
        letters = "".join("u" if each == ADDRESS else "v" for each in self.taken)
        variants = ",".join(f"_ZGV_LLVM_N{width}{letters}_{self.name}({self.name}.{width})" for width in self.widths)
        declared = f"declare {self.type} @{self.name}({', '.join(self.taken)})"
        return [
            f'{declared} {self.does} "vector-function-abi-variant"="{variants}"',
            *(f"declare {self._head(width, '')} {self.does}" for width in self.widths),
        ]

    def alone(self, linkage: str) -> list[str]:
        """The function of one number."""
        if self.name.startswith("pick."):
            return _picked_in_memory(self.name, linkage)
        if self.name == "look.i8":
            return _looked_up(linkage)
        if self.name == "root.float":
            return roots.root_at_once(linkage)
        if self.name == "guess.float":
            return roots.guessed_of_1(linkage) if linkage != "internal" else roots.inverse_of_root(linkage)
        if self.name == "exponent.float":
            return _exponent_by_bits(linkage)
        if self.name == "significand.float":
            return _significand_by_bits(linkage)
        return _scaled_by_products(FLOAT32 if self.type == "float" else FLOAT64, linkage)

    def form(self, width: int, natives: Mapping[int, roots.Native]) -> list[str]:
        """The function of so many numbers."""
        own = max(each for each in natives if each <= width)
        lines = []
        parts = []
        for first in range(0, width, own):
            given = []
            for number, type_ in enumerate(self.taken):
                if type_ == ADDRESS:
                    given.append(f"%x{number}")
                    continue
                lines.append(
                    f"%p{first}.{number} = shufflevector <{width} x {type_}> %x{number}, <{width} x {type_}> poison, "
                    f"<{own} x i32> <{_places(first, own)}>"
                )
                given.append(f"%p{first}.{number}")
            lines += natives[own](self.name, given, f"%r{own}.{first}")
            parts.append(f"%r{own}.{first}")
        while own < width:
            pairs = [*zip(parts[::2], parts[1::2], strict=True)]
            parts = [f"%r{2 * own}.{number}" for number in range(len(pairs))]
            for made, (low, high) in zip(parts, pairs, strict=True):
                kind = f"<{own} x {self.type}>"
                mask = f"<{2 * own} x i32> <{_places(0, 2 * own)}>"
                lines.append(f"{made} = shufflevector {kind} {low}, {kind} {high}, {mask}")
            own *= 2
        lines.append(f"ret <{width} x {self.type}> {parts[0]}")
        return roots.defined(f"linkonce_odr {self._head(width, '%x')}", lines, self.does)

    def _head(self, width: int, prefix: str) -> str:
        types = [each if each == ADDRESS else f"<{width} x {each}>" for each in self.taken]
        many = [f"{each}{prefix and f' {prefix}{number}'}" for number, each in enumerate(types)]
        return f"<{width} x {self.type}> @{self.name}.{width}({', '.join(many)})"


def _places(first: int, count: int) -> str:
    return ", ".join(f"i32 {each}" for each in range(first, first + count))


def _picked_in_memory(name: str, linkage: str) -> list[str]:
    return [
        f"@{name}.table = {linkage} constant [{PLACES} x float] [{', '.join(_numbers(name))}], align 64",
        *roots.defined(
            f"{linkage} float @{name}(i32 %place)",
            [
                f"%low = and i32 %place, {PLACES - 1}",
                f"%at = getelementptr [{PLACES} x float], ptr @{name}.table, i32 0, i32 %low",
                "%number = load float, ptr %at, align 4",
                "ret float %number",
            ],
        ),
    ]


def _picked_of_16(name: str, given: Sequence[str], made: str) -> list[str]:
    table = f"<16 x float> <{', '.join(_numbers(name))}>"
    return [f"{made} = call <16 x float> @{_PERMUTE_16}({table}, <16 x i32> {given[0]})"]


def _halves(name: str) -> list[str]:
    numbers = _numbers(name)
    return [f"<8 x float> <{', '.join(each)}>" for each in (numbers[:8], numbers[8:])]


def _picked_of_8(name: str, given: Sequence[str], made: str) -> list[str]:
    low, high = _halves(name)
    return [f"{made} = call <8 x float> @{_PERMUTE_TWO}({low}, <8 x i32> {given[0]}, {high})"]


def _looked_up(linkage: str) -> list[str]:
    body = [
        "%table = inttoptr i64 %address to ptr",
        "%number = zext i8 %byte to i64",
        "%place = getelementptr i8, ptr %table, i64 %number",
        "%result = load i8, ptr %place",
        "ret i8 %result",
    ]
    return roots.defined(f"{linkage} i8 @look.i8(i8 %byte, i64 %address)", body, roots.READS)


def _looked_up_at_once(width: int) -> roots.Native:
    """By instructions that pick out of the 128 bytes of two registers: out of one half of the table, and of the other.
    What is less than a register is the lowest bytes of one."""

    def write(_: str, given: Sequence[str], made: str) -> list[str]:
        number, address = given
        kind = "<64 x i8>"
        wide = ", ".join(f"i32 {each if each < width else 'poison'}" for each in range(64))
        return [
            f"{made}.table = inttoptr i64 {address} to ptr",
            *(f"{made}.at{each} = getelementptr {kind}, ptr {made}.table, i64 {each}" for each in range(4)),
            *(f"{made}.part{each} = load {kind}, ptr {made}.at{each}, align 1" for each in range(4)),
            f"{made}.by = shufflevector <{width} x i8> {number}, <{width} x i8> poison, <64 x i32> <{wide}>",
            *(
                f"{made}.{name} = call {kind} @{_PERMUTE_BYTES}({kind} {made}.part{first}, {kind} {made}.by, "
                f"{kind} {made}.part{first + 1})"
                for name, first in (("low", 0), ("high", 2))
            ),
            f"{made}.is_high = icmp slt {kind} {made}.by, zeroinitializer",
            f"{made}.all = select <64 x i1> {made}.is_high, {kind} {made}.high, {kind} {made}.low",
            f"{made} = shufflevector {kind} {made}.all, {kind} poison, <{width} x i32> <{_places(0, width)}>",
        ]

    return write


def _scaled_at_once(intrinsic: str, width: int, type_: str, mask: str, more: str) -> roots.Native:
    def write(name: str, given: Sequence[str], made: str) -> list[str]:
        kind = f"<{width} x {type_}>"
        x, n = (f"{kind} {each}" for each in given)
        return [f"{made} = call {kind} @{intrinsic}({x}, {n}, {kind} zeroinitializer, {mask} -1{more})"]

    return write


def _part_at_once(intrinsic: str, width: int, how: str, mask: str, more: str) -> roots.Native:
    def write(name: str, given: Sequence[str], made: str) -> list[str]:
        kind = f"<{width} x float>"
        return [f"{made} = call {kind} @{intrinsic}({kind} {given[0]}{how}, {kind} zeroinitializer, {mask} -1{more})"]

    return write


_NORMAL = (
    "%bits = bitcast float %x to i32",
    "%size = and i32 %bits, 2147483647",
    "%positive = bitcast i32 %size to float",
    f"%small = icmp ult i32 %size, {1 << 23}",
    f"%larger = fmul float %positive, {2.0**23:e}",
    "%normal = select i1 %small, float %larger, float %positive",
    "%number = bitcast float %normal to i32",
)
"""The size of a float32, times 2^23 if it is subnormal."""


def _exponent_by_bits(linkage: str) -> list[str]:
    body = [
        *_NORMAL,
        "%shifted = lshr i32 %number, 23",
        f"%less = select i1 %small, i32 {127 + 23}, i32 127",
        "%moved = sub i32 %shifted, %less",
        "%exponent = sitofp i32 %moved to float",
        "%finite = fcmp olt float %positive, 0x7FF0000000000000",
        "%finite.or.not = select i1 %finite, float %exponent, float %positive",
        "%zero = icmp eq i32 %size, 0",
        "%of.number = select i1 %zero, float 0xFFF0000000000000, float %finite.or.not",
        "%is.number = fcmp ord float %x, %x",
        "%result = select i1 %is.number, float %of.number, float %x",
        "ret float %result",
    ]
    return roots.defined(f"{linkage} float @exponent.float(float %x)", body)


def _significand_by_bits(linkage: str) -> list[str]:
    body = [
        *_NORMAL,
        f"%digits = and i32 %number, {(1 << 23) - 1}",
        f"%moved = or i32 %digits, {127 << 23}",
        "%significand = bitcast i32 %moved to float",
        "%is.none = fcmp olt float %x, 0.0",
        "%of.number = select i1 %is.none, float 0xFFF8000000000000, float %significand",
        "%is.number = fcmp ord float %x, %x",
        "%result = select i1 %is.number, float %of.number, float %x",
        "ret float %result",
    ]
    return roots.defined(f"{linkage} float @significand.float(float %x)", body)


def _scaled_by_products(type_: str, linkage: str) -> list[str]:
    """By the power of one half of n, rounded down, and that of the other: the first product is exact."""
    name, bits, below = _NAMES[type_]
    one = f"bitcast ({name} {_number(1)} to {bits})"
    body = [
        f"%raised = fadd {name} %n, {_number(FORMATS[type_].rounder)}",
        f"%number = bitcast {name} %raised to {bits}",
        f"%exponent = shl {bits} %number, {below}",
        f"%halved = shl {bits} %number, {below - 1}",
        f"%half = and {bits} %halved, {-1 << below}",
        f"%other = sub {bits} %exponent, %half",
        *(f"%{each}.bits = add {bits} %{each}, {one}" for each in ("half", "other")),
        *(f"%{each}.power = bitcast {bits} %{each}.bits to {name}" for each in ("half", "other")),
        f"%product = fmul {name} %x, %half.power",
        f"%result = fmul {name} %product, %other.power",
        f"ret {name} %result",
    ]
    return roots.defined(f"{linkage} {name} @scale.{name}({name} %x, {name} %n)", body)


def _number(value: float) -> str:
    """To the last bit, as LLVM has it of either type."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


_PERMUTE_BYTES = "llvm.x86.avx512.vpermi2var.qi.512"
_PERMUTE_16 = "llvm.x86.avx512.permvar.sf.512"
_PERMUTE_TWO = "llvm.x86.avx512.vpermi2var.ps.256"
_SCALE_8, _SCALE_16 = (f"llvm.x86.avx512.mask.scalef.ps.{bits}" for bits in (256, 512))
_SCALE_DOUBLE = "llvm.x86.avx512.mask.scalef.pd.512"
_EXPONENT_8, _EXPONENT_16 = (f"llvm.x86.avx512.mask.getexp.ps.{bits}" for bits in (256, 512))
_SIGNIFICAND_8, _SIGNIFICAND_16 = (f"llvm.x86.avx512.mask.getmant.ps.{bits}" for bits in (256, 512))
_INTRINSICS = [
    f"declare <64 x i8> @{_PERMUTE_BYTES}(<64 x i8>, <64 x i8>, <64 x i8>)",
    f"declare <16 x float> @{_PERMUTE_16}(<16 x float>, <16 x i32>)",
    f"declare <8 x float> @{_PERMUTE_TWO}(<8 x float>, <8 x i32>, <8 x float>)",
    f"declare <8 x float> @{_SCALE_8}(<8 x float>, <8 x float>, <8 x float>, i8)",
    f"declare <16 x float> @{_SCALE_16}(<16 x float>, <16 x float>, <16 x float>, i16, i32)",
    f"declare <8 x float> @{_EXPONENT_8}(<8 x float>, <8 x float>, i8)",
    f"declare <16 x float> @{_EXPONENT_16}(<16 x float>, <16 x float>, i16, i32)",
    f"declare <8 x float> @{_SIGNIFICAND_8}(<8 x float>, i32, <8 x float>, i8)",
    f"declare <16 x float> @{_SIGNIFICAND_16}(<16 x float>, i32, <16 x float>, i16, i32)",
    f"declare <8 x double> @{_SCALE_DOUBLE}(<8 x double>, <8 x double>, <8 x double>, i8, i32)",
    roots.AT_ONCE,
    *roots.INTRINSICS,
]

_FROM_1_OR_NAN = ", i32 12"
"""From 1 to below 2, and NaN of what is below 0."""

_NATIVES: Mapping[tuple[str, str, str], Mapping[int, roots.Native]] = {
    ("avx512", "pick", "float"): {8: _picked_of_8, 16: _picked_of_16},
    ("avx512", "scale", "float"): {
        8: _scaled_at_once(_SCALE_8, 8, "float", "i8", ""),
        16: _scaled_at_once(_SCALE_16, 16, "float", "i16", roots.AS_IT_IS_ROUNDED),
    },
    ("avx512", "exponent", "float"): {
        8: _part_at_once(_EXPONENT_8, 8, "", "i8", ""),
        16: _part_at_once(_EXPONENT_16, 16, "", "i16", roots.AS_IT_IS_ROUNDED),
    },
    ("avx512", "significand", "float"): {
        8: _part_at_once(_SIGNIFICAND_8, 8, _FROM_1_OR_NAN, "i8", ""),
        16: _part_at_once(_SIGNIFICAND_16, 16, _FROM_1_OR_NAN, "i16", roots.AS_IT_IS_ROUNDED),
    },
    ("avx512", "guess", "float"): {8: roots.guess(8, "i8"), 16: roots.guess(16, "i16")},
    ("avx512", "root", "float"): {
        8: roots.root_by_guess(8, "i8", ""),
        16: roots.root_by_guess(16, "i16", roots.AS_IT_IS_ROUNDED),
    },
    ("avx512", "look", "i8"): {width: _looked_up_at_once(width) for width in WIDTHS_OF_BYTES},
    ("avx512", "scale", "double"): {8: _scaled_at_once(_SCALE_DOUBLE, 8, "double", "i8", roots.AS_IT_IS_ROUNDED)},
}
"""By registers, function and what it gives."""
