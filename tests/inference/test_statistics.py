"""What is told of a model whose requests are run together, from what was counted."""

from app.engine.inference_counts import NUMBERS, Counted, count
from app.http.inference.statistics import document


def counted(inferences: int) -> Counted:
    """So many that succeeded."""
    numbers = memoryview(bytearray(8 * NUMBERS)).cast("d")
    for _ in range(inferences):
        count(numbers, 10, (1, 2, 3, 4))
    return Counted.by([numbers])


def test_nothing_is_listed_before_the_first_one() -> None:
    for batches in (None, {1: [[0.0] * 4]}):
        told = document(counted(0), "model", batches=batches)
        assert (told["inference_count"], told["execution_count"], told["batch_stats"]) == (0, 0, [])


def test_batches_of_all_workers_and_those_run_alone() -> None:
    batches = {4: [[2.0, 1.0, 2.0, 3.0], [1.0, 1.0, 2.0, 3.0]], 1: [[1.0, 0.0, 5.0, 0.0]], 0: [[2.0, 0.0, 5.0, 0.0]]}
    told = document(counted(11), "model", batches=batches)  # nine were in batches, and two had too many rows
    assert told["execution_count"] == 4 + 2
    assert told["inference_count"] == 3 * 4 + 1 + 2
    assert [each["batch_size"] for each in told["batch_stats"]] == [1, 4]
    assert [each["compute_infer"] for each in told["batch_stats"]] == [{"count": 1, "ns": 5}, {"count": 3, "ns": 4}]


def test_a_batch_counts_before_its_requests_are_answered_and_if_none_is() -> None:
    told = document(counted(1), "model", batches={4: [[1.0, 1.0, 2.0, 3.0]]})
    assert (told["execution_count"], told["inference_count"]) == (1, 4)
    told = document(counted(1), "model", batches={4: [[1.0, 1.0, 2.0, 3.0]], 0: [[1.0, 0.0, 2.0, 0.0]]})
    assert (told["execution_count"], told["inference_count"]) == (2, 5), "the one that succeeded was not in the batch"
