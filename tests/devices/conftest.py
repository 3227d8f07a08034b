from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.devices.cpu import runs
from app.devices.cpu.device import NumpyDevice
from tests.operators.conftest import compiler


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[NumpyDevice]:
    """Two threads with loops, on as many processors."""
    monkeypatch.setattr(runs, "PROCESSORS", 2)
    with ThreadPoolExecutor(1) as helpers:
        yield NumpyDevice(helpers, 2, compiler())
