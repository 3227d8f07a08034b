"""Requests in either representation, spoilt at random: refused in the ways that are answered with a 4xx, or read."""

import json
from typing import Any

import hypothesis.strategies as st
import msgpack
import numpy as np
import pytest
from app.codecs.documents import CODECS, read_dispatch, read_document
from hypothesis import given, settings

from app.codecs.codec import Codec
from app.codecs.structure import Unreadable
from app.contract.violations import ContractError
from app.limits import LimitExceeded
from app.settings import Settings
from tests.codecs.documents import mutations, outcome, share
from tests.messages import CELU, CONSTANT_POW, PARAMETERIZED_RELU, as_json, request

SETTINGS = Settings()
SMALL = np.arange(6, dtype=np.float32)
LARGE = np.arange(20_000, dtype=np.float32)
REQUESTS: list[dict[str, Any]] = [
    request(CELU, {"InputTensor": SMALL}, {"Alpha": 2.0}, in_place="InputTensor", device="numpy"),
    request(PARAMETERIZED_RELU, {"InputTensor": SMALL, "SlopeTensor": SMALL}, feature_level="5_1"),
    request(CONSTANT_POW, {"InputTensor": LARGE}, {"Exponent": 0.5, "ScaleBias": {"Scale": 1.0, "Bias": 0.0}}),
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


@pytest.mark.parametrize("media_type", CODECS)
def test_unspoilt(media_type: str) -> None:
    for body, message in zip(BODIES[media_type], REQUESTS, strict=True):
        stated, data = read_dispatch(CODECS[media_type], bytearray(body), SETTINGS, share())
        assert stated.operator.name() == message["operator"]["Type"]
        assert {name: bytes(buffer) for name, buffer in data.items()} == message["inputs"]


@settings(max_examples=300)
@given(cases)
def test_spoilt(case: tuple[Codec, bytes]) -> None:
    codec, body = case
    refusal: Exception
    try:
        read_dispatch(codec, bytearray(body), SETTINGS, share())
        return
    except (Unreadable, LimitExceeded, ContractError) as error:
        refusal = error
    assert str(refusal)
    for violation in refusal.violations if isinstance(refusal, ContractError) else ():
        json.dumps([violation.message, violation.pointer, violation.given, violation.allowed], allow_nan=False)


@given(cases)
def test_spoilt_documents(case: tuple[Codec, bytes]) -> None:
    """Decoding alone raises nothing but what the protocol of codecs names."""
    codec, body = case
    outcome(lambda: read_document(codec, bytearray(body), SETTINGS, share()))
