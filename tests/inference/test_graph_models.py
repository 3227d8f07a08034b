"""Graphs that are kept are models: by id and name, with the graph's own inputs and outputs."""

import asyncio
import gc
import itertools
import signal
import weakref
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from app.engine.service import Service
from app.http.core.asgi import Application
from app.http.core.keys import Keys
from app.http.server.limit import ConnectionLimit
from app.main import create_app, handler_of
from app.operators.catalog import OPERATORS
from app.settings import Settings
from tests.conftest import RunningServer, ServerFactory, running_server
from tests.graphs.documents import Document, add, between, graph, into, node, of_many_inputs, out, relu, tensor
from tests.graphs.requests import BIAS, ROW, X, Y, biased, keep, post, weighted
from tests.http.load import metric, wait_until
from tests.http.refusals import error_at
from tests.inference import wire
from tests.inference.wire import behind, error_of, listed, split
from tests.messages import Array

GRAPHS = "/v1/graphs"
A = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
SUM, POSITIVE = X + A, np.maximum(X + A, 0)


@pytest.fixture(scope="module")
def graph_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("graph-models") / "log") as running:
        yield running


@pytest.fixture
def client(graph_server: RunningServer) -> Iterator[httpx.Client]:
    """Of a server that keeps nothing before and after."""
    with httpx.Client(base_url=graph_server.url, timeout=30) as opened:
        yield opened
        for each in opened.get(GRAPHS).json():
            opened.delete(f"{GRAPHS}/{each['id']}")


def sums(a: Document | None = None, **output: Any) -> Document:
    """x + a as `sum`, and what of it is positive as `positive`, whose descriptor is `output` if there is one."""
    stated = {"OutputTensor": tensor(**output)} if output else {}
    return graph(
        [add("add", b=a or tensor()), relu("relu", **stated)],
        [into("x", "add", "ATensor"), into("a", "add", "BTensor")],
        [out("add", "sum", "OutputTensor"), out("relu", "positive", "OutputTensor")],
        [between("add", "relu", "InputTensor", "OutputTensor")],
    )


def infer(client: httpx.Client, name: str, document: Document, *data: bytes) -> httpx.Response:
    return wire.post(client, f"/v2/models/{name}/infer", document, *data)


def arrays(answer: Document, data: bytes) -> dict[str, Array]:
    """The outputs of an answer, all float32, by name."""
    found: dict[str, Array] = {}
    for each in answer["outputs"]:
        assert each["datatype"] == "FP32"
        size = each.get("parameters", {}).get("binary_data_size", 0)
        values = np.array(each["data"], np.float32) if "data" in each else np.frombuffer(data[:size], np.float32)
        found[each["name"]] = values.reshape(each["shape"])
        data = data[size:]
    assert data == b""
    return found


BOTH = {"inputs": [listed("x", X), listed("a", A)]}


