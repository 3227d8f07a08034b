"""Poolings, what regions of interest are made of, and LRN."""

from math import prod
from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.models.onnx.element_wise import binary
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.movement import padded
from app.models.onnx.operands import number
from app.models.onnx.shapes import channels_first, channels_last, inserted, integers, of_type
from app.models.onnx.tensors import Sizes, Unsupported, View
from app.models.onnx.windows import Windows, given_pads, window_steps, windows_of


@maps("AveragePool")
def average_pool(node: Node) -> View:
    x = node.view(0)
    windows = _windows(node, x)
    counts_padding = bool(node.attribute("count_include_pad"))
    mode = node.attribute("auto_pad")
    stated = given_pads(node, len(windows.ends))[1] if mode == "NOTSET" else [0] * len(windows.ends)
    if counts_padding and mode in ("NOTSET", "VALID") and windows.ends != stated:
        # What ceil_mode lets windows reach is no padding: it does not count, as that which is stated does.
        starts, ends = [0, 0, *windows.starts], [0, 0, *stated]
        x = padded(node, x, starts, ends)
        beyond = [most - end for most, end in zip(windows.ends, stated, strict=True)]
        none = [0] * len(beyond)
        windows = Windows(windows.window, windows.strides, windows.dilations, none, beyond, windows.outputs)
        counts_padding = False
    name = "AVERAGE_POOLING1" if windows.is_dilated else "AVERAGE_POOLING"
    return _pooled(node, name, x, windows, {"IncludePadding": counts_padding})


@maps("LpPool")
def lp_pool(node: Node) -> View:
    x = node.view(0)
    windows = _windows(node, x)
    name = "LP_POOLING1" if windows.is_dilated else "LP_POOLING"
    return _pooled(node, name, x, windows, {"P": int(node.attribute("p"))})


@maps("MaxPool")
def max_pool(node: Node) -> list[Value | None]:
    return _largest(node, node.view(0), wants_indices=len(node.wanted) > 1 and node.wanted[1])


@maps("NhwcMaxPool", domain="com.microsoft")
def nhwc_max_pool(node: Node) -> Value:
    made = _largest(node, channels_first(node.view(0)), wants_indices=False)[0]
    assert isinstance(made, View), "it is computed"
    return channels_last(made)


def _largest(node: Node, x: View, *, wants_indices: bool) -> list[Value | None]:
    windows = _windows(node, x)
    if not (wants_indices or windows.is_dilated):
        return [_pooled(node, "MAX_POOLING", x, windows, {}), None]
    sizes = (*x.sizes[:2], *windows.outputs)
    taken, windows = _spatial(x, windows)
    raised = (*x.sizes[:2], *windows.outputs)
    outputs: dict[str, Any] = {"OutputTensor": (x.data_type, raised)}
    if wants_indices:
        outputs["OutputIndicesTensor"] = (DataType.UINT64, raised)
    attributes = {**_attributes(windows), "Dilations": windows.dilations}
    made = node.build.operator("MAX_POOLING2", {"InputTensor": taken}, attributes, outputs)
    found: list[Value | None] = [node.reshaped(made["OutputTensor"], sizes), None]
    if wants_indices:
        indices = of_type(made["OutputIndicesTensor"], DataType.INT64)
        if node.attribute("storage_order", 0):
            indices = _first_dimension_first(node, indices, x.sizes[2:])
        found[1] = node.reshaped(indices, sizes)
    return found


def _first_dimension_first(node: Node, indices: View, spatial: Sizes) -> View:
    """`indices` for pictures whose elements are counted along their first dimension first, not along the last one."""

    def by(operator: str, a: View, number_: int) -> View:
        return binary(node, f"ELEMENT_WISE_{operator}", a, number(node, number_, a.data_type, a.sizes))

    rest = by("MODULUS_FLOOR", indices, prod(spatial))
    made = binary(node, "ELEMENT_WISE_SUBTRACT", indices, rest)
    for along in reversed(range(len(spatial))):
        place = by("MODULUS_FLOOR", rest, spatial[along])
        made = binary(node, "ELEMENT_WISE_ADD", made, by("MULTIPLY", place, prod(spatial[:along])))
        rest = by("DIVIDE", rest, spatial[along])
    return made


@maps("GlobalAveragePool")
def global_average_pool(node: Node) -> View:
    return _global(node, "AVERAGE_POOLING", {"IncludePadding": False})


@maps("GlobalMaxPool")
def global_max_pool(node: Node) -> View:
    return _global(node, "MAX_POOLING", {})


@maps("GlobalLpPool")
def global_lp_pool(node: Node) -> View:
    return _global(node, "LP_POOLING", {"P": int(node.attribute("p"))})


