"""Models in a folder, as clients of the Open Inference Protocol see them."""

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgpack
import numpy as np
import onnx
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from app import main
from app.engine.service import Service
from app.engine.workers import QueueFull
from app.models.onnx.errors import WrongSizes
from app.models.onnx.reading import signature
from app.models.repository import constants, layout
from app.models.repository.config import BadConfig
from app.models.repository.model import LoadedModel, SizedModel
from app.models.repository.repository import Repository, check
from app.models.repository.warm import parse_stated
from app.settings import Settings, Unusable
from tests.conftest import RunningServer, ServerFactory, running_server
from tests.graphs.requests import MSGPACK, dispatch, result
from tests.http.load import metric, wait_until
from tests.http.refusals import error_at
from tests.inference import wire
from tests.models import onnx_runs
from tests.models.documents import Array, affine, affine_of, model, of_microsoft, put, undecided, unsupported

X = np.array([[-4, -2, 0], [1, 2, 4]], np.float32)
CONFIG = """
name: "versions"  # one that is there already
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output: { name: "y", data_type: TYPE_FP32, dims: -1 }
"""


def fill(folder: Path) -> None:
    """With models that can be served and some that cannot."""
    put(folder / "affine.onnx", affine())
    put(folder / "versions" / "1" / "model.onnx", affine(1))
    put(folder / "versions" / "10" / "model.onnx", affine(10))
    put(folder / "versions" / "9" / "model.onnx", affine(9))
    (folder / "versions" / "config.pbtxt").write_text(CONFIG)
    put(folder / "unsupported.onnx", unsupported())
    put(folder / "undecided.onnx", undecided())
    put(folder / "of_microsoft.onnx", of_microsoft())
    (folder / "broken.onnx").write_bytes(b"no model")
    put(folder / "activation_celu.onnx", affine())
    put(folder / "unread.onnx", model("m (float[2] x, int64[n] z) => (int64[2] y) { y = Cast<to=7>(x) }"))
    put(folder / "any.onnx", model("m (float[] x) => (float[] y) { y = Neg(x) }"))
    (folder / "notes.txt").write_text("no model either")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Path]]:
    folder = tmp_path_factory.mktemp("models")
    fill(folder)
    flags = ("--models", str(folder), "--warm", "affine=2x3; versions=x:1x3", "--max-model-graphs", "8")
    with running_server(tmp_path_factory.mktemp("log") / "log", *flags) as running:
        yield running, folder


@pytest.fixture
def client(served: tuple[RunningServer, Path]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served[0].url, timeout=60) as opened:
        yield opened


def infer(client: httpx.Client, name: str, x: Array = X, **members: object) -> dict[str, Array]:
    """All outputs, by binary data."""
    document = {"inputs": [wire.behind("x", x)], "parameters": {"binary_data_output": True}, **members}
    answer, data = wire.split(wire.post(client, f"/v2/models/{name}/infer", document, x.tobytes()))
    made = {}
    for each in answer["outputs"]:
        size = each["parameters"]["binary_data_size"]
        kinds = {"FP32": np.float32, "BOOL": np.bool_, "INT64": np.int64}
        made[each["name"]] = np.frombuffer(data[:size], kinds[each["datatype"]]).reshape(each["shape"])
        data = data[size:]
    assert not data
    return made


def test_metadata_say_what_is_free(client: httpx.Client) -> None:
    told = client.get("/v2/models/affine").json()
    shapes = {each["name"]: (each["datatype"], each["shape"]) for each in told["inputs"] + told["outputs"]}
    assert shapes == {
        "x": ("FP32", [-1, 3]), "y": ("FP32", [-1, 3]), "positive": ("BOOL", [-1, 3]), "sizes": ("INT64", [2]),
    }  # fmt: skip
    assert told["versions"] == ["1"]
    assert client.get("/v2/models/versions").json()["versions"] == ["1", "9", "10"]


def test_how_many_dimensions_there_are_may_be_free(client: httpx.Client) -> None:
    (told,) = client.get("/v2/models/any").json()["inputs"]
    assert (told["shape"], told["parameters"]["dimension_counts"]) == ([-1], [*range(9)])
    for x in (X, X[0], X[0, 0], X[None]):
        np.testing.assert_array_equal(infer(client, "any", x)["y"], -x)
    response = client.post("/v2/models/any/infer", json={"inputs": [wire.listed("x", X[:0])]})
    assert response.json()["error"] == "Input x is FP32 [0, 3]; it must be FP32 [-1], and no size may be 0."


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_each_size_is_compiled_when_it_comes(client: httpx.Client, rows: int) -> None:
    x = np.resize(X, (rows, 3))
    for _ in range(4):  # the third is found by the second
        made = infer(client, "affine", x)
        np.testing.assert_array_equal(made["y"], affine_of(x))
        np.testing.assert_array_equal(made["positive"], affine_of(x) > 0)
        np.testing.assert_array_equal(made["sizes"], [rows, 3])


