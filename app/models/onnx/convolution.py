"""Convolutions of floats, forward and transposed, and what columns add up to."""

from typing import Any

from app.models.onnx.mapping import Node, maps
from app.models.onnx.operands import operate
from app.models.onnx.shapes import along, channels_first, channels_last, integers, limited
from app.models.onnx.tensors import Sizes, Unsupported, View
from app.models.onnx.windows import given_pads, numbers, window_steps, windows_of

_FUSED: dict[str, dict[str, tuple[str, float]]] = {
    "Relu": {},
    "Sigmoid": {},
    "Tanh": {},
    "LeakyRelu": {"Alpha": ("alpha", 0.01)},
    "HardSigmoid": {"Alpha": ("alpha", 0.2), "Beta": ("beta", 0.5)},
}
"""Activations that ONNX Runtime puts into a convolution, with the attributes that they have and their defaults."""


def conv(node: Node) -> View:
    """Conv's inputs."""
    return _forward(node, node.view(0))


@maps("NhwcConv", domain="com.microsoft")
def nhwc_conv(node: Node) -> View:
    """Channels last in tensors, but not in the filter."""
    if len(node.sizes(0)) != 4:
        raise Unsupported(f"it has {len(node.sizes(0))} dimensions, not 4")
    return channels_last(_forward(node, channels_first(node.view(0))))


@maps("FusedConv", domain="com.microsoft")
def fused_conv(node: Node) -> View:
    """A convolution, another tensor added to it where there is one, and an activation."""
    name = node.attribute("activation", "")
    parameters = [float(each) for each in node.attribute("activation_params") or ()]
    activation = _activation(name, parameters) if name else None
    if not node.has(3):
        return _forward(node, node.view(0), activation)
    made, added = _forward(node, node.view(0)), node.view(3)
    if added.sizes != made.sizes:
        raise Unsupported(f"what is added has sizes {added.sizes}, not {made.sizes}")
    total = operate(node, "ELEMENT_WISE_ADD", {"ATensor": made, "BTensor": added})
    if activation is None:
        return total
    return operate(node, activation.pop("Type"), {"InputTensor": total}, activation)


@maps("DmlFusedConv", domain="com.microsoft.dml")
def dml_fused_conv(node: Node) -> View:
    return _forward(node, node.view(0), _own_activation(node))


@maps("ConvTranspose")
def conv_transpose(node: Node) -> View:
    return _backward(node, given_pads(node, len(node.sizes(0)) - 2))


@maps("DmlFusedConvTranspose", domain="com.microsoft.dml")
def dml_fused_conv_transpose(node: Node) -> View:
    return _backward(node, given_pads(node, len(node.sizes(0)) - 2), fused=_own_activation(node))


@maps("ConvTransposeWithDynamicPads", domain="com.microsoft")
def conv_transpose_with_pads(node: Node) -> View:
    pads = integers(node, 2, "pads") if node.has(2) else [0] * (2 * (len(node.sizes(0)) - 2))
    half = len(pads) // 2
    if any(pad < 0 for pad in pads):
        raise Unsupported(f"pads {pads} are negative")
    return _backward(node, (pads[:half], pads[half:]), bias=3)


@maps("Col2Im")
def col2im(node: Node) -> View:
    image = integers(node, 1, "image_shape")
    window = integers(node, 2, "block_shape")
    strides, dilations, _ = window_steps(node, window)
    starts, ends = given_pads(node, len(window))
    x = node.view(0)
    channels = x.sizes[1]
    for each in window:
        channels //= each
    attributes = {
        "DimensionCount": limited(len(window), 6),
        "WindowSizes": window,
        "Strides": strides,
        "Dilations": dilations,
        "StartPadding": starts,
        "EndPadding": ends,
    }
    outputs = {"OutputTensor": (x.data_type, (x.sizes[0], channels, *image))}
    return node.build.operator("FOLD", {"InputTensor": x}, attributes, outputs)["OutputTensor"]


def _activation(name: str, parameters: list[float]) -> dict[str, Any]:
    """A fused activation's descriptor."""
    if name == "Clip" and len(parameters) == 2:
        return {"Type": "ELEMENT_WISE_CLIP", "Min": parameters[0], "Max": parameters[1], "ScaleBias": None}
    if name not in _FUSED or len(parameters) > len(_FUSED[name]):
        raise Unsupported(f"its activation {name} with parameters {parameters} cannot be fused")
    defaults = [default for _, default in _FUSED[name].values()]
    values = [*parameters, *defaults[len(parameters) :]]
    return {"Type": f"ACTIVATION_{_snake(name)}", **dict(zip(_FUSED[name], values, strict=True))}


