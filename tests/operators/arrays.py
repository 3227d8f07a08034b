"""Arrays as tensors of operators: what describes them, other layouts of them, and what a device makes of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from app.devices.device import Device
from app.memory.arrays import Array, numpy_type
from app.operators.compiled import CompiledOperator

GUARD = 64
"""Bytes before and behind an output that nobody may write."""


def desc_of(array: Array) -> dict[str, Any]:
    """The descriptor of an array as it lies in memory."""
    strides = [step // array.itemsize for step in array.strides]
    return {"DataType": array.dtype.name.upper(), "Sizes": list(array.shape), "Strides": strides}


def laid_out(rng: np.random.Generator, array: Array) -> Array:
    """The same elements packed, with gaps, or turned."""
    made = room(rng, array)
    made[...] = array
    return made


def room(rng: np.random.Generator, array: Array) -> Array:
    """For as many zeros, packed, with gaps, or turned."""
    order = rng.permutation(array.ndim)
    wide = np.zeros([array.shape[axis] + int(rng.integers(0, 3)) for axis in order], array.dtype)
    return wide.transpose(np.argsort(order))[tuple(map(slice, array.shape))]


def bytes_of(array: Array) -> memoryview:
    """From its first element to its last."""
    reach = 1 + sum((size - 1) * step // array.itemsize for size, step in zip(array.shape, array.strides, strict=True))
    return np.lib.stride_tricks.as_strided(array, (reach,), (array.itemsize,)).view(np.uint8).data


def run(device: Device, operator: CompiledOperator, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs, as they lie in memory. Nothing beside their elements is written, and the inputs stay as they are."""
    made: dict[str, Array] = {}
    guarded = []
    for name, desc in operator.outputs.items():
        dtype = numpy_type(desc.DataType)
        memory = np.full(2 * GUARD + desc.reach * dtype.itemsize, 0xA5, np.uint8)
        guarded.append(memory)
        made[name] = np.ndarray(desc.Sizes, dtype, memory, GUARD, [step * dtype.itemsize for step in desc.strides])
    buffers = [bytes_of(inputs[name]) for name in operator.inputs]
    before = [bytes(each) for each in buffers]
    device.prepare(operator).dispatch(buffers, [each[GUARD:-GUARD].data for each in guarded], lambda: False)
    assert before == [bytes(each) for each in buffers]
    for array, memory in zip(made.values(), guarded, strict=True):
        apart = array.copy()
        array[...] = np.frombuffer(b"\xa5" * array.itemsize, array.dtype)[0]
        assert (memory == 0xA5).all()
        array[...] = apart
    return made
