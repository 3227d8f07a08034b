"""Functions of float16 that are looked up: each result is what would be computed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest

from app.contract.constants import NEWEST
from app.contract.validation import validate
from app.devices.cpu import tables
from app.devices.cpu.device import NumpyDevice, NumpyKernel
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import Loop
from app.devices.cpu.tables import EVERY, KEPT, WORTH, Table, is_tabled
from app.formula.structures import Structures
from app.memory.arrays import Array
from app.operators.catalog import OPERATORS
from app.operators.compiled import compile_operator
from app.operators.operator import PREFIX
from tests.devices.test_numpy_device import never
from tests.operators.descriptors import compiled, descriptor

COMPILER = Compiler()
STRUCTURES = Structures()
ALL = np.random.default_rng(5).permutation(np.arange(EVERY, dtype=np.uint16)).view(np.float16)


@pytest.fixture(params=[COMPILER, None], ids=["loops", "NumPy"])
def device(request: pytest.FixtureRequest) -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(2) as helpers:
        yield NumpyDevice(helpers, 2, request.param)


def kernel_of(device: NumpyDevice, kind: str, strides: list[int] | None = None, **attributes: float) -> NumpyKernel:
    tensor = {"DataType": "FLOAT16", "Sizes": [1, 1, 256, 256], "Strides": strides}
    stated = validate(OPERATORS[PREFIX + kind], descriptor(PREFIX + kind, tensor, **attributes))
    kernel = device.prepare(compile_operator(stated, NEWEST, STRUCTURES))
    assert isinstance(kernel, NumpyKernel)
    return kernel


def computed(kernel: NumpyKernel, x: Array, output: Array | None = None) -> Array:
    y = np.zeros(EVERY, np.float16) if output is None else output
    kernel.dispatch([x.view(np.uint8).data], [y.view(np.uint8).data], never)
    return y


def bits(results: Array) -> Array:
    """All NaN are one: of which sign a NaN is made of others depends on where in a vector it is computed."""
    return np.where(np.isnan(results), np.float16("nan"), results).view(np.uint16)


@pytest.mark.parametrize("kind", ["ELEMENT_WISE_SIN", "ELEMENT_WISE_ACOS", "ACTIVATION_GELU", "ACTIVATION_SOFTPLUS"])
def test_results_are_the_same_before_and_after(device: NumpyDevice, kind: str) -> None:
    kernel = kernel_of(device, kind)
    results = [computed(kernel, ALL) for _ in range(WORTH // EVERY - 1)]
    assert kernel._looked_up is None
    results += [computed(kernel, ALL) for _ in range(2)]
    looked_up = kernel._looked_up
    assert looked_up is not None
    assert kernel.kept_bytes >= looked_up[0].nbytes == 2 * EVERY, "what remembers the kernel has the table as well"
    results.append(computed(kernel, taken := ALL.copy(), taken))
    for each in results[1:]:
        np.testing.assert_array_equal(bits(each), bits(results[0]))


@pytest.mark.parametrize(
    ("work", "of_float64", "floats", "expected"),
    [
        (45, 0, 16, False),
        (46, 0, 16, True),
        (40, 6, 16, True),
        (40, 5, 16, False),
        (30, 0, 8, False),
        (20, 11, 4, True),
    ],
)
def test_what_is_of_float64_takes_twice_as_long(work: int, of_float64: int, floats: int, expected: bool) -> None:
    loop = mock.Mock(spec=Loop, work=work, of_float64=of_float64, vector_floats=floats)
    assert is_tabled(loop, [np.dtype(np.float16)] * 2) is expected


def test_layouts(device: NumpyDevice) -> None:
    """Every other element; one for all of a row; rows of a column."""
    with mock.patch.object(tables, "WORTH", EVERY):
        for strides, places in (
            ([0, 0, 128, 0], np.repeat(np.arange(256) * 128, 256)),
            ([0, 0, 1, 256], np.arange(EVERY).reshape(256, 256).T.reshape(-1)),
            ([0, 0, 0, 3], np.tile(np.arange(256) * 3, 256)),
        ):
            kernel = kernel_of(device, "ELEMENT_WISE_ATAN", strides)
            made = computed(kernel, ALL)
            assert kernel._looked_up is not None
            plain = computed(kernel_of(device, "ELEMENT_WISE_ATAN"), ALL)
            np.testing.assert_array_equal(made.view(np.uint16), plain[places].view(np.uint16))


def test_tables_are_of_one_function_each(device: NumpyDevice) -> None:
    """Attributes make others, sizes do not, and what is short is computed."""
    with mock.patch.object(tables, "WORTH", EVERY):
        first, second = (kernel_of(device, "ACTIVATION_SWISH", SigmoidInputScale=each) for each in (1.0, -3.0))
        assert not np.array_equal(computed(first, ALL), computed(second, ALL), equal_nan=True)
        one, other = (kernel_of(device, "ELEMENT_WISE_SIN", each) for each in (None, [0, 0, 1, 256]))
        assert one._table is not None
        assert one._table is other._table
    if device._loops:
        assert kernel_of(device, "ACTIVATION_RELU")._table is None


@pytest.mark.parametrize("data_type", ["UINT8", "INT8", "INT16", "INT64", "FLOAT64"])
def test_tables_are_of_one_type_each(device: NumpyDevice, data_type: str) -> None:
    """NumPy's calls are the same for all types that a float16 becomes; as INT32, 300 is not 127."""
    x = np.resize(np.array([300, -300, 2.5, np.nan, np.inf], np.float16), 100)  # with a compiler too few for a loop

    def cast(data_type: str) -> Array:
        tensor = {"DataType": "FLOAT16", "Sizes": [x.size]}
        made = compiled({"Type": "CAST", "InputTensor": tensor, "OutputTensor": tensor | {"DataType": data_type}})
        y = np.zeros(x.size, data_type.lower())
        device.prepare(made).dispatch([x.view(np.uint8).data], [y.view(np.uint8).data], never)
        return y

    expected = cast(data_type)
    with mock.patch.object(tables, "WORTH", 0):
        assert cast("INT32").tolist() == [300, -300, 2, 0, 2**31 - 1] * 20
        np.testing.assert_array_equal(cast(data_type), expected)


