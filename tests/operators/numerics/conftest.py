"""The devices that the tests of numerics run on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.execution.device import Device
from app.execution.numpy_device import NumpyDevice


@pytest.fixture(scope="session", params=["numpy"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A device by name: another one needs a name in `params` and a branch here."""
    assert request.param == "numpy"
    with ThreadPoolExecutor(2) as helpers:
        yield NumpyDevice(helpers, 2)