def test_numbers_and_chosen_outputs(client: httpx.Client) -> None:
    document = {"inputs": [wire.listed("x", X)], "outputs": [{"name": "y"}]}
    answer, _ = wire.split(client.post("/v2/models/affine/infer", json=document))
    (output,) = answer["outputs"]
    np.testing.assert_array_equal(np.reshape(output["data"], output["shape"]), affine_of(X))
    assert (answer["model_name"], answer["model_version"]) == ("affine", "1")


def test_truths_in_json_are_true_and_false(client: httpx.Client) -> None:
    """As Triton has them, which takes nothing else either."""
    document = {"inputs": [wire.listed("x", X)], "outputs": [{"name": "positive"}]}
    content = client.post("/v2/models/affine/infer", json=document).raise_for_status().text
    assert json.loads(content)["outputs"][0]["data"] == (affine_of(X) > 0).ravel().tolist()
    assert '"data":[false,' in content


def test_inputs_that_nobody_reads_are_taken_all_the_same(client: httpx.Client) -> None:
    inputs = [wire.listed("x", X[0, :2]), wire.listed("z", np.arange(7))]
    answer, _ = wire.split(client.post("/v2/models/unread/infer", json={"inputs": inputs}))
    assert answer["outputs"][0]["data"] == [-4, -2]
    assert answer["outputs"][0]["datatype"] == "INT64"


def test_the_newest_version_goes_without_saying(client: httpx.Client) -> None:
    for version, weight in (("", 10), ("/versions/1", 1), ("/versions/9", 9)):
        made = infer(client, f"versions{version}", model_version=version.rpartition("/")[2] or "10")
        np.testing.assert_array_equal(made["y"], affine_of(X, weight))
    missing = client.get("/v2/models/versions/versions/2/ready")
    assert missing.status_code == 404
    assert missing.json()["error"] == "Model versions has no version 2; there is 1, 9, 10."
    assert client.get("/v2/models/versions/versions/9/ready").json() == {"name": "versions", "ready": True}


def test_what_is_wrong_is_said(client: httpx.Client) -> None:
    for inputs, why in (
        ([wire.listed("x", X[:, :2])], "Input x is FP32 [2, 2]; it must be FP32 [-1, 3]."),
        ([wire.listed("x", X.astype(np.int32))], "Input x is INT32"),
        ([wire.listed("x", X[:0])], "Input x is FP32 [0, 3]; it must be FP32 [-1, 3], and no size may be 0."),
        ([wire.listed("w", X)], "no input of this model"),
        ([], "Input x is missing"),
    ):
        response = client.post("/v2/models/affine/infer", json={"inputs": inputs})
        assert response.status_code == 400
        assert why in response.json()["error"]
    huge = wire.tensor("x", X, parameters={"binary_data_size": 0}) | {"shape": [1 << 30, 3]}
    assert client.post("/v2/models/affine/infer", json={"inputs": [huge]}).status_code == 413


def test_what_cannot_be_served_is_listed_with_the_reason(client: httpx.Client) -> None:
    listed = {(each["name"], each["version"]): each for each in client.post("/v2/repository/index").json()}
    for name, why in (
        ("unsupported", "Det"),
        ("unsupported", "NonZero"),
        ("broken", "no ONNX model"),
        ("activation_celu", "operator's name"),
    ):
        assert listed[name, "1"]["state"] == "UNAVAILABLE"
        assert why in listed[name, "1"]["reason"]
    assert listed["versions", "9"] == {"name": "versions", "version": "9", "state": "READY", "reason": ""}
    ready = client.post("/v2/repository/index", json={"ready": True}).json()
    assert ready == [each for each in listed.values() if each["state"] == "READY"]
    assert client.get("/v2/models/unsupported/ready").status_code == 503
    refused = client.post("/v2/models/unsupported/infer", json={"inputs": []})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "Det" in refused.json()["error"]
    assert client.post("/v2/repository/models/unsupported/load").status_code == 400
    assert client.get("/v2/models/activation_celu").json()["inputs"][0]["name"] == "InputTensor"


@pytest.mark.parametrize(
    ("name", "node"),
    [("undecided", "repeat (Loop, opset 17)"), ("of_microsoft", "distances (com.microsoft.CDist, opset 1)")],
)
def test_the_node_is_named_for_which_a_model_is_refused(client: httpx.Client, name: str, node: str) -> None:
    listed = {each["name"]: each for each in client.post("/v2/repository/index").json()}
    assert listed[name]["state"] == "UNAVAILABLE"
    assert listed[name]["reason"].startswith(f"{node}: ")
    loaded = client.post(f"/v2/repository/models/{name}/load")
    assert loaded.status_code == 400
    assert f"{node}: " in loaded.json()["error"]
    assert client.get(f"/v2/models/{name}/ready").json() == {"name": name, "ready": False}


def test_many_at_once_have_it_compiled_once(client: httpx.Client) -> None:
    x = np.resize(X, (11, 3))
    with ThreadPoolExecutor(6) as pool:
        for made in pool.map(lambda _: infer(client, "affine", x), range(24)):
            np.testing.assert_array_equal(made["y"], affine_of(x))


