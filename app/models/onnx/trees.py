"""Ensembles of decision trees: each step takes all rows one node further down in all trees."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from app.contract.constants import DataType, ReduceFunction
from app.models.onnx.builder import Array
from app.models.onnx.element_wise import COMPARISONS, binary, chosen, is_nan, linear, predicate
from app.models.onnx.features import ML, rows
from app.models.onnx.indexing import elements_at, gathered
from app.models.onnx.linear_models import classes, label_of, labels_of, transformed
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.movement import joined
from app.models.onnx.operands import number, operate
from app.models.onnx.reductions import reduced
from app.models.onnx.tensors import Unsupported, View

_DEEPEST = 256
"""Steps from a root to a leaf, each of which is some operators."""

_MODES = {
    "BRANCH_LEQ": COMPARISONS["LessOrEqual"],
    "BRANCH_LT": COMPARISONS["Less"],
    "BRANCH_GTE": COMPARISONS["GreaterOrEqual"],
    "BRANCH_GT": COMPARISONS["Greater"],
    "BRANCH_EQ": COMPARISONS["Equal"],
    "BRANCH_NEQ": "",
}
"""What a branch asks of an element and its own number. DirectML has no operator for inequality."""

_NUMBERED = tuple(_MODES)
"""Since version 5 they are numbers."""


class _Trees(NamedTuple):
    """Nodes of all trees by place, leaves among them, which lead to themselves."""

    roots: Array
    features: Array
    values: Array
    modes: Sequence[str]
    yes: Array
    no: Array
    missing: Array
    """Whether what is NaN goes where what is true goes."""
    weights: Array
    """{ nodes, targets }"""


def _read(node: Node, leaf: str, targets: int) -> _Trees:
    """Of the attributes until version 5, of which those of leaves begin with `leaf`. Raises Unsupported."""
    for name in ("nodes_values", f"{leaf}_weights", "base_values"):
        if node.attribute(f"{name}_as_tensor") is not None:
            raise Unsupported(f"DirectML does not compute it in FLOAT64, which its {name}_as_tensor is")
    trees = node.attribute("nodes_treeids")
    keys = list(zip(trees, node.attribute("nodes_nodeids"), strict=True))
    places = {key: place for place, key in enumerate(keys)}
    modes = node.attribute("nodes_modes")
    features, values, missing = (
        np.array(node.attribute(f"nodes_{name}") or [0] * len(keys), dtype)
        for name, dtype in (("featureids", np.int64), ("values", np.float32), ("missing_value_tracks_true", bool))
    )
    ends = [mode == "LEAF" for mode in modes]
    yes, no = (
        np.array(
            [
                place if end else places[tree, child]
                for place, (end, tree, child) in enumerate(zip(ends, trees, node.attribute(name), strict=True))
            ],
            np.int64,
        )
        for name in ("nodes_truenodeids", "nodes_falsenodeids")
    )
    inner = np.array([place for place, end in enumerate(ends) if not end], np.int64)
    roots = np.setdiff1d(np.arange(len(keys)), np.concatenate([yes[inner], no[inner]]))
    weights = np.zeros((len(keys), targets), np.float32)
    given = (node.attribute(f"{leaf}_{name}") for name in ("treeids", "nodeids", "ids", "weights"))
    for tree, number_, target, weight in zip(*given, strict=True):
        weights[places[tree, number_], target] += np.float32(weight)
    return _Trees(roots, features, values, modes, yes, no, missing, weights)


def _read_tensors(node: Node, targets: int) -> _Trees:
    """The same of version 5's, which has leaves apart."""
    values, modes = (node.attribute(f"nodes_{name}") for name in ("splits", "modes"))
    inner = len(modes)
    given = node.attribute("leaf_weights")
    for each in (values, given):
        if each.dtype != np.float32:
            raise Unsupported(f"DirectML does not compute it in {each.dtype.name.upper()}")
    if modes.max(initial=0) >= len(_NUMBERED):
        raise Unsupported("it asks whether an element is a member of a set")
    leaves = np.arange(inner, inner + len(given))

    def followed(name: str) -> Array:
        children = np.array(node.attribute(f"nodes_{name}nodeids"), np.int64)
        ends = np.array(node.attribute(f"nodes_{name}leafs"), bool)
        return np.concatenate([np.where(ends, children + inner, children), leaves])

    weights = np.zeros((inner + len(given), targets), np.float32)
    weights[leaves, np.array(node.attribute("leaf_targetids"), np.int64)] = given
    rest = np.zeros(len(given), np.int64)
    missing = node.attribute("nodes_missing_value_tracks_true") or [0] * inner
    return _Trees(
        np.array(node.attribute("tree_roots"), np.int64),
        np.concatenate([np.array(node.attribute("nodes_featureids"), np.int64), rest]),
        np.concatenate([values, rest.astype(np.float32)]),
        [*(_NUMBERED[mode] for mode in modes), *["LEAF"] * len(given)],
        followed("true"),
        followed("false"),
        np.concatenate([np.array(missing, bool), rest.astype(bool)]),
        weights,
    )


