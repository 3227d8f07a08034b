"""What holds in every representation."""

import random
import tracemalloc
from collections.abc import Callable

import pytest

import app.codecs.structure
from app.codecs.codec import Codec
from app.codecs.json import JsonCodec
from app.codecs.msgpack import MsgpackCodec
from app.codecs.structure import PARSED, Search, Unreadable, object_of
from app.contract.validation import validate
from app.contract.violations import ContractError
from app.engine.dispatch import DispatchRequest
from app.memory.accounts import LimitExceeded, MemoryAccount
from tests.codecs.documents import MAX_DEPTH, MAX_STRUCTURE_BYTES, share


class Name(str):
    """A string that counts how often it is compared."""

    __slots__ = ()
    __hash__ = str.__hash__
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Name.comparisons += 1
        return str.__eq__(self, other)


def test_a_name_twice_is_found_without_comparing_each_with_each() -> None:
    names = [Name(number) for number in range(10_000)]
    with pytest.raises(Unreadable, match="'9999' stands twice"):
        object_of([(name, None) for name in [*names, Name(9999)]])
    assert Name.comparisons < 100_000


def test_a_long_name_is_not_repeated_at_length() -> None:
    with pytest.raises(Unreadable) as refusal:
        object_of([("n" * 100_000, 1), ("n" * 100_000, 2)])
    assert len(str(refusal.value)) < 200


def named(value: str) -> bytes:
    return b"{" + b",".join(b'"%x":%b' % (number, value.encode()) for number in range(10_000)) + b"}"


COUNT = 50_000
COSTLY: dict[str, tuple[Codec, bytes]] = {
    "json lists": (JsonCodec(), b"[" + b"[]," * COUNT + b"0]"),
    "json objects": (JsonCodec(), b"[" + b"{}," * COUNT + b"0]"),
    "json objects of one": (JsonCodec(), b"[" + b'{"":1},' * (COUNT // 2) + b"0]"),
    "json names": (JsonCodec(), named("0")),
    "json names of objects": (JsonCodec(), named("{}")),
    "json unknown fields": (JsonCodec(), b'{"operator":{"Type":"ACTIVATION_CELU",' + named("0")[1:] + b"}"),
    "json numbers": (JsonCodec(), b"[" + b"999," * COUNT + b"0]"),
    "msgpack arrays": (MsgpackCodec(), b"\xdd" + COUNT.to_bytes(4, "big") + b"\x90" * COUNT),
    "msgpack maps": (MsgpackCodec(), b"\xdd" + COUNT.to_bytes(4, "big") + b"\x80" * COUNT),
    "msgpack maps of one": (MsgpackCodec(), b"\xdd" + COUNT.to_bytes(4, "big") + b"\x81\xa0\x01" * COUNT),
    "msgpack bins": (MsgpackCodec(), b"\xdd" + COUNT.to_bytes(4, "big") + b"\xc4\x00" * COUNT),
}


@pytest.mark.parametrize(("codec", "body"), COSTLY.values(), ids=COSTLY)
def test_the_memory_that_structure_takes_is_held_before(codec: Codec, body: bytes) -> None:
    memory = share()
    tracemalloc.start()
    try:
        document = codec.decode(body, MAX_STRUCTURE_BYTES, MAX_DEPTH, memory)
        with pytest.raises(ContractError):
            validate(DispatchRequest, document)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= memory.held
    assert memory.held <= 2 * PARSED * len(body)
    with pytest.raises(LimitExceeded, match="max_memory_bytes"):
        codec.decode(body, MAX_STRUCTURE_BYTES, MAX_DEPTH, MemoryAccount(PARSED * len(body) - 1).open())


@pytest.mark.parametrize("block", [1, 2, 7, 100])
def test_search(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Wherever blocks end, forwards and backwards."""
    monkeypatch.setattr(app.codecs.structure, "SEARCHED", block)
    rng = random.Random(4)
    body = bytes(rng.choices(b"ab..........", k=40))
    search = Search(body, share())
    places: list[Callable[[int], int]] = [lambda start: body.find(b"a", start), lambda start: body.find(b"b", start)]
    for start in rng.choices(range(45), k=200):
        found = [place(start) for place in places]
        assert [search.find([byte], start) for byte in (b"a", b"b")] == found
        assert search.find([b"a", b"b"], start) == min((each for each in found if each >= 0), default=-1)
