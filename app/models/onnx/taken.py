"""What is made of elements where a mask is true: the same at all places, whatever that is where it is not."""

from collections.abc import Sequence

import numpy as np

from app.models.onnx.activations import ACTIVATIONS
from app.models.onnx.booleans import mark_outputs
from app.models.onnx.element_wise import BINARY, COMPARISONS, UNARY, VARIADIC, chosen
from app.models.onnx.indexing import gathered
from app.models.onnx.loose import Given, Loose, Made, Places, Taken, coordinate, laid, others
from app.models.onnx.mapping import MAPPINGS, Node
from app.models.onnx.operands import number, operate
from app.models.onnx.scatter_reductions import nothing_in
from app.models.onnx.schemas import schema_of
from app.models.onnx.shapes import axis_of, inserted, integers, removed
from app.models.onnx.tensors import View

ELEMENT_WISE = frozenset(
    [
        *ACTIVATIONS, *BINARY, *COMPARISONS, *UNARY, *VARIADIC,
        "Cast", "Clip", "Gelu", "HardSwish", "IsInf", "IsNaN", "Mish", "Mod", "Pow", "Round", "Where",
    ]
)  # fmt: skip


_SHARES = {"Softmax": "ACTIVATION_SOFTMAX1", "LogSoftmax": "ACTIVATION_LOG_SOFTMAX1"}

_ONE_SCALE = {"MatMulInteger": (2,), "QLinearMatMul": (1, 2)}
"""Inputs that may be of each row, of which nobody knows how many there are."""


def element_wise(node: Node, given: Sequence[Given]) -> Made:
    """Of tensors that are broadcast to each other, as their last dimensions agree."""
    found = [coordinate(node, each) if isinstance(each, Places) else each for each in given]
    taken = [each for each in found if isinstance(each, Taken)]
    if len(taken) < sum(isinstance(each, Loose) for each in given):
        return None
    first = taken[0]
    if any(each.mask != first.mask or _behind(each) != _behind(first) for each in taken):
        return None
    behind = _behind(first)
    if behind is None and any(each.rest != first.rest for each in taken):
        return None
    rank = len(first.rest) if behind is None else max(len(each.rest) for each in taken)
    for index, each in enumerate(found):
        if each is None or isinstance(each, Taken):
            continue
        view = _beside(node, node.view(index), behind)
        if view is None:
            return None
        node.inputs[index] = view
        rank = max(rank, len(view.sizes))
    places = len(first.mask.sizes)
    for index, each in enumerate(found):
        if isinstance(each, Taken):
            node.inputs[index] = inserted(each.values, places, rank - len(each.rest))
    made = mapped(node)
    if made is None or len(made.sizes) != places + rank:
        return None
    return first.of_rest(made, None if behind is None else rank - behind)


def mapped(node: Node) -> View | None:
    """What it makes of its inputs, all of which are known by now."""
    made = MAPPINGS["", node.type](node)
    if not isinstance(made, View):
        return None
    schema = schema_of("", node.type, node.opset)
    if schema is not None:
        mark_outputs(node.build, schema, node.inputs, node.attributes, [made])
    return made


def _behind(taken: Taken) -> int | None:
    """Dimensions behind that of the places."""
    return None if taken.along is None else len(taken.rest) - taken.along


def _beside(node: Node, view: View, behind: int | None) -> View | None:
    """A tensor of known sizes without the dimension that is broadcast to the places."""
    if behind is None:
        return node.reshaped(view, ()) if view.elements == 1 else None
    if len(view.sizes) <= behind:
        return view
    along = len(view.sizes) - 1 - behind
    return removed(view, along) if view.sizes[along] == 1 else None


