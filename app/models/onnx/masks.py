"""Tensors whose sizes follow from elements: where a mask is true, and what lies there. DirectML has none of them.

But what is written back to where the same mask is true, x[mask] = f(y[mask]), is a choice between two tensors of known
sizes. So each says what it would be at all places, and ScatterND chooses. What Expand, Reshape and Slice make of sizes
on the way need not be known: elements keep their order, and ScatterND takes one for each place, or the model is no
valid one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from app.contract.constants import DataType
from app.models.onnx.activations import ACTIVATIONS
from app.models.onnx.booleans import mark, mark_outputs
from app.models.onnx.element_wise import BINARY, COMPARISONS, UNARY, VARIADIC, chosen, predicate
from app.models.onnx.indexing import gathered
from app.models.onnx.mapping import MAPPINGS, Node, Value, maps
from app.models.onnx.operands import number, operate
from app.models.onnx.reading import schema_of
from app.models.onnx.scatter_reductions import reduction_of
from app.models.onnx.shapes import axis_of, inserted, integers
from app.models.onnx.tensors import Sizes, Unsupported, View
from app.models.onnx.views import axes_given


@dataclass(frozen=True, slots=True)
class Loose:
    """A tensor whose sizes follow from elements; `why`, of the node `label`, is for who cannot take it."""

    label: str
    why: str


@dataclass(frozen=True, slots=True)
class Counts(Loose):
    """Sizes of such tensors, and what is computed of them."""


@dataclass(frozen=True, slots=True)
class Places(Loose):
    """Coordinates of where `mask` is true, those along `axes` of it. They lie along this one of two dimensions; one
    coordinate may have no dimension for it."""

    mask: View
    axes: tuple[int, ...]
    along: int | None


@dataclass(frozen=True, slots=True)
class Taken(Loose):
    """Those of `values` where `mask`, of the same sizes, is true. The last dimensions may be `rest`, in which the mask
    does not change."""

    mask: View
    values: View
    rest: Sizes


@dataclass(frozen=True, slots=True)
class Repeated(Loose):
    """`value` again and again."""

    value: View


@dataclass(frozen=True, slots=True)
class First(Loose):
    """So many of `values`, from the first on."""

    values: View


Given: TypeAlias = Value | Loose | None
"""An input of a node, which may be left out."""

Made: TypeAlias = Value | Loose | None
"""None if it cannot be made."""

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
    first, *_ = _loose(given)
    return Counts(first.label, first.why)


def _computed(node: Node, given: Sequence[Given]) -> Made:
    """Of sizes, if all that is loose are such."""
    return _counted(node, given) if all(isinstance(each, Counts) for each in _loose(given)) else None


def _element_wise(node: Node, given: Sequence[Given]) -> Made:
    """The same at all places, whatever it is where nothing is taken."""
    loose = _loose(given)
    taken = [each for each in loose if isinstance(each, Taken)]
    if len(taken) < len(loose):  # what several coordinates are broadcast to is asked as the sizes of their sum
        return _counted(node, given) if all(isinstance(each, Counts | Places) for each in loose) else None
    first = taken[0]
    if any(each.mask != first.mask or each.rest != first.rest for each in taken):
        return None
    for index, each in enumerate(given):
        if isinstance(each, Taken):
            node.inputs[index] = each.values
        elif each is not None and len(node.sizes(index)) > len(first.rest):
            view = node.view(index)
            if view.elements != 1:
                return None
            node.inputs[index] = node.reshaped(view, ())
    made = MAPPINGS["", node.type](node)
    if not isinstance(made, View) or made.sizes != first.values.sizes:
        return None
    schema = schema_of("", node.type, node.opset)
    if schema is not None:
        mark_outputs(node.build, schema, node.inputs, node.attributes, [made])
    return replace(first, values=made)


def _of_rows(node: Node, given: Sequence[Given]) -> Made:
    """What is made of each row by itself, as a layer does."""
    x, *others = given
    if not isinstance(x, Taken) or len(x.rest) != 1 or _loose(others) or node.attribute("axis", 1) not in (1, -1):
        return None
    if node.attribute("transA") or (len(others) > 1 and len(node.sizes(2)) > 1) or any(node.wanted[1:]):
        return None
    *places, size = x.values.sizes
    node.inputs[0] = node.reshaped(x.values, (x.values.elements // size, size))
    outputs = MAPPINGS["", node.type](node)
    made = outputs[0] if isinstance(outputs, list) else outputs
    if not isinstance(made, View) or made.sizes[:-1] != node.sizes(0)[:1]:
        return None
    rest = made.sizes[1:]
    mask = replace(x.mask, sizes=(*places, *rest))
    return replace(x, mask=mask, values=node.reshaped(made, mask.sizes), rest=rest)


def _in_order(node: Node, given: Sequence[Given]) -> Made:
    """What keeps elements in their order, however sizes change."""
    match given[0]:
        case Taken() as taken:
            return replace(taken, rest=())
        case Repeated() | First() | Counts() as same:
            return same
        case Places(along=None) as places:
            return places
    return None


def _expanded(node: Node, given: Sequence[Given]) -> Made:
    x, shape = given
    if isinstance(x, First):  # of which there may be one, to be repeated
        return None
    if isinstance(x, Loose):
        return _in_order(node, given)
    assert isinstance(shape, Loose), "one of both is"
    return Repeated(shape.label, shape.why, node.view(0))


def _sliced(node: Node, given: Sequence[Given]) -> Made:
    x = given[0]
    if isinstance(x, Counts):
        return x
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


def _gathered(node: Node, given: Sequence[Given]) -> Made:
    x, indices = given
    if isinstance(x, Places) and isinstance(indices, np.ndarray) and indices.ndim < 2 and x.along is not None:
        if axis_of(int(node.attribute("axis")), 2) != x.along:
            return None
        axes = tuple(x.axes[each] for each in indices.reshape(-1).tolist())
        return replace(x, axes=axes, along=x.along if indices.ndim else None)
    if isinstance(x, Loose) or not isinstance(indices, Places):
        return _computed(node, given)
    is_first = axis_of(int(node.attribute("axis")), len(node.sizes(0))) == 0
    return _taken(node.view(0), indices) if indices.along is None and is_first else None


def _gathered_by_tuples(node: Node, given: Sequence[Given]) -> Made:
    x, indices = given
    if isinstance(x, Loose) or not isinstance(indices, Places) or node.attribute("batch_dims", 0):
        return None
    return _taken(node.view(0), indices) if indices.along == 1 else None


def _taken(x: View, places: Places) -> Taken | None:
    mask = _all_places(places, x.sizes)
    return None if mask is None else Taken(places.label, places.why, mask, x, x.sizes[len(places.axes) :])


def _all_places(places: Places, sizes: Sizes) -> View | None:
    """The mask for each element of a tensor whose first dimensions are the mask's, in their order."""
    count = len(places.mask.sizes)
    if places.axes != tuple(range(count)) or sizes[:count] != places.mask.sizes:
        return None
    return inserted(places.mask, count, len(sizes) - count).broadcast(sizes)


