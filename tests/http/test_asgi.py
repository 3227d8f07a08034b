"""Handlers as ASGI applications."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from starlette.types import Message, Receive, Scope, Send

from app.codecs.codec import Encoded
from app.http.core.asgi import Application, AsgiBody
from app.http.core.exchange import JOINED, Disconnected, Reply, Request, in_task

T = TypeVar("T")

SCOPE: Scope = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "scheme": "http",
    "path": "/a b",
    "raw_path": b"/a%20b",
    "query_string": b"c=d",
    "headers": [(b"content-length", b"6"), (b"x", b"1"), (b"x", b"2")],
    "client": ("10.0.0.1", 1234),
    "server": ("127.0.0.1", 80),
}


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 5))


def messages(*pieces: bytes, more: bool = False) -> Receive:
    """What a server gives of a body in `pieces`; then the client hangs up."""
    last = len(pieces) - 1
    left = [
        {"type": "http.request", "body": piece, "more_body": more or number < last}
        for number, piece in enumerate(pieces)
    ]

    async def receive() -> Message:
        return left.pop(0) if left else {"type": "http.disconnect"}

    return receive


class TestBody:
    def test_is_read_in_its_pieces(self) -> None:
        async def read() -> tuple[list[bytes], int]:
            body = AsgiBody(-1, messages(b"ab", b"", b"cde", b"f"))
            return [await body.read() for _ in range(5)], body.received

        assert run(read()) == ([b"ab", b"cde", b"f", b"", b""], 6)

    @pytest.mark.parametrize("sizes", [[6], [1, 5], [3, 3], [2, 2, 2], [5, 1]])
    def test_fills_buffers_of_other_sizes(self, sizes: list[int]) -> None:
        async def fill() -> bytes:
            body = AsgiBody(6, messages(b"ab", b"cde", b"f"))
            buffers = [bytearray(size) for size in sizes]
            for buffer in buffers:
                await body.fill(memoryview(buffer))
            assert await body.read() == b""
            return b"".join(buffers)

        assert run(fill()) == b"abcdef"

    def test_what_a_buffer_had_no_room_for_is_read(self) -> None:
        async def read() -> bytes:
            body = AsgiBody(-1, messages(b"abcd", b"ef"))
            await body.fill(memoryview(bytearray(3)))
            return await body.read()

        assert run(read()) == b"d"

    @pytest.mark.parametrize("receive", [messages(b"ab", more=True), messages(b"ab")], ids=["hang up", "end"])
    def test_that_ends_too_soon_is_told(self, receive: Receive) -> None:
        with pytest.raises(Disconnected):
            run(AsgiBody(6, receive).fill(memoryview(bytearray(3))))

    def test_in_chunks_is_not_whole_if_the_client_hangs_up(self) -> None:
        async def read() -> None:
            body = AsgiBody(-1, messages(b"ab", more=True))
            assert await body.read() == b"ab"
            with pytest.raises(Disconnected):
                await body.read()

        run(read())

    def test_ends_with_a_message_that_does_not_say_that_there_is_more(self) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"ab"}

        async def read() -> list[bytes]:
            body = AsgiBody(-1, receive)
            return [await body.read(), await body.read()]

        assert run(read()) == [b"ab", b""]

    def test_tells_when_the_client_hangs_up_and_not_before(self) -> None:
        async def wait() -> list[str]:
            given = messages(b"ab", b"cd")
            types: list[str] = []

            async def receive() -> Message:
                message = await given()
                types.append(message["type"])
                return message

            await AsgiBody(4, receive).hung_up()
            return types

        assert run(wait()) == ["http.request", "http.request", "http.disconnect"]


class TestApplication:
    """A handler as an ASGI application."""

    def ask(self, reply: Reply) -> tuple[Request, list[Message]]:
        seen: list[Request] = []
        sent: list[Message] = []

        async def handler(request: Request) -> Reply:
            seen.append(request)
            return reply

        async def inner(scope: Scope, receive: Receive, send: Send) -> None:
            raise AssertionError("it is there for the lifespan")

        async def send(message: Message) -> None:
            sent.append(message)

        run(Application(handler, inner)(SCOPE, messages(b""), send))
        return seen[0], sent

    def test_is_asked_what_the_client_asks(self) -> None:
        request, _ = self.ask(Reply(204, [], Encoded(0, ())))
        assert (request.method, request.path, request.raw_path, request.query) == ("POST", "/a b", b"/a%20b", b"c=d")
        assert request.headers[b"x"] == b"1, 2"
        assert (request.client, request.body.announced) == (("10.0.0.1", 1234), 6)

    @pytest.mark.parametrize("size", [0, JOINED, JOINED + 1, 3 * JOINED, 5 << 20])
    def test_sends_all_of_an_answer_and_says_so(self, size: int) -> None:
        """In `bytes`: Ray Serve pickles what is sent, and servers keep it when its memory is another request's."""
        memory = bytearray(b"x" * (size // 2) + b"y" * (size - size // 2))
        given = bytes(memory)
        pieces = [memoryview(memory)[: size // 2], memoryview(memory)[size // 2 :]]
        headers = [(b"content-length", b"%d" % size)]
        said: list[str] = []

        def reused() -> None:
            said.append("sent")
            memory[:] = b"z" * size

        _, sent = self.ask(Reply(200, headers, Encoded(size, iter(pieces)), reused))
        start, *rest = sent
        assert start == {"type": "http.response.start", "status": 200, "headers": headers}
        assert all(type(message["body"]) is bytes for message in rest)
        assert b"".join(message["body"] for message in rest) == given
        assert (len(rest) == 1) == (size <= JOINED)
        assert [message["more_body"] for message in rest] == [True] * (len(rest) - 1) + [False]
        assert said == ["sent"]

    def test_its_lifespan_is_that_of_what_is_inside(self) -> None:
        asked: list[str] = []

        async def handler(_: Request) -> Reply:
            raise AssertionError("it is there for requests")

        async def inner(scope: Scope, receive: Receive, send: Send) -> None:
            asked.append(scope["type"])

        async def send(_: Message) -> None: ...

        run(Application(handler, inner)({"type": "lifespan"}, messages(), send))
        assert asked == ["lifespan"]


def test_what_wants_a_task_gets_one() -> None:
    """Where a handler is run without, and where it is in one already."""

    async def handler() -> "asyncio.Task[None] | None":
        await in_task()
        return asyncio.current_task()

    async def both() -> None:
        assert await handler() is asyncio.current_task()
        outside = handler()
        asyncio.get_running_loop().call_soon(lambda: waits_for.append(outside.send(None)))
        waits_for: list[object] = []
        await asyncio.sleep(0)
        assert waits_for != [None], "which would be a step"
        outside.close()

    run(both())
