"""The half of a float64, rounded once, which LLVM calls a function for where a processor has no instruction.

Formulas go another way (`writing.py`). But where a half's sign is all that is asked for, and it is that of a float64,
LLVM makes a half of the latter.
"""

from functools import cache

from app.contract.constants import DataType
from app.devices.cpu.llvm.lowering import Element, lower_part
from app.formula.structures import Questions
from app.formula.values import FLOAT64, Input

NAME = "__truncdfhf2"
"""What LLVM calls it."""


@cache
def rounding(name: str) -> Element:
    """The function, called so."""
    return lower_part(Questions({}).ask, Input(FLOAT64, "x", DataType.FLOAT64), DataType.FLOAT16, name)


def source() -> str:
    """A module with it."""
    element = rounding(NAME)
    head, *body = element.definition
    return "\n".join([*sorted(element.declarations), head.replace(" internal", "").replace(" alwaysinline", ""), *body])
