"""What is asked of models before they are ready."""

import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
import uvicorn
from onnx import ModelProto
from starlette.exceptions import HTTPException
from uvicorn.server import ServerState

from app.engine.service import Service
from app.engine.workers import Ticket
from app.http.core.asgi import AsgiBody
from app.http.core.exchange import Reply, Request
from app.http.core.problems import problem_for
from app.http.inference.endpoints import InferEndpoint
from app.http.inference.file_models import FileModel
from app.http.inference.rehearsal import rehearsals
from app.http.server import rehearsal
from app.http.server.connection import connections
from app.http.server.limit import ConnectionLimit
from app.http.telemetry.metrics import Metrics
from app.memory.accounts import MemoryAccount, MemoryShare
from app.memory.buffers import Buffer, beginning
from app.models.onnx.reading import Port, Signature
from app.models.repository.model import LoadedModel, SizedModel, SizesOfAll
from app.models.repository.repository import Repository
from app.settings import Settings
from app.stages import Stages
from tests.conftest import ServerFactory, ours_only
from tests.models.documents import affine, affine_of, model

X = np.array([[-4, -2, 0], [1, 2, 4]], np.float32)


def rehearsed(
    folder: Path, served: ModelProto | None = None, sizes: Sequence[int] = (2, 3), **settings: Any
) -> tuple[Service, Repository, InferEndpoint]:
    (folder / "affine.onnx").write_bytes((served or affine()).SerializeToString())
    warm = f"affine={'x'.join(map(str, sizes))}"
    service = Service(Settings(models=str(folder), warm=warm, gpus="none", **settings))
    repository = Repository(service)
    metrics = Metrics(service, ConnectionLimit(1))
    endpoint = InferEndpoint(service, metrics, repository)
    repository.open()
    return service, repository, endpoint


@pytest.mark.parametrize(("binary", "output"), [(True, True), (False, True), (False, False)])
def test_the_first_request_of_what_is_warmed_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binary: bool, output: bool
) -> None:
    """Its loops are compiled, and as tritonclient writes it, it has been judged."""
    service, repository, endpoint = rehearsed(tmp_path)
    asked = asyncio.run(endpoint.models.find("affine"))
    tensor = triton.InferInput("x", [2, 3], "FP32").set_data_from_numpy(X, binary_data=binary)
    body, json_bytes = triton.InferenceServerClient.generate_request_body([tensor])
    if not output:
        body = body.replace(b',"parameters":{"binary_data_output":true}', b"")
    monkeypatch.setattr(FileModel, "judge", None)
    assert service.loops
    before = service.loops.compiled
    with service.memory.open() as memory:
        reader = endpoint.reader_of(asked)
        inference, parts = reader.find("affine", body, json_bytes or len(body), memory)
        assert inference
        data = cast("dict[str, Buffer]", inference.data(parts, memory))
        outcome = service.execute_in(Ticket(), inference.prepared, data, memory)
        np.testing.assert_array_equal(np.frombuffer(outcome.outputs["y"], np.float32).reshape(2, 3), affine_of(X))
    assert service.loops.compiled == before
    repository.close()
    service.close()
    assert service.memory.used == 0


@pytest.mark.parametrize("binary", [True, False])
def test_the_first_request_finds_memory_that_was_used(tmp_path: Path, binary: bool) -> None:
    """Its body's, as large as it is received."""
    sizes = [318, 64]  # a little less than what is kept for such a tensor
    service, repository, _ = rehearsed(
        tmp_path, model("m (float[rows, 64] x) => (float[rows, 64] y) { y = Neg(x) }"), sizes
    )
    x = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
    tensor = triton.InferInput("x", sizes, "FP32").set_data_from_numpy(x, binary_data=binary)
    body, json_bytes = triton.InferenceServerClient.generate_request_body([tensor])
    assert service.memory.pool.take_used(beginning(json_bytes or 0) + len(body))
    repository.close()
    service.close()


@pytest.mark.parametrize("name", ["[]", '"', ", "])
@pytest.mark.parametrize("sizes", ["", "1,2"])
def test_whatever_inputs_are_called(name: str, sizes: str) -> None:
    """And without dimensions."""
    shape = tuple(int(each) for each in sizes.split(",") if each)
    port = Port(name, "float32", shape)
    asked = [each.text for each in rehearsals(Signature({name: port}, {"y": port}), (shape,), 100) if not each.zeros]
    assert len(asked) == 4
    for each in asked:
        (told,) = json.loads(each)["inputs"]
        assert (told["name"], told["data"]) == (name, [0] * math.prod(shape))


