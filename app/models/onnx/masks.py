"""Tensors whose sizes follow from elements: where a mask is true, and what lies there. DirectML has none of them.

But what is written back to where the same mask is true, x[mask] = f(y[mask]), is a choice between two tensors of known
sizes, and what is added to rows, or summed over all that is taken, is a sum of choices. So each says what it would be
at all places, and where among its sizes their number is. Where Expand, Reshape and Slice make others of these that are
not known, it may be written to places still: elements keep their order, and ScatterND takes one for each place, or the
model is no valid one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from app.models.onnx.counts import SIZES, as_data, product, times
from app.models.onnx.element_wise import predicate
from app.models.onnx.loose import (
    Counts,
    Dims,
    First,
    Given,
    Loose,
    Made,
    Places,
    Repeated,
    Rows,
    Taken,
    as_dims,
    coordinate,
    laid,
)
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.operands import number, operate
from app.models.onnx.reductions import FUNCTIONS, axes_along
from app.models.onnx.shapes import axes_of, axis_of, inserted, integers, removed
from app.models.onnx.taken import (
    ELEMENT_WISE,
    beside,
    element_wise,
    gathered_by,
    of_rows,
    quantized,
    quantized_by_range,
    sliced,
    split,
    transposed,
)
from app.models.onnx.tensors import Unsupported, View
from app.models.onnx.views import axes_given
from app.models.onnx.written import scattered, total

NO_SIZES = "DirectML's sizes are known before, and those of its outputs follow from elements that are not"


def begun(node: Node) -> Loose | None:
    """What a node makes of tensors whose sizes are known, if that is loose."""
    if node.type == "NonZero":
        return _nonzero(node)
    if node.type == "Expand" and node.has(1) and isinstance(node.inputs[1], View):
        return Repeated(node.name, "its shape is not constant", node.view(0))
    if node.type == "Slice" and node.has(2) and isinstance(node.inputs[2], View) and _is_from_first(node):
        return _first(node, node.name, "its ends is not constant")
    return None


@maps("NonZero")
def _nowhere(node: Node) -> Value:
    raise Unsupported(NO_SIZES)


def followed(node: Node, given: Sequence[Given]) -> Sequence[Made]:
    """What a node makes of `given`, of which some are loose; those are left out of its inputs."""
    made = FOLLOWING[node.type](node, given) if node.type in FOLLOWING else None
    return made if isinstance(made, list) else [made]


def _nonzero(node: Node) -> Places | None:
    x = node.view(0)
    if not x.sizes:
        return None
    if not node.is_boolean(0):
        zero = predicate(node, "ELEMENT_WISE_LOGICAL_EQUALS", x, number(node, 0, x.data_type))
        x = operate(node, "ELEMENT_WISE_LOGICAL_NOT", {"InputTensor": zero})
    return Places(node.name, NO_SIZES, x, tuple(range(len(x.sizes))), 0)


def _first(node: Node, label: str, why: str) -> First:
    x = node.view(0)
    return First(label, why, node.reshaped(x, (x.elements,)))


def _is_from_first(node: Node) -> bool:
    """Whether a Slice takes the first of all that lies along the first dimension."""
    steps = integers(node, 4, "steps") if node.has(4) else [1]
    axes = integers(node, 3, "axes") if node.has(3) else [0]
    return node.has(1) and integers(node, 1, "starts") == [0] and axes == [0] and steps == [1]


def _loose(given: Sequence[Given]) -> list[Loose]:
    return [each for each in given if isinstance(each, Loose)]


def _counted(node: Node, given: Sequence[Given]) -> Made:
    """Shape, of which a part may be known."""
    first, *_ = _loose(given)
    dims, mask = _dims(first)
    if dims is None:
        return Counts(first.label, first.why)
    counts = Counts(first.label, first.why, mask, dims)
    if node.type == "Size":
        return product(counts, has_dimension=False)
    return _part(counts, dims[slice(node.attribute("start", 0), node.attribute("end"))])


def _dims(loose: Loose) -> tuple[Dims | None, View | None]:
    """Sizes, as far as they are known, and the mask of which one is."""
    match loose:
        case Taken():
            return loose.dims, loose.mask
        case Places(repeated=False):
            dims: list[int | None] = [None]
            if loose.along is not None:
                dims.insert(loose.along, len(loose.axes))
            return tuple(dims), loose.mask
        case Counts(mask=mask) if mask is not None:
            return (len(loose.dims),) if loose.has_dimension else (), mask
    return None, None


def _part(counts: Counts, dims: Dims, *, has_dimension: bool = True) -> Made:
    """Some of sizes. Those of which none is loose are known."""
    if None not in dims:
        known = np.array(dims, np.int64)
        return known if has_dimension else known.reshape(())
    return replace(counts, dims=dims, has_dimension=has_dimension)


def _computed(node: Node, given: Sequence[Given]) -> Made:
    """Of sizes, if all that is loose are such."""
    loose = _loose(given)
    if not all(isinstance(each, Counts) for each in loose):
        return None
    first, *_ = loose
    return Counts(first.label, first.why)


def _element_wise(node: Node, given: Sequence[Given]) -> Made:
    made = element_wise(node, given)
    if made is not None:
        return made
    if not all(isinstance(each, Counts | Places) for each in _loose(given)):
        return None
    first, *_ = _loose(given)
    inexact = Counts(first.label, first.why)
    data = as_data(node, given)
    if data is not None:
        return data
    match node.type, list(given):
        case "Cast", [Counts() as counts] if int(node.attribute("to")) in SIZES:
            return counts
        case "Equal", [Counts(mask=mask) as counts, np.ndarray() as known] if mask is not None and (known < 0).all():
            if counts.has_dimension and known.shape in ((), (1,), (len(counts.dims),)):
                return np.zeros(len(counts.dims), np.bool_)
        case "Mul", [np.ndarray() as factor, Counts() as counts] | [Counts() as counts, np.ndarray() as factor]:
            return times(counts, factor)
        case "Where", [np.ndarray() as condition, _, Counts(has_dimension=True) as counts]:
            if condition.shape == (len(counts.dims),) and not condition.any():
                return counts
    return inexact


def _in_order(node: Node, given: Sequence[Given]) -> Made:
    """What keeps elements in their order, however sizes change."""
    match given[0]:
        case Taken() as taken:
            return as_dims(node, taken, None)
        case Repeated() | First() as same:
            return same
        case Counts() as counts:
            return Counts(counts.label, counts.why)
        case Places(along=None) as places:
            return replace(places, repeated=True)
    return None


def _reshaped(node: Node, given: Sequence[Given]) -> Made:
    x, shape = given
    is_flat = isinstance(shape, np.ndarray) and shape.tolist() == [-1]
    match x:
        case Taken():
            return as_dims(node, x, _dims_wanted(node, x, shape))
        case Counts() if is_flat:
            return replace(x, has_dimension=True)
        case Places(along=None) if is_flat:
            return x
    return _in_order(node, given)


def _dims_wanted(node: Node, x: Taken, shape: Given) -> Dims | None:
    """What a shape says of the elements of `x`, with None for the count of them."""
    dims: list[int | None]
    match shape:
        case np.ndarray():
            dims = shape.tolist()
        case Counts(mask=mask) if mask == x.mask:
            dims = [*shape.dims]
        case _:
            return None
    if 0 in dims and not node.attribute("allowzero", 0):
        if x.dims is None or dims.index(0) >= len(x.dims):
            return None
        dims = [own if each == 0 else each for own, each in zip([*x.dims, *dims[len(x.dims) :]], dims, strict=False)]
    if -1 in dims:
        known = prod(each for each in dims if each not in (None, -1) and each is not None)
        free = prod(x.rest) // known if None in dims and known else None
        dims[dims.index(-1)] = free
    return tuple(dims)


def _flattened(node: Node, given: Sequence[Given]) -> Made:
    x = given[0]
    if not isinstance(x, Taken) or x.dims is None:
        return _in_order(node, given)
    axis = int(node.attribute("axis"))
    before, behind = x.dims[:axis], x.dims[axis:]
    sides = (None if None in side else prod(each or 0 for each in side) for side in (before, behind))
    return as_dims(node, x, tuple(sides))


def _expanded(node: Node, given: Sequence[Given]) -> Made:
    x, shape = given
    wanted: Dims | None = None
    if isinstance(shape, np.ndarray):
        wanted = tuple(shape.tolist())
    elif isinstance(shape, Counts) and shape.mask is not None:
        wanted = shape.dims
    if isinstance(x, Places) and x.along == 0:
        x = coordinate(node, x)
        if x is None:
            return None
    match x:
        case Taken(along=along) if along is not None and wanted is not None:
            is_same = not isinstance(shape, Counts) or shape.mask == x.mask
            return _broadcast(x, wanted) if is_same else None
        case Places(along=None) if wanted == (None,) and isinstance(shape, Counts) and shape.mask == x.mask:
            return x
        case Places(axes=(_,), along=1):
            return Rows(x.label, x.why, x)
        case First():  # of which there may be one, to be repeated
            return None
        case Loose():
            return _in_order(node, given)
    assert isinstance(shape, Loose), "one of both is"
    if isinstance(shape, Counts) and wanted is not None:
        made = _spread(node.view(0), shape)
        if made is not None:
            return made
    return Repeated(shape.label, shape.why, node.view(0))


def _spread(value: View, shape: Counts) -> Taken | None:
    """`value` in these sizes."""
    if shape.mask is None or shape.dims.count(None) != 1:
        return None
    ones = (1,) * len(shape.mask.sizes)
    along = shape.dims.index(None)
    behind = len(shape.dims) - along - 1
    if len(value.sizes) > behind:
        place = len(value.sizes) - behind - 1
        if value.sizes[place] != 1:
            return None
        value = removed(value, place)
    rest = tuple(each for each in shape.dims if each is not None)
    if len(value.sizes) > len(rest):
        return None
    sizes = np.broadcast_shapes(value.sizes, rest)
    return Taken(shape.label, shape.why, shape.mask, value.broadcast((*ones, *sizes)), along)


def _broadcast(x: Taken, wanted: Dims) -> Taken | None:
    """`x` repeated to these sizes, each place once."""
    assert x.along is not None, "its sizes are known"
    behind = len(x.rest) - x.along
    sizes = [*wanted]
    if len(sizes) > behind and sizes.pop(len(sizes) - behind - 1) not in (None, 1):
        return None
    if None in sizes:
        return None
    places = len(x.mask.sizes)
    rest = np.broadcast_shapes(x.rest, tuple(each or 0 for each in sizes))
    values = inserted(x.values, places, len(rest) - len(x.rest))
    return x.of_rest(values.broadcast((*x.values.sizes[:places], *rest)), len(rest) - behind)


def _constant_of_shape(node: Node, given: Sequence[Given]) -> Made:
    shape = given[0]
    if not isinstance(shape, Counts):
        return None
    value = node.attribute("value")
    one = np.zeros((), np.float32) if value is None else value.reshape(())
    return _spread(node.build.constant(one), shape) or _computed(node, given)


def _sliced(node: Node, given: Sequence[Given]) -> Made:
    x = given[0]
    if isinstance(x, Counts):
        return _sizes_between(node, x, given)
    if isinstance(x, Taken) and all(isinstance(each, np.ndarray) for each in given[1:] if each is not None):
        return sliced(node, x)
    if isinstance(x, Places):
        if x.along is None or node.opset < 10 or len(_loose(given)) > 1:
            return None
        starts, ends = integers(node, 1, "starts"), integers(node, 2, "ends")
        axes = integers(node, 3, "axes") if node.has(3) else [*range(len(starts))]
        steps = integers(node, 4, "steps") if node.has(4) else [1] * len(starts)
        if [axis_of(axis, 2) for axis in axes] != [x.along] or steps != [1]:
            return None
        return replace(x, axes=x.axes[starts[0] : ends[0]])
    is_open = len(given) > 2 and isinstance(given[2], View | Counts)
    if not is_open or _loose([*given[1:2], *given[3:]]) or not _is_from_first(node):
        return None
    if isinstance(x, Loose):
        return _in_order(node, given)
    first, *_ = _loose(given)
    return _first(node, first.label, first.why)


def _sizes_between(node: Node, x: Counts, given: Sequence[Given]) -> Made:
    """Of sizes a part."""
    if len(_loose(given)) > 1 or x.mask is None or not x.has_dimension or node.opset < 10:
        return Counts(x.label, x.why)
    starts, ends = integers(node, 1, "starts"), integers(node, 2, "ends")
    steps = integers(node, 4, "steps") if node.has(4) else [1]
    return _part(x, x.dims[slice(starts[0], ends[0], steps[0])])


def _gathered(node: Node, given: Sequence[Given]) -> Made:
    x, indices = given
    if isinstance(x, Counts) and isinstance(indices, np.ndarray) and x.mask is not None and x.has_dimension:
        dims = tuple(x.dims[each] for each in indices.reshape(-1).tolist())
        return _part(x, dims, has_dimension=bool(indices.ndim)) if indices.ndim < 2 else None
    if isinstance(x, Places) and isinstance(indices, np.ndarray) and indices.ndim < 2 and x.along is not None:
        if axis_of(int(node.attribute("axis")), 2) != x.along:
            return None
        axes = tuple(x.axes[each] for each in indices.reshape(-1).tolist())
        return replace(x, axes=axes, along=x.along if indices.ndim else None)
    if isinstance(x, Loose) or not isinstance(indices, Places | Taken):
        return _computed(node, given)
    return gathered_by(node, node.view(0), indices)


def _gathered_by_tuples(node: Node, given: Sequence[Given]) -> Made:
    x, indices = given
    if isinstance(x, Loose) or not isinstance(indices, Places) or node.attribute("batch_dims", 0):
        return None
    values = laid(node.view(0), indices.mask, indices.axes) if indices.along == 1 else None
    if values is None:
        return None
    return Taken(indices.label, indices.why, indices.mask, values, None if indices.repeated else 0)


def _split(node: Node, given: Sequence[Given]) -> "list[Made] | None":
    x = given[0]
    if isinstance(x, Taken) and len(_loose(given)) == 1:
        return split(node, x)
    if not isinstance(x, Places) or len(_loose(given)) > 1 or axis_of(int(node.attribute("axis")), 2) != x.along:
        return None
    if len(node.wanted) != len(x.axes):  # one for each coordinate, as there is no other reason
        return None
    return [replace(x, axes=(axis,)) for axis in x.axes]


def _squeezed(node: Node, given: Sequence[Given]) -> Made:
    x, axes = given[0], axes_given(node)
    match x:
        case Places():
            is_one = axes is not None and [axis_of(axis, 2) for axis in axes] == [x.along] and len(x.axes) == 1
            return replace(x, along=None) if is_one else None
        case Counts(has_dimension=True) if len(x.dims) == 1:
            return replace(x, has_dimension=False)
        case Taken() if x.dims is not None and axes is not None:
            cut = axes_of(axes, len(x.dims))
            return as_dims(node, x, tuple(each for axis, each in enumerate(x.dims) if axis not in cut))
    return _in_order(node, given)


def _unsqueezed(node: Node, given: Sequence[Given]) -> Made:
    x, axes = given[0], axes_given(node)
    match x:
        case Places():
            if x.along is not None or axes is None or len(axes) > 1 or (x.repeated and axes != [-1]):
                return None
            return replace(x, along=axis_of(axes[0], 2))
        case Counts(has_dimension=False):
            return replace(x, has_dimension=True)
        case Taken() if x.dims is not None and axes is not None:
            rank = len(x.dims) + len(axes)
            new, left = axes_of(axes, rank), iter(x.dims)
            return as_dims(node, x, tuple(1 if axis in new else next(left) for axis in range(rank)))
    return _in_order(node, given)


def _transposed(node: Node, given: Sequence[Given]) -> Made:
    x = given[0]
    if isinstance(x, Places) and x.along is not None and list(node.attribute("perm") or [1, 0]) == [1, 0]:
        return replace(x, along=1 - x.along)
    return transposed(node, x) if isinstance(x, Taken) else None


def _joined(node: Node, given: Sequence[Given]) -> Made:
    if any(isinstance(each, Taken) for each in given):
        return beside(node, given)
    if not any(isinstance(each, Places) for each in given):
        return _joined_sizes(node, given)
    places = [each for each in given if isinstance(each, Places)]
    first = places[0]
    if len(places) < len(given) or any(
        each.mask != first.mask or each.along is None or each.along != first.along for each in places
    ):
        return None
    axis, repeated = int(node.attribute("axis", 1)), any(each.repeated for each in places)
    if axis_of(axis, 2) != first.along or (repeated and axis != -1):
        return None
    return replace(first, axes=tuple(axis for each in places for axis in each.axes), repeated=repeated)


def _joined_sizes(node: Node, given: Sequence[Given]) -> Made:
    made = _computed(node, given)
    dims: list[int | None] = []
    masks = [each.mask for each in given if isinstance(each, Counts)]
    if not isinstance(made, Counts) or any(mask is None or mask != masks[0] for mask in masks):
        return made
    for each in given:
        if isinstance(each, Counts):
            dims += each.dims
        elif isinstance(each, np.ndarray):
            dims += each.tolist()
        else:
            return made
    return replace(made, mask=masks[0], dims=tuple(dims))


def _total(node: Node, given: Sequence[Given]) -> Made:
    x = given[0]
    if isinstance(x, Counts) and node.type == "ReduceProd" and x.has_dimension and axes_along(node, 1):
        return product(x, has_dimension=bool(node.attribute("keepdims")))
    return total(node, given) if isinstance(x, Taken) else _computed(node, given)


_OF_ROWS = ("Gemm", "LayerNormalization", "LogSoftmax", "MatMul", "MatMulInteger", "QLinearMatMul", "Softmax")

FOLLOWING: Mapping[str, Callable[[Node, Sequence[Given]], "Made | list[Made]"]] = {
    **dict.fromkeys(ELEMENT_WISE, _element_wise),
    **dict.fromkeys(FUNCTIONS, _total),
    **dict.fromkeys(["DequantizeLinear", "QuantizeLinear"], quantized),
    **dict.fromkeys(_OF_ROWS, of_rows),
    **dict.fromkeys(["Scatter", "ScatterElements", "ScatterND"], scattered),
    "Concat": _joined,
    "ConstantOfShape": _constant_of_shape,
    "DynamicQuantizeLinear": quantized_by_range,
    "Expand": _expanded,
    "Flatten": _flattened,
    "Gather": _gathered,
    "GatherND": _gathered_by_tuples,
    "Identity": lambda node, given: given[0],
    "Reshape": _reshaped,
    "Shape": _counted,
    "Size": _counted,
    "Slice": _sliced,
    "Split": _split,
    "Squeeze": _squeezed,
    "Transpose": _transposed,
    "Unsqueeze": _unsqueezed,
}
"""By operator, with ai.onnx's meaning."""
