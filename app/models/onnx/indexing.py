"""What indices lead to: gathered, scattered, and ones among zeros."""

from math import prod

import numpy as np

from app.contract.constants import DataType
from app.models.onnx.builder import Array
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.movement import joined, window
from app.models.onnx.operands import number, operate
from app.models.onnx.scatter_reductions import one_place, reduction_of, updated
from app.models.onnx.shapes import along, axis_of, inserted, integers, limited, nothing
from app.models.onnx.tensors import Sizes, Unsupported, View

_INDICES = (DataType.INT64, DataType.INT32, DataType.UINT64, DataType.UINT32)


def indices_of(node: Node, index: int) -> View:
    """An input of indices. Raises Unsupported if they are of a type that is none for indices."""
    view = node.view(index)
    if view.data_type not in _INDICES:
        raise Unsupported(f"its indices are {view.data_type}")
    return view


@maps("Gather")
def gather(node: Node) -> View:
    x = node.view(0)
    return gathered(node, x, indices_of(node, 1), axis_of(int(node.attribute("axis")), len(x.sizes)))


def gathered(node: Node, x: View, indices: View, axis: int) -> View:
    """What `indices` along `axis` lead to."""
    count = len(indices.sizes)
    sizes = (*x.sizes[:axis], *indices.sizes, *x.sizes[axis + 1 :])
    rank = limited(max(len(x.sizes), count, len(sizes)))
    attributes = {"Axis": axis + rank - len(x.sizes), "IndexDimensions": count}
    inputs = {"InputTensor": x, "IndicesTensor": indices}
    return node.build.operator("GATHER", inputs, attributes, {"OutputTensor": (x.data_type, sizes)}, rank=rank)[
        "OutputTensor"
    ]


@maps("Compress")
def compress(node: Node) -> Value:
    x, condition = node.view(0), node.array(1, "condition")
    axis = node.attribute("axis")
    if axis is None:
        x, axis = node.reshaped(x, (x.elements,)), 0
    axis = axis_of(int(axis), len(x.sizes))
    (chosen,) = np.nonzero(condition.reshape(-1)[: x.sizes[axis]])
    if not chosen.size:
        return nothing((*x.sizes[:axis], 0, *x.sizes[axis + 1 :]), x.data_type)
    return gathered(node, x, node.build.constant(chosen.astype(np.int64)), axis)


@maps("GatherElements")
def gather_elements(node: Node) -> View:
    x, indices = node.view(0), indices_of(node, 1)
    axis = _own_axis(node, x, indices)
    return elements_at(node, _met(node, x, indices, axis), indices, axis)


def elements_at(node: Node, x: View, indices: View, axis: int) -> View:
    """For each of `indices`, of as many dimensions as `x`, what it leads to along `axis` from its own place."""
    inputs = {"InputTensor": x, "IndicesTensor": indices}
    outputs = {"OutputTensor": (x.data_type, indices.sizes)}
    return node.build.operator("GATHER_ELEMENTS", inputs, {"Axis": axis}, outputs)["OutputTensor"]


@maps("GatherND")
def gather_nd(node: Node) -> View:
    x, indices, batches = node.view(0), indices_of(node, 1), int(node.attribute("batch_dims", 0))
    known = node.inputs[1]
    while isinstance(known, np.ndarray) and _leads_to_own_place(known, x.sizes, batches):
        known, batches = known[..., 1:], batches + 1
        indices = node.build.constant(known)
    length = indices.sizes[-1]
    sizes = (*indices.sizes[:-1], *x.sizes[batches + length :])
    made = node.build.operator(
        "GATHER_ND1",
        {"InputTensor": x, "IndicesTensor": indices},
        {
            "InputDimensionCount": len(x.sizes),
            "IndicesDimensionCount": len(indices.sizes),
            "BatchDimensionCount": batches,
        },
        {"OutputTensor": (x.data_type, sizes)},
        rank=limited(max(len(x.sizes), len(indices.sizes), len(sizes))),
    )
    return made["OutputTensor"]


@maps("Scatter", "ScatterElements")
def scatter_elements(node: Node) -> View:
    """Of a part, where indices are fewer than elements; it is joined with the rest dimension by dimension."""
    x, indices, updates = node.view(0), indices_of(node, 1), node.view(2)
    axis, reduction = _own_axis(node, x, indices), reduction_of(node)
    part = _met(node, x, indices, axis)
    if reduction:
        made = updated(node, part, indices, updates, axis, reduction)
    else:
        inputs = {"InputTensor": part, "IndicesTensor": indices, "UpdatesTensor": updates}
        outputs = {"OutputTensor": (x.data_type, part.sizes)}
        made = node.build.operator("SCATTER", inputs, {"Axis": axis}, outputs)["OutputTensor"]
    for k, (size, whole) in enumerate(zip(part.sizes, x.sizes, strict=True)):
        if size < whole:
            ranges = [*map(range, x.sizes[:k]), range(size, whole), *map(range, part.sizes[k + 1 :])]
            rest = window(node, x, ranges)
            assert isinstance(rest, View), "there are more elements"
            made = joined(node.build, [made, rest], k)
    return made


