"""What LLVM lacks for halves where a processor does not compute them: the half of a float64, rounded once, for which it
calls a function, and loads of one half that do not wait for each other.

Formulas go another way than by that function (`writing.py`). But where a half's sign is all that is asked for, and it
is that of a float64, LLVM makes a half of the latter.
"""

import re
from functools import cache

from app.contract.constants import DataType
from app.devices.cpu.llvm.lowering import Element, lower_part
from app.formula.structures import Questions
from app.formula.values import FLOAT64, Input

NAME = "__truncdfhf2"
"""What LLVM calls it."""

_LOADED = re.compile(r"^( *%(\S+) = )load half, (ptr [^,]+, align \d+).*$", re.MULTILINE)
_TO_VECTORS = re.compile(r"= insertelement <[^>]+ x half> [^,]+, half %([^,\s]+),")


@cache
def rounding(name: str) -> Element:
    """The function, called so."""
    return lower_part(Questions({}).ask, Input(FLOAT64, "x", DataType.FLOAT64), DataType.FLOAT16, name)


def source() -> str:
    """A module with it."""
    element = rounding(NAME)
    head, *body = element.definition
    return "\n".join([*sorted(element.declarations), head.replace(" internal", "").replace(" alwaysinline", ""), *body])


def loaded_apart(module: str) -> str:
    """An optimized module whose halves that are computed one by one are loaded as integers first.

    x86 has no load of a half that leaves nothing of what the register held before, and LLVM takes any register: each
    element waits for the one before, ten times as long as it takes to compute one. LLVM would make that load of an
    integer's too, if it saw what becomes of it; it does not see through assembly, not even through none.
    """
    vectors = set(_TO_VECTORS.findall(module))

    def apart(load: re.Match[str]) -> str:
        head, name, place = load.groups()
        if name in vectors:
            return load[0]
        bits = f"%bits.{name}"
        loaded = f'{bits} = load i16, {place}\n{bits}.own = call i16 asm "", "=r,0"(i16 {bits})'
        return f"{loaded}\n{head}bitcast i16 {bits}.own to half"

    return _LOADED.sub(apart, module)
