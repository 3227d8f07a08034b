"""NumPy arrays over buffers, and elements of four bits in them, as in CuPy's arrays."""

from collections.abc import Callable
from contextvars import Context
from functools import cache, wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np

from app.contract.constants import DataType

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")

_IGNORING = Context()
_IGNORING.run(np.seterr, all="ignore")


def ignoring_float_errors(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """As by `np.errstate(all="ignore")`, which takes 6 us where caches are cold; this takes half of one."""

    @wraps(function)
    def ignoring(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        return _IGNORING.copy().run(function, *args, **kwargs)  # a context is one thread's at a time

    return ignoring


@cache
def numpy_type(data_type: DataType) -> np.dtype[Any]:
    """How elements of `data_type` lie in memory: little-endian. Of 4-bit types, once they are `apart`."""
    name = data_type.value.lower()
    return np.dtype(f"{name[:-1]}8" if data_type.bits == 4 else name).newbyteorder("<")


def apart(packed: Any, data_type: DataType, elements: int, xp: Any = np) -> Any:
    """The `elements` of a 4-bit type, a byte each, of bytes that hold two, the first in the low half. `xp` is whose
    arrays they are, numpy or cupy."""
    made = xp.empty((len(packed), 2), np.uint8)
    xp.bitwise_and(packed, 0xF, out=made[:, 0])
    xp.right_shift(packed, 4, out=made[:, 1])
    if data_type is DataType.INT4:
        made ^= 8
        made -= 8  # which wraps around: 8 to 15 are -8 to -1
    return made.reshape(-1)[:elements].view(numpy_type(data_type))


def together(made: Any, xp: Any = np) -> Any:
    """The elements of a 4-bit type, row-major, two to a byte; the last half is 0 if it is of no element."""
    halves = xp.zeros(made.size + made.size % 2, np.uint8)
    xp.bitwise_and(made.reshape(-1).view(np.uint8), 0xF, out=halves[: made.size])
    packed = halves[1::2] << np.uint8(4)
    packed |= halves[::2]
    return packed
