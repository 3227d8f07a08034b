"""Elements as another type."""

import numpy as np

from app.contract.constants import DataType
from app.memory.arrays import numpy_type
from app.models.onnx.element_wise import binary, predicate, without_sign
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.operands import number, operate
from app.models.onnx.shapes import of_type
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
    if x.data_type is DataType.FLOAT64:
        x = without_sign(node, x)
    is_zero = predicate(node, "ELEMENT_WISE_LOGICAL_EQUALS", x, number(node, 0, x.data_type))
    return operate(node, "ELEMENT_WISE_LOGICAL_NOT", {"InputTensor": is_zero})


def _cast(node: Node, to: int) -> Value:
    x = node.view(0)
    if to == BOOL:
        return x if node.is_boolean(0) else cast_to_bool(node, x)
    data_type = type_of(to)
    if x.data_type is data_type:
        return _numbers(node, x)
    if x.data_type.bits == 4:
        x = _from_4_bits(node, x)
    if data_type.bits == 4:
        return _to_4_bits(node, x, data_type)
    return node.cast(x, data_type)


def _numbers(node: Node, x: View) -> View:
    """The first input, and if it is bool a copy, since its own bytes are known for bool."""
    return operate(node, "ELEMENT_WISE_IDENTITY", {"InputTensor": x}) if node.is_boolean(0) else x


def type_of(number: int) -> DataType:
    """By ONNX's number of it. Raises Unsupported, of BOOL as well."""
    if number not in TYPES:
        raise Unsupported(f"DirectML has no type for ONNX's type {number}")
    return TYPES[number]


# CAST has no 4-bit types; what scales numbers by 1 has.


def _from_4_bits(node: Node, x: View) -> View:
    """In FLOAT32, which has all of them."""
    one = node.build.constant(np.ones((1,) * max(len(x.sizes), 1), np.float32))
    made = node.build.operator(
        "DEQUANTIZE",
        {"InputTensor": x, "QuantizationTensors": [one]},
        {"QuantizationType": "SCALE"},
        {"OutputTensor": (DataType.FLOAT32, x.sizes)},
    )
    return made["OutputTensor"]


def _to_4_bits(node: Node, x: View, data_type: DataType) -> View:
    """The lowest 4 bits of whole numbers, as CAST has it with other types."""
    least = 8 if data_type is DataType.INT4 else 0
    whole = node.cast(x, DataType.INT32)
    moved = binary(node, "ELEMENT_WISE_ADD", whole, number(node, least, DataType.INT32))
    lowest = binary(node, "ELEMENT_WISE_MODULUS_FLOOR", moved, number(node, 16, DataType.INT32))
    made = binary(node, "ELEMENT_WISE_SUBTRACT", lowest, number(node, least, DataType.INT32))
    one = node.build.constant(np.ones((1,) * max(len(x.sizes), 1), np.float32))
    quantized = node.build.operator(
        "QUANTIZE",
        {"InputTensor": node.cast(made, DataType.FLOAT32), "QuantizationTensors": [one]},
        {"QuantizationType": "SCALE"},
        {"OutputTensor": (data_type, x.sizes)},
    )
    return quantized["OutputTensor"]


@maps("Cast")
def _cast_to(node: Node) -> Value:
    return _cast(node, node.attribute("to"))


@maps("CastLike")
def _cast_like(node: Node) -> Value:
    data_type, is_boolean = node.data_type(1), node.is_boolean(1)
    known = node.value(0)
    if isinstance(known, np.ndarray) and data_type.bits > 4:
        with np.errstate(all="ignore"):  # as with Cast, which is folded
            return known.astype(np.bool_ if is_boolean else numpy_type(data_type))
    if is_boolean:
        return _cast(node, BOOL)
    return _cast(node, next(number for number, each in TYPES.items() if each is data_type))


@maps("BitCast")
def _bit_cast(node: Node) -> Value:
    x, data_type = node.view(0), type_of(node.attribute("to"))
    if x.data_type.bits != data_type.bits:
        raise Unsupported(f"elements of {x.data_type.bits} bits are not to be read as those of {data_type.bits}")
    return of_type(_numbers(node, x), data_type)
