"""Products in the middle of other things: by loops where these are better than a BLAS, and the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.looped_products import LoopedProducts
from app.devices.cpu.products import LEAST_ALONE
from app.memory.arrays import Array
from app.operators.arrays import SCRATCH

RANDOM = np.random.default_rng(31)


def floats(*sizes: int) -> Array:
    return RANDOM.standard_normal(sizes, np.float32)


def turned(*sizes: int) -> Array:
    return floats(*sizes[:-2], sizes[-1], sizes[-2]).swapaxes(-1, -2)


def heads(batch: int, items: int, count: int, size: int) -> Array:
    """{ batch, heads, items, size } of what lies item by item."""
    return floats(batch, items, count, size).swapaxes(1, 2)


def unaligned(*sizes: int) -> Array:
    memory = np.empty(4 * int(np.prod(sizes)) + 1, np.uint8)
    made = memory[1:].view(np.float32).reshape(sizes)
    made[...] = floats(*sizes)
    return made


MANY = SCRATCH["numpy"] // (4 * 64 * 64)
"""Turned matrices that are as many as are packed at once."""

FORMS: dict[str, tuple[Callable[[], tuple[Array, Array]], bool]] = {
    "as many products as are worth it": (lambda: (floats(256, 128), floats(128, LEAST_ALONE // (256 * 128))), True),
    "fewer": (lambda: (floats(256, 128), floats(128, LEAST_ALONE // (256 * 128) - 1)), False),
    "turned": (lambda: (floats(131, 257), turned(257, 130)), True),
    "heads": (lambda: (heads(2, 77, 12, 64), heads(2, 77, 12, 64).swapaxes(-1, -2)), True),
    "values of heads": (lambda: (floats(2, 12, 77, 77), heads(2, 77, 12, 64)), True),
    "between sizes of 1": (lambda: (floats(1, 12, 1, 128, 64), turned(1, 12, 64, 128)[:, :, None]), True),
    "too many dimensions": (lambda: (floats(2, 2, 2, 128, 64), floats(2, 2, 2, 64, 128)), False),
    "as many turned": (lambda: (floats(MANY, 65, 64), turned(MANY, 64, 64)), True),
    "too many turned": (lambda: (floats(MANY + 1, 65, 64), turned(MANY + 1, 64, 64)), False),
    "repeated": (lambda: (np.broadcast_to(floats(1, 128, 64), (8, 128, 64)), floats(8, 64, 128)), False),
    "one for all": (lambda: (floats(8, 128, 64), floats(64, 128)), False),
    "backward": (lambda: (floats(256, 128)[::-1], floats(128, 128)), False),
    "float64": (lambda: (floats(256, 128).astype(float), floats(128, 128)), False),
    "at odd places": (lambda: (unaligned(256, 128), floats(128, 128)), False),
}
"""Operands, and whether loops multiply them."""


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("is_given", [False, True])
def test_by_whom(device: NumpyDevice, name: str, *, is_given: bool) -> None:
    make, is_looped = FORMS[name]
    a, b = make()
    wanted = np.matmul(a.astype(np.float64), b)
    out = np.full(wanted.shape, np.nan, np.float32) if is_given else None
    assert device.team
    products = LoopedProducts(device.team)
    for _ in range(2):  # the second time by what is known
        made = products.multiplied(a, b, out)
        assert (made is not None) is is_looped
        if made is not None:
            assert made.flags.c_contiguous
            assert out is None or made is out
            np.testing.assert_allclose(made, wanted, 1e-4, 1e-4)


@pytest.mark.parametrize(
    "out", [lambda a: a, lambda _: np.empty((256, 256), np.float32)[:, :128], lambda _: np.empty((256, 128))]
)
def test_where_it_cannot_be_made(device: NumpyDevice, out: Callable[[Array], Any]) -> None:
    """Over an operand, with gaps, and in another type."""
    a, b = floats(256, 128), floats(128, 128)
    assert device.team
    assert LoopedProducts(device.team).multiplied(a, b, out(a)) is None
