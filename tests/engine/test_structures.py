"""Requests that differ in numbers and sizes only: computed at once, and forgotten."""

import gc
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from app.contract.validation import validate
from app.engine.dispatch import DispatchRequest
from app.engine.prepared import Bound, Prepared
from app.engine.service import Service
from app.settings import Settings
from app.steps import at_once
from tests.messages import CELU, CONSTANT_POW

CLIP, LINEAR, SIN = "DML_OPERATOR_ELEMENT_WISE_CLIP", "DML_OPERATOR_ACTIVATION_LINEAR", "DML_OPERATOR_ELEMENT_WISE_SIN"
SOFTMAX = "DML_OPERATOR_ACTIVATION_SOFTMAX"

ELEMENTS = 1 << 11
X = np.random.default_rng(0).standard_normal(2 * ELEMENTS).astype(np.float32)


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service(Settings(threads=1, gpus="none"))
    made.open()
    yield made
    made.close()


def prepared(service: Service, kind: str, elements: int, **attributes: Any) -> Prepared:
    tensor = {"DataType": "FLOAT32", "Sizes": [elements]}
    document = {"operator": {"Type": kind, "InputTensor": tensor} | attributes, "inputs": {"InputTensor": b""}}
    return at_once(service.prepare(validate(DispatchRequest, document)))


def dispatch(made: Prepared) -> bytes:
    size = made.output_bytes["OutputTensor"]
    output = memoryview(bytearray(size))
    inputs = made.bind({"InputTensor": X.view(np.uint8).data[:size]})
    made.dispatch(Bound(inputs, {"OutputTensor": output}, None), lambda: False)
    return bytes(output)


def drawn(kind: str, rng: random.Random) -> dict[str, Any]:
    """Attributes that nobody had before."""
    match kind:
        case "DML_OPERATOR_ACTIVATION_CELU":
            return {"Alpha": rng.uniform(-3, 3)}
        case "DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW":
            return {"Exponent": rng.uniform(-70, 70)}
        case "DML_OPERATOR_ELEMENT_WISE_CLIP":
            return {"Min": rng.uniform(-2, 2), "Max": rng.uniform(-2, 2)}
        case "DML_OPERATOR_ACTIVATION_LINEAR":
            return {"Alpha": rng.uniform(-2, 2), "Beta": rng.uniform(-2, 2)}
    return {}


@pytest.mark.parametrize("kind", [CELU, CONSTANT_POW, CLIP, LINEAR, SIN, SOFTMAX])
def test_what_is_like_an_earlier_request_runs_inline(service: Service, kind: str) -> None:
    """Though the kernel is new: the code that it runs is not. And what there is is found."""
    rng = random.Random(kind)
    for _ in range(40):
        dispatch(prepared(service, kind, rng.randrange(ELEMENTS, 2 * ELEMENTS), **drawn(kind, rng)))
    misses = service.structures.misses
    for _ in range(10):
        made = prepared(service, kind, rng.randrange(ELEMENTS, 2 * ELEMENTS), **drawn(kind, rng))
        assert made.kernel.runs_inline
        assert len(dispatch(made)) == made.output_bytes["OutputTensor"]
    assert service.structures.misses == misses
    assert service.structures.hits >= 10
    assert 0 < service.structures.size <= service.structures.most


def test_what_is_like_an_earlier_request_is_prepared_in_few_steps(service: Service) -> None:
    """Calls of Python's functions, some 70, which were 130 when tensors were listed, kinds judged and codes looked for
    anew by everyone who wanted them. Such a request costs what it touches for the first time."""
    for alpha in (0.5, 0.75, 1.5):
        dispatch(prepared(service, CELU, ELEMENTS + int(8 * alpha), Alpha=alpha))
    tensor = {"DataType": "FLOAT32", "Sizes": [ELEMENTS + 3]}
    document = {"operator": {"Type": CELU, "InputTensor": tensor, "Alpha": 0.625}, "inputs": {"InputTensor": b""}}
    request, calls = validate(DispatchRequest, document), Counter[str]()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_name] += 1

    sys.setprofile(count)
    try:
        at_once(service.prepare(request))
    finally:
        sys.setprofile(None)
    assert calls.total() < 90, calls
    assert calls["tensors"] == 1
    assert calls["find"] == 2  # the formula, and its loop; the loop has its code at hand


def test_code_that_is_not_compiled_does_not_run_inline(service: Service) -> None:
    """It would keep the event loop from all else for 10 to 30 ms."""
    made = prepared(service, CELU, ELEMENTS, Alpha=0.75)
    assert not made.kernel.runs_inline
    dispatch(made)
    assert made.kernel.runs_inline


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_requests_that_differ_leave_memory_where_it_was(service: Service) -> None:
    """Exponents, bounds, slopes and sizes: 4,000 of them, which fails if each keeps 3 KB."""
    rng, kinds = random.Random(3), [CELU, CONSTANT_POW, CLIP, LINEAR, SIN]

    def some(count: int) -> None:
        for number in range(count):
            kind = kinds[number % len(kinds)]
            elements = rng.randrange(1, 2 * ELEMENTS)
            dispatch(prepared(service, kind, elements, **drawn(kind, rng)))

    some(1000)
    before = resident_bytes()
    some(4000)
    assert resident_bytes() - before < 3 * 4000 * 1024
