"""One dispatch on arrays."""

from typing import Any

import numpy as np

from app.execution.device import Device
from app.execution.numpy_lowering import Array
from app.operators.catalog import OPERATORS
from app.operators.operator import Role
from tests.operators.descriptors import compiled


def evaluate(device: Device, kind: str, attributes: dict[str, Any], *inputs: Array) -> Array:
    """The operator's result for packed one-dimensional tensors."""
    names = OPERATORS[kind].tensor_names(Role.INPUT)
    descs = {
        name: {"DataType": array.dtype.name.upper(), "Sizes": [array.size]}
        for name, array in zip(names, inputs, strict=True)
    }
    buffers = [memoryview(array.tobytes()) for array in inputs]
    output = np.empty_like(inputs[0])
    kernel = device.prepare(compiled({"Type": kind} | descs | attributes))
    kernel.dispatch(buffers, output.view(np.uint8).data, lambda: False)
    return output