@pytest.mark.parametrize(
    ("type_", "datatype", "zero"), [("bool", "BOOL", "false"), ("int64", "INT64", "0"), ("float64", "FP64", "0.")]
)
def test_zeros_are_written_as_clients_write_them(type_: str, datatype: str, zero: str) -> None:
    port = Port("x", type_, (2,))
    asked = [each.text for each in rehearsals(Signature({"x": port}, {"y": port}), ((2,),), 100) if not each.zeros]
    assert len(asked) == 4
    for each in asked:
        (told,) = json.loads(each)["inputs"]
        assert (told["datatype"], told["data"]) == (datatype, [0, 0])
        assert b'"data":[' + zero.encode() in each.replace(b" ", b"")


def test_one_that_fails_on_zeros_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Service, "execute_in", fail)
    service, repository, _ = rehearsed(tmp_path, llvm=False)
    assert repository.lookup(repository.known("affine", None), ((2, 3),))
    repository.close()
    service.close()


async def ask(endpoint: InferEndpoint) -> bytes:
    """The answer to an inference for sizes that nothing is compiled for."""
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, object]:
        return messages.pop() if messages else await asyncio.Future()  # the client stays

    reply = await endpoint(Request("POST", "/", b"/", b"", [], AsgiBody(len(body), receive), {}), {"name": "affine"})
    answer = b"".join(reply.pieces)
    reply.sent()
    return answer


def test_one_that_is_loaded_again_before_it_is_compiled_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client need not know that somebody has a model's file read again."""
    service, repository, endpoint = rehearsed(tmp_path, llvm=False)

    async def loaded_again() -> bytes:
        find, before = endpoint.models.find, [await endpoint.models.find("affine")]
        await repository.load("affine")

        async def find_old_first(name: str, version: str | None) -> object:
            return before.pop() if before else await find(name, version)

        monkeypatch.setattr(endpoint.models, "find", find_old_first)
        return await ask(endpoint)

    (output, *_) = json.loads(asyncio.run(loaded_again()))["outputs"]
    np.testing.assert_array_equal([output["data"]], affine_of(np.array([[1, 2, 3]], np.float32)))
    repository.close()
    service.close()
    assert service.memory.used == 0


def test_one_that_is_unloaded_before_it_is_compiled_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not compiled again and again, for nobody."""
    service, repository, endpoint = rehearsed(tmp_path, llvm=False)

    async def unloaded() -> None:
        found = await endpoint.models.find("affine")

        async def find(*_: object) -> object:
            return found

        monkeypatch.setattr(endpoint.models, "find", find)
        repository.close()
        await ask(endpoint)

    monkeypatch.setattr(Repository, "compiled", None)
    with pytest.raises(
        HTTPException, match="affine:1 is not compiled for this request: it was loaded again, or"
    ) as raised:
        asyncio.run(unloaded())
    assert raised.value.status_code == 503
    service.close()
    assert service.memory.used == 0


def test_one_that_others_take_the_place_of_again_and_again_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, repository, endpoint = rehearsed(tmp_path, llvm=False)
    compiled = []

    async def compile_and_drop(_: Repository, __: LoadedModel, sizes: object) -> None:
        compiled.append(sizes)

    monkeypatch.setattr(Repository, "compiled", compile_and_drop)
    with pytest.raises(HTTPException, match="max_model_graphs") as raised:
        asyncio.run(ask(endpoint))
    assert raised.value.status_code == 503
    assert compiled == [((1, 3),)] * 4
    repository.close()
    service.close()
    assert service.memory.used == 0


def test_one_that_is_loaded_again_and_again_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asked for more sizes than there may be."""
    service, repository, endpoint = rehearsed(tmp_path, llvm=False)
    compiled = Repository.compiled

    async def compile_and_load(self: Repository, model: LoadedModel, sizes: SizesOfAll) -> SizedModel:
        made = await compiled(self, model, sizes)
        await self.load("affine")
        return made

    monkeypatch.setattr(Repository, "compiled", compile_and_load)
    with pytest.raises(HTTPException, match="affine:1 is not compiled for this request: it was loaded again") as raised:
        asyncio.run(ask(endpoint))
    problem = problem_for(raised.value)
    assert (problem.document["status"], problem.headers) == (503, {"Retry-After": "1"})
    repository.close()
    service.close()
    assert service.memory.used == 0


