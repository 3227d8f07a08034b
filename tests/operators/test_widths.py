"""Loops give the same whatever registers hold: as on processors without AVX-512, in vectors of 4, 8 and 16 float32."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm import dots
from app.devices.cpu.llvm.chosen import HOLD_TABLES
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.math.primitives import CHOSEN
from app.devices.cpu.llvm.text import Text
from app.formula.precision import operations
from tests.devices import test_cuda_lowering as lowering
from tests.devices.test_llvm import dispatch
from tests.operators import calls, conftest, test_parity
from tests.operators.convolution import test_loops
from tests.operators.pooling import test_pool_loops
from tests.operators.recurrent.test_networks import GATES
from tests.operators.widths import OTHERS, WIDTHS, narrow

FLOATS = (DataType.FLOAT32, DataType.FLOAT16)


@pytest.fixture(scope="module", params=OTHERS)
def compiler(request: pytest.FixtureRequest) -> Compiler:
    return narrow(request.param)


@pytest.fixture
def width(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of vectors of what `calls.run` computes, and of what tests draw sizes by. It goes before `loops`, for which it
    says who compiles."""
    monkeypatch.setattr(conftest, "compiler", lambda: compiler)
    monkeypatch.setattr(test_parity, "WIDTH", compiler.vector_floats)
    return compiler.vector_floats


@pytest.fixture
def device(compiler: Compiler) -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(2) as helpers:
        yield NumpyDevice(helpers, 3, compiler)


def test_there_is_no_avx_512(compiler: Compiler) -> None:
    assert compiler.registers in ("avx2", "")


def test_every_operator() -> None:
    """To the last bit as LLVM makes vectors of them for this processor, but for the order of sums, and for functions
    that are made of tables here; of integers some."""
    rng = np.random.default_rng(11)
    compilers = conftest.compiler(), narrow(8)
    of_tables = {*CHOSEN, "normal_cdf"}  # which is found together with what it gates, as `gated_by_normal`
    differing = frozenset(of_tables if len({each.registers in HOLD_TABLES for each in compilers}) > 1 else [])
    with ThreadPoolExecutor(1) as helpers:
        devices = [NumpyDevice(helpers, 1, each, least=1) for each in compilers]
        for number, sample in enumerate(lowering.samples()):
            if number % 3 and not any(each in FLOATS for each in sample.stored_types.values()):
                continue
            operator = lowering.compile_at(sample, 300)
            inputs = lowering.data_for(operator, rng, 300)
            expected, made = (dispatch(each, operator, inputs) for each in devices)
            maps = operator.program.maps.values()
            may_differ = any(each.axes or differing & operations(each.expression) for each in maps)
            near = 4 * float(np.finfo(made.dtype).eps) if may_differ else 0
            np.testing.assert_allclose(made, expected, near, 0, err_msg=operator.operator.name())


@pytest.mark.usefixtures("width", "loops")
def test_products() -> None:
    test_parity.test_products(0)


@pytest.mark.usefixtures("width", "loops")
def test_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    test_parity.test_convolutions(monkeypatch)


@pytest.mark.usefixtures("width", "loops")
def test_sums_of_convolutions() -> None:
    rng = np.random.default_rng(0)
    for document, sizes, filters in [*test_loops.cases()][::6]:
        x, w, bias = (test_loops.integers(rng, *each) for each in (sizes, filters, (1, filters[0])))
        bias = bias.reshape(1, -1, *[1] * (x.ndim - 2))
        made = calls.run(document, InputTensor=x, FilterTensor=w, BiasTensor=bias)["OutputTensor"]
        np.testing.assert_array_equal(made, test_loops.expected(document, x, w, bias), str(document))


@pytest.mark.usefixtures("width", "loops")
@pytest.mark.parametrize("kind", GATES)
def test_networks(kind: str) -> None:
    test_parity.test_networks(kind)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("kind", "type_"),
    [("AVERAGE_POOLING1", "FLOAT32"), *(("MAX_POOLING2", each) for each in ("FLOAT32", "FLOAT16", "INT8", "UINT64"))],
)
def test_windows(device: NumpyDevice, seed: int, kind: str, type_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test_pool_loops.test_windows_are_those_by_coordinates(device, seed, kind, type_, monkeypatch)


def test_few_places_are_known() -> None:
    """Some channels are taken at a time for any number of places, and registers have the sums of few."""
    for floats in WIDTHS:
        for places in range(1, 100):
            rows = dots.rows_for(places, floats)
            assert rows == 1 or rows * places <= (12 if floats == 8 else 24)
            assert dots.are_few(places, floats) == (rows > 1)


@pytest.mark.parametrize("floats", WIDTHS)
def test_vectors_that_are_whole_are_stored_at_once(floats: int) -> None:
    """To store some elements takes AVX2 as long as to store one after the other."""
    text = Text(floats)
    text.store("zeroinitializer", "%frame", text.below(text.lanes("0"), "5"))
    stored = [line for line in text.lines if line.startswith(f"store {text.vector}")]
    assert len(stored) == (floats != 16)
