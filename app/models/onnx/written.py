"""What becomes of elements where a mask is true: tensors whose sizes are known again.

What lies where the mask is false is left out by choices, not by products with 0, which NaN and infinities outlast.
"""

from collections.abc import Sequence
from math import prod

from app.contract.constants import DataType, ReduceFunction
from app.models.onnx.booleans import mark
from app.models.onnx.element_wise import chosen, linear
from app.models.onnx.indexing import elements_at, gathered, written
from app.models.onnx.loose import First, Given, Loose, Made, Places, Repeated, Rows, Taken, laid, others
from app.models.onnx.mapping import Node
from app.models.onnx.movement import joined, parted
from app.models.onnx.operands import FLOATS, number, operate
from app.models.onnx.reductions import FUNCTIONS, axes_along, place_along, reduced
from app.models.onnx.scatter_reductions import REDUCTIONS, met, nothing_in, one_place, reduction_of
from app.models.onnx.shapes import axis_of, inserted, removed
from app.models.onnx.tensors import Sizes, View

_OF_NONE = {
    "ReduceSum": "add",
    "ReduceMean": "add",
    "ReduceSumSquare": "add",
    "ReduceL1": "add",
    "ReduceL2": "add",
    "ReduceProd": "mul",
    "ReduceMax": "max",
    "ReduceMin": "min",
}
"""To what elements are left out as."""


def total(node: Node, given: Sequence[Given]) -> Made:
    """Of all that is taken, of which there may be any number, or of what each place has."""
    x, *rest = given
    if not isinstance(x, Taken) or any(isinstance(each, Loose) for each in rest):
        return None
    if x.along is None:  # then it is of all of them, or nobody knows of which
        is_of_all = not (node.attribute("axes") or node.has(1) or node.attribute("keepdims")) and axes_along(node, 1)
        made = _total_where(node, x, range(len(x.values.sizes))) if is_of_all else None
        return None if made is None else node.reshaped(made, ())
    axes = axes_along(node, len(x.rest) + 1)
    is_kept, places = bool(node.attribute("keepdims")), len(x.mask.sizes)
    inner = [places + axis - (axis > x.along) for axis in axes if axis != x.along]
    if x.along in axes:
        made = _total_where(node, x, [*range(places), *inner])
        return None if made is None else node.reshaped(made, _left(x.dims or (), axes, is_kept))
    if not inner:
        return None
    values = reduced(node, x.values, FUNCTIONS[node.type], inner)
    rest_left = _left(x.dims or (), [*axes, x.along], keepdims=False) if not is_kept else values.sizes[places:]
    along = x.along - (0 if is_kept else sum(axis < x.along for axis in axes))
    return x.of_rest(node.reshaped(values, (*values.sizes[:places], *rest_left)), along)


def _left(dims: Sequence[int | None], axes: Sequence[int], keepdims: bool) -> Sizes:
    return tuple(1 if axis in axes else size or 0 for axis, size in enumerate(dims) if keepdims or axis not in axes)


def _total_where(node: Node, x: Taken, axes: Sequence[int]) -> View | None:
    none = _OF_NONE.get(node.type)
    if none is None:
        return None
    values, function = x.whole(), FUNCTIONS[node.type]
    is_mean = function is ReduceFunction.AVERAGE
    if is_mean:
        if values.data_type not in FLOATS:
            return None
        function, values = ReduceFunction.SUM, node.cast(values, DataType.FLOAT32)
    neutral = number(node, nothing_in(none, values.data_type), values.data_type, values.sizes)
    made = reduced(node, chosen(node, x.condition(), values, neutral), function, axes)
    if is_mean:
        flags = node.cast(x.mask, DataType.FLOAT32)
        places = reduced(node, flags, ReduceFunction.SUM, range(len(flags.sizes)))
        each = prod(values.sizes[axis] for axis in axes) // flags.elements
        count = linear(node, node.reshaped(places, ()), each, 0).broadcast(made.sizes)
        made = operate(node, "ELEMENT_WISE_DIVIDE", {"ATensor": made, "BTensor": count})
        made = node.cast(made, x.values.data_type)
    return made


def scattered(node: Node, given: Sequence[Given]) -> Made:
    """Where the mask is true, what is written there; else what was there."""
    data, indices, updates = given
    if isinstance(data, Loose):
        return None
    x, reduction = node.view(0), reduction_of(node)
    is_exact = isinstance(updates, Taken) and updates.along == 0
    places = _tuples(indices) if node.type == "ScatterND" else _of_rows(node, x, indices) if is_exact else None
    made = None
    if places is None:
        if isinstance(indices, Taken) and node.type == "ScatterND" and not reduction:
            made = _by_tuples(node, x, indices, updates)
    elif places.axes == tuple(range(len(places.mask.sizes))) and (is_exact or not reduction):
        made = _at_each(node, x, places, updates, reduction)
    elif is_exact and isinstance(updates, Taken):
        made = _at_some(node, x, places, updates, reduction)
    if made is not None and node.is_boolean(0):
        mark(node.build, made)
    return made


