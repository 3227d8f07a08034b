"""What is counted, and how several workers' numbers make one: metrics by themselves, without a service."""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from app import __version__
from app.devices.device import ExecutionRecord
from app.engine.inference_counts import PARTS, Counted
from app.engine.prepared import Outcome
from app.engine.service import State
from app.http.server.limit import ConnectionLimit
from app.http.telemetry import metrics as module
from app.http.telemetry.metrics import Metrics
from app.http.telemetry.slots import Slots

NAMES = ("structures", "requests", "inferences")


class Clock:
    """In seconds, of the process and of all."""

    now = 1000.0
    used = 1.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "monotonic", lambda: made.now)
    monkeypatch.setattr(module, "time", lambda: made.now)
    monkeypatch.setattr(module, "process_time", lambda: made.used)
    return made


def service(number: int, gpus: bool = True) -> Any:
    """Of which all numbers differ, and grow with `number`."""
    gpu = SimpleNamespace(
        name=f"cuda:{number}",
        out_of_service=None if number else "it failed",
        pool_bytes=10 * number,
        slots=SimpleNamespace(pinned_bytes=20 * number),
        cache=type("Cache", (list,), {"compiled": 40 * number})([None] * number),
    )
    other = SimpleNamespace(**vars(gpu) | {"cache": None})  # that of kernels is the same
    return SimpleNamespace(
        pool=SimpleNamespace(waiting=number, running=2 * number),
        memory=SimpleNamespace(used=3 * number, pool=SimpleNamespace(idle_bytes=4 * number)),
        placement=SimpleNamespace(pinned=SimpleNamespace(used=5 * number), gpus=[gpu, other] if gpus else []),
        graphs=SimpleNamespace(count=6 * number, memory_bytes=7 * number),
        state=State.READY if number > 1 else State.DRAINING,
        caches={
            name: SimpleNamespace(hits=100 * place + number, misses=200 * place + number, size=300 * place + number)
            for place, name in enumerate(NAMES, 1)
        },
        loops=SimpleNamespace(compiled=50 * number, kernels=60 * number),
    )


@pytest.fixture
def slots() -> Slots:
    return Slots(3)


@pytest.fixture
def workers(slots: Slots) -> list[Metrics]:
    """Two of three; the last one has not begun."""
    return [Metrics(service(number + 1), connections(number + 1), slots, number) for number in range(2)]


def connections(count: int) -> ConnectionLimit:
    limit = ConnectionLimit()
    for _ in range(count):
        limit.enter(mock.Mock())
    return limit


