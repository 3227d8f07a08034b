"""NumPy arrays over buffers."""

from functools import cache
from typing import Any, TypeAlias

import numpy as np

from app.contract.constants import DataType

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@cache
def numpy_type(data_type: DataType) -> np.dtype[Any]:
    """How elements of `data_type` lie in memory: little-endian. Of 4-bit types, once they are `apart`."""
    name = data_type.value.lower()
    return np.dtype(f"{name[:-1]}8" if data_type.bits == 4 else name).newbyteorder("<")


def apart(packed: Array, data_type: DataType, elements: int) -> Array:
    """The `elements` of a 4-bit type, a byte each, of bytes that hold two, the first in the low half."""
    made = np.empty((len(packed), 2), np.uint8)
    np.bitwise_and(packed, 0xF, out=made[:, 0])
    np.right_shift(packed, 4, out=made[:, 1])
    if data_type is DataType.INT4:
        made ^= 8
        made -= 8  # which wraps around: 8 to 15 are -8 to -1
    return made.reshape(-1)[:elements].view(numpy_type(data_type))


def together(made: Array) -> Array:
    """The elements of a 4-bit type, row-major, two to a byte; the last half is 0 if it is of no element."""
    halves: Array = np.zeros(made.size + made.size % 2, np.uint8)
    np.bitwise_and(made.reshape(-1).view(np.uint8), 0xF, out=halves[: made.size])
    packed: Array = halves[1::2] << np.uint8(4)
    packed |= halves[::2]
    return packed
