"""Elements as another type."""

from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.models.onnx.element_wise import binary, predicate
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.operands import number, operate, read_as, require, takes
from app.models.onnx.tensors import Unsupported, View

TYPES = {
    1: DataType.FLOAT32,
    2: DataType.UINT8,
    3: DataType.INT8,
    4: DataType.UINT16,
    5: DataType.INT16,
    6: DataType.INT32,
    7: DataType.INT64,
    10: DataType.FLOAT16,
    11: DataType.FLOAT64,
    12: DataType.UINT32,
    13: DataType.UINT64,
    21: DataType.UINT4,
    22: DataType.INT4,
}
"""By onnx.TensorProto.DataType, without BOOL."""
BOOL = 9


def cast_to_bool(node: Node, x: View) -> View:
    """Whether elements are other than 0; NaN is."""
    if x.data_type is DataType.FLOAT64:  # which nothing compares: all bits but the sign
        bits = read_as(x, DataType.UINT64)
        x = binary(node, "ELEMENT_WISE_BIT_SHIFT_LEFT", bits, number(node, 1, DataType.UINT64))
    is_zero = predicate(node, "ELEMENT_WISE_LOGICAL_EQUALS", x, number(node, 0, x.data_type))
    return operate(node, "ELEMENT_WISE_LOGICAL_NOT", {"InputTensor": is_zero})


def _cast(node: Node, to: int) -> Value:
    x = node.view(0)
    if to == BOOL:
        return cast_to_bool(node, x)
    data_type = TYPES.get(to)
    if data_type is None:
        raise Unsupported(f"DirectML has no type for ONNX's type {to}")
    if x.data_type is data_type:
        return x
    if x.data_type.bits == 4 and data_type in takes("DEQUANTIZE", "OutputTensor"):
        attributes: dict[str, Any] = {"QuantizationType": "SCALE"}
        scale = node.build.constant(np.ones((1,) * max(len(x.sizes), 1), data_type.lower()))
        outputs = {"OutputTensor": (data_type, x.sizes)}
        made = node.build.operator(
            "DEQUANTIZE", {"InputTensor": x, "QuantizationTensors": [scale]}, attributes, outputs
        )
        return made["OutputTensor"]
    require("CAST", "InputTensor", x.data_type)
    require("CAST", "OutputTensor", data_type)
    return node.cast(x, data_type)


@maps("Cast")
def _cast_to(node: Node) -> Value:
    return _cast(node, node.attribute("to"))


@maps("CastLike")
def _cast_like(node: Node) -> Value:
    like = node.value(1)
    if isinstance(like, np.ndarray) and like.dtype == np.bool_:
        return cast_to_bool(node, node.view(0))
    data_type = node.data_type(1)
    if isinstance(like, View) and data_type is DataType.UINT8 and node.data_type(0) is not DataType.UINT8:
        raise Unsupported("whether its second input is bool or uint8 is not known here")
    return _cast(node, next(number for number, each in TYPES.items() if each is data_type))
