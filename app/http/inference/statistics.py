"""Triton's statistics extension: what the inferences of this protocol took, model by model."""

import time

from prometheus_client.core import CounterMetricFamily, Metric

from app.http.families import Family, Series
from app.http.inference import documents
from app.http.slots import Slot

VERSION = "1"
"""Of every model: an operator's meaning does not change."""


class InferenceCounts(Family):
    """By operator and part of an inference: how many, nanoseconds in all, and when the last one was, in ms."""

    def __init__(self, slot: Slot) -> None:
        text = "Time that inferences of the Open Inference Protocol took, and their parts did."
        super().__init__(slot, "dmlserve_inference_seconds", text, ["operator", "part"], 3)

    def observe(self, operator: str, part: str, ns: int) -> None:
        numbers = self.numbers[operator, part]
        numbers[0] += 1.0
        numbers[1] += ns
        numbers[2] = time.time_ns() // 1_000_000

    def executed(self, operator: str, **parts: int) -> None:
        """Count the parts of an inference, in nanoseconds."""
        for part, ns in parts.items():
            self.observe(operator, part, ns)

    def metric(self, series: Series) -> Metric:
        """What is to be shown of `series`."""
        metric = CounterMetricFamily(self.name, self.help_text, labels=self.labels)
        for labels, numbers in series.items():
            metric.add_metric(labels, sum(ns for _, ns, _ in numbers) / 1e9)
        return metric


def document(series: Series, name: str, operator: str) -> documents.ModelStatistics:
    """Of the model that a client calls `name`, from the series of InferenceCounts."""

    def part(of: str) -> documents.Duration:
        numbers = series.get((operator, of), ())
        return documents.Duration(
            count=int(sum(count for count, _, _ in numbers)), ns=int(sum(ns for _, ns, _ in numbers))
        )

    last = max((int(last) for _, _, last in series.get((operator, "compute_infer"), ())), default=0)
    executed = part("compute_infer")["count"]
    batch = documents.BatchStatistics(
        batch_size=1,
        compute_input=part("compute_input"),
        compute_infer=part("compute_infer"),
        compute_output=part("compute_output"),
    )
    return documents.ModelStatistics(
        name=name,
        version=VERSION,
        last_inference=last,
        inference_count=part("success")["count"],
        execution_count=executed,
        inference_stats=documents.InferStatistics(
            success=part("success"),
            fail=part("fail"),
            queue=part("queue"),
            compute_input=part("compute_input"),
            compute_infer=part("compute_infer"),
            compute_output=part("compute_output"),
            cache_hit=part("cache_hit"),
            cache_miss=part("cache_miss"),
        ),
        batch_stats=[batch] if executed else [],
    )
