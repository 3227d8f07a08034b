"""Descriptors that nobody means well with, over HTTP: each is answered, soon, and memory stays."""

import copy
import random
from time import monotonic
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest

from app.contract.tensors import TensorDesc
from app.contract.violations import ContractError
from app.engine.capabilities import example_descriptor
from app.operators.catalog import OPERATORS
from app.operators.operator import Operator, Role
from tests.conftest import ServerFactory
from tests.http.load import metric, resident, wait_until

MIB = 1 << 20
OTHERS = [each for each in OPERATORS.values() if each.family() not in ("ELEMENT_WISE", "ACTIVATION")]
SIZES = (0, 1, 2, 3, 7, 64, 300, 1000, 65537, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, -1)
FLOATS = (0.0, -1.0, 1e-45, 1e38, -3e38, float("nan"), float("inf"), 0.5, 1e6)
MSGPACK = {"content-type": "application/msgpack", "accept": "application/msgpack"}


def spoiled(rng: random.Random, value: Any) -> Any:
    """Something else of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(SIZES)
    if isinstance(value, float):
        return rng.choice(FLOATS)
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        return [*value[:place], spoiled(rng, value[place]), *value[place + 1 :]]
    if isinstance(value, dict) and "Sizes" in value:
        sizes = value["Sizes"]
        return value | rng.choice(
            [
                {"Sizes": spoiled(rng, sizes)},
                {"Sizes": [size if size == 1 else rng.choice((1, 5, 40, 500)) for size in sizes]},
                {"Strides": [rng.choice((0, 1, 3, 1 << 20, (1 << 32) - 1)) for _ in sizes]},
                {"Strides": [0] * len(sizes)},
                {"TotalTensorSizeInBytes": rng.choice(SIZES)},
            ]
        )
    if isinstance(value, dict) and value:
        name = rng.choice([*value])
        return value | {name: spoiled(rng, value[name])}
    return value


def data_of(rng: random.Random, stated: dict[str, Any]) -> bytes:
    """Numbers, NaN, indices out of range, or nothing."""
    try:
        size = TensorDesc.model_validate(stated).data_bytes
    except (ValueError, ContractError):
        return b"none"
    size = size if size < MIB else 4
    pattern = rng.choice((b"\0", b"\xff", np.float32(rng.choice(FLOATS)).tobytes(), rng.randbytes(64)))
    return (pattern * (size // len(pattern) + 1))[:size]


def request(rng: random.Random, operator: type[Operator]) -> dict[str, Any]:
    document = copy.deepcopy(example_descriptor(operator))
    names = [name for name in document if name != "Type"]
    for name in rng.sample(names, min(len(names), rng.choice((1, 1, 2, 4)))):
        document[name] = spoiled(rng, document[name])
    for name in operator.tensor_names(Role.OUTPUT):
        if rng.random() < 0.5:
            document.pop(name, None)
    inputs: dict[str, Any] = {}
    for name in operator.tensor_names(Role.INPUT):
        given = document.get(name)
        if given is not None:
            inputs[name] = [data_of(rng, each) for each in given] if isinstance(given, list) else data_of(rng, given)
    return {"operator": document, "inputs": inputs}


@pytest.mark.parametrize(("flag", "growth"), [("--no-llvm", 160 * MIB), ("--llvm", 400 * MIB)], ids=["calls", "loops"])
def test_hostile_descriptors(start_server: ServerFactory, flag: str, growth: int) -> None:
    """Compiled code is kept, so that with LLVM there is more to come."""
    rng = random.Random(flag)
    running = start_server("--max-memory-bytes", str(8 * MIB), flag, "--deadline-seconds", "2")
    found: set[int] = set()
    with httpx.Client(base_url=running.url, timeout=30) as client:
        before = resident(running.process.pid)
        for operator in OTHERS:
            message = request(rng, operator)
            started = monotonic()
            status = client.post("/v1/dispatch", content=msgpack.packb(message), headers=MSGPACK).status_code
            found.add(status)
            assert status in (200, 413, 422, 504), (status, message["operator"])
            assert monotonic() - started < 15, message["operator"]
        wait_until(lambda: metric(client, "memory_bytes") == 0)
        wait_until(lambda: metric(client, "running_dispatches") == 0)
        assert resident(running.process.pid) - before < growth
    assert {200, 422} <= found
