"""Ranges of integers, against what NumPy computes."""

from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.formula import coordinates as c
from app.formula.coordinates import coordinates
from app.formula.outlines import Outline
from app.formula.ranges import Ranges
from app.formula.values import (
    INT64,
    Constant,
    Value,
    absolute,
    cast,
    ceil,
    floor,
    log,
    maximum,
    minimum,
    quotient,
    remainder_of_floor,
    remainder_of_truncation,
    rint,
    saturate,
    where,
)
from tests.devices.test_coordinates import N, of_expression, operand
from tests.operators.arrays import run

LIMITS = np.iinfo(np.int64)


def random_value(rng: np.random.Generator, leaves: list[Value], depth: int) -> Value:
    if depth == 0:
        return leaves[rng.integers(len(leaves))]
    a, b = (random_value(rng, leaves, depth - 1) for _ in range(2))
    functions: list[Any] = [
        lambda: a + b,
        lambda: a - b,
        lambda: a * b,
        lambda: maximum(a, b),
        lambda: minimum(a, b),
        lambda: -a,
        lambda: absolute(a),
        lambda: quotient(a, b),
        lambda: remainder_of_floor(a, b),
        lambda: remainder_of_truncation(a, b),
        lambda: where(a < b, a, b),
        lambda: cast(cast(a, "int8"), INT64),
        lambda: cast(a < b, INT64),
        lambda: c.sum_over([minimum(a, 3)], lambda k: k * b - a),
        lambda: c.maximum_over([minimum(a, 2)], lambda k: k + b),
        lambda: saturate(floor(cast(a, "float32") * 0.7 - 1), INT64),
        lambda: saturate(ceil(cast(a, "float64") / cast(maximum(b, 1), "float64")), INT64),
        lambda: saturate(rint(minimum(maximum(cast(a, "float32") / cast(b, "float32"), -3), 5)), INT64),
        lambda: cast(saturate(where(a < b, -cast(a, "float32"), 0.3), "int8"), INT64),
        lambda: c.position_over("last_maximum", [minimum(a, 2), 3], lambda k, m: k + m * b),
    ]
    made: Value = functions[rng.integers(len(functions))]()
    return made


def test_what_is_computed_lies_in_its_range() -> None:
    rng = np.random.default_rng(1)
    i, j = coordinates(2)
    x = rng.integers(-128, 128, 12).astype(np.int8)
    leaves = [i, j, N, cast(operand(x)[[i]], INT64), *(Constant(INT64, each) for each in (-7, -1, 0, 1, 5, 1 << 62))]
    narrow = 0
    with ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 1)
        for turn in range(400):
            value = random_value(rng, leaves, 1 + turn % 3)
            number = int(rng.integers(-9, 9))
            operator = of_expression(value, [12, 5], DataType.INT64, x, n=number)
            made = run(device, operator, {"X": x})["Y"]
            low, high = Ranges(Outline(value), operator.numbers, [12, 5]).of(value)
            assert low <= made.min(), value
            assert made.max() <= high, value
            narrow += high - low < 1 << 32
    assert narrow > 200


def part_of_window(begin: Value, size: int) -> Value:
    """How much of it is between 0 and 12."""
    return minimum(begin + size, 12) - maximum(begin, 0)


def a(i: Value) -> Value:
    """From -4 to 5."""
    return cast(i, "float32") - 4


