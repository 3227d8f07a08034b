"""Headers judged by the framing of one connection: what is like the last one is known."""

import pytest
from starlette.exceptions import HTTPException

from app.http.core.headers import Headers
from app.http.server.framing import MAX_FIELDS, Framing, header_bytes

HOST, CHUNKED = b"Host: a\r\n", b"Transfer-Encoding: chunked\r\n"


class Received:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.headers: list[Headers] = []
        self.fields: list[list[tuple[bytes, bytes]]] = []
        self.lengths: list[int] = []
        self.keep_alive: list[bool] = []
        self.bodies: list[bytes] = []
        self.queries: list[bytes] = []
        self.ended = 0

    def begin(
        self,
        method: str,
        path: str,
        raw_path: bytes,
        query: bytes,
        version: str,
        fields: list[tuple[bytes, bytes]],
        headers: Headers,
        length: int,
        keep_alive: bool,
    ) -> None:
        self.queries.append(query)
        self.headers.append(headers)
        self.fields.append(fields)
        self.lengths.append(length)
        self.keep_alive.append(keep_alive)
        self.bodies.append(b"")

    def piece(self, data: bytes) -> None:
        self.bodies[-1] += data

    def end(self) -> None:
        self.ended += 1


def request(fields: bytes, version: bytes = b"1.1", body: bytes = b"") -> bytes:
    return b"POST / HTTP/%b\r\n%b\r\n%b" % (version, fields, body)


@pytest.fixture
def received() -> Received:
    return Received()


@pytest.fixture
def framing(received: Received) -> Framing:
    return Framing(received, 2048)


def test_fields_are_each_requests_own(framing: Framing, received: Received) -> None:
    for value in (b"1", b"1", b"2", b"1"):
        framing.feed(request(HOST + b"A: " + value + b"\r\nContent-Length: 1\r\n", body=b"x"))
    first, second, other, again = received.headers
    assert second is not first
    assert again == second == first == {b"host": b"a", b"a": b"1", b"content-length": b"1"}
    assert other == {b"host": b"a", b"a": b"2", b"content-length": b"1"}
    assert received.lengths == [1, 1, 1, 1]
    framing.feed(request(HOST))
    assert received.headers[-1] == {b"host": b"a"}


def test_blanks_around_a_value_are_none_of_it(framing: Framing, received: Received) -> None:
    """RFC 9110, 5.5."""
    framing.feed(request(b"Host:\t a \t\r\nA:  1 2 \t \r\nB: \r\nContent-Length: 1 \r\n", body=b"x"))
    assert received.headers == [{b"host": b"a", b"a": b"1 2", b"b": b"", b"content-length": b"1"}]
    assert (b"a", b"1 2") in received.fields[0]
    assert received.lengths == [1]


def test_line_ends_between_requests_belong_to_none(framing: Framing) -> None:
    """They are refused where there are too many, as those of nobody: not of the request before, which was complete."""
    framing.feed(b"GET /%b HTTP/1.1\r\n%b\r\n" % (b"a" * 1500, HOST))
    framing.feed(b"\r\n" * 1024)
    with pytest.raises(HTTPException, match="header is larger") as refused:
        framing.feed(b"\r\n")
    assert refused.value.status_code == 431
    assert framing.request_line() == ("-", b"-")


@pytest.mark.parametrize("beginning", [b"GET / HTTP/1.1\r\n", request(CHUNKED + HOST, body=b"0\r\n")])
def test_too_many_fields_are_refused_as_they_come(framing: Framing, beginning: bytes) -> None:
    """Of a header that is not complete, or behind a body: each takes much more memory than was sent of it."""
    framing.feed(beginning)
    framing.feed(b"a:\r\n" * MAX_FIELDS)
    with pytest.raises(HTTPException, match=f"{MAX_FIELDS + 1} header fields") as refused:
        framing.feed(b"a:\r\n" * 2)
    assert refused.value.status_code == 431


@pytest.mark.parametrize(
    "host", [b"", b"a", b"a:80", b"a:", b"a_b.c-d", b"%2Frun%2Fa.sock", b"1.2.3.4:5", b"[::1]:80", b"[fe80::1%25eth0]"]
)
def test_hosts_are_names_and_addresses(framing: Framing, received: Received, host: bytes) -> None:
    framing.feed(request(b"Host: " + host + b"\r\n"))
    assert received.headers == [{b"host": host}]


