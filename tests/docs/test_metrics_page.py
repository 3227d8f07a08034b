"""The page of metrics says what /metrics says, and has all of it."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from app.http.core.auth import DENIALS
from app.http.core.problems import FAULT, REASONS
from app.http.telemetry import gpus
from app.http.telemetry.gpus import Gpus
from tests.http.load import wait_until
from tests.messages import CELU, output_of, post_msgpack, request

PAGE = (Path(__file__).parents[2] / "app/http/telemetry/metrics.md").read_text()
ROWS = {
    name: (kind, set(re.findall(r"`(\w+)`", labels)), meaning)
    for name, kind, labels, meaning in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", PAGE, re.MULTILINE)
}
SUFFIXES = ("_seconds", "_bytes", "_celsius", "_ratio", "_total", "_info")
WITHOUT_UNIT = {
    "queue_depth",
    "running_dispatches",
    "connections",
    "graphs",
    "workers",
    "cache_entries",
    "kernels_cached",
}


def test_the_table_is_what_metrics_shows(client: httpx.Client) -> None:
    output_of(post_msgpack(client, request(CELU, {"InputTensor": np.ones(3, np.float32)})))
    text = client.get("/metrics").text
    kinds, meanings = (dict(re.findall(rf"^# {what} (\w+) (.*)$", text, re.MULTILINE)) for what in ("TYPE", "HELP"))
    assert {name: (kind, meanings[name]) for name, kind in kinds.items()} == {
        name: (kind, meaning) for name, (kind, _, meaning) in ROWS.items()
    }
    shown = 0
    for series, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        name = series if series in ROWS else re.sub(r"_(bucket|sum|count)$", "", series)
        assert set(re.findall(r'(\w+)="', labels)) - {"le"} == ROWS[name][1], series
        shown += 1
    assert shown > 50


def test_names_are_as_prometheus_wants_them() -> None:
    for name, (kind, _, _) in ROWS.items():
        short = name.removeprefix("dmlserve_")
        assert name.startswith("dmlserve_")
        assert name.endswith("_total") == (kind == "counter"), name
        assert name.endswith(SUFFIXES) or short in WITHOUT_UNIT | {"ready", "gpu_in_service"}, name


def test_what_is_to_be_alerted_on_is_there() -> None:
    _, alerts = PAGE.split("What to alert on")
    assert set(re.findall(r"dmlserve_\w+", alerts)) <= ROWS.keys()
    reasons = {*REASONS.values(), *DENIALS, FAULT}
    assert set(re.findall(r'reason="(\w+)"', alerts)) <= reasons
    assert set(re.findall(r"`(\w+)`", alerts.split("The reasons of `dmlserve_rejections_total`")[1])) == reasons


def test_gpus_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a module of the test's own: some tell no utilisation, and one is not found."""

    class NVMLError(Exception):
        pass

    def utilization(handle: str) -> SimpleNamespace:
        if handle == "0000:02:00.0":
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=37)

    def handle(bus_id: bytes) -> str:
        if bus_id == b"gone":
            raise NVMLError("Not Found")
        return bus_id.decode()

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId=handle,
        nvmlDeviceGetUtilizationRates=utilization,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=5, total=7),
        nvmlDeviceGetTemperature=lambda handle, sensor: 61,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    buses = ["0000:01:00.0", "0000:02:00.0", "gone"]
    there = [
        SimpleNamespace(name=f"cuda:{number}", out_of_service=None if number else "lost", bus_id=lambda bus=bus: bus)
        for number, bus in enumerate(buses)
    ]
    watched = Gpus(there)

    def told() -> dict[str, dict[str, float]]:
        return {
            metric.name: {sample.labels["device"]: sample.value for sample in metric.samples}
            for metric in watched.metrics()
        }

    watched.open()
    try:
        wait_until(lambda: len(told()["dmlserve_gpu_temperature_celsius"]) == 2)
    finally:
        watched.close()
    assert told() == {
        "dmlserve_gpu_utilization_ratio": {"cuda:0": 0.37},
        "dmlserve_gpu_temperature_celsius": {"cuda:0": 61, "cuda:1": 61},
        "dmlserve_gpu_memory_used_bytes": {"cuda:0": 5, "cuda:1": 5},
        "dmlserve_gpu_memory_total_bytes": {"cuda:0": 7, "cuda:1": 7},
        "dmlserve_gpu_in_service": {"cuda:0": 0, "cuda:1": 1, "cuda:2": 1},
    }
    monkeypatch.setattr(gpus, "_OLD_SECONDS", 0.0)
    assert told()["dmlserve_gpu_temperature_celsius"] == {}