def b(i: Value) -> Value:
    """From -6 to 12."""
    return cast(i, "float32") * 2 - 6


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda i: i * 3 - 2, (-2, 25)),
        (lambda i: cast(i < 5, INT64), (0, 1)),
        (lambda i: maximum(minimum(i, N), 2), (2, 7)),
        (lambda i: quotient(i - 4, 2), (-2, 2)),
        (lambda i: quotient(i + 8, minimum(i, 1)), (0, 17)),  # by 0 it is 0
        (lambda i: absolute(i - 4), (0, 5)),
        (lambda i: absolute(i - 20), (11, 20)),
        (lambda i: remainder_of_floor(i, 4), (0, 3)),
        (lambda i: remainder_of_floor(i, -4), (-3, 0)),
        (lambda i: remainder_of_floor(i, i * 2 - 9), (-8, 8)),
        (lambda i: remainder_of_truncation(i, 400), (0, 9)),
        (lambda i: remainder_of_truncation(i, 1), (0, 0)),
        (lambda i: remainder_of_truncation(i + 5, 4), (0, 3)),
        (lambda i: remainder_of_truncation(i - 20, 4), (-3, 0)),
        (lambda i: remainder_of_truncation(i * 100, i - 9), (0, 8)),
        (lambda i: c.sum_over([i], lambda k: k), (0, 9 * 8)),
        (lambda i: c.sum_over([1], lambda k: k + 5), (0, 5)),  # it may be of nothing
        (lambda i: c.sum_over([2], lambda k: k - 1), (-2, 0)),
        (lambda i: c.position_over("first_minimum", [i, 3], lambda k, m: k), (0, 9 * 3 - 1)),
        (lambda i: c.position_over("first_minimum", [1], lambda k: k + i), (0, 0)),
        (lambda i: saturate(cast(i + 2, "float32"), INT64), (0, 11)),  # NaN is 0
        (lambda i: saturate(cast(-i - 2, "float32"), INT64), (-11, 0)),
        (lambda i: saturate(a(i) + b(i), INT64), (-10, 17)),
        (lambda i: saturate(a(i) - b(i), INT64), (-16, 11)),
        (lambda i: saturate(a(i) * b(i), INT64), (-48, 60)),
        (lambda i: saturate(b(i) / (a(i) - 6), INT64), (-12, 6)),
        (lambda i: saturate(a(i) / b(i), INT64), (LIMITS.min, LIMITS.max)),
        (lambda i: saturate(maximum(a(i), b(i)), INT64), (-4, 12)),
        (lambda i: saturate(minimum(a(i), b(i)), INT64), (-6, 5)),
        (lambda i: saturate(where(i < 3, a(i), b(i)), INT64), (-6, 12)),
        (lambda i: saturate(-a(i), INT64), (-5, 4)),
        (lambda i: saturate(a(i) * 0 + inf - log(a(i)), INT64), (LIMITS.min, LIMITS.max)),
        (lambda i: saturate(-inf - log(a(i)), INT64), (LIMITS.min, LIMITS.max)),
        (lambda i: saturate(ceil(cast(i, "float32") * 0.5), INT64), (0, 5)),
        (lambda i: saturate(minimum(maximum(log(cast(i, "float32")), -1.5), 4), INT64), (-1, 4)),
        (lambda i: i * (1 << 60), (LIMITS.min, LIMITS.max)),
        (lambda i: part_of_window(i * 2 - 1, 3), (-15, 3)),
        (lambda i: part_of_window(i * 2 - 1, -3), (-21, -3)),
    ],
)
def test_ranges_are_as_narrow_as_may_be(value: Any, expected: tuple[int, int]) -> None:
    made = value(coordinates(1)[0])
    assert Ranges(Outline(made), {"n": 7}, [10]).of(made) == expected


def test_terms_are_those_of_totals_one_inside_the_other() -> None:
    (i,) = coordinates(1)
    inner = c.sum_over([i, N], lambda a, b: c.maximum_over([a + 1], lambda k: k + b))
    assert Ranges(Outline(i + 1), {}, [10]).terms() == 1
    both = inner + c.sum_over([N], lambda k: k)
    assert Ranges(Outline(both), {"n": 7}, [10]).terms() == 9 * 7 * 9
    assert Ranges(Outline(both), {"n": -7}, [10]).terms() == 9


def test_a_total_that_another_one_does_not_change_is_computed_once() -> None:
    (i,) = coordinates(1)
    largest = c.maximum_over([i, N], lambda a, b: a + b)
    made = c.sum_over([i, N], lambda a, b: a + b - largest)
    assert Ranges(Outline(made), {"n": 7}, [10]).terms() == 9 * 7
    again = c.sum_over([N], lambda a: a * made + c.maximum_over([N], lambda k: k * a))
    assert Ranges(Outline(again), {"n": 100}, [10]).terms() == 100 * 100
