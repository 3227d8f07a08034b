"""Updates that are added to elements, or multiply or bound them: each element meets all updates of its sequence, of
which those that are another's are as good as none."""

from collections.abc import Mapping
from math import inf, prod
from typing import NamedTuple

import numpy as np

from app.contract.constants import DataType, ReduceFunction
from app.formula.values import integer_range
from app.memory.arrays import numpy_type
from app.models.onnx.builder import Array
from app.models.onnx.element_wise import chosen, predicate
from app.models.onnx.mapping import Node
from app.models.onnx.operands import number, operate
from app.models.onnx.reductions import reduced
from app.models.onnx.shapes import along, inserted, limited, removed
from app.models.onnx.tensors import Unsupported, View


class _Reduction(NamedTuple):
    operator: str
    function: ReduceFunction


REDUCTIONS: Mapping[str, _Reduction] = {
    "add": _Reduction("ELEMENT_WISE_ADD", ReduceFunction.SUM),
    "mul": _Reduction("ELEMENT_WISE_MULTIPLY", ReduceFunction.MULTIPLY),
    "min": _Reduction("ELEMENT_WISE_MIN", ReduceFunction.MIN),
    "max": _Reduction("ELEMENT_WISE_MAX", ReduceFunction.MAX),
}


def reduction_of(node: Node) -> str | None:
    """None if updates replace elements. Raises Unsupported."""
    found: str = node.attribute("reduction", "none")
    if found != "none" and found not in REDUCTIONS:
        raise Unsupported(f"its reduction is {found}")
    return None if found == "none" else found


def updated(node: Node, x: View, indices: View, updates: View, axis: int, reduction: str) -> View:
    """`x` with updates that `indices` along `axis` lead to; there are as many as elements along all others."""
    if indices.sizes != updates.sizes:
        raise Unsupported(f"its updates have sizes {updates.sizes}, and its indices {indices.sizes}")
    rank, size = limited(len(x.sizes) + 1), x.sizes[axis]
    # Behind are the updates of a sequence, and along the axis the elements.
    order = [*[n for n in range(rank - 1) if n != axis], axis]
    sizes = (*x.sizes, indices.sizes[axis])
    places, given = (
        inserted(each.transposed(order), axis).broadcast(sizes) for each in (_from_0(node, indices, size), updates)
    )
    own = along(node.build.constant(np.arange(size).astype(numpy_type(indices.data_type))), axis, rank).broadcast(sizes)
    is_own = predicate(node, "ELEMENT_WISE_LOGICAL_EQUALS", places, own)
    return met(node, x, is_own, given, rank - 1, reduction)


def met(node: Node, x: View, is_own: View, updates: View, axis: int, reduction: str) -> View:
    """`x`, each element with those of the updates along `axis` that are its own."""
    operator, function = REDUCTIONS[reduction]
    none = number(node, nothing_in(reduction, x.data_type), x.data_type, updates.sizes)
    total = removed(reduced(node, chosen(node, is_own, updates, none), function, [axis]), axis)
    return operate(node, operator, {"ATensor": x, "BTensor": total})


def nothing_in(reduction: str, data_type: DataType) -> float:
    """What changes nothing."""
    if reduction in ("add", "mul"):
        return int(reduction == "mul")
    least, most = (-inf, inf) if data_type.startswith("FLOAT") else integer_range(data_type.lower())
    return least if reduction == "max" else most


def _from_0(node: Node, indices: View, *sizes: int) -> View:
    """Indices into dimensions of these sizes, of which those below 0 count from the end."""
    most = node.build.constant(np.array(sizes).astype(numpy_type(indices.data_type)))
    inputs = {"ATensor": indices, "BTensor": most.broadcast(indices.sizes)}
    return operate(node, "ELEMENT_WISE_MODULUS_FLOOR", inputs)


def one_place(node: Node, tuples: View, sizes: tuple[int, ...]) -> View:
    """Of tuples of coordinates in a tensor of `sizes` where they lead, row-major: a tensor of one dimension."""
    tuples = node.reshaped(tuples, (prod(tuples.sizes[:-1]), len(sizes)))
    steps: Array = np.array([prod(sizes[axis + 1 :]) for axis in range(len(sizes))])
    each = node.build.constant(steps.astype(numpy_type(tuples.data_type))).broadcast(tuples.sizes)
    made = operate(node, "ELEMENT_WISE_MULTIPLY", {"ATensor": _from_0(node, tuples, *sizes), "BTensor": each})
    return removed(reduced(node, made, ReduceFunction.SUM, [1]), 1)