def _own_activation(node: Node) -> dict[str, Any] | None:
    """What ONNX Runtime's DirectML provider has put into a node of its own domain."""
    name = node.attribute("fused_activation", "")
    if not name:
        return None
    if name not in _FUSED:
        raise Unsupported(f"its activation {name} cannot be fused")
    made = {
        field: float(node.attribute(f"fused_{attribute}", default))
        for field, (attribute, default) in _FUSED[name].items()
    }
    return {"Type": f"ACTIVATION_{_snake(name)}", **made}


def _snake(name: str) -> str:
    """LeakyRelu as LEAKY_RELU."""
    return "".join(f"_{each}" if each.isupper() and place else each for place, each in enumerate(name)).upper()


def _forward(node: Node, x: View, activation: dict[str, Any] | None = None) -> View:
    filters = node.view(1)
    _check(x, filters)
    spatial = x.sizes[2:]
    windows = windows_of(node, spatial, node.attribute("kernel_shape") or filters.sizes[2:])
    groups = int(node.attribute("group", 1))
    return _convolution(
        node,
        (x, filters, bias_of(node, 2, len(x.sizes))),
        (x.sizes[0], filters.sizes[0], *windows.outputs),
        {
            "Direction": "FORWARD",
            "Strides": windows.strides,
            "Dilations": windows.dilations,
            "StartPadding": windows.starts,
            "EndPadding": windows.ends,
            "GroupCount": groups,
        },
        activation,
    )


def _backward(
    node: Node, pads: tuple[list[int], list[int]], bias: int = 2, fused: dict[str, Any] | None = None
) -> View:
    """By the first paddings and the output's sizes, which say what is cut off behind."""
    x, filters = node.view(0), node.view(1)
    _check(x, filters)
    count = len(x.sizes) - 2
    strides, dilations, reaches = window_steps(node, node.attribute("kernel_shape") or filters.sizes[2:])
    more = numbers(node, "output_padding", count, 0)
    mode = node.attribute("auto_pad", "NOTSET")
    stated = node.attribute("output_shape")
    wanted: list[int | None] = [int(each) for each in stated[-count:]] if stated else [None] * count
    starts, ends, outputs = [], [], []
    for axis, (size, stride, reach) in enumerate(zip(x.sizes[2:], strides, reaches, strict=True)):
        whole = (size - 1) * stride + reach
        output = wanted[axis]
        if output is None and mode in ("SAME_UPPER", "SAME_LOWER"):
            output = size * stride
        if output is None:
            start = pads[0][axis] if mode == "NOTSET" else 0
            output = whole + more[axis] - start - (pads[1][axis] if mode == "NOTSET" else 0)
        else:
            total = max(whole + more[axis] - output, 0)
            start = total // 2 if mode == "SAME_UPPER" else total - total // 2
        if output < 1:
            raise Unsupported(f"its output would have size {output} along dimension {axis + 2}")
        end = max(whole - start - output, 0)
        if output - (whole - start - end) >= stride:
            raise Unsupported("its output reaches a stride or more beyond the last filter")
        starts.append(start)
        ends.append(end)
        outputs.append(output)
    groups = int(node.attribute("group", 1))
    return _convolution(
        node,
        (x, filters, bias_of(node, bias, len(x.sizes))),
        (x.sizes[0], filters.sizes[1] * groups, *outputs),
        {
            "Direction": "BACKWARD",
            "Strides": strides,
            "Dilations": dilations,
            "StartPadding": starts,
            "EndPadding": ends,
            "GroupCount": groups,
        },
        fused,
    )


def _check(x: View, filters: View) -> None:
    if not 3 <= len(x.sizes) <= 5:
        raise Unsupported(f"it has {len(x.sizes) - 2} spatial dimensions, not 1 to 3")
    if len(filters.sizes) != len(x.sizes):
        raise Unsupported(f"its filters have {len(filters.sizes)} dimensions, and its input {len(x.sizes)}")


def bias_of(node: Node, index: int, rank: int) -> View | None:
    """An input with one element for each channel, for tensors of so many dimensions."""
    return along(node.view(index), 1, rank) if node.has(index) else None


def _convolution(
    node: Node,
    tensors: tuple[View, View, View | None],
    sizes: Sizes,
    attributes: dict[str, Any],
    activation: dict[str, Any] | None,
) -> View:
    x, filters, bias = tensors
    made = node.build.operator(
        "CONVOLUTION",
        {"InputTensor": x, "FilterTensor": filters, "BiasTensor": bias},
        {
            "Mode": "CROSS_CORRELATION",
            **attributes,
            "OutputPadding": [0] * (len(sizes) - 2),
            **({"FusedActivation": activation} if activation else {}),
        },
        {"OutputTensor": (x.data_type, sizes)},
    )
    return made["OutputTensor"]
