"""What operators of this family have in common: attributes with an entry for each dimension."""

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from app.contract.scalars import Uint
from app.contract.tensors import MAX_RANK
from app.contract.violations import Violation
from app.operators.operator import Operator

_Entries = Field(min_length=1, max_length=MAX_RANK)

Positive = Annotated[Uint, Field(ge=1)]
Uints = Annotated[list[Uint], _Entries]
Positives = Annotated[list[Positive], _Entries]
Strides = Annotated[
    list[Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]],
    _Entries,
]


def length_violations(operator: Operator, names: Sequence[str], tensor: str, rank: int) -> Iterator[Violation]:
    """Arrays that do not have an entry for each of the `rank` dimensions of `tensor`."""
    for name in names:
        length = len(getattr(operator, name))
        if length != rank:
            yield Violation(
                (name,),
                f"{name} has {length} entries but {tensor} has {rank} dimensions; give one for each dimension.",
                length,
                rank,
            )
