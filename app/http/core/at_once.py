"""Requests that are answered right where they have arrived.

A task, and ASGI's messages, cost more than a small dispatch itself and are of use only to a request that has to wait.
So our HTTP protocol first offers each request that came in one piece to the application, whose layers, ASGI
applications all, have a method `at_once` besides. A layer does there what it does otherwise and passes the request on,
or returns None: then the request goes the ordinary way, as if nothing had been. What is to be refused the ordinary way
refuses, which comes to the same conclusion. What fails once work has begun is answered 500 and not done again.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from starlette.types import Receive, Scope, Send

from app.codecs.codec import Body, Encoded
from app.http.core.headers import Headers


class Request(NamedTuple):
    """A request that has arrived, with the scope that it would have as an ASGI request.

    A body that can be written to is at the disposal of whoever answers.
    """

    scope: Scope
    headers: Headers
    body: Body


class Reply(NamedTuple):
    """An answer. `sent` is to be called once, when nearly all of it is sent or the client is gone."""

    headers: list[tuple[bytes, bytes]]
    content: Encoded
    sent: Callable[[], None]
    status: int = 200


class Prompt(Protocol):
    """An ASGI application that may answer at once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def at_once(self, request: Request) -> Reply | None:
        """The answer, or None, having done nothing. Raises what the ordinary way would not end well with either."""
