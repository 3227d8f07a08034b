"""Products of matrices of floats."""

from math import prod
from typing import Any, NamedTuple

from app.contract.constants import DataType, ReduceFunction
from app.models.onnx.activations import fused_activation
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.operands import broadcast, common_sizes, operate, require_equal
from app.models.onnx.reductions import reduced
from app.models.onnx.shapes import inserted
from app.models.onnx.tensors import Sizes, Unsupported, View

_INTEGERS = (DataType.INT32, DataType.UINT32, DataType.INT64, DataType.UINT64)

MAX_BATCH = 2
"""Dimensions before the last two that DirectML's products have."""


class Matrices(NamedTuple):
    """Two operands as DirectML multiplies them, and the sizes that the product has in ONNX."""

    a: View
    b: View
    sizes: Sizes

    @property
    def product(self) -> Sizes:
        """The sizes that it has in DirectML."""
        return (*self.a.sizes[:-1], self.b.sizes[-1])


def matrices(node: Node, a: View, b: View, *, joins_rows: bool = True) -> Matrices:
    """The operands of numpy.matmul, with 2 to 4 dimensions, of which all but the last two are equal.

    Matrices that go with one and the same B are one of many rows, unless `joins_rows` is False. Raises Unsupported.
    """
    if not a.sizes or not b.sizes:
        raise Unsupported("one of its inputs is no vector or matrix")
    rows = a.sizes[-2:-1]
    columns = b.sizes[-1:] if len(b.sizes) > 1 else ()
    if a.sizes[-1] != b.sizes[-2 if columns else -1]:
        raise Unsupported(f"sizes {list(a.sizes)} and {list(b.sizes)} are not those of matrices to multiply")
    a = a if rows else node.reshaped(a, (1, *a.sizes))
    b = b if columns else node.reshaped(b, (*b.sizes, 1))
    batch = common_sizes(a.sizes[:-2], b.sizes[:-2])
    sizes = (*batch, *rows, *columns)
    if joins_rows and prod(b.sizes[:-2]) == 1 and a.sizes[:-2] == batch:
        joined = a.reshaped((prod(a.sizes[:-1]), a.sizes[-1]))
        if joined is not None:
            return Matrices(joined, node.reshaped(b, b.sizes[-2:]), sizes)
    a, b = (broadcast(each, (*batch, *each.sizes[-2:])) for each in (a, b))
    if len(batch) > MAX_BATCH:
        a, b = (node.reshaped(each, (prod(batch), *each.sizes[-2:])) for each in (a, b))
    return Matrices(a, b, sizes)


def _gemm(
    node: Node, a: View, b: View, c: View | None, alpha: float, beta: float, fused: dict[str, Any] | None = None
) -> View:
    """Of matrices that are not to be transposed, but for what their strides say."""
    attributes = {"TransA": "NONE", "TransB": "NONE", "Alpha": alpha, "Beta": beta, "FusedActivation": fused}
    outputs = {"OutputTensor": (a.data_type, (*a.sizes[:-1], b.sizes[-1]))}
    return operate(node, "GEMM", {"ATensor": a, "BTensor": b, "CTensor": c}, attributes, outputs)


def matmul(node: Node, a: View, b: View, alpha: float = 1.0, fused: dict[str, Any] | None = None) -> View:
    """numpy.matmul times alpha. Raises Unsupported."""
    require_equal(a, b)
    found = matrices(node, a, b)
    return node.reshaped(_gemm(node, found.a, found.b, None, alpha, 0.0, fused), found.sizes)


def _swapped(view: View) -> View:
    """With its last two dimensions the other way round."""
    axes = list(range(len(view.sizes)))
    axes[-2:] = axes[-1:] + axes[-2:-1]
    return view.transposed(axes)


def multiplied(node: Node) -> Value:
    """MatMul's inputs."""
    a, b = node.view(0), node.view(1)
    return _sums(node, a, b) if a.data_type in _INTEGERS else matmul(node, a, b)


def _sums(node: Node, a: View, b: View) -> View:
    """Of integers, which GEMM does not take: products along one more dimension, and their sums."""
    require_equal(a, b)
    found = matrices(node, a, b)
    inner = len(found.product)
    sizes = (*found.product, found.a.sizes[-1])
    rows, columns = inserted(found.a, inner - 1), inserted(_swapped(found.b), inner - 2)
    factors = {"ATensor": rows.broadcast(sizes), "BTensor": columns.broadcast(sizes)}
    products = operate(node, "ELEMENT_WISE_MULTIPLY", factors)
    return node.reshaped(reduced(node, products, ReduceFunction.SUM, [inner]), found.sizes)


def general(node: Node, fused: dict[str, Any] | None = None) -> View:
    """Gemm's inputs."""
    a, b = (_swapped(view) if node.attribute(f"trans{name}", 0) else view for name, view in _pair(node))
    require_equal(a, b)
    if len(a.sizes) != 2 or len(b.sizes) != 2 or a.sizes[1] != b.sizes[0]:
        raise Unsupported(f"sizes {list(a.sizes)} and {list(b.sizes)} are not those of matrices to multiply")
    c = node.optional(2)
    if c is not None:
        require_equal(a, c)
        c = broadcast(c, (a.sizes[0], b.sizes[1]))
    return _gemm(node, a, b, c, node.attribute("alpha", 1.0), node.attribute("beta", 1.0), fused)


def _pair(node: Node) -> list[tuple[str, View]]:
    return [("A", node.view(0)), ("B", node.view(1))]


# com.microsoft's


@maps("FusedGemm", domain="com.microsoft")
def _fused_gemm(node: Node) -> Value:
    return general(node, fused_activation(node, "activation", "activation_"))


@maps("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain="com.microsoft")
def _fused_matmul(node: Node) -> Value:
    a, b = (_arranged(node, name, view) for name, view in _pair(node))
    return matmul(node, a, b, node.attribute("alpha", 1.0), fused_activation(node, "activation", "activation_"))


def _arranged(node: Node, name: str, view: View) -> View:
    """`view` as a matrix, by the attributes transX and transBatchX."""
    if len(view.sizes) > 1:
        if node.attribute(f"transBatch{name}", 0):
            # The first dimension is that of rows: it is to come behind the others before the last.
            view = view.transposed([*range(1, len(view.sizes) - 1), 0, len(view.sizes) - 1])
        if node.attribute(f"trans{name}", 0):
            view = _swapped(view)
    return view
