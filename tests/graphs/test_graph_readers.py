"""Dispatches of graphs that differ in their tensor data only are judged twice and then found."""

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast
from unittest.mock import Mock

import msgpack
import numpy as np
import pytest
from starlette.exceptions import HTTPException

from app.contract.violations import ContractError, Violation, refused
from app.engine.graph_store import KeptGraph
from app.engine.service import Service
from app.http.core.documents import CODECS, TooHeavy, read_document
from app.http.core.exchange import Request
from app.http.core.routes import routed
from app.http.native import graphs, requests
from app.http.native.graphs import GraphReader, keep
from app.http.native.requests import DispatchReader, Reader
from app.memory.accounts import MemoryShare
from app.settings import Settings
from app.steps import at_once
from tests.graphs.documents import graph, into, out, relu
from tests.graphs.requests import X, biased

CODEC, JSON = CODECS["application/msgpack"], CODECS["application/json"]


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service(Settings(gpus="none", llvm=False))
    made.open()
    yield made
    made.close()


@pytest.fixture
def memory(service: Service) -> Iterator[MemoryShare]:
    with service.memory.open() as opened:
        yield opened


def finds(reader: Reader, memory: MemoryShare, message: dict[str, Any], times: int = 4) -> list[bool]:
    """Whether each of several that are like `message` is found. What is read of it is its own."""
    found = []
    for number in range(times):
        data = (X * number).tobytes()
        body = bytes(msgpack.packb(message | {"inputs": {"x": data}}))
        known = reader.find(CODEC, body, memory)
        found.append(known is not None)
        _, made = known or at_once(reader.judge(CODEC, body, memory, lambda: False))
        np.testing.assert_array_equal(np.frombuffer(made["x"], np.uint8), np.frombuffer(data, np.uint8))
    return found


@pytest.fixture
def kept(service: Service, memory: MemoryShare) -> KeptGraph:
    body = bytes(msgpack.packb({"graph": biased()}))
    judge = partial(keep, service, CODEC, body, memory, lambda: False)
    made, _ = read_document(CODEC, body, service.settings, memory, judge, limit="max_graph_structure_bytes")
    return made


def test_dispatches_of_a_kept_graph(service: Service, memory: MemoryShare, kept: KeptGraph) -> None:
    reader = GraphReader(service, kept)
    assert finds(reader, memory, {}) == [False, False, True, True]
    assert finds(reader, memory, {"data": "base64"}) == [False, False, True, True]
    assert finds(reader, memory, {}) == [True] * 4


def test_all_are_read_by_one_reader(service: Service, kept: KeptGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as the graph is kept."""
    made: list[KeptGraph] = []

    class Noted(GraphReader):
        def __init__(self, service: Service, kept: KeptGraph) -> None:
            super().__init__(service, kept)
            made.append(kept)

    monkeypatch.setattr(graphs, "GraphReader", Noted)
    handler, body = routed(graphs.routes(service)), cast("Any", None)
    path = f"/v1/graphs/{kept.entry.record.id}/dispatch"
    for _ in range(3):
        with pytest.raises(HTTPException, match="415"):
            asyncio.run(handler(Request("POST", path, path.encode(), b"", [], body, {})))
    assert made == [kept]


@pytest.mark.parametrize("members", [{"inputs": {"x": [1] * 20_000}}, {"other": [[]] * 5000}, {"device": "numpy"}])
def test_what_takes_long_to_read_is_for_a_worker(
    service: Service, memory: MemoryShare, kept: KeptGraph, members: dict[str, Any]
) -> None:
    """Many numbers, much structure, and to prepare the graph for a device that it was not asked of before."""
    body = json.dumps({"inputs": {}} | members).encode()
    with pytest.raises(TooHeavy):
        at_once(GraphReader(service, kept).judge(CODECS["application/json"], body, memory, None))


def test_dispatches_with_a_graph(service: Service, memory: MemoryShare) -> None:
    """Unless it has tensors that lie in the first one's memory."""
    plain = graph([relu("relu")], [into("x", "relu", "InputTensor")], [out("relu", "y", "OutputTensor")])
    reader = DispatchReader(service)
    with pytest.raises(TooHeavy):  # to compile it is for a worker
        at_once(reader.judge(CODEC, bytes(msgpack.packb({"graph": plain, "inputs": {}})), memory, None))
    assert finds(reader, memory, {"graph": plain}) == [False, False, True, True]
    assert finds(reader, memory, {"graph": biased()}) == [False] * 4


def test_a_graph_to_dispatch_is_judged_once_its_parts_are_counted(
    service: Service, memory: MemoryShare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs memory and time. Many numbers are for a worker as a whole."""

    def refusal(cancelled: Callable[[], bool] | None, inputs: dict[str, Any], **members: Any) -> Violation:
        document = {"graph": None, "operator": None, "inputs": inputs} | members
        with pytest.raises(ContractError) as raised:
            at_once(DispatchReader(service).judge(JSON, json.dumps(document).encode(), memory, cancelled))
        (violation,) = raised.value.violations
        return violation

    one = graph([relu("relu")], [into("x", "relu")], [out("relu", "y")])
    assert refusal(lambda: False, {}, graph=one, devise=None).pointer == "/devise"
    many = graph([{}] * (service.settings.max_graph_nodes + 1), [], [])
    assert refusal(lambda: False, {}, graph=many).pointer == "/graph/Nodes"
    monkeypatch.setattr(requests, "validate", Mock(side_effect=refused(("graph",), "It is judged.", None)))
    assert refusal(None, {"x": [1] * 200}, graph=one).message == "It is judged."
    with pytest.raises(TooHeavy):
        refusal(None, {"x": [1] * 20_000}, graph=one)
