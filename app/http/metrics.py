"""Prometheus metrics of one application."""

import operator
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

import msgpack
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from app import __version__
from app.http.inference.statistics import InferenceCounts
from app.service import Outcome, Prepared, Service, State

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BYTES = tuple(4.0**exponent for exponent in range(4, 15))  # 256 B to 256 MiB


class Counter:
    """Counts by their labels."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str]) -> None:
        self._family = (name, help_text, labels)
        self.counts: dict[tuple[str, ...], int] = defaultdict(int)

    def add(self, counts: Mapping[tuple[str, ...], int]) -> None:
        """Add another process' `counts`."""
        for labels, count in counts.items():
            self.counts[labels] += count

    def family(self) -> CounterMetricFamily:
        name, help_text, names = self._family
        family = CounterMetricFamily(name, help_text, labels=names)
        for labels, count in self.counts.items():
            family.add_metric(labels, count)
        return family


class Histogram:
    """By their labels: how many observations fell into each bucket, and last their sum."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._family = (name, help_text, labels)
        self._bounds = bounds
        self.counts: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0] * (len(bounds) + 2))

    def observe(self, value: float, *labels: str) -> None:
        series = self.counts[labels]
        series[bisect_left(self._bounds, value)] += 1
        series[-1] += value

    def add(self, counts: Mapping[tuple[str, ...], list[float]]) -> None:
        """Add another process' `counts`."""
        for labels, series in counts.items():
            self.counts[labels] = list(map(operator.add, self.counts[labels], series))

    def family(self) -> HistogramMetricFamily:
        name, help_text, names = self._family
        family = HistogramMetricFamily(name, help_text, labels=names)
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, (*buckets, total) in self.counts.items():
            family.add_metric(labels, list(zip(bounds, accumulate(buckets), strict=True)), total)
        return family


class Counts:
    """What is counted. Label values come from our own names only, so that clients cannot make up new series."""

    def __init__(self) -> None:
        self.requests = Counter("dmlserve_http_requests", "Requests answered.", ["route", "method", "status"])
        self.request_seconds = Histogram(
            "dmlserve_http_request_duration_seconds",
            "Time from a request's header to the end of its answer.",
            ["route"],
            _SECONDS,
        )
        self.request_bytes = Histogram("dmlserve_http_request_size_bytes", "Request bodies.", ["route"], _BYTES)
        self.response_bytes = Histogram("dmlserve_http_response_size_bytes", "Answers' bodies.", ["route"], _BYTES)
        self.dispatches = Counter("dmlserve_dispatches", "Dispatches executed.", ["operator", "device"])
        self.fallbacks = Counter(
            "dmlserve_fallbacks",
            "Dispatches that NumPy executed because the device chosen could not.",
            ["device", "cause"],
        )
        self.queue_seconds = Histogram("dmlserve_dispatch_queue_seconds", "Wait for a worker.", ["device"], _SECONDS)
        self.compute_seconds = Histogram(
            "dmlserve_dispatch_compute_seconds", "Time on the device.", ["operator", "device"], _SECONDS
        )
        self.inferences = InferenceCounts()

    def all(self) -> dict[str, Counter | Histogram | InferenceCounts]:
        return vars(self)


GAUGES: dict[str, tuple[str, Callable[[Service], float], Callable[[Iterable[float]], float]]] = {
    "queue_depth": ("Dispatches waiting for a worker.", lambda service: service.pool.waiting, sum),
    "running_dispatches": ("Dispatches in the workers' hands.", lambda service: service.pool.running, sum),
    "memory_bytes": ("Bytes that requests hold.", lambda service: service.memory.used, sum),
    "idle_buffer_bytes": ("Bytes kept for the next requests.", lambda service: service.memory.pool.idle_bytes, sum),
    "ready": ("1 if dispatches are taken.", lambda service: service.state is State.READY, min),
}
"""What they are, how to read one, and how several processes' make one."""


class Metrics:
    """The metrics of one process, and of all together.

    Only the event loop's thread counts, so that no lock is needed: prometheus_client's own counters and histograms,
    which have one each, cost a small dispatch a tenth of its time. It does write the text.
    """

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, service: Service) -> None:
        self._service = service
        self._start_time = time.time()
        self._counts = Counts()

    def requested(self, route: str, method: str, status: int, received: int, sent: int, seconds: float) -> None:
        """Count an answered request. `route` is a path's template, `received` and `sent` are bytes."""
        counts = self._counts
        counts.requests.counts[route, method if method in _METHODS else "other", str(status)] += 1
        counts.request_seconds.observe(seconds, route)
        counts.request_bytes.observe(received, route)
        counts.response_bytes.observe(sent, route)

    def dispatched(self, prepared: Prepared, outcome: Outcome) -> None:
        """Count a dispatch."""
        counts, operator, ran = self._counts, prepared.operator_name, outcome.ran
        counts.dispatches.counts[operator, ran.device] += 1
        counts.queue_seconds.observe(outcome.queue_seconds, ran.device)
        counts.compute_seconds.observe(outcome.compute_seconds, operator, ran.device)
        if ran.failed and ran.cause:
            counts.fallbacks.counts[ran.failed, ran.cause] += 1

    @property
    def inferences(self) -> InferenceCounts:
        """Where inferences are counted."""
        return self._counts.inferences

    def inferences_of_all(self, snapshots: Iterable[bytes]) -> InferenceCounts:
        """Those of this process and of other workers' snapshots."""
        total = InferenceCounts()
        for snapshot in [self.snapshot(), *snapshots]:
            total.add(dict(msgpack.unpackb(snapshot, use_list=False)[0]["inferences"]))
        return total

    def snapshot(self) -> bytes:
        """All there is to tell to another worker."""
        counts = {name: [*each.counts.items()] for name, each in self._counts.all().items()}
        packed: bytes = msgpack.packb((counts, self._gauges(), self._start_time))
        return packed

    def render(self, snapshots: Iterable[bytes] = ()) -> bytes:
        """All of it in the text format, together with other workers' snapshots."""
        totals, gauges, start_times = Counts(), [], []
        for snapshot in [self.snapshot(), *snapshots]:
            counts, gauge_values, start_time = msgpack.unpackb(snapshot, use_list=False)
            for name, total in totals.all().items():
                total.add(dict(counts[name]))
            gauges.append(gauge_values)
            start_times.append(start_time)

        registry = CollectorRegistry()
        registry.register(_Families([each.family() for each in totals.all().values()]))
        for name, (help_text, _, together) in GAUGES.items():
            Gauge(f"dmlserve_{name}", help_text, registry=registry).set(together(each[name] for each in gauges))
        Gauge("dmlserve_workers", "Processes.", registry=registry).set(len(gauges))
        Gauge("dmlserve_start_time_seconds", "Unix time of the start.", registry=registry).set(min(start_times))
        Info("dmlserve_build", "Version.", registry=registry).info({"version": __version__})
        return generate_latest(registry)

    def _gauges(self) -> dict[str, float]:
        return {name: float(read(self._service)) for name, (_, read, _) in GAUGES.items()}


class _Families(Collector):
    """Metric families that are complete already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
