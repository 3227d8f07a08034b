"""Formulas as CUDA C++: what chooses code and what is an argument, and on the CPU, that it computes what NumPy does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.contract.constants import NEWEST, DataType
from app.contract.validation import validate
from app.contract.violations import ContractError
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.numpy.lowering import FUNCTIONS as NUMPY_FUNCTIONS
from app.devices.cuda.c_types import literal
from app.devices.cuda.operations import FUNCTIONS
from app.devices.placement import AHEAD
from app.engine.capabilities import example
from app.formula.expansions import EXPANSIONS
from app.memory.arrays import Array, numpy_type
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.operator import Role
from tests.devices.cuda_on_cpu import COMPILER, arithmetic_of, build
from tests.devices.test_numpy_device import never
from tests.operators.descriptors import (
    CELU,
    CONSTANT_POW,
    HARD_SIGMOID,
    PARAMETERIZED_RELU,
    compiled,
    descriptor,
    output_of,
)
from tests.operators.numerics.cases import (
    FLOAT16_BOUND,
    PARAMETERIZED_RELUS,
    UNARY,
    Case,
    all_float16,
    float32_inputs,
    ordinary_float32,
    random_float32,
)
from tests.operators.numerics.reference import wide
from tests.operators.numerics.ulp import check, distance

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")


def source(kind: str, data_type: str = "FLOAT32", **attributes: Any) -> str:
    operator = compiled(descriptor(kind, {"DataType": data_type, "Sizes": [8]}, **attributes))
    return arithmetic_of(operator).source


def test_every_operation_that_numpy_knows_has_a_row() -> None:
    of_numpy_alone = {"floor_divide", "clip"}  # which it makes of quotients, and of maximum and minimum
    assert {*NUMPY_FUNCTIONS, *EXPANSIONS} - of_numpy_alone == set(FUNCTIONS)


@pytest.mark.parametrize(
    ("kind", "attribute", "values"),
    [
        (HARD_SIGMOID, "Alpha", (0.2, 0.3, -5)),
        (CELU, "Alpha", (2, 0.7, 1e-3)),
        (CONSTANT_POW, "Exponent", (10.7, 1.1, 15.9)),
        (CONSTANT_POW, "Exponent", (100, 1e5)),
    ],
)
def test_attributes_are_arguments(kind: str, attribute: str, values: tuple[float, ...]) -> None:
    for data_type in ("FLOAT32", "FLOAT16") if abs(values[0]) < 50 else ("FLOAT32",):
        assert len({source(kind, data_type, **{attribute: value}) for value in values}) == 1


def test_the_class_of_an_exponent_chooses_code() -> None:
    classes = [10.7, 5, 4, 2.25, 100, 3, -1, 0.5, 0]
    assert len({source(CONSTANT_POW, Exponent=each) for each in classes}) == len(classes)


def test_float16_is_converted_on_loading_and_on_storing() -> None:
    text = source(HARD_SIGMOID, "FLOAT16").partition("element(")[2]
    assert text.count("float_of_half") == text.count("half_of_float") == 1


def test_what_alpha_is_1_for_is_not_computed() -> None:
    assert "p0" not in source(CELU).partition("{\n")[2].rpartition("DEVICE float element")[2].partition("{")[2]
    assert "over(" not in source(CELU).rpartition("DEVICE float element")[2]
    assert "over(" in source(CELU, Alpha=2).rpartition("DEVICE float element")[2]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(0.1), "0x1.99999a0000000p-4f"),
        (np.float32(-np.inf), "float_of_bits(0xff800000u)"),
        (np.float64(5e-324), "0x0.0000000000001p-1022"),
        (np.float64(np.nan), "double_of_bits(0x7ff8000000000000ull)"),
        (np.int64(-(2**63)), "((long long)0x8000000000000000ull)"),
        (np.uint8(255), "((unsigned char)0xffull)"),
        (np.bool_(True), "true"),
    ],
)
def test_literals_are_exact(value: np.generic, text: str) -> None:
    assert literal(value) == text


# Built for the CPU


def of_case(case: Case, data_type: str) -> CompiledOperator:
    return compiled(descriptor(case.kind, {"DataType": data_type, "Sizes": [8]}, **case.attributes))


@needs_compiler
def test_floats_are_as_exact_as_they_must_be(tmp_path: Path) -> None:
    """Special, random and ordinary numbers."""
    cases = [case for case in [*UNARY, *PARAMETERIZED_RELUS] if case.kind in AHEAD]
    operators = [of_case(case, data_type) for case in cases for data_type in ("FLOAT32", "FLOAT16")]
    elements = iter(build(tmp_path, operators))
    for case in cases:
        singles = np.concatenate([float32_inputs(case), random_float32(1 << 10), ordinary_float32(1 << 10)])
        for x, bound in ((singles, case.bound), (all_float16()[::7], FLOAT16_BOUND)):
            inputs = (x, np.random.default_rng(1).permutation(x)) if case in PARAMETERIZED_RELUS else (x,)
            actual = next(elements)(*inputs)
            with np.errstate(all="ignore"):
                exact = case.exact(*map(wide, inputs))
                largest = case.largest(*map(wide, inputs)) if case.largest else None
            check(actual, exact, bound, *inputs, largest=largest)


@needs_compiler
def test_powers_are_exact_to_2_ulp(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    exponents = [*rng.uniform(-16, 16, 24).astype(np.float32).tolist(), 5, -5, 4, 16, -16, 1.5, 0.25, 1e-5]
    operators = [compiled(descriptor(CONSTANT_POW, Exponent=float(each))) for each in exponents]
    for exponent, element in zip(exponents, build(tmp_path, operators), strict=True):
        reach = min(126 / abs(exponent), 126)
        x = np.exp2(rng.uniform(-reach, reach, 20_000)).astype(np.float32)
        with np.errstate(all="ignore"):
            exact = np.power(x.astype(np.float64), np.full(x.size, np.float32(exponent), np.float64))
        assert distance(element(x), exact.astype(np.float32)).max() <= 2, exponent


def samples() -> list[CompiledOperator]:
    """Every operator of one output that computes each element by itself, in up to three data types."""
    made = []
    for operator in [each for each in OPERATORS.values() if len(each.tensor_names(Role.OUTPUT)) == 1]:
        document = example(operator)["operator"]
        for data_type in (DataType.FLOAT32, DataType.FLOAT16, DataType.INT32, DataType.UINT8, DataType.INT64):
            typed = {
                name: value | {"DataType": data_type} if isinstance(value, dict) and "DataType" in value else value
                for name, value in document.items()
            }
            try:
                each = compile_operator(validate(operator, typed), NEWEST)
            except ContractError:
                continue  # it does not take this type
            if each.program.is_by_position and not each.operator.axes():
                made.append(each)
    return made


def data_for(operator: CompiledOperator, rng: np.random.Generator, count: int) -> list[Array]:
    arrays: list[Array] = []
    for name in operator.inputs:
        dtype = numpy_type(operator.stored_types[name])
        if dtype.kind == "f":
            values = rng.standard_normal(count) * 10 ** rng.uniform(-2, 1, count)
            values[:8] = [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.5]
            arrays.append(values.astype(dtype))
        else:
            ends = np.iinfo(dtype)
            arrays.append(rng.integers(ends.min, ends.max, count, dtype, endpoint=True))
            arrays[-1][: count // 2] = rng.integers(0, 9, count // 2)  # divisors of 0, shifts within the width
    return arrays


@needs_compiler
def test_every_operator_computes_what_numpy_does(tmp_path: Path, device_of_numpy: NumpyDevice) -> None:
    operators = samples()
    assert len(operators) > 200
    rng = np.random.default_rng(3)
    for operator, element in zip(operators, build(tmp_path, operators), strict=True):
        count = output_of(operator).elements
        inputs = [rng.permutation(array)[: 1 << 10] for array in data_for(operator, rng, 1 << 10)]
        actual = element(*inputs)
        flat = compile_at(operator, 1 << 10)
        expected = np.empty_like(actual)
        buffers = [array.view(np.uint8).data for array in inputs]
        device_of_numpy.prepare(flat).dispatch(buffers, [expected.view(np.uint8).data], never)
        told = (operator.operator.name(), operator.stored_types, count)
        if actual.dtype.kind != "f":
            # A quotient or logarithm that is rounded differently may decide a comparison otherwise.
            assert np.count_nonzero(actual != expected) == 0, told
            continue
        with np.errstate(all="ignore"):
            near = np.isclose(actual.astype(np.float64), expected.astype(np.float64), rtol=2e-3, atol=1e-6)
            if actual.dtype.itemsize > 2:
                near = np.isclose(actual.astype(np.float64), expected.astype(np.float64), rtol=3e-6, atol=1e-6)
        assert (near | (np.isnan(actual) & np.isnan(expected))).all(), told


def compile_at(operator: CompiledOperator, count: int) -> CompiledOperator:
    """The same operator on packed tensors of one dimension and `count` elements."""
    document = operator.operator.model_dump(mode="json", exclude_none=True)
    for name, value in document.items():
        if isinstance(value, dict) and "DataType" in value:
            document[name] = {"DataType": value["DataType"], "Sizes": [count]}
    return compile_operator(validate(type(operator.operator), document), NEWEST)


@pytest.fixture
def device_of_numpy() -> Any:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as helpers:
        yield NumpyDevice(helpers, 1)


def test_there_is_an_arithmetic_for_integers() -> None:
    operator = compiled(descriptor(PARAMETERIZED_RELU, {"DataType": "INT8", "Sizes": [8]}))
    assert arithmetic_of(operator).inputs == ("signed char", "signed char")
