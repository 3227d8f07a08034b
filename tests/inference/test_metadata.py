"""What clients read: metadata, readiness, the repository's index, statistics."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app import __version__
from app.operators.catalog import OPERATORS
from tests.conftest import ServerFactory
from tests.http.load import metric, wait_until
from tests.inference.wire import CELU, X, behind, error_of, listed, post, split


def test_server(client: httpx.Client) -> None:
    assert client.get("/v2").json() == {
        "name": "dmlserve",
        "version": __version__,
        "extensions": ["binary_tensor_data", "statistics", "model_configuration", "model_repository"],
    }


def test_a_draining_service_is_live_but_not_ready(start_server: ServerFactory) -> None:
    server = start_server("--drain-seconds", "30")
    with httpx.Client(base_url=server.url) as client:
        assert client.get("/v2/health/live").json() == {"live": True}
        assert client.get("/v2/health/ready").json() == {"ready": True}
        assert client.get("/v2/models/activation_celu/ready").json() == {"name": "activation_celu", "ready": True}
        server.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 10
        while client.get("/v2/health/ready").status_code == 200 and time.monotonic() < end:
            time.sleep(0.02)
        assert client.get("/v2/health/live").status_code == 200
        for path, document in (
            ("/v2/health/ready", {"ready": False}),
            ("/v2/models/activation_celu/versions/1/ready", {"name": "activation_celu", "ready": False}),
        ):
            response = client.get(path)
            assert response.status_code == 503
            assert response.headers["retry-after"]
            assert response.json() == document
        index = client.post("/v2/repository/index").json()
        assert {(each["state"], each["reason"]) for each in index} == {("UNAVAILABLE", "the service is draining")}
        assert client.post("/v2/repository/index", json={"ready": True}).json() == []
        assert post(client, CELU, {"inputs": [listed("InputTensor", X)]}).status_code == 200  # until the drain ends


@pytest.mark.parametrize("content", [b"", b"null", b"{}", b'{"ready": true}', b'{"ready": false}'])
def test_index(client: httpx.Client, content: bytes) -> None:
    index = client.post("/v2/repository/index", content=content).json()
    listed = [{"name": name, "version": "1", "state": "READY", "reason": ""} for name in OPERATORS]
    assert index[: len(listed)] == listed  # behind them are graphs that other tests keep


def test_index_refuses_what_it_does_not_know(client: httpx.Client) -> None:
    assert error_of(client.post("/v2/repository/index", content=b'{"name": "x"}')).startswith("name is not a field")


@pytest.mark.parametrize("version", ["", "/versions/1"])
def test_model(client: httpx.Client, version: str) -> None:
    allowed: dict[str, Any] = {"datatypes": ["FP32", "FP16"], "dimension_counts": [1, 2, 3, 4, 5, 6, 7, 8]}
    described: dict[str, Any] = {"datatype": "FP32", "shape": [-1, -1, -1, -1]}
    number = {"type": "FLOAT", "description": "Applied to the input before the function. Null: the input as it is."}
    assert client.get(f"/v2/models/element_wise_constant_pow{version}").json() == {
        "name": "element_wise_constant_pow",
        "versions": ["1"],
        "platform": "dmlserve",
        "inputs": [{"name": "InputTensor", **described, "parameters": {"optional": False, **allowed}}],
        "outputs": [{"name": "OutputTensor", **described, "parameters": {"optional": True, **allowed}}],
        "parameters": {
            "attributes": [
                {
                    "name": "ScaleBias.Scale",
                    "required": False,
                    "default": None,
                    **number,
                    "description": f"Factor of the input. {number['description']}",
                },
                {
                    "name": "ScaleBias.Bias",
                    "required": False,
                    "default": None,
                    **number,
                    "description": f"Added to the product. {number['description']}",
                },
                {
                    "name": "Exponent",
                    "type": "FLOAT",
                    "required": True,
                    "default": None,
                    "description": OPERATORS["DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW"]
                    .model_fields["Exponent"]
                    .description,
                },
            ]
        },
    }


@pytest.mark.parametrize("name", OPERATORS)
def test_every_model_has_metadata(client: httpx.Client, name: str) -> None:
    operator = OPERATORS[name]
    metadata = client.get(f"/v2/models/{name}").json()
    tensors = metadata["inputs"] + metadata["outputs"]
    assert [each["name"].partition("[")[0] for each in tensors] == operator.tensor_names()
    for each in tensors:
        assert each["datatype"] == each["parameters"]["datatypes"][0]
        assert len(each["shape"]) in each["parameters"]["dimension_counts"]
        assert each["parameters"].get("array", False) == (each["name"].partition("[")[0] in operator.array_names())
        truths = each in metadata["inputs"] and "UINT8" in each["parameters"]["datatypes"]
        assert ("BOOL" in each["parameters"]["datatypes"]) == truths
    told = {each["name"].partition(".")[0] for each in metadata["parameters"]["attributes"]}
    assert told == set(operator.attribute_names())
    assert all(each["description"] for each in metadata["parameters"]["attributes"])
    short = name.removeprefix("DML_OPERATOR_").lower()
    assert client.get(f"/v2/models/{short}").json() == metadata | {"name": short}


def statistics(client: httpx.Client, path: str = "/v2/models/activation_celu/stats") -> dict[str, Any]:
    (found,) = client.get(path).json()["model_stats"]
    return dict(found)


def test_statistics_count_what_was_done(start_server: ServerFactory) -> None:
    server = start_server()
    x = np.zeros(1 << 20, np.float32)
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    with httpx.Client(base_url=server.url, timeout=30) as client:
        before = statistics(client)
        assert "dmlserve_inference_seconds_total{" not in client.get("/metrics").text
        assert before["last_inference"] == before["inference_count"] == before["execution_count"] == 0
        assert before["batch_stats"] == []
        assert all(each == {"count": 0, "ns": 0} for each in before["inference_stats"].values())

        started = time.perf_counter_ns()
        for _ in range(3):
            split(post(client, CELU, {"inputs": [behind("InputTensor", x)]}, x.tobytes()))
        error_of(post(client, CELU, {"inputs": []}))
        seconds = time.perf_counter_ns() - started

        after = statistics(client)
        counted = after["inference_stats"]
        assert after["inference_count"] == after["execution_count"] == 3
        assert abs(after["last_inference"] / 1000 - time.time()) < 60
        assert {name: each["count"] for name, each in counted.items()} == {
            "success": 3,
            "fail": 1,
            **dict.fromkeys(parts, 3),
            "cache_hit": 0,
            "cache_miss": 0,
        }
        assert all(counted[name]["ns"] > 0 for name in ("success", "fail", *parts))
        assert sum(counted[name]["ns"] for name in parts) <= counted["success"]["ns"] < seconds
        (batch,) = after["batch_stats"]
        assert batch == {"batch_size": 1, **{name: counted[name] for name in parts if name != "queue"}}

        assert statistics(client, "/v2/models/ACTIVATION_CELU/versions/1/stats") == after | {"name": "ACTIVATION_CELU"}
        metrics = client.get("/metrics").text
        for name in ("success", "fail", *parts):
            labels = f'operator="DML_OPERATOR_ACTIVATION_CELU",part="{name}"'
            assert f"dmlserve_inference_seconds_total{{{labels}}} {counted[name]['ns'] / 1e9}" in metrics
        for name in ("entries", "hits_total"):  # what came twice was kept, and found the third time
            assert f'dmlserve_cache_{name}{{cache="inferences"}} 1.0' in metrics
        every = client.get("/v2/models/stats").json()["model_stats"]
        assert {each["name"]: each["inference_count"] for each in every} == dict.fromkeys(OPERATORS, 0) | {
            "DML_OPERATOR_ACTIVATION_CELU": 3
        }


def test_statistics_are_of_all_workers(start_server: ServerFactory) -> None:
    server = start_server("--workers", "2")
    with httpx.Client(base_url=server.url) as client:
        wait_until(lambda: metric(client, "workers") == 2)
    asked = 20
    for _ in range(asked):
        with httpx.Client(base_url=server.url) as client:  # each connection finds one worker or the other
            split(post(client, CELU, {"inputs": [listed("InputTensor", X)]}))
            error_of(client.post(CELU, content=b"{}"))
    with httpx.Client(base_url=server.url) as client:
        counted = statistics(client)
        assert counted["inference_count"] == asked
        assert counted["inference_stats"]["fail"]["count"] == asked
        assert statistics(client) == counted

    process = server.process.pid
    workers = list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    wait_until(lambda: "ended with -9" in server.log.read_text())
    with httpx.Client(base_url=server.url, timeout=30) as client:
        assert statistics(client) == counted


@pytest.mark.parametrize("path", ["/v2/models/gemm/config", "/v2/models/gemm/versions/1/config"])
def test_configuration_as_triton_has_it(client: httpx.Client, path: str) -> None:
    config = client.get(path).json()
    assert config["name"] == "gemm"
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["max_batch_size"] == 0
    assert [(each["name"], each["optional"]) for each in config["input"]] == [
        ("ATensor", False),
        ("BTensor", False),
        ("CTensor", True),
    ]
    assert config["output"] == [{"name": "OutputTensor", "data_type": "TYPE_FP32", "dims": [-1, -1, -1, -1]}]
    assert client.get("/v2/models/none/config").status_code == 404
