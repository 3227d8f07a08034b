"""One connection: requests in, answers out, in their order, each within its limits.

What a client may do and is held to:

- A header has a deadline and a limit (408, 431), and so has a client that does not read its answer.
- Errors are answered as RFC 9457 problems when their turn in the pipeline comes, and not lost to a TCP reset.
- Who only closes its sending side still gets its answers. Who is gone is noticed.
- While the server ends, what runs is answered, and so is what is on its way on a connection that seems idle.

Large bodies are received into the buffers of those who read them (`Exchange.fill`), and large answers sent, by threads
where there are processors for them (reader.py, sender.py, transfers.py). A request is handled in the turn of
the event loop in which it came, in step with those of others (turn.py), if it need not wait: no task is made for it.
uvicorn makes connections by `connections`; there are no WebSockets.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import InitVar, dataclass, field
from itertools import chain
from typing import Any

from starlette.exceptions import HTTPException
from uvicorn import Config
from uvicorn.server import ServerState

from app.http.core.answers import grouped
from app.http.core.exchange import JOINED, Address, Disconnected, Handler, RawHeaders, Reply, Request, resumed
from app.http.core.headers import Headers
from app.http.server.ahead import Ahead
from app.http.server.exchange import Exchange
from app.http.server.framing import Framing, header_bytes
from app.http.server.limit import RESERVE_SECONDS, ConnectionLimit
from app.http.server.reader import Reader
from app.http.server.replies import CLOSE, CONTINUE, failure, head_of
from app.http.server.scratch import HEADER, LARGE, READ, Scratch
from app.http.server.sender import Sender
from app.http.server.transfers import NO_THREADS, Transfers
from app.http.server.turn import Turn, fault
from app.http.server.watches import GONE_SECONDS, HALF_CLOSED_SECONDS, Deadline, Watch, has_gone
from app.memory.accounts import MemoryAccount
from app.memory.buffers import Buffer
from app.settings import Settings

log = logging.getLogger("app.http")

SHORT = 1 << 13
"""Bytes that are taken at once, whatever they are. They bring some hundred requests at most."""

CHUNK = 1 << 8
"""Bytes that the chunks of a read have on average, if the next one may bring as much as any."""

CRUMBS = 1 << 9
"""Bytes of a read where they have fewer. A usual one could bring fifty thousand chunks, each of which takes as long as
hundreds of bytes, and uvloop reads up to 32 times before anybody else has a turn."""

_NOTHING = memoryview(b"")

_NOBODY = asyncio.BufferedProtocol()
"""In the place of a connection that is over."""

LINGER_SECONDS = 1.0
"""How long a refused client may go on sending before the connection is cut, in seconds."""

LOCAL_SEND_BUFFER = 1 << 18
"""Bytes of an answer that the kernel takes at once for a client on this machine. Nothing is under way to it, and the
megabytes that the kernel would take have left the cache by the time the client copies them."""

_LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")

IDLE_SECONDS = 0.25
"""How long a server that ends still takes requests on idle connections, in seconds: one may be on its way already."""

_RESERVED = ("/health/", "/v2/health/", "/metrics")
"""What is answered on connections beyond the limit."""

_FULL = "The service has as many connections as max_connections allows; try again."

PIPELINED = 16
"""Requests that a connection has been sent and has not answered, from which on it reads no more, nor takes more of what
it has read: a read can bring 20,000, each of which takes memory."""

FEW = 2
"""The same where the account of all requests' memory is nearly full. Behind one that is being answered the connection
reads, or nobody would notice that its client has gone."""


@dataclass(eq=False, repr=False, slots=True)
class Connection(asyncio.BufferedProtocol):
    """One connection, which answers with `handler`. Its events come from the event loop's thread."""

    _handler: Handler
    _settings: Settings
    _limit: ConnectionLimit
    _state: ServerState
    loop: asyncio.AbstractEventLoop
    _turn: Turn
    _scratch: Scratch
    memory: InitVar[MemoryAccount]
    """Of all requests."""
    _transfers: Transfers = NO_THREADS
    transport: asyncio.Transport = field(init=False)
    _framing: Framing = field(init=False)
    _client: Address | None = None
    _server: Address | None = None
    _scheme: str = "http"
    _queue: deque[Exchange] = field(default_factory=deque)
    """Those that are not answered yet; the first one is in its handler's hands."""
    _further: Buffer | None = None
    """What was read and waits until some are answered. There is none where no request waits."""
    _ahead: Ahead = field(init=False)
    """What those take whose turn has not come."""
    _most: int = PIPELINED
    """Requests from which on it reads no more."""
    _newest: Exchange | None = None
    """Whose body is being received, or was the last to be."""
    _chunks: int = 0
    """Those that the last read brought."""
    _are_small: bool = False
    """So the next one is to bring few."""
    _is_ready: bool = False
    """For the next one to be begun at the end of this turn of the event loop."""
    _work: Coroutine[Any, Any, Reply] | None = None
    """The first one's, as long as it need not wait."""
    _waiting: bytes = b""
    """An answer, for others to be sent with."""
    _sent: list[Callable[[], None]] = field(default_factory=list)
    """What to call when all that was handed over is sent."""
    _is_served: bool = field(init=False)
    """With more than health and metrics."""
    _is_refused: bool = False
    """What comes now is dropped."""
    _is_ending: bool = False
    """When the answer that is being sent is complete."""
    _is_half_closed: bool = False
    """By the client, which still waits for answers."""
    _header_deadline: Deadline = field(init=False)
    _idle_deadline: Deadline = field(init=False)
    _rests_since: float = field(init=False)
    """On the loop's clock."""
    _end_deadline: Deadline = field(init=False)
    """When the server ends."""
    _hang_up_watch: Watch = field(init=False)
    _reader: Reader = field(init=False)
    _sender: Sender = field(init=False)

    def __post_init__(self, memory: MemoryAccount) -> None:
        self._ahead = Ahead(memory)
        self._header_deadline, self._idle_deadline, self._end_deadline = (Deadline(self.loop) for _ in range(3))

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as transports are
        self.transport = transport
        self._framing = Framing(self, self._settings.max_header_bytes)  # not before: some never come so far, by TLS
        self._hang_up_watch = Watch(transport, self.loop, GONE_SECONDS, has_gone)
        if transport.get_extra_info("sslcontext") is not None:
            self._scheme = "https"
            self._transfers = NO_THREADS  # what the socket carries is the transport's to encrypt
        seconds, transfers = self._settings.send_seconds, self._transfers
        self._reader = Reader(transport, self.loop, transfers, self._received_directly)
        self._sender = Sender(transport, self.loop, seconds, transfers, self._handed_over)
        self._state.connections.add(self)  # type: ignore[arg-type]  # of which uvicorn wants `shutdown` only
        self._is_served = self._limit.enter(self)
        self._client = _address(transport.get_extra_info("peername"))
        self._server = _address(transport.get_extra_info("sockname"))
        if self._client and self._client[0] in _LOOPBACK:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_SEND_BUFFER)
        self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._limit.leave(self)
        for deadline in (self._header_deadline, self._idle_deadline, self._end_deadline):
            deadline.stop()
        self._hang_up_watch.stop()
        # From here on nothing that it has refers to it. What refers to itself is not gone by itself, and connections
        # that lasted long would wait for a full collection by the hundred thousand.
        self._framing.stop()
        self._reader.stop()
        self._sender.stop()
        self._newest = None
        if self._turn.last is self:
            self._turn.last = None
        if self._scheme == "https":  # event loops' TLS, with half a MiB of buffers, keeps the methods that it reads by
            self.transport.set_protocol(_NOBODY)
        self._part()
        self._was_sent()

    def drop(self) -> None:
        """Cut it off."""
        self.transport.abort()

    def shutdown(self) -> None:
        """The server ends: what runs is answered, and so is what is on its way on a connection that seems idle."""
        self.send_waiting()
        if self._is_idle():
            self._end_deadline.start(IDLE_SECONDS, self._end_idle)
        elif self._further or not self._queue or self._queue[-1].is_answered:
            self._is_ending = True  # too late to say so in the answer: what the client sends after it is answered too
        else:
            self._queue[-1].keep_alive = False

    def _end_idle(self) -> None:
        if not self._is_idle():
            self.shutdown()
        elif not self.transport.is_closing():
            self._close_gently()

    def eof_received(self) -> bool:
        """The client sends no more. Whether the connection stays open for the answers that it still waits for."""
        stays = self._waits_for_answers()
        if not stays:
            self._sender.close()
        return stays

    def _waits_for_answers(self) -> bool:
        if not self.transport.can_write_eof():  # TLS, to which the end of one direction is that of both
            while self._is_ready:  # it may have come in one read with the requests before it
                self.step()
            self.send_waiting()
            return False
        self.send_waiting()
        if not self._queue:
            return False
        newest = self._queue[-1]
        if not newest.is_whole and newest.flaw is None:  # it will never be
            if newest.is_started:
                return False
            self._queue.pop()
            self._count_ahead()
            if not self._queue:
                return False
        self._is_half_closed = True
        self._hang_up_watch.start_after(HALF_CLOSED_SECONDS, self._probe)
        return True

    def _probe(self) -> None:
        if self._queue and not self._queue[0].is_answered and self._queue[0].version != "1.0":
            self.transport.write(CONTINUE)  # HTTP/1.0 has no interim responses

    def _is_idle(self) -> bool:
        """Whether no request waits for its answer, or for its rest."""
        return not self._queue and not self._framing.in_header

    # What is read

    def get_buffer(self, sizehint: int) -> Buffer:
        newest = self._newest
        if newest is None or not newest.is_direct:
            has_room = self._ahead.has_room()
            self._most = PIPELINED if has_room else FEW
            if self._are_small:
                return self._scratch.take(CRUMBS)
            takes_much = has_room and (newest is None or newest.announced <= LARGE)
            return self._scratch.take(READ if takes_much else HEADER)
        target = self._reader.buffer(newest)
        return self._scratch.take(min(newest.left, READ)) if target is None else target

    def buffer_updated(self, nbytes: int) -> None:
        newest = self._newest
        if newest is None or not newest.is_direct:
            self._chunks = 0
            self._received(self._scratch.view[:nbytes])
            self._are_small = (self._chunks - 1) * CHUNK > nbytes  # of one it may have brought an end only
            turn = self._turn
            # Large requests do not wait: those of many clients would all be there before memory is charged for one.
            self._be_ready(at_once=turn.last is self or nbytes > JOINED)
            turn.last = self
        else:
            self._reader.filled(newest, nbytes)

    def _received_directly(self, exchange: Exchange) -> None:
        exchange.is_direct = False
        self._framing.restart()
        self.end()
        self.want()

    def _received(self, data: Buffer) -> None:
        if self._is_refused:
            return  # lingering (see _close_gently), or behind the last request
        try:
            if len(data) > SHORT or self._further or self._most < PIPELINED:
                self._take(data)
            else:
                self._framing.feed(data)
        except HTTPException as error:
            self._refuse(error.status_code, error.detail)
        else:
            # A header that came in one read, as nearly all do, needs no timer.
            if self._framing.in_header:
                self._expect_header()
        if len(self._queue) > 1 or self._further:
            self._count_ahead()
            if len(self._queue) >= self._most:
                self.hold()

    def _count_ahead(self) -> None:
        self._ahead.count(self._queue, self._further)

    def _take(self, data: Buffer) -> None:
        """Take one header or body after another, until as many requests wait as may. Raises HTTPException."""
        further, self._further = self._further, None
        if further:  # to which TLS may have added some: it has more ready when it is told to stop
            data = memoryview(b"".join((further, data))) if data else further
        while data and not self._is_refused:
            newest = self._newest
            if newest is not None and not newest.is_whole:
                size = max(newest.left, 0) or SHORT  # it may come in chunks
            elif len(self._queue) < self._most:
                size = header_bytes(data)
            else:
                self._further = data if further else memoryview(bytes(data))
                return
            self._framing.feed(data[:size])
            data = data[size:]

    # What the framing calls

    def begin(
        self,
        method: str,
        path: str,
        raw_path: bytes,
        query: bytes,
        version: str,
        fields: RawHeaders,
        headers: Headers,
        length: int,
        keep_alive: bool,
    ) -> None:
        self._header_deadline.stop()
        exchange = self._newest = Exchange(self, method, path, version, length, keep_alive and self._is_served)
        scheme, client, server = self._scheme, self._client, self._server
        request = exchange.request = Request(
            method, path, raw_path, query, fields, exchange, headers, version, scheme, client, server
        )
        if not (self._is_served or path.startswith(_RESERVED)):
            request.flaw = HTTPException(503, _FULL)
        # Clients that know no more than HTTP/1.0 would take it for the answer (RFC 9110, 10.1.1).
        if b"expect" in headers and headers[b"expect"].lower() == b"100-continue" and version != "1.0":
            exchange.expects = True
        self._queue.append(exchange)

    def piece(self, data: bytes) -> None:
        if self._newest is not None:
            self._newest.expects = False
            self._newest.add(data)
            if self._newest.announced < 0:
                self._chunks += 1

    def end(self) -> None:
        if self._newest is not None:
            self._newest.end()
            self._header_deadline.stop()  # which ran for the rest of the body, if it was answered before
            if not self._newest.keep_alive:
                self._is_refused = True

    # What exchanges call

    def want(self) -> None:
        if len(self._queue) < self._most and not self._further:
            self._reader.want()

    def hold(self) -> None:
        self._reader.hold()

    def receive(self) -> None:
        if self._newest is not None:
            self._reader.receive(self._newest)

    def expect(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(CONTINUE)

    # Requests, one after another

    def _be_ready(self, *, at_once: bool = False) -> None:
        """Have what has its turn handled, unless it is already."""
        if self._queue and not self._queue[0].is_started and (at_once or not self._is_ready):
            self._is_ready = True
            self._turn.ready(self, is_large=self._queue[0].announced > JOINED, at_once=at_once)

    def step(self) -> bool:
        work, self._work = self._work, None
        if work is None:
            self._is_ready = False
            if not self._queue or self.transport.is_closing():
                return False
            if not self._sender.is_free():
                self._count_ahead()
                return False
            exchange = self._queue[0]
            if exchange.is_started:
                return False
            exchange.is_started = True
            if self._ahead.held:
                self._ahead.begin(exchange)
            if self._waiting:
                self.send_waiting()
                self.end_answer()
            request, exchange.request = exchange.request, None  # which is its handler's from now on
            assert request is not None, "it is handled once"
            work = self._handler(request)
        else:
            exchange = self._queue[0]
        try:
            waits_for = work.send(None)
        except StopIteration as done:
            reply: Reply = done.value
        except (Exception, asyncio.CancelledError) as error:  # of what is waited for, which others may wait for, too
            self._fail(exchange, error)
            return False
        else:
            if waits_for is None:
                self._work = work
                return True
            task = self.loop.create_task(self._wait(exchange, work, waits_for))
            self._state.tasks.add(task)
            task.add_done_callback(self._state.tasks.discard)
            return False
        self._answer(exchange, reply)  # which may take further requests: no place for that where one is handled
        return False

    async def _wait(self, exchange: Exchange, work: Coroutine[Any, Any, Reply], waits_for: object) -> None:
        try:
            self._answer(exchange, await resumed(work, waits_for))
        except BaseException as error:
            self._fail(exchange, error)
            if not isinstance(error, Exception):
                raise  # the server ends

    def _fail(self, exchange: Exchange, error: BaseException) -> None:
        """The handler raised, which is a fault unless the client is gone."""
        if not isinstance(error, Disconnected | asyncio.CancelledError):
            log.error("Exception in answering %s", exchange.path, exc_info=error)
        try:
            self._answer(exchange, failure())
        except Exception as another:  # as where there is no memory left to write it
            fault(self, another)

    # Answers

    def _answer(self, exchange: Exchange, reply: Reply) -> None:
        """Begin to send `reply`; what the client does not take now waits."""
        if self.transport.is_closing() or not self._queue or self._queue[0] is not exchange:
            reply.sent()  # nobody is there for it
            return
        exchange.answer()
        self._sent.append(reply.sent)
        headers = [*self._state.default_headers, *reply.headers]
        closes = CLOSE in headers
        if closes and len(self._queue) > 1 and CLOSE not in reply.headers:
            headers.remove(CLOSE)  # the server ends, but not before it has answered what has come
            closes = False
        # Who waited to be told to send a body may send it now, or go on without: what comes next could be either.
        if closes or (exchange.expects and not exchange.is_whole):
            exchange.keep_alive = False
        if not (closes or exchange.keep_alive):
            headers.append(CLOSE)
        head = head_of(reply, headers)
        if exchange.method == "HEAD":
            answer = head
        elif reply.length > JOINED:
            self._sender.send(grouped(chain((head,), reply.pieces)), reply.length, exchange.path)
            return
        else:
            answer = b"".join((head, *reply.pieces))
        if exchange.keep_alive:
            self._waiting = answer
            self._finish(exchange)
            self._turn.answered(self)
        else:
            self.transport.write(answer)
            self._finish(exchange)
            self.end_answer()

    def _handed_over(self) -> None:
        """All of a large answer is."""
        self._finish(self._queue[0])
        self.end_answer()

    def _finish(self, exchange: Exchange) -> None:
        """All of the answer to `exchange`, the first one, is handed over. What comes next?"""
        if self._further and exchange.keep_alive:
            self._received(_NOTHING)
            if self._is_ending and not self._further:
                self.shutdown()  # now that the last one is known that has come: the client may send on and on
        self._queue.popleft()
        self._state.total_requests += 1
        if not exchange.keep_alive:
            if exchange.is_whole and (exchange.is_last or self._is_half_closed):
                self._close()
            else:  # more of the body is on its way, or, since it is the server that ends, requests may be
                self._part()
                self._close_gently()
            return
        if self._reader.is_held and (self._newest is None or not self._newest.is_full()):
            self.want()
        if self._queue:
            self._be_ready()
        else:
            self._rest()

    def _part(self) -> None:
        """What is not answered will not be."""
        queue, self._queue, self._further = self._queue, deque(), None
        self._count_ahead()
        for exchange in queue:
            exchange.part()

    def _rest(self) -> None:
        """Everything is answered."""
        if self._is_half_closed:  # what is not whole will never be
            self.send_waiting()
            self._close()
        elif self._is_ending:
            self.shutdown()
        else:
            self._rests_since = self.loop.time()
            self._idle_deadline.start(self._settings.keep_alive_seconds, self._look_whether_idle)
            if self._newest is not None and not self._newest.is_whole:
                self._expect_header()  # for the rest of a body that nobody waited for, too

    def _look_whether_idle(self) -> None:
        """One timer for many requests: to set one for each takes longer than to look at the clock."""
        if self._is_idle():
            left = self._rests_since + self._settings.keep_alive_seconds - self.loop.time()
            if left <= 0:
                self._close()
            else:
                self._idle_deadline.start(left, self._look_whether_idle)

    def send_waiting(self) -> None:
        """Send the answer that waits for others, if there is one."""
        waiting, self._waiting = self._waiting, b""
        if waiting:
            self.transport.write(waiting)

    def end_answer(self) -> None:
        """Do what is to be done when nearly all of an answer is sent, if it is."""
        if self._sender.is_free():
            self._was_sent()

    def _was_sent(self) -> None:
        sent, self._sent = self._sent, []
        for each in sent:
            each()

    # Clients that do not read

    def pause_writing(self) -> None:
        self._sender.pause()

    def resume_writing(self) -> None:
        self._sender.resume()
        # In a turn of its own, since asyncio loses a connection twice that is closed in here.
        self.loop.call_soon(self._go_on_writing)

    def _go_on_writing(self) -> None:
        self._sender.go_on()
        self.end_answer()
        self._be_ready()

    # The deadline of a header

    def _expect_header(self) -> None:
        seconds = self._settings.header_seconds
        seconds = seconds if self._is_served else min(seconds, RESERVE_SECONDS)
        self._header_deadline.start(seconds, self._on_header_deadline)

    def _on_header_deadline(self) -> None:
        if self._reader.is_paused or not self._sender.is_free():
            self._expect_header()  # until earlier requests are answered we do not read; the client may be done
        elif self._framing.in_header:
            seconds = self._settings.header_seconds
            detail = f"The request's header was not complete after {seconds:g} seconds; send the whole request again."
            self._refuse(408, detail)
            self._be_ready(at_once=True)
        else:
            self._close()  # there is no request that an answer could belong to

    # Refusal

    def _refuse(self, status: int, detail: str) -> None:
        """Have the request that is being received refused in its turn, as any request is answered, and close."""
        log.warning("Refused a request: %d %s", status, detail)
        self._is_refused = True
        self._header_deadline.stop()
        newest = self._newest
        if newest is None or newest.is_whole:  # it is a header
            method, target = self._framing.request_line()
            raw_path, _, query = target.partition(b"?")
            self.begin(method, raw_path.decode("latin-1"), raw_path, query, "1.1", [], {}, 0, keep_alive=False)
            newest = self._newest
            assert newest is not None, "it has begun"
        elif newest.is_answered:
            # An answer that has begun cannot be replaced; cut short, it can at least be told from a whole one.
            if newest in self._queue:
                self._queue.remove(newest)
            newest.part()
            self._cut_short()
            return
        newest.spoil(HTTPException(status, detail))  # one that was raised would hold frames that hold the connection

    def _cut_short(self) -> None:
        if self.transport.is_closing():
            return  # the answer before this one was the last
        self.send_waiting()
        self._sender.cut()
        self._close_gently()

    def _close_gently(self) -> None:
        """Close a connection on which data may still arrive.

        To close its socket then would send a reset, at which the client's system may throw the answer away before the
        client has read it. So only our side is closed (RFC 9112, 9.6), and what arrives is dropped until the client
        closes too.
        """
        self._is_refused = True
        self.send_waiting()
        if not self.transport.can_write_eof():  # TLS
            self._close()
            return
        self.transport.write_eof()
        self.want()
        self.loop.call_later(LINGER_SECONDS, self._close)

    def _close(self) -> None:
        """Once the client has taken what is left for it, for which it has as long as for any answer."""
        if not self.transport.is_closing():
            self._sender.close()
            self.transport.close()


def connections(
    handler: Handler,
    settings: Settings,
    limit: ConnectionLimit,
    memory: MemoryAccount,
    transfers: Transfers = NO_THREADS,
) -> Any:
    """What makes the connections that answer with `handler`, for `uvicorn.Config(http=...)`. `memory` is what requests
    have."""

    turn, scratch = Turn(), Scratch()

    def connect(
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> Connection:
        loop = _loop or asyncio.get_running_loop()
        return Connection(handler, settings, limit, server_state, loop, turn, scratch, memory, transfers)

    return connect


def _address(given: object) -> Address | None:
    """Host and port, of a socket that has them."""
    return (str(given[0]), int(given[1])) if isinstance(given, tuple) else None
