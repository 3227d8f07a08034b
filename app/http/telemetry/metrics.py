"""Prometheus metrics of the service: of all its workers together."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from time import monotonic, process_time, time

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Exemplar, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from app import __version__
from app.engine.prepared import Outcome, Prepared
from app.engine.service import Service, State
from app.http.core.auth import DENIALS
from app.http.core.problems import FAULT, REASONS
from app.http.server.limit import ConnectionLimit
from app.http.telemetry.families import Counter, Histogram, Series
from app.http.telemetry.gpus import Gpus
from app.http.telemetry.inferences import BatchCounts, InferenceCounts
from app.http.telemetry.slots import Labels, Slot, Slots
from app.sink import Cells

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BYTES = tuple(4**exponent for exponent in range(4, 15))  # 256 B to 256 MiB

_TOLD_SECONDS = 0.25
"""How often a worker tells the others its gauges."""

_SILENT_SECONDS = 2.0
"""A worker that did not for so long is not there any more, or hangs."""


_EXEMPLARS = "exemplars"
"""Name of the series of a route's exemplars: of each bucket of its durations when, how long, and four and two times
32 bits of the trace's id and the span's. The time is 0 while the rest is written."""

_EXEMPLAR = 8


class Counts:
    """What is counted. Label values come from our own names only, so that clients cannot make up new series."""

    def __init__(self, slot: Slot) -> None:
        self.requests = Counter(slot, "dmlserve_http_requests", "Requests answered.", ["route", "method", "status"])
        self.request_seconds = Histogram(
            slot,
            "dmlserve_http_request_duration_seconds",
            "Time from a request's header to the end of its answer.",
            ["route"],
            _SECONDS,
        )
        self.request_bytes = Histogram(slot, "dmlserve_http_request_size_bytes", "Request bodies.", ["route"], _BYTES)
        self.response_bytes = Histogram(
            slot, "dmlserve_http_response_size_bytes", "Answers' bodies.", ["route"], _BYTES
        )
        self.dispatches = Counter(slot, "dmlserve_dispatches", "Dispatches executed.", ["operator", "device"])
        self.fallbacks = Counter(
            slot,
            "dmlserve_fallbacks",
            "Dispatches that NumPy, or another GPU, executed because the device chosen could not.",
            ["device", "cause"],
        )
        self.queue_seconds = Histogram(
            slot, "dmlserve_dispatch_queue_seconds", "Wait for a worker.", ["device"], _SECONDS
        )
        self.compute_seconds = Histogram(
            slot, "dmlserve_dispatch_compute_seconds", "Time on the device.", ["operator", "device"], _SECONDS
        )
        self.rejections = Counter(
            slot, "dmlserve_rejections", "Requests that were not answered with a result, by reason.", ["reason"]
        )
        self.key_requests = Counter(
            slot, "dmlserve_key_requests", "Requests with an API key, by its name.", ["key", "status"]
        )
        self.key_received = Counter(
            slot, "dmlserve_key_received_bytes", "Bodies of requests, by the name of their API key.", ["key"]
        )
        self.key_sent = Counter(
            slot, "dmlserve_key_sent_bytes", "Bodies of answers, by the name of the API key.", ["key"]
        )
        self.inferences = InferenceCounts(slot)
        self.batches = BatchCounts(slot)
        self.log_lines_dropped = Counter(
            slot, "dmlserve_log_lines_dropped", "Log lines that were dropped because nobody took them.", []
        )
        self.connections_refused = Counter(
            slot,
            "dmlserve_connections_refused",
            "Connections beyond max_connections, on which only health and metrics are answered.",
            [],
        )
        self.cpu_seconds = Counter(slot, "dmlserve_cpu_seconds", "Processor time of all processes that serve.", [])
        self.cache_hits = Counter(slot, "dmlserve_cache_hits", "What was found in a cache.", ["cache"])
        self.cache_misses = Counter(slot, "dmlserve_cache_misses", "What was not found in a cache.", ["cache"])
        self.kernels_compiled = Counter(slot, "dmlserve_kernels_compiled", "Kernels that were compiled.", ["compiler"])
        for alone in (self.log_lines_dropped, self.connections_refused, self.cpu_seconds):
            alone.numbers[()]  # shown before the first one, too
        for reason in {*REASONS.values(), *DENIALS, FAULT}:
            self.rejections.numbers[(reason,)]

    def of_requests(self, route: str, method: str, status: int) -> tuple[Cells, Cells, Cells, Cells]:
        """Their number, durations, and sizes of bodies and answers."""
        return (
            self.requests.numbers[route, method if method in _METHODS else "other", str(status)],
            self.request_seconds.numbers[(route,)],
            self.request_bytes.numbers[(route,)],
            self.response_bytes.numbers[(route,)],
        )

    def of_dispatches(self, operator: str, device: str) -> tuple[Cells, Cells, Cells]:
        """Their number, their waits and their times."""
        return (
            self.dispatches.numbers[operator, device],
            self.queue_seconds.numbers[(device,)],
            self.compute_seconds.numbers[operator, device],
        )

    def all(self) -> Iterable[Counter | Histogram | InferenceCounts]:
        return vars(self).values()


GAUGES: dict[str, tuple[str, Callable[[Service, ConnectionLimit], float], Callable[[Iterable[float]], float]]] = {
    "queue_depth": ("Dispatches waiting for a worker.", lambda service, _: service.pool.waiting, sum),
    "running_dispatches": ("Dispatches in the workers' hands.", lambda service, _: service.pool.running, sum),
    "memory_bytes": ("Bytes that requests hold.", lambda service, _: service.memory.used, sum),
    "idle_buffer_bytes": ("Bytes kept for the next requests.", lambda service, _: service.memory.pool.idle_bytes, sum),
    "pinned_bytes": (
        "Bytes of requests' memory that GPUs read and write by themselves.",
        lambda service, _: service.placement.pinned.used,
        sum,
    ),
    "staging_bytes": (
        "Pinned bytes that other tensors are moved through.",
        lambda service, _: sum(gpu.slots.pinned_bytes for gpu in service.placement.gpus),
        sum,
    ),
    "device_pool_bytes": (
        "Bytes of GPUs' memory that are kept for whole tensors.",
        lambda service, _: sum(gpu.pool_bytes for gpu in service.placement.gpus),
        sum,
    ),
    "connections": ("Connections there are.", lambda _, connections: connections.count, sum),
    "graphs": ("Graphs that are kept.", lambda service, _: service.graphs.count, max),
    "graph_bytes": (
        "Bytes that the graphs that are kept count for.",
        lambda service, _: service.graphs.memory_bytes,
        max,
    ),
    "ready": ("1 if dispatches are taken.", lambda service, _: service.state is State.READY, min),
}
"""What they are, how to read one, and how several processes' make one."""


