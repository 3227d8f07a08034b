"""Elements moved, gathered and scattered, beside onnxruntime and NumPy."""

from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

from app.models.onnx.errors import NotSupported
from tests.models.onnx_nodes import RANDOM, OneNode, floats, integers
from tests.models.onnx_runs import Array, run

X = floats(3, 4, 5)
LONG = RANDOM.integers(-9, 9, (3, 4, 5))


def all_types(*sizes: int) -> list[Array]:
    """Of each size of elements, and what DirectML has no numbers for."""
    numbers = RANDOM.integers(0, 100, sizes)
    return [numbers.astype(name) for name in ("bool", "uint8", "int16", "float16", "int32", "int64", "float64")]


@pytest.mark.parametrize(
    "node",
    [
        OneNode("Slice", [X, integers(1, -1), integers(3, -9), integers(0, -1), integers(1, -2)], [1, 2, 3, 4]),
        OneNode(
            "Slice", [X, integers(0, -1), integers(9, -9), integers(0, 1), integers(2**40, -(2**63))], [1, 2, 3, 4]
        ),
        OneNode("Slice", [X, integers(-3), integers(2**63 - 1), integers(1)], [1, 2, 3], opset=10),
        OneNode("Slice", [LONG], opset=9, starts=[1, 0], ends=[9, -1], axes=[2, 0]),
        OneNode("Split", [X, integers(1, 3)], [1], outputs=2, axis=1),
        OneNode("Split", [X], outputs=2, opset=18, axis=-1, num_outputs=2),
        OneNode("Split", [floats(2, 3)], outputs=2, opset=12),
        OneNode("Concat", [X, floats(3, 0, 5), X[:, :2]], [1], axis=-2),
        OneNode("Tile", [floats(2, 1, 3), integers(1, 4, 1)], [1]),
        *(OneNode("Tile", [each, integers(2, 3)], [1]) for each in all_types(2, 3) if each.dtype != np.float16),
        OneNode("Pad", [X, integers(1, 0, 0, 0, 0, 0)], [1]),
        OneNode("Pad", [X > 0, integers(1, 0, 2, 0, 3, 1), np.array(True)], [1, 2]),
        OneNode("Pad", [X, integers(0, 1, 2, 1, 0, 0), np.array(3, np.float32)], [1], mode="edge"),
        OneNode("Pad", [X, integers(1, 0, 2, 0, 3, 1), np.array(2.5, np.float32)], [1, 2]),
        OneNode("Pad", [X, integers(-1, 2, 0, 0, -1, 1)], [1]),
        OneNode("Pad", [X, integers(0, 1, 0, 1, 0, 0), np.array(-np.inf, np.float32)], [1, 2]),
        OneNode("Pad", [X, integers(0, 1, 0, 1, 0, 0), np.array(np.nan, np.float32)], [1, 2]),
        OneNode("Pad", [X, integers(0, 1, 2, 1, 0, 0), np.array(3, np.float32)], [1]),
        OneNode("Pad", [LONG, integers(2, 1), None, integers(-1)], [1, 3], opset=18, mode="reflect"),
        OneNode("Pad", [LONG, integers(0, 1, 2, 3, 0, 0)], [1], mode="edge"),
        OneNode("Pad", [X, integers(0, 1, 2, 3, 0, 0)], [1], opset=19, mode="wrap"),
        OneNode("Pad", [X], opset=10, pads=[0, 1, 0, 0, 0, 2], value=-1.0),
        OneNode("DepthToSpace", [floats(1, 8, 2, 3)], blocksize=2, mode="DCR"),
        OneNode("DepthToSpace", [floats(1, 8, 2, 3)], blocksize=2, mode="CRD"),
        OneNode("SpaceToDepth", [floats(1, 2, 4, 6)], blocksize=2),
        OneNode("ReverseSequence", [X, integers(1, 4, 2)], batch_axis=0, time_axis=1),
        OneNode("ReverseSequence", [X, integers(1, 3, 2, 3)]),
        OneNode("Trilu", [floats(2, 1, 2, 3, 4), np.array(1)], [1], upper=1),
        OneNode("Trilu", [X, np.array(-1)], [1], upper=0),
        OneNode("EyeLike", [floats(3, 4)], k=-1, dtype=7),
        OneNode("EyeLike", [floats(3, 4)]),
        OneNode("Gather", [X, np.array([[0, -1], [3, 1]], np.int32)], axis=1),
        OneNode("Gather", [X, np.array(-2)], axis=2),
        *(OneNode("Gather", [each, integers(2, 0)], axis=-1) for each in all_types(2, 3)),
        OneNode("GatherElements", [X, RANDOM.integers(-4, 4, (2, 6, 3))], axis=1),
        OneNode("GatherND", [X, RANDOM.integers(-4, 4, (3, 2, 1))], opset=13, batch_dims=1),
        OneNode("GatherND", [X, RANDOM.integers(0, 3, (2, 2, 2, 2))], opset=13),
        OneNode("GatherND", [X, np.indices((3, 2)).transpose(1, 2, 0)], [1], opset=13),
        OneNode("GatherND", [X, np.indices((3, 4, 2)).transpose(1, 2, 3, 0)], [1], opset=13),
        OneNode("GatherND", [X, integers(0, 1, 2)[:, np.newaxis]], [1], opset=13),
        OneNode("GatherND", [X, np.indices((2, 3)).transpose(1, 2, 0)], [1], opset=13),
        OneNode("ScatterElements", [X, integers(3, 0, 1, 2).reshape(2, 2, 1), floats(2, 2, 1)], axis=1),
        OneNode("ScatterND", [X, integers(2, 1, 0, -1).reshape(2, 2), floats(2, 5)], opset=13),
        *(OneNode("Compress", [each, np.array([True, False, True])], [1], axis=-1) for each in all_types(2, 3)),
        OneNode("Compress", [X, np.array([False, True])], [1], axis=1),
        OneNode("Compress", [X, np.array([False, True, True, False, False, True])], [1]),
        OneNode("OneHot", [integers(1, -1, 7), np.array(4), floats(2)], [1], axis=0),
        OneNode("OneHot", [floats(2, 3).clip(0) * 3, np.array(4), integers(5, 6)], [1]),
    ],
    ids=repr,
)
def test_movement(node: OneNode) -> None:
    node.compare()


