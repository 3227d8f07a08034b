"""Operators on each kind of device."""

import pytest

from tests.gpu import first_gpu
from tests.operators import calls


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def on_each_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `calls.run` computes."""
    if request.param == "gpu":
        monkeypatch.setattr(calls, "DEVICE", first_gpu())
