"""Programs of several outputs, which no operator has yet."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.device import Cancelled
from app.formula.values import absolute, exp, maximum_of
from app.operators.compiled import CompiledOperator
from app.programs.program import Map, Program
from tests.devices.test_numpy_device import never
from tests.operators.descriptors import compiled, descriptor, expression_of, output_of

ROWS = {"DataType": "FLOAT32", "Sizes": [3, 500]}


def of_two_outputs() -> CompiledOperator:
    """The magnitudes, and by how much each element is below the largest of its row."""
    made = compiled(descriptor("DML_OPERATOR_ACTIVATION_RELU", ROWS))
    x = next(iter(expression_of(made).arguments))  # type: ignore[attr-defined]  # of an operation
    desc = output_of(made)
    stored = desc.DataType
    maps = {"Magnitudes": Map(absolute(x), stored), "Below": Map(exp(x - maximum_of(x)), stored, (1,))}
    return replace(made, outputs=dict.fromkeys(maps, desc), program=Program(made.program.inputs, maps))


@pytest.mark.parametrize("compiler", [None, Compiler()], ids=["numpy", "llvm"])
def test_each_output_is_computed(compiler: Compiler | None) -> None:
    x = np.random.default_rng(1).standard_normal((3, 500), np.float32)
    outputs = [np.empty_like(x) for _ in range(2)]
    with ThreadPoolExecutor(1) as helpers:
        kernel = NumpyDevice(helpers, 1, compiler, least=1).prepare(of_two_outputs())
        buffers = [each.view(np.uint8).reshape(-1).data for each in outputs]
        kernel.dispatch([x.view(np.uint8).reshape(-1).data], buffers, never)
        with pytest.raises(Cancelled):
            kernel.dispatch([x.view(np.uint8).reshape(-1).data], buffers, lambda: True)
    assert kernel.runs_inline
    np.testing.assert_array_equal(outputs[0], np.abs(x))
    np.testing.assert_allclose(outputs[1], np.exp(x - x.max(axis=1, keepdims=True)), 1e-5)


def test_the_first_output_may_take_the_memory_of_an_input() -> None:
    """The others read the input all the same."""
    x = np.random.default_rng(1).standard_normal((3, 500), np.float32)
    expected = np.abs(x), np.exp(x - x.max(axis=1, keepdims=True))
    below = np.empty_like(x)
    with ThreadPoolExecutor(1) as helpers:
        first, second = (each.view(np.uint8).reshape(-1).data for each in (x, below))
        NumpyDevice(helpers, 1).prepare(of_two_outputs()).dispatch([first], [first, second], never)
    np.testing.assert_array_equal(x, expected[0])
    np.testing.assert_allclose(below, expected[1], 1e-5)
