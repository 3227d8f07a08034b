"""Support vector machines: kernels of rows and vectors, pairs of classes that these tell apart, and probabilities."""

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np

from app.contract.constants import DataType, ReduceFunction
from app.models.onnx.activations import activation
from app.models.onnx.builder import Array
from app.models.onnx.element_wise import COMPARISONS, binary, chosen, linear, predicate
from app.models.onnx.features import ML, rows
from app.models.onnx.indexing import gathered
from app.models.onnx.linear_algebra import matmul
from app.models.onnx.linear_models import classes, label_of, labels_of, transformed
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.movement import joined, window
from app.models.onnx.operands import number, operate
from app.models.onnx.reductions import reduced
from app.models.onnx.shapes import inserted
from app.models.onnx.tensors import Unsupported, View

_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")

_LEAST_SHARE = 1e-7
"""Of two classes, of which none is certain."""

_MOST_CLASSES = 10
"""With probabilities, which take some operators for each class in each round."""

_ROUNDS = 6
"""For probabilities. So near as they are asked to be they are after four, by trials of up to ten classes."""


def _numbers(node: Node, name: str, count: int) -> Array:
    """The attribute `name`, of so many numbers. Raises Unsupported."""
    given = np.array(node.attribute(name) or (), np.float32)
    if given.size != count:
        raise Unsupported(f"its {name} are {given.size}, where {count} are needed")
    return given


def _kernel(node: Node, x: View, count: int) -> View:
    """Of each row of `x` with each of `count` vectors. Raises Unsupported."""
    kind = node.attribute("kernel_type")
    if kind not in _KERNELS:
        raise Unsupported(f"its kernel_type is {kind}, not {', '.join(_KERNELS)}")
    vectors = node.build.constant(_numbers(node, "support_vectors", count * x.sizes[1]).reshape(count, -1))
    if kind == "LINEAR":
        return matmul(node, x, vectors.transposed((1, 0)))
    gamma, coefficient, degree = _numbers(node, "kernel_params", 3).tolist()
    if kind == "RBF":
        apart = binary(node, "ELEMENT_WISE_SUBTRACT", inserted(x, 1), vectors)
        squares = node.reshaped(reduced(node, apart, ReduceFunction.SUM_SQUARE, [2]), (x.sizes[0], count))
        return operate(node, "ELEMENT_WISE_EXP", {"InputTensor": linear(node, squares, -gamma, 0.0)})
    made = linear(node, matmul(node, x, vectors.transposed((1, 0)), gamma), 1.0, coefficient)
    if kind == "SIGMOID":
        return activation(node, "TANH", made)
    return operate(node, "ELEMENT_WISE_CONSTANT_POW", {"InputTensor": made}, {"Exponent": degree})


def _sums(node: Node, x: View, weights: Array, more: Array) -> View:
    """`x` by `weights`, { columns, sums }, and `more` to each sum."""
    made = matmul(node, x, node.build.constant(weights))
    return binary(node, "ELEMENT_WISE_ADD", made, node.build.constant(more))


@maps("SVMRegressor", domain=ML)
def _regressor(node: Node) -> Value:
    x, count = rows(node), int(node.attribute("n_supports"))
    made = _kernel(node, x, count) if count else x
    weights = _numbers(node, "coefficients", made.sizes[1]).reshape(-1, 1)
    made = transformed(node, _sums(node, made, weights, _numbers(node, "rho", 1)))
    if not node.attribute("one_class"):
        return made
    inside = predicate(node, COMPARISONS["Greater"], made, number(node, 0, made.data_type))
    return linear(node, node.cast(inside, made.data_type), 2.0, -1.0)


@maps("SVMClassifier", domain=ML)
def _classifier(node: Node) -> list[Value | None]:
    count = classes(node, "classlabels_ints")
    if count < 2:
        raise Unsupported(f"it has {count} classes, where two or more are needed")
    x, labels = rows(node), labels_of(node, "classlabels_ints")
    vectors = node.attribute("vectors_per_class")
    if not vectors:
        weights = _numbers(node, "coefficients", count * x.sizes[1]).reshape(count, -1).transpose()
        scores = _sums(node, x, weights, np.array((node.attribute("rho") or (0.0,))[0], np.float32))
        return [None if labels is None else label_of(node, scores, labels), transformed(node, scores)]
    if len(vectors) != count or min(vectors) < 0:
        raise Unsupported(f"its vectors_per_class are {[*vectors]}, of {count} classes")
    pairs = _Pairs(node, [*combinations(range(count), 2)], count)
    scores = pairs.scores(x, vectors)
    found = None if labels is None else label_of(node, pairs.votes(scores), labels)
    if node.attribute("prob_a"):
        return [found, transformed(node, pairs.probabilities(scores))]
    scores = transformed(node, scores)
    if count == 2:  # as onnxruntime has it: a column for each
        scores = joined(node.build, [linear(node, scores, -1.0, 0.0), scores], 1)
    return [found, scores]


class _Terms(NamedTuple):
    """What each class's share is made of: `all` as { rows, classes, classes }, and by class as columns."""

    all: View
    lines: Sequence[View]
    own: Sequence[View]


