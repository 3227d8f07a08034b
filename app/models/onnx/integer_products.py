"""Products and convolutions of quantized tensors, and averages over their windows."""

from typing import Any

from app.contract.constants import DataType
from app.models.onnx.element_wise import binary, linear
from app.models.onnx.linear_algebra import Matrices, matrices
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.operands import broadcast, one_element, operate
from app.models.onnx.quantization import Parameters, dynamically_quantized, finished, given_at, restored, scale_and_zero
from app.models.onnx.shapes import channels_first, channels_last
from app.models.onnx.tensors import Sizes, Unsupported, View
from app.models.onnx.windows import given_pads, windows_of

# Matrices


class Products:
    """Two quantized matrices to multiply. Scales and zero points get two dimensions or more, as many as one another."""

    def __init__(self, node: Node, a: View, b: View, by_row: dict[str, View | None], by_column: dict[str, View | None]):
        rows = [view for view in by_row.values() if view is not None]
        self.operands: Matrices = matrices(node, a, b, joins_rows=all(view.elements == 1 for view in rows))
        self._node = node
        self._collapsed = len(self.operands.a.sizes) < max(len(a.sizes), len(b.sizes))
        height, width = self.operands.a.sizes[-2], self.operands.b.sizes[-1]
        self.inputs: dict[str, View | None] = {"ATensor": self.operands.a, "BTensor": self.operands.b}
        self.inputs |= {field: self._parameter(view, (height, 1)) for field, view in by_row.items()}
        self.inputs |= {field: self._parameter(view, (1, width)) for field, view in by_column.items()}

    def _parameter(self, view: View | None, sizes: Sizes) -> View | None:
        if view is None:
            return None
        if view.elements == 1:
            return self._node.reshaped(view, (1, 1))
        if view.elements == sizes[0] * sizes[1]:
            return self._node.reshaped(view, sizes)
        if self._collapsed or view.sizes[-2:] != sizes:
            raise Unsupported(f"a scale or zero point of sizes {list(view.sizes)} is not one for each row or column")
        return view

    def multiplied(self, operator: str, output: DataType, others: dict[str, View | None] | None = None) -> View:
        """By `operator`, with what else it reads."""
        inputs = self.inputs | (others or {})
        rank = max(len(view.sizes) for view in inputs.values() if view is not None)
        outputs = {"OutputTensor": (output, self.operands.product)}
        made = operate(self._node, operator, inputs, outputs=outputs, rank=rank)
        return self._node.reshaped(made, self.operands.sizes)


@maps("MatMulInteger")
def _matmul_integer(node: Node) -> Value:
    by_row, by_column = {"AZeroPointTensor": node.optional(2)}, {"BZeroPointTensor": node.optional(3)}
    found = Products(node, node.view(0), node.view(1), by_row, by_column)
    return found.multiplied("MATRIX_MULTIPLY_INTEGER", DataType.INT32)


@maps("QLinearMatMul")
def _quantized_matmul(node: Node) -> Value:
    # In version 21 scales may be float16, of which DirectML's operator takes none.
    scales = [node.cast(node.view(index), DataType.FLOAT32) for index in (1, 4, 6)]
    zero = node.view(7)
    by_row: dict[str, View | None] = {
        "AScaleTensor": scales[0],
        "AZeroPointTensor": node.view(2),
        "OutputScaleTensor": scales[2],
        "OutputZeroPointTensor": zero,
    }
    by_column: dict[str, View | None] = {"BScaleTensor": scales[1], "BZeroPointTensor": node.view(5)}
    found = Products(node, node.view(0), node.view(3), by_row, by_column)
    return found.multiplied("QUANTIZED_LINEAR_MATRIX_MULTIPLY", zero.data_type)


@maps("MatMulIntegerToFloat", domain="com.microsoft")
def _matmul_to_float(node: Node) -> Value:
    a, b = node.view(0), node.view(1)
    return _product_of_both(
        node,
        (a, node.view(2), node.optional(4)),
        (b, node.view(3), node.optional(5)),
        node.optional(6),
    )


@maps("QGemm", domain="com.microsoft")
def _quantized_gemm(node: Node) -> Value:
    """alpha * (a * b + c), quantized if there is a scale for it; c is of integers, in units of both scales."""
    a, b = (
        node.view(index).transposed((1, 0)) if node.attribute(f"trans{name}", 0) else node.view(index)
        for name, index in (("A", 0), ("B", 3))
    )
    found = Products(node, a, b, {"AZeroPointTensor": node.view(2)}, {"BZeroPointTensor": node.view(5)})
    made = found.multiplied("MATRIX_MULTIPLY_INTEGER", DataType.INT32)
    if node.has(6):
        made = binary(node, "ELEMENT_WISE_ADD", made, broadcast(node.view(6), made.sizes))
    scale = binary(node, "ELEMENT_WISE_MULTIPLY", one_element(node, 1, "scale"), node.view(4))
    scale = broadcast(linear(node, scale, node.attribute("alpha", 1.0), 0.0), made.sizes)
    floats = restored(node, Parameters(made, scale, None))
    return finished(node, floats, 7, a.data_type) if node.has(7) else floats


@maps("DynamicQuantizeMatMul", domain="com.microsoft")
def _dynamic_matmul(node: Node) -> Value:
    b = node.view(1)
    # To B's type, which the operator wants: scale and differences to the zero point are the same in both.
    a = dynamically_quantized(node, node.view(0), b.data_type)
    return _product_of_both(node, a, (b, node.view(2), node.optional(3)), node.optional(4))


