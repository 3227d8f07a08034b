"""GET documents: tags, 304, gzip; HEAD and OPTIONS everywhere."""

import asyncio
import gzip
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from app.codecs.codec import Encoded
from app.http.core.exchange import JOINED, Reply, Request
from app.http.core.kept import LEAST, telling
from app.http.core.problems import refusing
from app.http.core.routes import Given, pages, routed
from app.memory.accounts import MemoryAccount, MemoryExhausted
from tests.http.refusals import refusal_of
from tests.inference.wire import error_of

DOCUMENTS = [
    "/",
    "/docs",
    "/docs/assets/swagger-ui.css",
    "/errors",
    "/openapi.json",
    "/operators",
    "/operators.json",
    "/static/app.js",
    "/v1/graphs",
    "/v1/operators",
    "/v1/operators/ACTIVATION_CELU",
    "/v2",
    "/v2/models/activation_celu",
    "/v2/models/activation_celu/config",
]
LIVE = ["/health/live", "/v2/health/live", "/v2/health/ready", "/metrics"]
"""What is told of this moment, and kept by nobody."""

document = pytest.mark.parametrize("path", DOCUMENTS)
PLAIN = {"accept-encoding": "identity"}
MEMORY = MemoryAccount(1 << 20)


@document
def test_what_is_the_same_is_not_sent_again(client: httpx.Client, path: str) -> None:
    for coding in ("identity", "gzip"):
        found = client.get(path, headers={"accept-encoding": coding})
        assert (found.status_code, found.headers["cache-control"]) == (200, "no-cache")
        assert "accept-encoding" in found.headers["vary"].lower()
        tag = found.headers["etag"]
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = client.get(path, headers={"accept-encoding": coding, "if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            assert not {"content-type", "content-encoding", "content-length"} & again.headers.keys()
        assert client.get(path, headers={"accept-encoding": coding, "if-none-match": '"other"'}).status_code == 200


@document
def test_what_has_changed_is_not_told_to_who_means_the_old(client: httpx.Client, path: str) -> None:
    """RFC 9110, 13.1.1 and 13.2.2: If-Match comes before If-None-Match, and no weak tag is the one that is meant."""
    for coding in ("identity", "gzip"):
        plain = {"accept-encoding": coding}
        tag = client.get(path, headers=plain).headers["etag"]
        for method in ("GET", "HEAD"):
            for meant in (tag, f'"other", {tag}', "*"):
                assert client.request(method, path, headers=plain | {"if-match": meant}).status_code == 200
            both = client.request(method, path, headers=plain | {"if-match": tag, "if-none-match": tag})
            assert both.status_code == 304
            for meant in ('"other"', f"W/{tag}", ""):
                refused = client.request(method, path, headers=plain | {"if-match": meant, "if-none-match": tag})
                assert refused.status_code == 412
    if path.startswith("/v2"):
        assert tag in error_of(client.get(path, headers={"if-match": '"other"'} | plain), 412)
    else:
        problem = refusal_of(client.get(path, headers={"if-match": '"other"'} | plain), 412)
        assert problem["type"] == "/errors#changed"
        assert tag in problem["detail"]
    missing = client.get("/nothing", headers={"if-match": '"other"'})
    assert missing.status_code == 404  # of what is not there nothing can have changed


@pytest.mark.parametrize("path", [*DOCUMENTS, "/metrics"])
def test_what_is_long_is_compressed_for_those_who_take_that(client: httpx.Client, path: str) -> None:
    plain = client.get(path, headers=PLAIN)
    assert "content-encoding" not in plain.headers
    with client.stream("GET", path, headers={"accept-encoding": "br, gzip;q=0.5"}) as packed:
        raw = b"".join(packed.iter_raw())
    if len(plain.content) < LEAST and "content-encoding" not in packed.headers:
        return
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) == len(raw) < len(plain.content)
    if path != "/metrics":
        assert gzip.decompress(raw) == plain.content
        assert packed.headers["etag"] != plain.headers["etag"]
    for wish in ("gzip;q=0", "gzip;q=0.5, identity", "identity;q=0.6, gzip;q=0.5"):
        assert "content-encoding" not in client.get(path, headers={"accept-encoding": wish}).headers


@pytest.mark.parametrize("path", LIVE)
def test_what_is_of_this_moment_is_not_kept(client: httpx.Client, path: str) -> None:
    found = client.get(path, headers={"if-none-match": "*"})
    assert (found.status_code, found.headers["cache-control"]) == (200, "no-store")
    assert "etag" not in found.headers
    assert client.get(path, headers={"if-match": "*"}).status_code == 200
    assert client.get(path, headers={"if-match": '"some"'}).status_code == 412


@pytest.mark.parametrize("path", [*DOCUMENTS, *LIVE])
def test_head_and_options(client: httpx.Client, path: str) -> None:
    got, head = client.get(path, headers=PLAIN), client.head(path, headers=PLAIN)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    assert head.headers.get("etag") == got.headers.get("etag")
    options = client.options(path)
    assert (options.status_code, options.content) == (204, b"")
    allowed = "GET, HEAD, OPTIONS, POST" if path == "/v1/graphs" else "GET, HEAD, OPTIONS"
    assert options.headers["allow"] == allowed
    refused = client.put(path)
    assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
    wire = HTTPConnection(client.base_url.host, client.base_url.port or 80, timeout=30)
    for method, status in (("HEAD", 200), ("OPTIONS", 204), ("GET", 200)):  # a body would be read as the next answer
        wire.request(method, path)
        answer = wire.getresponse()
        answer.read()
        assert answer.status == status
    wire.close()


@pytest.mark.parametrize("path", ["/v1/dispatch", "/v1/operators/ACTIVATION_CELU/dispatch", "/v2/models/x/infer"])
def test_what_takes_tensors(client: httpx.Client, path: str) -> None:
    options = client.options(path)
    assert (options.status_code, options.headers["allow"]) == (204, "OPTIONS, POST")
    for method in ("GET", "HEAD", "DELETE"):
        refused = client.request(method, path)
        assert (refused.status_code, refused.headers["allow"]) == (405, "OPTIONS, POST")


def test_what_is_not_there(client: httpx.Client) -> None:
    refusal_of(client.options("/v1/nothing"), 404)
    assert client.head("/v1/operators/NOTHING").status_code == 404


def test_a_request_stays_what_it_is() -> None:
    """For the log and for metrics, while what answers GET is asked."""
    asked: list[str] = []

    async def answer(request: Request) -> Reply:
        asked.append(request.method)
        return Reply(200, [], Encoded(4, (b"text",)))

    body: Any = None
    for method in ("GET", "HEAD"):
        request = Request(method, "/", b"/", b"", [], body, {})
        assert asyncio.run(telling(answer, MEMORY)(request)).status == 200
        assert request.method == method
    assert asked == ["GET", "GET"]


def test_who_asks_which_methods_there_are_is_not_refused() -> None:
    there = pages()

    @there.get("/a")
    async def answer(request: Request, path: Given) -> Reply:
        raise AssertionError("nobody asks for it")

    body: Any = None
    request = Request("OPTIONS", "/a", b"/a", b"", [], body, {})
    reply = asyncio.run(refusing(telling(routed(there.routes), MEMORY))(request))
    assert (reply.status, reply.length, reply.headers) == (204, 0, [(b"allow", b"GET, HEAD, OPTIONS")])
    assert (request.refusal, request.route) == ("", "/a")


def test_a_long_one_has_its_place_in_memory_until_it_is_sent() -> None:
    """Clients that do not read it would fill the memory with it."""
    content = bytes(1 << 19)
    first, second = told(content)[0], told(content)[0]
    assert MEMORY.used == 1 << 20
    with pytest.raises(MemoryExhausted):
        told(content)
    short, _ = told(bytes(JOINED))
    for reply in (first, second, short):
        reply.sent()
    assert MEMORY.used == 0


def told(content: bytes, path: str = "/a", **headers: str) -> tuple[Reply, bytes]:
    """How `content` at `path` is told to who sends `headers`."""

    async def answer(request: Request) -> Reply:
        return Reply(200, [], Encoded(len(content), (content,)))

    body: Any = None
    fields = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    reply = asyncio.run(telling(answer, MEMORY)(Request("GET", path, path.encode(), b"", [], body, fields)))
    sent = b"".join(reply.pieces)
    assert reply.length == len(sent)  # nothing, of 304
    return reply, sent


@pytest.mark.parametrize(
    ("size", "path", "wish", "is_packed"),
    [
        (LEAST, "/a", "gzip", True),
        (LEAST - 1, "/a", "gzip", False),
        (LEAST, "/a", "identity, gzip", True),
        (LEAST, "/a", "gzip;q=0.4, identity;q=0.5", False),
        (LEAST, "/v2/a", "gzip", True),
        (LEAST, "/v2/a", "gzip, deflate", False),
        (LEAST, "/v2/a", "deflate", False),
    ],
)
def test_what_is_compressed(size: int, path: str, wish: str, is_packed: bool) -> None:
    content = bytes(size)
    reply, sent = told(content, path, accept_encoding=wish)
    assert ((b"content-encoding", b"gzip") in reply.headers) == is_packed
    assert (gzip.decompress(sent) if is_packed else sent) == content
    tag = dict(reply.headers)[b"etag"].decode()
    again, nothing = told(content, path, accept_encoding=wish, if_none_match=tag)
    assert (again.status, nothing) == (304, b"")


def test_what_is_asked_for_again_is_compressed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is the same at any time, in every process: else its tag would tell each of them that it has changed."""
    content = b"asked for again" * LEAST
    first, sent = told(content, accept_encoding="gzip")
    assert sent[4:8] == bytes(4)  # where gzip says when
    monkeypatch.delattr(gzip, "compress")
    again, same = told(content, accept_encoding="gzip")
    assert (again.headers, same) == (first.headers, sent)