def _split(node: Node, given: Sequence[Given]) -> "list[Made] | None":
    x = given[0]
    if not isinstance(x, Places) or len(_loose(given)) > 1 or axis_of(int(node.attribute("axis")), 2) != x.along:
        return None
    if len(node.wanted) != len(x.axes):  # one for each coordinate, as there is no other reason
        return None
    return [replace(x, axes=(axis,)) for axis in x.axes]


def _squeezed(node: Node, given: Sequence[Given]) -> Made:
    x = given[0]
    if isinstance(x, Places):
        axes = axes_given(node)
        is_one = axes is not None and [axis_of(axis, 2) for axis in axes] == [x.along] and len(x.axes) == 1
        return replace(x, along=None) if is_one else None
    return _in_order(node, given)


def _unsqueezed(node: Node, given: Sequence[Given]) -> Made:
    x, axes = given[0], axes_given(node)
    if isinstance(x, Places):
        is_new = x.along is None and axes is not None and len(axes) == 1
        return replace(x, along=axis_of(axes[0], 2)) if is_new and axes else None
    return _in_order(node, given)


def _transposed(node: Node, given: Sequence[Given]) -> Made:
    x = given[0]
    if isinstance(x, Places) and x.along is not None and list(node.attribute("perm") or [1, 0]) == [1, 0]:
        return replace(x, along=1 - x.along)
    return None


