"""Triton's statistics extension: what the inferences of this protocol took, model by model."""

import time
from collections import defaultdict
from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily

from app.http.inference import documents

VERSION = "1"
"""Of every model: an operator's meaning does not change."""


class InferenceCounts:
    """By operator and part of an inference: how many, nanoseconds in all, and when the last one was, in ms."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0])

    def observe(self, operator: str, part: str, ns: int) -> None:
        counted = self.counts[operator, part]
        counted[0] += 1
        counted[1] += ns
        counted[2] = time.time_ns() // 1_000_000

    def executed(self, operator: str, **parts: int) -> None:
        """Count the parts of an inference, in nanoseconds."""
        for part, ns in parts.items():
            self.observe(operator, part, ns)

    def add(self, counts: Mapping[tuple[str, ...], list[int]]) -> None:
        """Add another process' `counts`."""
        for labels, (count, ns, last) in counts.items():
            counted = self.counts[labels]
            counted[:] = counted[0] + count, counted[1] + ns, max(counted[2], last)

    def family(self) -> CounterMetricFamily:
        """As a metric."""
        text = "Time that inferences of the Open Inference Protocol took, and their parts did."
        family = CounterMetricFamily("dmlserve_inference_seconds", text, labels=["operator", "part"])
        for labels, (_, ns, _) in self.counts.items():
            family.add_metric(labels, ns / 1e9)
        return family

    def document(self, name: str, operator: str) -> documents.ModelStatistics:
        """Of the model that a client calls `name`."""

        def part(of: str) -> documents.Duration:
            count, ns, _ = self.counts.get((operator, of), (0, 0, 0))
            return documents.Duration(count=count, ns=ns)

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
            last_inference=self.counts.get((operator, "compute_infer"), (0, 0, 0))[2],
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
