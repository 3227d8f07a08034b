"""JSON in slices is what Python's decoder makes of it at once."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.codecs import json_slices
from app.codecs.structure import Unreadable, object_of
from app.memory.accounts import MemoryAccount, MemoryShare, RequestOver
from tests.codecs.documents import share

MAX_DEPTH = 16


class Counting(json.JSONDecoder):
    """A decoder that notes how long the texts are that it is given, from where it is to begin on."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=object_of)
        self.longest = 0

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        self.longest = max(self.longest, len(s) - idx)
        return super().raw_decode(s, idx)


def outcome(decode: Callable[[], Any]) -> str:
    """What comes of it, with types, the order of names, and what is wrong where."""
    try:
        return repr(decode())
    except (ValueError, Unreadable, RecursionError) as error:
        return f"{type(error).__name__}: {error}"


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner, max_size=8),
    max_leaves=40,
)
texts = st.builds(
    lambda document, indent: json.dumps(document, indent=indent, ensure_ascii=False),
    documents,
    st.sampled_from([None, 1]),
)


def mutated(text: str, place: int, cut: int, more: str) -> str:
    place %= len(text) + 1
    return text[:place] + more + text[place + cut :]


mutants = st.builds(mutated, texts, st.integers(0, 10_000), st.integers(0, 2), st.text('[]{},:"\\ 1.e-tn', max_size=2))


@settings(max_examples=500)
@given(texts | mutants, st.integers(1, 30))
@example("[1.5, 2.25, 1e-5, -1]", 3)
@example("[1 , 2 , [], {} , [ ] ]", 4)
@example('{"a": 1, "b": 2, "a": 3}', 8)
@example('{"a": [1, 2, 3, 4], "b": {"c": "ddddddddddd"}}', 5)
@example("[1,2,]", 4)
@example("[1, 2 ,\n ]", 4)
@example('{"a": 1, "b": 2 , }', 5)
@example("[,1]", 3)
@example("[1,2,3", 4)
@example("[1 2, 3]", 4)
@example('{"a" 1, "b": 2}', 4)
@example("{1: 2, 3: 4}", 4)
@example("[1,2],[3,4]", 6)
@example("[1,2}", 3)
@example("[1,2,3,4] ]", 5)
@example("[1,\x0b2, 3]", 3)
@example("[1\xa0, 2, 3]", 3)
@example('{"a":\x0c1, "b": 2}', 3)
@example("\u20281", 5)
@example("[" + "9" * 5000 + ".5, 1]", 4500)
@example("[" + "9" * 5000 + ", 1]", 4500)
@example("[1, " + "9" * 5000 + "]", 10_000)
@example("9" * 5000, 10_000)
@example('[{"a": 1, "a": 2}, 3, 4]', 20)
@example("", 1)
@example("nul", 2)
@example('["a,b,c", "]"]', 4)
def test_slices_are_the_whole(text: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_slices, "SLICE", size)
        ours = outcome(lambda: json_slices.decode(text, Counting(), 100, share()))
    assert ours == outcome(lambda: Counting().decode(text))


LONG: dict[str, str] = {
    "numbers": "[" + "1," * 50_000 + "1]",
    "lists": "[" + "[]," * 50_000 + "1]",
    "names": "{" + ",".join(f'"{number}": 1' for number in range(20_000)) + "}",
    "strings": '{"a": [' + '"",' * 50_000 + '""]}',
    "nested": "[[[[" + '{"a": [1, 2, {}]}, ' * 10_000 + "1]]]]",
    "what is wrong": "[" + "[]," * 50_000 + "1}",
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_no_call_decodes_more_than_a_slice(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(json_slices, "SLICE", 1 << 10)
    decoder, at_once = Counting(), Counting()
    assert outcome(lambda: json_slices.decode(text, decoder, MAX_DEPTH, share())) == outcome(
        lambda: at_once.decode(text)
    )
    assert decoder.longest <= 2 + (1 << 10) < at_once.longest


def test_a_string_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_slices, "SLICE", 16)
    assert json_slices.decode(f'["{"a" * 100}", {"1" * 100}]', Counting(), MAX_DEPTH, share())


def test_what_nests_deeper_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_slices, "SLICE", 16)
    text = "[" * 4 + "1, " * 100 + "1" + "]" * 4
    assert json_slices.decode(text, Counting(), 4, share())
    with pytest.raises(RecursionError):
        json_slices.decode(text, Counting(), 3, share())


def test_who_hung_up_has_nothing_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_slices, "SLICE", 64)
    memory: MemoryShare = MemoryAccount(1 << 20).open()
    memory.close()
    with pytest.raises(RequestOver):
        json_slices.decode(LONG["numbers"], Counting(), MAX_DEPTH, memory)
