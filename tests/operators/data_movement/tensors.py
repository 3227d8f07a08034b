"""Tensors of any bits in any layout, and refusals, for the tests of operators that move them."""

from typing import Any

import numpy as np

from app.contract.constants import NEWEST, DataType, FeatureLevel
from app.contract.violations import Violation
from app.memory.arrays import Array, numpy_type
from tests.contract.refusals import check_wording
from tests.operators.arrays import desc_of, laid_out
from tests.operators.descriptors import refusals

TYPES = [each for each in DataType if each.bits >= 8]
DESC = {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 3]}


def any_bits(rng: np.random.Generator, sizes: list[int], data_type: DataType) -> Array:
    """Elements of which every bit is random, with NaN of any payload among them, in some layout."""
    dtype = numpy_type(data_type)
    made = np.frombuffer(rng.bytes(int(np.prod(sizes)) * dtype.itemsize), dtype).reshape(sizes)
    return laid_out(rng, made)


def some_layout(rng: np.random.Generator, array: Array) -> dict[str, Any]:
    """The descriptor of an output of this shape and type."""
    return desc_of(laid_out(rng, np.zeros_like(array)))


def sized(*sizes: int, **members: Any) -> dict[str, Any]:
    return DESC | {"Sizes": list(sizes)} | members


def assert_same_bits(made: Array, expected: Array) -> None:
    assert made.dtype == expected.dtype
    one, other = (np.ascontiguousarray(each).view(f"u{each.dtype.itemsize}") for each in (made, expected))
    np.testing.assert_array_equal(one, other)


def spelled(violation: Violation) -> tuple[str, Any, Any]:
    """Where a refusal is, what was given and what is allowed."""
    check_wording(violation)
    return violation.pointer, violation.given, violation.allowed


def told(document: dict[str, Any], level: FeatureLevel = NEWEST) -> tuple[str, Any, Any]:
    """The only refusal."""
    (refusal,) = refusals(document, level)
    return spelled(refusal)
