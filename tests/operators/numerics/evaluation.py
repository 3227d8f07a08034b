"""One dispatch on arrays."""

from typing import Any

import numpy as np

from app.devices.device import Device
from app.memory.arrays import Array, numpy_type
from app.operators.catalog import OPERATORS
from app.operators.operator import Role
from tests.operators.descriptors import compiled, output_of


def evaluate(device: Device, kind: str, attributes: dict[str, Any], *inputs: Array | None) -> Array:
    """The operator's result for packed tensors of the arrays' sizes; None is an optional tensor that is left out."""
    names = OPERATORS[kind].tensor_names(Role.INPUT)
    given = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    descs = {name: {"DataType": array.dtype.name.upper(), "Sizes": list(array.shape)} for name, array in given.items()}
    operator = compiled({"Type": kind} | descs | attributes)
    output: Array = np.empty(output_of(operator).Sizes, numpy_type(output_of(operator).DataType))
    buffers = [memoryview(array.tobytes()) for array in given.values()]
    device.prepare(operator).dispatch(buffers, [output.reshape(-1).view(np.uint8).data], lambda: False)
    return output
