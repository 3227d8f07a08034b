"""SQRT of float32 as loops compute it: rounded right, by whatever instructions."""

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm import chosen, nests
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.lowering import lower
from app.formula.values import FLOAT32, Input, arcsin, sqrt
from app.memory.arrays import Array
from tests.devices.test_llvm import dispatch, operator_of
from tests.formula.spelled import ask
from tests.operators.widths import narrow

SQRT = "DML_OPERATOR_ELEMENT_WISE_SQRT"
COMPILERS = [Compiler(), narrow(8)]


def roots(x: Array, compiler: Compiler) -> Array:
    with ThreadPoolExecutor(1) as helpers:
        return dispatch(NumpyDevice(helpers, 1, compiler, least=1), operator_of(SQRT, x.size), [x])


def bits(first: int, count: int, step: int = 1) -> Array:
    return (np.arange(count, dtype=np.int64) * step + first).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_float32_in_509_is_rounded_right(compiler: Compiler) -> None:
    """And all around where the way changes: 0, the least normal number, what is made more first, 1, 2, infinity."""
    places = np.array([0, 2.0**-126, 2.0**-100, 1, 2, np.inf], np.float32).view(np.uint32)
    around = [bits(int(place) - 2000, 4000) for place in places]
    x = np.concatenate([bits(0, (1 << 32) // 509, 509), *around])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(roots(x, compiler), np.sqrt(x))
    np.testing.assert_array_equal(np.signbit(roots(x[x == 0], compiler)), np.signbit(x[x == 0]))


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("size", [1, 3, 7, 15, 17, 33, 129])
def test_what_is_left_of_vectors_is_rounded_right(compiler: Compiler, size: int) -> None:
    x = np.abs(np.random.default_rng(size).standard_normal(size)).astype(np.float32)
    np.testing.assert_array_equal(roots(x, compiler), np.sqrt(x))


def code_of(compiler: Compiler) -> str:
    x = Input(FLOAT32, "X", DataType.FLOAT32)
    source = nests.elements(lower(ask, sqrt(x), DataType.FLOAT32), ["X"], 1, ["packed", "packed"])
    target = compiler._llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=compiler._llvm.get_host_cpu_name(), features=compiler._features.flatten(), opt=3
    )
    return str(compiler.optimized(source, machine, compiler.registers))


def test_roots_are_guessed_where_all_of_them_were_compared() -> None:
    """Guesses of other processors may differ from Intel's, and so might some roots of these."""
    compiler = Compiler()
    if compiler.registers == "avx512":
        assert ("rsqrt14" in code_of(compiler)) is compiler.computes_whole
    with mock.patch.object(Compiler, "computes_whole", False):
        assert "rsqrt14" not in code_of(compiler)
        assert "@llvm.sqrt." in code_of(compiler)


def test_a_root_beside_an_arc_sine() -> None:
    """Both call the same function where there are no guesses."""
    x = Input(FLOAT32, "X", DataType.FLOAT32)
    for compiler in COMPILERS:
        source = nests.elements(lower(ask, arcsin(x) + sqrt(x), DataType.FLOAT32), ["X"], 1, ["packed", "packed"])
        numbers, made = np.linspace(0, 1, 129, dtype=np.float32), np.empty(129, np.float32)
        frame = np.array([129, numbers.ctypes.data, 4, made.ctypes.data, 4])
        for tables in (frozenset(["avx512"]), frozenset(["avx512", "avx2", ""])):
            with (
                mock.patch.object(chosen, "HOLD_TABLES", tables),
                mock.patch.object(compiler, "_compiled", OrderedDict()),
            ):
                compiler.function(source)(frame.ctypes.data)
            wide = numbers.astype(np.float64)
            np.testing.assert_allclose(made, np.arcsin(wide) + np.sqrt(wide), 3e-7)
