"""Support tables: which data types and ranks each tensor of an operator takes, from which feature level.

A row is written as one line of text: the level it holds from, the ranks, and the data types of all tensors.

    4_1 1-8 F32-16 I64-8 U32

Types are letters and bits: F32 is FLOAT32, I8 is INT8, and I64-8 is INT64, INT32, INT16 and INT8. Where tensors differ,
groups follow each other, separated by commas, and a group may begin with the tensors it is for; one without names is
for all others. Behind the names it may have ranks of their own.

    2_1 4 F32-16, OutputTensor U32 U8, CountTensor 1 U32
"""

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Self

from app.contract.constants import DataType, FeatureLevel

_FAMILIES = {"F": "FLOAT", "I": "INT", "U": "UINT"}
_TYPES = re.compile(r"([FIU])(\d+)(?:-(\d+))?")
_RANKS = re.compile(r"(\d)(?:-(\d))?")


@dataclass(frozen=True, slots=True)
class TensorSupport:
    """What one tensor may be."""

    data_types: tuple[DataType, ...]
    ranks: range

    @property
    def dimension_counts(self) -> list[int]:
        return list(self.ranks)


@dataclass(frozen=True, slots=True)
class Row:
    """What holds from a feature level on, until the next row's level.

    `data_types` and `ranks` (least and most dimensions) hold for every tensor of the operator, except that
    `tensors` gives some of them data types of their own, and `tensor_ranks` ranks.
    """

    level: FeatureLevel
    ranks: tuple[int, int]
    data_types: tuple[DataType, ...] = ()
    tensors: dict[str, tuple[DataType, ...]] = field(default_factory=dict)
    tensor_ranks: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The row that `text` says. Raises ValueError."""
        head, *groups = (group.split() for group in text.split(","))
        level, ranks, *first = head
        data_types: tuple[DataType, ...] = ()
        tensors: dict[str, tuple[DataType, ...]] = {}
        tensor_ranks: dict[str, tuple[int, int]] = {}
        for group in (first, *groups):
            names = [word for word in group if not _TYPES.fullmatch(word) and not _RANKS.fullmatch(word)]
            rest = group[len(names) :]
            if names and rest and _RANKS.fullmatch(rest[0]):
                tensor_ranks |= dict.fromkeys(names, _ranks(rest.pop(0)))
            types = tuple(each for word in rest for each in _data_types(word))
            tensors |= dict.fromkeys(names, types)
            if not names:
                data_types = types
        return cls(FeatureLevel(level), _ranks(ranks), data_types, tensors, tensor_ranks)

    def of(self, tensor: str) -> TensorSupport:
        """What this row says of the tensor field `tensor`."""
        least, most = self.tensor_ranks.get(tensor, self.ranks)
        return TensorSupport(self.tensors.get(tensor, self.data_types), range(least, most + 1))


@dataclass(frozen=True, slots=True)
class SupportTable:
    """An operator's rows, oldest level first."""

    rows: tuple[Row, ...]

    @classmethod
    def of(cls, *rows: str) -> Self:
        """A table of `rows`, in any order."""
        return cls(tuple(sorted(map(Row.parse, rows), key=lambda row: row.level)))

    @property
    def introduced(self) -> FeatureLevel:
        """The first level that has the operator."""
        return self.rows[0].level

    def at(self, level: FeatureLevel) -> Row | None:
        """The row that holds at `level`; None before the operator was introduced."""
        return next((row for row in reversed(self.rows) if row.level <= level), None)

    def first_with(self, tensor: str, data_type: DataType) -> FeatureLevel | None:
        """The first level at which `tensor` takes `data_type`, so that a refusal can say when it would not be one."""
        return next((row.level for row in self.rows if data_type in row.of(tensor).data_types), None)


def _ranks(word: str) -> tuple[int, int]:
    """`4-5` is from 4 to 5, and `4` is 4 alone."""
    match = _RANKS.fullmatch(word)
    if not match:
        raise ValueError(f"{word} is no number of dimensions")
    return int(match[1]), int(match[2] or match[1])


@cache
def _data_types(word: str) -> tuple[DataType, ...]:
    """`F64-16` is FLOAT64, FLOAT32 and FLOAT16."""
    match = _TYPES.fullmatch(word)
    if not match:
        raise ValueError(f"{word} is no data type")
    letter, most, least = match.groups()
    widths = ["64", "32", "16", "8", "4"]
    listed = widths[widths.index(most) : widths.index(least or most) + 1]
    return tuple(DataType(_FAMILIES[letter] + width) for width in listed)
