"""Nothing beside tensors and scratch is read or written: a loop that does ends the process. Nor do results depend on
where these lie, or on what memory held before."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import cast

import numpy as np
import pytest

from app.devices.cpu import alone, products
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm import loop_calls
from app.devices.device import ExecutionRecord, Kernel
from app.engine.capabilities import example
from app.memory.addresses import LINE, whole_lines
from app.memory.buffers import Buffer
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator
from tests.operators import test_parity
from tests.operators.calls import compiled
from tests.operators.conftest import compiler
from tests.operators.fences import fenced


class Fenced:
    """Implements `Kernel`: another one, over tensors that end at a fence, and again over those that begin at one. Its
    scratch ends at one, and holds other bytes the second time."""

    def __init__(self, kernel: Kernel, operator: CompiledOperator, monkeypatch: pytest.MonkeyPatch) -> None:
        self._kernel, self._monkeypatch = kernel, monkeypatch
        descs = [*operator.inputs.values(), *operator.outputs.values()]
        self._sizes = [desc.data_bytes for desc in descs]

    @property
    def runs_inline(self) -> bool:
        return self._kernel.runs_inline

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        given = [
            np.frombuffer(each, np.uint8, size) for each, size in zip((*inputs, *outputs), self._sizes, strict=True)
        ]
        made = []
        for at_the_end, held in ((True, 0xFF), (False, 0)):
            scratch: list[fenced] = []

            def aligned(size: int, held: int = held, scratch: list[fenced] = scratch) -> tuple[object, int]:
                scratch.append(fenced([np.full(whole_lines(size), held, np.uint8)], at_the_end=True))
                (memory,) = scratch[-1].__enter__()
                assert memory.ctypes.data % LINE == 0
                return memory, memory.ctypes.data

            for module in (alone, loop_calls):
                self._monkeypatch.setattr(module, "aligned", aligned)
            with fenced(given, at_the_end=at_the_end) as memory:
                buffers = [each.data for each in memory]
                ran = self._kernel.dispatch(buffers[: len(inputs)], buffers[len(inputs) :], cancelled)
                made.append([each.tobytes() for each in memory[len(inputs) :]])
            for each in scratch:
                each.__exit__()
        assert made[0] == made[1]
        for buffer, result in zip(outputs, made[0], strict=True):
            buffer[: len(result)] = result
        return ran


@pytest.fixture(autouse=True)
def fences(loops: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Around all that `calls.run` computes."""
    prepare = NumpyDevice.prepare
    monkeypatch.setattr(
        NumpyDevice, "prepare", lambda self, operator: Fenced(prepare(self, operator), operator, monkeypatch)
    )


def test_examples() -> None:
    """Of every operator that does not make each element by itself, and of some that do, of any bytes."""
    device, rng = NumpyDevice(cast(Executor, None), 1, compiler(), least=1), np.random.default_rng(5)
    for number, kind in enumerate(OPERATORS.values()):
        operator = compiled(example(kind)["operator"])
        maps = operator.program.maps.values()
        if number % 16 and not (operator.program.call or any(each.axes or each.by_coordinates for each in maps)):
            continue
        given = [rng.bytes(desc.data_bytes) for desc in operator.inputs.values()]
        made = [memoryview(bytearray(desc.data_bytes)) for desc in operator.outputs.values()]
        device.prepare(operator).dispatch([memoryview(bytearray(each)) for each in given], made, lambda: False)


def test_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """By loops, of sizes around those of vectors and tiles."""
    monkeypatch.setattr(products, "LEAST_ALONE", 1)
    test_parity.test_products(0)
