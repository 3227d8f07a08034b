"""What is read of a request by whom, and what is known of one like it."""

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from app.codecs.numbers import read_numbers
from app.codecs.request_cache import LONGEST
from app.engine.service import Service
from app.http.core.asgi import AsgiBody
from app.http.core.compression import compress, decompress
from app.http.core.documents import LIGHT, TooHeavy
from app.http.core.exchange import Request
from app.http.core.headers import JSON_LENGTH
from app.http.inference.endpoints import OFFLOADED, InferEndpoint
from app.http.inference.models import Models
from app.http.inference.operator_models import OperatorModel
from app.http.inference.requests import InferenceReader, Parts
from app.http.inference.shared_memory import Regions
from app.http.server.limit import ConnectionLimit
from app.http.telemetry.metrics import Metrics
from app.memory.accounts import LimitExceeded
from app.models.repository.repository import Repository
from app.settings import KIB, Settings
from tests.http.load import NOT_BRIEF
from tests.inference.wire import X, behind, listed

CELU = "activation_celu"
NUMBERS = {"inputs": [listed("InputTensor", np.arange(LIGHT, dtype=np.float32))]}  # more bytes than LIGHT
MOST = 64 * KIB


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    made = Service(Settings(gpus="none", llvm=False, max_structure_bytes=MOST))
    yield made
    made.close()


@pytest.fixture
def reader(service: Service) -> InferenceReader:
    return InferenceReader(service, Regions(service.placement))


def text_of(document: dict[str, Any], structure: int) -> bytes:
    """JSON of so many bytes, but for its numbers."""
    text = json.dumps(document).encode()
    numbers = text.index(b"]}") + 1 - text.rindex(b"[")
    return text + b" " * (structure + numbers - len(text))


def parts_of(reader: InferenceReader, text: bytes, *, only_light: bool) -> Parts:
    with reader._service.memory.open() as memory:
        found, parts = reader.find(CELU, text, len(text), memory, only_light=only_light)
    assert found is None
    return parts


def test_what_is_not_light_is_for_a_worker(reader: InferenceReader) -> None:
    """However many numbers there are."""
    light, heavy, too_heavy = (text_of(NUMBERS, structure) for structure in (LIGHT, LIGHT + 1, MOST + 1))
    parts = parts_of(reader, light, only_light=True)
    assert [each.stop - each.start for each in parts.arrays] == [len(light) - LIGHT]
    with pytest.raises(TooHeavy):
        parts_of(reader, heavy, only_light=True)
    assert parts_of(reader, heavy, only_light=False).arrays == parts.arrays
    with pytest.raises(TooHeavy):
        parts_of(reader, too_heavy, only_light=True)
    with pytest.raises(LimitExceeded, match="max_structure_bytes") as raised:
        parts_of(reader, too_heavy, only_light=False)
    assert raised.value.allowed == MOST


def test_a_request_with_another_id_is_known(service: Service, reader: InferenceReader) -> None:
    model = Models(service, Repository(service)).operator(CELU)
    assert model
    plain = json.dumps({"inputs": [listed("InputTensor", X)]}).encode()

    def asked(id_: bytes) -> bytes:
        return b'{"id": "' + id_ + b'",' + plain[1:]

    for _ in range(2):  # what comes once is not remembered
        asyncio.run(reader.judge(CELU, model, parts_of(reader, asked(b"first"), only_light=True)))
    with service.memory.open() as memory:
        for text, id_ in (asked(b"another"), "another"), (asked(b""), ""), (plain, None):
            found, parts = reader.find(CELU, text, len(text), memory)
            assert (found is not None, parts.id) == (True, id_)


def test_binary_data_stay_where_they_were_received(service: Service, reader: InferenceReader) -> None:
    model = Models(service, Repository(service)).operator(CELU)
    assert model
    text = json.dumps({"inputs": [behind("InputTensor", X)]}).encode()
    body = text + X.tobytes()
    with service.memory.open() as memory:
        _, parts = reader.find(CELU, body, len(text), memory)
        inference = asyncio.run(reader.judge(CELU, model, parts))
        data = np.asarray(inference.data(parts, memory)["InputTensor"])
    assert data.tobytes() == X.tobytes()
    assert np.shares_memory(data, np.frombuffer(body, np.uint8))


@pytest.mark.parametrize(("structure", "is_known"), [(LONGEST, True), (LONGEST + 1, False)])
def test_what_is_long_is_not_remembered(
    service: Service, reader: InferenceReader, structure: int, is_known: bool
) -> None:
    model = Models(service, Repository(service)).operator(CELU)
    assert model
    text = json.dumps({"inputs": [listed("InputTensor", X)]}).encode()
    text += b" " * (structure - len(parts_of(reader, text, only_light=False).structure))
    for _ in range(2):
        asyncio.run(reader.judge(CELU, model, parts_of(reader, text, only_light=False)))
    with service.memory.open() as memory:
        found, parts = reader.find(CELU, text, len(text), memory)
        assert len(parts.structure) == structure
        assert (found is not None) == is_known


