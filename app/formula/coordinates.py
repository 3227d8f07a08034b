"""Formulas that go by coordinates: an output's element made of elements at computed places, and of totals over ranges.

Coordinates, indices and sizes are int64 values; what is computed of them are the operations of `values.py`. Sizes are
parameters, such as "InputTensor.Sizes[2]", so that what a device makes of a formula serves all sizes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.contract.constants import DataType
from app.formula.values import BOOL, INT64, Constant, Input, Parameter, Value, compute_type, is_float

TotalName: TypeAlias = Literal[
    "sum",
    "product",
    "maximum",
    "minimum",
    "first_maximum",
    "last_maximum",
    "first_minimum",
    "last_minimum",
]


@dataclass(frozen=True, eq=False, slots=True)
class Coordinate(Value):
    """The output element's coordinate along `axis`, an int64 from 0."""

    axis: int


@dataclass(frozen=True, eq=False, slots=True)
class Index(Value):
    """What a `Total` counts with: an int64 from 0. It has a meaning inside that total's argument alone."""


@dataclass(frozen=True, eq=False, slots=True)
class Element(Value):
    """The element of the input tensor `name` at coordinates `at`, converted on loading from `stored` to `type`.

    `at` has one int64 for each dimension. Devices read at the nearest coordinate inside the tensor, whatever `at` is,
    and so never read outside; a formula chooses by `where` what stands for the elements there. They need not look along
    dimensions whose bits are set in `inside`.
    """

    name: str
    stored: DataType
    at: tuple[Value, ...]
    inside: int = 0

    def operands(self) -> tuple[Value, ...]:
        return self.at

    def with_operands(self, operands: tuple[Value, ...]) -> "Element":
        return Element(self.type, self.name, self.stored, operands, self.inside)


@dataclass(frozen=True, eq=False, slots=True)
class Total(Value):
    """One value of all the `argument`s where each of `indices` goes from 0 to below its count.

    The combinations are in row-major order, the last index fastest. Counts are int64, may depend on coordinates and on
    indices of totals around this one, not on its own indices, and are 0 where they are negative. By `name`:

    - `sum`, `product`: of floats in float64, in any order, rounded once to `type`; of integers they wrap around.
      Of nothing 0 and 1.
    - `maximum`, `minimum`: NaN if any is NaN. Of nothing -inf and inf, or the least and the largest integer.
    - `first_maximum`, `last_maximum`, `first_minimum`, `last_minimum`: which combination it is, an int64 from 0. NaN
      counts as beyond all numbers, on either side. Of nothing 0.
    """

    name: TotalName
    indices: tuple[Index, ...]
    counts: tuple[Value, ...]
    argument: Value

    def operands(self) -> tuple[Value, ...]:
        return (*self.counts, self.argument)

    def with_operands(self, operands: tuple[Value, ...]) -> "Total":
        return Total(self.type, self.name, self.indices, operands[:-1], operands[-1])


@dataclass(frozen=True, slots=True)
class TensorForm:
    """What a formula knows of a tensor. `sizes` are int64 parameters, one for each dimension."""

    name: str
    data_type: DataType
    sizes: list[Parameter]

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def type(self) -> str:
        """The type, by its NumPy name, in which its elements are computed."""
        return compute_type(self.data_type)


@dataclass(frozen=True, slots=True)
class Operand(TensorForm):
    """An input tensor, whose elements are `x[coordinates]`: one int64, or Python's int, for each dimension."""

    stored: DataType
    """How its elements are read: as `data_type`, or raw bits as the unsigned integer of its width."""

    @property
    def type(self) -> str:
        return compute_type(self.stored)

    @property
    def here(self) -> Input:
        """The element at the output's own coordinates, repeated along dimensions of size 1.

        An output of such elements goes by position: it has no others and no totals, and may have reductions over the
        operator's axes."""
        return Input(self.type, self.name, self.stored)

    def __getitem__(self, at: Sequence[Value | int]) -> Element:
        if len(at) != self.rank:
            raise TypeError(f"{self.name} has {self.rank} dimensions, not {len(at)}")
        return Element(self.type, self.name, self.stored, tuple(map(whole, at)))


def size_name(tensor: str, axis: int) -> str:
    """The name of the parameter that is a tensor's size along `axis`."""
    return f"{tensor}.Sizes[{axis}]"


def coordinates(rank: int) -> list[Value]:
    """Those of the output's element, outermost first."""
    return [Coordinate(INT64, axis) for axis in range(rank)]


def whole(value: Value | int) -> Value:
    """`value` as an int64 value."""
    made = value if isinstance(value, Value) else Constant(INT64, value)
    if made.type != INT64:
        raise TypeError(f"coordinates and counts are int64, not {made.type}; cast them")
    return made


Body: TypeAlias = Callable[..., Value]
"""Takes one int64 index for each count and gives what the total is of."""


def sum_over(counts: Sequence[Value | int], body: Body) -> Value:
    """The sum of `body(i, j, ...)` (`Total`), rounded to its type. So are the following."""
    return _total("sum", counts, body)


def product_over(counts: Sequence[Value | int], body: Body) -> Value:
    return _total("product", counts, body)


def maximum_over(counts: Sequence[Value | int], body: Body) -> Value:
    return _total("maximum", counts, body)


def minimum_over(counts: Sequence[Value | int], body: Body) -> Value:
    return _total("minimum", counts, body)


def position_over(
    name: Literal["first_maximum", "last_maximum", "first_minimum", "last_minimum"],
    counts: Sequence[Value | int],
    body: Body,
) -> Value:
    """Which combination of indices is that one, row-major from 0, an int64 (`Total`)."""
    return _total(name, counts, body)


def _total(name: TotalName, counts: Sequence[Value | int], body: Body) -> Value:
    indices = tuple(Index(INT64) for _ in counts)
    argument = body(*indices)
    if argument.type == BOOL:
        raise TypeError("a total is of numbers; cast bools")
    is_position = name.startswith(("first", "last"))
    if not counts:  # there is one combination, that of no indices
        return Constant(INT64, 0) if is_position else argument
    return Total(INT64 if is_position else argument.type, name, indices, tuple(map(whole, counts)), argument)


def accumulated_type(total: Total) -> str:
    """The type in which `total` is accumulated before it is rounded to its own."""
    exact = total.name in ("sum", "product") and is_float(total.type)
    return "float64" if exact else total.argument.type