def shown(metrics: Metrics) -> dict[str, float]:
    """Each series, as `name{label="value",...}`."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {named(sample): sample.value for family in families for sample in family.samples}


def named(sample: Any) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
    return f"{sample.name}{{{labels}}}" if labels else str(sample.name)


def test_requests_are_counted_by_route_and_added_up(workers: list[Metrics]) -> None:
    first, second = workers
    first.requested("/a", "GET", 200, 100, 300, 0.0004)
    first.requested("/a", "BREW", 404, 256, 5000, 0.02)
    second.requested("/a", "GET", 200, 257, 0, 60)
    for metrics in workers:
        found = shown(metrics)
        assert found['dmlserve_http_requests_total{method="GET",route="/a",status="200"}'] == 2
        assert found['dmlserve_http_requests_total{method="other",route="/a",status="404"}'] == 1
        duration = "dmlserve_http_request_duration_seconds"
        assert found[duration + '_count{route="/a"}'] == 3
        assert found[duration + '_sum{route="/a"}'] == pytest.approx(60.0204)
        buckets = [found[duration + f'_bucket{{le="{le}",route="/a"}}'] for le in ("0.0005", "0.01", "0.025", "30.0")]
        assert buckets == [1, 1, 2, 2]
        assert found[duration + '_bucket{le="+Inf",route="/a"}'] == 3
        for name, smallest, total in (("request", 2, 613), ("response", 1, 5300)):
            size = f"dmlserve_http_{name}_size_bytes"
            assert (found[size + '_bucket{le="256.0",route="/a"}'], found[size + '_sum{route="/a"}']) == (
                smallest,
                total,
            )


def test_methods_that_there_are_have_their_names(workers: list[Metrics]) -> None:
    methods = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
    for method in methods | {"TRACE", "get", ""}:
        workers[0].requested("/a", method, 200, 0, 0, 1.0)
    found = shown(workers[0])
    told = {name: found[f'dmlserve_http_requests_total{{method="{name}",route="/a",status="200"}}'] for name in methods}
    assert told == dict.fromkeys(methods, 1)
    assert found['dmlserve_http_requests_total{method="other",route="/a",status="200"}'] == 3


def test_the_largest_bodies_have_a_bucket(workers: list[Metrics]) -> None:
    for size in (1 << 28, (1 << 28) + 1):
        workers[0].requested("/a", "POST", 200, size, size, 1.0)
    found = shown(workers[0])
    for name in ("request", "response"):
        bucket = f"dmlserve_http_{name}_size_bytes_bucket"
        told = [found[f'{bucket}{{le="{bound}",route="/a"}}'] for bound in ("6.7108864e+07", "2.68435456e+08", "+Inf")]
        assert told == [0, 1, 2]


def test_what_will_be_counted_is_shown_before(workers: list[Metrics]) -> None:
    first, _ = workers
    first.expect_requests("/b", "POST")
    first.expect_dispatches("CELU", "numpy")
    first.inferences.expect("celu")
    first.batches.expect("mnist", [1, 4])
    found = shown(first)
    assert found['dmlserve_http_requests_total{method="POST",route="/b",status="200"}'] == 0
    assert found['dmlserve_http_request_duration_seconds_count{route="/b"}'] == 0
    assert found['dmlserve_dispatches_total{device="numpy",operator="CELU"}'] == 0
    assert found['dmlserve_dispatch_queue_seconds_count{device="numpy"}'] == 0
    assert found['dmlserve_dispatch_compute_seconds_count{device="numpy",operator="CELU"}'] == 0
    for part in PARTS:
        assert found[f'dmlserve_inference_seconds_total{{operator="celu",part="{part}"}}'] == 0
    for rows in (1, 4):
        assert found[f'dmlserve_inference_batches_total{{operator="mnist",size="{rows}"}}'] == 0
    for alone in ("log_lines_dropped", "connections_refused"):
        assert found[f"dmlserve_{alone}_total"] == 0
    for reason in ("key", "route", "fault", "queue_full"):
        assert found[f'dmlserve_rejections_total{{reason="{reason}"}}'] == 0


def test_dispatches_and_those_that_fell_back(workers: list[Metrics]) -> None:
    first, second = workers
    prepared: Any = SimpleNamespace(name="CELU")
    first.dispatched(prepared, Outcome({}, 0.5, 2.0, ExecutionRecord("numpy", "cpu")))
    fell_back = ExecutionRecord("numpy", "cpu", "it failed", "cuda:0", "memory")
    second.dispatched(prepared, Outcome({}, 0.25, 1.0, fell_back))
    found = shown(first)
    assert found['dmlserve_dispatches_total{device="numpy",operator="CELU"}'] == 2
    assert found['dmlserve_dispatch_queue_seconds_sum{device="numpy"}'] == 0.75
    assert found['dmlserve_dispatch_compute_seconds_sum{device="numpy",operator="CELU"}'] == 3.0
    fallbacks = {name: value for name, value in found.items() if name.startswith("dmlserve_fallbacks_total")}
    assert fallbacks == {'dmlserve_fallbacks_total{cause="memory",device="cuda:0"}': 1}


def test_keys_refusals_and_what_is_counted_elsewhere(workers: list[Metrics], slots: Slots) -> None:
    first, second = workers
    for metrics in workers:
        metrics.asked_with_key("mine", 200, 10, 30)
        metrics.refused("key")
        metrics.log_lines_dropped[0] += 4
    second.asked_with_key("mine", 404, 1, 2)
    limit = ConnectionLimit(0)
    Metrics(service(1), limit, slots, 2)
    limit.enter(mock.Mock())
    found = shown(first)
    assert found['dmlserve_key_requests_total{key="mine",status="200"}'] == 2
    assert found['dmlserve_key_requests_total{key="mine",status="404"}'] == 1
    assert found['dmlserve_key_received_bytes_total{key="mine"}'] == 21
    assert found['dmlserve_key_sent_bytes_total{key="mine"}'] == 62
    assert found['dmlserve_rejections_total{reason="key"}'] == 2
    assert found["dmlserve_log_lines_dropped_total"] == 8
    assert found["dmlserve_connections_refused_total"] == 1


def test_inferences_of_all(workers: list[Metrics], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.engine.inference_counts.time", lambda: 5.000_999)
    first, second = workers
    for metrics in workers:
        metrics.inferences.observe("celu", 2_000_000_000, (1_000_000_000, 1, 2, 3))
        metrics.batches.observe("mnist", 4, 10, 20, 30)
    second.inferences.observe("celu", 500_000_000, None)
    found = shown(first)
    assert found['dmlserve_inference_seconds_total{operator="celu",part="success"}'] == 4
    assert found['dmlserve_inference_seconds_total{operator="celu",part="queue"}'] == 2
    assert found['dmlserve_inference_seconds_total{operator="celu",part="fail"}'] == 0.5
    assert found['dmlserve_inference_batches_total{operator="mnist",size="4"}'] == 2
    inferences, batches = first.inferences_of_all()
    assert [[*numbers] for numbers in batches["mnist", "4"]] == [[1, 10, 20, 30]] * 2
    told = Counted.by(inferences["celu",])
    assert (told.parts["success"], told.parts["fail"], told.last) == ((2, 4_000_000_000), (1, 500_000_000), 5000)


GAUGES = {
    "queue_depth": 3,
    "running_dispatches": 6,
    "memory_bytes": 9,
    "idle_buffer_bytes": 12,
    "pinned_bytes": 15,
    "staging_bytes": 120,
    "device_pool_bytes": 60,
    "connections": 3,
    "graphs": 12,
    "graph_bytes": 14,
    "ready": 0,
    "workers": 2,
}


def test_gauges_of_several_make_one(workers: list[Metrics], clock: Clock) -> None:
    first, second = workers
    second._tell()
    found = shown(first)
    assert {name: found[f"dmlserve_{name}"] for name in GAUGES} == GAUGES
    for place, name in enumerate(NAMES, 1):
        label = f'{{cache="{name}"}}'
        assert found[f"dmlserve_cache_hits_total{label}"] == 200 * place + 3
        assert found[f"dmlserve_cache_misses_total{label}"] == 400 * place + 3
        assert found[f"dmlserve_cache_entries{label}"] == 600 * place + 3
    for compiler, (compiled, kept) in {"llvm": (150, 180), "nvrtc": (120, 3)}.items():
        assert found[f'dmlserve_kernels_compiled_total{{compiler="{compiler}"}}'] == compiled
        assert found[f'dmlserve_kernels_cached{{compiler="{compiler}"}}'] == kept
    assert found['dmlserve_gpu_in_service{device="cuda:1"}'] == 1
    assert found[f'dmlserve_build_info{{version="{__version__}"}}'] == 1
    clock.now += 1.9
    assert shown(first)["dmlserve_workers"] == 2
    clock.now += 0.1
    found = shown(first)
    assert (found["dmlserve_workers"], found["dmlserve_memory_bytes"]) == (1, 3), "the other one hangs, or has ended"


def test_without_gpus_loops_and_caches(slots: Slots) -> None:
    bare = service(1, gpus=False)
    bare.loops, bare.caches = None, {"requests": bare.caches["requests"]}
    found = shown(Metrics(bare, ConnectionLimit(), slots, 0))
    assert found['dmlserve_cache_hits_total{cache="requests"}'] == 201
    zeros = ["cache_hits_total{cache", "kernels_compiled_total{compiler", "kernels_cached{compiler"]
    for name, label in zip(zeros, ("structures", "llvm", "nvrtc"), strict=True):
        assert found[f'dmlserve_{name}="{label}"}}'] == 0
    assert found["dmlserve_start_time_seconds"] == slots.start_time
    assert shown(Metrics(bare, ConnectionLimit()))["dmlserve_workers"] == 1


def test_processor_time_goes_on_where_the_last_process_ended(slots: Slots, clock: Clock) -> None:
    first = Metrics(service(1), ConnectionLimit(), slots, 0)
    assert shown(first)["dmlserve_cpu_seconds_total"] == 1
    clock.used = 2.5
    assert shown(first)["dmlserve_cpu_seconds_total"] == 2.5
    clock.used = 0.5
    again = Metrics(service(1), ConnectionLimit(), slots, 0)
    assert shown(again)["dmlserve_cpu_seconds_total"] == 3


def test_what_is_counted_in_caches_and_compilers_never_goes_back(slots: Slots, clock: Clock) -> None:
    """Also while a worker hangs, or is not there any more: Prometheus would take all that comes back for new."""
    first, second = (Metrics(service(number), ConnectionLimit(), slots, number) for number in (0, 1))
    names = ["cache_hits_total{cache", "cache_misses_total{cache", "kernels_compiled_total{compiler"]
    wanted = [
        f'dmlserve_{name}="{label}"}}' for name, label in zip(names, ("requests", "requests", "llvm"), strict=True)
    ]
    second._tell()
    before = shown(first)
    clock.now += 60
    after = shown(first)
    assert after["dmlserve_workers"] == 1
    assert [after[each] for each in wanted] == [before[each] for each in wanted]
    found = shown(Metrics(service(1), ConnectionLimit(), slots, 1))
    own = shown(Metrics(service(1), ConnectionLimit()))
    assert [found[each] for each in wanted] == [before[each] + own[each] for each in wanted]


def test_a_worker_that_ends_says_so(workers: list[Metrics]) -> None:
    first, second = workers

    async def main() -> None:
        telling = asyncio.ensure_future(second.tell())
        await asyncio.sleep(0)
        assert shown(first)["dmlserve_workers"] == 2
        telling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await telling

    asyncio.run(main())
    assert second._gauges[0] == -math.inf
    assert shown(first)["dmlserve_workers"] == 1


def test_a_worker_tells_its_gauges_before_the_others_take_it_for_gone(
    workers: list[Metrics], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = workers
    seen: list[float] = []

    async def sleep(seconds: float) -> None:
        clock.now += seconds
        seen.append(shown(first)["dmlserve_workers"])
        if len(seen) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(second.tell())
    assert seen == [2, 2, 2]


def exemplars(metrics: Metrics) -> Iterator[tuple[str, Any]]:
    """The exemplar of each bucket that has one, by the bucket's bound."""
    text = metrics.render(with_exemplars=True).decode()
    for family in openmetrics_families(text):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            if sample.exemplar:
                yield sample.labels["le"], sample.exemplar


