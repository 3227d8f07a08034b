"""application/json, held against Python's own decoder."""

import base64
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, example, given, settings

import app.codecs.json
from app.codecs import base64 as codecs_base64
from app.codecs import json_cutting, json_slices
from app.codecs.base64 import BLOCK, Slashed
from app.codecs.codec import Codec, Span
from app.codecs.json import JsonCodec
from app.codecs.json_cutting import LONG, NAMES
from app.codecs.numbers import Numbers
from app.codecs.structure import SEARCHED, Unreadable
from app.contract.violations import ContractError
from app.memory.accounts import LimitExceeded, MemoryAccount, MemoryShare, RequestOver
from app.memory.buffers import SMALLEST
from app.operators.catalog import OPERATORS
from tests.codecs.documents import (
    MAX_DEPTH,
    MAX_STRUCTURE_BYTES,
    base64_in_place_of_bytes,
    decode,
    documents,
    encoded,
    mutations,
    outcome,
    replaced,
    scalars,
    share,
    texts,
)

CODEC: Codec = JsonCodec()
MANY = 5000
"""Bytes of a string that is long beyond doubt."""


def plain(body: bytes) -> Any:
    """What Python's decoder makes of `body`, as strict as ours must be, or Unreadable."""

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name stands twice")
        return dict(pairs)

    def refuse(token: str) -> None:
        raise ValueError(token)

    try:
        document = json.loads(body.decode(), object_pairs_hook=object_of, parse_constant=refuse)
        json.dumps(document, ensure_ascii=False).encode()  # half a surrogate pair has no UTF-8
    except ValueError:
        return Unreadable
    return document


@contextmanager
def cutting() -> Iterator[None]:
    """Strings of 4 bytes and more are cut out, and little is searched at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_cutting, "LONG", 4)
        patch.setattr(json_cutting, "NAMES", 4)
        patch.setattr(json_cutting, "SEARCHED", 16)
        yield


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal, with types, signs of zero and order."""
    assert repr(ours) == repr(theirs)


