"""Functions of float32 that have two formulas, of which the compiler takes the one that is quicker on its processor.

Where a register holds sixteen numbers, one instruction picks out of a table, and a polynomial of which each piece of a
function has its own coefficients is the least to do, or what a function is at sixteen places; there is one for a guess
at the inverse of a root, too. Elsewhere it takes as long as ten other operations, and whole formulas take half as long.
Both are within one unit in the last place of what is exact, rounded, and what is gated by the normal distribution
within two: results may differ by as much again from processor to processor, and do not with how many elements a vector
has.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from app.contract.constants import DataType
from app.devices.cpu.llvm.lowering import Element, lower_part
from app.devices.cpu.llvm.math import angles, arcs, functions, logarithms, pieces, powers, sixteenths, tails, whole
from app.devices.cpu.llvm.vectors import Registers
from app.formula.structures import Questions
from app.formula.values import FLOAT32, Input, Value

Formula = Callable[[Value], Value]


class Formulas(NamedTuple):
    """Of one function."""

    of_tables: Formula
    whole: Formula


FUNCTIONS: Mapping[str, Formulas] = {
    "tanh": Formulas(pieces.tanh, whole.tanh),
    "erf": Formulas(pieces.erf, whole.erf),
    "log": Formulas(logarithms.log, powers.log),
    "is_near": Formulas(lambda x: angles.is_near(x, sixteenths.NEAR), angles.is_near),
    "sin": Formulas(sixteenths.sin, angles.WHOLE["sin"]),
    "cos": Formulas(sixteenths.cos, angles.WHOLE["cos"]),
    "tan": Formulas(sixteenths.tan, angles.WHOLE["tan"]),
    "arcsin": Formulas(arcs.BY_GUESS["arcsin"], arcs.WHOLE["arcsin"]),
    "arccos": Formulas(arcs.BY_GUESS["arccos"], arcs.WHOLE["arccos"]),
    "gated_by_normal": Formulas(tails.gated_by_normal, functions.gated_by_normal),
}

HOLD_TABLES: frozenset[Registers] = frozenset(["avx512"])
"""Registers that do."""

_DECLARED = re.compile(r"^declare float @chosen\.(\w+)\(float\)\n", re.MULTILINE)


def defined(source: str, registers: Registers) -> str:
    """A module with those of these functions that it declares, for a processor of such registers."""
    made = [element(name, registers in HOLD_TABLES) for name in _DECLARED.findall(source)]
    if not made:
        return source
    source = _DECLARED.sub("", source)
    known = set(re.findall(r"^declare .*$", source, re.MULTILINE))
    declarations = sorted(frozenset[str]().union(*(each.declarations for each in made)) - known)
    return "\n".join([*declarations, *(line for each in made for line in each.definition), source])


@cache
def element(name: str, of_tables: bool) -> Element:
    """One of these functions."""
    formulas = FUNCTIONS[name]
    x = Input(FLOAT32, "x", DataType.FLOAT32)
    formula = formulas.of_tables if of_tables else formulas.whole
    return lower_part(Questions({}).ask, formula(x), DataType.FLOAT32, f"chosen.{name}")
