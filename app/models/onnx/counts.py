"""How many elements there are where a mask is true, as a number to compute with: a sum over the mask."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from app.contract.constants import DataType, ReduceFunction
from app.models.onnx.builder import Array
from app.models.onnx.element_wise import COMPARISONS, binary
from app.models.onnx.loose import Counts, Elements, Given
from app.models.onnx.mapping import Node
from app.models.onnx.operands import number
from app.models.onnx.reductions import reduced
from app.models.onnx.taken import mapped
from app.models.onnx.tensors import View

SIZES = (6, 7)
"""onnx.TensorProto.INT32 and INT64: what is of another type is no size."""


def product(counts: Counts, *, has_dimension: bool) -> Counts:
    """Of sizes, of which one is loose."""
    if counts.mask is None or counts.dims.count(None) != 1:
        return Counts(counts.label, counts.why)
    known = prod(each for each in counts.dims if each is not None)
    return times(replace(counts, dims=(None,), has_dimension=has_dimension), np.array(known))


def times(counts: Counts, factor: Array) -> Counts:
    """So many times as many."""
    mask, own = _counted(counts)
    if mask is None or factor.size != 1 or factor.ndim > counts.has_dimension:
        return Counts(counts.label, counts.why)
    if factor.item() == 1:
        return counts
    made = own * int(factor.item())
    return Elements(counts.label, counts.why, has_dimension=counts.has_dimension, counted=mask, times=made)


def as_data(node: Node, given: Sequence[Given]) -> View | None:
    """What a node makes of counts that is no size: a Cast to floats, or a comparison."""
    if not (node.type in COMPARISONS or (node.type == "Cast" and int(node.attribute("to")) not in SIZES)):
        return None
    found = [_number(node, each) if isinstance(each, Counts) else each for each in given]
    if not all(isinstance(each, View | np.ndarray) for each in found):
        return None
    node.inputs[:] = [each for each in found if isinstance(each, View | np.ndarray)]
    return mapped(node)


def _counted(counts: Counts) -> tuple[View | None, int]:
    """A mask, and how many elements each place of it stands for."""
    match counts:
        case Elements(counted=mask, times=own):
            return mask, own
        case Counts(mask=mask, dims=(None,)):
            return mask, 1
    return None, 1


def _number(node: Node, counts: Counts) -> View | None:
    mask, own = _counted(counts)
    if mask is None:
        return None
    total = reduced(node, node.cast(mask, DataType.INT64), ReduceFunction.SUM, range(len(mask.sizes)))
    made = node.reshaped(total, (1,) if counts.has_dimension else ())
    return made if own == 1 else binary(node, "ELEMENT_WISE_MULTIPLY", made, number(node, own, made.data_type))
