"""What the inferences of the Open Inference Protocol took, and how many were run together, as families of series."""

import time
from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from app.engine.graph_entries import OF_A_PART, PARTS, PLACES, by_part
from app.http.telemetry.families import Family, Series, together
from app.http.telemetry.slots import Slot


class InferenceCounts(Family):
    """By operator, of each of the PARTS of an inference: how many, nanoseconds, and when the last one was, in ms."""

    def __init__(self, slot: Slot) -> None:
        text = "Time that inferences of the Open Inference Protocol took, and their parts did."
        super().__init__(slot, "dmlserve_inference_seconds", text, ["operator", "part"], OF_A_PART * len(PARTS))

    def expect(self, operator: str) -> None:
        """Show its series, at 0, before the first inference. For any thread."""
        self.numbers[operator,]

    def observe(self, operator: str, took: Mapping[str, int]) -> None:
        now, numbers = time.time_ns() // 1_000_000, self.numbers[operator,]
        for part, ns in took.items():
            place = PLACES[part]
            numbers[place] += 1.0
            numbers[place + 1] += ns
            numbers[place + 2] = now

    def metric(self, series: Series) -> Metric:
        """What is to be shown of `series`."""
        metric = CounterMetricFamily(self.name, self.help_text, labels=self.labels)
        for (operator,), workers in series.items():
            for part, numbers in by_part(workers).items():
                metric.add_metric([operator, part], sum(ns for _, ns, _ in numbers) / 1e9)
        return metric


class BatchCounts(Family):
    """By model and rows, of models whose requests are run together: executions, requests in them, and nanoseconds in
    all that inputs were put together, computed, and outputs taken apart."""

    def __init__(self, slot: Slot) -> None:
        text = "Executions of models whose requests are run together, by the rows of all of these."
        super().__init__(slot, "dmlserve_inference_batches", text, ["operator", "size"], 5)

    def expect(self, operator: str, sizes: Iterable[int]) -> None:
        """Show the series of batches of these rows, at 0, before the first one. For any thread."""
        for rows in sizes:
            self.numbers[operator, str(rows)]

    def observe(self, operator: str, rows: int, requests: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        numbers = self.numbers[operator, str(rows)]
        for place, number in enumerate((1, requests, input_ns, infer_ns, output_ns)):
            numbers[place] += number

    def metric(self, series: Series) -> Metric:
        """What is to be shown of `series`."""
        metric = CounterMetricFamily(self.name, self.help_text, labels=self.labels)
        for labels, numbers in series.items():
            metric.add_metric(labels, together(numbers)[0])
        return metric
