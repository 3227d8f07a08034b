"""Operators on each kind of device."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

from app.devices.cpu import convolution, convolution_job, convolution_loops
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from tests.gpu import first_gpu
from tests.operators import calls
from tests.operators.indexing import running


@cache
def compiler() -> Compiler:
    """One for all tests: many of them need the same loops."""
    return Compiler()


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """LLVM's, of two threads, also for the smallest tensors and in small pieces, where `calls.run` computes."""
    monkeypatch.setattr(convolution, "LEAST", 0)
    monkeypatch.setattr(convolution, "WORTH_A_CALL", 100)
    monkeypatch.setattr(convolution_job, "WORK", 1 << 20)
    monkeypatch.setattr(convolution_loops, "TERMS", 16)
    monkeypatch.setattr(convolution_loops, "PANELS", 1 << 12)
    with ThreadPoolExecutor(1) as helpers:
        monkeypatch.setattr(calls, "DEVICE", NumpyDevice(helpers, 2, compiler()))
        yield


@pytest.fixture(params=["numpy", "llvm", pytest.param("gpu", marks=pytest.mark.gpu)])
def on_each_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `calls.run` computes."""
    if request.param == "llvm":
        request.getfixturevalue("loops")
    if request.param == "gpu":
        monkeypatch.setattr(calls, "DEVICE", first_gpu())


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def on_cpu_and_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for what NumPy alone computes on a CPU."""
    if request.param == "gpu":
        monkeypatch.setattr(running, "DEVICE", first_gpu())
