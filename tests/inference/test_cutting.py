"""Arrays of numbers are found in a request's JSON without looking at all of it at once."""

import random
import re
from unittest import mock

import pytest

import app.codecs.structure
import app.http.inference.requests
from app.codecs.codec import Span
from app.http.inference.requests import _cut
from app.memory.accounts import LimitExceeded, MemoryAccount, MemoryShare

WHOLE = re.compile(rb'"data"\s*:\s*(\[[^"{}]*\])')
PIECES = [b'"data"', b":", b"[", b"]", b"1", b",", b'"', b"{", b"}", b" ", b'"data":[', b"[1,2]", b'"data": [3]']


@pytest.mark.parametrize("block", [1, 3, 1 << 18])
def test_is_the_same_as_in_one_piece(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    for module in (app.codecs.structure, app.http.inference.requests):
        monkeypatch.setattr(module, "SEARCHED", block)
    rng = random.Random(5)
    found = 0
    for _ in range(2000):
        text = b"".join(rng.choices(PIECES, k=12))
        memory = MemoryAccount(1 << 30).open()
        body = memoryview(text + b"".join(rng.choices(PIECES, k=3)))  # what is behind the JSON is none of it
        structure, arrays = _cut(body, 0, len(text), 1 << 10, memory)
        assert arrays == [Span(*each.span(1)) for each in WHOLE.finditer(text)]
        left = len(text) - sum(span.stop - span.start for span in arrays)
        found += len(arrays)
        assert re.sub(rb'"[0-9a-f]{32}\d+"', b"", structure) == WHOLE.sub(lambda each: each[0][: -len(each[1])], text)
        with pytest.raises(LimitExceeded):
            _cut(body, 0, len(text), left - 1, memory)
        assert _cut(body, 0, len(text), left, memory)[1] == arrays
    assert found > 500


def test_it_asks_whether_the_request_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it looks for where the numbers end, and while it looks for their last bracket before that."""
    for module in (app.codecs.structure, app.http.inference.requests):
        monkeypatch.setattr(module, "SEARCHED", 10)
    text = b'"data": [' + b"1," * 100
    memory = MemoryAccount(1 << 30).open()
    with mock.patch.object(MemoryShare, "ensure_open") as asked:
        assert _cut(memoryview(text), 0, len(text), 1 << 10, memory) == (text, [])
    assert asked.call_count >= 2 * (len(text) // 10)
