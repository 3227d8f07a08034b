"""The devices that the tests of numerics run on."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.device import Device
from tests.gpu import first_gpu

ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(scope="session")
def of_cpu() -> Iterator[Mapping[str, Device]]:
    """By name."""
    with ThreadPoolExecutor(2) as helpers:
        compilers = {"numpy": None, "llvm": Compiler()}
        yield {name: NumpyDevice(helpers, 2, each, least=1) for name, each in compilers.items()}


@pytest.fixture(scope="session", params=["numpy", "llvm", ON_GPU])
def device(request: pytest.FixtureRequest, of_cpu: Mapping[str, Device]) -> Device:
    """A device by name: another one needs a name in `params`, and to be in `of_cpu` or a branch here."""
    return first_gpu() if request.param == "cuda" else of_cpu[request.param]


@pytest.fixture(scope="session", params=["cpu", ON_GPU])
def devices(request: pytest.FixtureRequest, of_cpu: Mapping[str, Device]) -> Mapping[str, Device]:
    """All that what is exact, which takes longer to compute, is found once for."""
    return {"cuda": first_gpu()} if request.param == "cuda" else of_cpu