@maps("MaxUnpool")
def max_unpool(node: Node) -> View:
    x, indices = node.view(0), node.view(1)
    spatial = x.sizes[2:]
    if not 1 <= len(spatial) <= 2:
        raise Unsupported(f"it has {len(spatial)} spatial dimensions, not 1 or 2")
    window = [int(each) for each in node.attribute("kernel_shape")]
    strides, _, _ = window_steps(node, window)
    starts, ends = given_pads(node, len(window))
    least = [
        (size - 1) * stride + k - start - end
        for size, stride, k, start, end in zip(spatial, strides, window, starts, ends, strict=True)
    ]
    sizes = (*x.sizes[:2], *least)
    if node.has(2):
        stated = tuple(integers(node, 2, "output_shape"))
        if len(stated) != len(sizes) or stated[:2] != sizes[:2]:
            raise Unsupported(f"output_shape {stated} is none of {sizes}")
        if stated != sizes:
            # Indices are those of the smaller tensor, whose elements lie elsewhere in a larger one.
            made = _unpooled(node, x, indices, sizes)
            ends = [more - size for more, size in zip(stated, sizes, strict=True)]
            if any(end < 0 for end in ends):
                raise Unsupported(f"output_shape {stated} is smaller than {sizes}")
            return padded(node, made, [0] * len(ends), ends)
    return _unpooled(node, x, indices, sizes)


@maps("MaxRoiPool")
def max_roi_pool(node: Node) -> View:
    """Corners are rounded here, halves up as in ONNX Runtime, and not by the operator, which rounds them to even."""
    x, regions = node.view(0), node.view(1)
    count = regions.sizes[0]
    batches, corners = (regions.data_type, (count, 1)), (regions.data_type, (count, 4))
    parts = node.build.operator("SPLIT", {"InputTensor": regions}, {"Axis": 1}, {"OutputTensors": [batches, corners]})
    scale = {"ScaleBias": {"Scale": float(node.attribute("spatial_scale")), "Bias": 0.5}}
    rounded = node.build.operator("ELEMENT_WISE_FLOOR", {"InputTensor": parts["OutputTensors[1]"]}, scale)
    joined = {"InputTensors": [parts["OutputTensors[0]"], rounded["OutputTensor"]]}
    whole = (regions.data_type, (count, 5))
    regions = node.build.operator("JOIN", joined, {"Axis": 1}, {"OutputTensor": whole})["OutputTensor"]
    height, width = (int(each) for each in node.attribute("pooled_shape"))
    made = node.build.operator(
        "ROI_POOLING",
        {"InputTensor": x, "ROITensor": regions},
        {
            "SpatialScale": 1.0,
            "PooledSize": {"Width": width, "Height": height},
        },
        {"OutputTensor": (x.data_type, (regions.sizes[0], x.sizes[1], height, width))},
        rank=4,
    )
    return made["OutputTensor"]


@maps("RoiAlign")
def roi_align(node: Node) -> View:
    """ONNX repeats the outermost elements for one element around the tensor: so they are padded."""
    x, regions, batches = node.view(0), node.view(1), node.view(2)
    mode = node.attribute("mode")
    is_half = node.attribute("coordinate_transformation_mode") == "half_pixel"  # which opset 10 has not
    scale = float(node.attribute("spatial_scale"))
    samples = int(node.attribute("sampling_ratio"))
    height, width = int(node.attribute("output_height")), int(node.attribute("output_width"))
    if mode != "avg":
        raise Unsupported("its mode is max, where ONNX Runtime takes the largest of weighted elements")
    if batches.data_type not in (DataType.INT64, DataType.INT32):
        raise Unsupported(f"its batch indices are {batches.data_type}")
    if not is_half:
        regions = _at_least_one_pixel(node, regions, scale)
    x = padded(node, x, [0, 0, 1, 1], [0, 0, 1, 1], mode="EDGE")
    made = node.build.operator(
        "ROI_ALIGN1",
        {
            "InputTensor": x,
            "ROITensor": regions,
            "BatchIndicesTensor": of_type(batches, DataType(f"U{batches.data_type}")),
        },
        {
            "ReductionFunction": "AVERAGE",
            "InterpolationMode": "LINEAR",
            "SpatialScaleX": scale,
            "SpatialScaleY": scale,
            "InputPixelOffset": (0.5 if is_half else 0.0) - 1,
            "OutputPixelOffset": -0.5,
            "OutOfBoundsInputValue": 0.0,
            "MinimumSamplesPerOutput": samples or 1,
            "MaximumSamplesPerOutput": samples or 2**32 - 1,
            "AlignRegionsToCorners": False,
        },
        {"OutputTensor": (x.data_type, (regions.sizes[0], x.sizes[1], height, width))},
    )
    return made["OutputTensor"]


