"""QuantizeLinear behind what only moves elements: bytes are moved, and nothing is computed that changes nothing."""

from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from onnx import helper, numpy_helper

from app.models.onnx import movement, quantization
from app.models.onnx.importer import import_model
from tests.models.onnx_runs import Array, run

RANDOM = np.random.default_rng(12)
SIZES = (1, 2, 6, 6)
F32, U8, I8 = np.float32, np.uint8, np.int8
TINY, LARGE = np.finfo(F32).tiny, np.finfo(F32).max
QUANTIZE, DEQUANTIZE = "ELEMENT_WISE_QUANTIZE_LINEAR", "ELEMENT_WISE_DEQUANTIZE_LINEAR"


class Scaled(NamedTuple):
    """What bytes are restored by, or made of floats."""

    scale: Any
    zero: Any = 3
    """None: there is no zero point, which is 0."""
    dtype: Any = U8


SAME, OTHER = Scaled(0.02), Scaled(0.03, 100)
JOIN = [helper.make_node("Concat", ["a", "b"], ["x"], axis=1)]
RESIZE = [helper.make_node("Resize", ["a", "", "", "sizes"], ["x"], mode="nearest", nearest_mode="floor")]
POOL = [helper.make_node("MaxPool", ["a"], ["x"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])]


def model(nodes: list[Any], a: Scaled, to: Scaled, sizes: tuple[int, ...] = (1, 2, 12, 12)) -> Any:
    """Of `nodes`, which make `x` of `a`, restored, and `b`, a float; `x` is quantized then."""
    known = {
        "as": np.asarray(a.scale, F32),
        **({} if a.zero is None else {"az": np.asarray(a.zero, a.dtype)}),
        "ts": np.asarray(to.scale, F32),
        **({} if to.zero is None else {"tz": np.asarray(to.zero, to.dtype)}),
        "sizes": np.array(sizes),
    }
    types = {"aq": np.dtype(a.dtype), "b": np.dtype(F32), "y": np.dtype(to.dtype)}
    infos = {
        name: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each), None if name == "y" else SIZES)
        for name, each in types.items()
    }
    restored = helper.make_node("DequantizeLinear", ["aq", "as", *(["az"] if a.zero is not None else [])], ["a"])
    made = helper.make_node("QuantizeLinear", ["x", "ts", *(["tz"] if to.zero is not None else [])], ["y"])
    initializers = [numpy_helper.from_array(array, name) for name, array in known.items()]
    graph = helper.make_graph([restored, *nodes, made], "graph", [infos["aq"], infos["b"]], [infos["y"]], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def operators(made: Any) -> list[tuple[str, str]]:
    """Of the graph, each with the type that its output has."""
    nodes = import_model(made, {"aq": SIZES, "b": SIZES}).graph.document["Nodes"]
    descs = [each["Desc"] for each in nodes if each["Type"] == "OPERATOR"]
    outputs = [each.get("OutputTensor") or each["OutputTensors"][0] for each in descs]
    return sorted((each["Type"], output["DataType"]) for each, output in zip(descs, outputs, strict=True))


def compared(made: Any, a: Scaled) -> list[tuple[str, str]]:
    """The operators, of what gives the same as what is quantized behind all."""
    info = np.iinfo(a.dtype)
    bytes_ = RANDOM.integers(info.min, info.max, SIZES, a.dtype, endpoint=True)
    floats = (RANDOM.standard_normal(SIZES) * 2).astype(F32)
    floats.reshape(-1)[:4] = np.nan, np.inf, -np.inf, -0.0
    given: dict[str, Array] = {"aq": bytes_, "b": floats}
    with (
        mock.patch.object(quantization, "made_before", return_value=None),
        mock.patch.object(quantization, "_before_restored", return_value=None),
        mock.patch.object(movement, "restored_by_one", return_value=None),
    ):
        (wanted,) = run(made, given).values()
    (found,) = run(made, given).values()
    assert found.dtype == wanted.dtype
    assert found.tobytes() == wanted.tobytes()
    return operators(made)


@pytest.mark.parametrize("zero", [3, 255, 0])
def test_what_is_put_together_is_quantized_part_by_part(zero: int) -> None:
    to = Scaled(0.02, zero)
    joined = [(QUANTIZE, "UINT8"), ("JOIN", "UINT8")]
    assert compared(model(JOIN, SAME, to), SAME) == sorted(
        [*joined, *[(DEQUANTIZE, "FLOAT32"), joined[0]] * (zero != 3)]
    )


def test_elements_are_repeated_as_bytes() -> None:
    quantized = [(DEQUANTIZE, "FLOAT32"), (QUANTIZE, "UINT8"), ("RESAMPLE2", "UINT8")]
    assert compared(model(RESIZE, SAME, OTHER), SAME) == quantized
    assert compared(model(RESIZE, SAME, SAME), SAME) == [("RESAMPLE2", "UINT8")]


def test_what_leaves_elements_out_is_quantized_behind_that() -> None:
    made = model(RESIZE, SAME, OTHER, (1, 2, 3, 3))
    assert ("RESAMPLE2", "FLOAT32") in compared(made, SAME)


@pytest.mark.parametrize("to", [SAME, OTHER], ids=["same", "other"])
@pytest.mark.parametrize("negative", [False, True])
def test_parts_are_cut_out_of_bytes(to: Scaled, *, negative: bool) -> None:
    """Restored after that, if anybody wants floats."""
    split = helper.make_node("Split", ["a", "sizes"], ["x", "rest"], axis=3)
    ends = [
        numpy_helper.from_array(np.array(each), "")
        for each in (([1, 5], [-9, 0], [-1, -2]) if negative else ([0, 1], [2, 6], [1, 2]))
    ]
    names = ("starts", "ends", "steps")
    constants = [helper.make_node("Constant", [], [name], value=end) for name, end in zip(names, ends, strict=True)]
    axes = helper.make_node("Constant", [], ["axes"], value_ints=[1, 2])
    cut = helper.make_node("Slice", ["a", "starts", "ends", "axes", "steps"], ["x"])
    quantized = [] if to is SAME else [(DEQUANTIZE, "FLOAT32"), (QUANTIZE, "UINT8")]
    assert compared(model([split], SAME, to, (2, 4)), SAME) == [*quantized, ("SPLIT", "UINT8")]
    sliced = compared(model([*constants, axes, cut], SAME, to), SAME)
    assert [each for each in sliced if each[0] != "ELEMENT_WISE_IDENTITY"] == [*quantized, ("SLICE1", "UINT8")]


def test_bytes_without_a_zero_point() -> None:
    split = helper.make_node("Split", ["a", "sizes"], ["x", "rest"], axis=3)
    own = Scaled(0.02, None)
    assert compared(model([split], own, OTHER, (2, 4)), own) == [
        (DEQUANTIZE, "FLOAT32"),
        (QUANTIZE, "UINT8"),
        ("SPLIT", "UINT8"),
    ]


def test_bytes_of_another_type_are_not_the_same() -> None:
    """By default bytes are unsigned that floats are quantized to."""
    signed, unsigned = Scaled(0.02, None, I8), Scaled(0.02, None)
    nothing = [helper.make_node("Identity", ["a"], ["x"])]
    assert (QUANTIZE, "UINT8") in compared(model(nothing, signed, unsigned), signed)


def test_parts_of_what_has_several_scales_are_floats() -> None:
    split = helper.make_node("Split", ["a", "sizes"], ["rest", "x"], axis=1)
    own = Scaled([0.02, 0.03], [1, 2])
    assert ("SPLIT", "FLOAT32") in compared(model([split], own, OTHER, (1, 1)), own)


def test_floats_of_parts_are_restored_bytes() -> None:
    nodes = [
        helper.make_node("Split", ["a", "sizes"], ["c", "rest"], axis=3),
        helper.make_node("Add", ["c", "rest"], ["x"]),
    ]
    made = compared(model(nodes, SAME, OTHER, (3, 3)), SAME)
    assert made == sorted(
        [(DEQUANTIZE, "FLOAT32")] * 2 + [("SPLIT", "UINT8"), ("ELEMENT_WISE_ADD", "FLOAT32"), (QUANTIZE, "UINT8")]
    )


def test_what_lies_otherwise_is_the_same_bytes() -> None:
    turned = helper.make_node("Transpose", ["a"], ["c"], perm=[0, 2, 3, 1])
    for last in (helper.make_node("Identity", ["c"], ["x"]), helper.make_node("Reshape", ["c", "sizes"], ["x"])):
        made = compared(model([turned, last], SAME, SAME, (6, 12)), SAME)
        assert set(made) == {("ELEMENT_WISE_IDENTITY", "UINT8")}


def test_interpolated_elements_are_floats() -> None:
    linear = [helper.make_node("Resize", ["a", "", "", "sizes"], ["x"], mode="linear")]
    assert ("RESAMPLE2", "FLOAT32") in compared(model(linear, SAME, SAME), SAME)


def test_the_largest_are_picked_of_bytes_that_are_quantized_alike() -> None:
    assert compared(model(POOL, SAME, SAME), SAME) == [("MAX_POOLING", "UINT8")]
    signed = Scaled(0.02, -3, I8)
    assert compared(model(POOL, signed, signed), signed) == [("MAX_POOLING", "INT8")]
    for other in (OTHER, Scaled(0.02, 4), Scaled(0.02, 3, I8)):
        assert ("MAX_POOLING", "FLOAT32") in compared(model(POOL, SAME, other), SAME)


def test_a_scale_below_0_turns_the_order_round() -> None:
    below = Scaled(-0.02)
    assert ("MAX_POOLING", "FLOAT32") in compared(model(POOL, below, below), below)


@pytest.mark.parametrize("scale", [TINY, 1, LARGE / 512], ids=str)
def test_what_is_restored_and_quantized_alike_is_the_same(scale: float) -> None:
    """Of all bytes."""
    nothing = [helper.make_node("Identity", ["a"], ["x"])]
    for each in (Scaled(scale), Scaled(scale, 255), Scaled(scale, -128, I8)):
        assert compared(model(nothing, each, each), each) == [
            ("ELEMENT_WISE_IDENTITY", str(np.dtype(each.dtype)).upper())
        ]


@pytest.mark.parametrize("scale", [TINY / 2, LARGE / 128, 0, np.inf, np.nan], ids=str)
def test_it_is_not_by_a_scale_that_loses_digits(scale: float) -> None:
    each = Scaled(scale)
    assert (QUANTIZE, "UINT8") in compared(model([helper.make_node("Identity", ["a"], ["x"])], each, each), each)


def test_a_scale_that_comes_with_a_request_may_lose_digits() -> None:
    made = model([helper.make_node("Identity", ["a"], ["x"])], SAME, SAME)
    made.graph.node[-1].input[1:] = ["as", "az"]
    (scale,) = (each for each in made.graph.initializer if each.name == "as")
    made.graph.initializer.remove(scale)
    made.graph.input.append(helper.make_tensor_value_info("as", scale.data_type, []))
    bytes_ = RANDOM.integers(0, 256, SIZES, U8)
    for given, kept in ((0.02, True), (np.inf, False)):
        (found,) = run(made, {"aq": bytes_, "b": np.zeros(SIZES, F32), "as": np.asarray(given, F32)}).values()
        assert np.array_equal(found, bytes_) is kept


def test_scales_for_each_channel_stay_where_they_are() -> None:
    """What is put together has other channels than its parts."""
    to = Scaled([0.02, 0.03, 0.04, 0.05], [1, 2, 3, 4])
    assert ("JOIN", "FLOAT32") in compared(model(JOIN, SAME, to), SAME)
