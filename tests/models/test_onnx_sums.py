"""Loops over memory: products of a graph by a matrix that it keeps, and convolutions that read the tensor itself."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from app.models.onnx.importer import import_model
from tests.models.onnx_runs import Array, run

RANDOM = np.random.default_rng(3)


def model(nodes: list[Any], x: tuple[int, ...], known: Mapping[str, Array]) -> Any:
    """Of the input x, whose last node makes y."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def floats(*sizes: int) -> Array:
    return RANDOM.standard_normal(sizes).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 2, 7, 13, 40, 129])
@pytest.mark.parametrize("columns", [5, 32, 70])
def test_products_by_a_matrix_that_is_kept(rows: int, columns: int) -> None:
    x, b, c = floats(rows, 600), floats(columns, 600), floats(columns)
    gemm = helper.make_node("Gemm", ["x", "b", "c"], ["y"], transB=1, alpha=0.5, beta=2.0)
    (made,) = run(model([gemm], x.shape, {"b": b, "c": c}), {"x": x}).values()
    wanted = 0.5 * x.astype("float64") @ b.T.astype("float64") + 2.0 * c
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("places", [(1, 1), (2, 3), (5, 10), (4, 16)])
@pytest.mark.parametrize("channels", [20, 600])
def test_convolutions_of_single_elements(places: tuple[int, int], channels: int) -> None:
    x, w = floats(2, channels, *places), floats(13, channels, 1, 1)
    conv = helper.make_node("Conv", ["x", "w"], ["y"])
    (made,) = run(model([conv], x.shape, {"w": w}), {"x": x}).values()
    wanted = np.einsum("nchw,kc->nkhw", x.astype("float64"), w[..., 0, 0].astype("float64"))
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-4)


KNOWN = {
    "w": floats(6, 4, 3, 3),
    **{name: floats(6) for name in ("bias", "scale", "shift", "mean")},
    "variance": np.abs(floats(6)) + 1,
    "channels": floats(6, 1, 1),
    "one": np.array(0.5, np.float32),
    "whole": floats(1, 6, 1, 1),
    "columns": floats(5),
}
CONV = helper.make_node("Conv", ["x", "w", "bias"], ["c"], pads=[1, 1, 1, 1])
CHAIN = [
    helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"]),
    helper.make_node("Mul", ["channels", "n"], ["m"]),
    helper.make_node("Sub", ["one", "m"], ["s"]),
    helper.make_node("Div", ["s", "one"], ["d"]),
    helper.make_node("Add", ["d", "channels"], ["y"]),
]


def operators(given: Any) -> list[str]:
    document = import_model(given, {}).graph.document
    return [node["Desc"]["Type"] for node in document["Nodes"] if node["Type"] == "OPERATOR"]


def test_what_follows_a_convolution_by_channel_goes_into_it() -> None:
    x = floats(2, 4, 5, 5)
    chain = model([CONV, *CHAIN], x.shape, KNOWN)
    assert operators(chain) == ["CONVOLUTION"]
    (made,) = run(chain, {"x": x}).values()
    (plain,) = run(model([CONV, helper.make_node("Identity", ["c"], ["y"])], x.shape, KNOWN), {"x": x}).values()

    def along(name: str) -> Array:
        return KNOWN[name].astype("float64").reshape(-1, 1, 1)

    normal = (plain - along("mean")) / np.sqrt(along("variance") + 1e-5) * along("scale") + along("shift")
    wanted = (0.5 - along("channels") * normal) / 0.5 + along("channels")
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("factor", ["one", "whole"])
def test_a_convolution_without_a_bias_gets_one(factor: str) -> None:
    x = floats(2, 4, 5, 5)
    conv = helper.make_node("Conv", ["x", "w"], ["c"])
    both = model([conv, helper.make_node("Mul", ["c", factor], ["y"])], x.shape, KNOWN)
    assert operators(both) == ["CONVOLUTION"]
    (made,) = run(both, {"x": x}).values()
    (plain,) = run(model([conv, helper.make_node("Identity", ["c"], ["y"])], x.shape, KNOWN), {"x": x}).values()
    np.testing.assert_allclose(made, plain * KNOWN[factor], rtol=1e-4, atol=1e-4)


TOTAL = helper.make_node("ReduceSum", ["x"], ["u"], keepdims=0)


@pytest.mark.parametrize(
    "nodes",
    [
        [CONV, helper.make_node("Add", ["c", "columns"], ["y"])],
        [CONV, helper.make_node("Mul", ["c", "one"], ["m"]), helper.make_node("Add", ["m", "c"], ["y"])],
        [CONV, helper.make_node("Div", ["one", "c"], ["y"])],
        *(
            [
                *(TOTAL, helper.make_node("Mul", [given, "u"], ["v"])),
                helper.make_node("Conv", ["x", *("v" if each == given else each for each in ("w", "bias"))], ["c"]),
                helper.make_node("Mul", ["c", "one"], ["y"]),
            ]
            for given in ("w", "bias")
        ),
        [CONV, TOTAL, helper.make_node("Mul", ["c", "u"], ["y"])],
    ],
    ids=["of columns", "read twice", "divided by it", "computed filters", "a computed bias", "a computed factor"],
)
def test_what_does_not_is_left_as_it_is(nodes: list[Any]) -> None:
    assert len(operators(model(nodes, (1, 4, 5, 5), KNOWN))) == len(nodes)


def test_one_channel_becomes_several_by_what_is_added() -> None:
    x = floats(1, 4, 5, 5)
    known = {"w": floats(1, 4, 3, 3), "channels": floats(6, 1, 1)}
    conv = helper.make_node("Conv", ["x", "w"], ["c"])
    (made,) = run(model([conv, helper.make_node("Add", ["c", "channels"], ["y"])], x.shape, known), {"x": x}).values()
    (plain,) = run(model([conv, helper.make_node("Identity", ["c"], ["y"])], x.shape, known), {"x": x}).values()
    np.testing.assert_allclose(made, plain + known["channels"], rtol=1e-5, atol=1e-5)