def test_statistics_and_metrics_are_by_model_and_version(client: httpx.Client) -> None:
    def count() -> int:
        (told,) = client.get("/v2/models/versions/versions/9/stats").json()["model_stats"]
        assert (told["name"], told["version"]) == ("versions", "9")
        return int(told["inference_stats"]["success"]["count"])

    before = count()
    infer(client, "versions/versions/9")
    assert count() == before + 1
    every = client.get("/v2/models/stats").json()["model_stats"]
    assert {each["version"] for each in every if each["name"] == "versions"} == {"1", "9", "10"}
    of_all = client.get("/v2/models/versions/stats").json()["model_stats"]
    assert of_all == [each for each in every if each["name"] == "versions"]
    assert 'dmlserve_inference_seconds_total{operator="versions:9",part="success"}' in client.get("/metrics").text


@pytest.mark.parametrize(
    ("stated", "policy"),
    [
        ("", {"all": {}}),
        ("version_policy { all {} }", {"all": {}}),
        ("version_policy { latest { num_versions: 2 } }", {"latest": {"num_versions": 2}}),
        ("version_policy { specific { versions: [3, 1] } }", {"specific": {"versions": [3, 1]}}),
    ],
)
def test_the_configuration_tells_which_versions_are_served(
    served: tuple[RunningServer, Path], client: httpx.Client, stated: str, policy: dict[str, Any]
) -> None:
    """As its config.pbtxt says, whichever of these can be loaded."""
    folder = served[1] / "chosen"
    for version in ("1", "3"):
        put(folder / version / "model.onnx", affine())
    (folder / "2").mkdir(exist_ok=True)
    (folder / "2" / "model.onnx").write_bytes(b"broken")
    (folder / "config.pbtxt").write_text(stated)
    assert client.post("/v2/repository/models/chosen/load").status_code == 200
    for path in ("/v2/models/chosen/config", "/v2/models/chosen/versions/3/config"):
        assert client.get(path).json()["version_policy"] == policy


def test_load_and_unload_by_tritons_client(served: tuple[RunningServer, Path], client: httpx.Client) -> None:
    running, folder = served
    with triton.InferenceServerClient(running.url.removeprefix("http://")) as theirs:
        with pytest.raises(InferenceServerException, match="no model later"):
            theirs.load_model("later")
        put(folder / "later.onnx", affine(3))
        theirs.load_model("later")
        assert theirs.is_model_ready("later")
        np.testing.assert_array_equal(infer(client, "later")["y"], affine_of(X, 3))
        put(folder / "later.onnx", affine(4))
        np.testing.assert_array_equal(infer(client, "later")["y"], affine_of(X, 3))
        theirs.load_model("later")
        np.testing.assert_array_equal(infer(client, "later")["y"], affine_of(X, 4))
        theirs.unload_model("later")
        assert not theirs.is_model_ready("later")
        assert "load loads it" in client.get("/v2/models/later").json()["error"]
        given = triton.InferInput("x", [2, 3], "FP32").set_data_from_numpy(X)
        np.testing.assert_array_equal(theirs.infer("affine", [given]).as_numpy("y"), affine_of(X))
    for name in ("never", "..", "a%2fb", "%00", "later%0a"):
        assert client.post(f"/v2/repository/models/{name}/load").status_code in (400, 404)
        assert client.post(f"/v2/repository/models/{name}/unload").status_code in (400, 404)


def test_a_model_may_be_sent_to_be_kept(client: httpx.Client) -> None:
    data = affine().SerializeToString()
    octets = {"content-type": "application/octet-stream"}
    sent = client.post("/v1/graphs?sizes=x:2x3&name=sent&device=numpy", content=data, headers=octets)
    told = sent.raise_for_status().json()
    assert (told["name"], told["device"]) == ("sent", "numpy")
    assert set(told["inputs"]) == {"x"}
    assert set(told["outputs"]) == {"y", "positive", "sizes"}
    np.testing.assert_array_equal(result(dispatch(client, told["id"], x=X)), affine_of(X))
    again = client.post("/v1/graphs?sizes=2x3", content=data, headers=octets)
    assert (again.status_code, again.json()["id"]) == (200, told["id"])
    document = {"onnx": base64.b64encode(data).decode(), "sizes": {"x": [2, 3]}}
    assert client.post("/v1/graphs", json=document).json()["id"] == told["id"]
    packed = client.post("/v1/graphs", content=msgpack.packb(document | {"onnx": data}), headers=MSGPACK)
    assert msgpack.unpackb(packed.content)["id"] == told["id"]
    client.delete(f"/v1/graphs/{told['id']}")
    without_type = model("m (float[2] x) => (float[2] y) { y = Relu(x) }")
    without_type.graph.output[0].ClearField("type")
    for query, content, pointer in (
        ("", data, "/sizes"),
        ("?sizes=x", data, "/sizes"),
        ("?sizes=2x4", data, "/sizes"),
        ("?sizes=z:2x3", data, "/sizes"),
        ("?sizes=4294967296x3", data, "/sizes"),
        ("?name=a%20b&sizes=2x3", data, "/name"),
        ("?name=&sizes=2x3", data, "/name"),
        ("?device=cuda:7&sizes=2x3", data, "/device"),
        ("?other=1", data, "/other"),
        ("?sizes=2x3&sizes=2x3", data, "/sizes"),
        ("", b"no model", "/onnx"),
        ("", without_type.SerializeToString(), "/onnx"),
    ):
        error = error_at(pointer, client.post(f"/v1/graphs{query}", content=content, headers=octets))
        if pointer == "/sizes" and query:
            assert error["given"]
    assert error_at("/sizes", client.post("/v1/graphs", content=data, headers=octets))["allowed"] == [["batch", 3]]
    wrong = error_at("/sizes", client.post("/v1/graphs?sizes=2x4", content=data, headers=octets))
    assert (wrong["given"], wrong["allowed"]) == ([2, 4], [["batch", 3]])
    refused = client.post("/v1/graphs", content=unsupported().SerializeToString(), headers=octets)
    assert refused.status_code == 422
    assert [each["pointer"] for each in refused.json()["errors"]] == ["/onnx", "/onnx"]


