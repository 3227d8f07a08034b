"""Code that is kept is what would be compiled."""

from itertools import product
from typing import Any
from unittest import mock

from app.contract.constants import DataType
from app.devices.cpu.llvm import chosen
from app.devices.cpu.llvm.compiler import Compiler
from app.formula.values import sqrt, tanh
from tests.devices.test_wide import X, source_of
from tests.operators.widths import narrow


def test_it_depends_on_all_that_differs() -> None:
    """In all combinations, for in one of them only it may make a difference."""
    sources = [source_of(function, DataType.FLOAT32) for function in (tanh(X), sqrt(X))]
    compilers: list[Any] = [Compiler(), narrow(8)]
    of_registers = [(by, registers) for by in compilers for registers in {"", narrow(8).registers, by.registers}]
    for (by, registers), whole, tables in product(of_registers, [True, False], [[], ["avx512", "avx2", ""]]):
        with (
            mock.patch.object(Compiler, "registers", registers),
            mock.patch.object(Compiler, "computes_whole", whole),
            mock.patch.object(chosen, "HOLD_TABLES", frozenset(tables)),
        ):
            for source in sources:
                assert by._code(source) == by._emitted(source)
