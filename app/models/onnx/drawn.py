"""Operators that draw numbers. Graphs keep nothing from one dispatch to the next, which such numbers would follow from,
and the same numbers again and again are none that are drawn: so they come with the request."""

from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.tensors import Unsupported


@maps("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def _drawn(node: Node) -> Value:
    raise Unsupported(
        "DirectML's graphs draw no numbers of their own: make its output an input of the model, or a constant"
    )