CACHES = ("structures", "requests", "inferences")
"""Those of the service: of formulas and what devices made of them, and of requests in either protocol."""

COMPILERS = ("llvm", "nvrtc")
"""Those of kernels for CPUs and for GPUs."""

_GAUGES = "gauges"
"""Name of the series of a worker's gauges: when they were told, on the clock that all processes share, they, the sizes
of CACHES, and how many kernels of each of COMPILERS are kept."""


class Metrics:
    """What worker `number` counts, and the metrics of all together.

    Only the event loop's thread counts, so that no lock is needed: prometheus_client's own counters and histograms,
    which have one each, cost a small dispatch a tenth of its time. It does write the text. What is counted is in the
    slots at once: if a worker is killed, what it counted stays, and the next one with its number goes on counting.
    Any thread may say what will be counted: a rate over a series does not see the first one if it makes the series.
    """

    media_type = CONTENT_TYPE_LATEST
    media_type_with_exemplars = openmetrics.CONTENT_TYPE_LATEST

    def __init__(
        self, service: Service, connections: ConnectionLimit, slots: Slots | None = None, number: int = 0
    ) -> None:
        self._service = service
        self._connections = connections
        self._slots = slots or Slots(1)
        self._slot = slot = self._slots.own(number)
        self._counts = Counts(slot)
        self.log_lines_dropped = self._counts.log_lines_dropped.numbers[()]
        self.inferences = self._counts.inferences
        self.batches = self._counts.batches
        """Where these are counted."""
        connections.count_in(self._counts.connections_refused.numbers[()])
        self._gauges = slot.find(_GAUGES, (), 1 + len(GAUGES) + len(CACHES) + len(COMPILERS))
        self._totals_told: dict[int, float] = defaultdict(float)
        self.gpus = Gpus(service.placement.gpus)
        # To look all of them up for each request would take longer than to count it.
        self._requests = lru_cache(1024)(self._counts.of_requests)
        self._dispatches = lru_cache(1024)(self._counts.of_dispatches)

    def expect_requests(self, route: str, method: str) -> None:
        """Show the series of those that are answered with 200, at 0, before the first one. For any thread."""
        self._requests(route, method, 200)

    def expect_dispatches(self, operator: str, device: str) -> None:
        """The same of dispatches."""
        self._dispatches(operator, device)

    def requested(self, route: str, method: str, status: int, received: int, sent: int, seconds: float) -> None:
        """Count an answered request. `route` is a path's template, `received` and `sent` are bytes."""
        counts = self._counts
        count, durations, request_bytes, response_bytes = self._requests(route, method, status)
        count[0] += 1.0
        counts.request_seconds.observe(durations, seconds)
        counts.request_bytes.observe(request_bytes, received)
        counts.response_bytes.observe(response_bytes, sent)

    def refused(self, reason: str) -> None:
        """Count a request that was refused."""
        self._counts.rejections.numbers[(reason,)][0] += 1.0

    def asked_with_key(self, name: str, status: int, received: int, sent: int) -> None:
        """Count an answered request by its API key. `received` and `sent` are bytes."""
        self._counts.key_requests.numbers[name, str(status)][0] += 1.0
        self._counts.key_received.numbers[(name,)][0] += received
        self._counts.key_sent.numbers[(name,)][0] += sent

    def dispatched(self, prepared: Prepared, outcome: Outcome) -> None:
        """Count a dispatch."""
        ran = outcome.ran
        counts = self._counts
        count, queue_seconds, compute_seconds = self._dispatches(prepared.name, ran.device)
        count[0] += 1.0
        counts.queue_seconds.observe(queue_seconds, outcome.queue_seconds)
        counts.compute_seconds.observe(compute_seconds, outcome.compute_seconds)
        if ran.failed and ran.cause:
            self._counts.fallbacks.numbers[ran.failed, ran.cause][0] += 1.0

    def inferences_of_all(self) -> tuple[Series, Series]:
        """Those of all workers, and their batches."""
        series = self._series()
        return series[self.inferences.name], series[self.batches.name]

    async def tell(self) -> None:
        """Tell the other workers the gauges of this one, until cancelled."""
        try:
            while True:
                self._tell()
                await asyncio.sleep(_TOLD_SECONDS)
        finally:
            self._gauges[0] = -math.inf

    def exemplify(self, route: str, seconds: float, trace_id: str, span_id: str) -> None:
        """Show the trace of a request, whose ids are hexadecimal digits, with its duration."""
        begin = _EXEMPLAR * self._counts.request_seconds.bucket(seconds)
        numbers = self._slot.find(_EXEMPLARS, (route,), _EXEMPLAR * (len(_SECONDS) + 1))[begin:][:_EXEMPLAR]
        numbers[0] = 0.0
        ids = trace_id + span_id
        for place, value in enumerate([seconds, *(int(ids[at : at + 8], 16) for at in range(0, 48, 8))], 1):
            numbers[place] = value
        numbers[0] = time()

    def render(self, *, with_exemplars: bool = False) -> bytes:
        """All of it in the text format, or, with exemplars, in OpenMetrics'."""
        self._tell()
        series = self._series()
        now = monotonic()
        told = [values for since, *values in series[_GAUGES][()] if now - since < _SILENT_SECONDS]

        numbers = list(zip(*told, strict=True))
        durations = self._counts.request_seconds
        families = [each.metric(series[each.name]) for each in self._counts.all() if each is not durations]
        exemplars = (
            {labels: _exemplars(each) for labels, each in series[_EXEMPLARS].items()} if with_exemplars else None
        )
        families.append(durations.metric(series[durations.name], exemplars))
        families += [*_of_caches_and_compilers(numbers[len(GAUGES) :]), *self.gpus.metrics()]
        for (name, (help_text, _, together)), values in zip(GAUGES.items(), numbers, strict=False):
            families.append(GaugeMetricFamily(f"dmlserve_{name}", help_text, together(values)))
        start = self._slots.start_time
        families += [
            GaugeMetricFamily("dmlserve_workers", "Processes that serve.", len(told)),
            GaugeMetricFamily("dmlserve_start_time_seconds", "Unix time of the start.", start),
            InfoMetricFamily("dmlserve_build", "Version.", {"version": __version__}),
        ]
        if not with_exemplars:
            return generate_latest(_Families(families))
        text: bytes = openmetrics.generate_latest(_Families(families))  # type: ignore[no-untyped-call]
        return text

    def _tell(self) -> None:
        for place, (numbers, total) in enumerate(self._totals()):
            numbers[0] += total - self._totals_told[place]  # to that of the process before this one
            self._totals_told[place] = total
        for place, value in enumerate(self._now()):
            self._gauges[place] = value

    def _now(self) -> Iterator[float]:
        """What the series of gauges tells."""
        service = self._service
        yield monotonic()
        for _, read, _ in GAUGES.values():
            yield read(service, self._connections)
        for name in CACHES:
            yield service.caches[name].size if name in service.caches else 0
        gpus = service.placement.gpus
        yield service.loops.kernels if service.loops else 0
        yield len(gpus[0].cache) if gpus else 0

    def _totals(self) -> Iterator[tuple[Cells, float]]:
        """What is counted elsewhere in this process, since it began, each with the number that it is added to."""
        counts, service = self._counts, self._service
        yield counts.cpu_seconds.numbers[()], process_time()
        for name in CACHES:
            cache = service.caches.get(name)
            yield counts.cache_hits.numbers[(name,)], cache.hits if cache else 0
            yield counts.cache_misses.numbers[(name,)], cache.misses if cache else 0
        gpus = service.placement.gpus
        compiled = (service.loops.compiled if service.loops else 0, gpus[0].cache.compiled if gpus else 0)
        for name, total in zip(COMPILERS, compiled, strict=True):
            yield counts.kernels_compiled.numbers[(name,)], total

    def _series(self) -> dict[str, dict[Labels, list[list[float]]]]:
        """By family and labels, each worker's numbers."""
        series: dict[str, dict[Labels, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
        for name, labels, numbers in self._slots.series():
            series[name][labels].append([*numbers])
        return series


def _of_caches_and_compilers(numbers: Iterable[Sequence[float]]) -> Iterator[Metric]:
    """From what follows the gauges in their series, of several workers each."""
    sums = map(sum, numbers)
    for names, family in (
        (CACHES, GaugeMetricFamily("dmlserve_cache_entries", "What is kept in a cache.", labels=["cache"])),
        (COMPILERS, GaugeMetricFamily("dmlserve_kernels_cached", "Kernels that are kept.", labels=["compiler"])),
    ):
        for name in names:
            family.add_metric([name], next(sums))
        yield family


def _exemplars(numbers: Sequence[Sequence[float]]) -> list[Exemplar | None]:
    """Of each bucket the newest, of several workers' numbers."""
    found: list[Exemplar | None] = []
    for begin in range(0, len(numbers[0]), _EXEMPLAR):
        since, seconds, *ids = max([*each[begin : begin + _EXEMPLAR]] for each in numbers)
        digits = "".join(f"{int(each):08x}" for each in ids)
        shown = {"trace_id": digits[:32], "span_id": digits[32:]}
        found.append(Exemplar(shown, seconds, since) if since else None)
    return found


class _Families(Collector):
    """Metric families that are complete already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