@maps("LRN")
def lrn(node: Node) -> View:
    x = node.view(0)
    if len(x.sizes) < 2:
        raise Unsupported(f"it has {len(x.sizes)} dimensions")
    taken = x if len(x.sizes) == 4 else node.reshaped(x, (*x.sizes[:2], 1, prod(x.sizes[2:])))
    made = node.build.operator(
        "LOCAL_RESPONSE_NORMALIZATION",
        {"InputTensor": taken},
        {
            "CrossChannel": True,
            "LocalSize": int(node.attribute("size")),
            "Alpha": float(node.attribute("alpha")),
            "Beta": float(node.attribute("beta")),
            "Bias": float(node.attribute("bias")),
        },
        {"OutputTensor": (x.data_type, taken.sizes)},
    )
    return node.reshaped(made["OutputTensor"], x.sizes)


def _windows(node: Node, x: View) -> Windows:
    sizes = x.sizes
    window = node.attribute("kernel_shape")
    if not 3 <= len(sizes) <= 5 or not window or len(window) != len(sizes) - 2:
        raise Unsupported(f"it has {len(sizes) - 2} spatial dimensions, not 1 to 3 as kernel_shape")
    return windows_of(node, sizes[2:], [int(each) for each in window])


def _spatial(x: View, windows: Windows) -> tuple[View, Windows]:
    """With 2 spatial dimensions at least, which DirectML's poolings have."""
    missing = max(4 - len(x.sizes), 0)
    return inserted(x, 2, missing), windows.with_spatial(2)


def _attributes(windows: Windows) -> dict[str, Any]:
    return {
        "Strides": windows.strides,
        "WindowSize": windows.window,
        "StartPadding": windows.starts,
        "EndPadding": windows.ends,
    }


def _pooled(node: Node, operator: str, x: View, windows: Windows, attributes: dict[str, Any]) -> View:
    sizes = (*x.sizes[:2], *windows.outputs)
    taken, windows = _spatial(x, windows)
    made = node.build.operator(
        operator,
        {"InputTensor": taken},
        {
            **_attributes(windows),
            **attributes,
            **({"Dilations": windows.dilations} if operator.endswith("1") else {}),
        },
        {"OutputTensor": (x.data_type, (*x.sizes[:2], *windows.outputs))},
    )
    return node.reshaped(made["OutputTensor"], sizes)


def _global(node: Node, operator: str, attributes: dict[str, Any]) -> View:
    """One window over all that there is."""
    x = node.view(0)
    if len(x.sizes) < 2:
        raise Unsupported(f"it has {len(x.sizes)} dimensions")
    spatial = list(x.sizes[2:])
    taken = inserted(x, 2, max(4 - len(x.sizes), 0))
    if len(spatial) > 3:
        taken = node.reshaped(x, (*x.sizes[:2], 1, prod(spatial)))
    count = len(taken.sizes) - 2
    windows = Windows(list(taken.sizes[2:]), [1] * count, [1] * count, [0] * count, [0] * count, [1] * count)
    made = _pooled(node, operator, taken, windows, attributes)
    return node.reshaped(made, (*x.sizes[:2], *[1] * len(spatial)))


def _unpooled(node: Node, x: View, indices: View, sizes: Sizes) -> View:
    rank = len(x.sizes)
    raised = inserted(x, 2, 4 - rank), inserted(of_type(indices, DataType.UINT64), 2, 4 - rank)
    made = node.build.operator(
        "MAX_UNPOOLING",
        dict(zip(("InputTensor", "IndicesTensor"), raised, strict=True)),
        {},
        {"OutputTensor": (x.data_type, (*sizes[:2], *[1] * (4 - rank), *sizes[2:]))},
    )
    return node.reshaped(made["OutputTensor"], sizes)


def _at_least_one_pixel(node: Node, regions: View, scale: float) -> View:
    """Regions { x1, y1, x2, y2 } that are a pixel wide and high at least, once they are scaled."""
    count = regions.sizes[0]
    halves = {"InputTensor": regions}
    corner = (regions.data_type, (count, 2))
    parts = node.build.operator("SPLIT", halves, {"Axis": 1}, {"OutputTensors": [corner, corner]})
    begin, end = parts["OutputTensors[0]"], parts["OutputTensors[1]"]
    pixel = node.build.constant(np.full((1, 1), 1 / scale, np.float32))
    pixel = node.cast(pixel, regions.data_type).broadcast((count, 2))
    both = {"ATensor": begin, "BTensor": pixel}
    least = node.build.operator("ELEMENT_WISE_ADD", both, {}, {"OutputTensor": corner})["OutputTensor"]
    both = {"ATensor": end, "BTensor": least}
    end = node.build.operator("ELEMENT_WISE_MAX", both, {}, {"OutputTensor": corner})["OutputTensor"]
    whole = (regions.data_type, (count, 4))
    joined = {"InputTensors": [begin, end]}
    return node.build.operator("JOIN", joined, {"Axis": 1}, {"OutputTensor": whole})["OutputTensor"]
