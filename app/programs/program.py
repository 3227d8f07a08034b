"""A program says how an operator's outputs are made of its inputs, on any device."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.formula.values import Value


@dataclass(frozen=True, eq=False, slots=True)
class Map:
    """An output whose elements are `expression`, over the elements of inputs at the same coordinates."""

    expression: Value
    axes: tuple[int, ...] = ()
    """Dimensions that reductions in `expression` go over; none where it has no reductions."""


@dataclass(frozen=True, eq=False, slots=True)
class Program:
    """How each output is made. Names are the operator's, in the order of the bind points."""

    maps: Mapping[str, Map]
