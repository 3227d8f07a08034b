"""Sequences of tensors, and optional ones, between nodes of a model: which tensors are in them is known.

So they are no tensors of the graph: who takes an element of one reads what was put there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from app.models.onnx.booleans import mark
from app.models.onnx.mapping import Node, Value
from app.models.onnx.movement import concat, window
from app.models.onnx.shapes import axis_of, inserted, integers
from app.models.onnx.tensors import Unsupported, View

_MOST_PARTS = 1 << 12
"""Of one tensor that is split: each takes a node."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A sequence of tensors."""

    elements: tuple[Value, ...]


Given: TypeAlias = Value | Listed | None
"""An input of a node, which may be left out."""


def _listed(given: Sequence[Given]) -> tuple[Value, ...]:
    """The elements of the first input."""
    first = given[0]
    if not isinstance(first, Listed):
        raise Unsupported("its first input is no sequence")
    return first.elements


def _tensors(given: Sequence[Given]) -> tuple[Value, ...]:
    made = tuple(each for each in given if each is not None and not isinstance(each, Listed))
    if len(made) != len(given):
        raise Unsupported("its inputs are not all tensors")
    return made


def _place(node: Node, count: int) -> int:
    """The second input as a place among `count`, or the last one."""
    (place,) = integers(node, 1, "position") if node.has(1) else [-1]
    return axis_of(place, count, "position")


def _empty(node: Node, given: Sequence[Given]) -> Listed:
    return Listed(())


def _constructed(node: Node, given: Sequence[Given]) -> Listed:
    return Listed(_tensors(given))


def _with(node: Node, given: Sequence[Given]) -> Listed:
    elements = _listed(given)
    count = len(elements)
    (place,) = integers(node, 2, "position") if node.has(2) else [count]
    place = count if place == count else axis_of(place, count, "position")
    (new,) = _tensors(given[1:2])
    return Listed((*elements[:place], new, *elements[place:]))


def _without(node: Node, given: Sequence[Given]) -> Listed:
    elements = _listed(given)
    place = _place(node, len(elements))
    return Listed((*elements[:place], *elements[place + 1 :]))


def _at(node: Node, given: Sequence[Given]) -> Value:
    elements = _listed(given)
    return elements[_place(node, len(elements))]


def _length(node: Node, given: Sequence[Given]) -> Value:
    return np.array(len(_listed(given)), np.int64)


def _joined(node: Node, given: Sequence[Given]) -> Value:
    elements = _listed(given)
    if not elements:
        raise Unsupported("its sequence is empty")
    node.inputs[:] = elements
    new = bool(node.attribute("new_axis"))
    axis = axis_of(int(node.attribute("axis")), len(node.sizes(0)) + new)
    arrays = [each for each in elements if not isinstance(each, View)]
    if len(arrays) == len(elements):
        return np.stack(arrays, axis) if new else np.concatenate(arrays, axis)
    if new:
        node.inputs[:] = [inserted(node.view(index), axis) for index in range(len(elements))]
    node.attributes["axis"] = axis
    made = concat(node)
    assert not isinstance(made, list), "it has one output"
    if node.build.is_boolean(elements[0]):
        mark(node.build, made)
    return made


def _split(node: Node, given: Sequence[Given]) -> Listed:
    (x,) = _tensors(given[:1])
    sizes = node.sizes(0)
    axis = axis_of(int(node.attribute("axis")), len(sizes))
    parts = _parts(node, sizes[axis])
    if len(parts) > _MOST_PARTS:
        raise Unsupported(f"it has {len(parts)} parts, more than {_MOST_PARTS}")
    ends = np.cumsum(parts).tolist()
    made: list[Value] = []
    for end, part in zip(ends, parts, strict=True):
        ranges = [range(end - part, end) if k == axis else range(size) for k, size in enumerate(sizes)]
        if isinstance(x, View):
            value = window(node, x, ranges)
            if node.build.is_boolean(x):
                mark(node.build, value)
        else:
            value = x[tuple(slice(each.start, each.stop) for each in ranges)]
        if not node.has(1) and not node.attribute("keepdims"):
            kept = (*sizes[:axis], *sizes[axis + 1 :])
            value = node.reshaped(value, kept) if isinstance(value, View) else value.reshape(kept)
        made.append(value)
    return Listed(tuple(made))


def _parts(node: Node, size: int) -> Sequence[int]:
    """How long the parts of `size` elements are: as they are given, or all but the last one as one number says."""
    if not node.has(1):
        return [1] * min(size, _MOST_PARTS + 1)
    parts = integers(node, 1, "split")
    if not node.sizes(1):
        (each,) = parts
        if each < 1:
            raise Unsupported(f"its split is {each}")
        if size > each * _MOST_PARTS:
            raise Unsupported(f"it has more than {_MOST_PARTS} parts")
        parts = [min(each, size - start) for start in range(0, size, each)]
    if sum(parts) != size or min(parts, default=0) < 0:
        raise Unsupported(f"its parts {parts} do not make up {size} elements")
    return parts


def _itself(node: Node, given: Sequence[Given]) -> Value | Listed:
    """What is optional, and there."""
    if not given or given[0] is None:
        raise Unsupported("its input is left out")
    return given[0]


def _is_there(node: Node, given: Sequence[Given]) -> Value:
    return np.array(bool(given) and given[0] is not None)


SEQUENCES: Mapping[str, Callable[[Node, Sequence[Given]], Value | Listed]] = {
    "ConcatFromSequence": _joined,
    "Optional": _itself,
    "OptionalGetElement": _itself,
    "OptionalHasElement": _is_there,
    "SequenceAt": _at,
    "SequenceConstruct": _constructed,
    "SequenceEmpty": _empty,
    "SequenceErase": _without,
    "SequenceInsert": _with,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
"""By operator. Of the node's inputs, those that are sequences are left out."""
