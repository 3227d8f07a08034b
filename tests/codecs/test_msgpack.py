"""application/msgpack, held against the library of that name."""

import mmap
import sys
import tracemalloc
from types import FrameType
from typing import Any

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import assume, example, given, settings

from app.codecs.codec import Codec, Span
from app.codecs.msgpack import MsgpackCodec
from app.codecs.structure import PARSED, Unreadable
from app.contract.violations import ContractError
from app.memory.accounts import LimitExceeded
from tests.codecs.documents import (
    MAX_DEPTH,
    MAX_STRUCTURE_BYTES,
    decode,
    documents,
    encoded,
    mutations,
    outcome,
    scalars,
    share,
)

CODEC: Codec = MsgpackCodec()

leaves = scalars | st.binary() | st.sampled_from([b"b" * 300, b"b" * 70_000])
valid = documents(leaves).map(msgpack.packb)


def plain(body: bytes) -> Any:
    """What the library makes of `body`, as strict as ours must be, or Unreadable."""

    def object_of(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs) or not all(isinstance(name, str) for name, _ in pairs):
            raise ValueError("a name stands twice or is none")
        return dict(pairs)

    def refuse(code: int, data: bytes) -> None:
        raise ValueError("an extension")

    try:
        document = msgpack.unpackb(body, object_pairs_hook=object_of, ext_hook=refuse, timestamp=0)
    except (ValueError, TypeError):  # TypeError: a name that cannot be one
        return Unreadable
    return Unreadable if holds(document, msgpack.Timestamp) else document


def holds(value: Any, kind: type) -> bool:
    if isinstance(value, dict | list):
        return any(holds(each, kind) for each in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, kind)


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal, with types, signs of zero, NaNs and order."""
    assert repr(ours) == repr(theirs)


@settings(max_examples=300)
@given(st.binary() | mutations(valid))
@example(b"")
@example(b"\xc1")
@example(b"\x81\xa1a\x01\x02")
@example(b"\x82\xa1a\x01\xa1a\x02")
@example(b"\x81\xc4\x01a\x01")
@example(b"\x81\x90\x01")
@example(b"\xd6\xff\x00\x00\x00\x00")
@example(b"\xc7" + bytes(8))
@example(b"\x91\xd4\x05a")
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\xca\x7f\xc0\x00\x00")
@example(b"\xa3\xed\xa0\x80")
def test_any_bytes(body: bytes) -> None:
    ours = outcome(lambda: decode(CODEC, body))
    assume(ours is not LimitExceeded)
    assert_same(ours, plain(body))


BOUNDS = (0, 15, 16, 31, 32, 127, 128, 255, 256, 65_535, 65_536)
"""Where one form of MessagePack's ends, of numbers or of lengths, and the next one begins."""


@pytest.mark.parametrize(
    "value",
    [
        *BOUNDS,
        *(-each for each in BOUNDS),
        *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**31) - 1, -(2**63)),
        *("n" * each for each in BOUNDS),
        *(b"b" * each for each in BOUNDS),
        *([None] * each for each in BOUNDS),
        *([7] * each for each in BOUNDS),
        *({str(number): None for number in range(each)} for each in BOUNDS),
    ],
    ids=lambda value: f"{type(value).__name__} {value if isinstance(value, int) else len(value)}",
)
def test_every_form(value: Any) -> None:
    names = [value] if isinstance(value, str) else []
    for document in (value, [value, 1], {"a": value, "b": 1}, dict.fromkeys(names, 1)):
        assert_same(decode(CODEC, msgpack.packb(document), 1 << 20), document)


@given(documents(leaves))
def test_valid_documents(document: Any) -> None:
    assert_same(decode(CODEC, msgpack.packb(document)), document)


@given(st.lists(st.floats(width=32)))
def test_float32_numbers(numbers: list[float]) -> None:
    assert_same(decode(CODEC, msgpack.packb(numbers, use_single_float=True)), numbers)


@given(documents(leaves))
def test_what_is_encoded_is_decoded(document: Any) -> None:
    assert_same(decode(CODEC, encoded(CODEC, document)), document)


@given(documents(leaves))
def test_what_is_encoded_is_what_the_library_decodes(document: Any) -> None:
    assert_same(msgpack.unpackb(encoded(CODEC, document)), document)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 300_000])
