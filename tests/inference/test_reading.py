"""What is read of a request by whom, and what is known of one like it."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from app.engine.service import Service
from app.http.core.documents import LIGHT, TooHeavy
from app.http.inference.models import Models
from app.http.inference.requests import InferenceReader, Parts
from app.http.inference.shared_memory import Regions
from app.memory.accounts import LimitExceeded
from app.models.repository.repository import Repository
from app.settings import KIB, Settings
from tests.inference.wire import X, listed

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
