"""Element-wise operators: arithmetic, comparison, logic, bits, bounds and choice."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.memory.arrays import numpy_type
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.operands import (
    FLOATS,
    alike,
    broadcast,
    common_sizes,
    known_number,
    number,
    one_element,
    operate,
    require_equal,
    views,
)
from app.models.onnx.scaling import scaled_convolution
from app.models.onnx.shapes import of_type
from app.models.onnx.tensors import Unsupported, View

UNARY = {
    "Abs": "ELEMENT_WISE_ABS",
    "Neg": "ELEMENT_WISE_NEGATE",
    "Sign": "ELEMENT_WISE_SIGN",
    "Reciprocal": "ELEMENT_WISE_RECIP",
    "Floor": "ELEMENT_WISE_FLOOR",
    "Ceil": "ELEMENT_WISE_CEIL",
    "Exp": "ELEMENT_WISE_EXP",
    "Log": "ELEMENT_WISE_LOG",
    "Sqrt": "ELEMENT_WISE_SQRT",
    "Erf": "ELEMENT_WISE_ERF",
    "Sin": "ELEMENT_WISE_SIN",
    "Cos": "ELEMENT_WISE_COS",
    "Tan": "ELEMENT_WISE_TAN",
    "Asin": "ELEMENT_WISE_ASIN",
    "Acos": "ELEMENT_WISE_ACOS",
    "Atan": "ELEMENT_WISE_ATAN",
    "Sinh": "ELEMENT_WISE_SINH",
    "Cosh": "ELEMENT_WISE_COSH",
    "Asinh": "ELEMENT_WISE_ASINH",
    "Acosh": "ELEMENT_WISE_ACOSH",
    "Atanh": "ELEMENT_WISE_ATANH",
    "Not": "ELEMENT_WISE_LOGICAL_NOT",
    "BitwiseNot": "ELEMENT_WISE_BIT_NOT",
}

BINARY = {
    "Add": "ELEMENT_WISE_ADD",
    "Sub": "ELEMENT_WISE_SUBTRACT",
    "Mul": "ELEMENT_WISE_MULTIPLY",
    "Div": "ELEMENT_WISE_DIVIDE",
    "And": "ELEMENT_WISE_LOGICAL_AND",
    "Or": "ELEMENT_WISE_LOGICAL_OR",
    "Xor": "ELEMENT_WISE_LOGICAL_XOR",
    "BitwiseAnd": "ELEMENT_WISE_BIT_AND",
    "BitwiseOr": "ELEMENT_WISE_BIT_OR",
    "BitwiseXor": "ELEMENT_WISE_BIT_XOR",
}

COMPARISONS = {
    "Equal": "ELEMENT_WISE_LOGICAL_EQUALS",
    "Greater": "ELEMENT_WISE_LOGICAL_GREATER_THAN",
    "Less": "ELEMENT_WISE_LOGICAL_LESS_THAN",
    "GreaterOrEqual": "ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL",
    "LessOrEqual": "ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL",
}

VARIADIC = {
    "Sum": "ELEMENT_WISE_ADD",
    "Max": "ELEMENT_WISE_MAX",
    "Min": "ELEMENT_WISE_MIN",
}

_INFINITIES = {(1, 1): "EITHER", (1, 0): "POSITIVE", (0, 1): "NEGATIVE"}


def binary(node: Node, operator: str, a: View, b: View) -> View:
    """`operator` of both, broadcast to their common sizes."""
    require_equal(a, b)
    a, b = alike(a, b)
    return operate(node, operator, {"ATensor": a, "BTensor": b})


def predicate(node: Node, operator: str, a: View, b: View) -> View:
    """The same, of a comparison."""
    require_equal(a, b)
    a, b = alike(a, b)
    return operate(node, operator, {"ATensor": a, "BTensor": b}, outputs={"OutputTensor": (DataType.UINT8, a.sizes)})


def linear(node: Node, x: View, scale: float, bias: float) -> View:
    """x * scale + bias, of floats."""
    if x.data_type not in FLOATS:
        raise Unsupported(f"DirectML does not compute it in {x.data_type}")
    attributes = {"ScaleBias": {"Scale": scale, "Bias": bias}}
    return operate(node, "ELEMENT_WISE_IDENTITY", {"InputTensor": x}, attributes)


@maps(*UNARY)
def _unary(node: Node) -> Value:
    x = node.view(0)
    if node.type == "Abs" and x.data_type.startswith("UINT"):
        return x
    return operate(node, UNARY[node.type], {"InputTensor": x})


@maps(*BINARY)
def _binary(node: Node) -> Value:
    convolution = scaled_convolution(node) if node.type in ("Add", "Sub", "Mul", "Div") else None
    return convolution or binary(node, BINARY[node.type], node.view(0), node.view(1))


@maps(*COMPARISONS)
def _comparison(node: Node) -> Value:
    return predicate(node, COMPARISONS[node.type], node.view(0), node.view(1))


@maps(*VARIADIC)
def _variadic(node: Node) -> Value:
    total, *rest = views(node)
    for each in rest:
        total = binary(node, VARIADIC[node.type], total, each)
    return total


@maps("Mean")
def _mean(node: Node) -> Value:
    given = views(node)
    if len(given) == 2:
        return binary(node, "ELEMENT_WISE_MEAN", *given)
    total, *rest = given
    for each in rest:
        total = binary(node, "ELEMENT_WISE_ADD", total, each)
    return linear(node, total, 1 / len(given), 0) if rest else total


@maps("Where")
def _where(node: Node) -> Value:
    require_equal(node.view(1), node.view(2))
    return chosen(node, *alike(*views(node, 3)))


def chosen(node: Node, condition: View, a: View, b: View) -> View:
    """`a` where `condition` is true, else `b`; all of the same sizes."""
    inputs = {"ConditionTensor": condition, "ATensor": a, "BTensor": b}
    return operate(node, "ELEMENT_WISE_IF", inputs, outputs={"OutputTensor": (a.data_type, a.sizes)})


@maps("Mod")
def _mod(node: Node) -> Value:
    rounding = "TRUNCATE" if node.attribute("fmod") else "FLOOR"
    return binary(node, f"ELEMENT_WISE_MODULUS_{rounding}", node.view(0), node.view(1))


@maps("BitShift")
def _bit_shift(node: Node) -> Value:
    return binary(node, f"ELEMENT_WISE_BIT_SHIFT_{node.attribute('direction')}", node.view(0), node.view(1))


@maps("Round")
def _round(node: Node) -> Value:
    attributes = {"RoundingMode": "HALVES_TO_NEAREST_EVEN"}
    return operate(node, "ELEMENT_WISE_ROUND", {"InputTensor": node.view(0)}, attributes)


_INFINITE_BITS = {"EITHER": 0xFFE << 52, "POSITIVE": 0x7FF << 52, "NEGATIVE": 0xFFF << 52}
"""Of float64: all of its exponent and none below, without the sign, with that of positive ones and of negative ones."""


def without_sign(node: Node, x: View) -> View:
    """The bits of float64, which nothing compares, but for the sign: twice what they are."""
    bits = of_type(x, DataType.UINT64)
    return binary(node, "ELEMENT_WISE_BIT_SHIFT_LEFT", bits, number(node, 1, DataType.UINT64))


@maps("IsNaN")
def _is_nan(node: Node) -> Value:
    x = node.view(0)
    if x.data_type is DataType.FLOAT64:
        infinite = number(node, _INFINITE_BITS["EITHER"], DataType.UINT64)
        return predicate(node, "ELEMENT_WISE_LOGICAL_GREATER_THAN", without_sign(node, x), infinite)
    return is_nan(node, x)


def is_nan(node: Node, x: View) -> View:
    """Of all types but float64."""
    outputs = {"OutputTensor": (DataType.UINT8, x.sizes)}
    return operate(node, "ELEMENT_WISE_IS_NAN", {"InputTensor": x}, outputs=outputs)


@maps("IsInf")
def _is_infinity(node: Node) -> Value:
    """Of float64 by its bits: PyTorch exports torch.isinf as that of x cast to it."""
    x = node.view(0)
    looked_for = (node.attribute("detect_positive"), node.attribute("detect_negative"))
    mode = _INFINITIES.get(looked_for)
    if mode is None:
        return operate(node, "ELEMENT_WISE_IDENTITY", {"InputTensor": number(node, 0, DataType.UINT8, x.sizes)})
    if x.data_type is DataType.FLOAT64:
        bits = without_sign(node, x) if mode == "EITHER" else of_type(x, DataType.UINT64)
        infinite = number(node, _INFINITE_BITS[mode], DataType.UINT64)
        return predicate(node, "ELEMENT_WISE_LOGICAL_EQUALS", bits, infinite)
    outputs = {"OutputTensor": (DataType.UINT8, x.sizes)}
    return operate(node, "ELEMENT_WISE_IS_INFINITY", {"InputTensor": x}, {"InfinityMode": mode}, outputs)


_MOST_FACTORS = 63
"""Of a power of 64-bit integers: beyond it only -1, 0 and 1 have one that is no more than 64 bits."""


@maps("Pow")
def _pow(node: Node) -> Value:
    x, exponent = node.view(0), known_number(node, 1)
    sizes = common_sizes(x.sizes, node.view(1).sizes)
    x = broadcast(x, sizes)
    if exponent is not None and isfinite(exponent) and x.data_type in FLOATS:
        return operate(node, "ELEMENT_WISE_CONSTANT_POW", {"InputTensor": x}, {"Exponent": float(exponent)})
    is_long = x.data_type in (DataType.INT64, DataType.UINT64)
    if is_long and exponent == 0:
        return operate(node, "ELEMENT_WISE_IDENTITY", {"InputTensor": number(node, 1, x.data_type, sizes)})
    if is_long and exponent is not None and exponent in range(1, _MOST_FACTORS + 1):
        return _power(node, x, int(exponent))
    power = broadcast(_exponent(node, node.view(1)), sizes)
    return operate(node, "ELEMENT_WISE_POW", {"InputTensor": x, "ExponentTensor": power})


def _power(node: Node, x: View, exponent: int) -> View:
    """Of integers that POW does not take, by squares: the highest bit of the exponent is x itself."""
    made = x
    for bit in f"{exponent:b}"[1:]:
        made = binary(node, "ELEMENT_WISE_MULTIPLY", made, made)
        made = binary(node, "ELEMENT_WISE_MULTIPLY", made, x) if bit == "1" else made
    return made


def _exponent(node: Node, exponent: View) -> View:
    """One of a type that POW takes: 64-bit integers as 32-bit ones, if they are known and are such, else as floats."""
    given = node.inputs[1]
    if exponent.data_type in (DataType.INT64, DataType.UINT64) and isinstance(given, np.ndarray):
        limits = np.iinfo(np.int32)
        if given.size and limits.min <= int(given.min()) and int(given.max()) <= limits.max:
            return node.build.constant(given.astype(np.int32))
    if exponent.data_type in (DataType.INT64, DataType.UINT64):
        return node.cast(exponent, DataType.FLOAT32)
    return exponent


@maps("Clip")
def _clip(node: Node) -> Value:
    x = node.view(0)
    limits = _limits(x.data_type)
    bounds: list[int | float | View] = []
    for index, (name, absent) in enumerate(zip(("min", "max"), limits, strict=True), 1):
        if node.opset < 11:  # whose defaults are float32's limits, for float16 as well
            bounds.append(min(max(node.attribute(name, absent), limits[0]), limits[1]))
        elif not node.has(index):
            bounds.append(absent)
        else:
            found = known_number(node, index)
            bounds.append(one_element(node, index, name) if found is None else found)
    finite = [bound for bound in bounds if not isinstance(bound, View) and isfinite(bound)]
    if len(finite) == 2 and finite[0] <= finite[1]:
        attributes = {"MinMaxDataType": x.data_type.value, "Min": finite[0], "Max": finite[1]}
        return operate(node, "ELEMENT_WISE_CLIP1", {"InputTensor": x}, attributes)
    # Bounds that are not known, infinite or crossed: what ONNX says that it is, min(max, max(x, min)).
    for operator, bound in zip(("ELEMENT_WISE_MAX", "ELEMENT_WISE_MIN"), bounds, strict=True):
        x = binary(node, operator, x, bound if isinstance(bound, View) else number(node, bound, x.data_type))
    return x


def _limits(data_type: DataType) -> tuple[int | float, int | float]:
    """The lowest and the highest number, which are ONNX's bounds where none are given."""
    type_ = numpy_type(data_type)
    limits: Any = np.finfo(type_) if type_.kind == "f" else np.iinfo(type_)
    low, high = np.array([limits.min, limits.max], type_).tolist()
    return low, high


@maps("Affine")
def _affine(node: Node) -> Value:
    return linear(node, node.view(0), node.attribute("alpha", 1.0), node.attribute("beta", 0.0))


@maps("ImageScaler")
def _image_scaler(node: Node) -> Value:
    x, bias = node.view(0), list(node.attribute("bias", [0.0]))
    if len(x.sizes) != 4 or x.sizes[1] != len(bias) or len(bias) not in (1, 3):
        raise Unsupported(
            f"it has sizes {list(x.sizes)} and {len(bias)} biases, where VALUE_SCALE_2D takes 1 or 3 channels"
        )
    attributes = {"Scale": node.attribute("scale", 1.0), "Bias": bias}
    return operate(node, "VALUE_SCALE_2D", {"InputTensor": x}, attributes)


@maps("BiasAdd", domain="com.microsoft")
def _bias_add(node: Node) -> Value:
    return sum_of(node, views(node, 3))


def sum_of(node: Node, terms: Sequence[View]) -> View:
    """The sum of all, one after the other."""
    total, *rest = terms
    for each in rest:
        total = binary(node, "ELEMENT_WISE_ADD", total, each)
    return total