class TestInference:
    @pytest.mark.parametrize("wanted", ["first", "all", "numbers"])
    @pytest.mark.parametrize("forms", list(itertools.product(["flat", "nested", "binary"], repeat=2)), ids="-".join)
    def test_any_mixture_of_forms(self, client: httpx.Client, forms: tuple[str, str], wanted: str) -> None:
        keep(client, sums(), name="sums")
        tensors = {"x": X, "a": A}
        inputs = [
            behind(name, array) if form == "binary" else listed(name, array, form == "nested")
            for form, (name, array) in zip(forms, tensors.items(), strict=True)
        ]
        data = [array.tobytes() for form, array in zip(forms, tensors.values(), strict=True) if form == "binary"]
        document: Document = {"inputs": inputs}
        if wanted == "all":
            document["parameters"] = {"binary_data_output": True}
        elif wanted == "first":
            document["outputs"] = [{"name": "sum", "parameters": {"binary_data": True}}, {"name": "positive"}]
        answer, found = split(infer(client, "sums", document, *data))
        assert len(found) == {"all": 48, "first": 24, "numbers": 0}[wanted]
        made = arrays(answer, found)
        np.testing.assert_array_equal(made["sum"], SUM)
        np.testing.assert_array_equal(made["positive"], POSITIVE)
        assert (answer["model_name"], answer["model_version"]) == ("sums", "1")
        assert answer["parameters"] == {"device": "numpy", "feature_level": "DML_FEATURE_LEVEL_6_4"}

    def test_by_id_and_name_in_any_version_there_is(self, client: httpx.Client) -> None:
        id_ = keep(client, biased(), name="Biased.1")["id"]
        for name, factor in itertools.product((id_, "Biased.1"), range(1, 4)):  # the third is known by its structure
            document = {"id": str(factor), "inputs": [behind("x", X * factor)]}
            for path in (name, f"{name}/versions/1"):
                answer, found = split(infer(client, path, document, (X * factor).tobytes()))
                np.testing.assert_array_equal(arrays(answer, found)["y"], np.maximum(X * factor + BIAS, 0))
                assert (answer["model_name"], answer["id"]) == (name, str(factor))
        assert client.get(f"{GRAPHS}/{id_}").json()["dispatches"] == 12

    def test_some_outputs_in_any_order(self, client: httpx.Client) -> None:
        keep(client, sums(), name="sums")
        for names in (["positive"], ["positive", "sum"]):
            document = BOTH | {"outputs": [{"name": name} for name in names]}
            answer, found = split(infer(client, "sums", document))
            assert [each["name"] for each in answer["outputs"]] == names
            np.testing.assert_array_equal(arrays(answer, found)["positive"], POSITIVE)

    def test_what_is_owned_is_no_input(self, client: httpx.Client) -> None:
        id_ = keep(client, weighted(), inputs={"1": X.tobytes()})["id"]
        assert [each["name"] for each in client.get(f"/v2/models/{id_}").json()["inputs"]] == ["0"]
        answer, found = split(infer(client, id_, {"inputs": [listed("0", A)]}))
        np.testing.assert_array_equal(arrays(answer, found)["0"], A + np.maximum(X, 0))
        given = infer(client, id_, {"inputs": [listed("0", A), listed("1", X)]})
        assert error_of(given) == "1 is bound already; inputs are 0."

    def test_a_large_one_by_a_worker(self, client: httpx.Client) -> None:
        sizes = (1 << 10, 1 << 10)
        id_ = keep(client, graph([relu(desc=tensor(sizes=sizes))], [into("x", 0)], [out(0, "y")]))["id"]
        x = np.random.default_rng(1).standard_normal(sizes).astype(np.float32)
        for document, data in (
            ({"inputs": [behind("x", x)], "parameters": {"binary_data_output": True}}, x.tobytes()),
            ({"inputs": [listed("x", x)], "parameters": {"binary_data_output": True}}, b""),
        ):
            answer, found = split(infer(client, id_, document, *([data] if data else [])))
            np.testing.assert_array_equal(arrays(answer, found)["y"], np.maximum(x, 0))

    def test_the_device(self, client: httpx.Client) -> None:
        keep(client, sums(), name="sums")
        for device in ("auto", "numpy", None):
            split(infer(client, "sums", BOTH | {"parameters": {"device": device}}))
        for wrong in ("cuda:77", 1, ["numpy"]):
            assert "device" in error_of(infer(client, "sums", BOTH | {"parameters": {"device": wrong}}))


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"inputs": [listed("x", X)]}, "Input a is missing; give FP32 [2, 3]."),
        ({"inputs": []}, "Input x is missing; give FP32 [2, 3]. Input a is missing; give FP32 [2, 3]."),
        (
            {"inputs": [listed("x", X), listed("a", A.T)]},
            "Input a is FP32 [3, 2]; it must be FP32 [2, 3].",
        ),
        (
            {"inputs": [listed("x", X.reshape(6)), listed("a", A.astype(np.int32))]},
            "Input x is FP32 [6]; it must be FP32 [2, 3]. Input a is INT32 [2, 3]; it must be FP32 [2, 3].",
        ),
        ({"inputs": [*BOTH["inputs"], listed("b", A)]}, "b is no input of this graph; inputs are x, a."),
        (
            {"inputs": [*BOTH["inputs"], listed("a", A)]},
            "a stands twice among the inputs; give each tensor once.",
        ),
        (
            BOTH | {"outputs": [{"name": "y"}]},
            "y is no output of this request; outputs are sum, positive.",
        ),
        (
            BOTH | {"outputs": [{"name": "summ"}]},
            "summ is no output of this request; outputs are sum, positive. Did you mean sum?",
        ),
        (
            BOTH | {"parameters": {"feature_level": "5_0"}},
            "feature_level is no parameter of a graph; known are device, binary_data_output.",
        ),
        (
            BOTH | {"parameters": {"binary_data_output": 1}},
            "binary_data_output is 1; it must be true or false.",
        ),
        (BOTH | {"model_name": "other"}, "model_name is other but the path says sums."),
    ],
)
def test_refusals(client: httpx.Client, document: Document, said: str) -> None:
    keep(client, sums(), name="sums")
    assert error_of(infer(client, "sums", document)) == said