def test_trailer_fields_are_none_of_the_header(framing: Framing, received: Received) -> None:
    chunked = HOST + b"Transfer-Encoding: chunked\r\n"
    framing.feed(request(chunked, body=b"1\r\nx\r\n0\r\nA: 1\r\nHost: b\r\n\r\n"))
    framing.feed(request(HOST))
    assert received.headers == [{b"host": b"a", b"transfer-encoding": b"chunked"}, {b"host": b"a"}]
    assert received.fields[1] == [(b"host", b"a")]


def test_what_becomes_of_a_request_changes_nothing_for_the_next_one(framing: Framing, received: Received) -> None:
    framing.feed(request(HOST))
    received.fields[0].append((b"host", b"b"))
    framing.feed(request(HOST))
    assert received.fields[1] == [(b"host", b"a")]
    received.fields[1].append((b"host", b"b"))
    with pytest.raises(HTTPException, match="2 Host"):
        framing.feed(request(HOST + b"host: b\r\n"))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (HOST + HOST, "2 Host"),
        (HOST + b"Content-Length: x\r\n", "not valid HTTP/1.1"),
        (b"", "0 Host"),
        (HOST + b"A: a\r\n" * MAX_FIELDS, f"{MAX_FIELDS + 1} header fields"),
    ],
)
def test_another_one_is_judged_as_if_it_were_the_first(framing: Framing, fields: bytes, why: str) -> None:
    framing.feed(request(HOST))
    with pytest.raises(HTTPException, match=why):
        framing.feed(request(fields))


def test_the_same_fields_are_another_header_in_another_version(framing: Framing) -> None:
    framing.feed(request(HOST + CHUNKED, body=b"0\r\n\r\n"))
    with pytest.raises(HTTPException, match=r"HTTP/1\.0 has no Transfer-Encoding"):
        framing.feed(request(HOST + CHUNKED, b"1.0"))


def test_as_many_fields_and_bytes_as_may(framing: Framing, received: Received) -> None:
    framing.feed(request(HOST + b"A: a\r\n" * (MAX_FIELDS - 1)))
    for body in (b"", b"x" * 5000):
        length = b"Content-Length: %d\r\n" % len(body)
        rest = 2048 - len(b"/" + HOST + length + b"A: \r\n")
        framing.feed(request(HOST + length + b"A: " + b"a" * rest + b"\r\n", body=body))
    assert len(received.headers) == 3
    with pytest.raises(HTTPException, match="larger than 2048 bytes") as refusal:
        framing.feed(request(HOST + length + b"A: " + b"a" * (rest + 1) + b"\r\n", body=body))
    assert refusal.value.status_code == 431


def test_an_unfinished_header_is_as_long_as_one_may_be(framing: Framing) -> None:
    begun = b"GET / HTTP/1.1\r\nA: "
    framing.feed(begun)
    framing.feed(b"a" * (2048 - len(begun)))
    with pytest.raises(HTTPException, match="larger than 2048 bytes"):
        framing.feed(b"a")


def test_what_has_no_query_has_an_empty_one(framing: Framing, received: Received) -> None:
    for target in (b"/", b"/?", b"/?a=%20"):
        framing.feed(b"GET %b HTTP/1.1\r\n%b\r\n" % (target, HOST))
    assert received.queries == [b"", b"", b"a=%20"]


def test_a_header_is_as_long_as_it_is_however_it_comes(received: Received) -> None:
    """Not shorter by what the read brought in which it began."""
    length = b"Content-Length: 1000\r\n"
    for more, refused in ((0, False), (1, True)):
        header = request(HOST + b"A: " + b"a" * (2048 - len(b"/" + HOST + b"A: \r\n") + more) + b"\r\n")
        data = request(HOST + length, body=b"x" * 1000) + header
        for cut in range(len(data) - len(header) + 1, len(data), 100):
            framing = Framing(received, 2048)
            framing.feed(data[:cut])
            if refused:
                with pytest.raises(HTTPException, match="larger than 2048 bytes"):
                    framing.feed(data[cut:])
            else:
                framing.feed(data[cut:])


