"""Loops that take whole registers of 512 bits, where LLVM by itself takes half of them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm import nests
from app.devices.cpu.llvm.compiler import OF_HALVES, STEADY, Compiler
from app.devices.cpu.llvm.lowering import lower
from app.devices.cpu.llvm.vectors import FOUR_VECTORS, WIDE, Registers
from app.formula.values import FLOAT32, Input, Value, absolute, exp, sqrt, tan, tanh
from tests.formula.spelled import ask
from tests.operators.descriptors import compiled, descriptor

X = Input(FLOAT32, "X", DataType.FLOAT32)
HALF = Input(FLOAT32, "X", DataType.FLOAT16)


def source_of(expression: Value, stored: DataType) -> str:
    return nests.elements(lower(ask, expression, stored), ["X"], 1, ["packed", "packed"])


@pytest.mark.parametrize(
    ("expression", "stored", "is_wide"),
    [
        (exp(X), DataType.FLOAT32, True),
        (tanh(X), DataType.FLOAT32, True),
        (sqrt(X), DataType.FLOAT32, True),
        (X > 1, DataType.UINT8, True),
        (absolute(X), DataType.FLOAT32, False),
        (exp(HALF), DataType.FLOAT16, False),
        (HALF > 1, DataType.UINT8, False),
    ],
)
def test_what_computes_for_long_and_what_is_stored_as_bytes_is_wide(
    expression: Value, stored: DataType, is_wide: bool
) -> None:
    assert (WIDE in source_of(expression, stored)) is is_wide


def parsed_by(compiler: Any, source: str, registers: Registers, monkeypatch: pytest.MonkeyPatch) -> str:
    """What LLVM reads."""
    made: list[str] = []
    parsed = compiler._llvm.parse_assembly

    def parse(source: str) -> Any:
        made.append(source)
        return parsed(source)

    monkeypatch.setattr(compiler._llvm, "parse_assembly", parse)
    target = compiler._llvm.Target.from_default_triple()
    compiler.optimized(source, target.create_target_machine(), registers)
    return made[0]


@pytest.mark.parametrize("is_steady", [True, False])
def test_processors_that_slow_down_take_half_registers(is_steady: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler: Any = Compiler()
    monkeypatch.setattr(compiler, "_features", dict(compiler._features) | {STEADY: is_steady})
    read = parsed_by(compiler, source_of(exp(X), DataType.FLOAT32), compiler.registers, monkeypatch)
    assert (WIDE in read) is is_steady


@pytest.mark.parametrize("registers", ["avx512", "avx2", ""])
def test_four_guesses_side_by_side_are_for_those_with_32_registers(
    registers: Registers, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = parsed_by(Compiler(), source_of(tan(X), DataType.FLOAT32), registers, monkeypatch)
    assert (FOUR_VECTORS in read) is (registers == "avx512")


@pytest.mark.parametrize(("elements", "is_wide"), [(1 << 10, False), (1 << 16, True)])
def test_what_is_soon_done_takes_half_registers(elements: int, is_wide: bool) -> None:
    """To take whole ones for a moment slows down what comes behind it, too."""
    desc = {"DataType": "FLOAT32", "Sizes": [elements]}
    with ThreadPoolExecutor(1) as helpers:
        kernel: Any = NumpyDevice(helpers, 2, Compiler()).prepare(
            compiled(descriptor("DML_OPERATOR_ACTIVATION_TANH", desc))
        )
    assert (WIDE in kernel._call.codes.plain.source) is is_wide


@pytest.mark.parametrize("has_halves", [True, False])
def test_halves_are_divided_as_float32(has_halves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a processor divides halves, it is not said to: nor for what has none of them, or divides none."""
    compiler = Compiler()
    features = dict(compiler._features) | {OF_HALVES: has_halves}
    monkeypatch.setattr(compiler, "_features", mock.Mock(flatten=lambda: "+first", get=features.get))
    divided = source_of(1 / HALF, DataType.FLOAT16)
    assert compiler._features_for(divided) == ("+first,-avx512fp16" if has_halves else "+first")
    for other in (source_of(HALF + 1, DataType.FLOAT16), source_of(1 / X, DataType.FLOAT32)):
        assert compiler._features_for(other) == "+first"
