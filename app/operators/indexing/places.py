"""What operators of indices have in common: places that indices mean, and sizes in so many dimensions."""

from collections.abc import Iterator, Sequence
from typing import Annotated, TypeVar

from pydantic import Field

from app.contract import constants
from app.contract.constants import DataType
from app.contract.scalars import Uint
from app.contract.violations import Violation
from app.formula.values import INT64, Value, cast, minimum, where
from app.operators.axes import axis_violations
from app.operators.operator import Operator
from app.operators.parameters import STRUCTURAL

T = TypeVar("T")

INDICES = ", IndicesTensor I64-32 U64-32"
"""The end of a row of a support table from level 3_0 on."""

NEGATIVE = "Negative indices count from the end, -1 being the last element."

TUPLES = (
    "The sizes that are left of InputTensor are those behind its first t dimensions with a meaning, as in the page's "
    "example; the page's formula counts them from DimensionCount - t on."
)

AxisUint = Annotated[Uint, STRUCTURAL, Field(description="The dimension to go along.", examples=[0])]
Direction = Annotated[
    constants.AxisDirection,
    Field(
        description="INCREASING: from the first element to the last; DECREASING: the other way.",
        examples=["INCREASING"],
    ),
]
InputCount = Annotated[
    Uint, STRUCTURAL, Field(description="How many of the last dimensions of InputTensor have a meaning.")
]
IndicesCount = Annotated[
    Uint,
    STRUCTURAL,
    Field(description="The same of IndicesTensor, whose last dimension has the coordinates of one place."),
]


class Moved(Operator):
    """Elements are moved as they are, so formulas see raw bits of them, and numbers in IndicesTensor alone."""

    by_coordinates = True

    def is_bitwise(self) -> bool:
        return True

    def stored_types(self) -> dict[str, DataType]:
        return super().stored_types() | {"IndicesTensor": self.tensors()["IndicesTensor"].DataType}


def place(index: Value, size: Value) -> Value:
    """The coordinate that `index` means along a dimension of `size`, an int64: beyond it where the index is."""
    if index.type == "uint64":
        index = minimum(index, 2**63 - 1)
    at = cast(index, INT64)
    return at if index.type.startswith("u") else where(at < 0, at + size, at)


def right_aligned(at: Sequence[T], count: int, filling: T) -> list[T]:
    """The last `count` entries of `at`, behind as many of `filling` as there are too few."""
    return [*[filling] * count, *at][len(at) :]


def fits(sizes: Sequence[int], rank: int) -> bool:
    """Whether `sizes` are those of a tensor of `rank` dimensions, but for leading 1s."""
    return all(size == 1 for size in sizes[: max(len(sizes) - rank, 0)])


def fit_violations(name: str, sizes: Sequence[int], rank: int, basis: Sequence[str]) -> Iterator[Violation]:
    """The `sizes` that the fields of `basis` imply for the tensor `name` can be written in `rank` dimensions."""
    if not fits(sizes, rank):
        yield Violation(
            (name, "Sizes"),
            f"{name} would have Sizes {list(sizes)}, which {', '.join(basis)} imply; all but the last {rank}, the "
            "number of dimensions of InputTensor, must be 1.",
            list(sizes),
            f"{rank} dimensions",
        )


def leading_violations(name: str, sizes: Sequence[int], field: str, count: int, least: int) -> Iterator[Violation]:
    """Of a tensor's dimensions the last `count`, from `least` to all, have a meaning, and the others are 1."""
    rank = len(sizes)
    if not least <= count <= rank:
        yield Violation(
            (field,),
            f"{field} is {count}; it must be from {least} to {rank}, the number of dimensions of {name}.",
            count,
            f"{least} to {rank}",
        )
    elif not fits(sizes, count):
        allowed = [1] * (rank - count) + list(sizes[rank - count :])
        yield Violation(
            (name, "Sizes"),
            f"{name} has Sizes {list(sizes)}; all but the last {count}, which is {field}, must be 1.",
            list(sizes),
            allowed,
        )


def along_axis_violations(operator: Operator, axis: int) -> Iterator[Violation]:
    """Axis is a dimension of InputTensor, whose sizes IndicesTensor has but for that along Axis."""
    tensors = operator.tensors()
    sizes, given = tensors["InputTensor"].Sizes, tensors["IndicesTensor"].Sizes
    if axis >= len(sizes):
        yield from axis_violations(axis, "InputTensor", len(sizes))
        return
    allowed = [*sizes[:axis], given[axis], *sizes[axis + 1 :]]
    if given != allowed:
        yield Violation(
            ("IndicesTensor", "Sizes"),
            f"IndicesTensor has Sizes {given} but InputTensor has {sizes}; they must be equal except along Axis, "
            f"which is {axis}.",
            given,
            allowed,
        )


def tuple_sizes(sizes: Sequence[int], indices: Sequence[int], counts: tuple[int, int], batches: int = 0) -> list[int]:
    """Sizes of what tuples of indices, each along the last dimension of IndicesTensor, lead to in InputTensor.

    `sizes` are those of InputTensor, `counts` how many dimensions of both tensors have a meaning.
    """
    input_count, indices_count = counts
    meant = sizes[len(sizes) - input_count :]
    return [*indices[len(indices) - indices_count : -1], *meant[batches + indices[-1] :]]


def tuple_violations(operator: Operator, counts: tuple[int, int], batches: int = 0) -> Iterator[Violation]:
    """InputDimensionCount and IndicesDimensionCount, both in `counts`, are as the tensors are; a tuple has no more
    coordinates than there are dimensions for."""
    tensors = operator.tensors()
    sizes, indices = tensors["InputTensor"].Sizes, tensors["IndicesTensor"].Sizes
    found = [
        *leading_violations("InputTensor", sizes, "InputDimensionCount", counts[0], 1),
        *leading_violations("IndicesTensor", indices, "IndicesDimensionCount", counts[1], 1),
    ]
    yield from found
    most = counts[0] - batches
    if not found and indices[-1] > most:
        behind = f" without those of batches, {batches} by BatchDimensionCount" if batches else ""
        yield Violation(
            ("IndicesTensor", "Sizes"),
            f"IndicesTensor has Sizes {indices}; the last is how many coordinates a tuple has, of which "
            f"InputTensor has {most} by InputDimensionCount{behind}.",
            indices,
            f"at most {most} along the last dimension",
        )
