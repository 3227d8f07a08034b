"""Triton's statistics extension: what the inferences of this protocol took, model by model."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from app.http.inference import documents
from app.http.inference.model import VERSION

Observed: TypeAlias = Mapping[str, Sequence[Sequence[float]]]
"""By the parts of inferences, each worker's numbers: how many, nanoseconds in all, and when the last one was, in ms."""


def document(observed: Observed, name: str, version: str = VERSION) -> documents.ModelStatistics:
    """Of the model that a client calls `name`."""

    def part(of: str) -> documents.Duration:
        numbers = observed.get(of, ())
        return documents.Duration(
            count=int(sum(count for count, _, _ in numbers)), ns=int(sum(ns for _, ns, _ in numbers))
        )

    last = max((int(last) for _, _, last in observed.get("compute_infer", ())), default=0)
    executed = part("compute_infer")["count"]
    batch = documents.BatchStatistics(
        batch_size=1,
        compute_input=part("compute_input"),
        compute_infer=part("compute_infer"),
        compute_output=part("compute_output"),
    )
    return documents.ModelStatistics(
        name=name,
        version=version,
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
