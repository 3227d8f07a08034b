"""Operators of ONNX's domain for machine learning, beside onnxruntime."""

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from app.models.onnx.errors import NotSupported
from app.models.onnx.importer import import_model
from tests.models.onnx_nodes import RANDOM, OneNode, floats, integers
from tests.models.onnx_runs import Array

ML = "ai.onnx.ml"
X = floats(7, 4)
GAPS = np.where(RANDOM.random((7, 4)) > 0.3, X, np.float32(np.nan)).astype(np.float32)
SPARSE = np.array([[0, 0, 0], [3, -4, 0], [-1, -2, -3]], np.float32)
DOUBLE = numpy_helper.from_array(np.zeros(1))
WEIGHTS = [0.5, -1.0, 2.0, 0.25, 1.5, -0.75, 0.1, 3.0, -2.0, 1.0, 0.0, 0.3]


def node(operator: str, *inputs: Array, outputs: int = 1, version: int = 3, **attributes: Any) -> OneNode:
    return OneNode(operator, inputs, outputs=outputs, domain=ML, version=version, **attributes)


def classifier(**attributes: Any) -> OneNode:
    given: dict[str, Any] = {
        "coefficients": WEIGHTS,
        "intercepts": [0.1, -0.2, 0.3],
        "classlabels_ints": [7, 3, 9],
    } | attributes
    return node("LinearClassifier", X, outputs=2, **{name: each for name, each in given.items() if each is not None})


def grown(trees: int, modes: list[str], depth: int = 3) -> tuple[dict[str, list[Any]], list[tuple[int, int]]]:
    """Attributes of nodes of trees whose left branches are the deeper ones, and which are leaves; numbers of nodes have
    gaps, and equal X where nodes are compared by equality."""
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    leaves = []

    def add(tree: int, number: int, left: int) -> None:
        mode = "LEAF" if not left or (number % 3 == 2 and left < depth) else modes[len(columns["modes"]) % len(modes)]
        feature = int(RANDOM.integers(X.shape[1]))
        value = float(RANDOM.choice(X[:, feature]))
        ends = [0, 0] if mode == "LEAF" else [2 * number + 1, 2 * number + 2]
        for name, each in zip(names, (tree, number, feature, value, mode, *ends), strict=True):
            columns[name].append(each)
        if mode == "LEAF":
            leaves.append((tree, number))
        else:
            add(tree, ends[0], left - 1)
            add(tree, ends[1], left - 1)

    for tree in range(trees):
        add(10 + tree, 0, depth)
    return {f"nodes_{name}": each for name, each in columns.items()}, leaves


def regressor(modes: list[str], x: Array = X, targets: int = 1, **attributes: Any) -> OneNode:
    nodes, leaves = grown(4, modes)
    given = [(*leaf, target) for leaf in leaves for target in range(targets)]
    ids: dict[str, list[Any]] = {
        "target_treeids": [each[0] for each in given],
        "target_nodeids": [each[1] for each in given],
        "target_ids": [each[2] for each in given],
        "target_weights": [*map(float, RANDOM.normal(size=len(given)))],
    }
    return node("TreeEnsembleRegressor", x, **({"n_targets": targets} | nodes | ids | attributes))


def trees(classes: list[int], labels: list[int], weights: tuple[float, float] = (0, 1), **attributes: Any) -> OneNode:
    """A classifier, of whose `classes` each leaf has a weight within `weights`."""
    nodes, leaves = grown(3, ["BRANCH_LEQ"])
    given = [(*leaf, each) for leaf in leaves for each in classes]
    ids: dict[str, list[Any]] = {
        "class_treeids": [each[0] for each in given],
        "class_nodeids": [each[1] for each in given],
        "class_ids": [each[2] for each in given],
        "class_weights": [*map(float, RANDOM.uniform(*weights, len(given)) / 3)],
    }
    stated = nodes | ids | {"classlabels_int64s": labels} | attributes
    return node("TreeEnsembleClassifier", X, outputs=2, **stated)


