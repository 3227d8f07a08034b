"""NumPy arrays over buffers, and elements of four bits in them, as in CuPy's arrays."""

from collections.abc import Callable
from contextvars import Context
from functools import cache, wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc

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


def apart_in_shape(packed: Any, desc: TensorDesc, xp: Any = np) -> Any:
    """The elements of a tensor of a 4-bit type, a byte each, in its shape."""
    return _in_shape(apart(packed, desc.DataType, desc.reach, xp), desc, xp)


def together(made: Any, xp: Any = np, desc: TensorDesc | None = None) -> Any:
    """The elements of a 4-bit type, two to a byte: row-major, or where `desc` has them. Halves of no element are 0."""
    count = made.size if desc is None else desc.reach
    halves = xp.zeros(count + count % 2, np.uint8)
    places = halves[:count].reshape(made.shape) if desc is None else _in_shape(halves, desc, xp)
    xp.bitwise_and(made.view(np.uint8), 0xF, out=places)
    packed = halves[1::2] << np.uint8(4)
    packed |= halves[::2]
    return packed


def _in_shape(elements: Any, desc: TensorDesc, xp: Any) -> Any:
    """`elements`, of a byte each, as those of the tensor: its strides are steps in bytes then."""
    return xp.lib.stride_tricks.as_strided(elements, tuple(desc.Sizes), tuple(desc.strides))