@maps("ScatterND")
def scatter_nd(node: Node) -> View:
    x, indices, updates = node.view(0), indices_of(node, 1), node.view(2)
    reduction = reduction_of(node)
    if reduction:
        taken, width = x.sizes[: indices.sizes[-1]], prod(x.sizes[indices.sizes[-1] :])
        rows = (node.reshaped(x, (prod(taken), width)), node.reshaped(updates, (updates.elements // width, width)))
        places = inserted(one_place(node, indices, taken), 1).broadcast(rows[1].sizes)
        return node.reshaped(updated(node, rows[0], places, rows[1], 0, reduction), x.sizes)
    return written(node, x, indices, updates)


def written(node: Node, x: View, indices: View, updates: View) -> View:
    """`x` with `updates` where tuples of `indices` lead."""
    made = node.build.operator(
        "SCATTER_ND",
        {"InputTensor": x, "IndicesTensor": indices, "UpdatesTensor": updates},
        {"InputDimensionCount": len(x.sizes), "IndicesDimensionCount": len(indices.sizes)},
        {"OutputTensor": (x.data_type, x.sizes)},
        rank=limited(max(len(x.sizes), len(indices.sizes), len(updates.sizes))),
    )
    return made["OutputTensor"]


@maps("TensorScatter")
def tensor_scatter(node: Node) -> View:
    """A cache, into which each batch is written from a place of its own on."""
    cache, update = node.view(0), node.view(1)
    rank = limited(len(cache.sizes))
    axis = axis_of(int(node.attribute("axis")), rank)
    others = [size for k, size in enumerate(cache.sizes) if k != axis]
    if axis == 0 or len(update.sizes) != rank or others != [size for k, size in enumerate(update.sizes) if k != axis]:
        raise Unsupported(f"its update has sizes {update.sizes}, which do not fit {cache.sizes} along {axis}")
    count, most = update.sizes[axis], cache.sizes[axis]
    if count > most:
        raise Unsupported(f"its update has {count} elements along its axis, and its cache {most}")
    places = along(node.build.constant(np.arange(count)), axis, rank).broadcast(update.sizes)
    if node.has(2):
        begin = along(node.view(2), 0, rank).broadcast(update.sizes)
        places = operate(node, "ELEMENT_WISE_ADD", {"ATensor": begin, "BTensor": places})
    if node.attribute("mode") == "circular":
        size = number(node, most, places.data_type, update.sizes)
        places = operate(node, "ELEMENT_WISE_MODULUS_FLOOR", {"ATensor": places, "BTensor": size})
    inputs = {"InputTensor": cache, "IndicesTensor": places, "UpdatesTensor": update}
    return operate(node, "SCATTER", inputs, {"Axis": axis})


@maps("OneHot")
def one_hot(node: Node) -> View:
    indices, values = node.view(0), node.view(2)
    depth = integers(node, 1, "depth")[0]
    if indices.data_type not in _INDICES:
        indices = node.cast(indices, DataType.INT64)
    rank = limited(len(indices.sizes) + 1)
    axis = axis_of(int(node.attribute("axis")), rank)
    if depth < 1:
        raise Unsupported(f"its depth is {depth}")
    made = node.build.operator(
        "ONE_HOT",
        {"IndicesTensor": inserted(indices, axis), "ValuesTensor": values},
        {"Axis": axis},
        {"OutputTensor": (values.data_type, (*indices.sizes[:axis], depth, *indices.sizes[axis:]))},
        rank=rank,
    )
    return made["OutputTensor"]


def _leads_to_own_place(indices: Array, sizes: Sizes, axis: int) -> bool:
    """Whether the first coordinate of all tuples is their own along `axis`, so that this is a batch."""
    if indices.shape[-1] < 2 or axis + 1 >= min(indices.ndim, len(sizes)) or indices.shape[axis] != sizes[axis]:
        return False
    own = np.arange(sizes[axis]).reshape([-1 if n == axis else 1 for n in range(indices.ndim - 1)])
    return bool((indices[..., 0] == own).all())


def _own_axis(node: Node, x: View, indices: View) -> int:
    rank = limited(len(x.sizes))
    axis = axis_of(int(node.attribute("axis")), rank)
    if len(indices.sizes) != rank or any(
        count > size for k, (count, size) in enumerate(zip(indices.sizes, x.sizes, strict=True)) if k != axis
    ):
        raise Unsupported(f"its indices have sizes {indices.sizes}, which do not fit {x.sizes}")
    return axis


def _met(node: Node, x: View, indices: View, axis: int) -> View:
    """The part of `x` that indices along `axis` can be of: DirectML has as many of them as elements elsewhere."""
    ranges = [range(size if k == axis else indices.sizes[k]) for k, size in enumerate(x.sizes)]
    part = window(node, x, ranges)
    assert isinstance(part, View), "tensors have elements"
    return part
