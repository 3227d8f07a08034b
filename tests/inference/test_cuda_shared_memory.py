"""Triton's CUDA shared memory: tensors that are on a GPU, used where they are. Here the GPU is the CPU in disguise, but
for the tests that are marked `gpu`."""

import asyncio
import base64
import gc
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.engine.service import Service
from app.http.core.asgi import Application
from app.http.core.documents import LIGHT
from app.http.core.keys import Keys
from app.http.server.limit import ConnectionLimit
from app.main import create_app, handler_of
from app.settings import Settings
from tests.conftest import RunningServer, running_server
from tests.devices.cuda_device_on_cpu import CudaDeviceOnCpu, CudaError
from tests.devices.cuda_on_cpu import COMPILER, BuiltKernels
from tests.gpu import first_gpu
from tests.http.load import wait_until
from tests.inference.wire import X, behind, body, error_of, listed, split, tensor
from tests.messages import Array
from tests.models.documents import model
from tests.readme import code

STATUS, UNREGISTER = "/v2/cudasharedmemory/status", "/v2/cudasharedmemory/unregister"
TILE, GEMM = "/v2/models/tile/infer", "/v2/models/gemm/infer"
TWICE = {"Repeats": [2, 1]}
TILED = np.tile(X, (2, 1))

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")


class Sharing:
    """A service in this process whose GPU, cuda:0, is the CPU, and a client of it."""

    def __init__(self, folder: Path, runner: asyncio.Runner, **settings: Any) -> None:
        self.service = Service(Settings(threads=2, gpus="none", shared_memory=True, **settings))
        self.service.open()
        self.gpu = CudaDeviceOnCpu(BuiltKernels(folder))
        self._runner = runner
        self.join([self.gpu])
        made = create_app(self.service.settings, self.service, ConnectionLimit())
        self.repository = made.state.inference.models.repository
        app = Application(handler_of(made, self.service.settings, Keys("", "")), made)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")

    def join(self, gpus: list[Any]) -> None:
        """Have the service use these."""
        self.service.placement.gpus[:] = gpus
        self.service.devices |= {gpu.name: gpu for gpu in gpus}

    def get(self, path: str) -> httpx.Response:
        return self._runner.run(self.client.get(path))

    def post(self, path: str, document: Any = None, *data: bytes) -> httpx.Response:
        if document is None:
            return self._runner.run(self.client.post(path))
        content, headers = body(document, *data)
        return self._runner.run(
            self.client.post(path, content=content, headers=headers if data else {"content-type": "application/json"})
        )

    def register(self, name: str, memory: Array, byte_size: int | None = None, **more: Any) -> httpx.Response:
        """`memory` under a name, by a handle of its own."""
        handle = os.urandom(64)
        self.gpu.shared[handle] = memory
        size = memory.nbytes if byte_size is None else byte_size
        document = {"raw_handle": {"b64": base64.b64encode(handle).decode()}, "device_id": 0, "byte_size": size}
        return self.post(f"/v2/cudasharedmemory/region/{name}/register", document | more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharing]:
    with asyncio.Runner() as runner:
        sharing = Sharing(tmp_path_factory.mktemp("kernels"), runner)
        yield sharing
        runner.run(sharing.client.aclose())
        sharing.service.close()


@pytest.fixture
def sharing(whole: Sharing) -> Iterator[Sharing]:
    """With no region, before and after."""
    whole.gpu.log.clear()
    yield whole
    assert whole.post(UNREGISTER).status_code == 200
    assert whole.post("/v2/systemsharedmemory/unregister").status_code == 200

    def is_closed() -> bool:
        gc.collect()
        return bool(whole.gpu.opened == [])

    wait_until(is_closed)  # a worker may not be done yet with what failed
    whole.gpu.shared.clear()


def shared(region: str, byte_size: int, offset: int = 0) -> dict[str, Any]:
    return {"shared_memory_region": region, "shared_memory_byte_size": byte_size, "shared_memory_offset": offset}


def page(size: int = 4096) -> Array:
    """Memory that begins at a multiple of 16, full of 255."""
    memory = np.full(size + 16, 255, np.uint8)
    return memory[-memory.ctypes.data % 16 :][:size]


def tiled(source: dict[str, Any], target: dict[str, Any] | None, **parameters: Any) -> dict[str, Any]:
    outputs = [{"name": "OutputTensor"} | ({"parameters": target} if target else {})]
    inputs = [tensor("InputTensor", X, parameters=source)]
    return {"inputs": inputs, "outputs": outputs, "parameters": TWICE | parameters}


