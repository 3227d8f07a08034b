"""Triton's statistics extension: what the inferences of this protocol took, model by model."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from app.engine.inference_counts import Counted
from app.http.inference import documents
from app.http.inference.model import VERSION

Batches: TypeAlias = Mapping[int, Sequence[Sequence[float]]]
"""By rows, or 0 of requests that are none to be run together, each worker's numbers: executions, and nanoseconds of
their parts."""


def document(
    counted: Counted, name: str, version: str = VERSION, batches: Batches | None = None
) -> documents.ModelStatistics:
    """Of the model that a client calls `name`. `batches` are there of a model whose requests are run together."""

    def part(of: str) -> documents.Duration:
        count, ns = counted.parts.get(of, (0, 0))
        return documents.Duration(count=count, ns=ns)

    executed, inferred = part("compute_infer")["count"], part("success")["count"]
    batch = documents.BatchStatistics(
        batch_size=1,
        compute_input=part("compute_input"),
        compute_infer=part("compute_infer"),
        compute_output=part("compute_output"),
    )
    listed = [batch] if executed else []
    if batches:
        sums = {rows: [int(sum(of)) for of in zip(*numbers, strict=True)] for rows, numbers in batches.items()}
        together = {rows: numbers for rows, numbers in sums.items() if any(numbers)}  # others are only expected
        listed = [_batch(rows, numbers) for rows, numbers in sorted(together.items()) if rows]
        # Each row is an inference, but a request that is none to be run together is one. These may be more than
        # succeeded, if some are not answered yet, or never are: their clients hung up.
        executed = sum(executions for executions, *_ in together.values())
        inferred = sum(max(rows, 1) * executions for rows, (executions, *_) in together.items())
    return documents.ModelStatistics(
        name=name,
        version=version,
        last_inference=counted.last,
        inference_count=inferred,
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
        batch_stats=listed,
    )


def _batch(rows: int, numbers: Sequence[int]) -> documents.BatchStatistics:
    executions, *parts = numbers
    of_input, infer, output = (documents.Duration(count=executions, ns=ns) for ns in parts)
    return documents.BatchStatistics(
        batch_size=rows, compute_input=of_input, compute_infer=infer, compute_output=output
    )
