"""What the inferences of the Open Inference Protocol took, and how many were run together, as families of series."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric

from app.engine import inference_counts
from app.engine.inference_counts import NUMBERS, Counted, Took
from app.http.telemetry.families import Counter, Family, Series
from app.http.telemetry.slots import Slot


class InferenceCounts(Family):
    """By operator, what is counted of its inferences (inference_counts.py)."""

    def __init__(self, slot: Slot) -> None:
        text = "Time that inferences of the Open Inference Protocol took, and their parts did."
        super().__init__(slot, "dmlserve_inference_seconds", text, ["operator", "part"], NUMBERS)

    def expect(self, operator: str) -> None:
        """Show its series, at 0, before the first inference. For any thread."""
        self.numbers[operator,]

    def observe(self, operator: str, ns: int, took: Took | None) -> None:
        """Count an inference of so many nanoseconds, which failed if its parts `took` None."""
        inference_counts.count(self.numbers[operator,], ns, took)

    def metric(self, series: Series) -> Metric:
        """What is to be shown of `series`."""
        metric = CounterMetricFamily(self.name, self.help_text, labels=self.labels)
        for (operator,), workers in series.items():
            for part, (_, ns) in Counted.by(workers).parts.items():
                metric.add_metric([operator, part], ns / 1e9)
        return metric


class BatchCounts(Counter):
    """By model and rows, of models whose requests are run together: executions, and nanoseconds in all that inputs were
    put together, computed, and outputs taken apart."""

    def __init__(self, slot: Slot) -> None:
        text = (
            "Executions of models whose requests are run together, by the rows of all of these; 0: of other requests."
        )
        super().__init__(slot, "dmlserve_inference_batches", text, ["operator", "size"], 4)

    def expect(self, operator: str, sizes: Iterable[int]) -> None:
        """Show the series of batches of these rows, at 0, before the first one. For any thread."""
        for rows in sizes:
            self.numbers[operator, str(rows)]

    def observe(self, operator: str, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        numbers = self.numbers[operator, str(rows)]
        for place, number in enumerate((1, input_ns, infer_ns, output_ns)):
            numbers[place] += number
