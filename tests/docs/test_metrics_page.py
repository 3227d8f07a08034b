"""The page of metrics says what /metrics says, and has all of it."""

import logging
import re
import sys
import threading
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


def asks() -> bool:
    """Whether a thread asks NVML."""
    return any(thread.name == "dmlserve-nvml" for thread in threading.enumerate())


def test_gpus_by_nvml(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """By a module of the test's own: one tells nothing of its use, and one is not found."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(gpus, "SECONDS", 0.01)
    asked, begun = list[bytes](), list[bool]()

    class NVMLError(Exception):
        pass

    def utilization(handle: str) -> SimpleNamespace:
        if handle == "0000:02:00.0":
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=37)

    def memory(handle: str) -> SimpleNamespace:
        if handle == "0000:02:00.0":
            raise NVMLError("Not Supported")
        return SimpleNamespace(used=5, total=7)

    def handle(bus_id: bytes) -> str:
        assert begun
        asked.append(bus_id)
        if bus_id == b"gone":
            raise NVMLError("Not Found")
        return bus_id.decode()

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: begun.append(True),
        nvmlDeviceGetHandleByPciBusId=handle,
        nvmlDeviceGetUtilizationRates=utilization,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetTemperature=lambda handle, sensor: 61,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    buses = ["gone", "0000:01:00.0", "0000:02:00.0"]
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
        wait_until(lambda: asked.count(b"gone") >= 3)
    finally:
        watched.close()
    wait_until(lambda: not asks())
    assert set(caplog.messages) == {"NVML tells nothing of cuda:0: Not Found"}
    assert told() == {
        "dmlserve_gpu_utilization_ratio": {"cuda:1": 0.37},
        "dmlserve_gpu_temperature_celsius": {"cuda:1": 61, "cuda:2": 61},
        "dmlserve_gpu_memory_used_bytes": {"cuda:1": 5},
        "dmlserve_gpu_memory_total_bytes": {"cuda:1": 7},
        "dmlserve_gpu_in_service": {"cuda:0": 0, "cuda:1": 1, "cuda:2": 1},
    }
    monkeypatch.setattr(gpus, "_OLD_SECONDS", 0.0)
    assert told()["dmlserve_gpu_temperature_celsius"] == {}


def test_without_gpus_or_nvml_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("there is no driver")

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: thread.run())
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=fail))
    Gpus([]).open()
    assert caplog.messages == []
    Gpus([SimpleNamespace(name="cuda:0", out_of_service=None, bus_id=fail)]).open()
    assert caplog.messages == ["NVML tells nothing of GPUs: there is no driver"]