def _joined(node: Node, given: Sequence[Given]) -> Made:
    places = [each for each in given if isinstance(each, Places)]
    if len(places) < len(given):
        return _computed(node, given)
    first = places[0]
    if any(each.mask != first.mask or each.along is None or each.along != first.along for each in places):
        return None
    if axis_of(int(node.attribute("axis", 1)), 2) != first.along:
        return None
    return replace(first, axes=tuple(axis for each in places for axis in each.axes))


def _scattered(node: Node, given: Sequence[Given]) -> Made:
    """Where the mask is true, what is written there; else what was there."""
    data, places, updates = given
    if isinstance(data, Loose) or not isinstance(places, Places) or places.along != 1 or reduction_of(node):
        return None
    x = node.view(0)
    mask = _all_places(places, x.sizes)
    values = None if mask is None else _at_all_places(node, updates, mask, x.sizes)
    if mask is None or values is None or values.data_type is not x.data_type:
        return None
    made = chosen(node, mask, values, x)
    if node.is_boolean(0):
        mark(node.build, made)
    return made


def _at_all_places(node: Node, updates: Given, mask: View, sizes: Sizes) -> View | None:
    """What is written to each element where `mask` is true."""
    match updates:
        case Taken():
            own = None if updates.mask.elements != mask.elements else updates.mask.reshaped(sizes)
            is_same = own is not None and _without_ones(own) == _without_ones(mask)
            return node.reshaped(updates.values, sizes) if is_same else None
        case Repeated():
            value = _without_ones(updates.value)
            count = len(value.sizes)
            inner = slice(len(sizes) - count, None)
            if value.sizes != updates.value.sizes[len(updates.value.sizes) - count :]:  # which may be repeated in it
                return None
            is_cycle = count <= len(sizes) and value.sizes == sizes[inner] and not any(mask.strides[inner])
            return value.broadcast(sizes) if is_cycle else None
        case First():
            return node.reshaped(_in_turn(node, updates.values, mask), sizes)
    return None


def _without_ones(view: View) -> View:
    there = [axis for axis, size in enumerate(view.sizes) if size != 1]
    return view.transposed(there)


def _in_turn(node: Node, values: View, mask: View) -> View:
    """The first of `values` at the first place where `mask` is true, the second at the second, as masked_scatter has
    it; where it is false, any of them."""
    flags = node.cast(node.reshaped(mask, (mask.elements,)), DataType.INT32)
    attributes = {"Axis": 0, "AxisDirection": "INCREASING", "HasExclusiveSum": True}
    before = operate(node, "CUMULATIVE_SUMMATION", {"InputTensor": flags}, attributes)
    bounds = {"MinMaxDataType": "INT32", "Min": 0, "Max": values.elements - 1}
    return gathered(node, values, operate(node, "ELEMENT_WISE_CLIP1", {"InputTensor": before}, bounds), 0)


_ELEMENT_WISE = frozenset(
    [
        *ACTIVATIONS, *BINARY, *COMPARISONS, *UNARY, *VARIADIC,
        "Cast", "Clip", "Gelu", "HardSwish", "IsInf", "IsNaN", "Mish", "Mod", "Pow", "Round", "Where",
    ]
)  # fmt: skip

FOLLOWING: Mapping[str, Callable[[Node, Sequence[Given]], "Made | list[Made]"]] = {
    **dict.fromkeys(_ELEMENT_WISE, _element_wise),
    **dict.fromkeys(["Gemm", "LayerNormalization", "LogSoftmax", "MatMul", "Softmax"], _of_rows),
    "Concat": _joined,
    "ConstantOfShape": _computed,
    "Expand": _expanded,
    "Flatten": _in_order,
    "Gather": _gathered,
    "GatherND": _gathered_by_tuples,
    "Identity": lambda node, given: given[0],
    "ReduceProd": _computed,
    "Reshape": _in_order,
    "ScatterND": _scattered,
    "Shape": _counted,
    "Size": _counted,
    "Slice": _sliced,
    "Split": _split,
    "Squeeze": _squeezed,
    "Transpose": _transposed,
    "Unsqueeze": _unsqueezed,
}
"""By operator, with ai.onnx's meaning."""
