"""Products and convolutions of what DequantizeLinear restored: of integers, where that is the same."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from app.models.onnx.importer import import_model
from tests.models.onnx_runs import Array, run

RANDOM = np.random.default_rng(11)
U8, I8 = np.uint8, np.int8


def bytes_(dtype: Any, *sizes: int) -> Array:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max, sizes, dtype, endpoint=True)


class Restored(NamedTuple):
    """An input or a constant of 8 bits, and what restores it."""

    x: Array
    scale: Any
    zero: Any = None
    axis: int = 1
    is_known: bool = False


def model(node: Any, given: Mapping[str, Restored], arrays: Mapping[str, Array] | None = None) -> Any:
    """Of `node`, whose inputs `a` and `b` are restored from `given`; `arrays` are constants besides."""
    nodes, inputs, known = [], [], dict(arrays or {})
    for name, (x, scale, zero, axis, is_known) in given.items():
        names = [f"{name}q", f"{name}s"]
        known[f"{name}s"] = np.asarray(scale)
        if zero is not None:
            known[f"{name}z"] = np.asarray(zero, x.dtype)
            names.append(f"{name}z")
        if is_known:
            known[f"{name}q"] = x
        else:
            inputs.append(helper.make_tensor_value_info(names[0], helper.np_dtype_to_tensor_dtype(x.dtype), x.shape))
        nodes.append(helper.make_node("DequantizeLinear", names, [name], axis=axis))
    initializers = [numpy_helper.from_array(array, name) for name, array in known.items()]
    kind = helper.np_dtype_to_tensor_dtype(np.asarray(next(iter(given.values())).scale).dtype)
    output = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([*nodes, node], "graph", inputs, [output], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=8)


def kinds(made: Any, given: Mapping[str, Restored]) -> set[str]:
    """The operators of its graph."""
    sizes = {f"{name}q": each.x.shape for name, each in given.items() if not each.is_known}
    nodes = import_model(made, sizes).graph.document["Nodes"]
    return {each["Desc"]["Type"] for each in nodes if each["Type"] == "OPERATOR"}


def check(node: Any, given: Mapping[str, Restored], arrays: Mapping[str, Array] | None = None) -> None:
    """Against onnxruntime, which restores and multiplies floats if it may not optimize."""
    made = model(node, given, arrays)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"])
    inputs = {f"{name}q": each.x for name, each in given.items() if not each.is_known}
    (wanted,) = session.run(None, inputs)
    (found,) = run(made, inputs).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    own = kinds(made, given)
    assert own & {"MATRIX_MULTIPLY_INTEGER", "CONVOLUTION_INTEGER"}
    assert not own & {"GEMM", "CONVOLUTION"}


F32 = np.float32
A = Restored(bytes_(U8, 3, 7), F32(0.02), 113)
COLUMNS = np.abs(RANDOM.standard_normal(5)).astype(F32)
MATRICES = {
    "one scale": Restored(bytes_(I8, 7, 5), F32(0.3), -4),
    "no zero point": Restored(bytes_(I8, 7, 5), F32(0.3)),
    "known": Restored(bytes_(I8, 7, 5), F32(0.3), 9, is_known=True),
    "of each column": Restored(bytes_(I8, 7, 5), COLUMNS, bytes_(I8, 5), is_known=True),
    "of two columns": Restored(bytes_(I8, 7, 2), COLUMNS[:2], bytes_(I8, 2)),
    "of each column, without zero points": Restored(bytes_(U8, 7, 5), COLUMNS),
    "negative": Restored(bytes_(I8, 7, 5), F32(-0.3), -4),
    "a batch": Restored(bytes_(I8, 2, 7, 5), F32(0.3), 3),
    "a batch of each column": Restored(bytes_(I8, 2, 7, 5), COLUMNS, bytes_(I8, 5), axis=2),
    "a vector": Restored(bytes_(U8, 7), F32(0.3), 3),
}


@pytest.mark.parametrize("b", MATRICES.values(), ids=MATRICES)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_matmul(b: Restored, batch: tuple[int, ...]) -> None:
    a = A._replace(x=bytes_(U8, *batch, 3, 7))
    check(helper.make_node("MatMul", ["a", "b"], ["y"]), {"a": a, "b": b})


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("scale", [F32(0.3), COLUMNS])
@pytest.mark.parametrize("bias", [None, (5,), (3, 5), ()])
def test_gemm(bias: tuple[int, ...] | None, scale: Any, *, turned: bool) -> None:
    b = Restored(bytes_(I8, *(5, 7) if turned else (7, 5)), scale, np.zeros_like(scale), 0 if turned else 1)
    names, arrays = ["a", "b"], {}
    if bias is not None:
        names, arrays = ["a", "b", "c"], {"c": RANDOM.standard_normal(bias).astype(F32) * F32(50)}
    check(helper.make_node("Gemm", names, ["y"], transB=int(turned), alpha=0.75), {"a": A, "b": b}, arrays)


def test_gemm_turns_the_first_matrix() -> None:
    a = A._replace(x=bytes_(U8, 7, 3))
    check(helper.make_node("Gemm", ["a", "b"], ["y"], transA=1), {"a": a, "b": MATRICES["of each column"]})


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", [F32(0.3), COLUMNS[:4]])
@pytest.mark.parametrize(("spatial", "group"), [((9,), 1), ((9, 6), 1), ((9, 6), 2), ((9, 6), 4)])
def test_conv(spatial: tuple[int, ...], group: int, scale: Any, *, bias: bool) -> None:
    x = Restored(bytes_(U8, 2, 4, *spatial), F32(0.02), 100)
    filters = Restored(bytes_(I8, 4, 4 // group, *[3] * len(spatial)), scale, np.zeros_like(scale), 0, is_known=True)
    arrays = {"c": RANDOM.standard_normal(4).astype(F32) * F32(50)} if bias else {}
    attributes: dict[str, Any] = {"group": group, "pads": [1] * (2 * len(spatial)), "strides": [2] * len(spatial)}
    node = helper.make_node("Conv", ["a", "b", *arrays], ["y"], **attributes)
    check(node, {"a": x, "b": filters}, arrays)


def test_bytes_that_lie_otherwise_than_what_they_are_restored_to() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["a"]),
        helper.make_node("MatMul", ["a", "a"], ["y"]),
    ]
    x, scale = bytes_(U8, 4, 4), F32(0.02)
    infos = [
        helper.make_tensor_value_info(name, kind, sizes)
        for name, kind, sizes in (("x", TensorProto.UINT8, [4, 4]), ("y", TensorProto.FLOAT, None))
    ]
    graph = helper.make_graph(nodes, "graph", infos[:1], infos[1:], [numpy_helper.from_array(np.array(scale), "s")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=8)
    (found,) = run(made, {"x": x}).values()
    np.testing.assert_allclose(found, np.matmul(x.T * scale, x.T * scale), rtol=1e-5)


def test_sums_are_exact() -> None:
    """Of float32, what is beyond 2^24 would be lost."""
    a = Restored(np.full((1, 4001), 255, U8), F32(1))
    b = Restored(np.full((4001, 1), 255, U8), F32(1))
    b.x[-1] = 1
    made = model(helper.make_node("MatMul", ["a", "b"], ["y"]), {"a": a, "b": b})
    (found,) = run(made, {"aq": a.x, "bq": b.x}).values()
    assert found.item() == F32(4000 * 255 * 255 + 255)


MATMUL = helper.make_node("MatMul", ["a", "b"], ["y"])
B = MATRICES["one scale"]
CONV = helper.make_node("Conv", ["a", "b"], ["y"])
FILTERS = Restored(bytes_(I8, 4, 2, 3), F32(0.1))
OF_FLOATS: dict[str, tuple[Any, dict[str, Restored]]] = {
    "scales of rows": (MATMUL, {"a": A._replace(scale=COLUMNS[:3], zero=[1, 2, 3], axis=0), "b": B}),
    "scales of what is added up": (
        MATMUL,
        {"a": A, "b": B._replace(scale=np.arange(1, 8, dtype=F32), zero=None, axis=0)},
    ),
    "scales of a vector": (MATMUL, {"a": A, "b": Restored(bytes_(U8, 7), np.arange(1, 8, dtype=F32), axis=0)}),
    "a square, by rows": (
        helper.make_node("Gemm", ["a", "b"], ["y"], transB=1),
        {"a": A, "b": Restored(bytes_(I8, 7, 7), np.arange(1, 8, dtype=F32), axis=1)},
    ),
    "scales whose product is subnormal": (
        MATMUL,
        {"a": A._replace(scale=F32(1e-30)), "b": B._replace(scale=F32(1e-10))},
    ),
    "scales whose product is infinite": (MATMUL, {"a": A._replace(scale=F32(1e30)), "b": B._replace(scale=F32(1e10))}),
    "16 bits": (MATMUL, {"a": Restored(RANDOM.integers(0, 99, (3, 7), np.uint16), F32(0.1), 3), "b": B}),
    "float16": (MATMUL, {"a": A._replace(scale=np.float16(0.02)), "b": B._replace(scale=np.float16(0.3))}),
    "what is convolved has 16 bits": (
        CONV,
        {"a": Restored(RANDOM.integers(0, 99, (1, 2, 9), np.uint16), F32(0.1), 3), "b": FILTERS},
    ),
    "filters of 16 bits": (
        CONV,
        {
            "a": Restored(bytes_(U8, 1, 2, 9), F32(0.1)),
            "b": Restored(RANDOM.integers(0, 99, (4, 2, 3), np.uint16), F32(0.1), 3),
        },
    ),
    "filters of more terms than INT32 may hold": (
        CONV,
        {"a": Restored(bytes_(U8, 1, 11009, 3), F32(0.1)), "b": Restored(bytes_(U8, 1, 11009, 3), F32(0.1))},
    ),
    "more terms than INT32 may hold": (
        MATMUL,
        {"a": Restored(bytes_(U8, 1, 33026), F32(0.1)), "b": Restored(bytes_(U8, 33026, 1), F32(0.1))},
    ),
    "another factor of the bias": (helper.make_node("Gemm", ["a", "b", "c"], ["y"], beta=2.0), {"a": A, "b": B}),
    "three dimensions": (
        helper.make_node("Conv", ["a", "b"], ["y"]),
        {"a": Restored(bytes_(U8, 1, 2, 3, 3, 3), F32(0.1)), "b": Restored(bytes_(I8, 2, 2, 2, 2, 2), F32(0.1))},
    ),
}


@pytest.mark.parametrize("case", OF_FLOATS.values(), ids=OF_FLOATS)
def test_what_stays_a_product_of_floats(case: tuple[Any, dict[str, Restored]]) -> None:
    node, given = case
    made = model(node, given, {"c": np.zeros(5, F32)} if "c" in node.input else None)
    assert kinds(made, given) & {"GEMM", "CONVOLUTION"}


def test_scales_that_are_not_known() -> None:
    """They may be infinite, or their product."""
    names = ["q", "s", "z"]
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], names),
        helper.make_node("DequantizeLinear", names, ["a"]),
        helper.make_node("MatMul", ["a", "a"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])
    graph = helper.make_graph(nodes, "graph", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=8)
    found = import_model(made, {}).graph.document["Nodes"]
    assert "GEMM" in [each["Desc"]["Type"] for each in found if each["Type"] == "OPERATOR"]