def test_a_graph_that_is_kept_has_no_models_name(served: tuple[RunningServer, Path], client: httpx.Client) -> None:
    data, octets = affine().SerializeToString(), {"content-type": "application/octet-stream"}

    def keep(name: str) -> httpx.Response:
        return client.post(f"/v1/graphs?sizes=5x3&name={name}", content=data, headers=octets)

    error = error_at("/name", keep("affine"), 409)
    assert error["message"] == "A model from a file has the name affine; give another name."
    kept = keep("named").raise_for_status().json()["id"]
    put(served[1] / "named.onnx", affine(6))
    client.post("/v2/repository/models/named/load").raise_for_status()  # whose name it is from now on
    np.testing.assert_array_equal(infer(client, "named")["y"], affine_of(X, 6))
    names = [each["name"] for each in client.post("/v2/repository/index").json()]
    assert names.count("named") == names.count(kept) == 1
    client.delete(f"/v1/graphs/{kept}").raise_for_status()
    client.post("/v2/repository/models/named/unload").raise_for_status()


def test_outputs_of_what_is_kept_are_as_the_model_says(client: httpx.Client) -> None:
    """Operators describe them otherwise: sums with the axes that are gone, products as one matrix, copies as bits."""
    x, w = np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.eye(4, 3, dtype=np.float32)
    made = model(
        "m (float[2,3,4] x) => (float[2,4] sum, float[2,3,3] product, float[4,3,4] tiled)"
        "{ sum = ReduceSum<keepdims=0>(x, axis) product = MatMul(x, w) tiled = Tile(x, twice) }",
        axis=np.array([1]),
        w=w,
        twice=np.array([2, 1, 1]),
    )
    octets = {"content-type": "application/octet-stream"}
    told = client.post("/v1/graphs", content=made.SerializeToString(), headers=octets).raise_for_status().json()
    answer = dispatch(client, told["id"], x=x)
    for name, wanted in {"sum": x.sum(1), "product": x @ w, "tiled": np.tile(x, (2, 1, 1))}.items():
        described = told["outputs"][name]
        assert (described["DataType"], described["Sizes"]) == ("FLOAT32", list(wanted.shape)), name
        np.testing.assert_array_equal(result(answer, name), wanted)
    client.delete(f"/v1/graphs/{told['id']}")


def test_inputs_of_what_is_kept_are_as_the_model_says(client: httpx.Client) -> None:
    """Operators read them otherwise: broadcast, transposed, as one matrix, with other sizes, a part of them first."""
    text = """
        m (float[2,3] x, float[2,1] column, float[3] row, float[3,2] turned, float[2,3,4] many, float[4,3] most,
           bool[3] kept) => (float[2,3] y, float[2,3,3] product)
        { part = Slice(most, one, three) a = Add(x, column) b = Mul(a, row) c = Transpose(turned) d = Sub(b, c)
          e = Add(d, part) y = Where(kept, e, x) flat = Reshape(many, shape) f = MatMul(flat, most)
          product = Reshape(f, back) }"""
    made = model(
        text,
        one=np.array([1]),
        three=np.array([3]),
        shape=np.array([1, 6, 4]),
        back=np.array([2, 3, 3]),
    )
    octets = {"content-type": "application/octet-stream"}
    told = (
        client.post("/v1/graphs?name=told", content=made.SerializeToString(), headers=octets).raise_for_status().json()
    )
    sizes = {each.name: [size.dim_value for size in each.type.tensor_type.shape.dim] for each in made.graph.input}
    assert {name: (each["Sizes"], each["Strides"]) for name, each in told["inputs"].items()} == {
        name: (each, None) for name, each in sizes.items()
    }
    assert {each["name"]: each["shape"] for each in client.get("/v2/models/told").json()["inputs"]} == sizes
    given = {name: np.arange(np.prod(each), dtype=np.float32).reshape(each) for name, each in sizes.items()}
    kept = np.array([1, 0, 1], np.uint8)
    numbers = {name: each.tolist() for name, each in (given | {"kept": kept}).items()}
    answer = client.post(f"/v1/graphs/{told['id']}/dispatch", json={"inputs": numbers}).raise_for_status().json()
    x, most = given["x"], given["most"]
    y = (x + given["column"]) * given["row"] - given["turned"].T + most[1:3]
    np.testing.assert_array_equal(answer["outputs"]["y"]["data"], np.where(kept, y, x))
    np.testing.assert_array_equal(answer["outputs"]["product"]["data"], given["many"] @ most)
    client.delete(f"/v1/graphs/{told['id']}").raise_for_status()