def test_a_refusal_does_not_tell_all_inputs_of_a_graph_that_has_many(client: httpx.Client) -> None:
    names = [f"x{index:02}" + "y" * 500 for index in range(40)]
    document = of_many_inputs(names)
    kept = keep(client, document)["id"]
    unknown = {"inputs": [listed(f"z{index}", np.ones(1, np.float32)) for index in range(40)]}
    error = error_of(infer(client, kept, unknown))
    assert error.startswith("z0 is no input of this graph; inputs are x00")
    assert len(error) < 100_000
    client.delete(f"/v1/graphs/{kept}")


def test_data_of_another_length_are_refused(client: httpx.Client) -> None:
    keep(client, sums(), name="sums")
    short = {"inputs": [wire.tensor("x", X, parameters={"binary_data_size": 20}), listed("a", A)]}
    assert "Data for x are 20 bytes" in error_of(infer(client, "sums", short, bytes(20)))


HALVES = graph(
    [
        relu("first", tensor("FLOAT16", (3,), TotalTensorSizeInBytes=8)),
        relu("second", tensor("FLOAT16", (4,))),
    ],
    [into("x", "first", "InputTensor"), into("x", "second", "InputTensor")],
    [out("first", "y", "OutputTensor"), out("second", "z", "OutputTensor")],
)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            sums(a=ROW),
            "Input a of this graph is FLOAT32 [2, 3] with strides [0, 1], and tensors of this protocol are packed",
        ),
        (HALVES, "Input x of this graph is FLOAT16 [3] to its first reader, and longer to another one"),
    ],
    ids=["strides", "readers"],
)
def test_what_the_protocol_has_no_words_for_is_no_model(client: httpx.Client, document: Document, said: str) -> None:
    id_ = keep(client, document)["id"]
    for response in (
        infer(client, id_, BOTH),
        client.get(f"/v2/models/{id_}"),
        client.get(f"/v2/models/{id_}/ready"),
    ):
        assert error_of(response) == f"{said}; POST /v1/graphs/{id_}/dispatch takes it."


def test_types_of_4_bits_are_of_no_model(client: httpx.Client) -> None:
    x, scale, q = tensor(), tensor(), tensor("UINT4")
    members: Document = {"QuantizationType": "SCALE", "QuantizationTensors": [scale]}
    ends = [into("x", 0), into("scale", 0, 1)], [out(0, "y")]
    id_ = keep(client, graph([node("DEQUANTIZE", InputTensor=q, OutputTensor=x, **members)], *ends))["id"]
    said = f"Input x of this graph is UINT4, which this protocol has no data type for; POST /v1/graphs/{id_}/dispatch"
    assert error_of(client.get(f"/v2/models/{id_}")).startswith(said)
    keep(client, graph([node("QUANTIZE", InputTensor=x, OutputTensor=q, **members)], *ends), name="quantized")
    assert client.get("/v2/models/quantized").json()["outputs"] == []
    given = {"inputs": [listed("x", X), listed("scale", X)]}
    said = "y is UINT4, which this protocol has no data type for."
    assert error_of(infer(client, "quantized", given)) == said


def test_strided_outputs_are_not_told_of_nor_given(client: httpx.Client) -> None:
    keep(client, sums(Strides=[4, 1]), name="sums")
    assert [each["name"] for each in client.get("/v2/models/sums").json()["outputs"]] == ["sum"]
    said = "positive has strides [4, 1], and tensors of this protocol are packed; ask for others."
    assert error_of(infer(client, "sums", BOTH)) == said
    answer, found = split(infer(client, "sums", BOTH | {"outputs": [{"name": "sum"}]}))
    np.testing.assert_array_equal(arrays(answer, found)["sum"], SUM)


