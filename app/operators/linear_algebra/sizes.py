"""The sizes of products of matrices, which several families have."""

from collections.abc import Iterator

from app.contract.violations import Violation
from app.operators.operator import Operator


def product_sizes(a: list[int], b: list[int]) -> list[int]:
    """Of { ..., M, K } by { ..., K, N }: { ..., M, N }."""
    return [*a[:-1], b[-1]]


def product_violations(
    operator: Operator, a: list[int], b: list[int], *, transposed: bool = False, how: str = ""
) -> Iterator[Violation]:
    """What is wrong with ATensor and BTensor of `operator`, whose matrices are multiplied with sizes `a` and `b`, those
    of BTensor `transposed` first: `how` tells it."""
    tensors = operator.tensors()
    given, model = tensors["BTensor"].Sizes, tensors["ATensor"].Sizes
    if a[:-2] != b[:-2]:
        yield Violation(
            ("BTensor", "Sizes"),
            f"BTensor has Sizes {given} but ATensor has {model}; dimensions before the last two must be equal, and to "
            "broadcast is to give the full Sizes and stride 0 for the repeated dimensions.",
            given,
            [*a[:-2], *given[-2:]],
        )
    elif a[-1] != b[-2]:
        right = [*given[:-1], a[-1]] if transposed else [*given[:-2], a[-1], given[-1]]
        yield Violation(
            ("BTensor", "Sizes"),
            f"BTensor has Sizes {given} but ATensor has {model}; a product of {a[-2]} x {a[-1]} by {b[-2]} x {b[-1]} "
            f"matrices{how} needs {a[-1]} in the place of {b[-2]}.",
            given,
            right,
        )
