"""Small ONNX models."""

from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper, parser

Array = np.ndarray[Any, Any]

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def model(text: str, **initializers: Array) -> ModelProto:
    """A model of opset 17, its graph in the text form of the `onnx` package; initializers need not be in it."""
    made = parser.parse_model(f"{HEADER} {text}")
    made.graph.initializer.extend(numpy_helper.from_array(each, name) for name, each in initializers.items())
    return made


def put(file: Path, made: ModelProto) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(made.SerializeToString())


def affine(weight: float = 2.0) -> ModelProto:
    """y = relu(x * weight + bias), for any batch of rows of three."""
    return model(
        "m (float[batch,3] x) => (float[batch,3] y, bool[batch,3] positive, int64[2] sizes)"
        "{ s = Mul(x, w) t = Add(s, b) y = Relu(t) positive = Greater(t, zero) sizes = Shape(x) }",
        w=np.full(3, weight, np.float32),
        b=np.array([1, 2, 3], np.float32),
        zero=np.zeros((), np.float32),
    )


def affine_of(x: Array, weight: float = 2.0) -> Array:
    made: Array = np.maximum(x * np.float32(weight) + np.array([1, 2, 3], np.float32), 0)
    return made


def unsupported() -> ModelProto:
    """A determinant and the non-zero places of an input have no DirectML operator."""
    return model("m (float[2,2] x) => (float d, int64[2,n] places) { d = Det(x) places = NonZero(x) }")


def undecided() -> ModelProto:
    """How many turns there are only a request says."""
    made = model(
        "m (float[2] x, int64 n) => (float[2] y)"
        '{ y = Loop(n, "", x) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] b)'
        "{ d = Identity(c) b = Neg(a) }> }"
    )
    made.graph.node[0].name = "repeat"
    return made


def of_microsoft() -> ModelProto:
    """An operator of onnxruntime's own that DirectML has not."""
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
        "m (float[2,3] x) => (float[2,2] y) { y = com.microsoft.CDist(x, x) }"
    )
    made.graph.node[0].name = "distances"
    return made


def with_external_data(folder: Path, location: str) -> ModelProto:
    """Adds what is in a file at `location`, which is made in `folder`."""
    made = model("m (float[3] x) => (float[3] y) { y = Add(x, w) }")
    tensor = helper.make_tensor("w", 1, [3], np.zeros(3, np.float32).tobytes(), raw=True)
    tensor.ClearField("raw_data")
    tensor.data_location = tensor.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    made.graph.initializer.append(tensor)
    return made
