"""What is repeated to a sender of what he sent."""

import json
import math
from typing import Any

import pytest

from app.codecs.codec import Span
from app.contract.validation import abbreviate, in_json, in_words


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("n" * 80, "n" * 80),
        ("n" * 81, "n" * 77 + "..."),
        ("\ud800", "\\ud800"),
        (True, True),
        (None, None),
        (2**63 - 1, 2**63 - 1),
        (-(2**63) + 1, -(2**63) + 1),
        (2**63, "an integer of 64 bits"),
        (-(2**63), "an integer of 64 bits"),
        (0.5, 0.5),
        (math.inf, "inf"),
        ([1] * 8, [1] * 8),
        ([1] * 9, "a list of 9"),
        ((1, [2], {"a": 3}), [1, "a list of 1", "an object of 1"]),
        ({}, "an empty object"),
        ({"a": 1}, "an object with a"),
        (dict.fromkeys("abcdefgh"), "an object with a, b, c, d, e, f, g, h"),
        (dict.fromkeys("abcdefghi"), "an object with a, b, c, d, e, f, g, h"),
        (b"abc", "3 bytes of binary"),
        (memoryview(b"abcdefgh").cast("i"), "8 bytes of binary"),
        (Span(3, 10), "7 bytes of data"),
        (1j, "complex"),
    ],
)
def test_what_is_long_is_abbreviated(value: object, shown: Any) -> None:
    assert abbreviate(value) == shown
    json.dumps(shown, allow_nan=False)


@pytest.mark.parametrize(
    ("value", "shown"),
    [([1], "a list of 1"), ((), "a list of 0"), ({}, "an object of 0"), ({"a": 1}, "an object of 1")],
)
def test_within_another_value_it_is_shorter(value: object, shown: str) -> None:
    assert abbreviate(value, inner=True) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("nan", '"nan"'),
        (math.nan, "nan"),
        ({"a": 1}, "an object with a"),
        ([1, "b"], '[1, "b"]'),
        ([1] * 9, "a list of 9"),
        (1 << 64, "an integer of 65 bits"),
        (True, "true"),
    ],
)
def test_only_strings_are_quoted(value: object, shown: str) -> None:
    assert in_json(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [("a b", "a b"), ("", "''"), (" a", "' a'"), ("a\n", "'a\n'"), ("n" * 81, "n" * 77 + "..."), (0, 0), (None, None)],
)
def test_a_name_that_would_not_be_seen_is_quoted(value: object, shown: Any) -> None:
    assert in_words(value) == shown
