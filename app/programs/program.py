"""A program says how an operator's outputs are made of its inputs, on any device."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.contract.constants import DataType
from app.formula.values import Value


@dataclass(frozen=True, eq=False, slots=True)
class Map:
    """An output whose elements are `expression`, over the elements of inputs at the same coordinates."""

    expression: Value
    stored: DataType
    """How its elements are written."""
    axes: tuple[int, ...] = ()
    """Dimensions that reductions in `expression` go over; none where it has no reductions."""


@dataclass(frozen=True, eq=False, slots=True)
class Program:
    """How each output is made. Names are the operator's, in the order of the bind points.

    A program knows neither sizes nor the numbers that requests give, and serves all of them.
    """

    inputs: Mapping[str, DataType]
    """How the elements of each are read."""
    maps: Mapping[str, Map]
