"""Curves: what the operators answer, in pieces that end where the function does."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, cast

import httpx
import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.devices.device import Device
from app.engine.capabilities import example_descriptor
from app.engine.curves import REACH, Curve, curve
from app.operators.catalog import OPERATORS
from app.operators.operator import Operator, Role
from tests.messages import CELU, CONSTANT_POW, HARD_SIGMOID, PARAMETERIZED_RELU, Array, output_of, post_msgpack, request

NUMPY = NumpyDevice(ThreadPoolExecutor(1), 1)


class Function:
    """A device on which every operator is one and the same function of an array."""

    def __init__(self, function: Callable[[Array], Array]) -> None:
        self._function = function

    def prepare(self, compiled: Any) -> "Function":
        return self

    def dispatch(
        self, inputs: Sequence[memoryview], outputs: Sequence[memoryview], cancelled: Callable[[], bool]
    ) -> None:
        with np.errstate(all="ignore"):
            np.frombuffer(outputs[0], np.float32)[:] = self._function(np.frombuffer(inputs[0], np.float32))


def curve_of(function: Callable[[Array], Array]) -> Curve:
    drawn = curve(OPERATORS[HARD_SIGMOID], cast(Device, Function(function)))
    assert drawn
    return drawn


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.short_name())
def test_points_are_what_a_dispatch_answers(operator: type[Operator], client: httpx.Client) -> None:
    drawn = curve(operator, NUMPY)
    if drawn is None:
        return
    points = np.array([point for piece in drawn.pieces for point in piece])
    (name,) = operator.tensor_names(Role.INPUT)
    x = points[:, 0].astype(drawn.data_type.lower())
    np.testing.assert_array_equal(x, points[:, 0])  # they are numbers of the type
    stated = {
        output: desc | {"Sizes": list(x.shape)}
        for output, desc in example_descriptor(operator).items()
        if output in operator.tensor_names(Role.OUTPUT)
    }
    answered = output_of(post_msgpack(client, request(operator.name(), {name: x}, drawn.attributes | stated)))
    np.testing.assert_array_equal(points[:, 1], answered.astype(np.float64))
    assert np.isfinite(points).all()
    assert (np.diff(points[:, 0]) >= 0).all()


def test_functions_of_several_tensors_have_none() -> None:
    assert curve(OPERATORS[PARAMETERIZED_RELU], NUMPY) is None


@pytest.mark.parametrize("name", ["CUMULATIVE_SUMMATION", "NONZERO_COORDINATES", "RANDOM_GENERATOR"])
def test_operators_that_are_not_element_by_element_have_none(name: str) -> None:
    assert curve(OPERATORS[f"DML_OPERATOR_{name}"], NUMPY) is None


@pytest.mark.parametrize(
    "function",
    [lambda x: np.exp(x) / np.exp(x).sum(), lambda x: x == x.max(), lambda x: x[::-1]],
    ids=["shares", "largest", "turned"],
)
def test_functions_of_several_elements_have_none(function: Callable[[Array], Array]) -> None:
    assert curve(OPERATORS[HARD_SIGMOID], cast(Device, Function(function))) is None


def test_attributes_are_those_of_the_example() -> None:
    celu, power = curve(OPERATORS[CELU], NUMPY), curve(OPERATORS[CONSTANT_POW], NUMPY)
    assert celu
    assert power
    assert (celu.data_type, celu.attributes) == (DataType.FLOAT32, {"Alpha": 1.0})
    assert power.attributes == {"Exponent": 2.5}


def test_a_domain_is_looked_at_closely() -> None:
    for function, low, high in ((np.sqrt, 0, REACH), (np.arccosh, 1, REACH), (np.arcsin, -1, 1), (np.arctanh, -1, 1)):
        (piece,) = (drawn := curve_of(function)).pieces
        assert piece[0][0] == pytest.approx(low, abs=1e-6)
        assert piece[-1][0] == pytest.approx(high, abs=0.03)
        shown = drawn.x_range[1] - drawn.x_range[0]
        assert high - low <= shown < 1.02 * (high - low)


def test_a_whole_line_is_looked_at_from_afar() -> None:
    drawn = curve_of(np.tanh)
    assert drawn.x_range == (-REACH, REACH)
    assert drawn.y_range == pytest.approx((-1, 1), abs=1e-4)
    assert len(drawn.pieces) == 1
    assert (0, 0) in drawn.pieces[0]


def test_what_rises_without_end_is_cut_off() -> None:
    for function in (np.exp, np.sinh, np.cosh, np.square):
        low, high = curve_of(function).y_range
        assert -12 <= low < high <= 12
        assert high > 9
    assert curve_of(lambda x: np.full_like(x, 1000)).y_range == (1000, 1000)


@pytest.mark.parametrize(
    ("function", "gaps"),
    [
        (np.sign, [(0, 0), (0, 0)]),  # around a point of its own
        (np.floor, [(each, each) for each in range(-5, 7)]),
        (np.rint, [(each + 0.5, each + 0.5) for each in range(-6, 6)]),
        (lambda x: np.where(x > 1.23, x, 0), [(1.23, 1.23)]),
        (lambda x: np.where(abs(x) > 0.5, x, 0), [(-0.5, -0.5), (0.5, 0.5)]),
        (np.tan, [(np.pi * each, np.pi * each) for each in (-1.5, -0.5, 0.5, 1.5)]),
        (lambda x: 1 / x, [(0, 0)]),
        (lambda x: np.where(abs(x) < 1, np.nan, x), [(-1, 1)]),
    ],
    ids=["sign", "floor", "rint", "threshold", "shrink", "tan", "reciprocal", "hole"],
)
def test_no_line_leads_across_a_gap(function: Callable[[Array], Array], gaps: list[tuple[float, float]]) -> None:
    pieces = curve_of(function).pieces
    found = [(before[-1][0], after[0][0]) for before, after in pairwise(pieces)]
    assert np.array(found) == pytest.approx(np.array(gaps), abs=1e-5)


@pytest.mark.parametrize("function", [np.exp, np.sinh, np.tanh, lambda x: np.tanh(200 * x), np.abs, np.square])
def test_what_is_steep_is_no_jump(function: Callable[[Array], Array]) -> None:
    assert len(curve_of(function).pieces) == 1


@pytest.mark.parametrize(
    ("name", "function", "y_range"),
    [("BIT_NOT", lambda x: 255 - x, (239, 255)), ("LOGICAL_NOT", lambda x: int(x == 0), (0, 1))],
)
def test_integers_are_points_of_their_narrowest_type(
    name: str, function: Callable[[int], int], y_range: tuple[int, int]
) -> None:
    drawn = curve(OPERATORS[f"DML_OPERATOR_ELEMENT_WISE_{name}"], NUMPY)
    assert drawn
    assert (drawn.data_type, drawn.discrete) == (DataType.UINT8, True)
    assert drawn.pieces == (tuple((x, function(x)) for x in range(17)),)
    assert (drawn.x_range, drawn.y_range) == ((0, 16), y_range)


def test_nothing_to_draw() -> None:
    drawn = curve_of(lambda x: np.full_like(x, np.nan))
    assert (drawn.pieces, drawn.x_range, drawn.y_range) == ((), (-REACH, REACH), (-1, 1))