def put(memory: Array, array: Array, offset: int) -> None:
    memory[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)


def at(memory: Array, offset: int, like: Array) -> Array:
    part: Array = memory[offset : offset + like.nbytes].copy().view(like.dtype).reshape(like.shape)
    return part


@needs_compiler
@pytest.mark.parametrize(
    ("start", "stop", "copies"),
    [
        (0, 64, 0),
        (4, 64, 1),  # vectors of the input would not be aligned
        (0, 68, 1),  # nor those of the output
        (3, 65, 2),
        (16, 0, 1),  # the output overlaps the input, which is read from a copy
        (16, 32, 1),
        (16, 40, 1),
    ],
)
def test_tensors_are_used_where_they_are(sharing: Sharing, start: int, stop: int, copies: int) -> None:
    memory = page()
    put(memory, X, start)
    before = memory.copy()
    assert sharing.register("r", memory).status_code == 200
    for _ in range(3):  # the third time it is remembered
        put(memory, X, start)
        answer, data = split(sharing.post(TILE, tiled(shared("r", 24, start), shared("r", 48, stop))))
        assert data == b""
        assert answer["parameters"]["device"] == "cuda:0"
        assert answer["outputs"] == [
            {"name": "OutputTensor", "datatype": "FP32", "shape": [4, 3], "parameters": shared("r", 48, stop)}
            if stop
            else {
                "name": "OutputTensor",
                "datatype": "FP32",
                "shape": [4, 3],
                "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 48},
            }
        ]
        np.testing.assert_array_equal(at(memory, stop, TILED), TILED)
    log = sharing.gpu.log
    assert "in" not in log
    assert "out" not in log
    assert log.count("within") == 3 * copies
    assert log[-1] == "synchronized"
    put(before, TILED, stop)
    np.testing.assert_array_equal(memory, before)  # nothing else was written
    assert sharing.gpu.load == sharing.gpu.slots.taken == 0


@needs_compiler
def test_mixed_with_what_is_on_the_host(sharing: Sharing) -> None:
    memory = page()
    put(memory, X, 0)
    sharing.register("r", memory)
    _, data = split(sharing.post(TILE, tiled(shared("r", 24), {"binary_data": True})))
    np.testing.assert_array_equal(np.frombuffer(data, np.float32).reshape(4, 3), TILED)
    document = tiled({"binary_data_size": 24}, shared("r", 48, 128))
    split(sharing.post(TILE, document, (2 * X).tobytes()))
    np.testing.assert_array_equal(at(memory, 128, TILED), 2 * TILED)
    numbers = {"inputs": [listed("InputTensor", 3 * X)], "outputs": document["outputs"], "parameters": TWICE}
    split(sharing.post(TILE, numbers))
    np.testing.assert_array_equal(at(memory, 128, TILED), 3 * TILED)


def test_calls_and_graphs(sharing: Sharing) -> None:
    """GEMM is a call of CuPy's; a graph of two has scratch between them."""
    memory = page()
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 2), np.float32)
    put(memory, a, 0)
    put(memory, b, 32)
    sharing.register("r", memory)
    inputs = [tensor("ATensor", a, parameters=shared("r", 24)), tensor("BTensor", b, parameters=shared("r", 24, 32))]
    outputs = [{"name": "OutputTensor", "parameters": shared("r", 16, 64)}]
    parameters = {"TransA": "NONE", "TransB": "NONE", "Alpha": 1.0, "Beta": 0.0}
    split(sharing.post(GEMM, {"inputs": inputs, "outputs": outputs, "parameters": parameters}))
    np.testing.assert_array_equal(at(memory, 64, np.zeros((2, 2), np.float32)), a @ b)

    def gemm(*sizes: list[int]) -> dict[str, Any]:
        first, second = ({"DataType": "FLOAT32", "Sizes": each} for each in sizes)
        return {
            "Type": "OPERATOR",
            "Desc": {"Type": "GEMM", "ATensor": first, "BTensor": second} | parameters,
        }

    graph = {
        "Nodes": [gemm([2, 3], [3, 2]), gemm([2, 2], [2, 3])],
        "InputEdges": [
            {"GraphInput": name, "ToNodeIndex": node, "ToNodeInputIndex": place}
            for name, node, place in (("a", 0, 0), ("b", 0, 1), ("a", 1, 1))
        ],
        "IntermediateEdges": [{"FromNodeIndex": 0, "FromNodeOutputIndex": 0, "ToNodeIndex": 1, "ToNodeInputIndex": 0}],
        "OutputEdges": [{"FromNodeIndex": 1, "FromNodeOutputIndex": 0, "GraphOutput": "y"}],
    }
    kept = sharing.post("/v1/graphs", {"graph": graph, "name": "squares", "device": "numpy"})
    assert kept.status_code == 201, kept.text
    inputs = [tensor("a", a, parameters=shared("r", 24)), tensor("b", b, parameters=shared("r", 24, 32))]
    for _ in range(3):
        outputs = [{"name": "y", "parameters": shared("r", 24, 128)}]
        answer, _ = split(sharing.post("/v2/models/squares/infer", {"inputs": inputs, "outputs": outputs}))
        assert answer["parameters"]["device"] == "cuda:0"
        np.testing.assert_array_equal(at(memory, 128, a), a @ b @ a)
        memory[128:152] = 0
    (told,) = sharing.get("/v2/models/squares/stats").json()["model_stats"]
    assert told["inference_stats"]["success"]["count"] == 3


