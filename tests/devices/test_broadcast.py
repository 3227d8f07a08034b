"""Inputs of size 1 where the output has more, of operators that go by position: they are read again and again."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pytest

from app.contract.constants import NEWEST
from app.contract.support import SupportTable
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.layout import walk
from app.formula.values import Value, maximum_of
from app.memory.arrays import Array
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.operator import InputTensorDesc, Operator, OutputTensorDesc
from app.operators.parameters import Parameters
from tests.devices.test_numpy_device import never


class Affine(Operator):
    """Of sizes that are not judged."""

    Type: Literal["DML_OPERATOR_TEST_AFFINE"] = "DML_OPERATOR_TEST_AFFINE"
    InputTensor: InputTensorDesc
    ScaleTensor: InputTensorDesc
    BiasTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None

    formula_text = ""
    support = SupportTable.of("1_0 1-8 F32-16")
    same_sizes = ()

    def formula(self, p: Parameters, x: Value, scale: Value, bias: Value) -> Value:
        return x * scale + bias


class OfLargest(Affine):
    """The same of what x is below its row's largest element."""

    Type: Literal["DML_OPERATOR_TEST_OF_LARGEST"] = "DML_OPERATOR_TEST_OF_LARGEST"  # type: ignore[assignment]

    def axes(self) -> tuple[int, ...]:
        return (1, 2)

    def formula(self, p: Parameters, x: Value, scale: Value, bias: Value) -> Value:
        return (x - maximum_of(x * scale)) * scale + bias


def operator_of(kind: type[Operator], *sizes: Sequence[int], **members: Any) -> CompiledOperator:
    """One whose three inputs have these sizes."""
    names = ("InputTensor", "ScaleTensor", "BiasTensor")
    tensors = {
        name: {"DataType": "FLOAT32", "Sizes": list(each)} | members.pop(name, {})
        for name, each in zip(names, sizes, strict=True)
    }
    return compile_operator(kind.model_validate_json(json.dumps(tensors | members)), NEWEST)


@pytest.fixture(scope="module")
def helpers() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture(params=["calls", "loops"])
def device(request: pytest.FixtureRequest, helpers: Executor) -> NumpyDevice:
    return NumpyDevice(helpers, 2, Compiler() if request.param == "loops" else None, least=1)


CASES = [
    ((2, 3, 5, 7), (1, 3, 1, 1), (1, 3, 1, 1)),
    ((2, 3, 5, 7), (2, 1, 5, 1), (1, 1, 1, 7)),
    ((2, 3, 5, 7), (1, 1, 1, 1), (2, 3, 5, 7)),
    ((2, 300, 40, 7), (2, 300, 1, 1), (1, 300, 1, 7)),
    ((1, 4, 1, 6), (1, 4, 1, 1), (1, 1, 1, 6)),
    ((3, 2, 2), (3, 1, 1), (1, 2, 2)),
]


@pytest.mark.parametrize("sizes", CASES, ids=str)
@pytest.mark.parametrize("kind", [Affine, OfLargest])
def test_sizes_of_1_are_repeated(device: NumpyDevice, kind: type[Operator], sizes: Sequence[Sequence[int]]) -> None:
    """NumPy broadcasts so as well. A second run finds the loops compiled."""
    rng = np.random.default_rng(1)
    x, scale, bias = (rng.integers(-9, 9, each).astype(np.float32) for each in sizes)
    operator = operator_of(kind, *sizes)
    expected = x * scale + bias
    if kind is OfLargest:
        expected = (x - (x * scale).max((1, 2), keepdims=True)) * scale + bias
    for _ in range(2):
        made = np.empty(sizes[0], np.float32)
        buffers = [each.reshape(-1).view(np.uint8).data for each in (x, scale, bias)]
        device.prepare(operator).dispatch(buffers, [made.reshape(-1).view(np.uint8).data], never)
        np.testing.assert_array_equal(made, expected)


def test_strides_of_an_input_that_is_repeated(device: NumpyDevice) -> None:
    """Those along sizes of 1 do not count."""
    operator = operator_of(
        Affine, (2, 3), (1, 3), (2, 1), ScaleTensor={"Strides": [9, 2]}, BiasTensor={"Strides": [4, 9]}
    )
    x: Array = np.arange(6, dtype=np.float32)
    scale, bias = np.array([1, 0, 2, 0, 3], np.float32), np.array([10, 0, 0, 0, 20], np.float32)
    made = np.empty(6, np.float32)
    buffers = [each.view(np.uint8).data for each in (x, scale, bias)]
    device.prepare(operator).dispatch(buffers, [made.view(np.uint8).data], never)
    assert made.tolist() == [10, 12, 16, 23, 28, 35]


def test_how_they_are_walked() -> None:
    """Neighbouring dimensions still merge, and packed tensors of equal sizes are one dimension."""
    operator = operator_of(Affine, (2, 3, 5, 7), (1, 3, 1, 1), (1, 1, 1, 1))
    assert walk(operator, "OutputTensor") == ([2, 3, 35], [[105, 35, 1], [0, 1, 0], [0, 0, 0], [105, 35, 1]])
    operator = operator_of(Affine, (2, 3, 5, 7), (2, 3, 5, 7), (1, 1, 1, 1))
    assert walk(operator, "OutputTensor") == ([210], [[1], [1], [0], [1]])
