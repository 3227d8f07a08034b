"""Requests out of a connection's bytes: httptools' parser, made strict.

- A header is bounded in size (431, or 414 if its target is most of it), and so is what the parser keeps to itself of
  trailer fields and chunk extensions.
- Some malformed requests pass the parser: HTTP/0.9 and 2.0, no or two Host fields, one that names no host, transfer
  codings other than "chunked", trailer fields among the header fields of a request that is already running. Here they
  are refused.
- Blanks behind a field's value, which are none of it (RFC 9110, 5.5), the parser leaves there.
- Of a request with an Upgrade the parser drops the body, or takes it for the next request; here it is a body.
"""

import logging
import re
from functools import lru_cache
from typing import Protocol
from urllib.parse import unquote

import httptools
from starlette.exceptions import HTTPException

from app.http.core.headers import Headers
from app.http.core.headers import fields as by_name
from app.memory.buffers import Buffer

log = logging.getLogger("app.http")

MAX_FIELDS = 100
"""Of a header."""

_HEADER = 1 << 10
"""Bytes among which a header's end is looked for. A longer one comes in pieces."""

_HOST = re.compile(rb"(?:\[[\w:.%~-]+\]|(?:[\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?")
"""A name or an address, and a port (RFC 9110, 7.2): it may all be left out."""

_SHOWN = 80
"""Characters of a field's value that a refusal shows."""

_SHORTEST = len(b"GET / HTTP/1.1\r\nHost:")
"""Bytes before the blank line at the end of any header. Ends of line before a header are no blank line."""


class Receiver(Protocol):
    """What is told of requests. An exception that it raises is an HTTPException, or a fault that ends in one."""

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
        """A request's header is complete. `fields` are as they came, but for their names, which are in lower case, and
        `headers` the same by name. `length` is the body's, in bytes, or -1 for one in chunks."""

    def piece(self, data: bytes) -> None:
        """Some of its body."""

    def end(self) -> None:
        """It is complete."""


