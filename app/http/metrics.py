"""Prometheus metrics of one application."""

import time
from functools import cache

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from app import __version__
from app.service import Outcome, Prepared, Service, State

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BYTES = tuple(4.0**exponent for exponent in range(4, 15))  # 256 B to 256 MiB


class Metrics:
    """What is counted. Label values come from our own names only, so that clients cannot make up new series."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, service: Service) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "dmlserve_http_requests", "Requests answered.", ["route", "method", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "dmlserve_http_request_duration_seconds",
            "Time from a request's header to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.request_bytes = Histogram(
            "dmlserve_http_request_size_bytes", "Request bodies.", ["route"], buckets=_BYTES, registry=registry
        )
        self.response_bytes = Histogram(
            "dmlserve_http_response_size_bytes", "Answers' bodies.", ["route"], buckets=_BYTES, registry=registry
        )
        self.dispatches = Counter(
            "dmlserve_dispatches", "Dispatches executed.", ["operator", "device"], registry=registry
        )
        self.fallbacks = Counter(
            "dmlserve_fallbacks",
            "Dispatches that NumPy executed because the device chosen could not.",
            ["device", "cause"],
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "dmlserve_dispatch_queue_seconds", "Wait for a worker.", ["device"], buckets=_SECONDS, registry=registry
        )
        self.compute_seconds = Histogram(
            "dmlserve_dispatch_compute_seconds",
            "Time on the device.",
            ["operator", "device"],
            buckets=_SECONDS,
            registry=registry,
        )
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

        # To find a child by its labels costs more than to count in it.
        self._of_requests = cache(self._find_of_requests)
        self._of_dispatches = cache(self._find_of_dispatches)

    def requested(self, route: str, method: str, status: int, received: int, sent: int, seconds: float) -> None:
        """Count an answered request. `route` is a path's template, `received` and `sent` are bytes."""
        requests, duration, request_size, response_size = self._of_requests(
            route, method if method in _METHODS else "other", status
        )
        requests.inc()
        duration.observe(seconds)
        request_size.observe(received)
        response_size.observe(sent)

    def dispatched(self, prepared: Prepared, outcome: Outcome) -> None:
        """Count a dispatch."""
        ran = outcome.ran
        dispatches, queue_seconds, compute_seconds = self._of_dispatches(prepared.compiled.operator.name(), ran.device)
        if ran.failed is not None:
            self.fallbacks.labels(ran.failed, ran.cause).inc()
        dispatches.inc()
        queue_seconds.observe(outcome.queue_seconds)
        compute_seconds.observe(outcome.compute_seconds)

    def _find_of_requests(
        self, route: str, method: str, status: int
    ) -> tuple[Counter, Histogram, Histogram, Histogram]:
        return (
            self.requests.labels(route, method, status),
            self.request_seconds.labels(route),
            self.request_bytes.labels(route),
            self.response_bytes.labels(route),
        )

    def _find_of_dispatches(self, operator: str, device: str) -> tuple[Counter, Histogram, Histogram]:
        return (
            self.dispatches.labels(operator, device),
            self.queue_seconds.labels(device),
            self.compute_seconds.labels(operator, device),
        )

    def render(self) -> bytes:
        """All of it in the text format."""
        return generate_latest(self.registry)