def test_data_are_views_of_the_body(size: int) -> None:
    """Nothing is copied, and a result can take the place of the data."""
    memory = bytearray(msgpack.packb({"inputs": {"a": b"x" * size}}))
    body = memoryview(memory)
    document: Any = CODEC.decode(body, MAX_STRUCTURE_BYTES, MAX_DEPTH, share())
    view = CODEC.binary(body, document["inputs"]["a"], ("inputs", "a"), share())
    assert view.obj is memory
    assert (view.nbytes, view.readonly) == (size, False)
    assert bytes(view) == b"x" * size


def test_answers_are_not_copied() -> None:
    data = memoryview(bytearray(1000))
    assert any(piece is data for piece in CODEC.encode_data(data).pieces)


def test_data_that_are_too_long_for_bin() -> None:
    """They were found out by an exception that became 500."""
    most = (1 << 32) - 1
    with mmap.mmap(-1, most + 1) as memory, memoryview(memory) as data, data[:most] as held:  # nothing touches it
        first, _ = CODEC.encode_data(held).pieces
        assert first == b"\xc6\xff\xff\xff\xff"
        with pytest.raises(ContractError, match="A tensor of 4294967296 bytes is too long for MessagePack's bin"):
            CODEC.encode_data(data)
        del first, _


@given(documents(leaves))
def test_data_are_bin_and_nothing_else(document: Any) -> None:
    body = msgpack.packb(document)
    decoded = CODEC.decode(body, MAX_STRUCTURE_BYTES, MAX_DEPTH, share())
    if isinstance(document, bytes):
        assert CODEC.binary(body, decoded, ("inputs", "a"), share()) == document
    else:
        told = "are null; they " if document is None else ""
        with pytest.raises(ContractError, match=f"Data of a {told}must be binary"):
            CODEC.binary(body, decoded, ("inputs", "a"), share())


def test_the_place_of_data_is_looked_for_at_the_beginning_only() -> None:
    announced = b"\xc6" + (1 << 20).to_bytes(4, "big")
    assert CODEC.data_start(bytes(1000) + announced, (1 << 20) + 1005) == 1005
    assert CODEC.data_start(bytes(20_000) + announced, (1 << 20) + 20_005) == 0

    last = (1 << 14) - 1
    assert CODEC.data_start(bytes(last) + announced, (1 << 20) + last + 5) == last + 5
    assert CODEC.data_start(bytes(last + 1) + announced, (1 << 20) + last + 6) == 0


@pytest.mark.parametrize(("size", "start"), [(999, 0), (1000, 5), (3995, 5), (3996, 0)])
def test_the_place_of_data_that_are_much_of_a_body_of_4000_bytes_and_all_there(size: int, start: int) -> None:
    assert CODEC.data_start(b"\xc6" + size.to_bytes(4, "big"), 4000) == start


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "within a value that begins at offset 0"),
        (b"\xdc", "within a value that begins at offset 1"),
        (b"\xdc\0\2\1", "an array or map at offset 3 announces 2 values"),
        (b"\xde\0\2\xa1a\1", "an array or map at offset 3 announces 4 values"),
        (b"\x92\1\xcd\0", "within a value that begins at offset 2"),
        (b"\x92\1\xa5abcd", "within a value that begins at offset 3"),
        (b"\x92\1\xa3\xe2\x82", "within a value that begins at offset 3"),
        (b"\x81\xa5abcd", "within a value that begins at offset 6"),
        (b"\xc4\5abcd", "within a value that begins at offset 1"),
        (b"\xd9\5abcd", "within a value that begins at offset 2"),
        (b"\xda\0\5abcd", "within a value that begins at offset 3"),
    ],
)
def test_a_body_that_is_cut_off(body: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=f"The body ends after {len(body)} bytes, (but )?{said}\\."):
        decode(CODEC, body)


def test_text_that_is_none() -> None:
    for body, place in ((b"\xa1\xff", 1), (b"\x92\xa1\xff\1", 2), (b"\xd9\1\xff", 2), (b"\xda\0\1\xff", 3)):
        with pytest.raises(Unreadable, match=f"The string at offset {place} is not UTF-8"):
            decode(CODEC, body)


