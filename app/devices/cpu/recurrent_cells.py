"""Cells of recurrent networks as functions that LLVM's code calls: a formula each of what a step makes."""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from app.contract.constants import DataType
from app.devices.cpu.llvm.frames import Arguments
from app.devices.cpu.llvm.lowering import lower_part
from app.devices.cpu.llvm.recurrent import SUM, Round, Stage
from app.formula.structures import Questions
from app.operators.recurrent.cells import Cell, Terms, element, given
from app.operators.recurrent.steps import Recurrent


class LoweredCell(NamedTuple):
    rounds: tuple[Round, ...]
    attributes: Sequence[int]
    """What a frame has of them, 8 bytes each, in their order."""


def lowered_cell(operator: Recurrent, direction: int) -> LoweredCell | None:
    """That of a direction; None where NumPy is to compute it."""
    return _lowered(operator.cell(direction, _summed), operator.apart)


def _summed(gates: int) -> Terms:
    """What loops have: products are added to what is given, but where states stay apart."""
    sums = [element(f"{SUM}{gate}") for gate in range(gates)]
    return Terms(sums, [given(gate) for gate in range(gates)], sums)


@lru_cache(256)
def _lowered(cell: Cell, apart: range) -> LoweredCell | None:
    ask = Questions(cell.numbers).ask
    try:
        rounds = tuple(
            Round(
                tuple(each.gates),
                tuple(gate for gate in each.gates if gate in apart),
                each.of,
                tuple(
                    Stage(stage.made, lower_part(ask, stage.element, DataType.FLOAT32, f"to{stage.made}"))
                    for stage in each.stages
                ),
            )
            for each in cell.rounds
        )
    except LookupError:
        return None
    elements = [stage.element for each in rounds for stage in each.stages]
    numbers = Arguments([parameter for each in elements for parameter in each.parameters]).of(cell.numbers)
    return LoweredCell(rounds, array("q", numbers))