def test_several_workers_have_the_same_models(start_server: ServerFactory, tmp_path: Path) -> None:
    put(tmp_path / "affine.onnx", affine())
    running = start_server("--workers", "2", "--models", str(tmp_path))

    def states(wanted: bool) -> None:
        for _ in range(12):
            with httpx.Client(base_url=running.url) as fresh:  # each connection is of one worker
                assert (fresh.get("/v2/models/affine/ready").status_code == 200) is wanted

    with httpx.Client(base_url=running.url, timeout=60) as client:
        states(True)
        assert client.post("/v2/repository/models/affine/unload").status_code == 200
        states(False)
        assert client.post("/v2/repository/models/affine/load").status_code == 200
        states(True)
        np.testing.assert_array_equal(infer(client, "affine")["y"], affine_of(X))


def test_all_workers_load_a_model_and_let_go_of_it_though_one_was_asked(
    start_server: ServerFactory, tmp_path: Path
) -> None:
    """Whether there are requests to it or not."""
    weight = np.ones((512, 512), np.float32)
    wide = model("m (float[n,512] x) => (float[n,512] y) { y = MatMul(x, w) }", w=weight)
    put(tmp_path / "wide.onnx", wide)
    put(tmp_path / "affine.onnx", affine(1))
    running = start_server("--workers", "2", "--models", str(tmp_path))
    with httpx.Client(base_url=running.url, timeout=60) as client:

        def held() -> float:
            return metric(client, "memory_bytes")

        wait_until(lambda: held() > 2 * weight.nbytes)
        client.post("/v2/repository/models/wide/unload").raise_for_status()
        wait_until(lambda: held() < weight.nbytes)
        put(tmp_path / "affine.onnx", affine(2))
        client.post("/v2/repository/models/affine/load").raise_for_status()
        client.post("/v2/repository/models/wide/load").raise_for_status()
        wait_until(lambda: held() > 2 * weight.nbytes)  # after the other one, in the order of their names
        put(tmp_path / "affine.onnx", affine(3))  # which nobody asked for yet
        for _ in range(12):
            with httpx.Client(base_url=running.url, timeout=60) as fresh:  # each connection is of one worker
                np.testing.assert_array_equal(infer(fresh, "affine")["y"], affine_of(X, 2))


@pytest.mark.parametrize(
    ("error", "logged"),
    [(QueueFull(1), []), (ZeroDivisionError(), ["What other processes were asked of models cannot be done"])],
)
def test_what_fails_of_it_is_done_another_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, logged: list[str]
) -> None:
    monkeypatch.setattr(main, "_TENDED_SECONDS", 0)

    async def followed() -> None:
        left, again = [error], asyncio.Event()

        async def fails_first() -> None:
            if left:
                raise left.pop()
            again.set()

        repository: Any = SimpleNamespace(follow=fails_first)
        following = asyncio.create_task(main._follow(repository))
        await asyncio.wait_for(again.wait(), 60)
        following.cancel()

    asyncio.run(followed())
    assert caplog.messages == logged