_Quantized = tuple[View, View, View | None]
"""Elements, scale and zero point."""


def _product_of_both(node: Node, a: _Quantized, b: _Quantized, bias: View | None) -> View:
    """As floats."""
    if a[0].data_type is not b[0].data_type:  # the operator wants one type, and 16 bits hold both
        a, b = (
            (node.cast(x, DataType.INT16), scale, None if zero is None else node.cast(zero, DataType.INT16))
            for x, scale, zero in (a, b)
        )
    by_row: dict[str, View | None] = {"AScaleTensor": a[1], "AZeroPointTensor": a[2]}
    by_column: dict[str, View | None] = {"BScaleTensor": b[1], "BZeroPointTensor": b[2]}
    found = Products(node, a[0], b[0], by_row, by_column)
    added = None if bias is None else broadcast(bias, found.operands.product)
    return found.multiplied("MATRIX_MULTIPLY_INTEGER_TO_FLOAT", a[1].data_type, {"BiasTensor": added})


# Convolutions


def convolved(
    node: Node, operator: str, x: View, filters: View, others: dict[str, View | None], output: DataType
) -> View:
    rank = len(x.sizes)
    if not 3 <= rank <= 4 or len(filters.sizes) != rank:
        raise Unsupported(f"it has {rank - 2} spatial dimensions, where DirectML's {operator} has 1 or 2")
    windows = windows_of(node, x.sizes[2:], node.attribute("kernel_shape") or filters.sizes[2:])
    attributes: dict[str, Any] = {
        "Strides": windows.strides,
        "Dilations": windows.dilations,
        "StartPadding": windows.starts,
        "EndPadding": windows.ends,
        "GroupCount": node.attribute("group", 1),
    }
    outputs = {"OutputTensor": (output, (x.sizes[0], filters.sizes[0], *windows.outputs))}
    return operate(node, operator, {"InputTensor": x, "FilterTensor": filters} | others, attributes, outputs)


def _of_filters(node: Node, index: int) -> View | None:
    """One element, or one for each filter, along one dimension."""
    view = node.optional(index)
    return None if view is None else node.reshaped(view, (view.elements,))


@maps("ConvInteger")
def _integer_convolution(node: Node) -> Value:
    others = {
        "InputZeroPointTensor": one_element(node, 2, "zero point") if node.has(2) else None,
        "FilterZeroPointTensor": _of_filters(node, 3),
    }
    return convolved(node, "CONVOLUTION_INTEGER", node.view(0), node.view(1), others, DataType.INT32)


@maps("QLinearConv")
@maps("QLinearConv", domain="com.microsoft")
def _quantized_convolution(node: Node) -> Value:
    """onnxruntime's own may have channels last in tensors, but not in the filter."""
    x, scale, zero = given_at(node, 0)
    last = node.attribute("channels_last", 0)
    if last:
        x = channels_first(x)
    output_scale, output_zero = one_element(node, 6, "scale"), one_element(node, 7, "zero point")
    bias = node.optional(8)
    if bias is not None:
        bias = node.reshaped(bias, (1, bias.elements, *[1] * (len(x.sizes) - 2)))
    others = {
        "InputScaleTensor": scale,
        "InputZeroPointTensor": zero,
        "FilterScaleTensor": _of_filters(node, 4),
        "FilterZeroPointTensor": _of_filters(node, 5),
        "BiasTensor": bias,
        "OutputScaleTensor": output_scale,
        "OutputZeroPointTensor": output_zero,
    }
    made = convolved(node, "QUANTIZED_LINEAR_CONVOLUTION", x, node.view(3), others, output_zero.data_type)
    return channels_last(made) if last else made


# Averages


@maps("QLinearAveragePool", "QLinearGlobalAveragePool", domain="com.microsoft")
def _average(node: Node) -> Value:
    x, scale, zero = given_at(node, 0)
    rank = len(x.sizes)
    last = node.attribute("channels_last", 0)
    if rank != 4:
        raise Unsupported(f"it has {rank - 2} spatial dimensions, not 2")
    if last:
        x = channels_first(x)
    output_scale, output_zero = scale_and_zero(node, 3, x.data_type)
    whole = node.type == "QLinearGlobalAveragePool"
    windows = windows_of(node, x.sizes[2:], x.sizes[2:] if whole else node.attribute("kernel_shape"))
    if (
        node.attribute("ceil_mode", 0)
        and node.attribute("count_include_pad", 0)
        and windows.ends != given_pads(node, 2)[1]
    ):
        raise Unsupported("its ceil_mode adds paddings, and count_include_pad would count them")
    inputs = {
        "InputTensor": x,
        "InputScaleTensor": scale,
        "InputZeroPointTensor": zero,
        "OutputScaleTensor": output_scale,
        "OutputZeroPointTensor": output_zero,
    }
    attributes: dict[str, Any] = {
        "Strides": windows.strides,
        "WindowSize": windows.window,
        "StartPadding": windows.starts,
        "EndPadding": windows.ends,
        "Dilations": windows.dilations,
        "IncludePadding": bool(node.attribute("count_include_pad", 0)),
    }
    outputs = {"OutputTensor": (output_zero.data_type, (*x.sizes[:2], *windows.outputs))}
    made = operate(node, "QUANTIZED_LINEAR_AVERAGE_POOLING", inputs, attributes, outputs)
    return channels_last(made) if last else made
