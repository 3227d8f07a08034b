"""Who reads a dispatch and writes its answer: the event loop what takes a moment, a worker all else."""

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
import orjson
import pytest

from app.engine.service import Service
from app.http.core.asgi import AsgiBody
from app.http.core.bodies import OFFLOADED
from app.http.core.exchange import Request
from app.http.core.routes import Route
from app.http.native import dispatch, files
from app.http.native.answers import DocumentForm, FileForm
from app.http.native.dispatch import QUICK
from app.http.native.requests import Dispatch, DispatchReader
from app.settings import Settings
from tests.messages import CELU, as_json
from tests.messages import request as message_of

LOOP, WORKER = "loop", "worker"
NPY, NPZ = b"application/x-npy", b"application/x-npz"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    made = Service(Settings(gpus="none", llvm=False))
    yield made
    made.close()


def ones(nbytes: int) -> Any:
    return message_of(CELU, {"InputTensor": np.ones(nbytes // 4, np.float32)})


def numbers(count: int) -> bytes:
    return orjson.dumps({"operator": {"Type": CELU}, "inputs": {"InputTensor": [1] * count}})


def npy() -> bytes:
    made = io.BytesIO()
    np.save(made, np.ones(100, np.float32))
    return made.getvalue()


def npz() -> bytes:
    made = io.BytesIO()
    np.savez_compressed(made, InputTensor=np.ones(100, np.float32))
    return made.getvalue()


def noted(work: Callable[..., Any], by: list[str]) -> Callable[..., Any]:
    """`work`, which notes who does it."""

    def noting(*args: Any) -> Any:
        by.append(LOOP if threading.current_thread() is threading.main_thread() else WORKER)
        return work(*args)

    return noting


ALL, KNOWN = [LOOP] * 3, [WORKER, WORKER, LOOP]
NONE = [WORKER] * 3
MSGPACK = b"application/msgpack"


@pytest.mark.parametrize(
    ("kind", "make", "accept", "reads", "writes"),
    [
        (b"application/json", lambda: orjson.dumps(as_json(ones(1000))), b"*/*", ALL, ALL),
        (b"application/json", lambda: orjson.dumps(as_json(ones(OFFLOADED))), b"*/*", KNOWN, ALL),
        (b"application/json", lambda: orjson.dumps(as_json(ones(QUICK))), b"*/*", NONE, ALL),
        (MSGPACK, lambda: msgpack.packb(ones(QUICK)), b"*/*", KNOWN, ALL),
        (b"application/json", lambda: numbers(4096), b"*/*", ALL, ALL),
        (b"application/json", lambda: numbers(4097), b"*/*", ALL, NONE),
        (MSGPACK, lambda: msgpack.packb(ones(OFFLOADED + 4)), NPY, KNOWN, ALL),
        (MSGPACK, lambda: msgpack.packb(ones(OFFLOADED)), NPZ, KNOWN, ALL),
        (MSGPACK, lambda: msgpack.packb(ones(OFFLOADED + 4)), NPZ, KNOWN, NONE),
        (NPY, npy, b"*/*", ALL, ALL),
        (NPZ, npz, b"*/*", NONE, ALL),
    ],
    ids=[
        *("small", "long", "very long", "views", "few numbers", "many numbers"),
        *("a file as it is", "a checksum of few", "a checksum", "a file", "a file that expands"),
    ],
)
def test_who_reads_and_writes(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    kind: bytes,
    make: Callable[[], bytes],
    accept: bytes,
    reads: list[str],
    writes: list[str],
) -> None:
    """Of three alike, of which the last is known."""
    read, written = list[str](), list[str]()
    monkeypatch.setattr(Dispatch, "data", noted(Dispatch.data, read))
    for form in (DocumentForm, FileForm):
        monkeypatch.setattr(form, "write", noted(form.write, written))
    native = files if kind in (NPY, NPZ) else dispatch
    endpoint = next(each.answer for each in native.routes(DispatchReader(service)) if isinstance(each, Route))
    body = make()

    async def main() -> None:
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, object]:
            return messages.pop() if messages else await asyncio.Future()  # the client stays

        fields = [(b"content-type", kind), (b"accept", accept)]
        request = Request("POST", "/", b"/", b"", fields, AsgiBody(len(body), receive), dict(fields))
        reply = await endpoint(request, {"Type": CELU})
        assert reply.status == 200
        assert request.prepared
        assert request.outcome
        reply.sent()

    for _ in range(3):
        asyncio.run(main())
    assert (read, written) == (reads, writes)
    assert service.memory.used == 0
