"""Attributes that name dimensions of a tensor: an Axis, or a list of Axes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import Field

from app.contract.scalars import Uint
from app.contract.tensors import MAX_RANK
from app.contract.violations import Violation
from app.operators.operator import Operator

AxisList = Annotated[
    list[Uint],
    Field(
        max_length=MAX_RANK,
        description="Dimensions to go along, each once; several are one joint group.",
        examples=[[2, 3]],
    ),
]
AXES = (
    "With an empty list of Axes each element is a group of its own; an axis given twice is refused. DirectML's "
    "documentation mentions neither; Chromium's WebNN passes on the empty list, for scalars too."
)


def axis_violations(axis: int, tensor: str, rank: int, place: int | None = None) -> Iterator[Violation]:
    """An Axis, or that at a `place` of Axes, that `tensor`, which has `rank` dimensions, does not have."""
    if axis >= rank:
        path, name = (("Axis",), "Axis") if place is None else (("Axes", place), f"Axes[{place}]")
        allowed = f"0 to {rank - 1}"
        message = f"{name} is {axis} but {tensor} has {rank} dimensions; it may be {allowed}."
        yield Violation(path, message, axis, allowed)


def axes_violations(axes: Sequence[int], tensor: str, rank: int) -> Iterator[Violation]:
    """What is wrong with the attribute Axes of an operator whose `tensor` has `rank` dimensions."""
    for place, axis in enumerate(axes):
        yield from axis_violations(axis, tensor, rank, place)
        if axis < rank and axis in axes[:place]:
            yield Violation(
                ("Axes", place), f"Axes[{place}] is {axis}, which is there already; give each once.", axis, None
            )


def all_but(operator: Operator, axis: int, rank: int) -> Iterator[Mapping[str, int]]:
    """The `batch_axes` of an operator whose tensors, of `rank` dimensions, are read along `axis` alone."""
    for other in range(rank):
        if other != axis:
            yield dict.fromkeys(operator.tensor_names(), other)
