"""Bodies that differ from an earlier one in their tensor data only."""

import threading
from collections import OrderedDict
from typing import Any

import pytest

from app.codecs.codec import Codec, Span
from app.codecs.json import JsonCodec
from app.codecs.msgpack import MsgpackCodec
from app.codecs.request_cache import Doorkeeper, LastUsed, RequestCache

JSON, MSGPACK = JsonCodec(), MsgpackCodec()
BODY = b"begin AAAA middle BBBB end"
SPANS = [Span(6, 10), Span(18, 22)]


def cache(most: int = 4, longest: int = 100) -> RequestCache[str]:
    return RequestCache(most, most_bytes=1000, longest=longest)


def add(known: RequestCache[str], codec: Codec, body: bytes, spans: list[Span], made: str) -> None:
    """It has come twice."""
    known.add(codec, body, spans, made)
    known.add(codec, body, spans, made)


def test_what_comes_once_takes_nothing_else_its_place() -> None:
    known = cache(most=2)
    add(known, JSON, BODY, SPANS, "made")
    for number in range(100):
        known.add(JSON, b"%d" % number, [], "once")
        assert known.find(JSON, b"%d" % number) is None
    assert known.made.size == 1
    assert known.find(JSON, BODY) == "made"


def test_other_data_are_the_same() -> None:
    known = cache()
    add(known, JSON, BODY, list(reversed(SPANS)), "made")
    assert known.find(JSON, BODY) == "made"
    assert known.find(JSON, memoryview(b"begin 1234 middle 5678 end")) == "made"


@pytest.mark.parametrize("offset", [each for each in range(len(BODY)) if not 6 <= each < 10 and not 18 <= each < 22])
def test_any_other_byte_makes_a_difference(offset: int) -> None:
    known = cache()
    add(known, JSON, BODY, SPANS, "made")
    assert known.find(JSON, BODY[:offset] + b"?" + BODY[offset + 1 :]) is None


def test_length_and_representation_make_a_difference() -> None:
    known = cache()
    add(known, JSON, BODY, SPANS, "made")
    assert known.find(JSON, BODY + b" ") is None
    assert known.find(JSON, BODY[:-1]) is None
    assert known.find(MSGPACK, BODY) is None


def test_the_place_of_data_makes_a_difference() -> None:
    """The same bytes are around the data of both."""
    known = cache()
    add(known, JSON, b"abXXcd", [Span(2, 4)], "between")
    add(known, JSON, b"abcdXX", [Span(4, 6)], "behind")
    assert known.find(JSON, b"abYYcd") == "between"
    assert known.find(JSON, b"abcdYY") == "behind"
    assert known.find(JSON, b"aXXbcd") is None


def test_bodies_of_one_length_have_their_data_in_eight_places_at_most() -> None:
    known = cache(most=20)
    bodies = [b"%d" % place * 10 for place in range(9)]
    for place, body in enumerate(bodies):
        add(known, JSON, body, [Span(place, place + 1)], body.decode())
    assert [known.find(JSON, body) for body in bodies] == [None, *(body.decode() for body in bodies[1:])]


def test_what_came_too_long_ago_comes_the_first_time() -> None:
    """What is noted of what came once is bounded, too."""
    keeper = Doorkeeper(2)
    assert [keeper.admits(number) for number in (0, 0, *range(1, 8), 0)] == [False, True, *[False] * 7, True]
    assert [keeper.admits(number) for number in (8, 0, 8)] == [False, False, True]


def test_as_many_of_one_length_as_of_any() -> None:
    known = RequestCache[str](most=512)
    bodies = [b"%d:%d" % (number, number) for number in range(100, 612)]
    for body in bodies:
        add(known, JSON, body, [Span(0, 3)], body.decode())
    assert [known.find(JSON, b"???" + body[3:]) for body in bodies] == [body.decode() for body in bodies]
    assert (known.made.hits, known.made.misses, known.made.size) == (512, 0, 512)


def test_those_in_use_are_found_whatever_else_comes() -> None:
    known = cache(most=4)
    add(known, JSON, BODY, SPANS, "made")
    for number in range(10_000):
        other = b"%*d" % (1 + number % 50, number)
        assert known.find(JSON, other) is None
        add(known, JSON, other, [], "other")
        if number % 3 == 0:
            assert known.find(JSON, BODY) == "made"
    assert known.made.size == len(known._layouts) == 4
    assert known.made.bytes < 200
    assert (known.made.hits, known.made.misses) == (3334, 10_000)


def test_those_not_used_are_forgotten() -> None:
    known = cache(most=2)
    one, two, three = b"1", b"22", b"333"
    add(known, JSON, one, [], "one")
    add(known, JSON, two, [], "two")
    known.find(JSON, one)
    add(known, JSON, three, [], "three")
    assert [known.find(JSON, body) for body in (one, two, three)] == ["one", None, "three"]


def test_large_ones_are_not_remembered() -> None:
    structure = len(BODY) - 8
    known = cache(longest=structure)
    add(known, JSON, BODY, [], "made")
    assert known.find(JSON, BODY) is None
    add(known, JSON, BODY, SPANS, "made")
    assert known.find(JSON, BODY) == "made"
    assert known.made.bytes == structure
    known = cache(longest=structure - 1)
    add(known, JSON, BODY, SPANS, "made")
    assert known.find(JSON, BODY) is None


def test_threads() -> None:
    known = cache(most=2)
    failed = []

    def use(number: int) -> None:
        for turn in range(3000):
            body = b"x" * (1 + (turn + number) % 5)
            try:
                if known.find(JSON, body) is None:
                    known.add(JSON, body, [], "made")
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_what_another_thread_forgets_meanwhile_is_found_once_more() -> None:
    class Forgetful(OrderedDict[Any, Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            return self.pop(key, default)

    known = cache()
    add(known, JSON, BODY, SPANS, "made")
    known._layouts = Forgetful(known._layouts)
    assert [known.find(JSON, BODY) for _ in range(2)] == ["made", None]


def test_few_bytes_are_kept() -> None:
    known: LastUsed[int, str] = LastUsed(most=100, most_bytes=9)
    for number in range(5):
        known.add(number, str(number), 3)
    assert [known.find([number]) for number in range(5)] == [None, None, "2", "3", "4"]
    assert (known.bytes, known.size) == (9, 3)
    known.add(4, "four", 1)
    assert (known.find([0, 4, 3]), known.bytes, known.size) == ("four", 7, 3)
    known.add(5, "too long", 10)
    assert (known.find([5]), known.bytes, known.size) == (None, 7, 3), "nothing is forgotten for it"
    known.add(4, "too long", 10)
    assert (known.find([4]), known.bytes, known.size) == (None, 6, 2)


def test_what_was_made_takes_its_place() -> None:
    known = RequestCache[str](most=4, most_bytes=1000)
    for _ in range(2):
        known.add(JSON, BODY, SPANS, "made", 900)
        known.add(MSGPACK, BODY, SPANS, "small", 50)
    assert (known.find(JSON, BODY), known.find(MSGPACK, BODY)) == ("made", "small")
    assert known.made.bytes == 950 + 2 * (len(BODY) - 8)
    known.add(MSGPACK, BODY, SPANS, "large", 900)
    assert (known.find(JSON, BODY), known.find(MSGPACK, BODY)) == (None, "large")