def vectors(operator: str, kernel: str = "RBF", classes: int = 3, x: Array = X, **attributes: Any) -> OneNode:
    """A machine of two support vectors for each class, or of a regressor's four."""
    is_classifier = operator == "SVMClassifier"
    count, pairs = (2 * classes, classes * (classes - 1) // 2) if is_classifier else (4, 1)
    given: dict[str, Any] = {
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.5, 3.0],
        "support_vectors": [*map(float, RANDOM.normal(size=count * 4))],
        "coefficients": [*map(float, RANDOM.normal(size=count * (classes - 1 if is_classifier else 1)))],
        "rho": [*map(float, RANDOM.normal(size=pairs))],
    }
    if is_classifier:
        given |= {"vectors_per_class": [2] * classes, "classlabels_ints": [*range(7, 7 + classes)]}
    else:
        given["n_supports"] = count
    stated = {name: each for name, each in (given | attributes).items() if each is not None}
    return node(operator, x, outputs=2 if is_classifier else 1, version=1, **stated)


def shares(classes: int, slope: float = -2.0) -> dict[str, Any]:
    pairs = classes * (classes - 1) // 2
    return {"prob_a": [slope] * pairs, "prob_b": [*map(float, RANDOM.normal(size=pairs))]}


KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
ALONE: dict[str, Any] = {"vectors_per_class": None, "support_vectors": None}

LEQ = ["BRANCH_LEQ"]
ALL = ["BRANCH_LT", "BRANCH_LEQ", "BRANCH_GT", "BRANCH_GTE", "BRANCH_EQ", "BRANCH_NEQ"]


@pytest.mark.parametrize(
    "given",
    [
        node("Scaler", X, offset=[0.5], scale=[2.0]),
        node("Scaler", np.arange(8).reshape(2, 4), offset=[0.5, 1.0, -1.0, 0.0], scale=[2.0, 0.5, 0.25, 1.0]),
        *(node("Normalizer", SPARSE, norm=norm) for norm in ("L1", "L2")),
        node("Normalizer", np.abs(SPARSE), norm="MAX"),
        node("Imputer", GAPS, imputed_value_floats=[1.0, 2.0, 3.0, 4.0], replaced_value_float=float("nan")),
        node("Imputer", SPARSE, imputed_value_floats=[9.0], replaced_value_float=0.0),
        node("Imputer", integers(1, 2, 1).reshape(1, 3), imputed_value_int64s=[4, 5, 6], replaced_value_int64=1),
        node("Binarizer", X, threshold=0.25),
        node("ArrayFeatureExtractor", X, integers(3, 0, 0)),
        node("ArrayFeatureExtractor", X[0], integers(2, 1)),
        node("FeatureVectorizer", X, X[:, :2], inputdimensions=[4, 2]),
        node("OneHotEncoder", integers(4, 9, 5), cats_int64s=[5, 4]),
        node("OneHotEncoder", np.array([[2.0], [3.0]], np.float32), cats_int64s=[5, 3, 2]),
        node("LabelEncoder", SPARSE, keys_floats=[3.0, 0.0], values_floats=[0.5, 7.0], default_float=9.0),
        node("LabelEncoder", integers(4, 9, 5), keys_int64s=[5, 4], values_int64s=[40, 50]),
        node("LabelEncoder", integers(4, 9).reshape(1, 2), keys_int64s=[4], values_floats=[0.25]),
        node("LinearRegressor", X, coefficients=WEIGHTS[:4]),
        node("LinearRegressor", X, coefficients=WEIGHTS[:8], intercepts=[0.5, -1.0], targets=2),
        *(classifier(post_transform=each) for each in ("NONE", "LOGISTIC", "SOFTMAX")),
        classifier(coefficients=WEIGHTS[:8], intercepts=[0.5, -1.0], classlabels_ints=[0, 1]),
        *(regressor([mode]) for mode in ALL),
        regressor(ALL),
        *(regressor(LEQ, aggregate_function=each) for each in ("AVERAGE", "MIN", "MAX")),
        regressor(LEQ, targets=3, base_values=[1.0, -1.0, 0.5]),
        regressor(LEQ, targets=2, post_transform="LOGISTIC"),
        regressor(LEQ, base_values=[0.5]),
        regressor(LEQ, GAPS),
        regressor(LEQ, GAPS, nodes_missing_value_tracks_true=[1, 0] * 100),
        trees([0, 1, 2], [5, 3, 8]),
        trees([0, 1, 2], [5, 3, 8], (-1, 1), post_transform="SOFTMAX", base_values=[0.1, 0.2, 0.3]),
        trees([0], [4, 2]),
        trees([0], [4, 2], (-1, 1)),
        trees([0], [4, 2], (-1, 1), post_transform="LOGISTIC", base_values=[0.25]),
        *(vectors("SVMRegressor", each) for each in KERNELS),
        vectors("SVMRegressor", one_class=1),
        vectors("SVMRegressor", n_supports=0, support_vectors=None),
        *(vectors("SVMClassifier", each) for each in KERNELS),
        vectors("SVMClassifier", classes=2),
        vectors("SVMClassifier", post_transform="SOFTMAX"),
        vectors("SVMClassifier", coefficients=WEIGHTS, rho=[0.25], **ALONE),
        *(vectors("SVMClassifier", classes=each, **shares(each)) for each in (2, 3, 6)),
        vectors("SVMClassifier", classes=3, **shares(3, -60.0)),
    ],
    ids=repr,
)
def test_results_are_those_of_onnxruntime(given: OneNode) -> None:
    given.compare()


