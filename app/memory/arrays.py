"""NumPy arrays over buffers."""

from functools import cache
from typing import Any, TypeAlias

import numpy as np

from app.contract.constants import DataType

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@cache
def numpy_type(data_type: DataType) -> np.dtype[Any]:
    """How elements of `data_type` lie in memory: little-endian."""
    return np.dtype(data_type.value.lower()).newbyteorder("<")
