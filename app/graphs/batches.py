"""Whether the items of a batch go through a graph apart from one another, which its operators tell.

Of each tensor is known how items lie in it. An item of an operator's output must be made of the same item of what it
reads and of what is the same for all items, in the same way whichever it is. What is not known to be so is not so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.contract.tensors import TensorDesc
from app.graphs.graph import Constant, Graph, GraphInput, Node, NodeOutput, Source
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator
from app.operators.looks import look
from app.programs.batch_axes import Reads


class _Axis(NamedTuple):
    """Where items lie in a tensor: the item of a coordinate along `axis` is that divided by `inner`, modulo how many
    items there are."""

    axis: int
    inner: int


@dataclass(frozen=True, eq=False, slots=True)
class _Held:
    """What is known of a source's memory: in each of `steps`, of so many bits, are elements of one item, and in the
    next of the next; those of the first may follow again after the last one."""

    steps: frozenset[int] = frozenset()
    is_of_items: bool = False
    """Whether it depends on the batch at all. If so and without steps, on several items at once for all one knows."""
    data: Buffer | None = None
    """Of a constant, whose steps are found where somebody asks."""


def are_apart(graph: Graph, rows: int, items: Mapping[str, int], outputs: Iterable[str]) -> bool:
    """Whether each of `rows` items of `outputs` is made of the same one of all inputs, whose items have so many bits.

    Inputs and outputs have their items one behind the other.
    """
    return _Batch(graph, rows, items).are_apart(outputs)


class _Batch:
    def __init__(self, graph: Graph, rows: int, items: Mapping[str, int]) -> None:
        self._graph = graph
        self._rows = rows
        self._held: dict[Source, _Held] = {
            GraphInput(name): _Held(frozenset([bits]), is_of_items=True) for name, bits in items.items()
        }
        self._held |= {Constant(index): _Held(data=data) for index, data in graph.constants.items()}
        self._axes: dict[tuple[CompiledOperator, str], Mapping[int, Reads]] = {}
        for node in graph.nodes.values():
            look()
            for name, desc in node.compiled.outputs.items():
                self._held[NodeOutput(node.index, name)] = self._made(node, name, desc)

    def are_apart(self, outputs: Iterable[str]) -> bool:
        for name in outputs:
            output = self._graph.outputs[name]
            item, left = divmod(output.desc.elements, self._rows)
            if left or item * output.desc.DataType.bits not in self._held[output.source].steps:
                return False
        return True

    def _made(self, node: Node, name: str, desc: TensorDesc) -> _Held:
        compiled = node.compiled
        if (compiled, name) not in self._axes:
            self._axes[compiled, name] = compiled.batch_axes(name)
        axes = self._axes[compiled, name]
        held = {each: self._held[source] for each, source in node.sources.items()}
        is_of_items = any(each.is_of_items for each in held.values())
        steps = set()
        for axis, reads in axes.items():
            for inner in self._inners(axis, desc, compiled, held, reads):
                step = desc.strides[axis] * inner * desc.DataType.bits
                if self._axis_of(desc, step) == (axis, inner) and all(
                    self._is_read_apart(compiled.inputs[each], held[each], along, inner)
                    for each, along in reads.items()
                ):
                    steps.add(step)
        return _Held(frozenset(steps), is_of_items)

    def _inners(
        self, axis: int, desc: TensorDesc, compiled: CompiledOperator, held: Mapping[str, _Held], reads: Reads
    ) -> set[int]:
        """As how many places of an axis an item may have in a row."""
        size = desc.Sizes[axis]
        found = set() if any(each.is_of_items for each in held.values()) else {1, size // self._rows}
        for name, own in reads.items():
            for step in held[name].steps:
                at = self._axis_of(compiled.inputs[name], step)
                if at and own.get(at.axis):
                    found.add(at.inner)
        return {inner for inner in found if inner and size % (inner * self._rows) == 0}

    def _is_read_apart(self, desc: TensorDesc, held: _Held, along: Mapping[int, bool], inner: int) -> bool:
        """Whether all that is read of a tensor for an item is of that item, or the same for all. It is read at the
        item's place `along` these axes, and as a whole along others."""
        if held.is_of_items and not any(
            always and self._has(held, desc, _Axis(axis, inner)) for axis, always in along.items()
        ):
            return False
        return all(
            desc.Sizes[axis] == 1 or desc.strides[axis] == 0 or self._has(held, desc, _Axis(axis, inner))
            for axis in along
        )

    def _has(self, held: _Held, desc: TensorDesc, at: _Axis) -> bool:
        """Whether items of a tensor lie there, in the memory that `desc` describes."""
        step = desc.strides[at.axis] * at.inner * desc.DataType.bits
        if not step or self._axis_of(desc, step) != at:
            return False
        return step in held.steps if held.data is None else self._repeats(held.data, step)

    def _axis_of(self, desc: TensorDesc, step: int) -> _Axis | None:
        """Where items are in a tensor whose memory has them in steps of so many bits, if they are along one axis."""
        step, left = divmod(step, desc.DataType.bits)
        strides = [(axis, stride) for axis, stride in enumerate(desc.steps) if stride]
        # Dimensions are inside an item, lead over all items again and again, or are the one.
        inside = [(axis, stride) for axis, stride in strides if stride % (step * self._rows)] if step else []
        one = max(inside, key=lambda each: each[1] if each[1] <= step else 0, default=None)
        if left or one is None or step % one[1]:
            return None
        axis, stride = one
        inner = step // stride
        reach = sum((desc.Sizes[other] - 1) * each for other, each in inside if other != axis)
        is_whole = desc.Sizes[axis] % (inner * self._rows) == 0
        return _Axis(axis, inner) if is_whole and reach < stride else None

    def _repeats(self, data: Buffer, step: int) -> bool:
        """Whether a constant is the same for all items that lie in it in these steps."""
        size, left = divmod(step, 8)
        all_bytes = np.frombuffer(data, np.uint8)
        count = len(all_bytes) // max(size * self._rows, 1) * size * self._rows
        if left or not count or len(all_bytes) - count >= 4:  # which round up
            return False
        items = all_bytes[:count].reshape(-1, self._rows, size)
        return bool((items == items[:, :1]).all())
