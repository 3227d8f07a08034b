"""What operators state of their accuracy: all do, and results of few and of many terms are as exact as that."""

import numpy as np
import pytest

from app.memory.arrays import Array
from app.operators.accuracy import EXACT, NEAREST, NEAREST_TO_QUOTIENT
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from tests.operators import arrays
from tests.operators.arrays import bytes_of
from tests.operators.numerics import sampled_products, sampled_sums  # noqa: F401 - they add samples
from tests.operators.numerics.cases import BINARY, UNARY, Case
from tests.operators.numerics.samples import SAMPLES, measured

CASES = {case.kind for case in (*UNARY, *BINARY)}


def test_every_bound_is_held_to_something() -> None:
    """Elements by the cases of `cases.py`; the others by samples."""
    unbounded = EXACT, NEAREST, NEAREST_TO_QUOTIENT
    bounded = {kind for kind, operator in OPERATORS.items() if operator.accuracy not in unbounded}
    assert bounded - CASES - {PREFIX + kind for kind in SAMPLES} == {f"{PREFIX}ELEMENT_WISE_DEQUANTIZE_LINEAR"}
    assert {PREFIX + kind for kind in SAMPLES} <= bounded


@pytest.mark.parametrize("case", [*UNARY, *BINARY], ids=str)
def test_cases_have_the_bounds_that_are_stated(case: Case) -> None:
    assert case.bound <= OPERATORS[case.kind].accuracy.units


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("kind", SAMPLES)
def test_results_are_as_exact_as_stated(kind: str) -> None:
    for dtype in ("float32", "float16"):
        for size in (9, 70):
            found = measured(kind, dtype, size)
            assert found.units <= found.bound, (dtype, size, found)


@pytest.mark.parametrize("kind", ["GEMM", "CONVOLUTION", "RNN"])
def test_products_of_fewer_digits_are_beyond_the_bounds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of TF32 are, whose numbers have 11 bits."""

    def shortened(array: Array) -> memoryview:
        made = array.copy()
        made.view(np.uint32)[...] &= 0xFFFFE000
        return bytes_of(made)

    assert measured(kind, "float32", 64).part < 1
    monkeypatch.setattr(arrays, "bytes_of", shortened)
    assert measured(kind, "float32", 64).part > 1
