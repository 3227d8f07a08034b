"""Elements moved as they are: cut out, joined, repeated, padded, turned round."""

from collections.abc import Sequence
from math import isnan, prod
from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.contract.tensors import MAX_TENSORS
from app.memory.arrays import numpy_type
from app.models.onnx.builder import Builder
from app.models.onnx.casts import BOOL, TYPES
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.moved import restored_by_one
from app.models.onnx.shapes import (
    axes_of,
    axis_of,
    inserted,
    integers,
    limited,
    nothing,
    of_type,
    raw,
)
from app.models.onnx.tensors import Sizes, Unsupported, View

_PADDING_MODES = {"constant": "CONSTANT", "reflect": "REFLECTION", "edge": "EDGE", "wrap": "WRAP"}
_DEPTH_ORDERS = {"DCR": "DEPTH_COLUMN_ROW", "CRD": "COLUMN_ROW_DEPTH"}
_TYPES = {number: each for number, each in TYPES.items() if each.bits >= 8} | {BOOL: DataType.UINT8}
"""Of TensorProto.DataType, those whose elements are written one by one."""


def window(node: Node, x: View, ranges: Sequence[range]) -> Value:
    """The elements at these places along each dimension."""
    sizes = tuple(map(len, ranges))
    if 0 in sizes:
        return nothing(sizes, x.data_type)
    if all(each == range(size) for each, size in zip(ranges, x.sizes, strict=True)):
        return x
    limited(len(sizes))
    before = restored_by_one(node.build, x)
    if before:
        moved = window(node, before.x, ranges)
        assert isinstance(moved, View), "there are elements"
        return before.again(node.build, moved)
    made = node.build.operator(
        "SLICE1",
        {"InputTensor": x},
        {
            "InputWindowOffsets": [min(each[0], each[-1]) for each in ranges],
            "InputWindowSizes": [abs(each[-1] - each[0]) + 1 for each in ranges],
            # A step along which only one element lies may be any.
            "InputWindowStrides": [each.step if len(each) > 1 else 1 for each in ranges],
        },
        {"OutputTensor": (x.data_type, sizes)},
    )
    return made["OutputTensor"]


def joined(build: Builder, parts: Sequence[View], axis: int) -> View:
    """Tensors one after the other along `axis`, of which there is one at least. An operator joins so many at most."""
    limited(len(parts[0].sizes))
    while len(parts) > 1:
        groups = [parts[start : start + MAX_TENSORS] for start in range(0, len(parts), MAX_TENSORS)]
        parts = [_join(build, group, axis) for group in groups]
    return parts[0]


def _join(build: Builder, parts: Sequence[View], axis: int) -> View:
    first = parts[0]
    if len(parts) == 1:
        return first
    sizes = list(first.sizes)
    sizes[axis] = sum(each.sizes[axis] for each in parts)
    outputs = {"OutputTensor": (first.data_type, tuple(sizes))}
    return build.operator("JOIN", {"InputTensors": parts}, {"Axis": axis}, outputs)["OutputTensor"]


