"""Who may ask: `Authorization: Bearer KEY` (RFC 6750), and what the key allows."""

import math

from app.codecs.codec import Body
from app.http.core.exchange import Handler, Incoming, Reply, Request
from app.http.core.keys import Key, Keys
from app.http.core.problems import Problem, Throttled, refused
from app.memory.accounts import LimitExceeded
from app.memory.buffers import Buffer

PAGE = "/"
OPEN = ("/health/", "/v2/health/", "/docs", "/operators", "/errors", "/openapi.json", "/static/")
"""Paths, and beginnings of paths, that need no key beside PAGE: they tell nothing of anyone, and probes and browsers
send none."""

DENIALS = ("key", "route")
"""What metrics call that no valid key came, and that it was for something else."""


def authenticating(handler: Handler, keys: Keys) -> Handler:
    """Middleware that lets those requests pass that have a valid key and are within what it allows.

    Others get 401, 403 or 429 before their body is read. A body in chunks, whose length nobody knows, is counted as it
    comes.
    """

    async def handle(request: Request) -> Reply:
        if request.path == PAGE or request.path.startswith(OPEN):
            return await handler(request)
        scheme, _, given = request.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if not given:
            return _denied(request, "An API key is required; send it as 'Authorization: Bearer KEY'.", "")
        if scheme.lower() != "bearer":
            return _denied(request, f"Authorization scheme {scheme[:40]} is not known; use Bearer.", "")
        key = keys.find(given.strip())
        if key is None:
            return _denied(request, "The API key is not valid.", ', error="invalid_token"')
        request.key = key.terms.name
        if not key.allows(request.method, request.path):
            detail = "The API key is not for this method and path; ask for what its routes are."
            return _denied(request, detail, ', error="insufficient_scope"', 403, "route")
        wait = key.usage.request(key.terms.requests_per_second)
        if wait:
            detail = f"The API key allows {key.terms.requests_per_second:g} requests a second; send this one later."
            return refused(request, Throttled(detail, math.ceil(wait)))
        if key.terms.bytes_in_flight == math.inf:
            return await handler(request)
        return await _counted(handler, request, key)

    return handle


async def _counted(handler: Handler, request: Request, key: Key) -> Reply:
    """What `handler`, which answers refusals, does, within the key's bytes in flight."""
    flight = _Flight(key)
    if request.body.announced < 0:
        request.body = _CountedBody(request.body, flight)
    else:
        try:
            flight.take(request.body.announced)
        except (Throttled, LimitExceeded) as error:
            return refused(request, error)
    try:
        reply = await handler(request)
    except BaseException:
        flight.end()
        raise
    flight.add(reply.length)
    sent = reply.sent

    def over() -> None:
        sent()
        flight.end()

    reply.sent = over
    return reply


class _Flight:
    """What one request takes of its key's bytes in flight."""

    __slots__ = ("_held", "_key")

    def __init__(self, key: Key) -> None:
        self._key = key
        self._held = 0

    def take(self, count: int) -> None:
        """Raises Throttled, or LimitExceeded if it were too much even without other requests."""
        most = int(self._key.terms.bytes_in_flight)
        if self._held + count > most:
            raise LimitExceeded("bytes-in-flight", "Bytes of the body", self._held + count, most)
        if self._key.usage.bytes + count > most:
            raise Throttled(f"The API key allows {most} bytes in flight, and others are; try again.")
        self.add(count)

    def add(self, count: int) -> None:
        """Whether there is room or not: the answer is made, and the next request will find less."""
        self._held += count
        self._key.usage.bytes += count

    def end(self) -> None:
        self._key.usage.bytes -= self._held
        self._held = 0


class _CountedBody:
    """Implements `Incoming`. Raises like `_Flight.take` too."""

    announced = -1

    def __init__(self, body: Incoming, flight: _Flight) -> None:
        self._body = body
        self._flight = flight

    @property
    def received(self) -> int:
        return self._body.received

    def whole(self) -> Body | None:
        body = self._body.whole()
        if body is not None:
            self._flight.take(len(body))
        return body

    async def read(self) -> bytes:
        piece = await self._body.read()
        self._flight.take(len(piece))
        return piece

    async def fill(self, buffer: Buffer) -> None:
        self._flight.take(len(buffer))
        await self._body.fill(buffer)

    async def hung_up(self) -> None:
        await self._body.hung_up()


def _denied(request: Request, detail: str, parameters: str, status: int = 401, reason: str = "key") -> Reply:
    request.refusal = reason
    challenge = {"WWW-Authenticate": f'Bearer realm="dmlserve"{parameters}'}
    return Problem(status, detail, headers=challenge).at(request.path)