any_bytes = st.binary() | st.text('{}[]",:\\u0e-1tn d8\n').map(str.encode)
short_names = st.text("abcdefg /", max_size=3)
texts_to_cut = st.builds(str.__mul__, texts, st.integers(0, 30)) | st.text('"\\/é\n\x00\U0001f600a', max_size=30)
documents_to_cut = st.recursive(
    scalars | texts_to_cut,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(short_names, inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=300)
@given(any_bytes)
@example(b'{"a": 1, "a": 2}')
@example(b'["\\ud800"]')
@example(b"[NaN]")
@example(b"[1e400, -0, 0.0, 1E5]")
@example(b'"\\ud83d\\ude00"')
@example(b"\xef\xbb\xbf1")
@example(b"9" * 5000)
@example(b'["' + b"\\" * 8 + b'"]')
@example(b'["' + b"\\" * 9 + b'"]')
def test_any_bytes(body: bytes) -> None:
    ours = outcome(lambda: decode(CODEC, body))
    assume(ours is not LimitExceeded)
    assert_same(ours, plain(body))


@settings(max_examples=300)
@given(any_bytes | mutations(documents_to_cut.map(lambda document: json.dumps(document).encode())))
@example(b'"\x00aaaa\\n"')
@example(b'"aaaa\\q"')
@example(b'"aaaa\\ud800"')
@example(b'"\xff\xff\xff\xff\xff\\n"')
def test_any_bytes_in_a_large_body(body: bytes) -> None:
    """What is cut out is not looked at before it is used; but it changes nothing that is valid."""
    with cutting():
        ours = outcome(lambda: CODEC.decode(body, MAX_STRUCTURE_BYTES, MAX_DEPTH, share()))
        theirs = plain(body)
        if theirs is not Unreadable and ours is not Unreadable:
            assert_same(decode(CODEC, body), theirs)


@given(documents_to_cut, st.booleans(), st.sampled_from([None, 2]))
def test_valid_documents(document: Any, ensure_ascii: bool, indent: int | None) -> None:
    body = json.dumps(document, ensure_ascii=ensure_ascii, indent=indent).encode()
    assert_same(decode(CODEC, body), document)
    with cutting():
        assert_same(decode(CODEC, body), document)


@pytest.mark.parametrize("middle", [b'"",', b'"aaaa",', b"1,", b'"\\\\",', b"   ", b"\\\\", b'\\"', b"[],"])
def test_others_have_their_turn_while_structure_is_read(monkeypatch: pytest.MonkeyPatch, middle: bytes) -> None:
    """No call goes on for longer than for so much text."""
    most = 1 << 10
    monkeypatch.setattr(json_cutting, "SEARCHED", most)
    monkeypatch.setattr(json_cutting, "_ESCAPED", re.compile(rb'(?>[^"\\]++|\\.){0,512}', re.DOTALL))
    monkeypatch.setattr(json_slices, "SLICE", most)
    many = middle * (most * 64 // len(middle))
    body = b'["%b"]' % many if middle.startswith(b"\\") else b"[%b1]" % many
    with mock.patch.object(MemoryShare, "ensure_open") as asked:
        CODEC.decode(body, len(body), MAX_DEPTH, MemoryAccount(1 << 30).open())
    assert asked.call_count >= 60


@pytest.mark.parametrize("length", [0, 1, *range(LONG - 2, LONG + 2), *range(NAMES - 2, NAMES + 2), MANY, 3 * MANY])
@pytest.mark.parametrize("end", ["", '"', "\\", "\\\\", '\\"', "/", "é", "\n", "\U0001f600", "\x00", "\\u0041"])
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_long_strings_of_every_end(length: int, end: str, ensure_ascii: bool) -> None:
    text = "A" * length + end
    document = {"a": text, "b": [text, {"c": end + text}], "d": 1, "e": "A" * MANY}
    body = json.dumps(document, ensure_ascii=ensure_ascii).encode()
    assert len(body) > MANY
    assert decode(CODEC, body) == document


def test_a_long_string_alone() -> None:
    for text in ("A" * 2 * MANY, "\\" * 2 * MANY, '"' * 2 * MANY):
        assert decode(CODEC, json.dumps(text).encode()) == text


@pytest.mark.parametrize("name", ["n" * NAMES, "n" * 2 * MANY, "\n" * NAMES])
def test_long_names(name: str) -> None:
    document = [{"a": {name: "A" * MANY}}]
    assert decode(CODEC, json.dumps(document).encode()) == document
    twice = json.dumps(document).replace('"A', f'1, {json.dumps(name)}: "A')
    assert outcome(lambda: decode(CODEC, twice.encode())) is Unreadable


@pytest.mark.parametrize("spoilt", ['"', '\\"', "\\", '"a', '": "', '",', '":', "\\u12", "\\ud800", "\x00\\n"])
def test_spoilt_ends_of_a_large_body(spoilt: str) -> None:
    body = b'{"a": "' + b"A" * MANY + spoilt.encode()
    for end in (b"", b"}", b'"}'):
        if plain(body + end) is Unreadable:
            assert outcome(lambda end=end: decode(CODEC, body + end)) is Unreadable  # type: ignore[misc]


def test_tensor_data_are_spans_of_the_body() -> None:
    body = b'{"inputs": {"a": "' + b"A" * MANY + b'"}, "other": {"a": "' + b"A" * MANY + b'"}}'
    document = CODEC.decode(body, MAX_STRUCTURE_BYTES, MAX_DEPTH, share())
    assert document == {"inputs": {"a": Span(18, 18 + MANY)}, "other": {"a": "A" * MANY}}


@pytest.mark.parametrize(
    "given",
    [[[1, 2], "text", 3], [1, {"b": [2]}], [[1], [2, None]], [[1], True], [[[1]], [["NaN"], "Infinity", "-"]]],
)
def test_an_array_with_other_things_in_it_is_read_as_it_is(given: Any) -> None:
    document = {"inputs": {"a": given, "b": {"data": given}, "c": [given, given]}, "d": given}
    assert decode(CODEC, json.dumps(document).encode()) == document


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("end", ["\\\\", "\\/\\\\", "\\\\/", "\\n", "\\/\\/"])
def test_escapes_at_the_ends_of_blocks(monkeypatch: pytest.MonkeyPatch, blocks: int, before: int, end: str) -> None:
    """Of slashes or of anything else."""
    monkeypatch.setattr(codecs_base64, "BLOCK", 32)
    text = "A" * (32 * blocks - before) + end
    body = f'{{"inputs": {{"a": "{text}"}}}}'.encode()
    value = CODEC.decode(body, MAX_STRUCTURE_BYTES, MAX_DEPTH, share())["inputs"]["a"]
    assert value == json.loads(f'"{text}"') if end != "\\/\\/" else isinstance(value, Slashed)


@pytest.mark.parametrize("searched", [1, 16, SEARCHED])
def test_nothing_but_tensor_data_is_taken_out_and_put_back(searched: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To put names of operators back takes as long as to read the rest."""
    monkeypatch.delattr(app.codecs.json, "_restore")
    monkeypatch.setattr(json_cutting, "SEARCHED", searched)
    text, numbers = "A" * LONG, [[1, 2], [3, 4]]
    data = [text, numbers, {"Sizes": [1, 2], "data": text, "of": {"Sizes": [1, 2]}}, {"data": numbers}]
    inputs = {f"input {number}": each for number, each in enumerate([*data, data[2:]])}
    for name in OPERATORS:
        operator = {"Type": name, "Sizes": [1, 2], "Of": {"Type": name}}
        for document in ({"operator": operator, "inputs": inputs}, {"inputs": inputs, "operator": operator}):
            found = CODEC.decode(json.dumps(document).encode(), MAX_STRUCTURE_BYTES, MAX_DEPTH, share())
            told = replaced(replaced(found, Span, lambda _: text), Numbers, lambda each: json.loads(bytes(each.text)))
            assert told == document
            assert str(found).count("Span(") + str(found).count("Numbers(") == 6


def test_memory_is_accounted_for_before_a_long_string_is_unescaped() -> None:
    body = b'["' + b"A" * MANY + b'\\/"]'
    memory = MemoryAccount(1 << 62).open()
    CODEC.decode(body, MAX_STRUCTURE_BYTES, MAX_DEPTH, memory)
    assert memory.held >= 4 * MANY
    with pytest.raises(LimitExceeded, match="max_memory_bytes"):
        CODEC.decode(body, MAX_STRUCTURE_BYTES, MAX_DEPTH, MemoryAccount(2 * MANY).open())


@pytest.mark.parametrize("size", [100, 1000, 2 * MANY])
@pytest.mark.parametrize("end", ["A", "\\/"])
def test_structure_is_all_but_tensor_data(size: int, end: str) -> None:
    strings = json.dumps(["A" * 9] * (size // 13) + ["A" * (NAMES + 10)])
    body = f'{{"inputs": {{"a": "{"A" * MANY}{end}", "b": "{"A" * MANY}"}}, "other": {strings}}}'.encode()
    structure = len(body) - 2 * MANY - len(end)
    decode(CODEC, body, structure)
    assert outcome(lambda: decode(CODEC, body, structure - 1)) is LimitExceeded


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (b"[" + b"1," * 100 + b"1]", 0),
        (b'["' + b'\\"' * 100 + b'"]', 0),
        (b'{"inputs": {"a": "' + b"A" * MANY + b'"}}', MANY),
        (b'{"inputs": {"a": [' + b"1," * 100 + b"1]}}", 203),
    ],
    ids=["numbers", "escapes", "base64", "an array"],
)
def test_structure_may_be_as_long_as_the_limit(body: bytes, data: int) -> None:
    CODEC.decode(body, len(body) - data, MAX_DEPTH, share())
    assert outcome(lambda: CODEC.decode(body, len(body) - data - 1, MAX_DEPTH, share())) is LimitExceeded


@pytest.mark.parametrize("beyond", [0, 1, 2, 100])
def test_a_string_with_escapes_that_ends_beyond_the_limit_is_too_long(beyond: int) -> None:
    """Wherever the limit cuts it, but one that ends nowhere is no JSON."""
    body = b'["' + b'\\"' * 200
    for end, kind in ((b'"]', LimitExceeded), (b"", LimitExceeded if beyond else Unreadable)):
        assert outcome(partial(CODEC.decode, body + end, len(body) - beyond, MAX_DEPTH, share())) is kind
    for end in (b"", b"\\", b"a"):
        assert outcome(partial(CODEC.decode, body + end, MAX_STRUCTURE_BYTES, MAX_DEPTH, share())) is Unreadable


@pytest.mark.parametrize("size", [0, 1, 2, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 2])
def test_data_are_base64_in_quotes_however_many_blocks(size: int) -> None:
    data = np.random.default_rng(3).bytes(size)
    made = CODEC.encode_data(memoryview(data))
    text = b"".join(made.pieces)
    assert text == b'"' + base64.b64encode(data) + b'"'
    assert made.length == len(text)


@pytest.mark.parametrize("filling", ['\\"', "\\\\", '"', '"",', '"\\"",', "AAAA", "A" * 30 + '","', "[", " ", '\\"\\/'])
def test_a_body_is_looked_at_no_further_than_structure_may_reach(filling: str) -> None:
    """But for tensor data, in which there is but one thing to look for, and which are searched in blocks."""
    body = ('{"inputs": {"a": "' + filling * (1 << 20)).encode()
    assert calls_for(body, 1 << 10) < 20 * (1 << 10) + 10 * len(body) / SEARCHED


@pytest.mark.parametrize("filling", ["[", "[],", "[[1],", "[[1],[2]],"])
def test_brackets_that_no_name_is_before_are_not_looked_at_one_by_one(filling: str) -> None:
    body = ('{"inputs": {"a": [' + filling * (1 << 20) + "{").encode()
    assert calls_for(body, 1 << 16) < 200 + 10 * len(body) / SEARCHED


def calls_for(body: bytes, max_structure_bytes: int) -> int:
    """Of functions, until it is refused."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = outcome(lambda: CODEC.decode(body, max_structure_bytes, MAX_DEPTH, share()))
    finally:
        sys.setprofile(None)
    assert found in (LimitExceeded, Unreadable)
    return calls


def test_long_strings_are_not_as_many_as_there_is_room_for_quotes() -> None:
    """Each has a mark in the structure, which is longer than the quotes that are counted."""
    body = b"[" + b'"%b",' % (b"A" * NAMES) * (MAX_STRUCTURE_BYTES // 3 - 10) + b"0]"
    memory = share()
    assert outcome(lambda: CODEC.decode(body, MAX_STRUCTURE_BYTES, MAX_DEPTH, memory)) is LimitExceeded
    assert memory.held == 0  # it was seen before anything was parsed
    fitting = b"[" + b'"%b",' % (b"A" * NAMES) * 100 + b"0]"
    decode(CODEC, fitting, len(fitting))


@pytest.mark.parametrize(
    ("inputs", "most"),
    [
        ({f"{number:x}": [1] for number in range(20_000)}, MAX_STRUCTURE_BYTES // LONG + 256),
        ({"a": [{"data": [1]} for _ in range(10_000)]}, 256 // 2),
    ],
    ids=["names", "objects"],
)
def test_what_is_more_arrays_than_tensors_is_read_as_it_is(inputs: Any, most: int) -> None:
    """To take one out takes more memory than to read a short one, and more time."""
    body = json.dumps({"inputs": inputs}, separators=(",", ":")).encode()
    found = CODEC.decode(body, MAX_STRUCTURE_BYTES, MAX_DEPTH, share())
    assert str(found).count("Numbers(") == most
    assert replaced(found, Numbers, lambda each: json.loads(bytes(each.text))) == {"inputs": inputs}


class TestTensorData:
    PATH = ("inputs", "InputTensor")

    def read(self, value: object) -> bytes:
        """Tensor data from a string, or from text or bytes that are a span of the body."""
        if isinstance(value, bytes):
            return bytes(CODEC.binary(b'"' + value + b'"', Span(1, 1 + len(value)), self.PATH, share()))
        return bytes(CODEC.binary(b"", value, self.PATH, share()))

    @given(st.binary())
    def test_every_data_can_be_sent(self, data: bytes) -> None:
        text = base64.b64encode(data)
        assert self.read(text.decode()) == data
        assert self.read(text) == data

    @given(st.text() | st.text("AZaz09+/=-_ \n", max_size=12) | st.binary().map(lambda data: data.decode("latin-1")))
    def test_each_in_one_form_only(self, text: str) -> None:
        for value in (text, text.encode("utf-8", "replace")):
            try:
                data = self.read(value)
            except ContractError:
                continue
            assert base64.b64encode(data).decode() == text

    @given(documents())
    def test_anything_else_is_refused(self, value: Any) -> None:
        assume(not isinstance(value, str))
        told = "are null; they " if value is None else ""
        with pytest.raises(ContractError, match=f"InputTensor {told}must be a string of base64") as refusal:
            self.read(value)
        assert refusal.value.violations[0].path == self.PATH
        assert refusal.value.violations[0].allowed == ["base64 text"]

    @pytest.mark.parametrize("block", [300, BLOCK])
    @pytest.mark.parametrize("is_writable", [True, False])
    @pytest.mark.parametrize("size", [0, 1, 30, BLOCK, 3 * BLOCK + 1])
    def test_with_escaped_slashes(
        self, monkeypatch: pytest.MonkeyPatch, size: int, is_writable: bool, block: int
    ) -> None:
        """As PHP writes them, wherever blocks end."""
        monkeypatch.setattr(codecs_base64, "BLOCK", block)
        data = b"\xff" * size + np.random.default_rng(1).bytes(size)
        text = base64.b64encode(data).replace(b"/", b"\\/")
        body: Any = b'{"inputs": {"InputTensor": "' + text + b'"}}'
        body = memoryview(bytearray(body)) if is_writable else body
        document = CODEC.decode(body, 1 << 10, MAX_DEPTH, share())
        value = document["inputs"]["InputTensor"]
        assert isinstance(value, str if len(text) < LONG else Slashed)
        memory = share()
        assert CODEC.binary(body, value, self.PATH, memory) == data
        assert not (size >= BLOCK and is_writable and memory.held)

    def test_is_writable(self) -> None:
        """So that a result can take its place."""
        assert not CODEC.binary(b"", "AAAA", self.PATH, share()).readonly

    @pytest.mark.parametrize("blocks", [0.4, 1, 1.5, 3, 3.25])
    @pytest.mark.parametrize("start", [1, 63, 64, 65, 200])
    @pytest.mark.parametrize("rest", [0, 1, 2])
    def test_large_ones_take_the_place_of_their_text(self, blocks: float, start: int, rest: int) -> None:
        data = np.random.default_rng(1).bytes(int(blocks * BLOCK) + rest)
        text = base64.b64encode(data)
        original = b"-" * start + text + b"-" * 9
        body, span, memory = memoryview(bytearray(original)), Span(start, start + len(text)), share()
        found = CODEC.binary(body, span, self.PATH, memory)
        assert found == data
        assert memory.held == 0
        offset = np.frombuffer(found, np.uint8).ctypes.data - np.frombuffer(body, np.uint8).ctypes.data
        assert span.start <= offset < span.start + 64
        assert offset % 64 == 0
        assert body[:start] == original[:start]
        assert body[span.stop :] == original[span.stop :]
        CODEC.put_back(body, span, found)
        assert body == original

    @pytest.mark.parametrize("value", ["AAAA", Slashed(0, 4), Numbers(memoryview(b"[1]")), None])
    def test_nothing_else_is_put_back(self, value: object) -> None:
        body = bytearray(b"1234")
        CODEC.put_back(memoryview(body), value, memoryview(b"abc"))
        assert body == b"1234"

    def test_small_ones_do_not(self) -> None:
        text = base64.b64encode(bytes(SMALLEST - 1))
        body, memory = memoryview(bytearray(text)), share()
        CODEC.binary(body, Span(0, len(text)), self.PATH, memory)
        assert memory.held == SMALLEST - 1
        assert body == text

    @pytest.mark.parametrize("blocks", [0, 0.5, 1, 1.25, 2, 3 - 2 / BLOCK])
    @pytest.mark.parametrize("spoilt", [b"?", b"=", b"/B=="])
    def test_text_that_is_refused_is_as_it_was(self, blocks: float, spoilt: bytes) -> None:
        """Since a document that resembles an earlier one is then read from the beginning."""
        text = base64.b64encode(np.random.default_rng(2).bytes(3 * BLOCK))
        place = int(blocks * BLOCK) // 3 * 4
        text = text[:place] + spoilt + text[place + len(spoilt) :]
        for body in (memoryview(bytearray(b'"' + text)), memoryview(b'"' + text)):  # which cannot be written to
            with pytest.raises(ContractError, match="base64"):
                CODEC.binary(body, Span(1, 1 + len(text)), self.PATH, share())
            assert body[1:] == text

    @pytest.mark.parametrize("form", [Span, Slashed])
    def test_nobody_who_hung_up_has_large_ones_decoded(self, form: Any) -> None:
        body, memory = memoryview(bytearray(b"A" * 2 * BLOCK)), share()
        memory.close()
        with pytest.raises(RequestOver):
            CODEC.binary(body, form(0, len(body)), self.PATH, memory)

    @pytest.mark.parametrize("spaces", [0, 1, 50, 70])
    def test_an_array_is_taken_out_where_its_name_is_near(self, spaces: int) -> None:
        """To look further would take long, and nobody writes that."""
        between = b":" + b" " * spaces + b"[1, 2]"
        body = b'{"inputs": {"a"%b, "b": {"data"%b}}}' % (between, between)
        document = CODEC.decode(body, 1 << 10, MAX_DEPTH, share())
        for found in (document["inputs"]["a"], document["inputs"]["b"]["data"]):
            assert (bytes(found.text) == b"[1, 2]") if spaces < 64 else found == [1, 2]

    def test_others_have_their_turn_while_numbers_are_looked_for(self) -> None:
        body = b'{"inputs": {"a": [' + b"1," * 2 * SEARCHED + b"1]}}"
        with mock.patch.object(MemoryShare, "ensure_open") as asked:
            CODEC.decode(body, 1 << 10, MAX_DEPTH, share())
        assert asked.call_count > 4

    def test_others_have_their_turn_while_large_ones_are_read(self) -> None:
        """Looked at for escapes, rid of these, and decoded."""
        text = b"A" * 4 * BLOCK
        for end, least in ((b"AAAA", 4), (b"AAA\\/", 5 + 4)):
            body = memoryview(bytearray(b'{"inputs": {"a": "' + text + end + b'"}}'))
            with mock.patch.object(MemoryShare, "ensure_open") as asked:
                document = CODEC.decode(body, 1 << 10, MAX_DEPTH, share())
                assert asked.call_count >= len(body) // SEARCHED + 5
                asked.reset_mock()
                CODEC.binary(body, document["inputs"]["a"], self.PATH, share())
            assert asked.call_count >= least

    def test_memory_is_accounted_for(self) -> None:
        memory = share()
        CODEC.binary(b"", "AAAA" * 100, self.PATH, memory)
        assert memory.held == 300
        with pytest.raises(LimitExceeded, match="max_memory_bytes"):
            CODEC.binary(b"", "AAAA" * 100, self.PATH, MemoryAccount(299).open())


json_scalars = scalars | st.sampled_from(["\x00", '"\x00"', '\\"\x00\\"'])


@given(documents(json_scalars | st.binary()))
def test_what_is_encoded_is_decoded(document: Any) -> None:
    body = encoded(CODEC, document)
    assert_same(json.loads(body), base64_in_place_of_bytes(document))
    assert_same(decode(CODEC, body), base64_in_place_of_bytes(document))


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("rest", [b"0", b'"' + b"long" * LONG + b'"'])  # which is put back into the document
@pytest.mark.parametrize("depth", [1, 8, 256])
def test_depth(opening: bytes, closing: bytes, rest: bytes, depth: int) -> None:
    decode(CODEC, opening * depth + rest + closing * depth, max_depth=depth)
    beyond = opening * (depth + 1) + rest + closing * (depth + 1)
    assert outcome(lambda: decode(CODEC, beyond, max_depth=depth)) is LimitExceeded


@pytest.mark.parametrize("around", [b'{"of": {"inputs": {"a": %b}}}', b'{"inputs": {"a": {"data": {"data": %b}}}}'])
def test_depth_of_arrays_that_are_taken_for_data_at_first(around: bytes) -> None:
    outside = around.count(b"{")
    for inside in (1, 100):
        body = around % (b"[" * inside + b"1" + b"]" * inside)
        assert decode(CODEC, body, max_depth=outside + inside) == json.loads(body)
        assert outcome(partial(decode, CODEC, body, max_depth=outside + inside - 1)) is LimitExceeded


@pytest.mark.parametrize("character", ["\x00", "\n", "\x1f", '\\"', "\\x"])
def test_characters_that_no_string_may_hold(character: str) -> None:
    for text in (character, "long" * LONG + character + "x", character + "long" * LONG):
        body = f'["{text}"]'.encode()
        assert outcome(partial(decode, CODEC, body)) == plain(body)


def test_a_long_string_with_half_a_surrogate_is_not_told_whole() -> None:
    with pytest.raises(Unreadable, match="half of a surrogate pair") as refusal:
        decode(CODEC, b'["' + b"A" * MANY + b'\\ud800"]')
    assert len(str(refusal.value)) < 200


def test_a_byte_order_mark_is_no_json() -> None:
    with pytest.raises(Unreadable, match="a byte order mark comes first"):
        decode(CODEC, "\ufeff{}".encode())