def _by_tuples(node: Node, x: View, indices: Taken, updates: Given) -> View | None:
    """To where numbers lead. Those where the mask is false lead to a row behind all others, which is cut off again."""
    *before, count = indices.rest or (0,)
    if not isinstance(updates, Taken) or updates.mask != indices.mask or not 0 < count <= len(x.sizes):
        return None
    if (
        indices.along is None
        or updates.along != indices.along
        or indices.along > len(before)
        or not indices.values.data_type.startswith("INT")
    ):
        return None
    if updates.rest != (*before, *x.sizes[count:]) or updates.values.data_type is not x.data_type:
        return None
    rows, width = prod(x.sizes[:count]), prod(x.sizes[count:])
    places = one_place(node, indices.whole(), x.sizes[:count])
    flags = inserted(indices.mask, len(indices.mask.sizes), len(before)).broadcast((*indices.mask.sizes, *before))
    places = chosen(
        node, node.reshaped(flags, places.sizes), places, number(node, rows, places.data_type, places.sizes)
    )
    data = node.reshaped(x, (rows, width))
    more = joined(node.build, [data, number(node, 0, x.data_type, (1, width))], 0)
    given = node.reshaped(updates.whole(), (places.elements, width))
    made = written(node, more, inserted(places, 1), given)
    return node.reshaped(parted(node.build, made, 0, [rows, 1])[0], x.sizes)


def _tuples(indices: Given) -> Places | None:
    return indices if isinstance(indices, Places) and indices.along == 1 else None


def _of_rows(node: Node, x: View, indices: Given) -> Places | None:
    """What ScatterND has for it, where all elements of a row are written to one row."""
    rank = len(x.sizes)
    if rank > 2 or axis_of(int(node.attribute("axis")), rank) != 0:
        return None
    match indices:
        case Rows(column=column) if rank == 2:
            return column
        case Places(axes=(_,), along=1) if rank == 2 and x.sizes[1] == 1:
            return indices
        case Places(along=None, repeated=False) if rank == 1:
            return indices
    return None


def _at_each(node: Node, x: View, places: Places, updates: Given, reduction: str | None) -> View | None:
    """To each place of the mask at most one is written."""
    count = len(places.mask.sizes)
    if x.sizes[:count] != places.mask.sizes:
        return None
    condition = inserted(places.mask, count, len(x.sizes) - count).broadcast(x.sizes)
    values = _at_all_places(node, updates, condition, x.sizes)
    if values is None or values.data_type is not x.data_type:
        return None
    if reduction:
        values = operate(node, REDUCTIONS[reduction].operator, {"ATensor": x, "BTensor": values})
    return chosen(node, condition, values, x)


def _at_some(node: Node, x: View, places: Places, updates: Taken, reduction: str | None) -> View | None:
    """The same where several places may lead to one element: all of them are added to it, or the last is written."""
    axes = places.axes
    if laid(x, places.mask, axes) is None or updates.mask != places.mask or updates.rest != x.sizes[len(axes) :]:
        return None
    if updates.values.data_type is not x.data_type:
        return None
    left, along, rest = others(places.mask, axes), len(axes), updates.rest
    assert left, "else these are all places, though perhaps in another order"
    count = prod(places.mask.sizes[axis] for axis in left)
    sizes = (*x.sizes[:along], count, *rest)
    order = [*axes, *left, *range(len(places.mask.sizes), len(places.mask.sizes) + len(rest))]
    values = node.reshaped(updates.whole().transposed(order), sizes)
    flags = node.reshaped(places.mask.transposed(order[: -len(rest) or None]), (*sizes[: along + 1], *[1] * len(rest)))
    if reduction:
        return met(node, x, flags.broadcast(sizes), values, along, reduction)
    last = place_along(node, "ARGMAX", node.cast(flags, DataType.INT32), along, is_last=True)
    found, last = (
        each.broadcast((*x.sizes[:along], 1, *rest)) for each in (elements_at(node, flags, last, along), last)
    )
    return chosen(node, removed(found, along), removed(elements_at(node, values, last, along), along), x)


def _at_all_places(node: Node, updates: Given, condition: View, sizes: Sizes) -> View | None:
    """What is written to each element where `condition` is true."""
    match updates:
        case Taken():
            own = updates.condition()
            if own.elements != condition.elements or (updates.along and prod(updates.rest[: updates.along]) > 1):
                return None
            own = own.reshaped(sizes) or own
            is_same = _without_ones(own) == _without_ones(condition)
            return node.reshaped(updates.whole(), sizes) if is_same else None
        case Repeated():
            value = _without_ones(updates.value)
            count = len(value.sizes)
            inner = slice(len(sizes) - count, None)
            if value.sizes != updates.value.sizes[len(updates.value.sizes) - count :]:  # which may be repeated in it
                return None
            is_cycle = count <= len(sizes) and value.sizes == sizes[inner] and not any(condition.strides[inner])
            return value.broadcast(sizes) if is_cycle else None
        case First():
            return node.reshaped(_in_turn(node, updates.values, condition), sizes)
    return None


def _without_ones(view: View) -> View:
    return view.transposed([axis for axis, size in enumerate(view.sizes) if size != 1])


def _in_turn(node: Node, values: View, condition: View) -> View:
    """The first of `values` at the first place where `condition` is true, the second at the second, as masked_scatter
    has it; where it is false, any of them."""
    flags = node.cast(node.reshaped(condition, (condition.elements,)), DataType.INT32)
    attributes = {"Axis": 0, "AxisDirection": "INCREASING", "HasExclusiveSum": True}
    before = operate(node, "CUMULATIVE_SUMMATION", {"InputTensor": flags}, attributes)
    bounds = {"MinMaxDataType": "INT32", "Min": 0, "Max": values.elements - 1}
    return gathered(node, values, operate(node, "ELEMENT_WISE_CLIP1", {"InputTensor": before}, bounds), 0)
