"""uvicorn's httptools protocol, made strict: bounded headers, unambiguous framing, and problems for an answer.

What stock uvicorn leaves open and this module closes:

- A header may take forever and be of any size; here each has a deadline and a limit (408, 431).
- Errors are answered at once and in plain text, even in the middle of an earlier answer; here they are RFC 9457
  problems, given when their turn in the pipeline comes, and not lost to a TCP reset.
- The body of a request with an Upgrade is dropped, or parsed as the next request; here it is a body.
- A client that does not read its answer holds it in memory forever; here it has to take some of it now and then.
- Some malformed requests reach the application: HTTP/0.9 and 2.0, no or two Host fields, transfer codings other than
  "chunked", trailer fields among the header fields of a request that is already running.

Large bodies can be received into buffers of the application: see transfer.py. Brief requests may be answered without a
task: see at_once.py, and for answers to several clients batch.py.

The protocol is chosen with `uvicorn.Config(http=protocol_class(Limits(...)))`. It has no WebSockets.
"""

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, service_unavailable
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app.codecs.codec import Piece
from app.http.core.at_once import Reply, Request
from app.http.core.headers import fields
from app.http.core.transfer import HEADER, JOINED, LARGE, READ, RECEIVE_INTO, WHOLE_BODY, Disconnected, Receiver
from app.http.server.batch import batch
from app.http.server.cork import Cork
from app.http.server.limit import RESERVE_SECONDS, ConnectionLimit
from app.http.server.refusals import answered, over_concurrency_limit, problem
from app.memory.buffers import Buffer

_STATUS = {status: line.removesuffix(b"\r\n") for status, line in STATUS_LINE.items()}

LINGER_SECONDS = 1.0
"""How long a refused client may go on sending before the connection is cut, in seconds."""

LOCAL_SEND_BUFFER = 1 << 18
"""Bytes of an answer that the kernel takes at once for a client on this machine. Nothing is under way to it, and the
megabytes that the kernel would take have left the cache by the time the client copies them."""

_LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")

IDLE_SECONDS = 0.25
"""How long a server that ends still takes requests on idle connections, in seconds: one may be on its way already."""

HALF_CLOSED_SECONDS = 1.0
"""How long after a client's last byte to wait for the answer before finding out whether the client is still there."""

_GONE_SECONDS = 0.1
"""How often to look then, in seconds."""
_TCP_CLOSE = 7  # of Linux' tcp_info: the other side has reset the connection

_RESERVED = ("/health/", "/v2/health/", "/metrics")
"""What is answered on connections beyond the limit."""

_CLOSE = (b"connection", b"close")

LEAST_PROGRESS = 1 << 16
"""Bytes of an answer that waits for its client which the client must take within `send_seconds`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may ask of a connection before a request is handed to the application."""

    header_seconds: float = 10.0
    """From the first byte of a header, or from accept for the first one, to its end, in seconds.

    As long may a client go on sending a body after its request was answered.
    """
    max_header_bytes: int = 32 * 1024
    """Of the request line and all header fields together, and of the trailer fields, in bytes."""
    max_header_fields: int = 100
    send_seconds: float = 30.0
    """In which a client that does not keep up with its answer must take LEAST_PROGRESS of it."""
    connections: ConnectionLimit = field(default_factory=ConnectionLimit)
    """Of all connections together."""


class KnownHeader(NamedTuple):
    """The header of a request that was answered at once, and what the parser made of it.

    Clients send the same header again and again. One that is the same to the byte says the same.
    """

    header: bytes
    length: int
    """Of the header and the body, in bytes."""
    request: Request
    """Without its body."""

    def begins(self, data: bytes | Buffer) -> bool:
        """Whether it is what `data` begin with."""
        return bytes(data[: len(self.header)]) == self.header  # a view by itself is compared one byte at a time


class RequestError(Exception):
    """The request being received cannot be served. Raised in a parser callback, it ends the connection."""

    def __init__(self, status: int, detail: str) -> None:
        """`detail` is one sentence that the client's author can act on."""
        super().__init__(detail)
        self.status = status
        self.detail = detail