def test_sizes_that_are_asked_for_again_are_kept_longest(tmp_path: Path) -> None:
    """Also by a request that was read before, for which nobody looks them up."""
    service, repository, endpoint = rehearsed(tmp_path, llvm=False)
    for _ in range(3):
        asyncio.run(ask(endpoint))
    assert [sizes for _, sizes in repository.compiled_sizes()] == [((2, 3),), ((1, 3),)]
    repository.lookup(repository.known("affine", None), ((2, 3),))
    assert [sizes for _, sizes in repository.compiled_sizes()] == [((1, 3),), ((2, 3),)]
    asyncio.run(ask(endpoint))
    assert [sizes for _, sizes in repository.compiled_sizes()] == [((2, 3),), ((1, 3),)]
    repository.close()
    service.close()


def test_it_is_done_on_zeros_whatever_was_in_memory_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, execute_in = MemoryShare.buffer, Service.execute_in
    given = []

    def used_buffer(memory: MemoryShare, size: int) -> Buffer:
        made = buffer(memory, size)
        made[:] = b"\xff" * size
        return made

    def execute(service: Service, ticket: Any, prepared: Any, data: dict[str, Buffer], memory: MemoryShare) -> Any:
        given.append(bytes(data["x"]))
        return execute_in(service, ticket, prepared, data, memory)

    monkeypatch.setattr(MemoryShare, "buffer", used_buffer)
    monkeypatch.setattr(Service, "execute_in", execute)
    service, repository, _ = rehearsed(tmp_path, llvm=False)
    assert set(given) == {bytes(24)}
    repository.close()
    service.close()


@pytest.mark.parametrize(("rows", "count"), [(2, 6), (80_000, 2), (90_000, 0)])
def test_what_is_large_is_not_sent_to_the_service(tmp_path: Path, rows: int, count: int) -> None:
    service, repository, endpoint = rehearsed(tmp_path, sizes=(rows, 3), llvm=False)
    assert len([*endpoint.expected()]) == count
    repository.close()
    service.close()


def test_each_version_is_asked_for(tmp_path: Path) -> None:
    """The newest one without saying so, as clients do."""
    for version in ("1", "2"):
        (tmp_path / "affine" / version).mkdir(parents=True)
        (tmp_path / "affine" / version / "model.onnx").write_bytes(affine().SerializeToString())
    service = Service(Settings(models=str(tmp_path), warm="affine=2x3", gpus="none", llvm=False))
    repository = Repository(service)
    endpoint = InferEndpoint(service, Metrics(service, ConnectionLimit(1)), repository)
    repository.open()
    paths = [each.split(b" ", 2)[1] for each in endpoint.expected()]
    assert {*paths} == {b"/v2/models/affine/infer", b"/v2/models/affine/versions/1/infer"}
    repository.close()
    service.close()


@ours_only
def test_a_service_has_answered_what_will_be_asked(start_server: ServerFactory, tmp_path: Path) -> None:
    """By its own connection, and as tritonclient and others write it. None of it is counted."""
    folder = tmp_path / "models"
    folder.mkdir()
    served = model("m (float[rows, 3] x) => (float[rows, 3] y) { y = Neg(x) }")
    (folder / "affine.onnx").write_bytes(served.SerializeToString())
    keys = tmp_path / "keys"
    keys.write_text("c2VjcmV0LWtleQ\n")
    flags = (
        "--models",
        str(folder),
        "--warm",
        "affine=2x3",
        "--warm",
        "affine=9000x3",
        "--log-level",
        "debug",
        "--api-keys-file",
        str(keys),
    )
    server = start_server(*flags, "--gpus", "none", "--max-batch", "4")
    said = server.log.read_text()
    rehearsed_first = said[: said.index("running on")]
    assert rehearsed_first.count("POST /v2/models/affine/infer HTTP/1.1: HTTP/1.1 200 OK") >= 6
    assert "will take longer" not in said
    with httpx.Client(base_url=server.url, headers={"Authorization": "Bearer c2VjcmV0LWtleQ"}) as client:
        stats = client.get("/v2/models/stats").json()["model_stats"]
        (of_model,) = [each for each in stats if each["name"] == "affine"]
        assert (of_model["inference_count"], of_model["inference_stats"]["success"]["count"]) == (0, 0)
        before = series_of(client.get("/metrics").text)
        asked = [each for each in before if 'method="POST"' in each]
        assert [before[each] for each in asked] == [0, 0]  # with the version and without
        assert {each for name, each in before.items() if "_batches_" in name} == {0}
        body = {"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32", "data": X.flatten().tolist()}]}
        assert client.post("/v2/models/affine/infer", json=body).status_code == 200
        after = series_of(client.get("/metrics").text)
        assert {each for each in after if each not in before and "_key_" not in each} == set()
        assert [after[each] - before[each] for each in asked if "versions" not in each] == [1]


