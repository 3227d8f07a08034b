"""The devices that the tests of numerics run on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.device import Device
from tests.gpu import first_gpu


@pytest.fixture(scope="session", params=["numpy", "llvm", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A device by name: another one needs a name in `params` and a branch here."""
    if request.param == "cuda":
        yield first_gpu()
        return
    with ThreadPoolExecutor(2) as helpers:
        yield NumpyDevice(helpers, 2, Compiler() if request.param == "llvm" else None, least=1)