class TestMemory:
    """Weights and what is compiled are in the account, and go when they have to."""

    def repository(self, folder: Path, **settings: object) -> tuple[Service, Repository]:
        given = {"threads": 1, "gpus": "none", "llvm": False, "models": str(folder)} | settings
        service = Service(Settings(**given))  # type: ignore[arg-type]
        service.open()
        made = Repository(service)
        made.open()
        return service, made

    def test_it_is_charged_and_given_back(self, tmp_path: Path) -> None:
        weight = np.ones((64, 1024), np.float32)
        text = "m (float[n,64] x) => (float[n,1024] y) { h = Mul(w, w) y = MatMul(x, h) }"
        put(tmp_path / "wide.onnx", model(text, w=weight))
        service, repository = self.repository(tmp_path, max_model_graphs=2)
        loaded = repository.known("wide", None)
        assert weight.nbytes <= service.memory.used < 2 * weight.nbytes
        for rows in (1, 2, 3, 4):
            sized = repository.compile(loaded, ((rows, 64),), lambda: False)
            assert repository.lookup(loaded, ((rows, 64),)) is sized
        assert service.memory.used < 2.5 * weight.nbytes, "what is computed of weights is there once"
        assert repository.lookup(loaded, ((1, 64),)) is None
        assert repository.lookup(loaded, ((3, 64),)) is not None, "it is the last one used"
        repository.compile(loaded, ((5, 64),), lambda: False)
        assert repository.lookup(loaded, ((3, 64),)) is not None
        repository.close()
        assert service.memory.used == 0
        service.close()

    def test_sizes_share_what_is_the_same(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Weights, among initializers and nodes, what is made and computed of them, and what of it all is packed."""
        rng = np.random.default_rng(1)
        text = """m (float[n,8,h,3] x) => (float[n,1024] y) {
            c = Conv<kernel_shape = [1,1]>(x, filters) m = Mul(c, factor) p = GlobalAveragePool(m)
            f = Flatten(p) w = DequantizeLinear(whole, scale) z = MatMul(f, w) k = Constant<value = float[64,1024]
            CONSTANT>() s = Identity(k) q = MatMul(f, s) y = Add(z, q) }"""
        text = text.replace("CONSTANT", "{" + ", ".join(f"{each:.3f}" for each in rng.random(64 << 10)) + "}")
        weights = {
            "filters": rng.random((64, 8, 1, 1), np.float32),
            "factor": rng.random((1, 64, 1, 1), np.float32),
            "whole": rng.integers(0, 255, (64, 1024), np.uint8),
            "scale": np.array(0.01, np.float32),
        }
        put(tmp_path / "wide.onnx", model(text, **weights))
        service, repository = self.repository(tmp_path, llvm=True, max_memory_bytes=8 << 20)
        monkeypatch.setattr(constants, "LEAST", 1 << 8)
        loaded = repository.known("wide", None)
        assert loaded.weight_bytes == sum(each.nbytes for each in weights.values()) + (64 << 12)
        used: list[int] = []
        kernels = []
        for sizes in ((1, 8, 4, 3), (1, 8, 5, 3), (1, 8, 6, 3), (1, 8, 7, 3)):
            sized = repository.compile(loaded, (sizes,), lambda: False)
            kernels.append((sized, service.prepare_graph(sized.graph, "numpy")))
            used.append(service.memory.used)
        nodes = [constants.NODE_BYTES * sized.graph.subject.nodes for sized, _ in kernels]
        packed = [sized.graph.packed for sized, _ in kernels]
        assert len(packed[0]) >= 3
        assert all(each == packed[0] for each in packed)
        assert [after - before for before, after in pairwise(used)] == nodes[1:]
        assert used[0] > loaded.weight_bytes + (64 << 12) + sum(packed[0].values())
        for key in [key for key in loaded.constants._shared if isinstance(key, str)]:
            data = loaded.constants.computed(key)
            assert all(any(data is each for each in sized.graph.runnable.kept) for sized, _ in kernels)
        x = rng.random((1, 8, 7, 3), np.float32)
        with service.memory.open() as memory:
            made = service.execute_here(kernels[-1][1], {"x": x.data.cast("B")}, memory).outputs["y"]
        alone = onnx_runs.run(onnx.load(tmp_path / "wide.onnx"), {"x": x})["y"]
        np.testing.assert_allclose(np.frombuffer(made, np.float32), alone.ravel(), rtol=1e-5)
        repository.close()
        assert service.memory.used == 0
        service.close()

    def test_what_is_used_least_makes_room(self, tmp_path: Path) -> None:
        """And takes with it what was computed for its sizes alone."""
        text = """m (float[n,16384] x) => (float[n,16384] y) {
            s = Shape<end = 1>(x) r = Concat<axis = 0>(s, two) t = Expand(v, r) h = MatMul(t, w) y = Add(x, h) }"""
        given = {"v": np.ones((1, 2), np.float32), "w": np.ones((2, 1 << 14), np.float32), "two": np.array([2])}
        put(tmp_path / "tiled.onnx", model(text, **given))
        service, repository = self.repository(tmp_path, max_memory_bytes=1 << 20)
        loaded = repository.known("tiled", None)
        at_first = service.memory.used
        for rows in (1, 2, 3, 4, 5):
            repository.compile(loaded, ((rows, 1 << 14),), lambda: False)
            assert service.memory.used <= 1 << 20
        assert repository.lookup(loaded, ((1, 1 << 14),)) is None
        assert repository.lookup(loaded, ((5, 1 << 14),)) is not None
        assert service.memory.used > at_first + 5 * (1 << 16)
        repository.close()
        assert service.memory.used == 0
        service.close()

    def test_who_wants_the_same_sizes_waits_for_one_compilation(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(tmp_path / "affine.onnx", affine())
        service, repository = self.repository(tmp_path)
        loaded = repository.known("affine", None)
        compiled = []
        real = LoadedModel.compile

        def counted(self: LoadedModel, *given: Any) -> SizedModel:
            assert threading.current_thread() is not threading.main_thread(), "the event loop goes on meanwhile"
            compiled.append(given[0])
            return real(self, *given)

        monkeypatch.setattr(LoadedModel, "compile", counted)

        async def main() -> None:
            wanted = [repository.compiled(loaded, ((rows, 3),)) for rows in (1, 2) for _ in range(5)]
            made = await asyncio.gather(*wanted)
            assert len({id(each) for each in made}) == 2

        asyncio.run(main())
        assert sorted(compiled) == [((1, 3),), ((2, 3),)]
        repository.close()
        service.close()

    def test_a_model_that_is_too_large(self, tmp_path: Path) -> None:
        for size in (64, 999):
            text = f"m (float[{size}] x) => (float[{size}] y) {{ y = Add(x, w) }}"
            put(tmp_path / f"of{size}.onnx", model(text, w=np.ones(size, np.float32)))
        service, repository = self.repository(tmp_path, max_model_bytes=1 << 10)
        states = {name: each for name, _, each in repository.all()}
        assert isinstance(states["of64"], LoadedModel)
        assert "max_model_bytes" in str(states["of999"])
        repository.close()
        service.close()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"models": "/nowhere"}, "no folder"),
        ({"warm": "a=1x3"}, "give --models"),
        ({"models": ".", "warm": "a=1x3"}, "no model a"),
        ({"models": ".", "warm": "a"}, "name=1x3x224x224"),
        ({"models": ".", "warm": "a=1x0"}, "name=1x3x224x224"),
        ({"models": ".", "warm": "a=x:1,2"}, "name=1x3x224x224"),
        ({"models": ".", "warm": "=1x3"}, "name=1x3x224x224"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, str], why: str, tmp_path: Path) -> None:
    if settings.get("models") == ".":
        settings = settings | {"models": str(tmp_path)}
    with pytest.raises(Unusable, match=why):
        check(Settings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ("2x3", "Name the inputs whose sizes are given: x, y"),
        ("x:2", "Sizes of y are missing; they are free: b"),
        ("x:2,y:3,w:4", "no input w; there is x, y, z"),
    ],
)
def test_stated_sizes_that_do_not_fit(stated: str, why: str) -> None:
    ports = signature(model("m (float[a] x, float[b] y, float[2] z) => (float[c] t) { t = Concat<axis=0>(x, y, z) }"))
    assert parse_stated("x:2,y:3").of(ports) == {"x": (2,), "y": (3,), "z": (2,)}
    with pytest.raises(WrongSizes, match=why):
        parse_stated(stated).of(ports)


def test_sizes_without_a_name_stand_alone() -> None:
    assert parse_stated("2x3").of(signature(affine())) == {"x": (2, 3)}
    assert parse_stated("x:,y:3").sizes == {"x": (), "y": (3,)}
    with pytest.raises(ValueError, match="either all sizes have a name"):
        parse_stated("2x3,y:4")
    for twice in ("2,3", "x:2,x:3"):  # the last one would win
        with pytest.raises(ValueError, match="of their own"):
            parse_stated(twice)
    for beyond in ("0x3", "x:4294967296"):
        with pytest.raises(ValueError, match="of sizes from 1 to 4294967295"):
            parse_stated(beyond)


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("", ["2", "9", "10"]),
        ("version_policy: { all {} }", ["2", "9", "10"]),
        ("version_policy { latest { num_versions: 2 } }", ["9", "10"]),
        ("version_policy { latest { } }", ["10"]),
        ("version_policy { latest { num_versions: 0 } }", ["10"]),
        ("version_policy: { specific { versions: [10, 2] } }", ["2", "10"]),
        ("version_policy: { specific { versions: 9 } }", ["9"]),
        ("version_policy: { specific { versions: [0x0A, 02] } }", ["2", "10"]),
    ],
)
def test_which_versions_are_served(tmp_path: Path, policy: str, served: list[str]) -> None:
    for version in ("2", "9", "10", "010", "new", "²"):
        put(tmp_path / "some" / version / "model.onnx", affine())
    (tmp_path / "some" / "config.pbtxt").write_text(policy)
    found = layout.find(tmp_path, "some")
    assert found
    assert found.versions == {each: tmp_path / "some" / each / "model.onnx" for each in served}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("version_policy { specific { versions: [1, 3] } }", "asks for 3; there is 1"),
        ("version_policy { specific { } }", "asks for no version"),
        ("version_policy { newest { } }", "none of latest, all and specific"),
        ("version_policy: 1", "none of latest, all and specific"),
        ("version_policy { latest: 1 }", "none of latest, all and specific"),
        ("version_policy { specific: 1 }", "none of latest, all and specific"),
        ("version_policy { latest { num_versions: many } }", "no number"),
        ("version_policy { latest { num_version: 2 } }", r"no field there\. Did you mean num_versions\?"),
        ("version_policy { specific { versions: [ newest ] } }", "a version that is no number"),
        ('default_model_filename: "../1/model.onnx"', "no file of a version's folder"),
        ('default_model_filename: "mo\0del.onnx"', "no file of a version's folder"),
        ('default_model_filename: ".."', "no file of a version's folder"),
        ("default_model_filename { }", "is a message"),
        ('default_model_filename: "best.onnx"', r"^There is no file best\.onnx in 1\.$"),
        (
            'platform: "ensemble" default_model_filename: "none"',
            r"^There is no file none in 1, and config\.pbtxt is for ensemble; what is served here are ONNX models\.$",
        ),
        ('backend: "onnxruntime" default_model_filename: "best.onnx"', r"in 1\.$"),
    ],
)
def test_versions_that_are_not_there(tmp_path: Path, config: str, why: str) -> None:
    put(tmp_path / "some" / "1" / "model.onnx", affine())
    (tmp_path / "some" / "config.pbtxt").write_text(config)
    assert layout.names_in(tmp_path) == ["some"]  # so that it is told
    with pytest.raises(BadConfig, match=why):
        layout.find(tmp_path, "some")


def test_a_model_whose_file_is_not_where_it_should_be_is_told_of(
    served: tuple[RunningServer, Path], client: httpx.Client, tmp_path: Path
) -> None:
    """Those who gave it another name are to find out."""
    put(tmp_path / "other" / "1" / "other.onnx", affine())
    (tmp_path / "other" / "3").mkdir()
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "config.pbtxt").touch()
    put(tmp_path / "notes" / "model.onnx", affine())
    (tmp_path / "notes" / "1").touch()
    assert layout.names_in(tmp_path) == ["flat", "other"]
    for name, why in (("other", "in 1, 3"), ("flat", "in a folder of flat that has a number for its name, as 1")):
        with pytest.raises(BadConfig, match=rf"^There is no file model\.onnx {why}\.$"):
            layout.find(tmp_path, name)
    put(served[1] / "misnamed" / "1" / "some.onnx", affine())
    response = client.post("/v2/repository/models/misnamed/load")
    assert response.status_code == 400
    assert response.json()["error"] == "Model misnamed is not ready: There is no file model.onnx in 1."
    listed = {each["name"]: each["reason"] for each in client.post("/v2/repository/index").json()}
    assert listed["misnamed"] == "There is no file model.onnx in 1."
    unloaded = client.post("/v2/repository/models/activation_relu/unload")
    assert (unloaded.status_code, unloaded.json()["error"]) == (404, "There is no model activation_relu in the folder.")


def test_names_that_no_address_has(tmp_path: Path) -> None:
    put(tmp_path / "a b.onnx", affine())
    with pytest.raises(BadConfig, match="A model's name must be 1 to 128"):
        layout.find(tmp_path, "a b")


def test_names_that_are_none_in_this_folder(tmp_path: Path) -> None:
    """Those that lead out of it or further into it, hidden ones, and what no file can be called."""
    for name in ("some", ".hidden"):
        put(tmp_path / "models" / name / "1" / "model.onnx", affine())
    put(tmp_path / "models" / "plain.onnx", affine())
    put(tmp_path / "models" / "padded" / "01" / "model.onnx", affine())  # which is no number of Triton's
    (tmp_path / "models" / "text").write_text("no model")
    folder = tmp_path / "models"
    assert layout.names_in(folder) == ["plain", "some"]
    for name, versions in (("some", folder / "some" / "1" / "model.onnx"), ("plain", folder / "plain.onnx")):
        assert layout.find(folder, name) == ({"1": versions}, None)
    for name in ("../models/some", "some/../some", ".hidden", "so\0me", "x" * 5000, "other"):
        assert layout.find(folder, name) is None


def test_a_file_and_a_folder_of_one_name(tmp_path: Path) -> None:
    put(tmp_path / "some.onnx", affine())
    put(tmp_path / "some" / "1" / "model.onnx", affine())
    with pytest.raises(BadConfig, match=r"both some\.onnx and a folder some"):
        layout.find(tmp_path, "some")


def test_other_files_of_a_version(tmp_path: Path) -> None:
    """Triton lets a config name another one, and a model of several files lie in a folder that is called as it."""
    weights = np.ones(1 << 10, np.float32)
    served = model("m (float[rows, 1024] x) => (float[rows, 1024] y) { y = Add(x, w) }", w=weights)
    put(tmp_path / "named" / "1" / "best.onnx", served)
    (tmp_path / "named" / "config.pbtxt").write_text('default_model_filename: "best.onnx" version_policy { all {} }')
    file = tmp_path / "several" / "1" / "model.onnx" / "model.onnx"
    file.parent.mkdir(parents=True)
    onnx.save(served, file, save_as_external_data=True, location="weights.bin", size_threshold=0)
    put(tmp_path / "other" / "1" / "best.onnx", served)  # which no config names
    assert layout.names_in(tmp_path) == ["named", "other", "several"]
    service = Service(Settings(models=str(tmp_path), gpus="none", llvm=False))
    repository = Repository(service)
    repository.open()
    for name in ("named", "several"):
        repository.compile(repository.known(name, None), ((1, 1024),), lambda: False)
    repository.close()
    service.close()
