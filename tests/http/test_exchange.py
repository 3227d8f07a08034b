"""A request's body on its way from the connection to who reads it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from app.http.core.exchange import JOINED, Disconnected, resumed
from app.http.server.exchange import HELD, Exchange
from app.http.server.scratch import LARGE


class Connection:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.asked: list[str] = []

    def want(self) -> None:
        self.asked.append("want")

    def hold(self) -> None:
        self.asked.append("hold")

    def receive(self) -> None:
        """Nothing has come."""

    def expect(self) -> None:
        self.asked.append("expect")

    def take(self) -> list[str]:
        """What was asked since the last call."""
        asked, self.asked = self.asked, []
        return asked


class Body:
    """An exchange, and what its connection was asked."""

    def __init__(self, length: int = -1) -> None:
        self.connection = Connection()
        self.exchange = Exchange(self.connection, "POST", "/", "1.1", length, keep_alive=True)

    async def begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Has `work` run until it waits."""
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        return task


async def ended(task: "asyncio.Task[Any]") -> Any:
    """What it returns; it has all it needs."""
    return await asyncio.wait_for(task, 1)


def test_a_body_that_came_with_its_header_is_there_at_once() -> None:
    async def main() -> None:
        for size in (0, 4, JOINED, JOINED + 1):
            exchange = Body(size).exchange
            assert exchange.whole() is None
            for piece in (b"x" * (size // 2), b"y" * (size - size // 2)):
                exchange.add(piece)
                assert exchange.whole() is None
            exchange.end()
            body = exchange.whole()
            assert body == b"x" * (size // 2) + b"y" * (size - size // 2)
            assert isinstance(body, memoryview) == (size <= JOINED), "to copy a large one would take longer"
            assert not isinstance(body, memoryview) or not body.readonly, "an output may take its place"
            assert (exchange.received, exchange.left) == (size, 0)

    asyncio.run(main())


def test_what_was_read_in_part_is_not_whole() -> None:
    async def main() -> None:
        exchange = Body(4).exchange
        exchange.add(b"bo")
        assert await exchange.read() == b"bo"
        exchange.add(b"dy")
        exchange.end()
        assert exchange.whole() is None
        assert await exchange.read() == b"dy"
        assert await exchange.read() == b""
        assert exchange.received == 4

    asyncio.run(main())


def test_who_reads_waits_for_more() -> None:
    async def main() -> None:
        body = Body()
        for piece in (b"one", b"two"):
            reading = await body.begin(body.exchange.read())
            assert body.connection.take() == ["want"]
            assert not reading.done()
            body.exchange.add(piece)
            assert await ended(reading) == piece
        reading = await body.begin(body.exchange.read())
        body.exchange.end()
        assert await ended(reading) == b""

    asyncio.run(main())


@pytest.mark.parametrize("length", [4, LARGE + 1])
def test_who_asked_whether_to_send_it_is_told_when_it_is_wanted_and_once(length: int) -> None:
    async def main() -> None:
        body = Body(length)
        body.exchange.expects = True
        body.exchange.end()
        assert await body.exchange.read() == b""
        assert body.connection.take() == []
        body = Body(length)
        body.exchange.expects = True
        filling = await body.begin(body.exchange.fill(memoryview(bytearray(2))))
        assert body.connection.take() == ["expect", "want"]
        body.exchange.part()
        with pytest.raises(Disconnected):
            await ended(filling)
        assert not body.exchange.expects

    asyncio.run(main())


def test_it_is_put_into_buffers_wherever_its_pieces_end() -> None:
    async def main() -> None:
        body = Body(LARGE)
        memory = memoryview(bytearray(9))
        for piece in (b"ab", b"cdef"):
            body.exchange.add(piece)
        await body.exchange.fill(memory[:1])
        await body.exchange.fill(memory[:0])
        await body.exchange.fill(memory[1:5])
        assert (bytes(memory[:5]), body.exchange.received) == (b"abcde", 5)
        assert not body.exchange.is_direct
        filling = await body.begin(body.exchange.fill(memory[5:]))
        assert body.connection.take() == ["want"]
        body.exchange.add(b"g")
        await asyncio.sleep(0)
        assert body.connection.take() == ["want"]
        for piece in (b"h", b"ij"):
            body.exchange.add(piece)
        await ended(filling)
        assert body.connection.take() == []
        assert (bytes(memory), body.exchange.received) == (b"abcdefghi", 9)
        assert await body.exchange.read() == b"j"
        assert (body.exchange.received, body.exchange.left) == (10, LARGE - 10)

    asyncio.run(main())


def test_one_that_is_shorter_than_what_it_should_fill_is_none() -> None:
    async def main() -> None:
        for length in (3, LARGE + 1):
            body = Body(length)
            body.exchange.add(b"abc")
            body.exchange.end()
            with pytest.raises(Disconnected):
                await ended(await body.begin(body.exchange.fill(memoryview(bytearray(4)))))

    asyncio.run(main())


def test_a_large_one_comes_straight_into_buffers() -> None:
    async def main() -> None:
        body, size = Body(LARGE + 1), LARGE - 1
        exchange, memory = body.exchange, memoryview(bytearray(size))
        exchange.add(b"abc")
        body.connection.take()
        await exchange.fill(memory[:2])
        assert not exchange.is_direct, "it was there"
        filling = await body.begin(exchange.fill(memory[2:]))
        assert body.connection.take() == ["want"]
        assert exchange.is_direct
        for count in (5, size - 8):
            target = exchange.target()
            assert target is not None
            target[:count] = b"x" * count
            assert not filling.done()
            exchange.filled(count)
        assert exchange.target() is None
        assert body.connection.take() == ["hold"]
        await ended(filling)
        assert bytes(memory) == b"abc" + b"x" * (size - 3)
        assert (exchange.received, exchange.left) == (size, 2)
        exchange.filled(1)
        assert (exchange.received, exchange.left) == (size, 1), "nobody waited for that"
        body.connection.take()
        filling = await body.begin(exchange.fill(memory[:1]))
        assert body.connection.take() == ["want"]
        exchange.filled(1)
        assert body.connection.take() == ["hold"]
        await ended(filling)
        assert (exchange.left, body.connection.take()) == (0, []), "the next request may have come"

    asyncio.run(main())


@pytest.mark.parametrize("late", [0, 2, 4])
def test_no_more_is_read_for_who_does_not_wait_any_more(late: int) -> None:
    """Whatever comes before he is told so."""

    async def main() -> None:
        body = Body(LARGE + 1)
        filling = await body.begin(body.exchange.fill(memoryview(bytearray(4))))
        filling.cancel()
        body.exchange.filled(late)
        body.connection.take()
        with pytest.raises(asyncio.CancelledError):
            await filling
        assert body.connection.take() == ["hold"]
        assert body.exchange.target() is None
        body.exchange.is_lent = True  # to a thread that still receives
        with pytest.raises(Disconnected):
            await ended(await body.begin(body.exchange.fill(memoryview(bytearray(4)))))

    asyncio.run(main())


def test_reading_is_held_while_much_waits_to_be_taken() -> None:
    async def main() -> None:
        body = Body()
        body.exchange.add(bytes(HELD))
        assert body.connection.take() == []
        body.exchange.add(b"x")
        assert body.connection.take() == ["hold"]
        buffer = memoryview(bytearray(1))
        await body.exchange.fill(buffer)
        assert not body.exchange.is_full()
        body.exchange.add(b"x")
        assert body.exchange.is_full()
        assert len(await body.exchange.read()) == HELD + 1
        assert not body.exchange.is_full()

    asyncio.run(main())


def test_who_waits_is_told_that_the_client_has_gone() -> None:
    async def main() -> None:
        body = Body(8)
        request: Any = object()
        body.exchange.request = request
        reading = await body.begin(body.exchange.read())
        body.exchange.part()
        assert body.exchange.request is None, "it refers to its exchange, and nobody will handle it"
        with pytest.raises(Disconnected):
            await ended(reading)
        with pytest.raises(Disconnected):
            await ended(await body.begin(body.exchange.read()))
        large = Body(LARGE + 1)
        filling = await large.begin(large.exchange.fill(memoryview(bytearray(4))))
        large.exchange.part()
        large.exchange.part()
        with pytest.raises(Disconnected):
            await ended(filling)
        with pytest.raises(Disconnected):
            await ended(await large.begin(large.exchange.fill(memoryview(bytearray(4)))))

    asyncio.run(main())


def test_what_came_before_the_client_went_can_be_read() -> None:
    async def main() -> None:
        body = Body(8)
        reading = await body.begin(body.exchange.read())
        body.exchange.add(b"last")
        body.exchange.part()
        body.exchange.add(b"nobody's")
        assert await ended(reading) == b"last"
        with pytest.raises(Disconnected):
            await body.exchange.read()

    asyncio.run(main())


def test_several_may_wait_for_the_client_to_go() -> None:
    """And who waits no longer does not end that for the others."""

    async def main() -> None:
        body = Body()
        first, second, third = [await body.begin(body.exchange.hung_up()) for _ in range(3)]
        assert body.connection.take() == ["want"] * 3
        second.cancel()
        await asyncio.sleep(0)
        assert not first.done()
        body.exchange.part()
        body.exchange.part()
        await ended(first)
        await ended(third)
        body.connection.take()
        await ended(await body.begin(body.exchange.hung_up()))
        assert body.connection.take() == []

    asyncio.run(main())


def test_nobody_wants_the_rest_of_what_is_answered() -> None:
    async def main() -> None:
        for length in (2 * HELD, LARGE + 1):
            body = Body(length)
            body.exchange.add(bytes(HELD + 1))
            assert body.connection.take() == ["hold"]
            body.exchange.answer()
            assert not body.exchange.is_full()
            body.exchange.add(bytes(length - HELD - 1))
            assert (body.exchange.is_full(), body.exchange.left, body.connection.take()) == (False, 0, [])
            body.exchange.end()
            assert await body.exchange.read() == b""

    asyncio.run(main())


def test_a_handler_that_is_not_waited_for_any_more_is_closed_and_so_is_who_went_on_with_it() -> None:
    seen: list[str] = []

    async def handle() -> str:
        try:
            await asyncio.sleep(0)
        except GeneratorExit:
            seen.append("closed")
        return "answer"

    async def go_on() -> None:
        work = handle()
        seen.append(await resumed(work, work.send(None)))

    going = go_on()
    going.send(None)
    going.close()
    assert seen == ["closed"]