def test_kernels_that_make_a_table_are_not_for_the_event_loop() -> None:
    with ThreadPoolExecutor(1) as helpers:
        kernel = kernel_of(NumpyDevice(helpers, 1), "ELEMENT_WISE_TAN")
        for _ in range(WORTH // EVERY - 1):
            assert kernel.runs_inline
            computed(kernel, ALL)
        assert not kernel.runs_inline
        computed(kernel, ALL)
        assert kernel.runs_inline


def test_so_many_are_kept(device: NumpyDevice) -> None:
    first = kernel_of(device, "ELEMENT_WISE_CONSTANT_POW", Exponent=0.01)._table
    if device._loops:
        assert isinstance(first, Table)
    for number in range(KEPT):
        kernel_of(device, "ELEMENT_WISE_CONSTANT_POW", Exponent=0.013 + number / 1000)
    assert len(device._tables._tables) == KEPT
    assert kernel_of(device, "ELEMENT_WISE_CONSTANT_POW", Exponent=0.01)._table is not first


def test_others_are_computed(device: NumpyDevice) -> None:
    """Those of two inputs, and of float32."""
    for kind, data_type in (("ELEMENT_WISE_ATAN_YX", "FLOAT16"), ("ELEMENT_WISE_SIN", "FLOAT32")):
        kernel = device.prepare(compiled(descriptor(PREFIX + kind, {"DataType": data_type, "Sizes": [4]})))
        assert isinstance(kernel, NumpyKernel)
        assert kernel._table is None