def test_what_begins_no_value() -> None:
    for body, place in ((b"\xc1", 0), (b"\x92\1\xd4\5a", 2)):
        with pytest.raises(Unreadable, match=f"byte 0x{body[place]:x} at offset {place} begins an extension type"):
            decode(CODEC, body)


def test_large_bodies_are_not_copied() -> None:
    body = msgpack.packb({"inputs": {"a": bytes(1 << 23)}})
    tracemalloc.start()
    try:
        CODEC.decode(body, MAX_STRUCTURE_BYTES, MAX_DEPTH, share())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@given(documents(leaves))
@example([1] * 15)
@example([[1] * 8, b"data", [1] * 8])
@example([b"b" * 70_000, [1] * 1000])
def test_structure_is_all_but_bin(document: Any) -> None:
    body = msgpack.packb(document)
    structure = len(body) - bytes_in(document)
    decode(CODEC, body, structure)
    assert outcome(lambda: decode(CODEC, body, structure - 1)) is LimitExceeded


@pytest.mark.parametrize(("count", "charged"), [(20, 512), (40, 1024), (100, 2000), (117, 2000)])
def test_memory_for_structure_is_charged_as_it_comes(count: int, charged: int) -> None:
    """Twice as much each time, and never more than there may be."""
    memory = share()
    CODEC.decode(msgpack.packb(["n" * 16] * count), 2000, MAX_DEPTH, memory)
    assert memory.held == PARSED * charged


def bytes_in(value: Any) -> int:
    if isinstance(value, dict | list):
        return sum(bytes_in(each) for each in (value.values() if isinstance(value, dict) else value))
    return len(value) if isinstance(value, bytes) else 0


def test_numbers_that_are_too_many_are_refused_before_they_are_made() -> None:
    body = b"\xdd" + (1 << 20).to_bytes(4, "big") + b"\x07" * (1 << 20)
    tracemalloc.start()
    try:
        assert outcome(lambda: CODEC.decode(body, MAX_STRUCTURE_BYTES, MAX_DEPTH, share())) is LimitExceeded
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MAX_STRUCTURE_BYTES


@pytest.mark.parametrize(
    "opening",
    [
        *(b"\x91", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01"),
        *(b"\x81\xa1a", b"\xde\x00\x01\xa1a", b"\xdf\x00\x00\x00\x01\xa1a"),
    ],
)
@pytest.mark.parametrize("depth", [1, 8, 256])
def test_depth(opening: bytes, depth: int) -> None:
    decode(CODEC, opening * depth + b"\x00", max_depth=depth)
    assert outcome(lambda: decode(CODEC, opening * (depth + 1) + b"\x00", max_depth=depth)) is LimitExceeded


def test_numbers_and_names_are_read_without_calls() -> None:
    """A call for each costs more than to judge them: a document has some thirty values."""
    sizes = [1, 200, 3000, 70_000]
    operator = {
        "Type": "DML_OPERATOR_ACTIVATION_HARD_SIGMOID",
        "InputTensor": {"Sizes": sizes},
        "Alpha": 0.25,
        "Beta": 3,
    }
    data = b"\1" * 4096
    body, calls, memory = msgpack.packb({"inputs": {"InputTensor": data}, "operator": operator}), [], share()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "msgpack" in frame.f_code.co_filename:
            calls.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        document = CODEC.decode(body, MAX_STRUCTURE_BYTES, MAX_DEPTH, memory)
    finally:
        sys.setprofile(None)
    start = body.index(data)
    assert document == {"inputs": {"InputTensor": Span(start, start + len(data))}, "operator": operator}
    assert calls == ["decode", "__init__", "document", "_extend", "_scalar", "_pass"]


def test_where_the_first_large_data_begin() -> None:
    """Of what has come of a body: a quarter of it at least, whatever looks like the head of data before."""
    for data, other in ((b"\1" * 70_000, b""), (b"\1" * 70_000, b"\2" * 140_000)):
        body = msgpack.packb({"small": b"\xc6\xc6", "marked": "\u0186" * 9, "inputs": {"x": data, "y": other}})
        assert CODEC.data_start(body[:2000], len(body)) == body.index(data)
    few = msgpack.packb({"x": b"\1" * 70_000, "y": [b"\2" * 70_000] * 4})
    assert CODEC.data_start(few[:2000], len(few)) == 0
    assert CODEC.data_start(few[:2000], -1) == 0