def series_of(text: str) -> dict[str, float]:
    """What is counted of inferences and their answers, but for what tells of `/metrics` and statistics themselves."""
    found = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in found if "/metrics" not in name and "stats" not in name}


@pytest.mark.parametrize("batches", [1, 4])
def test_what_a_model_will_be_counted_in_is_there_before(tmp_path: Path, batches: int) -> None:
    """At 0, as Prometheus advises: `rate` does not see the request that makes a series."""
    served = model("m (float[rows, 2] x) => (float[rows, 2] y) { y = Neg(x) }")
    service, repository, endpoint = rehearsed(tmp_path, served, (1, 2), max_batch=batches)
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()

    came = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, object]:
        return came.pop() if came else await asyncio.Future()

    async def ask() -> None:
        request = Request("POST", "/", b"/", b"", [], AsgiBody(len(body), receive), {})
        request.stages = Stages()
        reply = await endpoint(request, {"name": "affine"})
        reply.sent()
        assert ("batch" in {each.name for each in request.stages.done}) == (batches > 1)
        assert request.prepared
        assert request.outcome
        endpoint.metrics.dispatched(request.prepared, request.outcome)

    before = series_of(endpoint.metrics.render().decode())
    service.open()
    asyncio.run(ask())
    after = series_of(endpoint.metrics.render().decode())
    assert before.keys() == after.keys()
    told = [each for each in after if "affine:1" in each or 'operator="graph"' in each or "/infer" in each]
    assert {before[each] for each in told} == {0}
    assert ('dmlserve_inference_batches_total{operator="affine:1",size="0"}' in told) == (batches > 1)
    counted = {each for each in told if after[each] > 0}
    assert 'dmlserve_inference_seconds_total{operator="affine:1",part="success"}' in counted
    assert 'dmlserve_dispatches_total{device="numpy",operator="graph"}' in counted
    assert ('dmlserve_inference_batches_total{operator="affine:1",size="1"}' in counted) == (batches > 1)
    repository.close()
    service.close()


def test_requests_are_sent_again_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [b"a", b"b"]
    monkeypatch.setattr(rehearsal, "AGAIN_SECONDS", 60.0)
    assert [*rehearsal.repeated(lambda: asked)] == asked * rehearsal.TIMES
    monkeypatch.setattr(rehearsal, "AGAIN_SECONDS", -1.0)
    assert [*rehearsal.repeated(lambda: asked)] == asked


@pytest.mark.parametrize("fault", ["hangs", "raises", "cuts"])
def test_a_rehearsal_that_fails_holds_up_no_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    monkeypatch.setattr(rehearsal, "SECONDS", 1 if fault == "hangs" else 60)
    ended = []

    async def handle(request: Request) -> Reply:
        ended.append(request.is_rehearsal)
        if fault == "hangs":
            await asyncio.sleep(60)
        raise ValueError("no")

    class Cutting(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            self.transport.abort()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport

    limit = ConnectionLimit()
    connect = connections(rehearsal.rehearsing(handle), Settings(), limit, MemoryAccount(1 << 30))
    config = uvicorn.Config("none", log_config=None)  # which would be that of all tests after it
    make = Cutting if fault == "cuts" else lambda: connect(config, ServerState(), {})
    asyncio.run(rehearsal.rehearse(make, lambda: [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"] * 2))
    assert ended == ([] if fault == "cuts" else [True])
    assert "will take longer" in caplog.text
    assert limit.count == 0