def of_rows(node: Node, given: Sequence[Given]) -> Made:
    """What is made of each row by itself, as a layer does."""
    x, *rest = given
    if not isinstance(x, Taken) or x.along is None:
        return None
    last = len(x.rest)
    if node.type in _SHARES and axis_of(int(node.attribute("axis")), last + 1) == x.along:
        return _shares(node, x) if node.opset >= 13 else None
    if x.along == last:
        return None
    if any(isinstance(each, Loose) for each in rest) or axis_of(int(node.attribute("axis", -1)), last + 1) != last:
        return None
    if node.type == "Gemm" and (node.attribute("transA") or (len(rest) > 1 and len(node.sizes(2)) > 1) or last > 1):
        return None
    if node.type in _ONE_SCALE and any(node.has(k) and node.view(k).elements > 1 for k in _ONE_SCALE[node.type]):
        return None
    if any(node.wanted[1:]):
        return None
    *places, size = x.values.sizes
    node.inputs[0] = node.reshaped(x.values, (x.values.elements // size, size))
    if "axis" in node.attributes:
        node.attributes["axis"] = 1
    outputs = MAPPINGS["", node.type](node)
    made = outputs[0] if isinstance(outputs, list) else outputs
    if not isinstance(made, View) or made.sizes[:-1] != node.sizes(0)[:1]:
        return None
    return x.of_rest(node.reshaped(made, (*places, *made.sizes[1:])), x.along)


def _shares(node: Node, x: Taken) -> Taken:
    """Of all that is taken, in which the others have none."""
    values = x.whole()
    lowest = number(node, nothing_in("max", values.data_type), values.data_type, values.sizes)
    made = operate(
        node,
        _SHARES[node.type],
        {"InputTensor": chosen(node, x.condition(), values, lowest)},
        {"Axes": [*range(len(x.mask.sizes))]},
    )
    return x.of_rest(made, x.along)


def quantized(node: Node, given: Sequence[Given]) -> Made:
    """By one scale, to integers or back."""
    if any(each is not None and node.view(index).elements > 1 for index, each in enumerate(node.inputs)):
        return None
    return element_wise(node, given)


def quantized_by_range(node: Node, given: Sequence[Given]) -> list[Made]:
    """By the range of what is taken, in which 0 is anyway: so it stands for what is not."""
    (x,) = given
    if not isinstance(x, Taken):
        return [None]
    values = x.whole()
    node.inputs[0] = chosen(node, x.condition(), values, number(node, 0, values.data_type, values.sizes))
    made = MAPPINGS["", node.type](node)
    assert isinstance(made, list), "it has three outputs"
    integers, *scale = made
    assert isinstance(integers, View), "it is computed"
    return [x.of_rest(integers, x.along), *scale]


def transposed(node: Node, x: Taken) -> Made:
    if x.along is None:
        return None
    count = len(x.rest) + 1
    order = node.attribute("perm") or range(count)[::-1]
    if sorted(order) != list(range(count)):
        return None
    places = len(x.mask.sizes)
    rest = [places + axis - (axis > x.along) for axis in order if axis != x.along]
    return x.of_rest(x.values.transposed([*range(places), *rest]), list(order).index(x.along))


def beside(node: Node, given: Sequence[Given]) -> Taken | None:
    """What is taken of several at the same places, put together for each place."""
    taken = [each for each in given if isinstance(each, Taken)]
    first = taken[0]
    axis = _inner(first, int(node.attribute("axis", 1)))
    if axis is None or len(taken) < len(given):
        return None
    if any(each.mask != first.mask or each.along != first.along or len(each.rest) != len(first.rest) for each in taken):
        return None
    node.inputs[:] = [each.whole() for each in taken]
    node.attributes["axis"] = axis
    made = mapped(node)
    return None if made is None else first.of_rest(made, first.along)


def split(node: Node, x: Taken) -> list[Made]:
    """In parts of what each place has."""
    axis = _inner(x, int(node.attribute("axis")))
    if axis is None:
        return [None]
    node.inputs[0], node.attributes["axis"] = x.values, axis
    made = MAPPINGS["", node.type](node)
    assert isinstance(made, list), "there are parts"
    return [x.of_rest(each, x.along) if isinstance(each, View) else None for each in made]


def sliced(node: Node, x: Taken) -> Made:
    """A part of what each place has."""
    if node.opset < 10:
        return None
    axes = integers(node, 3, "axes") if node.has(3) else [*range(len(integers(node, 1, "starts")))]
    inner = [_inner(x, axis) for axis in axes]
    if None in inner:
        return None
    node.inputs[0] = x.values
    node.inputs[3:4] = [np.array(inner)]
    made = MAPPINGS["", node.type](node)
    return x.of_rest(made, x.along) if isinstance(made, View) else None


def _inner(x: Taken, axis: int) -> int | None:
    """Of `values`, if it is not that of the places."""
    if x.along is None:
        return None
    axis = axis_of(axis, len(x.rest) + 1)
    return None if axis == x.along else len(x.mask.sizes) + axis - (axis > x.along)


def gathered_by(node: Node, x: View, indices: Places | Taken) -> Taken | None:
    """What one coordinate along an axis leads to, or numbers: where the mask is false those may lead anywhere, which
    reads what is nearest."""
    axis = axis_of(int(node.attribute("axis")), len(x.sizes))
    if isinstance(indices, Places):
        if indices.along is not None:
            return None
        values = laid(x, indices.mask, indices.axes, axis)
        along = None if indices.repeated else axis
        made = None if values is None else Taken(indices.label, indices.why, indices.mask, values, along)
        return None if made is None or (axis and along is None) else made
    if indices.along is None or not indices.values.data_type.startswith("INT"):
        return None
    values = gathered(node, x, indices.values, axis)
    own = range(axis, axis + len(indices.mask.sizes))
    return indices.of_rest(values.transposed([*own, *others(values, own)]), axis + indices.along)
