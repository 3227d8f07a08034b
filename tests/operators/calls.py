"""Operators run on the NumPy device as requests run them: strided inputs, guarded outputs."""

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, TypeAlias, cast

import numpy as np

from app.contract.constants import NEWEST, FeatureLevel
from app.contract.validation import validate
from app.devices.cpu.device import NumpyDevice
from app.memory.arrays import Array, numpy_type
from app.operators.catalog import find_operator
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.operator import Operator

GUARD = 64
DEVICE = NumpyDevice(cast(Executor, None), 1)  # one thread needs no others


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


def compiled(document: dict[str, Any], level: FeatureLevel = NEWEST) -> CompiledOperator:
    kind = find_operator(str(document["Type"]))
    assert kind
    return compile_operator(validate(kind, document), level)


Given: TypeAlias = Array | list[Array] | None


def run(
    document: dict[str, Any],
    given: Mapping[str, Given] | None = None,
    judge: type[Operator] | None = None,
    **named: Given,
) -> dict[str, Array]:
    """The outputs of the operator that `document` states, but for what its inputs, `given` and `named`, say of
    themselves. Nothing beside the outputs' elements is written, and the inputs stay as they are. `judge` is a class to
    take for the operator's."""
    inputs = {**(given or {}), **named}
    arrays: dict[str, Array] = {}
    for name, data in inputs.items():
        if isinstance(data, list):
            document = document | {name: [desc_of(each) for each in data]}
            arrays |= {f"{name}[{place}]": each for place, each in enumerate(data)}
        elif data is not None:
            document = document | {name: desc_of(data)}
            arrays[name] = data
    operator = compile_operator(validate(judge, document), NEWEST) if judge else compiled(document)
    made: dict[str, Array] = {}
    guarded = []
    for name, desc in operator.outputs.items():
        dtype = numpy_type(desc.DataType)
        memory = np.full(2 * GUARD + desc.reach * dtype.itemsize, 0xA5, np.uint8)
        guarded.append(memory)
        made[name] = np.ndarray(desc.Sizes, dtype, memory, GUARD, [step * dtype.itemsize for step in desc.strides])
    buffers = [bytes_of(arrays[name]) for name in operator.inputs]
    before = [bytes(each) for each in buffers]
    DEVICE.prepare(operator).dispatch(buffers, [each[GUARD:-GUARD].data for each in guarded], lambda: False)
    assert before == [bytes(each) for each in buffers]
    for array, memory in zip(made.values(), guarded, strict=True):
        apart = array.copy()
        array[...] = np.frombuffer(b"\xa5" * array.itemsize, array.dtype)[0]
        assert (memory == 0xA5).all()
        array[...] = apart
    return made


def bytes_of(array: Array) -> memoryview:
    """From its first element to its last."""
    reach = 1 + sum((size - 1) * step // array.itemsize for size, step in zip(array.shape, array.strides, strict=True))
    return np.lib.stride_tricks.as_strided(array, (reach,), (array.itemsize,)).view(np.uint8).data