class _Pairs(NamedTuple):
    """Classes that are told apart by twos, each of `places`."""

    node: Node
    places: list[tuple[int, int]]
    class_count: int

    def scores(self, x: View, vectors: Sequence[int]) -> View:
        """{ rows, pairs }, which are positive for the first one of a pair. Of each class there are so many vectors,
        with a coefficient for each other class."""
        node, total = self.node, sum(vectors)
        given = _numbers(node, "coefficients", (self.class_count - 1) * total).reshape(self.class_count - 1, total)
        ends = np.cumsum([0, *vectors])
        weights = np.zeros((total, len(self.places)), np.float32)
        for pair, (first, second) in enumerate(self.places):
            for one, other in ((first, second - 1), (second, first)):
                part = slice(ends[one], ends[one + 1])
                weights[part, pair] = given[other, part]
        return _sums(node, _kernel(node, x, total), weights, _numbers(node, "rho", len(self.places)))

    def votes(self, scores: View) -> View:
        """How many pairs each class wins: { rows, classes }."""
        wins = predicate(self.node, COMPARISONS["Greater"], scores, number(self.node, 0, scores.data_type))
        first, second = (
            np.eye(self.class_count, dtype=np.float32)[list(each)] for each in zip(*self.places, strict=True)
        )
        return _sums(self.node, self.node.cast(wins, scores.data_type), first - second, second.sum(0))

    def probabilities(self, scores: View) -> View:
        """{ rows, classes }, in rounds that end for each row when it is near enough.

        Source: Wu, Lin and Weng, "Probability estimates for multi-class classification by pairwise coupling", its
        second method, as LIBSVM and onnxruntime compute it.
        """
        node, count = self.node, self.class_count
        if count > _MOST_CLASSES:
            raise Unsupported(f"it has {count} classes with probabilities, where {_MOST_CLASSES} are taken")
        terms = self._terms(scores)
        made = number(node, 1 / count, DataType.FLOAT32, (scores.sizes[0], count))
        for _ in range(_ROUNDS):
            made = self._nearer(terms, made)
        return made

    def _terms(self, scores: View) -> _Terms:
        node, count = self.node, self.class_count
        times, plus = (partial(binary, node, f"ELEMENT_WISE_{each}") for each in ("MULTIPLY", "ADD"))
        slopes, more = (node.build.constant(_numbers(node, f"prob_{name}", len(self.places))) for name in "ab")
        share = activation(node, "SIGMOID", linear(node, plus(times(scores, slopes), more), -1.0, 0.0))
        limits = {"MinMaxDataType": "FLOAT32", "Min": _LEAST_SHARE, "Max": 1 - _LEAST_SHARE}
        share = operate(node, "ELEMENT_WISE_CLIP1", {"InputTensor": share}, limits)
        both = joined(node.build, [share, linear(node, share, -1.0, 1.0)], 1)
        where = np.zeros((count, count), np.int32)
        for pair, (first, second) in enumerate(self.places):
            where[first, second], where[second, first] = pair, pair + len(self.places)
        mine = gathered(node, both, node.build.constant(where), 1)  # of each class beside each other one
        theirs = mine.transposed((0, 2, 1))
        same = np.eye(count, dtype=np.float32)
        others = node.build.constant(same - 1)
        own = reduced(node, times(theirs, others), ReduceFunction.SUM_SQUARE, [2])
        whole = plus(times(times(mine, theirs), others), times(own, node.build.constant(same)))
        lines = [node.reshaped(self._part(whole, k), (scores.sizes[0], count)) for k in range(count)]
        return _Terms(whole, lines, [node.reshaped(self._part(own, k), (scores.sizes[0], 1)) for k in range(count)])

    def _part(self, x: View, place: int) -> View:
        """Of the second dimension."""
        first, _, *rest = map(range, x.sizes)
        made = window(self.node, x, [first, range(place, place + 1), *rest])
        assert isinstance(made, View), "there is such a place"
        return made

    def _nearer(self, terms: _Terms, given: View) -> View:
        """One round: each class's share moved after the other. What is near enough already is left as it is."""
        node, sizes = self.node, given.sizes
        times, plus, minus, over = (
            partial(binary, node, f"ELEMENT_WISE_{each}") for each in ("MULTIPLY", "ADD", "SUBTRACT", "DIVIDE")
        )
        slopes = node.reshaped(reduced(node, times(terms.all, inserted(given, 1)), ReduceFunction.SUM, [2]), sizes)
        level = reduced(node, times(given, slopes), ReduceFunction.SUM, [1])
        off = operate(node, "ELEMENT_WISE_ABS", {"InputTensor": minus(slopes, level)})
        far = reduced(node, off, ReduceFunction.MAX, [1])
        goes_on = predicate(
            node, COMPARISONS["GreaterOrEqual"], far, number(node, 0.005 / self.class_count, DataType.FLOAT32)
        )
        made = given
        for k, (line, own) in enumerate(zip(terms.lines, terms.own, strict=True)):
            slope = self._part(slopes, k)
            step = over(minus(level, slope), own)
            whole = linear(node, step, 1.0, 1.0)
            more = times(step, plus(times(step, own), linear(node, slope, 2.0, 0.0)))
            level = over(over(plus(level, more), whole), whole)
            slopes = over(plus(slopes, times(step, line)), whole)
            one = np.eye(self.class_count, dtype=np.float32)[k]
            made = over(plus(made, times(step, node.build.constant(one))), whole)
        return chosen(node, goes_on.broadcast(sizes), made, given)
