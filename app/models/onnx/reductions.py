"""Reductions, the places of largest and smallest elements, and sums along an axis."""

from collections.abc import Sequence
from math import ceil

import numpy as np

from app.contract.constants import NEWEST, DataType, ReduceFunction
from app.models.onnx.builder import Array
from app.models.onnx.folding import SMALL
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.operands import operate, require
from app.models.onnx.shapes import axis_of, of_type
from app.models.onnx.tensors import Sizes, Unsupported, View
from app.operators.reduction.reductions import Reduce

FUNCTIONS = {
    "ReduceSum": ReduceFunction.SUM,
    "ReduceMean": ReduceFunction.AVERAGE,
    "ReduceProd": ReduceFunction.MULTIPLY,
    "ReduceLogSum": ReduceFunction.LOG_SUM,
    "ReduceLogSumExp": ReduceFunction.LOG_SUM_EXP,
    "ReduceSumSquare": ReduceFunction.SUM_SQUARE,
    "ReduceL1": ReduceFunction.L1,
    "ReduceL2": ReduceFunction.L2,
    "ReduceMax": ReduceFunction.MAX,
    "ReduceMin": ReduceFunction.MIN,
}

AXES_ARE_INPUT = {"ReduceSum": 13}
"""The first version in which axes are an input; of all others 18."""

_SCANS = {
    "CumSum": ("CUMULATIVE_SUMMATION", "HasExclusiveSum"),
    "CumProd": ("CUMULATIVE_PRODUCT", "HasExclusiveProduct"),
}


def reduced(node: Node, x: View, function: ReduceFunction, axes: Sequence[int]) -> View:
    """With size 1 along `axes`, which there is at least one of. Raises Unsupported."""
    row = Reduce.by_function[function].at(NEWEST)
    assert row is not None, "each function is as old as the operator"
    if x.data_type not in row.of("InputTensor").data_types:
        raise Unsupported(f"DirectML's REDUCE takes no {x.data_type} with Function {function}")
    outputs = {"OutputTensor": (x.data_type, _one_along(x.sizes, axes))}
    return operate(node, "REDUCE", {"InputTensor": x}, {"Function": function.value, "Axes": list(axes)}, outputs)


def _one_along(sizes: Sizes, axes: Sequence[int]) -> Sizes:
    return tuple(1 if axis in axes else size for axis, size in enumerate(sizes))


def _kept(sizes: Sizes, axes: Sequence[int], keepdims: bool) -> Sizes:
    """What is left of `sizes`."""
    return tuple(1 if i in axes else size for i, size in enumerate(sizes) if keepdims or i not in axes)


def axes_along(node: Node, rank: int) -> list[int]:
    """Those to go along, in ascending order; none if nothing is to be reduced."""
    given: Sequence[int] | None = node.attribute("axes")
    if node.opset >= AXES_ARE_INPUT.get(node.type, 18):
        given = [int(each) for each in node.array(1, "axes").reshape(-1)] if node.has(1) else None
    if not given:
        return [] if node.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({axis_of(axis, rank, "axis") for axis in given})


@maps(*FUNCTIONS)
def _reduce(node: Node) -> Value:
    axes = axes_along(node, len(node.sizes(0)))
    x = node.view(0)
    sizes = _kept(x.sizes, axes, bool(node.attribute("keepdims")))
    if not axes:  # each element is a group of its own
        axes = [len(x.sizes)]
        x = node.reshaped(x, (*x.sizes, 1))
    return node.reshaped(reduced(node, x, FUNCTIONS[node.type], axes), sizes)


@maps("ArgMax", "ArgMin")
def _arg(node: Node) -> Value:
    x = node.view(0)
    if not x.sizes:
        x = node.reshaped(x, (1,))
    axis = axis_of(node.attribute("axis"), len(x.sizes))
    made = place_along(node, node.type.upper(), x, axis, is_last=bool(node.attribute("select_last_index", 0)))
    sizes = _kept(node.sizes(0), [axis], bool(node.attribute("keepdims")))
    return node.reshaped(made, sizes)


def place_along(node: Node, operator: str, x: View, axis: int, *, is_last: bool = False) -> View:
    """Where along `axis` the extreme is that `operator` looks for, the first or the last of equal ones."""
    attributes = {"Axes": [axis], "AxisDirection": "DECREASING" if is_last else "INCREASING"}
    outputs = {"OutputTensor": (DataType.INT64, _one_along(x.sizes, [axis]))}
    return operate(node, operator, {"InputTensor": x}, attributes, outputs)


@maps("TopK")
def _top_k(node: Node) -> list[Value | None]:
    x = node.view(0)
    count = int(node.attribute("k") if node.opset < 10 else node.array(1, "k").item())
    axis = axis_of(node.attribute("axis"), len(x.sizes))
    return [*top(node, x, axis, count, is_largest=bool(node.attribute("largest", 1)))]


def top(node: Node, x: View, axis: int, count: int, *, is_largest: bool = True) -> tuple[View, View]:
    """So many extremes along `axis`, and where they are. Raises Unsupported."""
    if count > x.sizes[axis]:
        raise Unsupported(f"its k is {count}, of {x.sizes[axis]} elements")
    sizes = (*x.sizes[:axis], count, *x.sizes[axis + 1 :])
    require("TOP_K1", "InputTensor", x.data_type)
    made = node.build.operator(
        "TOP_K1",
        {"InputTensor": x},
        {"Axis": axis, "K": count, "AxisDirection": "DECREASING" if is_largest else "INCREASING"},
        {"OutputValueTensor": (x.data_type, sizes), "OutputIndexTensor": (DataType.UINT64, sizes)},
    )
    # DirectML's indices have no sign.
    return made["OutputValueTensor"], of_type(made["OutputIndexTensor"], DataType.INT64)


@maps(*_SCANS)
def _scan(node: Node) -> Value:
    x = node.view(0)
    operator, exclusive = _SCANS[node.type]
    attributes = {
        "Axis": axis_of(int(node.array(1, "axis").item()), len(x.sizes)),
        "AxisDirection": "DECREASING" if node.attribute("reverse") else "INCREASING",
        exclusive: bool(node.attribute("exclusive")),
    }
    return operate(node, operator, {"InputTensor": x}, attributes)


@maps("Range")
def _range(node: Node) -> Value:
    start, limit, step = (node.array(index, what).reshape(()) for index, what in enumerate(("start", "limit", "delta")))
    if not step:
        raise Unsupported("its delta is 0")
    if start.dtype.kind == "f":
        count = max(ceil(float(limit - start) / float(step)), 0)
    else:
        count = max(-((int(start) - int(limit)) // int(step)), 0)
    if count <= SMALL:  # such as axes, whose number is not inferred before
        known: Array = (start + np.arange(count).astype(start.dtype) * step).astype(start.dtype)
        return known
    data_type = node.data_type(0)
    require("FILL_VALUE_SEQUENCE", "OutputTensor", data_type)
    attributes = {"ValueDataType": data_type.value, "ValueStart": start.item(), "ValueDelta": step.item()}
    made = node.build.operator("FILL_VALUE_SEQUENCE", {}, attributes, {"OutputTensor": (data_type, (count,))})
    return made["OutputTensor"]