def test_tensors_without_elements_between_nodes() -> None:
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        one (float[3, 4] x) => (float[3, 4] y, int64[2] of_joined, int64[2] of_tiled) {
            lengths = Constant<value_ints = [0, 4]>()
            nothing, whole = Split<axis = 1>(x, lengths)
            repeats = Constant<value_ints = [2, 0]>()
            tiled = Tile(x, repeats)
            joined = Concat<axis = 0>(nothing, tiled)
            y = Concat<axis = 1>(nothing, whole, nothing)
            of_joined = Shape(joined)
            of_tiled = Shape(tiled)
        }
    """
    x = floats(3, 4)
    made = run(parse_model(text), {"x": x})
    np.testing.assert_array_equal(made["y"], x)
    assert (made["of_joined"].tolist(), made["of_tiled"].tolist()) == ([9, 0], [6, 0])


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
@pytest.mark.parametrize("reduction", ["add", "mul", "min", "max"])
def test_updates_that_meet(reduction: str, dtype: str) -> None:
    x, updates = (X * 5).astype(dtype), (5 * floats(2, 7, 5)).astype(dtype)
    how: dict[str, Any] = {"opset": 18, "reduction": reduction}
    part = RANDOM.integers(-4, 4, (2, 7, 3))
    OneNode("ScatterElements", [x, part, updates[..., :3]], axis=1, **how).compare()
    OneNode("ScatterElements", [x, RANDOM.integers(0, 5, (3, 4, 5)), x + 1], [1], axis=-1, **how).compare()
    OneNode("ScatterND", [x, RANDOM.integers(-3, 3, (2, 7, 2)), updates], **how).compare()
    OneNode("ScatterND", [x, RANDOM.integers(-3, 3, (7, 3)), updates[0, :, 0]], **how).compare()
    OneNode("ScatterND", [x, RANDOM.integers(-3, 3, (5, 1)), np.stack([x[0]] * 5)], [1], **how).compare()


def test_updates_that_are_no_numbers_stay_where_they_are() -> None:
    x, updates = floats(4), np.array([np.inf, np.nan, -np.inf], np.float32)
    for reduction in ("add", "mul", "min", "max"):
        node = OneNode("ScatterElements", [x, integers(2, 0, 2), updates], opset=18, reduction=reduction)
        (made,) = node.made([x])
        np.testing.assert_array_equal(made[[1, 3]], x[[1, 3]])
        assert np.isnan(made[0])


@pytest.mark.parametrize("count", [128, 129, 300])
def test_more_parts_than_an_operator_has(count: int) -> None:
    x = floats(2, count + 3)
    parts = np.array([4, *[1] * (count - 1)])
    OneNode("Split", [x, parts], [1], outputs=count, axis=1).compare()
    OneNode("Concat", [x[:, k : k + 1] for k in range(count)], axis=1).compare()


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(
    ("equation", "sizes"),
    [
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("...ij,...jk->...ik", [(2, 1, 2, 3), (5, 3, 4)]),
        ("bqhd,bkhd->bhqk", [(2, 3, 2, 4), (2, 5, 2, 4)]),
        ("...ii->...i", [(3, 4, 4)]),
        ("ij,k->jk", [(2, 3), (4,)]),
        ("ba", [(2, 3)]),
        ("ii", [(3, 3)]),
    ],
)
def test_einsum(equation: str, sizes: list[tuple[int, ...]], dtype: str) -> None:
    operands = [(10 * floats(*each)).astype(dtype) for each in sizes]
    expected = np.einsum(equation, *operands)
    (made,) = OneNode("Einsum", operands, equation=equation).made([expected])
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5 * abs(expected).max())


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (OneNode("Slice", [X, integers(1), integers(2)]), "its starts is not constant"),
        (OneNode("Slice", [X, integers(1), integers(2), integers(3)], [1, 2, 3]), "its axis is 3, of 3 dimensions"),
        (OneNode("Slice", [X, integers(1, 1), integers(2)], [1, 2]), "do not go together"),
        (OneNode("Slice", [X, *[integers(1)] * 3, integers(0)], [1, 2, 3, 4]), "do not go together"),
        (OneNode("Tile", [X, integers(1)], [1]), "not one for each of 3 dimensions"),
        (OneNode("Tile", [X, integers(1, -1, 1)], [1]), "not one for each of 3 dimensions"),
        (OneNode("Pad", [X, integers(1, 1)], [1]), "not two for each of axes"),
        (OneNode("Pad", [X, integers(0, -4, 0, 0, 0, 0)], [1]), "nothing of its input is left"),
        (OneNode("Trilu", [floats(3)]), "it has 1 dimensions"),
        (OneNode("EyeLike", [X]), "its input has 3 dimensions"),
        (OneNode("EyeLike", [floats(2, 2)], dtype=16), "its dtype is 16"),
        (OneNode("DepthToSpace", [X], blocksize=1), "it has 3 dimensions, not 4"),
        *(
            (node, "it has 9 dimensions, more than 8")
            for wide in [floats(*[1] * 8, 2)]
            for node in (
                OneNode("Slice", [wide, integers(0), integers(1), integers(8)], [1, 2, 3]),
                OneNode("Split", [wide, integers(1, 1)], [1], outputs=2, axis=8),
                OneNode("Concat", [wide, wide], axis=8),
                OneNode("Tile", [wide, integers(*[1] * 8, 2)], [1]),
                OneNode("Pad", [wide, integers(*[0] * 17, 1)], [1]),
            )
        ),
        (OneNode("Split", [X, integers(1, 1)], [1], outputs=2, axis=1), "do not make up the 4 elements"),
        (OneNode("Split", [X, integers(5, -1)], [1], outputs=2, axis=1), "do not make up the 4 elements"),
        (OneNode("Split", [X, integers(1, 1, 2)], [1], outputs=2, axis=1), "it has 2 outputs"),
        (OneNode("Split", [X], outputs=2, opset=18, axis=1, num_outputs=2**60), "it has 2 outputs"),
        (OneNode("ScatterND", [X, integers(0).reshape(1, 1), floats(1, 4, 5)], reduction="sub"), "reduction is sub"),
        (OneNode("ScatterElements", [X, LONG[:, :2], X], opset=18, reduction="mul"), "its updates have sizes"),
        (OneNode("GatherElements", [X, np.zeros((4, 1, 1), np.int64)], axis=1), "do not fit"),
        (OneNode("Einsum", [X, X], equation="ijk->i"), "1 operands, not 2"),
        (OneNode("Einsum", [X], equation="ijk->z"), "labels that no operand has"),
    ],
    ids=repr,
)
def test_refused(node: OneNode, why: str) -> None:
    with pytest.raises(NotSupported, match=why):
        run(node.model([X, X]), node.inputs)