SPLITS = np.array([0.5, -0.5, 0.1], np.float32)
FIFTH: dict[str, Any] = {
    "nodes_splits": SPLITS,
    "nodes_modes": np.array([0, 3, 1], np.uint8),
    "nodes_featureids": [0, 1, 2],
    "nodes_truenodeids": [1, 0, 3],
    "nodes_trueleafs": [0, 1, 1],
    "nodes_falsenodeids": [2, 1, 2],
    "nodes_falseleafs": [0, 1, 1],
    "leaf_targetids": [0, 1, 0, 1],
    "leaf_weights": np.array([1, 2, 4, 8], np.float32),
    "tree_roots": [0],
    "n_targets": 2,
}


def fifth(**attributes: Any) -> OneNode:
    """Of the domain's version 5. The root leads to two nodes, each of which has two leaves."""
    stated = {
        name: numpy_helper.from_array(each) if isinstance(each, np.ndarray) else each
        for name, each in (FIFTH | attributes).items()
    }
    return node("TreeEnsemble", X, version=5, **stated)


def test_trees_with_leaves_apart() -> None:
    first = np.where(X[:, 1] > -0.5, 0, 1)
    second = np.where(X[:, 2] < 0.1, 3, 2)
    leaf = np.where(X[:, 0] <= 0.5, first, second)
    expected = np.zeros((7, 2), np.float32)
    expected[np.arange(7), leaf % 2] = 2.0**leaf
    (made,) = fifth().made([expected])
    np.testing.assert_array_equal(made, expected)


def test_of_two_classes_the_one_with_the_greater_score_is_told() -> None:
    """As ONNX says; onnxruntime tells the second one if its score is positive."""
    given = trees([0, 1], [0, 1])
    _, scores = given.expected()
    labels, made = given.made([np.zeros(7, np.int64), scores])
    np.testing.assert_allclose(made, scores, rtol=1e-5)
    np.testing.assert_array_equal(labels, scores.argmax(1))


TEXTS: dict[str, Any] = {"classlabels_ints": None, "classlabels_strings": ["a", "b", "c"]}


