"""Operators run on the NumPy device, from arrays to arrays."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.memory.arrays import Array, numpy_type
from tests.operators import arrays
from tests.operators.arrays import desc_of
from tests.operators.descriptors import compiled

MOVED = [each for each in DataType if each.bits >= 8]
"""Types of elements that are moved as they are."""
DEVICE = NumpyDevice(ThreadPoolExecutor(1), 1)  # which starts no thread: all is computed in this one
INDICES: list[Any] = [np.int64, np.int32, np.uint64, np.uint32]


def bits(rng: np.random.Generator, sizes: list[int], data_type: DataType) -> Array:
    """Elements of any bits: NaN with payloads, infinities and subnormals among the floats."""
    dtype = numpy_type(data_type)
    count = int(np.prod(sizes)) * dtype.itemsize
    return np.frombuffer(rng.bytes(count), dtype).reshape(sizes)


def unsigned(array: Array) -> Array:
    """Its bits."""
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def sizes_of(rng: np.random.Generator, rank: int, most: int = 5) -> list[int]:
    return [int(each) for each in rng.integers(1, most, rank)]


def some_indices(rng: np.random.Generator, sizes: list[int], size: int, dtype: Any) -> Array:
    """Indices along a dimension of `size`, negative ones among them where there are some."""
    least = -size if np.dtype(dtype).kind == "i" else 0
    return rng.integers(least, size, sizes).astype(dtype)


def run(kind: str, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None, **members: Any) -> Any:
    """The outputs by name: as arrays in `outputs` lie, others packed. `members` are attributes, and what is null."""
    tensors = {name: desc_of(array) for name, array in [*inputs.items(), *(outputs or {}).items()]}
    operator = compiled({"Type": kind} | tensors | members)
    return arrays.run(DEVICE, operator, inputs)
