"""What sizes decide of formulas, which say the same then."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.formula.coordinates import Element, Total, coordinates, sum_over
from app.formula.decided import UNDECIDED, decide, decided
from app.formula.outlines import Outline
from app.formula.uniform import uniform_parts
from app.formula.values import INT64, Constant, Operation, Value, cast, maximum, minimum, parts
from tests.devices.test_coordinates import N, of_expression, operand
from tests.formula.test_ranges import random_value
from tests.operators.arrays import run


def test_formulas_compute_the_same_when_sizes_have_decided() -> None:
    rng = np.random.default_rng(5)
    i, j = coordinates(2)
    x = rng.integers(-128, 128, 12).astype(np.int8)
    of = operand(x)
    leaves = [i, j, N, *(cast(of[[each]], INT64) for each in (i, j, i + j, i - 3)), Constant(INT64, 5)]
    changed = 0
    with ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 1)
        for turn in range(200):
            value, number = random_value(rng, leaves, 1 + turn % 3), int(rng.integers(-9, 9))
            operator = of_expression(value, [12, 5], DataType.INT64, x, n=number)
            root = decided(value, decide(Outline(value), operator.numbers, [12, 5], {"X": [12]}))
            changed += root is not value
            made = run(device, of_expression(root, [12, 5], DataType.INT64, x, n=number), {"X": x})["Y"]
            np.testing.assert_array_equal(made, run(device, operator, {"X": x})["Y"])
    assert changed > 50


@pytest.mark.parametrize(
    ("padding", "size", "whole", "inside"),
    [(0, 10, True, True), (1, 10, False, True), (0, 9, False, False)],
    ids=["all windows are whole", "before the first", "after the last"],
)
def test_windows_that_nothing_cuts_off(padding: int, size: int, *, whole: bool, inside: bool) -> None:
    """Five, two elements long and apart."""
    x = np.zeros(size, np.float32)
    of, (i,) = operand(x), coordinates(1)
    base = i * 2 - N
    begin = maximum(base, 0)
    count = maximum(minimum(base + 2, of.sizes[0]) - begin, 0)
    value = sum_over([count], lambda k: of[[begin + k]])
    operator = of_expression(value, [5], DataType.FLOAT32, x, n=padding)
    decisions = decide(Outline(value), operator.numbers, [5], {"X": [size]})
    root = decided(value, decisions)
    (total,) = (each for each in parts(root) if isinstance(each, Total))
    assert uniform_parts(root).issuperset(total.counts) == whole
    assert [each.inside for each in parts(root) if isinstance(each, Element)] == [inside]
    assert (UNDECIDED in decisions) != whole


def test_what_may_wrap_around_is_not_decided() -> None:
    x = np.zeros(8, np.float32)
    (i,) = coordinates(1)
    value: Value = operand(x)[[maximum(i + N, 0)]]
    operator = of_expression(value, [8], DataType.FLOAT32, x, n=(1 << 63) - 4)
    root = decided(value, decide(Outline(value), operator.numbers, [8], {"X": [8]}))
    assert isinstance(root, Element)
    assert isinstance(root.at[0], Operation)
    assert (root.at[0].name, root.inside) == ("maximum", 0)
