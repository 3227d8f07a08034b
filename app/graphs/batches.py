"""Whether the items of a batch go through a graph apart from one another, which its operators tell.

Of each tensor is known how items lie in it. An item of an operator's output must be made of the same item of what it
reads and of what is the same for all items, in the same way whichever it is and however many there are: the graph is
looked at together with that of a batch of another size. What is not known to be so is not so.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from app.contract.tensors import TensorDesc
from app.graphs.graph import Constant, Graph, GraphInput, Node, NodeOutput, Source
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator
from app.operators.looks import look
from app.programs.batch_axes import Reads


class BatchGraph(NamedTuple):
    """A graph for a batch of so many items."""

    graph: Graph
    items: int


Descs: TypeAlias = tuple[TensorDesc, TensorDesc]
"""Of a tensor in both graphs; so are other pairs."""

Steps: TypeAlias = tuple[int, int]


class _Axis(NamedTuple):
    """Where items lie in a tensor: the item of a coordinate along `axis` is that divided by `inner`, modulo how many
    items there are."""

    axis: int
    inner: int


@dataclass(frozen=True, eq=False, slots=True)
class _Held:
    """What is known of a source's memory: in each of `steps`, of so many bits, are elements of one item, and in the
    next of the next; those of the first may follow again after the last one."""

    is_of_items: bool
    """Whether it depends on the batch. If so and without steps, on several items at once for all one knows."""
    steps: frozenset[Steps] = frozenset()
    data: tuple[Buffer, Buffer] | None = None
    """Of a constant, whose steps are found where somebody asks."""


_MIXED = _Held(is_of_items=True)


def are_apart(one: BatchGraph, other: BatchGraph, inputs: Mapping[str, int], outputs: Iterable[str]) -> bool:
    """Whether each item of `outputs` is made of the same one of all `inputs`, whose items have so many bits.

    Inputs and outputs have their items one behind the other.
    """
    pair = _Pair(one, other, inputs)
    return all(pair.is_apart(name) for name in outputs)


class _Pair:
    def __init__(self, one: BatchGraph, other: BatchGraph, inputs: Mapping[str, int]) -> None:
        self._sides = (one, other)
        self._known: dict[tuple[CompiledOperator, str], Mapping[int, Reads]] = {}
        self._held: dict[tuple[Source, Source], _Held] = {
            (GraphInput(name), GraphInput(name)): _Held(is_of_items=True, steps=frozenset([(bits, bits)]))
            for name, bits in inputs.items()
        }
        for node, its in zip(one.graph.nodes.values(), other.graph.nodes.values(), strict=False):
            look()
            for name in node.compiled.outputs.keys() & its.compiled.outputs.keys():
                outputs = (NodeOutput(node.index, name), NodeOutput(its.index, name))
                self._held[outputs] = self._made(node, its, name)

    def is_apart(self, name: str) -> bool:
        outputs = [side.graph.outputs[name] for side in self._sides]
        one, other = (
            each.desc.elements * each.desc.DataType.bits / side.items
            for each, side in zip(outputs, self._sides, strict=True)
        )
        return (one, other) in self._held_by(outputs[0].source, outputs[1].source).steps

    def _held_by(self, one: Source, other: Source) -> _Held:
        if isinstance(one, Constant) and isinstance(other, Constant):
            data = self._sides[0].graph.constants[one.node], self._sides[1].graph.constants[other.node]
            here, there = (np.frombuffer(each, np.uint8) for each in data)
            return _Held(is_of_items=not np.array_equal(here, there), data=data)
        return self._held.get((one, other), _MIXED)

    def _made(self, node: Node, its: Node, name: str) -> _Held:
        compiled, other = node.compiled, its.compiled
        if compiled.program is not other.program:  # which there is one of, for the same operator and tensors
            return _MIXED
        inputs = {each: (compiled.inputs[each], other.inputs[each]) for each in compiled.inputs}
        held = {each: self._held_by(node.sources[each], its.sources[each]) for each in inputs}
        descs = (compiled.outputs[name], other.outputs[name])
        attributes = (_attributes(node), _attributes(its))
        steps = set()
        axes, others = self._axes(compiled, name), self._axes(other, name)
        for axis in axes.keys() & others.keys():
            reads = axes[axis]
            is_alike = _are_alike(attributes, axis) and _are_equal(descs, {axis}) and reads == others[axis]
            for inner in self._inners(axis, descs, inputs, held, reads) if is_alike else ():
                step = self._steps_of(descs, _Axis(axis, inner))
                if step and all(
                    self._is_read_apart(inputs[each], held[each], along, inner) for each, along in reads.items()
                ):
                    steps.add(step)
        is_same = _are_alike(attributes) and all(_are_equal(each) for each in (descs, *inputs.values()))
        return _Held(not is_same or any(each.is_of_items for each in held.values()), frozenset(steps))

    def _axes(self, compiled: CompiledOperator, name: str) -> Mapping[int, Reads]:
        """Looked for once for all nodes that do the same."""
        if (compiled, name) not in self._known:
            self._known[compiled, name] = compiled.batch_axes(name)
        return self._known[compiled, name]

    def _inners(
        self, axis: int, descs: Descs, inputs: Mapping[str, Descs], held: Mapping[str, _Held], reads: Reads
    ) -> set[int]:
        """As how many places of an axis an item may have in a row."""
        found = {1, descs[0].Sizes[axis] // self._sides[0].items}
        for name, along in reads.items():
            for steps in held[name].steps:
                at = self._axis_of(inputs[name], steps)
                found |= {at.inner} if at and along.get(at.axis) else set()
        return found - {0}

    def _is_read_apart(self, descs: Descs, held: _Held, along: Mapping[int, bool], inner: int) -> bool:
        """Whether all that is read of a tensor for an item is of that item, or the same for all. It is read at the
        item's place `along` these axes, and as a whole along others."""
        of_items = {axis for axis in along if self._has(held, descs, _Axis(axis, inner))}
        if held.is_of_items and not any(along[axis] for axis in of_items):
            return False
        repeated = {axis for axis in along if all(desc.steps[axis] == 0 for desc in descs)}
        return along.keys() == of_items | repeated and _are_equal(
            descs, {axis for axis, always in along.items() if always}
        )

    def _has(self, held: _Held, descs: Descs, at: _Axis) -> bool:
        """Whether items of a tensor lie there, in the memory that its descriptors describe."""
        steps = self._steps_of(descs, at)
        if steps is None:
            return False
        if held.data is None:
            return steps in held.steps
        items = [_items(data, step, side.items) for data, step, side in zip(held.data, steps, self._sides, strict=True)]
        first = [each[:, :1] for each in items if each is not None and (each == each[:, :1]).all()]
        return len(first) == len(items) and np.array_equal(first[0], first[1])

    def _steps_of(self, descs: Descs, at: _Axis) -> Steps | None:
        """From item to item that lie there, if they do."""
        one, other = (desc.steps[at.axis] * at.inner * desc.DataType.bits for desc in descs)
        return (one, other) if self._axis_of(descs, (one, other)) == at else None

    def _axis_of(self, descs: Descs, steps: Steps) -> _Axis | None:
        """Where items are that lie in these steps in memory, if that is along one axis, and the same in both graphs."""
        found = {_axis_of(desc, step, side.items) for desc, step, side in zip(descs, steps, self._sides, strict=True)}
        return found.pop() if len(found) == 1 else None


