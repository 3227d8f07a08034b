"""Support tables: which data types and ranks each tensor of an operator takes, from which feature level."""

from dataclasses import dataclass, field
from typing import Self

from app.contract.constants import DataType, FeatureLevel

FLOATS = (DataType.FLOAT32, DataType.FLOAT16)


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
    `tensors` gives some of them data types of their own.
    """

    level: FeatureLevel
    ranks: tuple[int, int]
    data_types: tuple[DataType, ...] = ()
    tensors: dict[str, tuple[DataType, ...]] = field(default_factory=dict)

    def of(self, tensor: str) -> TensorSupport:
        """What this row says of the tensor field `tensor`."""
        return TensorSupport(self.tensors.get(tensor, self.data_types), range(self.ranks[0], self.ranks[1] + 1))


@dataclass(frozen=True, slots=True)
class SupportTable:
    """An operator's rows, oldest level first."""

    rows: tuple[Row, ...]

    @classmethod
    def of(cls, *rows: Row) -> Self:
        """A table of `rows`, in any order."""
        return cls(tuple(sorted(rows, key=lambda row: row.level)))

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