class Framing:
    """The requests of one connection, one after another.

    One that cannot be served is refused by an HTTPException: the connection ends with an answer that says so.
    """

    def __init__(self, receiver: Receiver, max_header_bytes: int) -> None:
        self._receiver = receiver
        self._max_header_bytes = max_header_bytes
        self.in_header = False
        """Whether a request has begun whose header is not complete."""
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._headers: dict[bytes, bytes] = {}
        """The same by name, as long as none has come twice."""
        self._is_upgrade = False
        # The parser keeps an unfinished field to itself. What it holds is bounded by counting the bytes of all reads
        # since the last one that brought a header to its end or a piece of a body.
        self._read_bytes = 0
        self._unfinished_bytes = 0
        self._header_reads = 0
        """Bytes of the reads that brought the header: it has no more."""
        self._progress = False
        self._parser = self._new_parser()
        self._raised: Exception | None = None
        """By what the parser calls. Its own error has this as context only where no other error is being handled. Each
        callback keeps it by itself: a wrapper around them would take a per cent of a small request."""

    def restart(self) -> None:
        """What comes next begins a request: a body that the parser waits for came another way."""
        self._parser = self._new_parser()

    def request_line(self) -> tuple[str, bytes]:
        """Method and target of the request whose header is not complete, as far as they are known, or else dashes."""
        known = self.in_header and self._url
        return (self._parser.get_method().decode("ascii"), self._url) if known else ("-", b"-")

    def stop(self) -> None:
        """The connection is over. It refers to this, and so does the parser."""
        del self._parser, self._receiver

    def feed(self, data: bytes | Buffer) -> None:
        """Take what was read, which is gone when this returns. Raises HTTPException."""
        self._read_bytes = len(data)
        self._header_reads += self._read_bytes
        self._progress = False
        rest = data
        try:
            while rest:
                try:
                    self._parser.feed_data(rest)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    self._feed_without_upgrade()
                    rest = memoryview(rest)[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            raised, self._raised = self._raised, None
            raise _why(raised or error) from None
        self._unfinished_bytes = 0 if self._progress else self._unfinished_bytes + len(data)
        if self._unfinished_bytes > self._max_header_bytes:
            raise self._header_too_large()
        if len(self._fields) > MAX_FIELDS:  # each takes many times what was sent of it
            raise _too_many(self._fields)

    # What the parser calls

    def on_message_begin(self) -> None:
        self.in_header = True
        self._header_reads = self._read_bytes
        self._is_upgrade = False
        self._url = b""
        self._fields, self._headers = [], {}

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name, value = name.lower(), value.rstrip(b" \t")
        self._fields.append((name, value))
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        try:
            self._complete_header()
        except Exception as error:
            self._raised = error
            raise

    def _complete_header(self) -> None:
        parser, fields = self._parser, self._fields
        version = parser.get_http_version()
        headers, length = self._check(version)
        self._progress = True
        method = parser.get_method().decode("ascii")
        if parser.should_upgrade():
            if method == "CONNECT":
                detail = "This server is not a proxy; send the request to it directly, without CONNECT."
                raise HTTPException(501, detail)
            self._is_upgrade = True  # it comes again, see _feed_without_upgrade
            return
        self.in_header = False
        path, raw_path, query = _target(self._url)
        keep_alive = version != "1.0" and parser.should_keep_alive()
        self._receiver.begin(method, path, raw_path, query, version, fields, headers, length, keep_alive)

    def on_body(self, body: bytes) -> None:
        self._progress = True
        try:
            self._receiver.piece(body)  # before it is fed without its Upgrade, a request has no body for the parser
        except Exception as error:
            self._raised = error
            raise

    def on_message_complete(self) -> None:
        try:
            if not self._is_upgrade:
                self._receiver.end()
        except Exception as error:
            self._raised = error
            raise

    def on_chunk_header(self) -> None:
        # The parser reports trailer fields as header fields. RFC 9110, 6.5.1: they may be discarded.
        self._fields, self._headers = [], {}

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # what comes then is dropped, not refused
        return parser

    def _feed_without_upgrade(self) -> None:
        """Feeds the header that was just received again, without its Upgrade.

        RFC 9110, 7.8 allows a server to ignore it, and it is not rare: Java's HttpClient offers to upgrade to HTTP/2
        unless told not to.
        """
        request_line = b"%b %b HTTP/%b" % (
            self._parser.get_method(),
            self._url,
            self._parser.get_http_version().encode(),
        )
        fields = [b"%b: %b" % field for field in self._fields if field[0] != b"upgrade"]
        # After a request with "Connection: close" the parser takes nothing more.
        self._parser = self._new_parser()
        self._parser.feed_data(b"\r\n".join([request_line, *fields, b"", b""]))

    def _check(self, version: str) -> tuple[Headers, int]:
        """The fields by name, and the announced length. Raises HTTPException for what the parser lets pass."""
        fields = self._fields
        if len(fields) > MAX_FIELDS:
            raise _too_many(fields)
        # The sum is needed only if the reads that brought the header, and perhaps more, were larger than the limit.
        if self._header_reads > self._max_header_bytes:
            size = len(self._url) + sum(len(name) + len(value) + len(": \r\n") for name, value in fields)
            if size > self._max_header_bytes:
                raise self._header_too_large()
        if version not in ("1.1", "1.0"):
            raise HTTPException(505, f"HTTP version {version} is not supported on this connection; use HTTP/1.1.")
        headers: Headers = self._headers
        hosts = 1 if b"host" in headers else 0
        if len(headers) < len(fields):  # some field came several times
            headers = by_name(fields)
            hosts = sum(name == b"host" for name, _ in fields)
        length = int(headers.get(b"content-length", 0))  # once and not beside chunked: the parser has seen to it
        coding = headers.get(b"transfer-encoding")
        if coding is not None:
            # That chunked comes last, and once, the parser has checked. Whether it is there at all it checks only
            # after this callback, when the request would be running already.
            if version == "1.0":
                raise HTTPException(400, "HTTP/1.0 has no Transfer-Encoding; send a Content-Length instead.")
            if coding.strip().lower() != b"chunked":
                raise HTTPException(
                    501, 'The only transfer coding supported is "chunked"; send the body without any other.'
                )
            length = -1
        if hosts != 1 and (hosts or version == "1.1"):
            raise HTTPException(400, f"The request has {hosts} Host header fields; send exactly one.")
        if hosts and not _names_host(headers[b"host"]):
            shown = headers[b"host"][:_SHOWN].decode("latin-1")
            raise HTTPException(400, f"Host is {shown}; send a name or an address, with a port or without.")
        return headers, length

    def _header_too_large(self) -> HTTPException:
        if self.in_header and 2 * len(self._url) > self._max_header_bytes:
            return HTTPException(
                414,
                f"The request's header is larger than {self._max_header_bytes} bytes, most of them its target; send a "
                "shorter one.",
            )
        return HTTPException(
            431, f"The request's header is larger than {self._max_header_bytes} bytes; send fewer or shorter fields."
        )


def _too_many(fields: list[tuple[bytes, bytes]]) -> HTTPException:
    return HTTPException(431, f"The request has {len(fields)} header fields; send at most {MAX_FIELDS}.")


def header_bytes(data: Buffer) -> int:
    """How many bytes of `data` are a header, or some of it, and no more than that."""
    beginning = bytes(data[:_HEADER])
    end = beginning.find(b"\r\n\r\n", _SHORTEST)
    return _HEADER if end < 0 else end + len(b"\r\n\r\n")


@lru_cache(256)
def _names_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None


@lru_cache(256)
def _target(url: bytes) -> tuple[str, bytes, bytes]:
    """The path decoded and as it came, and the query. Raises HttpParserInvalidURLError."""
    parsed = httptools.parse_url(url)
    raw_path = parsed.path or b"/"  # one that names a host may leave that out (RFC 9110, 4.2.3)
    path = raw_path.decode("ascii")
    return unquote(path) if "%" in path else path, raw_path, parsed.query or b""


def _why(error: Exception) -> HTTPException:
    match error:
        case HTTPException():
            return error
        case httptools.HttpParserInvalidURLError():
            return HTTPException(400, "The request target is not a valid URL; percent-encode its special characters.")
        case httptools.HttpParserInvalidMethodError():
            return HTTPException(400, "The request does not begin with a known method; send plain-text HTTP/1.1.")
        case MemoryError() | httptools.HttpParserCallbackError():  # nothing else fails in the parser's own part of one
            return HTTPException(503, "The system has no memory left for this request; try again.")
        case httptools.HttpParserError():
            return HTTPException(400, f"The request is not valid HTTP/1.1: {error}; correct it and send it again.")
    log.error("Exception in a parser callback", exc_info=error)
    return HTTPException(500, "The server failed to receive the request; report it if it happens again.")