def test_metadata(client: httpx.Client) -> None:
    bytes_ = tensor("UINT8", (5,))
    desc = {"ATensor": bytes_, "BTensor": bytes_}
    nodes = [node("ELEMENT_WISE_MAX", "max", **desc)]
    edges = [into("x", "max", "ATensor"), into("a", "max", "BTensor")]
    id_ = keep(client, graph(nodes, edges, [out("max", "y", "OutputTensor")]), name="max")["id"]

    def described(name: str, *datatypes: str) -> Document:
        parameters = {"optional": False, "datatypes": list(datatypes), "dimension_counts": [1]}
        return {"name": name, "datatype": "UINT8", "shape": [5], "parameters": parameters}

    for name, version in itertools.product((id_, "max"), ("", "/versions/1")):
        assert client.get(f"/v2/models/{name}{version}").json() == {
            "name": name,
            "versions": ["1"],
            "platform": "dmlserve",
            "inputs": [described("x", "UINT8", "BOOL"), described("a", "UINT8", "BOOL")],
            "outputs": [described("y", "UINT8")],
            "parameters": {"attributes": []},
        }
        assert client.get(f"/v2/models/{name}{version}/ready").json() == {"name": name, "ready": True}
    truths = np.array([True, False, True, False, True])
    inputs = [listed("x", truths), listed("a", np.array([0, 2, 0, 0, 4], np.uint8))]
    answer, _ = split(infer(client, "max", {"inputs": inputs}))
    assert answer["outputs"][0]["data"] == [1, 2, 1, 0, 4]


def test_unknown_ones(client: httpx.Client) -> None:
    id_ = keep(client, sums(), name="sums")["id"]
    for suffix in ("", "/ready", "/stats"):
        for name, meant in (("none", ""), ("SUMS", " Did you mean sums?"), ("sum", " Did you mean sums?")):
            said = error_of(client.get(f"/v2/models/{name}{suffix}"), 404)
            assert said == f"There is no model {name}; POST /v2/repository/index lists them.{meant}"
        for name in (id_, "sums"):
            said = error_of(client.get(f"/v2/models/{name}/versions/2{suffix}"), 404)
            assert said == f"Model {name} has no version 2; there is 1."
    other = "0" * 32
    assert "send it again to POST /v1/graphs" in error_of(infer(client, other, BOTH), 404)
    client.delete(f"{GRAPHS}/{id_}")
    assert "send it again to POST /v1/graphs" in error_of(infer(client, id_, BOTH), 404)
    assert "There is no model sums" in error_of(infer(client, "sums", BOTH), 404)
    keep(client, biased(), name="sums")
    answer, found = split(infer(client, "sums", {"inputs": [listed("x", X)]}))
    np.testing.assert_array_equal(arrays(answer, found)["y"], Y)
    keep(client, sums(), name="another")
    split(infer(client, "another", BOTH))


@pytest.mark.parametrize(
    "name",
    [
        *("ACTIVATION_RELU", "DML_OPERATOR_ACTIVATION_RELU", "activation_relu", "Dml_Operator_Activation_Relu"),
        *("stats", "0" * 32, ".", "..", ".x", "", "a/b"),
    ],
)
def test_names_that_are_something_else_in_a_path_are_refused(client: httpx.Client, name: str) -> None:
    error_at("/name", post(client, GRAPHS, {"graph": biased(), "name": name}))


def test_index_and_statistics(client: httpx.Client) -> None:
    named, unnamed = keep(client, sums(), name="sums")["id"], keep(client, biased())["id"]
    index = client.post("/v2/repository/index", json={"ready": True}).json()
    assert index == [
        {"name": name, "version": "1", "state": "READY", "reason": ""} for name in [*OPERATORS, "sums", unnamed]
    ]

    def counted(name: str) -> Document:
        (found,) = client.get(f"/v2/models/{name}/stats").json()["model_stats"]
        return dict(found)

    assert (counted("sums")["inference_count"], counted("sums")["last_inference"]) == (0, 0)
    for name in ("sums", named, "sums"):
        split(infer(client, name, BOTH))
    error_of(infer(client, "sums", {"inputs": []}))
    told = counted("sums")
    assert told["inference_count"] == told["execution_count"] == 3
    assert {name: each["count"] for name, each in told["inference_stats"].items() if each["count"]} == {
        "success": 3,
        "fail": 1,
    } | dict.fromkeys(("queue", "compute_input", "compute_infer", "compute_output"), 3)
    assert all(told["inference_stats"][name]["ns"] > 0 for name in ("success", "fail", "compute_infer"))
    assert told["last_inference"] > 1e12
    assert counted(named) == told | {"name": named}
    every = {each["name"]: each for each in client.get("/v2/models/stats").json()["model_stats"]}
    assert [*every] == [*OPERATORS, "sums", unnamed]
    assert every["sums"] == told
    assert every[unnamed]["inference_count"] == 0
    assert 'dmlserve_inference_seconds_total{operator="graph",part="success"}' in client.get("/metrics").text
    client.delete(f"{GRAPHS}/{named}")
    keep(client, sums(), name="sums")
    assert counted("sums")["inference_count"] == 0