class StrictHttpProtocol(HttpToolsProtocol):
    """One connection.

    Whatever goes wrong while a request is received ends in `_refuse`.
    """

    # CPython keeps at most 30 attributes of an instance where it finds them fast, and uvicorn uses nearly all of them.
    __slots__ = (
        "_announced",
        "_answered",
        "_at_once",
        "_body_left",
        "_descriptor",
        "_ending",
        "_feeding",
        "_gone_timer",
        "_half_closed",
        "_header_timer",
        "_held",
        "_idle_timer",
        "_is_first_read",
        "_is_served",
        "_known",
        "_last_answer",
        "_progress",
        "_read_bytes",
        "_receiver",
        "_refused",
        "_running",
        "_send_timer",
        "_sent",
        "_unfinished_bytes",
        "_unsent_bytes",
        "_waiting",
    )

    limits: ClassVar[Limits] = Limits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._header_timer: asyncio.TimerHandle | None = None
        self._is_served = True  # with more than health and metrics
        self._idle_timer: asyncio.TimerHandle | None = None  # when the server ends
        self._ending = False  # when the answer that is being sent is complete
        self._half_closed = False  # by the client, which still waits for answers
        self._gone_timer: asyncio.TimerHandle | None = None
        self._refused = False
        self._last_answer = b""  # to the refused request, while its predecessors are still being answered

        # The parser keeps an unfinished field to itself. What it holds is bounded by counting the bytes of all reads
        # since the last one that brought a header to its end or a piece of a body.
        self._read_bytes = 0
        self._unfinished_bytes = 0
        self._progress = False

        self._at_once: Callable[[Request], Reply | None] | None = getattr(config.app, "at_once", None)
        self._feeding = False  # the parser
        self._answered: Request | None = None  # at once, in this read
        self._known: KnownHeader | None = None
        self._held: ASGI3Application | None = None  # what to start for the newest request unless it is answered at once
        self._running: RequestResponseCycle | None = None  # in the application
        self._descriptor = -1  # of the socket, unless what is sent is to be encrypted
        self._waiting = b""  # an answer, for others to be sent with
        self._sent: Callable[[], None] | None = None  # what to call when the answer is sent

        self._is_first_read = False  # of the body: the application was not called yet
        self._announced = 0  # bytes of the newest body
        self._body_left = 0  # those that did not arrive yet
        self._receiver = Receiver(self)  # what the transport calls

        self._send_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0  # when that timer was started

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        transport.set_protocol(self._receiver)
        self._is_served = self.limits.connections.enter(self)
        connected = transport.get_extra_info("socket")
        if transport.get_extra_info("sslcontext") is None:
            self._descriptor = connected.fileno()
        if self.client and self.client[0] in _LOOPBACK:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_SEND_BUFFER)
        self._start_header_timer()

    def drop(self) -> None:
        self.transport.abort()

    def shutdown(self) -> None:
        """The server ends: what runs is answered, and so is what is on its way on a connection that seems idle."""
        self.send_waiting()
        cycle = self.cycle
        if self._is_answered():
            self._idle_timer = self.loop.call_later(IDLE_SECONDS, self._end_idle)
        elif cycle is not None and cycle.response_started and cycle.keep_alive:
            self._ending = True  # too late to say so in the answer: what the client sends after it is answered as well
        else:
            super().shutdown()

    def _end_idle(self) -> None:
        self._idle_timer = None
        if not self._is_answered():
            super().shutdown()
        elif not self.transport.is_closing():
            self._refused = True  # what comes now is dropped
            self._close_gently()

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it
        """The client sends no more. Whether the connection stays open for the answers that it still waits for."""
        self.send_waiting()
        newest = self.cycle
        if newest is None or newest.response_complete:
            return False
        if newest.more_body and not self._in_header():  # it will never be whole
            if not (self.pipeline and self.pipeline[0][0] is newest):
                return False
            self.pipeline.popleft()
        self._half_closed = True
        if self._gone_timer is None:
            self._gone_timer = self.loop.call_later(HALF_CLOSED_SECONDS, self._ask_whether_gone)
        return True

    def _ask_whether_gone(self) -> None:
        """A client that hung up and one that only sends no more look alike until something is sent to them.

        To an interim response the system of one that hung up answers with a reset; any other client skips it (RFC 9110,
        15.2). HTTP/1.0 has none.
        """
        running = self._running
        if running and not running.response_started and running.scope["http_version"] != "1.0":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._gone_timer = self.loop.call_later(_GONE_SECONDS, self._look_whether_gone)

    def _look_whether_gone(self) -> None:
        connected = self.transport.get_extra_info("socket")
        if connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE:
            self.transport.abort()
        else:
            self._gone_timer = self.loop.call_later(_GONE_SECONDS, self._look_whether_gone)

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.connections.leave(self)
        for timer in (self._idle_timer, self._gone_timer):
            if timer is not None:
                timer.cancel()
        self._stop_header_timer()
        self._stop_send_timer()
        self._was_sent()
        super().connection_lost(exc)
        running = self._running  # uvicorn tells the newest request only, which may wait behind this one
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()

    @property
    def read_bytes(self) -> int:
        """How much to read at once."""
        return HEADER if self._announced > LARGE else READ

    def data_received(self, data: bytes | Buffer) -> None:
        """`data` are gone when this returns: what is kept of them is copied."""
        if self._refused:
            return  # lingering: see _answer_and_close
        self._unset_keepalive_if_required()
        begins_request = self._between_requests()
        if begins_request and self._answer_known(data):
            return
        last_scope = self.scope
        self._is_first_read = False
        self._read_bytes = len(data)
        self._progress = False
        self._feeding = True
        rest = data
        try:
            while rest:
                try:
                    self.parser.feed_data(rest)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    self._feed_without_upgrade()
                    rest = memoryview(rest)[upgrade.args[0] :]
            self._unfinished_bytes = 0 if self._progress else self._unfinished_bytes + len(data)
            if self._unfinished_bytes > self.limits.max_header_bytes:
                raise self._header_too_large()
        except httptools.HttpParserError as error:
            self._refuse(self._why(error))
        except RequestError as error:
            self._refuse(error)
        else:
            # A header that came in one read, as nearly all do, needs no timer.
            if self._in_header():
                if last_scope is not None and last_scope is not self.scope:
                    self._stop_header_timer()  # it began in this read and is not the connection's first
                self._start_header_timer()
            # uvicorn's keep-alive timer, stopped above, is started by the end of a response only. What comes later, an
            # empty line or the rest of a body that the application did not wait for, must not leave us without any.
            elif self.cycle is not None and self.cycle.response_complete and self.timeout_keep_alive_task is None:
                self._start_header_timer()
            if self._answered and begins_request and self._between_requests():
                self._remember(self._answered, data)
        finally:
            self._feeding = False
            self._answered = None
            self._start_held()

    # The request

    def on_headers_complete(self) -> None:
        self._check_header()
        super().on_headers_complete()
        self._stop_header_timer()
        self._progress = True
        if self.cycle is not None and self.cycle.scope is self.scope:  # else it is an Upgrade, and comes again
            self._is_first_read = True
            # The parser has seen to it that the field is there once, is a number and is not beside chunked.
            self._announced = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
            self._body_left = self._announced
            if not self._is_served:
                self.cycle.keep_alive = False
            if self._announced > LARGE:
                extensions: Any = {RECEIVE_INTO: functools.partial(self._receive_into, self.cycle)}
                self.scope["extensions"] = extensions

    def on_body(self, body: bytes) -> None:
        self._progress = True
        self._body_left -= len(body)
        cycle = self.cycle
        if cycle.body or cycle.response_complete or self.parser.should_upgrade():
            super().on_body(body)
            return
        # As uvicorn does, but the first piece is taken as it is instead of being copied twice.
        cycle.body = body  # type: ignore[assignment]  # not a bytearray, but uvicorn only adds to it
        if len(body) > HIGH_WATER_LIMIT and self._held is None:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._is_first_read and self.cycle.scope is self.scope and len(self.cycle.body) <= LARGE:
            scope: Any = self.scope  # of uvicorn's type, which is Starlette's in more detail
            body = bytes(self.cycle.body)
            if self._held is self.app:
                request = Request(scope, fields(scope["headers"]), body)
                if self._answer_at_once(request):
                    self._held = None
                    self._answered = request
                    self.cycle.body = bytearray()  # or it would be kept until the next request
                    return
            scope["extensions"] = {WHOLE_BODY: body}
        self._start_held()

    def _between_requests(self) -> bool:
        """Whether the next byte begins a request, for certain, with nothing left to do for the one before."""
        cycle = self.cycle
        if cycle is None:
            return self.scope is None and self._unfinished_bytes == 0
        answered = cycle.response_complete and not cycle.more_body
        return answered and cycle.scope is self.scope and self._unfinished_bytes == 0

    def _is_answered(self) -> bool:
        """Whether no request waits for its answer, or for its rest."""
        return not self._in_header() and (self.cycle is None or self.cycle.response_complete)

    def _remember(self, request: Request, data: bytes | Buffer) -> None:
        """Remembers the header of `request`, the last one in `data`."""
        header = _header_of(data, len(request.body))
        if header and b"content-length" in request.headers:  # else it had chunks
            self._known = KnownHeader(header, len(data), request._replace(body=b""))

    def _answer_known(self, data: bytes | Buffer) -> bool:
        """Whether `data` are a request with the known header, and were answered at once. The parser does not see it."""
        known = self._known
        if known is None or len(data) != known.length or not known.begins(data):
            return False
        scope = {**known.request.scope, "state": self.app_state.copy()}
        body = memoryview(bytearray(data[len(known.header) :]))  # the request's own until its answer is sent
        return self._answer_at_once(Request(scope, known.request.headers, body))

    def _answer_at_once(self, request: Request) -> bool:
        """Whether the application had an answer to `request`."""
        if self._waiting:
            self.send_waiting()
            self.end_answer()
        if len(request.body) > JOINED:
            batch.send()  # it takes its time
        cycle = self.cycle
        if self._at_once is None or self.flow.write_paused or self.transport.is_closing():
            return False
        reply = self._at_once(request)
        if reply is None:
            return False
        headers = [*self.server_state.default_headers, *reply.headers]
        cycle.keep_alive = cycle.keep_alive and _CLOSE not in headers
        if not cycle.keep_alive and _CLOSE not in headers:
            headers.append(_CLOSE)
        pieces = [b"\r\n".join([_STATUS[reply.status], *map(b": ".join, headers), b"", b""]), *reply.content.pieces]
        cycle.response_started = cycle.response_complete = True
        self._sent = reply.sent
        if cycle.keep_alive and reply.content.length <= JOINED:
            self._waiting = b"".join(pieces)
            batch.add(self)
        else:
            self._send(pieces)
            self.end_answer()
            if not cycle.keep_alive:
                self.transport.close()
        self.on_response_complete()
        return True

    def send_waiting(self) -> None:
        """Send the answer that waits for others, if there is one."""
        waiting, self._waiting = self._waiting, b""
        if waiting:
            self.transport.write(waiting)

    def end_answer(self) -> None:
        """Do what is to be done when nearly all of an answer is sent, if it is."""
        if not self.flow.write_paused:
            self._was_sent()

    def _send(self, pieces: list[Piece]) -> None:
        """Sends `pieces`, which belong to the request. What is not taken now the transport holds until it is."""
        length = sum(map(len, pieces))
        sent = 0
        if length > JOINED and self._descriptor >= 0 and self.transport.get_write_buffer_size() == 0:
            with contextlib.suppress(OSError):  # the transport will meet it, too
                sent = os.writev(self._descriptor, pieces)
        if sent < length:
            self.transport.writelines(_after(sent, pieces))

    def _was_sent(self) -> None:
        if self._sent:
            sent, self._sent = self._sent, None
            sent()

    async def _receive_into(self, cycle: RequestResponseCycle, buffer: Buffer) -> None:
        """What the extension RECEIVE_INTO is for the request of `cycle`."""
        at_hand = min(len(cycle.body), len(buffer))
        buffer[:at_hand] = cycle.body[:at_hand]
        cycle.body = cycle.body[at_hand:]
        if at_hand == len(buffer):
            return
        if cycle.disconnected:
            raise Disconnected
        if not self._receiver.left:
            self._receiver.begin_body(self._body_left)
        await self._receiver.fill(buffer[at_hand:])

    def end_body(self) -> None:
        """Goes on after a large body, all of which the receiver has got."""
        self._body_left = 0
        # The old parser still waits for a body. What comes now begins a request.
        self.parser = self._new_parser()
        self._unfinished_bytes = 0
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn
        return parser

    def on_chunk_header(self) -> None:
        # The parser reports trailer fields as header fields, and uvicorn would add them to those of the request that
        # the application is already looking at. RFC 9110, 6.5.1: they may be discarded.
        self.headers = []

    def _should_upgrade(self) -> bool:
        # Asked only for a request with an Upgrade, of which the parser skips the body. uvicorn would start it without
        # its body, and have the body parsed as the next request. With this answer uvicorn does not start it at all.
        return True

    def _feed_without_upgrade(self) -> None:
        """Feeds the header that was just received again, without its Upgrade.

        RFC 9110, 7.8 allows a server to ignore it, and it is not rare: Java's HttpClient offers to upgrade to HTTP/2
        unless told not to.
        """
        request_line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        fields = [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        # After a request with "Connection: close" the parser takes nothing more.
        self.parser = self._new_parser()
        self.parser.feed_data(b"\r\n".join([request_line, *fields, b"", b""]))

    def _check_header(self) -> None:
        """Raises RequestError for what the parser lets pass, before the application gets to see it."""
        limits = self.limits
        headers = self.headers
        if len(headers) > limits.max_header_fields:
            raise RequestError(
                431, f"The request has {len(headers)} header fields; send at most {limits.max_header_fields}."
            )
        # The sum is needed only if the reads that brought the header, and perhaps more, were larger than the limit.
        if self._unfinished_bytes + self._read_bytes > limits.max_header_bytes:
            size = len(self.url) + sum(len(name) + len(value) + len(": \r\n") for name, value in headers)
            if size > limits.max_header_bytes:
                raise self._header_too_large()

        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise RequestError(505, f"HTTP version {version} is not supported on this connection; use HTTP/1.1.")
        hosts = 0
        for name, value in headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding":
                # That chunked comes last, and once, the parser has checked. Whether it is there at all it checks only
                # after this callback, when the application would be running already.
                if version == "1.0":
                    raise RequestError(400, "HTTP/1.0 has no Transfer-Encoding; send a Content-Length instead.")
                if value.strip().lower() != b"chunked":
                    raise RequestError(
                        501, 'The only transfer coding supported is "chunked"; send the body without any other.'
                    )
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            raise RequestError(400, f"The request has {hosts} Host header fields; send exactly one.")
        if self.parser.should_upgrade() and self.parser.get_method() == b"CONNECT":
            raise RequestError(501, "This server is not a proxy; send the request to it directly, without CONNECT.")
        if not self._is_served and not self.url.decode("latin-1").startswith(_RESERVED):
            raise RequestError(503, "The service has as many connections as max_connections allows; try again.")
        if not self.url.startswith(b"/") and httptools.parse_url(self.url).path is None:
            raise RequestError(400, 'The request target has no path; add one that starts with "/".')

    def _header_too_large(self) -> RequestError:
        return RequestError(
            431,
            f"The request's header is larger than {self.limits.max_header_bytes} bytes; send fewer or shorter fields.",
        )

    # The deadline of a header

    def _in_header(self) -> bool:
        """Whether a request has begun whose header is not complete."""
        # uvicorn creates the scope when a request begins, and its cycle when the header is complete.
        return self.scope is not None and (self.cycle is None or self.cycle.scope is not self.scope)

    def _start_header_timer(self) -> None:
        if self._header_timer is None:
            seconds = self.limits.header_seconds
            if not self._is_served:
                seconds = min(seconds, RESERVE_SECONDS)
            self._header_timer = self.loop.call_later(seconds, self._on_header_deadline)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_header_deadline(self) -> None:
        self._header_timer = None
        if self.flow.read_paused:
            self._start_header_timer()  # until earlier requests are answered we do not read; the client may be done
        elif self._in_header():
            seconds = self.limits.header_seconds
            self._refuse(
                RequestError(
                    408,
                    f"The request's header was not complete after {seconds:g} seconds; send the whole request again.",
                )
            )
        else:
            self.transport.close()  # there is no request that an answer could belong to

    # The deadline of an answer

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_send_timer()
        self._start_send_timer()

    def resume_writing(self) -> None:
        self._stop_send_timer()
        self._was_sent()
        super().resume_writing()

    def _start_send_timer(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._send_timer = self.loop.call_later(self.limits.send_seconds, self._on_send_deadline)

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _on_send_deadline(self) -> None:
        if self._unsent_bytes - self.transport.get_write_buffer_size() < LEAST_PROGRESS:
            seconds = self.limits.send_seconds
            self.logger.warning("Dropped a client that took nothing of its answer for %g seconds", seconds)
            self.transport.abort()
        else:
            self._start_send_timer()

    # Refusal

    def _why(self, error: httptools.HttpParserError) -> RequestError:
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
        match cause:
            case RequestError():
                return cause
            case httptools.HttpParserInvalidURLError():
                return RequestError(
                    400, "The request target is not a valid URL; percent-encode its special characters."
                )
            case httptools.HttpParserInvalidMethodError():
                return RequestError(400, "The request does not begin with a known method; send plain-text HTTP/1.1.")
            case httptools.HttpParserError():
                return RequestError(400, f"The request is not valid HTTP/1.1: {cause}; correct it and send it again.")
        self.logger.error("Exception in a parser callback", exc_info=cause)
        return RequestError(500, "The server failed to receive the request; report it if it happens again.")

    def _refuse(self, error: RequestError) -> None:
        """Answers the request being received, once its predecessors on the connection are answered, and closes."""
        self.logger.warning("Refused a request: %d %s", error.status, error)
        self._refused = True
        self._stop_header_timer()

        headers, body = problem(error.status, error.detail)
        fields = [b"%b: %b\r\n" % field for field in [*self.server_state.default_headers, *headers]]
        answer = b"".join([STATUS_LINE[error.status], *fields, b"\r\n", body])

        newest = self.cycle  # of the refused request itself if it is its body that is being received
        if newest is None:
            self._answer_and_close(answer)
        elif self._in_header() or not newest.more_body:
            if newest.response_complete:
                self._answer_and_close(answer)
            else:
                self._last_answer = answer
        elif self.pipeline and self.pipeline[0][0] is newest:
            self.pipeline.popleft()  # the application has not seen it and will not
            self._last_answer = answer
        else:
            newest.disconnected = True
            newest.message_event.set()
            # A response that has begun cannot be replaced; cut short, it can at least be told from a whole one.
            self._answer_and_close(b"" if newest.response_started else answer)

    def on_response_complete(self) -> None:
        none_waiting = not self.pipeline
        super().on_response_complete()
        if not none_waiting:
            return
        if self._last_answer:
            self._answer_and_close(self._last_answer)
        elif self._half_closed and self._is_answered():
            self.send_waiting()
            self.transport.close()
        elif self._ending:
            self._ending = False
            self.shutdown()

    def _answer_and_close(self, answer: bytes) -> None:
        if self.transport.is_closing():
            return  # the response before this one was the last
        self.send_waiting()
        self.transport.write(answer)
        self._close_gently()

    def _close_gently(self) -> None:
        """Close a connection on which data may still arrive.

        To close its socket then would send a reset, at which the client's system may throw the answer away before the
        client has read it. So only our side is closed (RFC 9112, 9.6), and what arrives is dropped until the client
        closes too.
        """
        if not self.transport.can_write_eof():  # TLS
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    # Answers in the application's place

    def _start_held(self) -> None:
        """Starts the request whose header was just received, as it is not answered at once."""
        if self._held:
            app, self._held = self._held, None
            if len(self.cycle.body) > HIGH_WATER_LIMIT and not self._refused:
                self.flow.pause_reading()
            self._start(self.cycle, app)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self._feeding:
            self._held = app  # until its body has come too, or all that was read is parsed
        else:
            self._start(cycle, app)

    def _start(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        if app is service_unavailable:
            app = over_concurrency_limit
        cork = Cork(cycle.transport)
        cycle.transport = cork  # type: ignore[assignment]  # it has what a cycle uses
        cycle.on_response = functools.partial(self._on_response, cork)
        super()._start_asgi_task(cycle, functools.partial(answered, app, cycle))

    def _on_response(self, cork: Cork) -> None:
        cork.flush()  # the answer to HEAD has nothing that would have followed
        self.on_response_complete()


def _header_of(data: bytes | Buffer, body_bytes: int) -> bytes:
    """The header of the request that `data` begin with, and of whose body they have `body_bytes`; empty if unsure."""
    header = bytes(data[: len(data) - body_bytes])
    # If there were other requests before it, or empty lines, this is not its header.
    return header if header.find(b"\r\n\r\n") == len(header) - 4 else b""


def _after(sent: int, pieces: list[Piece]) -> Iterator[Buffer]:
    """What there is to send of `pieces` when the first `sent` bytes are sent."""
    for piece in pieces:
        if sent < len(piece):
            yield memoryview(piece)[sent:]
        sent = max(sent - len(piece), 0)


def protocol_class(limits: Limits) -> type[StrictHttpProtocol]:
    """The protocol with these limits, for `uvicorn.Config(http=...)`, which takes a class."""
    return type("LimitedHttpProtocol", (StrictHttpProtocol,), {"limits": limits})