def parted(build: Builder, x: View, axis: int, parts: Sequence[int]) -> list[View]:
    """`x` in parts of so many elements along `axis`. An operator makes so many at most."""
    if len(parts) > MAX_TENSORS:
        each = -(-len(parts) // MAX_TENSORS)
        groups = [parts[start : start + each] for start in range(0, len(parts), each)]
        larger = parted(build, x, axis, [sum(group) for group in groups])
        return [part for whole, group in zip(larger, groups, strict=True) for part in parted(build, whole, axis, group)]
    if len(parts) == 1:
        return [x]
    limited(len(x.sizes))
    before = restored_by_one(build, x)
    if before:
        return [before.again(build, each) for each in parted(build, before.x, axis, parts)]
    shapes = [(*x.sizes[:axis], part, *x.sizes[axis + 1 :]) for part in parts]
    outputs = {"OutputTensors": [(x.data_type, shape) for shape in shapes]}
    return list(build.operator("SPLIT", {"InputTensor": x}, {"Axis": axis}, outputs).values())


def padded(
    node: Node, x: View, starts: Sequence[int], ends: Sequence[int], value: float = 0, mode: str = "CONSTANT"
) -> View:
    """`x` with so many elements around it, which may be none."""
    if not (any(starts) or any(ends)):
        return x
    limited(len(x.sizes))
    sizes = tuple(size + start + end for size, start, end in zip(x.sizes, starts, ends, strict=True))
    taken = x
    if isnan(value):  # which no scalar is, but its bits
        value = int(np.array(value, numpy_type(x.data_type)).view(f"u{x.data_type.bits // 8}"))
        taken = raw(x)
    made = node.build.operator(
        "PADDING1",
        {"InputTensor": taken},
        {
            "PaddingMode": mode,
            "PaddingValueDataType": taken.data_type.value,
            "PaddingValue": value,
            "StartPadding": list(starts),
            "EndPadding": list(ends),
        },
        {"OutputTensor": (taken.data_type, sizes)},
    )
    return of_type(made["OutputTensor"], x.data_type)


@maps("Slice")
def slice_(node: Node) -> Value:
    sizes = node.sizes(0)
    if node.opset < 10:
        starts, ends, axes = (node.attribute(name) for name in ("starts", "ends", "axes"))
        steps = None
    else:
        starts, ends = integers(node, 1, "starts"), integers(node, 2, "ends")
        axes = integers(node, 3, "axes") if node.has(3) else None
        steps = integers(node, 4, "steps") if node.has(4) else None
    axes = axes_of(list(range(len(starts))) if axes is None else axes, len(sizes))
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise Unsupported(f"starts {starts}, ends {ends}, axes {axes} and steps {steps} do not go together")
    ranges = [range(size) for size in sizes]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        ranges[axis] = range(*slice(start, end, step).indices(sizes[axis]))
    return window(node, node.view(0), ranges)


@maps("Crop")
def crop(node: Node) -> Value:
    """Of an image, without a border, or of so many rows and columns."""
    sizes = node.sizes(0)
    if len(sizes) < 2:
        raise Unsupported(f"its sizes {list(sizes)} are no image's")
    left, top, right, bottom = (int(each) for each in node.attribute("border"))
    *_, rows, columns = sizes
    scale = node.attribute("scale")
    if scale:
        bottom, right = rows - top - int(scale[0]), columns - left - int(scale[1])
    if min(left, top, right, bottom) < 0:
        raise Unsupported(f"its border goes beyond its sizes {sizes}")
    leading = [range(size) for size in sizes[:-2]]
    return window(node, node.view(0), [*leading, range(top, rows - bottom), range(left, columns - right)])


@maps("Split")
def split(node: Node) -> list[Value | None]:
    sizes = node.sizes(0)
    axis = axis_of(int(node.attribute("axis")), len(sizes))
    size, count = sizes[axis], len(node.wanted)
    parts = integers(node, 1, "split") if node.has(1) else node.attribute("split")
    if parts is None:
        each = -(-size // count)
        parts = [max(min(each, size - k * each), 0) for k in range(count)]
    if len(parts) != count or int(node.attribute("num_outputs", count)) != count:
        raise Unsupported(f"it has {count} outputs and as many parts as {parts}")
    if sum(parts) != size or min(parts) < 0:
        raise Unsupported(f"its parts {parts} do not make up the {size} elements along axis {axis}")
    x = node.view(0)
    shapes: list[Sizes] = [(*sizes[:axis], part, *sizes[axis + 1 :]) for part in parts]
    made: list[Value | None] = [nothing(shape, x.data_type) if 0 in shape else None for shape in shapes]
    there = [k for k, part in enumerate(parts) if part]
    if there:
        found = parted(node.build, x, axis, [parts[k] for k in there])
        for k, part in zip(there, found, strict=True):
            made[k] = part
    return made


@maps("Concat")
def concat(node: Node) -> Value:
    all_sizes = [node.sizes(index) for index in range(len(node.inputs))]
    axis = axis_of(int(node.attribute("axis", 1)), len(all_sizes[0]))
    there = [index for index, sizes in enumerate(all_sizes) if 0 not in sizes]
    if not there:
        total = sum(sizes[axis] for sizes in all_sizes)
        sizes = (*all_sizes[0][:axis], total, *all_sizes[0][axis + 1 :])
        return nothing(sizes, node.data_type(0))
    return joined(node.build, [node.view(index) for index in there], axis)


@maps("Tile")
def tile(node: Node) -> Value:
    sizes, repeats = node.sizes(0), integers(node, 1, "repeats")
    if len(repeats) != len(sizes) or any(count < 0 for count in repeats):
        raise Unsupported(f"repeats {repeats} are not one for each of {len(sizes)} dimensions")
    x = node.view(0)
    wanted = tuple(size * count for size, count in zip(sizes, repeats, strict=True))
    if 0 in wanted:
        return nothing(wanted, x.data_type)
    # One element is repeated by reading it again; the others need an operator.
    rest = [1 if size == 1 else count for size, count in zip(sizes, repeats, strict=True)]
    if any(count != 1 for count in rest):
        limited(len(sizes))
        made = tuple(size * count for size, count in zip(sizes, rest, strict=True))
        taken = raw(x)  # TILE has no FLOAT64
        outputs = {"OutputTensor": (taken.data_type, made)}
        tiled = node.build.operator("TILE", {"InputTensor": taken}, {"Repeats": rest}, outputs)
        x = of_type(tiled["OutputTensor"], x.data_type)
    return x.broadcast(wanted)


@maps("Pad")
def pad(node: Node) -> Value:
    """What is cut off by negative paddings comes first."""
    sizes = node.sizes(0)
    value: Any
    if node.opset < 11:
        pads, value = [int(each) for each in node.attribute("pads")], node.attribute("value", 0.0)
    else:
        pads = integers(node, 1, "pads")
        value = node.value(2) if node.has(2) else 0
    axes = axes_of(integers(node, 3, "axes") if node.has(3) else list(range(len(sizes))), len(sizes))
    if len(pads) != 2 * len(axes):
        raise Unsupported(f"pads {pads} are not two for each of axes {axes}")
    mode = node.attribute("mode")
    if mode not in _PADDING_MODES:
        raise Unsupported(f"its mode is {mode}")
    starts, ends = [0] * len(sizes), [0] * len(sizes)
    for place, axis in enumerate(axes):
        starts[axis], ends[axis] = pads[place], pads[place + len(axes)]
    kept = [range(max(-a, 0), size - max(-b, 0)) for a, b, size in zip(starts, ends, sizes, strict=True)]
    if any(not each for each in kept):
        raise Unsupported("nothing of its input is left by negative pads")
    x = window(node, node.view(0), kept)
    assert isinstance(x, View), "something is left"
    starts, ends = [max(each, 0) for each in starts], [max(each, 0) for each in ends]
    if isinstance(value, View):
        if mode == "constant":
            return _surrounded(node, x, starts, ends, value)
        value = 0
    value = np.asarray(value).reshape(-1)[0].item()
    if not x.data_type.value.startswith("FLOAT"):
        value = int(value)
    return padded(node, x, starts, ends, value, _PADDING_MODES[mode])


def _surrounded(node: Node, x: View, starts: Sequence[int], ends: Sequence[int], value: View) -> View:
    """The same as `padded` with a value that is not known: it is joined dimension by dimension."""
    one = node.reshaped(value, (1,) * len(x.sizes))
    for axis, (start, end) in enumerate(zip(starts, ends, strict=True)):
        around = [one.broadcast((*x.sizes[:axis], count, *x.sizes[axis + 1 :])) for count in (start, end) if count]
        x = joined(node.build, [*around[: bool(start)], x, *around[bool(start) :]], axis)
    return x


@maps("SpaceToDepth")
def space_to_depth(node: Node) -> View:
    x, block = _image(node), int(node.attribute("blocksize"))
    batch, channels, rows, columns = x.sizes
    sizes = (batch, channels * block * block, rows // block, columns // block)
    return _moved(node, "SPACE_TO_DEPTH1", x, {"BlockSize": block, "Order": _order(node)}, sizes)


@maps("DepthToSpace")
def depth_to_space(node: Node) -> View:
    x, block = _image(node), int(node.attribute("blocksize"))
    batch, depth, rows, columns = x.sizes
    sizes = (batch, depth // (block * block), rows * block, columns * block)
    return _moved(node, "DEPTH_TO_SPACE1", x, {"BlockSize": block, "Order": _order(node)}, sizes)


@maps("ReverseSequence")
def reverse_sequence(node: Node) -> View:
    x, lengths = node.view(0), node.view(1)
    rank = limited(len(x.sizes))
    time, batch = (axis_of(int(node.attribute(name)), rank) for name in ("time_axis", "batch_axis"))
    sizes = [*x.sizes]
    sizes[time] = 1
    lengths = inserted(inserted(lengths, 1, rank - batch - 1), 0, batch).broadcast(sizes)
    return turned(node, x, of_type(lengths, DataType(f"U{lengths.data_type}")), time)


def turned(node: Node, x: View, lengths: View, axis: int) -> View:
    """The first elements along `axis` in reverse, as many as `lengths` say, whose size is 1 there."""
    made = node.build.operator(
        "REVERSE_SUBSEQUENCES",
        {"InputTensor": x, "SequenceLengthsTensor": lengths},
        {"Axis": axis},
        {"OutputTensor": (x.data_type, x.sizes)},
    )
    return made["OutputTensor"]


@maps("Trilu")
@maps("Trilu", domain="com.microsoft")
def trilu(node: Node) -> View:
    """A band of diagonals filled with zeros, up to the first that stays, or behind the last."""
    x = node.view(0)
    if len(x.sizes) < 2:
        raise Unsupported(f"it has {len(x.sizes)} dimensions")
    *leading, rows, columns = x.sizes
    taken = x if len(x.sizes) <= 4 else node.reshaped(x, (prod(leading), rows, columns))
    beyond = rows + columns
    k = integers(node, 1, "k")[0] if node.has(1) else 0
    k = max(min(k, beyond), -beyond)
    band = (-beyond - 1, k) if node.attribute("upper", 1) else (k + 1, beyond + 2)
    made = node.build.operator(
        "DIAGONAL_MATRIX1",
        {"InputTensor": taken},
        {
            "ValueDataType": x.data_type.value,
            "Value": 0,
            "DiagonalFillBegin": band[0],
            "DiagonalFillEnd": band[1],
        },
        {"OutputTensor": (x.data_type, taken.sizes)},
    )
    return node.reshaped(made["OutputTensor"], x.sizes)


@maps("EyeLike")
def eye_like(node: Node) -> View:
    """Nothing of its input is read but its sizes."""
    sizes, wanted = node.sizes(0), node.attribute("dtype")
    data_type = node.data_type(0) if wanted is None else _TYPES.get(int(wanted))
    if data_type is None or len(sizes) != 2:
        raise Unsupported(f"its dtype is {wanted}, and its input has {len(sizes)} dimensions")
    k = max(min(int(node.attribute("k")), sizes[1]), -sizes[0])
    outputs = {"OutputTensor": (data_type, sizes)}
    return node.build.operator("DIAGONAL_MATRIX", {}, {"Offset": k, "Value": 1.0}, outputs)["OutputTensor"]


def _order(node: Node) -> str:
    mode = node.attribute("mode", "DCR")
    if mode not in _DEPTH_ORDERS:
        raise Unsupported(f"its mode is {mode}")
    return _DEPTH_ORDERS[mode]


def _image(node: Node) -> View:
    if len(node.sizes(0)) != 4:
        raise Unsupported(f"it has {len(node.sizes(0))} dimensions, not 4")
    return node.view(0)


def _moved(node: Node, operator: str, x: View, attributes: dict[str, Any], sizes: Sizes) -> View:
    made = node.build.operator(operator, {"InputTensor": x}, attributes, {"OutputTensor": (x.data_type, sizes)})
    return made["OutputTensor"]