@needs_compiler
def test_what_is_on_a_gpu_waits_for_no_others_to_be_run_together(tmp_path: Path) -> None:
    """And is counted as what was run alone, also where a worker has to read it first."""
    (tmp_path / "models").mkdir()
    served = model("m (float[n,3] x) => (float[n,3] y) { y = Neg(x) }")
    (tmp_path / "models" / "rows.onnx").write_bytes(served.SerializeToString())
    with asyncio.Runner() as runner:
        sharing = Sharing(tmp_path, runner, models=str(tmp_path / "models"), max_batch=4)
        sharing.repository.open()
        source, target = page(), page()
        put(source, X, 0)
        sharing.register("r", source)
        sharing.register("s", target)
        outputs = [{"name": "y", "parameters": shared("s", 24, 64)}]
        document: dict[str, Any] = {"inputs": [tensor("x", X, parameters=shared("r", 24))], "outputs": outputs}
        content = json.dumps(document)
        for number, asked in enumerate([content, content, content, content + LIGHT * " "]):
            target[64:88] = 0
            answer, _ = split(runner.run(sharing.client.post("/v2/models/rows/infer", content=asked)))
            assert answer["parameters"]["device"] == "cuda:0"
            np.testing.assert_array_equal(at(target, 64, X), -X)
            (told,) = sharing.get("/v2/models/rows/stats").json()["model_stats"]
            assert (told["execution_count"], told["inference_count"], told["batch_stats"]) == (number + 1,) * 2 + ([],)
        for device in ("numpy", "cuda:0"):  # as is asked for, also of those that are run together
            document = {"inputs": [listed("x", X)], "parameters": {"device": device}}
            answer, _ = split(sharing.post("/v2/models/rows/infer", document))
            assert answer["parameters"]["device"] == device
        runner.run(sharing.client.aclose())
        sharing.repository.close()
        sharing.service.close()


