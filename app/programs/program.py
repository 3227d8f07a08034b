"""A program says how an operator's outputs are made of its inputs, on any device."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from app.contract.constants import DataType
from app.formula.costs import operations
from app.formula.values import Value


@dataclass(frozen=True, eq=False, slots=True)
class Map:
    """An output whose elements are `expression`: over the elements of inputs at the same coordinates, or, if it goes
    `by_coordinates`, over those at coordinates that the formula computes (`formula/coordinates.py`)."""

    expression: Value
    stored: DataType
    """How its elements are written."""
    axes: tuple[int, ...] = ()
    """Dimensions that reductions in `expression` go over; none where it has no reductions."""
    by_coordinates: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class ArrayCall:
    """All outputs made at once by the operator's method `call`, over arrays of NumPy or CuPy."""

    stored: Mapping[str, DataType]
    """How the elements of each output are written."""


@dataclass(frozen=True, eq=False)
class Program:
    """How each output is made. Names are the operator's, in the order of the bind points.

    A program knows neither sizes nor the numbers that requests give, and serves all of them.
    """

    inputs: Mapping[str, DataType]
    """How the elements of each are read."""
    maps: Mapping[str, Map]
    call: ArrayCall | None = None
    """In the place of all maps."""

    @cached_property
    def stored(self) -> Mapping[str, DataType]:
        """How the elements of each output are written."""
        return self.call.stored if self.call else {name: made.stored for name, made in self.maps.items()}

    @cached_property
    def operations(self) -> int:
        """How many cheap ones an element of all outputs takes, about, if no `call` makes them."""
        return sum(operations(made.expression) for made in self.maps.values())

    @cached_property
    def is_by_position(self) -> bool:
        """Whether all outputs are made of the elements at their own coordinates."""
        return not self.call and not any(made.by_coordinates for made in self.maps.values())
