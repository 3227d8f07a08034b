"""Prometheus metrics of one application."""

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from app import __version__
from app.service import Outcome, Prepared, Service, State

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BYTES = tuple(4.0**exponent for exponent in range(4, 15))  # 256 B to 256 MiB


class Series:
    """A histogram's observations: how many fell into each bucket, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)


class Histogram:
    """Series by their labels. Only the event loop's thread counts, so that no lock is needed."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._family = (name, help_text, labels)
        self._series: dict[tuple[str, ...], Series] = defaultdict(lambda: Series(bounds))

    def of(self, *labels: str) -> Series:
        return self._series[labels]

    def collect(self) -> HistogramMetricFamily:
        name, help_text, names = self._family
        family = HistogramMetricFamily(name, help_text, labels=names)
        for labels, series in self._series.items():
            series.add_to(family, labels)
        return family


class Counter:
    """Counts by their labels, by the event loop's thread."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str]) -> None:
        self._family = (name, help_text, labels)
        self.counts: dict[tuple[str, ...], int] = defaultdict(int)

    def collect(self) -> CounterMetricFamily:
        name, help_text, names = self._family
        family = CounterMetricFamily(name, help_text, labels=names)
        for labels, count in self.counts.items():
            family.add_metric(labels, count)
        return family


class Metrics(Collector):
    """What is counted. Label values come from our own names only, so that clients cannot make up new series.

    prometheus_client writes the text; its own counters and histograms would cost a small dispatch a tenth of its time.
    """

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, service: Service) -> None:
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
        self._registry = registry = CollectorRegistry()
        registry.register(self)
        for name, help_text, value in (
            ("dmlserve_queue_depth", "Dispatches waiting for a worker.", lambda: service.pool.waiting),
            ("dmlserve_running_dispatches", "Dispatches in the workers' hands.", lambda: service.pool.running),
            ("dmlserve_memory_bytes", "Bytes that requests hold.", lambda: service.memory.used),
            ("dmlserve_idle_buffer_bytes", "Bytes kept for the next requests.", lambda: service.memory.pool.idle_bytes),
            ("dmlserve_ready", "1 if dispatches are taken.", lambda: service.state is State.READY),
        ):
            Gauge(name, help_text, registry=registry).set_function(value)
        Gauge("dmlserve_start_time_seconds", "Unix time of the start.", registry=registry).set(time.time())
        Info("dmlserve_build", "Version.", registry=registry).info({"version": __version__})

    def requested(self, route: str, method: str, status: int, received: int, sent: int, seconds: float) -> None:
        """Count an answered request. `route` is a path's template, `received` and `sent` are bytes."""
        self.requests.counts[route, method if method in _METHODS else "other", str(status)] += 1
        self.request_seconds.of(route).observe(seconds)
        self.request_bytes.of(route).observe(received)
        self.response_bytes.of(route).observe(sent)

    def dispatched(self, prepared: Prepared, outcome: Outcome) -> None:
        """Count a dispatch."""
        operator, ran = prepared.operator_name, outcome.ran
        self.dispatches.counts[operator, ran.device] += 1
        self.queue_seconds.of(ran.device).observe(outcome.queue_seconds)
        self.compute_seconds.of(operator, ran.device).observe(outcome.compute_seconds)
        if ran.failed and ran.cause:
            self.fallbacks.counts[ran.failed, ran.cause] += 1

    def collect(self) -> Iterator[Metric]:
        """What the registry asks for."""
        for each in vars(self).values():
            if isinstance(each, Counter | Histogram):
                yield each.collect()

    def render(self) -> bytes:
        """All of it in the text format."""
        return generate_latest(self._registry)