class _Ensemble:
    """Trees, and rows that go down in them."""

    def __init__(self, node: Node, trees: _Trees) -> None:
        self._node = node
        self._trees = trees
        self._x = rows(node)
        modes = np.array(trees.modes)
        self._is_leaf = modes == "LEAF"
        asked = [str(mode) for mode in np.unique(modes[~self._is_leaf])]
        unknown = [mode for mode in asked if mode not in _MODES]
        if unknown:
            raise Unsupported(f"its modes are {', '.join(unknown)}, not {', '.join(_MODES)}")
        if trees.features.max(initial=0) >= self._x.sizes[1] or trees.features.min(initial=0) < 0:
            raise Unsupported(f"it reads column {trees.features.max()} of {self._x.sizes[1]}")
        constant = node.build.constant  # once, not for each step
        self._features = constant(trees.features.astype(np.int32))
        self._values = constant(trees.values)
        self._yes, self._no = (constant(each.astype(np.int32)) for each in (trees.yes, trees.no))
        self._missing = constant(trees.missing) if trees.missing.any() else None
        self._asked = {mode: constant(modes == mode) for mode in asked}

    def scores(self) -> View:
        """What the leaves that the rows come to have for each target: { rows, trees, targets }."""
        trees, node = self._trees, self._node
        roots = node.build.constant(trees.roots.astype(np.int32)[None])
        places = roots.broadcast((self._x.sizes[0], len(trees.roots)))
        reached = trees.roots
        for _ in range(_DEEPEST):
            if self._is_leaf[reached].all():
                return gathered(node, node.build.constant(trees.weights), places, 0)
            reached = np.unique(np.concatenate([trees.yes[reached], trees.no[reached]]))
            yes, no = (gathered(node, each, places, 0) for each in (self._yes, self._no))
            places = chosen(node, self._is_true(places), yes, no)
        raise Unsupported(f"its trees are deeper than {_DEEPEST}, or lead in a cycle")

    def _is_true(self, places: View) -> View:
        """Of the node that each row is at in each tree."""
        node = self._node
        x = elements_at(node, self._x, gathered(node, self._features, places, 0), 1)
        values = gathered(node, self._values, places, 0)
        (first, _), *others = self._asked.items()
        made = self._compared(first, x, values)
        for mode, where in others:
            made = chosen(node, gathered(node, where, places, 0), self._compared(mode, x, values), made)
        if self._missing is not None:
            tracked = gathered(node, self._missing, places, 0)
            both = binary(node, "ELEMENT_WISE_LOGICAL_AND", is_nan(node, x), tracked)
            made = binary(node, "ELEMENT_WISE_LOGICAL_OR", made, both)
        return made

    def _compared(self, mode: str, x: View, values: View) -> View:
        if _MODES[mode]:
            return predicate(self._node, _MODES[mode], x, values)
        equal = predicate(self._node, COMPARISONS["Equal"], x, values)
        return operate(self._node, "ELEMENT_WISE_LOGICAL_NOT", {"InputTensor": equal})


def _together(node: Node, trees: _Trees, base: Sequence[float]) -> View:
    """{ rows, targets }, of all trees."""
    apart = _Ensemble(node, trees).scores()
    function = node.attribute("aggregate_function", "SUM")
    function = ("AVERAGE", "SUM", "MIN", "MAX")[function] if isinstance(function, int) else function
    count = trees.weights.shape[1]
    if function not in ("SUM", "AVERAGE") and not (function in ("MIN", "MAX") and count == 1):
        raise Unsupported(f"its aggregate_function is {function}, of {count} targets")
    made = node.reshaped(reduced(node, apart, ReduceFunction(function), [1]), (apart.sizes[0], count))
    if not len(base):
        return made
    if len(base) not in (1, count):
        raise Unsupported(f"its base_values are {len(base)}, not {count}")
    return binary(node, "ELEMENT_WISE_ADD", made, node.build.constant(np.array(base, np.float32)))


@maps("TreeEnsembleRegressor", domain=ML)
def _regressor(node: Node) -> Value:
    trees = _read(node, "target", int(node.attribute("n_targets")))
    return transformed(node, _together(node, trees, node.attribute("base_values") or ()))


@maps("TreeEnsemble", domain=ML)
def _ensemble(node: Node) -> Value:
    return transformed(node, _together(node, _read_tensors(node, int(node.attribute("n_targets"))), ()))


@maps("TreeEnsembleClassifier", domain=ML)
def _classifier(node: Node) -> list[Value | None]:
    count = classes(node, "classlabels_int64s")
    labels = labels_of(node, "classlabels_int64s")
    base: Any = node.attribute("base_values") or ()
    if count == 2 and set(node.attribute("class_ids")) == {0}:  # one score tells both, which is the second's
        trees = _read(node, "class", 1)
        return _one_of_two(node, _together(node, trees, base[-1:]), labels, min(node.attribute("class_weights")) >= 0)
    scores = _together(node, _read(node, "class", count), base)
    return [None if labels is None else label_of(node, scores, labels), transformed(node, scores)]


def _one_of_two(node: Node, score: View, labels: View | None, is_share: bool) -> list[Value | None]:
    """Of the second class's score. Where no weight is negative, it is a share of 1, and that of the first is the rest;
    else one is the other's negative."""
    if is_share:
        both = joined(node.build, [linear(node, score, -1.0, 1.0), score], 1)
    else:
        both = joined(node.build, [linear(node, score, -1.0, 0.0), score], 1)
        both = transformed(node, both)
    if labels is None:
        return [None, both]
    half = number(node, 0.5 if is_share else 0.0, score.data_type, score.sizes)
    second = node.cast(predicate(node, COMPARISONS["Greater"], score, half), DataType.INT32)
    return [gathered(node, labels, node.reshaped(second, score.sizes[:1]), 0), both]