def test_labels_that_are_texts_need_not_be_asked_for() -> None:
    given = classifier(**TEXTS).model([np.zeros(7, np.int64), np.zeros((7, 3), np.float32)])
    with pytest.raises(NotSupported, match="labels, which are texts"):
        import_model(given, {})
    del given.graph.output[0]
    import_model(given, {})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (node("Scaler", X.astype(np.float64), offset=[0.0], scale=[1.0]), "does not compute it in FLOAT64"),
        (node("Scaler", X, offset=[0.0, 1.0], scale=[1.0]), "its offset has 2 numbers, where its input has 4 columns"),
        (node("Scaler", X[0], offset=[0.0], scale=[1.0]), "its input has 1 dimensions, not 2"),
        (node("Normalizer", X, norm="L3"), "its norm is L3, not MAX, L1, L2"),
        (node("Imputer", X), "its imputed_value_floats has 0 numbers"),
        (node("Imputer", X.astype(np.float64)), "its input is FLOAT64, not FLOAT32 or INT64"),
        (node("ArrayFeatureExtractor", X[0, 0], integers(0)), "its input has no dimensions"),
        (
            node("LabelEncoder", X, keys_strings=["a"], values_int64s=[1]),
            "its keys and values are not integers or floats",
        ),
        (node("LabelEncoder", X, keys_floats=[1.0], values_int64s=[1, 2]), "it has 1 keys and 2 values"),
        (node("LabelEncoder", X, keys_int64s=[1], values_int64s=[1]), "different types, FLOAT32 and INT64"),
        (node("OneHotEncoder", X, cats_strings=["a"]), "its categories are not integers"),
        (node("FeatureVectorizer", X, X, inputdimensions=[4, 3]), r"its inputdimensions are \[4, 3\]"),
        (node("LinearRegressor", X, coefficients=[1.0]), "its coefficients are 1, where 1 times 4 are needed"),
        (node("LinearRegressor", X, coefficients=WEIGHTS[:4], intercepts=[1.0] * 2), "its intercepts are 2, not 1"),
        (classifier(post_transform="PROBIT"), "its post_transform is PROBIT, not NONE, SOFTMAX, LOGISTIC"),
        (classifier(classlabels_ints=[1]), "it has 1 classes, and not as many intercepts"),
        (regressor(LEQ, post_transform="LOGISTIC"), "its post_transform is LOGISTIC, of one score alone"),
        (regressor(["BRANCH_MAYBE"]), "its modes are BRANCH_MAYBE, not BRANCH_LEQ"),
        (regressor(LEQ, X[:, :1]), "it reads column 3 of 1"),
        (regressor(LEQ, targets=2, aggregate_function="MIN"), "its aggregate_function is MIN, of 2 targets"),
        (regressor(LEQ, base_values=[1.0, 2.0]), "its base_values are 2, not 1"),
        *(
            (regressor(LEQ, **{f"{each}_as_tensor": DOUBLE}), f"in FLOAT64, which its {each}_as_tensor is")
            for each in ("nodes_values", "target_weights", "base_values")
        ),
        (regressor(LEQ, n_targets=1 << 28), "too many bytes|it is invalid"),
        (fifth(nodes_splits=SPLITS.astype(np.float64)), "does not compute it in FLOAT64"),
        (fifth(nodes_modes=np.array([0, 6, 1], np.uint8)), "is a member of a set"),
        (fifth(nodes_trueleafs=[0, 0, 1]), "are deeper than 256, or lead in a cycle"),
        (fifth(tree_roots=[9]), "it is invalid: IndexError"),
        (vectors("SVMRegressor", "WAVELET"), "its kernel_type is WAVELET, not LINEAR, POLY, RBF, SIGMOID"),
        (vectors("SVMRegressor", n_supports=3), "its support_vectors are 16, where 12 are needed"),
        (vectors("SVMRegressor", kernel_params=[1.0]), "its kernel_params are 1, where 3 are needed"),
        (vectors("SVMRegressor", post_transform="LOGISTIC"), "its post_transform is LOGISTIC, of one score alone"),
        (vectors("SVMClassifier", coefficients=[1.0]), "its coefficients are 1, where 12 are needed"),
        (vectors("SVMClassifier", rho=[1.0]), "its rho are 1, where 3 are needed"),
        (vectors("SVMClassifier", vectors_per_class=[3, 3]), r"its vectors_per_class are \[3, 3\], of 3 classes"),
        (vectors("SVMClassifier", vectors_per_class=[8, -4, 2]), r"its vectors_per_class are \[8, -4, 2\]"),
        (vectors("SVMClassifier", classlabels_ints=[1]), "it has 1 classes, where two or more are needed"),
        (vectors("SVMClassifier", prob_a=[1.0], prob_b=[1.0]), "its prob_a are 1, where 3 are needed"),
        (vectors("SVMClassifier", classes=11, **shares(11)), "it has 11 classes with probabilities, where 10 are"),
    ],
    ids=repr,
)
def test_refused(given: OneNode, why: str) -> None:
    with pytest.raises(NotSupported, match=why):
        given.made([np.zeros((7, 1), np.float32)] * 2)
