"""Requests in either representation, spoilt at random: refused in the ways that are answered with a 4xx, or read."""

import json
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings

from app.codecs.codec import Body, Codec
from app.codecs.structure import Unreadable
from app.contract.violations import ContractError
from app.devices.device import ExecutionRecord
from app.engine.prepared import Outcome
from app.engine.service import Service
from app.http.core.documents import CODECS, TooHeavy, read_document
from app.http.native.answers import DocumentForm
from app.http.native.requests import DispatchReader
from app.memory.accounts import LimitExceeded
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator
from app.settings import Settings
from app.steps import at_once
from tests.codecs.documents import mutations, outcome, share
from tests.messages import CELU, CONSTANT_POW, PARAMETERIZED_RELU, as_json, request

SETTINGS = Settings()
SMALL = np.arange(6, dtype=np.float32)
LARGE = np.arange(20_000, dtype=np.float32)
REQUESTS: list[dict[str, Any]] = [
    request(CELU, {"InputTensor": SMALL}, {"Alpha": 2.0}, in_place="InputTensor", device="numpy"),
    request(PARAMETERIZED_RELU, {"InputTensor": SMALL, "SlopeTensor": SMALL}, feature_level="5_1"),
    request(CONSTANT_POW, {"InputTensor": LARGE}, {"Exponent": 0.5, "ScaleBias": {"Scale": 1.0, "Bias": 0.0}}),
    request(PARAMETERIZED_RELU, {"InputTensor": LARGE, "SlopeTensor": LARGE}),
]
BODIES: dict[str, list[bytes]] = {
    "application/json": [json.dumps(as_json(message)).encode() for message in REQUESTS],
    "application/msgpack": [msgpack.packb(message) for message in REQUESTS],
}


def bodies(media_type: str) -> st.SearchStrategy[bytes]:
    return st.sampled_from(BODIES[media_type])


cases = st.sampled_from(sorted(CODECS)).flatmap(
    lambda media_type: st.tuples(st.just(CODECS[media_type]), mutations(bodies(media_type)))
)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    made = Service(SETTINGS)
    made.open()
    yield made
    made.close()


def received(body: bytes) -> Buffer:
    """As a large one is, into memory of its own."""
    return memoryview(bytearray(body))


def read(reader: DispatchReader, codec: Codec, body: Body) -> Any:
    """What is understood of `body`, or the refusal."""
    try:
        dispatch, data = at_once(reader.read(codec, body, share(), lambda: False))
    except (Unreadable, LimitExceeded) as refusal:
        return str(refusal)
    except ContractError as refusal:
        for violation in refusal.violations:
            json.dumps([violation.message, violation.pointer, violation.given, violation.allowed], allow_nan=False)
        return str(refusal)
    compiled = dispatch.prepared.work
    assert isinstance(compiled, CompiledOperator)
    return compiled.operator, compiled.level, dispatch.prepared.in_place, {name: bytes(data[name]) for name in data}


@pytest.mark.parametrize("media_type", CODECS)
def test_unspoilt(service: Service, media_type: str) -> None:
    reader = DispatchReader(service)
    for body, message in [*zip(BODIES[media_type], REQUESTS, strict=True)] * 2:
        operator, _, in_place, data = read(reader, CODECS[media_type], body)
        assert operator.name() == message["operator"]["Type"]
        assert in_place == message.get("in_place")
        assert data == message["inputs"]


@settings(max_examples=400)
@given(cases)
def test_spoilt(service: Service, case: tuple[Codec, bytes]) -> None:
    """Read or refused; and one that resembles an earlier request is read like one that does not."""
    codec, body = case
    experienced = DispatchReader(service)
    for unspoilt in 2 * BODIES[codec.media_type]:
        at_once(experienced.read(codec, unspoilt, share(), lambda: False))
    assert read(experienced, codec, received(body)) == read(DispatchReader(service), codec, body)


@pytest.mark.parametrize("fault", [b"?", b'"', b"\\"])
def test_one_that_resembles_an_earlier_one_is_as_it_was(service: Service, fault: bytes) -> None:
    """So that it can be read from the beginning. The tensor before the fault was decoded to where its text was."""
    reader, codec, unspoilt = DispatchReader(service), CODECS["application/json"], BODIES["application/json"][3]
    for _ in range(2):
        at_once(reader.read(codec, received(unspoilt), share(), lambda: False))
    assert reader.find(codec, received(unspoilt), share())
    place = unspoilt.rindex(b"A")
    spoilt = unspoilt[:place] + fault + unspoilt[place + 1 :]
    body = received(spoilt)
    assert reader.find(codec, body, share()) is None
    assert body == spoilt


def test_numbers_are_read_where_they_lie_in_each_body(service: Service) -> None:
    """Memory of a body that was answered is another's."""
    reader, codec = DispatchReader(service), CODECS["application/json"]
    document = {"operator": {"Type": CELU}, "inputs": {"InputTensor": [1] * 1000}}
    for _ in range(4):
        body = received(json.dumps(document).encode())
        assert read(reader, codec, body)[3]["InputTensor"] == np.ones(1000, np.float32).tobytes()
        body[:] = bytes(body).replace(b"1,", b"2,")


@pytest.mark.parametrize(
    "members",
    [
        {"inputs": {"InputTensor": [1] * 20_000}},
        {"inputs": {"InputTensor": {"data": [1] * 20_000}}},
        {"operator": {"Type": "JOIN", "Axis": 0}, "inputs": {"InputTensors": [{"data": "AACAPw=="}, [1] * 20_000]}},
        {"other": [[]] * 5000},
    ],
)
def test_what_takes_long_to_read_is_for_a_worker(service: Service, members: dict[str, Any]) -> None:
    """Many numbers, and much structure."""
    document = {"operator": {"Type": CELU}, "inputs": {"InputTensor": [1]}} | members
    reader, codec = DispatchReader(service), CODECS["application/json"]
    with pytest.raises(TooHeavy):
        at_once(reader.judge(codec, json.dumps(document).encode(), share(), None))


def test_each_answer_tells_where_its_own_dispatch_ran(service: Service) -> None:
    """A GPU may fail between two that are alike."""
    reader, codec = DispatchReader(service), CODECS["application/json"]
    dispatch, _ = at_once(reader.read(codec, BODIES[codec.media_type][0], share(), lambda: False))
    outputs = {"OutputTensor": memoryview(bytes(24))}
    there = ExecutionRecord("cuda:0", "cuda")
    for ran in (there, ExecutionRecord("numpy", "cpu", "cuda:0 failed"), there):
        answer = DocumentForm(codec).write(dispatch, Outcome(outputs, 0, 0, ran), share())
        told = json.loads(b"".join(answer.pieces))["execution"]
        assert (told["device"], told["kind"], told["fallback_reason"]) == ran[:3]


@given(cases)
def test_spoilt_documents(case: tuple[Codec, bytes]) -> None:
    """Decoding alone raises nothing but what the protocol of codecs names."""
    codec, body = case
    outcome(lambda: read_document(codec, body, SETTINGS, share(), lambda document: document))