@pytest.fixture
def endpoint(service: Service) -> InferEndpoint:
    return InferEndpoint(service, Metrics(service, ConnectionLimit(1)), Repository(service))


def infer(endpoint: InferEndpoint, body: bytes, *fields: tuple[bytes, bytes]) -> Request:
    """A request that was answered."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, object]:
        return messages.pop() if messages else await asyncio.Future()  # the client stays

    async def main() -> Request:
        request = Request("POST", "/", b"/", b"", [*fields], AsgiBody(len(body), receive), dict(fields))
        reply = await endpoint(request, {"name": CELU})
        assert reply.status == 200
        reply.sent()
        return request

    return asyncio.run(main())


def numbers_text(count: int, number: str) -> bytes:
    tensor = '{"inputs": [{"name": "InputTensor", "datatype": "FP32", "shape": [%d], "data": [%s]}]}'
    return (tensor % (count, ", ".join([number] * count))).encode()


def noted(work: Callable[..., Any], by_loop: list[bool]) -> Callable[..., Any]:
    """`work`, which notes whether it is in the event loop's thread."""

    def noting(*args: Any) -> Any:
        by_loop.append(threading.current_thread() is threading.main_thread())
        return work(*args)

    return noting


LONG, MANY = numbers_text(OFFLOADED // 20, "0.0000000000000000001"), numbers_text(OFFLOADED // 4 // 2, "1")
assert len(LONG) >= OFFLOADED > len(MANY)
SMALL = numbers_text(3, "1")
GZIP = b"content-encoding", b"gzip"


@pytest.mark.parametrize(
    ("body", "is_light"),
    [
        (SMALL, True),
        (numbers_text(OFFLOADED // 4 // 2 - 1, "1"), True),
        (MANY, False),
        (LONG, False),
        (text_of(NUMBERS, LIGHT), True),
        (text_of(NUMBERS, LIGHT + 1), False),
    ],
    ids=["small", "nearly too many", "many", "long", "light", "heavy"],
)
def test_who_reads_it(endpoint: InferEndpoint, monkeypatch: pytest.MonkeyPatch, body: bytes, is_light: bool) -> None:
    """The event loop what is read in a moment, a worker all else."""
    by_loop = list[bool]()
    monkeypatch.setattr("app.http.inference.requests.read_numbers", noted(read_numbers, by_loop))
    for _ in range(3):  # the last one is known
        request = infer(endpoint, body)
        assert request.prepared
        assert request.outcome
    assert by_loop == [is_light] * 3


def test_who_computes_it(endpoint: InferEndpoint) -> None:
    """What waits for a worker is in a queue before."""
    x = np.ones(NOT_BRIEF, np.float32)
    text = json.dumps({"inputs": [behind("InputTensor", x)], "parameters": {"binary_data_output": True}}).encode()
    length = JSON_LENGTH.lower().encode(), b"%d" % len(text)
    for _ in range(3):
        few, many = infer(endpoint, SMALL).outcome, infer(endpoint, text + x.tobytes(), length).outcome
        assert few
        assert many
        assert few.queue_seconds == 0 < many.queue_seconds


def test_a_worker_unpacks_the_body_and_packs_the_answer(
    endpoint: InferEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_loop = list[bool]()
    monkeypatch.setattr("app.http.core.bodies.decompress", noted(decompress, by_loop))
    monkeypatch.setattr("app.http.core.bodies.compress", noted(compress, by_loop))
    infer(endpoint, gzip.compress(SMALL), GZIP, (b"accept-encoding", b"gzip"))
    assert by_loop == [False, False]


@pytest.mark.parametrize("body", [SMALL, MANY, gzip.compress(MANY)], ids=["small", "many", "compressed"])
def test_what_is_counted_of_its_time_is_in_nanoseconds(
    endpoint: InferEndpoint, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """No part of it twice."""
    counted = []

    def observe(_: OperatorModel, __: object, ns: int, took: tuple[float, ...]) -> None:
        counted.append((ns, took))

    monkeypatch.setattr(OperatorModel, "observe", observe)
    request = infer(endpoint, body, *([GZIP] if body[:2] == b"\x1f\x8b" else []))
    assert request.outcome
    ((ns, (queue, input_, compute, output)),) = counted
    assert queue == request.outcome.queue_seconds * 1e9
    assert compute == request.outcome.compute_seconds * 1e9 > 0
    assert min(input_, output) > 0
    assert queue + input_ + compute + output <= ns