def test_status(sharing: Sharing) -> None:
    assert sharing.get(STATUS).json() == []
    first, second = page(), page()
    sharing.register("a", first, 100)
    sharing.register("b", second)
    regions = [{"name": "a", "device_id": 0, "byte_size": 100}, {"name": "b", "device_id": 0, "byte_size": 4096}]
    assert sharing.get(STATUS).json() == regions
    assert sharing.get("/v2/cudasharedmemory/region/b/status").json() == regions[1:]
    assert error_of(sharing.get("/v2/cudasharedmemory/region/c/status"), 404) == "There is no region c."
    assert sharing.get("/v2/systemsharedmemory/status").json() == []
    assert error_of(sharing.get("/v2/systemsharedmemory/region/a/status"), 404) == "There is no region a."
    sharing.post("/v2/systemsharedmemory/unregister")  # which are others
    sharing.post("/v2/systemsharedmemory/region/a/unregister")
    assert sharing.get(STATUS).json() == regions
    for _ in range(2):
        assert sharing.post("/v2/cudasharedmemory/region/a/unregister").status_code == 200
    assert sharing.get(STATUS).json() == regions[1:]
    assert sharing.gpu.opened == [second.ctypes.data]
    assert "cuda_shared_memory" in sharing.get("/v2").json()["extensions"]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"raw_handle": {"b64": base64.b64encode(bytes(64)).decode()}}, "raw_handle leads to no memory of another"),
        ({"raw_handle": {"b64": base64.b64encode(bytes(63)).decode()}}, "b64 of raw_handle is no base64 of 64 bytes"),
        ({"raw_handle": {"b64": "x" * 88}}, "b64 of raw_handle is no base64 of 64 bytes"),
        ({"raw_handle": {"b64": base64.b64encode(bytes(64)).decode() + "!"}}, "b64 of raw_handle is no base64 of 64"),
        ({"raw_handle": {"b64": "\u00e4" * 88}}, "b64 of raw_handle is no base64 of 64 bytes"),
        ({"raw_handle": "AAAA"}, "raw_handle is"),
        ({"raw_handle": {}}, "raw_handle: b64 is missing; it is required here."),
        ({"device_id": 1}, "The service does not use GPU 1; device_id is 0."),
        ({"device_id": -1}, "device_id is -1; it must be >= 0."),
        ({"byte_size": 0}, "byte_size is 0; it must be >= 1."),
        ({"byte_size": 4097}, "raw_handle leads to 4096 bytes on cuda:0; byte_size is 4097."),
        ({"byte_size": 2**64 - 1}, "raw_handle leads to 4096 bytes on cuda:0"),
        ({"offset": 0}, "offset is not a field here"),
    ],
)
def test_registrations_that_are_none(sharing: Sharing, document: dict[str, Any], said: str) -> None:
    assert error_of(sharing.register("r", page(), **document)).startswith(said)
    assert sharing.get(STATUS).json() == []


def test_names_are_shared_with_the_systems_regions(sharing: Sharing) -> None:
    assert sharing.register("r", page()).status_code == 200
    assert error_of(sharing.register("r", page()), 409).startswith("There is a region r already")
    system = {"key": "k", "byte_size": 4}
    said = error_of(sharing.post("/v2/systemsharedmemory/region/r/register", system), 409)
    assert said.startswith("There is a region r already")
    assert error_of(sharing.register("x" * 257, page())).startswith("A region's name has 1 to 256 characters")


@pytest.mark.parametrize(
    ("source", "target", "parameters", "said"),
    [
        (shared("s", 24), None, {}, "There is no region s; register it before its use."),
        (shared("r", 24, 80), None, {}, "Region r has 100 bytes; 24 at offset 80 are not all in it."),
        (shared("r", 2**63), None, {}, "Region r has 100 bytes;"),
        (shared("r", 20), None, {}, "Data for InputTensor are 20 bytes; FLOAT32 [2, 3] is 24 bytes."),
        (shared("r", 24), shared("s", 48), {}, "There is no region s; register it before its use."),
        (shared("r", 24), shared("r", 48, 53), {}, "Region r has 100 bytes; 48 at offset 53 are not all in it."),
        (shared("r", 24), shared("r", 40), {}, "OutputTensor is 48 bytes; shared_memory_byte_size is 40."),
        (shared("r", 24), None, {"device": "numpy"}, "device is numpy but tensors are in regions on cuda:0, where"),
        (shared("r", 24), shared("other", 48), {}, "Region r is on cuda:0 and region other on cuda:1; one dispatch"),
    ],
)
def test_tensors_that_are_not_in_their_region(
    sharing: Sharing,
    tmp_path: Path,
    source: dict[str, Any],
    target: dict[str, Any] | None,
    parameters: dict[str, Any],
    said: str,
) -> None:
    memory = page()
    sharing.register("r", memory, 100)
    second = CudaDeviceOnCpu(BuiltKernels(tmp_path))
    second.ordinal, second.name, second.shared = 1, "cuda:1", sharing.gpu.shared
    sharing.join([sharing.gpu, second])
    try:
        sharing.register("other", page(), device_id=1)
        assert error_of(sharing.post(TILE, tiled(source, target, **parameters))).startswith(said)
        sharing.post(UNREGISTER)
    finally:
        sharing.join([sharing.gpu])
        del sharing.service.devices["cuda:1"]
    assert (memory == 255).all()


