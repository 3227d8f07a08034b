"""How often a request lets others come as far (app/steps.py)."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgpack
import numpy as np
import pytest

import app.main
from app.codecs.codec import Body
from app.engine.service import Service
from app.http.core.exchange import Handler, RawHeaders, Reply, Request
from app.http.server.limit import ConnectionLimit
from app.settings import Settings
from app.stages import Stages
from app.steps import here
from tests.graphs.requests import biased
from tests.messages import CELU, as_json, request

X = np.linspace(-4, 4, 6, dtype=np.float32).reshape(2, 3)


class Come:
    """A body that came with its header."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.announced = self.received = len(data)

    def whole(self) -> Body:
        return memoryview(bytearray(self._data))

    async def read(self) -> bytes:
        raise AssertionError

    async def fill(self, buffer: Body) -> None:
        raise AssertionError

    async def hung_up(self) -> None:
        await asyncio.get_running_loop().create_future()


def asked(path: str, message: Any, kind: str = "msgpack", is_traced: bool = False) -> Request:
    data = msgpack.packb(message) if kind == "msgpack" else json.dumps(message).encode()
    fields: RawHeaders = [(name, b"application/" + kind.encode()) for name in (b"content-type", b"accept")]
    made = Request("POST", path, path.encode(), b"", fields, Come(data), dict(fields))
    made.stages = Stages() if is_traced else None
    return made


def taken(work: Coroutine[Any, Any, Reply]) -> tuple[int, Reply]:
    """How often `work`, which waits for nothing, lets others come as far, and its answer."""
    steps, here.has_others = 0, True
    try:
        while True:
            assert work.send(None) is None
            steps += 1
    except StopIteration as done:
        reply: Reply = done.value
        return steps, reply
    finally:
        here.has_others = False


Steps = Callable[[Request], int]


def run(work: Callable[[Handler, Steps], Awaitable[None]]) -> None:
    """With what answers, and what counts the steps of what is answered at once."""

    async def main() -> None:
        service = Service(Settings(gpus="none"))
        application = app.main.create_app(service.settings, service, ConnectionLimit())
        service.open()
        handler = app.main.answering(application)

        def steps(request: Request) -> int:
            count, reply = taken(handler(request))
            assert reply.status == 200
            reply.sent()
            return count

        await work(handler, steps)
        assert service.memory.used == 0
        service.close()

    asyncio.run(main())


def dispatched(alpha: float, kind: str, is_traced: bool = False) -> Request:
    message = request(CELU, {"InputTensor": X}, {"Alpha": alpha})
    return asked("/v1/dispatch", message if kind == "msgpack" else as_json(message), kind, is_traced)


async def answered(handler: Handler, request: Request) -> bytes:
    """In a task, as what waits for a worker that compiles."""
    reply = await handler(request)
    content = b"".join(reply.pieces)
    assert reply.status < 300, content
    reply.sent()
    return content


@pytest.mark.parametrize("kind", ["json", "msgpack"])
def test_of_a_dispatch(kind: str) -> None:
    """A new one is looked up, read, judged, put together, computed, written; one like it looked up, computed, written.
    What is traced is read in one step."""

    async def count(handler: Handler, steps: Steps) -> None:
        await answered(handler, dispatched(0.5, kind))
        assert [steps(dispatched(alpha, kind)) for alpha in (2, 3)] == [6, 6]
        assert [steps(dispatched(2, kind)) for _ in range(3)] == [6, 2, 2]
        assert [steps(dispatched(alpha, kind, is_traced=True)) for alpha in (4, 2)] == [2, 2]

    run(count)


def test_of_a_graph() -> None:
    async def count(handler: Handler, steps: Steps) -> None:
        kept = msgpack.unpackb(await answered(handler, asked("/v1/graphs", {"graph": biased()})))
        path = f"/v1/graphs/{kept['id']}/dispatch"
        await answered(handler, asked(path, {"inputs": {"x": X.tobytes()}}))
        assert [steps(asked(path, {"inputs": {"x": X.tobytes()}})) for _ in range(3)] == [4, 2, 2]

    run(count)


def test_of_an_inference() -> None:
    """One that is new is looked up in a step of its own even where it is traced."""

    async def count(handler: Handler, steps: Steps) -> None:
        def infer(alpha: float, is_traced: bool = False) -> Request:
            tensor = {"name": "InputTensor", "datatype": "FP32", "shape": [6], "data": X.ravel().tolist()}
            message = {"inputs": [tensor], "parameters": {"Alpha": alpha}}
            return asked("/v2/models/activation_celu/infer", message, "json", is_traced)

        await answered(handler, infer(0.5))
        assert [steps(infer(alpha)) for alpha in (2, 3)] == [7, 7]
        assert [steps(infer(2)) for _ in range(3)] == [7, 2, 2]
        assert [steps(infer(alpha, is_traced=True)) for alpha in (4, 2)] == [3, 2]

    run(count)
