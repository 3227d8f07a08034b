"""Linear models, and how models for machine learning give their scores and labels."""

import numpy as np

from app.models.onnx.activations import activation
from app.models.onnx.element_wise import binary
from app.models.onnx.features import ML, rows
from app.models.onnx.indexing import gathered
from app.models.onnx.linear_algebra import matmul
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.operands import operate
from app.models.onnx.reductions import place_along
from app.models.onnx.tensors import Unsupported, View

_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC")
"""By TreeEnsemble's numbers."""


def transformed(node: Node, scores: View) -> View:
    """By the attribute post_transform. Raises Unsupported, also where onnxruntime leaves a score as it is."""
    name = node.attribute("post_transform")
    if isinstance(name, int) and 0 <= name < len(_TRANSFORMS):
        name = _TRANSFORMS[name]
    if name not in _TRANSFORMS:
        raise Unsupported(f"its post_transform is {name}, not {', '.join(_TRANSFORMS)}")
    if name != "NONE" and scores.sizes[1] == 1:
        raise Unsupported(f"its post_transform is {name}, of one score alone, where onnxruntime has none")
    if name == "SOFTMAX":
        return operate(node, "ACTIVATION_SOFTMAX1", {"InputTensor": scores}, {"Axes": [1]})
    return activation(node, "SIGMOID", scores) if name == "LOGISTIC" else scores


def classes(node: Node, name: str) -> int:
    """How many there are: of labels that are integers, which are the attribute `name`, or texts."""
    return len(node.attribute(name) or node.attribute("classlabels_strings") or ())


def labels_of(node: Node, name: str) -> View | None:
    """The labels of classes, or None if nobody asks for them. Raises Unsupported if they are texts."""
    if not node.wanted[0]:
        return None
    given = node.attribute(name)
    if not given:
        raise Unsupported("DirectML has no type for its labels, which are texts")
    return node.build.constant(np.array(given, np.int64))


def label_of(node: Node, scores: View, labels: View) -> View:
    """That of the greatest score of each row, the first of equal ones."""
    places = place_along(node, "ARGMAX", scores, 1)
    return gathered(node, labels, node.reshaped(places, scores.sizes[:1]), 0)


def _products(node: Node, targets: int) -> View:
    """{ rows, targets }"""
    x = rows(node)
    coefficients = np.array(node.attribute("coefficients"), np.float32)
    if targets < 1 or coefficients.size != targets * x.sizes[1]:
        raise Unsupported(f"its coefficients are {coefficients.size}, where {targets} times {x.sizes[1]} are needed")
    made = matmul(node, x, node.build.constant(coefficients.reshape(targets, -1)).transposed((1, 0)))
    bias = np.array(node.attribute("intercepts") or (), np.float32)
    if not bias.size:
        return made
    if bias.size != targets:
        raise Unsupported(f"its intercepts are {bias.size}, not {targets}")
    return binary(node, "ELEMENT_WISE_ADD", made, node.build.constant(bias))


@maps("LinearRegressor", domain=ML)
def _regressor(node: Node) -> Value:
    return transformed(node, _products(node, int(node.attribute("targets"))))


@maps("LinearClassifier", domain=ML)
def _classifier(node: Node) -> list[Value | None]:
    count = classes(node, "classlabels_ints")
    if count < 2 or len(node.attribute("intercepts") or [0.0] * count) != count:
        raise Unsupported(f"it has {count} classes, and not as many intercepts")
    labels, scores = labels_of(node, "classlabels_ints"), _products(node, count)
    return [None if labels is None else label_of(node, scores, labels), transformed(node, scores)]