@pytest.mark.parametrize(
    ("version", "asked", "kept"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: close\r\n", False),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: keep-alive\r\n", False),
    ],
)
def test_how_long_a_connection_lasts(
    framing: Framing, received: Received, version: bytes, asked: bytes, kept: bool
) -> None:
    framing.feed(request(HOST + asked, version))
    assert received.keep_alive == [kept]


UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


@pytest.mark.parametrize("offer", [b"", UPGRADE])
@pytest.mark.parametrize(
    ("field", "sent", "length", "body"),
    [
        (b"", b"", 0, b""),
        (b"Content-Length: 4\r\n", b"body", 4, b"body"),
        (CHUNKED, b"4\r\nbody\r\n0\r\n\r\n", -1, b"body"),
    ],
)
def test_each_request_begins_and_ends_once(
    framing: Framing, received: Received, offer: bytes, field: bytes, sent: bytes, length: int, body: bytes
) -> None:
    for number in (1, 2, 3):
        framing.feed(request(HOST + offer + field, body=sent))
        assert (received.lengths, received.bodies, received.ended) == ([length] * number, [body] * number, number)


def test_hosts_of_http_1_0(framing: Framing, received: Received) -> None:
    """It need not have one, but has not two."""
    for fields in (b"", HOST):
        framing.feed(request(fields, b"1.0"))
        framing.restart()
    assert len(received.headers) == 2
    with pytest.raises(HTTPException, match="2 Host") as refusal:
        framing.feed(request(HOST + HOST, b"1.0"))
    assert refusal.value.status_code == 400


def test_a_fault_in_what_is_told_is_no_fault_of_the_clients(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(Received):
        def end(self) -> None:
            raise KeyError("name")

    with pytest.raises(HTTPException, match="The server failed to receive the request") as refusal:
        Framing(Faulty(), 2048).feed(request(HOST))
    assert refusal.value.status_code == 500
    (record,) = caplog.records
    assert record.getMessage() == "Exception in a parser callback"
    assert record.exc_info
    assert record.exc_info[0] is KeyError


@pytest.mark.parametrize("callback", ["piece", "on_header"])
def test_where_there_is_no_memory_left_a_request_is_none_the_worse(
    monkeypatch: pytest.MonkeyPatch, received: Received, callback: str
) -> None:
    """Be it for what is told of it, or for what the parser hands over: `on_header` stands for that."""

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Framing if callback == "on_header" else received, callback, fail)
    with pytest.raises(HTTPException, match="The system has no memory left") as refusal:
        Framing(received, 2048).feed(request(HOST + b"Content-Length: 1\r\n", body=b"x"))
    assert refusal.value.status_code == 503


@pytest.mark.parametrize("callback", ["begin", "piece", "end"])
@pytest.mark.parametrize("offer", [b"", UPGRADE])
def test_why_is_told_whatever_else_is_being_handled(received: Received, callback: str, offer: bytes) -> None:
    """As it is where an answer lets the next requests be taken, and where an Upgrade is left out."""

    def refuse(*_: object) -> None:
        raise HTTPException(503, "Why.")

    setattr(received, callback, refuse)
    try:
        raise StopIteration
    except StopIteration:
        with pytest.raises(HTTPException, match=r"^503: Why\.$"):
            Framing(received, 2048).feed(request(HOST + offer + b"Content-Length: 1\r\n", body=b"x"))


@pytest.mark.parametrize("before", [b"", b"\r\n\r\n\r\n\r\n"])
@pytest.mark.parametrize("fields", [b"Host:\r\n", HOST + b"A: a\r\n"])
def test_where_a_header_ends(before: bytes, fields: bytes) -> None:
    shortest = b"GET / HTTP/1.1\r\n%b\r\n" % fields
    assert header_bytes(memoryview(before + shortest + shortest)) == len(before + shortest)


def test_of_a_long_header_there_is_some() -> None:
    data = memoryview(request(HOST + b"A: " + b"a" * 9000 + b"\r\n") * 2)
    taken = header_bytes(data)
    assert 900 < taken < 9000
    while taken < len(data) // 2:
        taken += header_bytes(data[taken:])
    assert taken == len(data) // 2
