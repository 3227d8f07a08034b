"""What mappings ask of sizes and axes, and other ways to read a tensor's bytes."""

from dataclasses import replace

import numpy as np

from app.contract.constants import DataType
from app.memory.arrays import numpy_type
from app.models.onnx.builder import Array
from app.models.onnx.mapping import Node
from app.models.onnx.tensors import Sizes, Unsupported, View

MOST_DIMENSIONS = 8


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    """From 0 on; negative ones count from the end. Raises Unsupported beyond `rank`; `what` is its name."""
    if not -rank <= axis < rank:
        raise Unsupported(f"its {what} is {axis}, of {rank} dimensions")
    return axis % rank


def axes_of(axes: list[int], rank: int) -> list[int]:
    """The same of several, each there once."""
    made = [axis_of(axis, rank) for axis in axes]
    if len(set(made)) != len(made):
        raise Unsupported(f"axes {axes} name one of its dimensions twice")
    return made


def integers(node: Node, index: int, what: str) -> list[int]:
    """The elements of an input that must be known."""
    return [int(each) for each in node.array(index, what).reshape(-1)]


def inserted(view: View, axis: int, count: int = 1) -> View:
    """`count` more dimensions of one element before `axis`."""
    return replace(
        view,
        sizes=(*view.sizes[:axis], *[1] * count, *view.sizes[axis:]),
        strides=(*view.strides[:axis], *[0] * count, *view.strides[axis:]),
    )


def removed(view: View, axis: int, count: int = 1) -> View:
    """Without the `count` dimensions from `axis` on, which are of one element each."""
    return replace(
        view,
        sizes=(*view.sizes[:axis], *view.sizes[axis + count :]),
        strides=(*view.strides[:axis], *view.strides[axis + count :]),
    )


def along(view: View, axis: int, rank: int) -> View:
    """A tensor of one dimension, as one of `rank` dimensions that lies along `axis`."""
    return inserted(inserted(view, 1, rank - axis - 1), 0, axis)


def channels_first(view: View) -> View:
    """Of { batch, ..., channels }. Raises Unsupported if there is nothing between these."""
    rank = len(view.sizes)
    if rank < 3:
        raise Unsupported(f"its input has {rank} dimensions, not 3 or more")
    return view.transposed([0, rank - 1, *range(1, rank - 1)])


def channels_last(view: View) -> View:
    """The other way."""
    return view.transposed([0, *range(2, len(view.sizes)), 1])


def of_type(view: View, data_type: DataType) -> View:
    """The same bits as elements of another type, which are as large."""
    assert view.data_type.bits == data_type.bits, "this reads elements one by one"
    return replace(view, data_type=data_type)


def raw(view: View) -> View:
    """The elements' bits, as unsigned integers of their size."""
    return of_type(view, DataType(f"UINT{view.data_type.bits}"))


def nothing(sizes: Sizes, data_type: DataType) -> Array:
    """A tensor without elements, which no operator makes."""
    return np.empty(sizes, numpy_type(data_type))


def limited(rank: int, most: int = MOST_DIMENSIONS) -> int:
    """`rank`, if an operator takes as many dimensions."""
    if rank > most:
        raise Unsupported(f"it has {rank} dimensions, more than {most}")
    return rank
