"""Which nodes are computed while a model is imported: small arithmetic with sizes, and nothing else."""

from collections.abc import Hashable

import numpy as np
import pytest
from onnx import helper

from app.models.onnx.builder import SMALL_BYTES
from app.models.onnx.folding import SMALL, folded, is_foldable
from tests.models.onnx_runs import Array


def computed(type_: str, *inputs: Array, opset: int = 17) -> list[Array | None] | None:
    attributes = {"equation": "ij,k->jk"} if type_ == "Einsum" else {}
    node = helper.make_node(type_, [f"x{place}" for place in range(len(inputs))], ["y"], **attributes)
    return folded(node, {"": opset}, inputs, {})


def test_what_is_small_is_computed() -> None:
    (made,) = computed("Expand", np.array(3), np.array([SMALL])) or [None]
    np.testing.assert_array_equal(made, np.full(SMALL, 3))
    (made,) = computed("NonZero", np.array([1, 0, 1])) or [None]
    np.testing.assert_array_equal(made, [[0, 2]])
    assert computed("Neg", np.zeros(SMALL)) is not None


def test_the_same_is_computed_once() -> None:
    """And nothing else is taken for it: what differs by an attribute, an element, a type, sizes or the operator."""
    known: dict[Hashable, list[Array | None]] = {}
    x = np.array([0.0, 1.0])
    first = helper.make_node("Split", ["x"], ["a", "b"], num_outputs=2)
    again = helper.make_node("Split", ["y"], ["c", "d"], num_outputs=2)
    made = folded(first, {"": 18}, [x], known)
    assert made is not None
    assert folded(again, {"": 18}, [x.copy()], known) is made
    others = [
        (helper.make_node("Split", ["x"], ["a", "b"], num_outputs=2, axis=-1), x),
        (first, x.astype(np.float32)),
        (first, x.reshape(2, 1)),
        (first, -x),
        (helper.make_node("Neg", ["x"], ["a"]), x),
    ]
    for node, given in others:
        other = folded(node, {"": 18}, [given], known)
        assert other is not None
        assert other is not made
    assert len(known) == 1 + len(others)
    wide = np.zeros(SMALL_BYTES)
    assert folded(others[-1][0], {"": 18}, [wide], known) is not None
    assert len(known) == 1 + len(others), "what is large is not compared"


@pytest.mark.parametrize(
    ("type_", "outputs", "wanted"),
    [("Split", ["a", ""], [[0, 3], None]), ("TopK", ["", "a"], [None, [1, 3]]), ("TopK", ["a", ""], [[3, 2], None])],
)
def test_outputs_that_are_left_out(type_: str, outputs: list[str], wanted: list[list[int] | None]) -> None:
    inputs = [np.array([0, 3, 1, 2])] if type_ == "Split" else [np.array([0, 3, 1, 2]), np.array([2])]
    node = helper.make_node(type_, ["x", "number"][: len(inputs)], outputs, axis=0)
    made = folded(node, {"": 13 if type_ == "Split" else 11}, inputs, {})
    assert made is not None
    assert [None if each is None else each.tolist() for each in made] == wanted


def test_a_model_without_operators_of_onnx() -> None:
    """Its version of them is not known, so nothing is computed."""
    assert folded(helper.make_node("Neg", ["x"], ["y"]), {"com.microsoft": 1}, [np.array([1.0])], {}) is None


def test_what_no_operator_computes_may_be_larger() -> None:
    """Positions of patches are FLOAT64 in PyTorch's exports, RT-DETR's for example."""
    assert computed("Sin", np.zeros(1 << 18)) is not None
    (made,) = computed("Einsum", np.ones((2, SMALL)), np.arange(3.0)) or [None]
    np.testing.assert_array_equal(made, np.broadcast_to(np.arange(3.0) * 2, (SMALL, 3)))
    assert computed("Einsum", np.ones((2, SMALL), np.float32), np.arange(3.0, dtype=np.float32)) is None


def test_scatter_is_computed_as_what_it_is_called_since() -> None:
    """PyTorch's exporter changes sizes by it."""
    (made,) = computed("Scatter", np.array([2, 3, 4]), np.array([1]), np.array([9]), opset=9) or [None]
    np.testing.assert_array_equal(made, [2, 9, 4])


def test_what_is_computed_has_the_type_that_onnx_says() -> None:
    (made,) = computed("ReduceSumSquare", np.array([3, 4], np.int32)) or [None]
    assert made is not None
    assert made.dtype == np.int32
    np.testing.assert_array_equal(made, [25])


@pytest.mark.parametrize(
    ("type_", "inputs", "opset"),
    [
        ("Expand", [np.array(3), np.array([SMALL + 1])], 17),
        ("Expand", [np.array(3), np.array([1 << 40])], 17),
        ("Neg", [np.zeros(SMALL + 1, np.float32)], 17),
        ("Sin", [np.zeros((1 << 18) + 1)], 17),
        ("Einsum", [np.zeros((1 << 8, 1 << 7)), np.zeros(1 << 8)], 17),
        ("BitwiseAnd", [np.array([1]), np.array([1])], 17),
        ("Det", [np.eye(2)], 17),
        ("Add", [np.array([1, 2]), np.array([1, 2, 3])], 17),
        ("Gone", [np.array([1])], 17),
    ],
)
def test_what_is_large_new_or_wrong_is_not(type_: str, inputs: list[Array], opset: int) -> None:
    assert computed(type_, *inputs, opset=opset) is None


def test_what_could_be_computed() -> None:
    for type_, domain, wanted in (
        ("Add", "", True),
        ("Add", "ai.onnx", True),
        ("Add", "own", False),
        ("RandomNormal", "", False),
        ("ConstantOfShape", "", False),
    ):
        assert is_foldable(helper.make_node(type_, ["x"], ["y"], domain=domain)) is wanted