@needs_compiler
def test_a_name_that_becomes_another_regions(sharing: Sharing, tmp_path: Path) -> None:
    """What is remembered of a request is not taken for one whose tensors are elsewhere."""
    document = tiled(shared("r", 24), shared("r", 48, 64))
    for _ in range(2):
        memory = page()
        put(memory, X, 0)
        sharing.register("r", memory)
        for _ in range(3):
            split(sharing.post(TILE, document))
        np.testing.assert_array_equal(at(memory, 64, TILED), TILED)
        sharing.post("/v2/cudasharedmemory/region/r/unregister")
        name = f"dmlserve-test-{os.urandom(8).hex()}"
        file = Path("/dev/shm") / name
        file.write_bytes(X.tobytes() + bytes(104))
        try:
            sharing.post("/v2/systemsharedmemory/region/r/register", {"key": name, "byte_size": 128})
            answer, _ = split(sharing.post(TILE, document))
            assert answer["parameters"]["device"] == "numpy"
            assert file.read_bytes()[64:112] == TILED.tobytes()
            sharing.post("/v2/systemsharedmemory/region/r/unregister")
        finally:
            file.unlink()
        assert error_of(sharing.post(TILE, document)).startswith("There is no region r")


@needs_compiler
def test_a_region_stays_open_while_it_is_used(sharing: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = page()
    put(memory, X, 0)
    sharing.register("r", memory)
    launched, go_on = threading.Event(), threading.Event()
    launch = sharing.gpu.launch

    def slow(*arguments: Any) -> None:
        launched.set()
        assert go_on.wait(20)
        launch(*arguments)

    monkeypatch.setattr(sharing.gpu, "launch", slow)
    monkeypatch.setattr("app.devices.cuda.shared.BRIEF_SECONDS", 0)  # so that it is a worker that waits

    async def dispatched() -> httpx.Response:
        content, _ = body(tiled(shared("r", 24), shared("r", 48, 64)))
        dispatch = asyncio.create_task(sharing.client.post(TILE, content=content))
        await asyncio.to_thread(launched.wait, 20)
        assert (await sharing.client.post(UNREGISTER)).status_code == 200
        assert (await sharing.client.get(STATUS)).json() == []
        assert sharing.gpu.opened == [memory.ctypes.data]
        go_on.set()
        return await dispatch

    split(sharing._runner.run(dispatched()))
    np.testing.assert_array_equal(at(memory, 64, TILED), TILED)


@needs_compiler
def test_what_is_brief_needs_no_other_thread(sharing: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = page()
    put(memory, X, 0)
    sharing.register("r", memory)
    threads = []
    launch = sharing.gpu.launch

    def noted(*arguments: Any) -> None:
        threads.append(threading.current_thread())
        launch(*arguments)

    monkeypatch.setattr(sharing.gpu, "launch", noted)
    monkeypatch.setattr("app.devices.cuda.shared.BRIEF_SECONDS", 60)  # whatever else this machine does meanwhile
    document = tiled(shared("r", 24), shared("r", 48, 128))
    here = threading.current_thread()
    for _ in range(3):  # what came once is not remembered
        split(sharing.post(TILE, document))
        assert threads[0] is not here, "nobody knows how long it takes"
    assert threads[-1] is here
    with monkeypatch.context() as patch:
        patch.setattr("app.devices.cuda.shared.BRIEF_SECONDS", 0)
        split(sharing.post(TILE, document))
        assert threads[-1] is not here
    split(sharing.post(TILE, tiled(shared("r", 24), {"binary_data": True})))
    assert threads[-1] is not here
    sharing.gpu.long_dispatches = 1
    split(sharing.post(TILE, document))
    sharing.gpu.long_dispatches = 0
    assert threads[-1] is not here
    sharing.service.pool.queue_depth = -2
    try:
        assert error_of(sharing.post(TILE, document), 503).startswith("All workers are busy")
    finally:
        sharing.service.pool.queue_depth = sharing.service.settings.queue_depth


@needs_compiler
def test_a_gpu_that_fails(sharing: Sharing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """No other device has the tensors, so nothing runs on the CPU instead."""
    sharing.register("r", page())
    document = tiled(shared("r", 24), shared("r", 48, 64))

    def fail(*_: Any) -> None:
        raise CudaError("cudaErrorLaunchFailure")

    monkeypatch.setattr(sharing.gpu, "launch", fail)
    response = sharing.post(TILE, document)
    assert error_of(response, 503) == "cuda:0 could not run this dispatch."
    assert response.headers["retry-after"] == "1"
    monkeypatch.undo()
    split(sharing.post(TILE, document))
    monkeypatch.setattr(sharing.gpu, "out_of_service", "it was hit by lightning")
    assert error_of(sharing.post(TILE, document), 503) == "cuda:0 is out of service: it was hit by lightning."
    said = error_of(sharing.register("s", page()))
    assert said.endswith("memory of another process: cuda:0 is out of service: it was hit by lightning.")
    assert sharing.gpu.load == sharing.gpu.slots.taken == 0
    caplog.clear()  # which has the error, and so what the dispatch had


@needs_compiler
def test_many_places(sharing: Sharing) -> None:
    """More than are remembered."""
    memory = page()
    put(memory, X, 0)
    sharing.register("r", memory)
    for _ in range(2):
        for offset in range(64, 1024, 64):
            split(sharing.post(TILE, tiled(shared("r", 24), shared("r", 48, offset))))
            np.testing.assert_array_equal(at(memory, offset, TILED), TILED)


def test_a_region_of_a_gpu_that_is_lost(sharing: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = page()
    sharing.register("r", memory)
    close = sharing.gpu.close_shared

    def lost(address: int) -> None:
        close(address)
        raise CudaError("cudaErrorDevicesUnavailable")

    monkeypatch.setattr(sharing.gpu, "close_shared", lost)
    assert sharing.post(UNREGISTER).status_code == 200
    assert sharing.gpu.opened == []


def test_where_there_is_no_gpu(sharing: Sharing) -> None:
    sharing.join([])
    try:
        assert error_of(sharing.register("r", page())) == "The service does not use GPU 0; it has no GPU."
        assert "cuda_shared_memory" not in sharing.get("/v2").json()["extensions"]
    finally:
        sharing.join([sharing.gpu])


# On a GPU: this process is the client


class Allocated:
    """Memory of this process on the first GPU of the service, and its client."""

    def __init__(self, url: str, size: int) -> None:
        self.gpu = first_gpu()
        self.gpu.use()
        import cupy

        self.cupy: Any = cupy
        self.client = httpx.Client(base_url=url, timeout=60)
        self.address = cupy.cuda.runtime.malloc(size)
        self.bytes = cupy.ndarray(
            (size,), np.uint8, cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(self.address, size, None), 0)
        )

    def register(self, name: str, byte_size: int, **more: Any) -> httpx.Response:
        handle = base64.b64encode(self.cupy.cuda.runtime.ipcGetMemHandle(self.address)).decode()
        document = {"raw_handle": {"b64": handle}, "device_id": self.gpu.ordinal, "byte_size": byte_size} | more
        return self.client.post(f"/v2/cudasharedmemory/region/{name}/register", json=document)

    def put(self, offset: int, array: Array) -> None:
        self.bytes[offset : offset + array.nbytes] = self.cupy.asarray(array.reshape(-1).view(np.uint8))
        self.cupy.cuda.Device().synchronize()

    def get(self, offset: int, like: Array) -> Array:
        found: Array = self.bytes[offset : offset + like.nbytes].get().view(like.dtype).reshape(like.shape)
        return found

    def infer(self, model: str, x: Array, source: int, target: int, **parameters: Any) -> httpx.Response:
        inputs = [tensor("InputTensor", x, parameters=shared("r", x.nbytes, source))]
        outputs = [{"name": "OutputTensor", "parameters": shared("r", x.nbytes, target)}]
        document = {"inputs": inputs, "outputs": outputs, "parameters": parameters}
        return self.client.post(f"/v2/models/{model}/infer", json=document)

    def close(self) -> None:
        assert self.client.post(UNREGISTER).status_code == 200
        self.client.close()
        self.cupy.cuda.runtime.free(self.address)


@pytest.fixture(scope="module")
def gpu_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    first_gpu()
    with running_server(tmp_path_factory.mktemp("gpu") / "log", "--shared-memory", "--gpus", "all") as running:
        yield running


@pytest.fixture
def allocated(gpu_server: RunningServer) -> Iterator[Allocated]:
    made = Allocated(gpu_server.url, 32 << 20)
    yield made
    made.close()


def by_the_body(client: httpx.Client, model: str, x: Array, **parameters: Any) -> Array:
    """The same with the tensor in the request and in the answer."""
    document = {"inputs": [behind("InputTensor", x)], "parameters": parameters | {"device": first_gpu().name}}
    content, headers = body(document | {"outputs": [{"name": "OutputTensor", "parameters": {"binary_data": True}}]})
    _, data = split(client.post(f"/v2/models/{model}/infer", content=content + x.tobytes(), headers=headers))
    return np.frombuffer(data, x.dtype).reshape(x.shape)


@pytest.mark.gpu
@pytest.mark.parametrize(("source", "target"), [(0, 1 << 24), (4, 1 << 24), (3, (1 << 24) + 5), (64, 64), (64, 128)])
@pytest.mark.parametrize("count", [6, 1000, 2_000_003])
@pytest.mark.parametrize(
    ("model", "parameters"),
    [("activation_celu", {"Alpha": 2.0}), ("activation_softmax", {}), ("element_wise_identity", {})],
)
def test_of_another_process(
    allocated: Allocated, source: int, target: int, count: int, model: str, parameters: dict[str, Any]
) -> None:
    x = np.random.default_rng(count).standard_normal((1, count), np.float32)
    expected = by_the_body(allocated.client, model, x, **parameters)
    assert allocated.register("r", 32 << 20).status_code == 200
    for _ in range(3):
        allocated.put(source, x)
        answer, _ = split(allocated.infer(model, x, source, target, **parameters))
        assert answer["parameters"]["device"] == allocated.gpu.name
        np.testing.assert_array_equal(allocated.get(target, x), expected)


@pytest.mark.gpu
def test_handles_that_are_none(allocated: Allocated, gpu_server: RunningServer) -> None:
    name = allocated.gpu.name
    for wrong in (bytes(64), b"\xff" * 64):
        handle = {"b64": base64.b64encode(wrong).decode()}
        said = error_of(allocated.register("r", 16, raw_handle=handle))
        assert said.startswith(f"raw_handle leads to no memory of another process: it cannot be opened on {name}")
    said = error_of(allocated.register("r", (32 << 20) + 1))
    assert said == f"raw_handle leads to {32 << 20} bytes on {name}; byte_size is {(32 << 20) + 1}."
    assert error_of(allocated.register("r", 16, device_id=99)).startswith("The service does not use GPU 99")
    for region in ("r", "s"):  # the same memory by two names
        assert allocated.register(region, 32 << 20).status_code == 200
    allocated.client.post("/v2/cudasharedmemory/region/s/unregister")
    x = np.ones((1, 64), np.float32)
    allocated.put(0, x)
    split(allocated.infer("activation_relu", x, 0, 1024))
    np.testing.assert_array_equal(allocated.get(1024, x), x)
    assert gpu_server.process.poll() is None


@pytest.mark.gpu
def test_memory_whose_process_is_gone(allocated: Allocated, gpu_server: RunningServer) -> None:
    """It stays as long as the region is open, and so does the GPU."""
    script = """
import sys, cupy
cupy.cuda.Device(int(sys.argv[1])).use()
address = cupy.cuda.runtime.malloc(1 << 20)
cupy.cuda.runtime.memset(address, 0, 1 << 20)
print(cupy.cuda.runtime.ipcGetMemHandle(address).hex(), flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", script, str(allocated.gpu.ordinal)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout
    handle = base64.b64encode(bytes.fromhex(child.stdout.readline().strip())).decode()
    assert allocated.register("r", 1 << 20, raw_handle={"b64": handle}).status_code == 200
    child.kill()
    child.communicate()
    x = np.ones((1, 1000), np.float32)
    split(allocated.infer("activation_relu", x, 0, 8192))
    allocated.client.post(UNREGISTER)
    np.testing.assert_array_equal(by_the_body(allocated.client, "activation_relu", x), x)
    assert gpu_server.process.poll() is None


@pytest.mark.gpu
def test_the_lines_of_the_readme_run(gpu_server: RunningServer, tmp_path: Path) -> None:
    """By NVIDIA's own client, which it needs, and `cuda-bindings`."""
    pytest.importorskip("tritonclient.http")
    pytest.importorskip("cuda.bindings.runtime")
    script = tmp_path / "example.py"
    lines = code("python", "import cuda_shared_memory", gpu_server.url)
    script.write_text(lines.replace("localhost:8000", gpu_server.url.removeprefix("http://")))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", done.stdout)]
    assert numbers == pytest.approx([-1.729, -1.264, 0, 1, 2, 4], abs=1e-3)
    assert httpx.get(f"{gpu_server.url}{STATUS}").json() == []
