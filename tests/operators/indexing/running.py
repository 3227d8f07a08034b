"""Operators run on the NumPy device, from arrays to arrays."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.memory.arrays import Array, numpy_type
from tests.operators.descriptors import compiled

MOVED = [each for each in DataType if each.bits >= 8]
"""Types of elements that are moved as they are."""
DEVICE = NumpyDevice(ThreadPoolExecutor(1), 1)  # which starts no thread: all is computed in this one
INDICES: list[Any] = [np.int64, np.int32, np.uint64, np.uint32]


def desc_of(array: Array) -> dict[str, Any]:
    """The descriptor of an array as it lies in memory."""
    strides = [step // array.itemsize for step in array.strides]
    return {"DataType": array.dtype.name.upper(), "Sizes": list(array.shape), "Strides": strides}


def laid_out(rng: np.random.Generator, array: Array) -> Array:
    """The same elements packed, with gaps, or turned."""
    order = rng.permutation(array.ndim)
    wide = np.zeros([array.shape[axis] + int(rng.integers(0, 3)) for axis in order], array.dtype)
    made = wide.transpose(np.argsort(order))[tuple(map(slice, array.shape))]
    made[...] = array
    return made


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
    made = {}
    for name, desc in operator.outputs.items():
        dtype = numpy_type(desc.DataType)
        memory = np.zeros(desc.reach, dtype)
        made[name] = np.ndarray(desc.Sizes, dtype, memory, 0, [step * dtype.itemsize for step in desc.strides])
    with ThreadPoolExecutor(1) as helpers:
        kernel = NumpyDevice(helpers, 1).prepare(operator)
        kernel.dispatch(
            [_buffer(inputs[name]) for name in operator.inputs],
            [_buffer(each) for each in made.values()],
            lambda: False,
        )
    return made


def _buffer(array: Array) -> memoryview:
    """The bytes from its first element to its last."""
    reach = 1 + sum((size - 1) * step // array.itemsize for size, step in zip(array.shape, array.strides, strict=True))
    return np.lib.stride_tricks.as_strided(array, (reach,), (array.itemsize,)).view(np.uint8).data
