"""Rows of numbers made ready for models: scaled, completed, chosen. Of ONNX's domain for machine learning."""

import numpy as np

from app.contract.constants import DataType, ReduceFunction
from app.models.onnx.element_wise import binary, chosen, is_nan, predicate
from app.models.onnx.indexing import gathered, indices_of
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.movement import joined
from app.models.onnx.operands import number
from app.models.onnx.reductions import place_along, reduced
from app.models.onnx.shapes import inserted
from app.models.onnx.tensors import Sizes, Unsupported, View

ML = "ai.onnx.ml"
"""The domain."""


def rows(node: Node, index: int = 0) -> View:
    """Input `index`, { rows, columns }, as `_numbers`."""
    x = _numbers(node, index)
    if len(x.sizes) != 2:
        raise Unsupported(f"its input has {len(x.sizes)} dimensions, not 2")
    return x


def _numbers(node: Node, index: int) -> View:
    """Input `index` in float32, which ONNX has models compute in. Raises Unsupported."""
    x = node.view(index)
    if x.data_type is DataType.FLOAT64:
        raise Unsupported("DirectML does not compute it in FLOAT64")
    return node.cast(x, DataType.FLOAT32)


def _by_column(node: Node, name: str, x: View, dtype: str = "float32") -> View:
    """The attribute `name`, which has one number, or one for each column."""
    given = np.array(node.attribute(name) or (), dtype)
    if given.size not in (1, x.sizes[-1]):
        raise Unsupported(f"its {name} has {given.size} numbers, where its input has {x.sizes[-1]} columns")
    return node.build.constant(given)


@maps("Scaler", domain=ML)
def _scaler(node: Node) -> Value:
    x = rows(node)
    made = binary(node, "ELEMENT_WISE_SUBTRACT", x, _by_column(node, "offset", x))
    return binary(node, "ELEMENT_WISE_MULTIPLY", made, _by_column(node, "scale", x))


@maps("Normalizer", domain=ML)
def _normalizer(node: Node) -> Value:
    functions = {"MAX": ReduceFunction.MAX, "L1": ReduceFunction.L1, "L2": ReduceFunction.L2}
    x, norm = rows(node), node.attribute("norm")
    if norm not in functions:
        raise Unsupported(f"its norm is {norm}, not {', '.join(functions)}")
    by = reduced(node, x, functions[norm], [1])
    none = predicate(node, "ELEMENT_WISE_LOGICAL_EQUALS", by, number(node, 0, by.data_type, by.sizes))
    by = chosen(node, none, number(node, 1, by.data_type, by.sizes), by)
    return binary(node, "ELEMENT_WISE_DIVIDE", x, by)


@maps("Imputer", domain=ML)
def _imputer(node: Node) -> Value:
    x = node.view(0)
    suffix, dtype = ("int64s", "int64") if x.data_type is DataType.INT64 else ("floats", "float32")
    if x.data_type not in (DataType.INT64, DataType.FLOAT32):
        raise Unsupported(f"its input is {x.data_type}, not FLOAT32 or INT64")
    value = node.attribute(f"replaced_value_{suffix.removesuffix('s')}")
    if np.isnan(value):
        missing = is_nan(node, x)
    else:
        missing = predicate(node, "ELEMENT_WISE_LOGICAL_EQUALS", x, number(node, value, x.data_type, x.sizes))
    return chosen(node, missing, _by_column(node, f"imputed_value_{suffix}", x, dtype).broadcast(x.sizes), x)


@maps("Binarizer", domain=ML)
def _binarizer(node: Node) -> Value:
    x = _numbers(node, 0)
    threshold = number(node, node.attribute("threshold"), x.data_type, x.sizes)
    return node.cast(predicate(node, "ELEMENT_WISE_LOGICAL_GREATER_THAN", x, threshold), x.data_type)


@maps("ArrayFeatureExtractor", domain=ML)
def _extractor(node: Node) -> Value:
    """What indices along the last dimension lead to; of one dimension it makes a row."""
    x, indices = node.view(0), indices_of(node, 1)
    if not x.sizes:
        raise Unsupported("its input has no dimensions")
    made = gathered(node, x, node.reshaped(indices, (indices.elements,)), len(x.sizes) - 1)
    sizes: Sizes = (1, *made.sizes) if len(made.sizes) == 1 else made.sizes
    return node.reshaped(made, sizes)


_DEFAULTS = {"int64": -1, "float": -0.0}
"""Of LabelEncoder, by the words that its attributes have for types."""


@maps("LabelEncoder", domain=ML)
def _label_encoder(node: Node) -> Value:
    """The value of the first key that an element is equal to. Behind all keys is one that every element is equal to."""
    given = [
        [kind for kind in _DEFAULTS if node.attribute(f"{name}_{kind}s") is not None] for name in ("keys", "values")
    ]
    if not all(given):
        raise Unsupported("its keys and values are not integers or floats, as keys_int64s, keys_floats and such")
    (kind, *_), (other, *_) = given
    keys, values = (
        np.array(node.attribute(f"{name}_{each}s"), "int64" if each == "int64" else "float32")
        for name, each in (("keys", kind), ("values", other))
    )
    x = node.view(0)
    if keys.shape != values.shape or np.isnan(keys).any():
        raise Unsupported(f"it has {keys.size} keys and {values.size} values, or a key that is NaN")
    last = len(x.sizes)
    wide = inserted(x, last).broadcast((*x.sizes, keys.size))
    equal = predicate(node, "ELEMENT_WISE_LOGICAL_EQUALS", wide, node.build.constant(keys))
    found = joined(node.build, [equal, number(node, 1, equal.data_type, (*x.sizes, 1))], last)
    places = place_along(node, "ARGMAX", found, last)
    default = np.array(node.attribute(f"default_{other}", _DEFAULTS[other]), values.dtype)
    return gathered(node, node.build.constant(np.append(values, default)), node.reshaped(places, x.sizes), 0)


@maps("OneHotEncoder", domain=ML)
def _one_hot(node: Node) -> Value:
    """What is none of the categories is all zeros, also where `zeros` is 0, and onnxruntime ends with an error."""
    given = node.attribute("cats_int64s")
    if not given:
        raise Unsupported("its categories are not integers, as cats_int64s")
    x = node.view(0)
    x = inserted(node.cast(x, DataType.INT64), len(x.sizes)).broadcast((*x.sizes, len(given)))
    made = predicate(node, "ELEMENT_WISE_LOGICAL_EQUALS", x, node.build.constant(np.array(given, np.int64)))
    return node.cast(made, DataType.FLOAT32)


@maps("FeatureVectorizer", domain=ML)
def _vectorizer(node: Node) -> Value:
    parts = [rows(node, index) for index in range(len(node.inputs))]
    widths = node.attribute("inputdimensions") or [each.sizes[1] for each in parts]
    if not parts or [*widths] != [each.sizes[1] for each in parts] or len({each.sizes[0] for each in parts}) > 1:
        raise Unsupported(f"its inputdimensions are {[*widths]}, of inputs of {[each.sizes for each in parts]}")
    return joined(node.build, parts, 1)
