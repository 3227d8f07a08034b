"""Bodies that differ from an earlier one in their tensor data only."""

import threading

import pytest

from app.codecs.codec import Span
from app.codecs.json import JsonCodec
from app.codecs.msgpack import MsgpackCodec
from app.codecs.templates import Templates

JSON, MSGPACK = JsonCodec(), MsgpackCodec()
BODY = b"begin AAAA middle BBBB end"
SPANS = [Span(6, 10), Span(18, 22)]


def templates(most: int = 4, most_bytes: int = 100) -> Templates[str]:
    return Templates(most, most_bytes)


def test_other_data_are_the_same() -> None:
    known = templates()
    known.add(JSON, BODY, list(reversed(SPANS)), "made")
    assert known.find(JSON, BODY) == "made"
    assert known.find(JSON, memoryview(b"begin 1234 middle 5678 end")) == "made"


@pytest.mark.parametrize("offset", [each for each in range(len(BODY)) if not 6 <= each < 10 and not 18 <= each < 22])
def test_any_other_byte_makes_a_difference(offset: int) -> None:
    known = templates()
    known.add(JSON, BODY, SPANS, "made")
    assert known.find(JSON, BODY[:offset] + b"?" + BODY[offset + 1 :]) is None


def test_length_and_representation_make_a_difference() -> None:
    known = templates()
    known.add(JSON, BODY, SPANS, "made")
    assert known.find(JSON, BODY + b" ") is None
    assert known.find(JSON, BODY[:-1]) is None
    assert known.find(MSGPACK, BODY) is None


def test_several_of_one_length() -> None:
    known = templates()
    bodies = [b"%d%d" % (number, number) for number in range(10, 20)]
    for body in bodies:
        known.add(JSON, body, [Span(0, 2)], body.decode())
    assert [known.find(JSON, b"??" + body[2:]) for body in bodies] == [None, None, *(b.decode() for b in bodies[2:])]


def test_those_not_used_are_forgotten() -> None:
    known = templates(most=2)
    one, two, three = b"1", b"22", b"333"
    known.add(JSON, one, [], "one")
    known.add(JSON, two, [], "two")
    known.find(JSON, one)
    known.add(JSON, three, [], "three")
    assert [known.find(JSON, body) for body in (one, two, three)] == ["one", None, "three"]


def test_large_ones_are_not_remembered() -> None:
    known = templates(most_bytes=20)
    known.add(JSON, BODY, [], "made")
    assert known.find(JSON, BODY) is None
    known.add(JSON, BODY, SPANS, "made")
    assert known.find(JSON, BODY) == "made"


def test_threads() -> None:
    known = templates(most=2)
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
