"""Triton's statistics extension: what the inferences of this protocol took, model by model."""

import time
from dataclasses import dataclass, field

from app.http.inference import documents

VERSION = "1"
"""Of every model: an operator's meaning does not change."""


@dataclass(slots=True)
class Timed:
    """How often, and nanoseconds in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns

    def document(self) -> documents.Duration:
        return documents.Duration(count=self.count, ns=self.ns)


@dataclass(slots=True)
class ModelCounts:
    """What is counted of one model. Written by the event loop only."""

    last_inference: int = 0
    success: Timed = field(default_factory=Timed)
    fail: Timed = field(default_factory=Timed)
    queue: Timed = field(default_factory=Timed)
    compute_input: Timed = field(default_factory=Timed)
    compute_infer: Timed = field(default_factory=Timed)
    compute_output: Timed = field(default_factory=Timed)

    def executed(self, queue: float, compute_input: int, compute_infer: float, compute_output: int) -> None:
        """Count the parts of an inference: seconds where the service tells them, else nanoseconds."""
        self.last_inference = time.time_ns() // 1_000_000
        self.queue.add(int(queue * 1e9))
        self.compute_input.add(compute_input)
        self.compute_infer.add(int(compute_infer * 1e9))
        self.compute_output.add(compute_output)

    def document(self, name: str) -> documents.ModelStatistics:
        batch = documents.BatchStatistics(
            batch_size=1,
            compute_input=self.compute_input.document(),
            compute_infer=self.compute_infer.document(),
            compute_output=self.compute_output.document(),
        )
        return documents.ModelStatistics(
            name=name,
            version=VERSION,
            last_inference=self.last_inference,
            inference_count=self.success.count,
            execution_count=self.compute_infer.count,
            inference_stats=documents.InferStatistics(
                success=self.success.document(),
                fail=self.fail.document(),
                queue=self.queue.document(),
                compute_input=self.compute_input.document(),
                compute_infer=self.compute_infer.document(),
                compute_output=self.compute_output.document(),
                cache_hit=Timed().document(),
                cache_miss=Timed().document(),
            ),
            batch_stats=[batch] if self.compute_infer.count else [],
        )