def test_all_workers_have_it(start_server: ServerFactory) -> None:
    running = start_server("--workers", "2", "--threads", "1")
    with httpx.Client(base_url=running.url) as client:
        wait_until(lambda: metric(client, "workers") == 2)
        id_ = keep(client, sums(), name="sums")["id"]
    asked = 20
    for number in range(asked):  # each connection finds one worker or the other
        with httpx.Client(base_url=running.url, timeout=30) as client:
            name = ("sums", id_)[number % 2]
            assert client.get(f"/v2/models/{name}/ready").status_code == 200
            answer, found = split(infer(client, name, BOTH))
            np.testing.assert_array_equal(arrays(answer, found)["sum"], SUM)
            (told,) = client.get(f"/v2/models/{name}/stats").json()["model_stats"]
            assert told["inference_count"] == number + 1
    with httpx.Client(base_url=running.url) as client:
        assert client.get(f"{GRAPHS}/{id_}").json()["dispatches"] == asked
        client.delete(f"{GRAPHS}/{id_}")
    for _ in range(8):
        with httpx.Client(base_url=running.url) as client:
            error_of(infer(client, "sums", BOTH), 404)


def test_idle_ones_go_as_their_names_do(start_server: ServerFactory) -> None:
    running = start_server("--graph-seconds", "0.3")
    with httpx.Client(base_url=running.url) as client:
        keep(client, sums(), name="sums")
        split(infer(client, "sums", BOTH))
        wait_until(lambda: client.get("/v2/models/sums/stats").status_code == 404)
        assert "sums" not in [each["name"] for each in client.post("/v2/repository/index").json()]


def test_draining(start_server: ServerFactory) -> None:
    running = start_server("--drain-seconds", "30")
    with httpx.Client(base_url=running.url) as client:
        keep(client, sums(), name="sums")
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: client.get("/v2/health/ready").status_code == 503)
        response = client.get("/v2/models/sums/ready")
        assert (response.status_code, response.json()) == (503, {"name": "sums", "ready": False})


class InProcess:
    """A client of an application in this process."""

    def __init__(self, app: Any, runner: asyncio.Runner) -> None:
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
        self._runner = runner

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._client.post(path, **options))


def test_nothing_is_held_of_one_that_was_dropped() -> None:
    """Not by what is remembered of its inferences either."""
    service = Service(Settings(threads=1, gpus="none"))
    service.open()
    with asyncio.Runner() as runner:
        made = create_app(service.settings, service, ConnectionLimit())
        client: Any = InProcess(Application(handler_of(made, service.settings, Keys("", "")), made), runner)
        id_ = keep(client, sums(), name="sums")["id"]
        for name in (id_, "sums"):
            for _ in range(3):
                split(infer(client, name, BOTH))
        kept = service.graphs.find(id_)
        assert kept
        held: list[Any] = [weakref.ref(kept), weakref.ref(kept.compiled), *map(weakref.ref, kept.prepared.values())]
        del kept
        service.graphs.drop(id_)
        gc.collect()
        assert [each() for each in held] == [None] * len(held)
    service.close()


def test_by_nvidias_client(client: httpx.Client, graph_server: RunningServer) -> None:
    keep(client, sums(), name="sums")
    theirs = triton.InferenceServerClient(graph_server.url.removeprefix("http://"))
    try:
        inputs = []
        for name, array, binary in (("x", X, True), ("a", A, False)):
            made = triton.InferInput(name, list(array.shape), "FP32")
            inputs.append(made.set_data_from_numpy(array, binary_data=binary))
        assert theirs.is_model_ready("sums")
        assert theirs.is_model_ready("sums", "1")
        assert [each["shape"] for each in theirs.get_model_metadata("sums")["inputs"]] == [[2, 3], [2, 3]]
        assert "sums" in [each["name"] for each in theirs.get_model_repository_index()]
        result = theirs.infer("sums", inputs)
        np.testing.assert_array_equal(result.as_numpy("sum"), SUM)
        np.testing.assert_array_equal(result.as_numpy("positive"), POSITIVE)
        wanted = [triton.InferRequestedOutput("positive", binary_data=False)]
        result = theirs.infer("sums", inputs, outputs=wanted, request_compression_algorithm="gzip")
        np.testing.assert_array_equal(result.as_numpy("positive"), POSITIVE)
        assert result.as_numpy("sum") is None
        (told,) = theirs.get_inference_statistics("sums")["model_stats"]
        assert told["inference_count"] == 2
        with pytest.raises(InferenceServerException, match="Input a is missing"):
            theirs.infer("sums", inputs[:1])
    finally:
        theirs.close()
