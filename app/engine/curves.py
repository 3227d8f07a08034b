"""Curves of the operators of one variable, computed by the operators' own kernels."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from app.contract.constants import NEWEST, DataType
from app.contract.validation import validate
from app.devices.device import Device
from app.engine.capabilities import example
from app.memory.arrays import Array, numpy_type
from app.operators.compiled import compile_operator
from app.operators.operator import Operator, Role

SAMPLES = 241
"""Points of a curve, on both sides of 0 and at 0 itself."""

REACH = 6.0
"""A curve goes from -REACH to REACH, or to the ends of the domain where that is much smaller."""

_BISECTIONS = 24
_Point: TypeAlias = tuple[float, float]
_Piece: TypeAlias = tuple[_Point, ...]
_Range: TypeAlias = tuple[float, float]
_Function: TypeAlias = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Curve:
    """y = f(x) with the attributes of the operator's example.

    `pieces` are points in the order of x; between two pieces the function jumps or is not finite. A function of
    integers is `discrete`: there is nothing between its points. `x_range` and `y_range` are what is worth showing.
    """

    data_type: DataType
    attributes: dict[str, Any]
    x_range: _Range
    y_range: _Range
    pieces: tuple[_Piece, ...]
    discrete: bool


def curve(operator: type[Operator], device: Device) -> Curve | None:
    """The curve of `operator`; None unless each element of its output follows from one element of one input."""
    if len(operator.tensor_names(Role.INPUT)) != 1 or operator.by_coordinates or operator.call:
        return None
    described = example(operator)["operator"]
    (name,) = operator.tensor_names(Role.INPUT)
    data_type = _narrow(DataType.parse(described[name]["DataType"]), operator, name)
    rank = len(described[name]["Sizes"])

    @cache
    def function(*sizes: int) -> _Function:
        """The operator on tensors of these sizes."""
        tensors = {name: {"DataType": data_type.value, "Sizes": list(sizes)}}
        for output in operator.tensor_names(Role.OUTPUT):
            if output in described:  # which is so where its data type is not implied
                tensors[output] = described[output] | {"Sizes": list(sizes)}
        compiled = compile_operator(validate(operator, described | tensors), NEWEST)
        kernel = device.prepare(compiled)
        (made,) = compiled.outputs.values()

        def f(x: Array) -> Array:
            y = np.empty(x.shape, numpy_type(made.DataType))
            kernel.dispatch([x.data.cast("B")], [y.data.cast("B")], lambda: False)
            return y

        return f

    def on_line(x: Array) -> Array:
        """The operator on numbers, as many as there are."""
        return function(*[1] * (rank - 1), x.size)(x.astype(numpy_type(data_type))).astype(np.float64)

    if not _is_element_wise(function, described[name]["Sizes"], numpy_type(data_type)):
        return None
    attributes = {each: described[each] for each in operator.attribute_names() if each in described}
    if numpy_type(data_type).kind == "f":
        return Curve(data_type, attributes, *_real(on_line, data_type), discrete=False)
    x = np.arange(17)  # none takes integers with a sign before all others
    y = on_line(x)
    return Curve(data_type, attributes, _ends(x), _ends(y), (tuple(_points(x, y)),), discrete=True)


def _narrow(data_type: DataType, operator: type[Operator], name: str) -> DataType:
    """Of integers the 8 bits, where the operator takes them: what it does to the highest bits is seen in these."""
    row = operator.support.at(NEWEST)
    is_narrower = numpy_type(data_type).kind == "u" and row and DataType.UINT8 in row.of(name).data_types
    return DataType.UINT8 if is_narrower else data_type


def _is_element_wise(function: Callable[..., _Function], sizes: list[int], dtype: np.dtype[Any]) -> bool:
    """Whether an element's result is the same alone and among others, which it is not in softmax and its like."""
    elements = np.arange(math.prod(sizes)).astype(dtype)
    together = function(*sizes)(elements)
    alone = function(*[1] * len(sizes))
    return together.tobytes() == b"".join(alone(element).tobytes() for element in np.split(elements, elements.size))


def _real(f: _Function, data_type: DataType) -> tuple[_Range, _Range, tuple[_Piece, ...]]:
    """Ranges of x and y, and pieces, of a function of real numbers."""
    dtype = numpy_type(data_type)
    low, high = -REACH, REACH
    x_range, y_range, pieces = _seen(f, low, high, dtype)
    if pieces:
        low, high = pieces[0][0][0], pieces[-1][-1][0]
        if high - low < REACH * 1.2:
            beyond = (high - low) / SAMPLES
            return _seen(f, low - beyond, high + beyond, dtype)
    return x_range, y_range, pieces


def _seen(f: _Function, low: float, high: float, dtype: np.dtype[Any]) -> tuple[_Range, _Range, tuple[_Piece, ...]]:
    """The same between two numbers. Of a function that rises without end so much of y is shown as of x."""
    x = np.linspace(low, high, SAMPLES).astype(dtype).astype(np.float64)
    y = f(x)
    finite = y[np.isfinite(y)]
    if not finite.size:
        return (low, high), (-1, 1), ()
    shown = finite[abs(finite) <= max(high - low, 4)]
    y_range = _ends(shown if shown.size else finite)
    return (low, high), y_range, tuple(_pieces(f, x, y, dtype, (y_range[1] - y_range[0]) / 50 or 1.0))


def _pieces(f: _Function, x: Array, y: Array, dtype: np.dtype[Any], high: float) -> Iterator[_Piece]:
    """The points (x, y) in pieces, and the points on both sides of each gap between these.

    A gap is where steps from sample to sample are `high` and stay so however close one looks, or lead out of the
    domain.
    """
    with np.errstate(invalid="ignore"):
        (steps,) = np.nonzero((abs(np.diff(y)) > high) | np.diff(np.isfinite(y)))
    left, right, y_left, y_right = x[steps], x[steps + 1], y[steps], y[steps + 1]
    for _ in range(_BISECTIONS if steps.size else 0):
        middle = ((left + right) / 2).astype(dtype).astype(np.float64)
        y_middle = f(middle)
        with np.errstate(invalid="ignore"):
            is_left = np.where(
                np.isfinite(y_left) == np.isfinite(y_right),
                abs(y_middle - y_left) > abs(y_right - y_middle),
                np.isfinite(y_middle) != np.isfinite(y_left),
            )
        right, y_right = np.where(is_left, middle, right), np.where(is_left, y_middle, y_right)
        left, y_left = np.where(is_left, left, middle), np.where(is_left, y_left, y_middle)
    with np.errstate(invalid="ignore"):
        is_gap = ~(abs(y_right - y_left) <= high / 2)
    befores, afters = _points(left, y_left, is_gap), _points(right, y_right, is_gap)
    gaps = dict(zip(steps[is_gap].tolist(), zip(befores, afters, strict=True), strict=True))
    piece: list[_Point] = []
    for index, point in enumerate(_points(x, y)):
        piece.append(point)
        if index in gaps:
            before, after = gaps[index]
            yield from _finite([*piece, before])
            piece = [after]
    yield from _finite(piece)


def _finite(piece: list[_Point]) -> Iterator[_Piece]:
    """Of `piece` the points that are finite, if there are any."""
    points = tuple(point for point in piece if math.isfinite(point[1]))
    if points:
        yield points


def _points(x: Array, y: Array, where: Any = ...) -> list[_Point]:
    return list(zip(x[where].tolist(), y[where].tolist(), strict=True))


def _ends(values: Array) -> _Range:
    return float(values.min()), float(values.max())