def _axis_of(desc: TensorDesc, step: int, items: int) -> _Axis | None:
    step, left = divmod(step, desc.DataType.bits)
    if left or not step:
        return None
    # Dimensions lead over all items, again and again, or are inside one, or are that along which there are several.
    others = [(axis, stride) for axis, stride in enumerate(desc.steps) if stride % (step * items)]
    axis, stride = max(others, key=lambda each: each[1] if each[1] <= step else 0, default=(0, step + 1))
    if step % stride:
        return None
    inner = step // stride
    reach = sum((desc.Sizes[other] - 1) * each for other, each in others if other != axis)
    return _Axis(axis, inner) if reach < stride and desc.Sizes[axis] % (inner * items) == 0 else None


def _items(data: Buffer, step: int, items: int) -> Array | None:
    """Bytes of a constant by what leads over items, items, and what is inside of one; None if it has no whole ones."""
    size, left = divmod(step, 8)
    given = np.frombuffer(data, np.uint8)
    whole = len(given) - len(given) % (size * items)
    if left or not whole or len(given) - whole >= 4:  # which round up
        return None
    return given[:whole].reshape(-1, items, size)


def _are_equal(descs: Descs, but: Iterable[int] = ()) -> bool:
    """Whether both have the same type and, but for these dimensions, sizes."""
    one, other = descs
    if one.DataType is not other.DataType or one.rank != other.rank:
        return False
    return {axis for axis in range(one.rank) if one.Sizes[axis] != other.Sizes[axis]} <= {*but}


def _attributes(node: Node) -> dict[str, Any]:
    operator = node.compiled.operator
    return {name: getattr(operator, name) for name in operator.attribute_names()}


def _are_alike(attributes: Sequence[Mapping[str, Any]], axis: int | None = None) -> bool:
    """Whether they are equal, but for sizes along `axis`."""
    one, other = attributes
    for name, value in one.items():
        if value == other[name]:
            continue
        if axis is None or not name.endswith("Sizes") or len(value) != len(other[name]):
            return False
        if any(a != b for place, (a, b) in enumerate(zip(value, other[name], strict=True)) if place != axis):
            return False
    return True