def test_the_newest_trace_of_each_bucket_is_shown(workers: list[Metrics], clock: Clock) -> None:
    first, second = workers
    traces = [f"{number:032x}" for number in (1 << 127, 2, (1 << 127) + 1)]
    spans = [f"{number:016x}" for number in (1 << 63, 5, 6)]
    for metrics, seconds, trace, span in zip([first, second, first], [0.002, 0.0025, 70.0], traces, spans, strict=True):
        metrics.requested("/a", "GET", 200, 0, 0, seconds)
        metrics.exemplify("/a", seconds, trace, span)
        clock.now += 1
    for metrics in workers:
        small, large = exemplars(metrics)
        assert (small[0], small[1].value, float(small[1].timestamp)) == ("0.0025", 0.0025, 1001.0)
        assert small[1].labels == {"trace_id": traces[1], "span_id": spans[1]}
        assert (large[0], large[1].value, float(large[1].timestamp)) == ("+Inf", 70.0, 1002.0)
        assert large[1].labels == {"trace_id": traces[2], "span_id": spans[2]}
        assert b"trace_id" not in metrics.render()
        assert not metrics.render().endswith(b"# EOF\n")
    first.exemplify("/a", 0.0022, traces[0], spans[0])
    (_, newest), _ = exemplars(second)
    assert newest.labels == {"trace_id": traces[0], "span_id": spans[0]}


def test_a_trace_is_not_shown_while_it_is_written(
    workers: list[Metrics], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    first, second = workers
    seen: list[int] = []

    def now() -> float:
        seen.append(len([*exemplars(second)]))
        return clock.now

    monkeypatch.setattr(module, "time", now)
    first.requested("/a", "GET", 200, 0, 0, 0.002)
    for _ in range(2):
        first.exemplify("/a", 0.002, "1" * 32, "2" * 16)
        assert len([*exemplars(second)]) == 1
    assert seen == [0, 0]
