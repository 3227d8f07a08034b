"""LOCAL_RESPONSE_NORMALIZATION_GRAD by loops: where these are for it, and in runs as by itself."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.devices.cpu import response_gradients
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.coordinates import CallKernel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.response_gradients import MOST_ALONG
from app.devices.cpu.threads import Threads
from tests.devices.test_runs import by_itself, computed, made
from tests.graphs.documents import between, graph, into, node, out, tensor
from tests.operators.calls import compiled
from tests.operators.conftest import compiler

SIZES = (2, 12, 5, 7)
ATTRIBUTES: dict[str, Any] = {"CrossChannel": True, "LocalSize": 5, "Alpha": 0.5, "Beta": 0.75, "Bias": 1.0}


MOST = 9


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        ({}, CallsKernel),
        ({"LocalSize": MOST}, CallsKernel),
        ({"LocalSize": MOST + 1}, CallKernel),
        ({"LocalSize": (1 << 32) - 1}, CallKernel),
        ({"CrossChannel": False, "LocalSize": MOST_ALONG}, CallsKernel),
        ({"CrossChannel": False, "LocalSize": MOST_ALONG + 1}, CallKernel),
        ({"Beta": 0.5}, CallKernel),
    ],
)
@pytest.mark.parametrize("strides", [{}, {"Strides": [420, 35, 1, 5]}], ids=["packed", "columns first"])
def test_which_are_by_loops(
    attributes: dict[str, Any], kind: type, strides: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of few terms, with the power that is two roots; they are what the calls make, but for the last bit."""
    monkeypatch.setattr(response_gradients, "MOST_CHANNELS", MOST)
    compared(attributes, kind, strides)


def compared(attributes: dict[str, Any], kind: type, strides: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    x, gradient = rng.standard_normal((2, *SIZES), np.float32)
    desc = {"DataType": "FLOAT32", "Sizes": list(SIZES)}
    operator = compiled(
        {"Type": "LOCAL_RESPONSE_NORMALIZATION_GRAD", "InputTensor": desc | strides, "InputGradientTensor": desc}
        | ATTRIBUTES
        | attributes
    )
    results = []
    with ThreadPoolExecutor(1) as helpers:
        kernel = NumpyDevice(helpers, 2, compiler(), 1).prepare(operator)
        assert type(kernel) is kind
        for each in (kernel, CallKernel(operator, Threads(helpers, 1))):
            result = np.zeros(SIZES, np.float32)
            given = [array.reshape(-1).view(np.uint8).data for array in (x, gradient)]
            each.dispatch(given, [result.reshape(-1).view(np.uint8).data], lambda: False)
            results.append(result)
    by_loops, by_calls = results
    np.testing.assert_array_max_ulp(by_loops, by_calls, 1)


def test_a_region_beyond_all_channels_is_one_of_those() -> None:
    """However large it is said to be."""
    compared({"LocalSize": (1 << 32) - 1}, CallsKernel, {})


def test_python_is_in_none_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two gradients, the first of which is what the second reads twice."""
    desc = tensor(sizes=SIZES)
    each = node("LOCAL_RESPONSE_NORMALIZATION_GRAD", InputTensor=desc, InputGradientTensor=desc, **ATTRIBUTES)
    x = np.random.default_rng(5).standard_normal(SIZES, np.float32)
    edges = [between(0, 1), between(0, 1, 1)]
    with ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 2, compiler(), 1)
        of = made(device, graph([each, each], [into(0, 0), into(0, 0, 1)], [out(1)], edges), {})
        kernel = device.prepare(of)
        with monkeypatch.context() as patches:
            patches.setattr(CallsKernel, "dispatch", by_itself)
            result = computed(kernel, of, x)
        right = x
        operator = compiled(
            {"Type": "LOCAL_RESPONSE_NORMALIZATION_GRAD", "InputTensor": desc, "InputGradientTensor": desc} | ATTRIBUTES
        )
        for _ in range(2):
            before, right = right, np.zeros(SIZES, np.float32)
            given = [before.reshape(-1).view(np.uint8).data] * 2
            device.prepare(operator).dispatch(given, [right.reshape(-1).view(np.uint8).data], lambda: False)
    np.testing.assert_array_equal(result.view(np.uint32), right.view(np.uint32))
