"""Families of series, as Prometheus has them: each worker counts in its own slot, and those of all are added up."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from prometheus_client.core import CounterMetricFamily, Exemplar, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from app.http.telemetry.slots import Labels, Slot
from app.sink import Cells

Series: TypeAlias = Mapping[Labels, Sequence[Sequence[float]]]
"""By their labels, each worker's numbers."""


def together(numbers: Sequence[Sequence[float]]) -> list[float]:
    """The sums of several workers' numbers."""
    return list(map(sum, zip(*numbers, strict=True)))


class Family:
    """Series with `count` numbers each. This process may have any number of them, which is for its own to bound."""

    def __init__(self, slot: Slot, name: str, help_text: str, labels: Sequence[str], count: int = 1) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = labels
        self.numbers = _Numbers(slot, name, count)
        """Of this worker, by labels, to be added to: those of a new series are 0."""


class _Numbers(dict[Labels, Cells]):
    def __init__(self, slot: Slot, name: str, count: int) -> None:
        super().__init__()
        self._slot = slot
        self._name = name
        self._count = count

    def __missing__(self, labels: Labels) -> Cells:
        self[labels] = found = self._slot.find(self._name, labels, self._count)
        return found


class Counter(Family):
    """Counts. The first number of each series is shown, which is the only one unless there are more for others."""

    def metric(self, series: Series) -> Metric:
        """What is to be shown of `series`."""
        metric = CounterMetricFamily(self.name, self.help_text, labels=self.labels)
        for labels, numbers in series.items():
            metric.add_metric(labels, together(numbers)[0])
        return metric


class Histogram(Family):
    """How many observations fell into each bucket, and last their sum."""

    def __init__(self, slot: Slot, name: str, help_text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(slot, name, help_text, labels, len(bounds) + 2)
        self._bounds = bounds

    def observe(self, numbers: Cells, value: float) -> None:
        """Count a value in a series, of which these are the numbers."""
        numbers[bisect_left(self._bounds, value)] += 1.0
        numbers[-1] += value

    def bucket(self, value: float) -> int:
        """The number of the bucket that `value` falls into."""
        return bisect_left(self._bounds, value)

    def metric(self, series: Series, exemplars: Mapping[Labels, Sequence[Exemplar | None]] | None = None) -> Metric:
        """What is to be shown of `series`, with `exemplars` of their buckets."""
        metric = HistogramMetricFamily(self.name, self.help_text, labels=self.labels)
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, numbers in series.items():
            *buckets, total = together(numbers)
            shown: Any = (exemplars or {}).get(labels) or [None] * len(bounds)
            metric.add_metric(labels, list(zip(bounds, accumulate(buckets), shown, strict=True)), total)
        return metric
