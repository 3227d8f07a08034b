"""Resize and Upsample: RESAMPLE2 where it says what ONNX does, else products with matrices of weights."""

from dataclasses import dataclass, replace
from math import floor, prod

import numpy as np

from app.contract.constants import DataType
from app.memory.arrays import numpy_type
from app.models.onnx.builder import Array
from app.models.onnx.indexing import gathered
from app.models.onnx.mapping import Node, maps
from app.models.onnx.movement import padded
from app.models.onnx.operands import takes
from app.models.onnx.shapes import axes_of, integers
from app.models.onnx.tensors import Sizes, Unsupported, View

_ROUNDINGS = {
    "round_prefer_floor": ("INCREASING", 0.5),
    "round_prefer_ceil": ("DECREASING", -0.5),
    "floor": ("DECREASING", 0.0),
    "ceil": ("INCREASING", 0.0),
}
"""RESAMPLE2's RoundingDirection, and what InputPixelOffset is more: ceil(x - 0.5) rounds halves down."""

_MOST_TO_RESAMPLE = 4

_MOST_WEIGHTS = 1 << 22
"""Elements of a matrix of weights, which is made while the graph is built. So many places may be looked at, too."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """One dimension: the output's element at `c` is of the input's coordinate (c - after) / scale - before."""

    size: int
    output: int
    scale: float
    before: float
    after: float
    stated: float
    """The scale that the node gives, or that its sizes make."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing happens along it."""
        return self.size == self.output and self.scale == 1 and self.before + self.after == 0

    def source(self, place: int) -> float:
        return (place - self.after) / self.scale - self.before

    def holds(self, place: int) -> bool:
        """Whether the output's element at `place` is of a coordinate in the input, but for the rounding of a roi."""
        beyond = 1e-6 * self.size
        return self.size == 1 or -beyond <= self.source(place) <= self.size - 1 + beyond


@maps("Upsample")
def upsample(node: Node) -> View:
    scales = node.attribute("scales") if node.opset < 9 else [float(s) for s in node.array(1, "scales").reshape(-1)]
    x = node.view(0)
    axes = [_axis("asymmetric", size, _scaled(size, s), s, None) for size, s in zip(x.sizes, scales, strict=True)]
    return _resampled(node, x, axes, node.attribute("mode"), "floor")


@maps("Resize")
def resize(node: Node) -> View:
    x = node.view(0)
    mode = node.attribute("mode")
    if node.opset < 11:
        scales: list[float] = [float(each) for each in node.array(1, "scales").reshape(-1)]
        axes = [
            _axis("asymmetric", size, _scaled(size, scale), scale, None)
            for size, scale in zip(x.sizes, scales, strict=True)
        ]
        if mode != "nearest":
            return _resampled(node, x, axes, mode, "")
        # As ONNX Runtime's CPU provider has it: up where a dimension becomes smaller, down where it becomes larger.
        still = [_axis("asymmetric", axis.size, axis.size, 1.0, None) for axis in axes]
        larger = [axis if axis.scale >= 1 else kept for axis, kept in zip(axes, still, strict=True)]
        x = _resampled(node, x, larger, mode, "floor")
        still = [_axis("asymmetric", axis.output, axis.output, 1.0, None) for axis in larger]
        smaller = [axis if axis.scale < 1 else kept for axis, kept in zip(axes, still, strict=True)]
        return _resampled(node, x, smaller, mode, "ceil")
    transformation = node.attribute("coordinate_transformation_mode", "half_pixel")
    rank = len(x.sizes)
    chosen = axes_of(node.attribute("axes") or list(range(rank)), rank)
    outputs, scales = _sizes(node, [x.sizes[axis] for axis in chosen])
    regions = [float(each) for each in node.array(1, "roi").reshape(-1)] if _uses(transformation, node) else None
    if regions is not None and len(regions) != 2 * len(chosen):
        raise Unsupported(f"its roi has {len(regions)} elements, not two for each of {len(chosen)} axes")
    axes = [_axis("asymmetric", size, size, 1.0, None) for size in x.sizes]
    for place, axis in enumerate(chosen):
        region = (regions[place], regions[place + len(chosen)]) if regions is not None else None
        axes[axis] = _axis(transformation, x.sizes[axis], outputs[place], scales[place], region)
    return _resampled(node, x, axes, mode, node.attribute("nearest_mode", "round_prefer_floor"))


def _uses(transformation: str, node: Node) -> bool:
    if transformation != "tf_crop_and_resize":
        return False
    if not node.has(1):
        raise Unsupported("it has no roi to crop")
    return True


def _scaled(size: int, scale: float) -> int:
    """The output's size along an axis, by FLOAT32's rules."""
    with np.errstate(over="ignore"):
        product = np.float32(size) * np.float32(scale)
    if not np.isfinite(product):
        raise Unsupported(f"its scale {scale} is too large for {size} elements")
    return floor(product)


def _sizes(node: Node, sizes: list[int]) -> tuple[list[int], list[float]]:
    """Of the output along the axes that are resized, whose input's are `sizes`, and the scales."""
    if node.has(2) and node.array(2, "scales").size:
        scales = [float(each) for each in node.array(2, "scales").reshape(-1)]
        if len(scales) != len(sizes) or min(scales) <= 0:
            raise Unsupported(f"its scales {scales} are not one above 0 for each of {len(sizes)} axes")
        return [_scaled(*each) for each in zip(sizes, scales, strict=True)], scales
    if not node.has(3):
        raise Unsupported("it has neither scales nor sizes")
    wanted = integers(node, 3, "sizes")
    if len(wanted) != len(sizes):
        raise Unsupported(f"its sizes {wanted} are not one for each of {len(sizes)} axes")
    scales = [to / size for to, size in zip(wanted, sizes, strict=True)]
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return wanted, scales
    scale = (max if policy == "not_smaller" else min)(scales)
    return [floor(scale * size + 0.5) for size in sizes], [scale] * len(sizes)


def _axis(transformation: str, size: int, output: int, scale: float, region: tuple[float, float] | None) -> _Axis:
    if output < 1:
        raise Unsupported(f"its output would have size {output}")
    before, after, used = 0.0, 0.0, scale
    match transformation:
        case "half_pixel":
            before, after = 0.5, -0.5
        case "pytorch_half_pixel":
            if output > 1:
                before, after = 0.5, -0.5
        case "half_pixel_symmetric":
            before, after = 0.5 - size / 2 * (1 - output / (scale * size)), -0.5
        case "tf_half_pixel_for_nn":
            after = -0.5
        case "align_corners":
            used = (output - 1) / (size - 1) if output > 1 and size > 1 else 1.0
        case "tf_crop_and_resize":
            assert region is not None, "it is given"
            begin, end = region
            if size == 1:
                used = 1.0
            elif output > 1:
                reach = (end - begin) * (size - 1)
                if reach <= 0:
                    raise Unsupported(f"its roi goes from {begin} to {end}")
                used, before = (output - 1) / reach, -begin * (size - 1)
            else:
                used, before = 1.0, -0.5 * (begin + end) * (size - 1)
        case "asymmetric":
            pass
        case _:
            raise Unsupported(f"its coordinate_transformation_mode is {transformation}")
    if size == output and used == 1 and transformation not in ("tf_half_pixel_for_nn", "tf_crop_and_resize"):
        before = after = 0.0
    return _Axis(size, output, used, before, after, scale)


def _resampled(node: Node, x: View, axes: list[_Axis], mode: str, nearest: str) -> View:
    """Where a coordinate lies outside of a tensor that is cropped, extrapolation_value is put around the rest."""
    starts, ends = [0] * len(axes), [0] * len(axes)
    if node.attribute("coordinate_transformation_mode") == "tf_crop_and_resize":
        for place, axis in enumerate(axes):
            _limit(axis.output)
            inside = [c for c in range(axis.output) if axis.holds(c)]
            if not inside:
                raise Unsupported("nothing of its input is inside its roi")
            starts[place], ends[place] = inside[0], axis.output - 1 - inside[-1]
            axes[place] = replace(axis, output=len(inside), after=axis.after - inside[0])
    antialias = bool(node.attribute("antialias", 0))
    if mode in ("linear", "cubic") and (mode == "cubic" or antialias):
        made = _weighted(node, x, axes, mode, antialias=antialias)
    elif mode in ("linear", "nearest"):
        made = _sampled(node, x, axes, mode, nearest)
    else:
        raise Unsupported(f"its mode is {mode}")
    return padded(node, made, starts, ends, _extrapolated(x.data_type, node.attribute("extrapolation_value", 0.0)))


def _extrapolated(data_type: DataType, value: float) -> float:
    """The attribute as an element: of integers a whole number, the nearest one there is."""
    if data_type.startswith("FLOAT"):
        return value
    limits = np.iinfo(numpy_type(data_type))
    return min(max(int(value), limits.min), limits.max)


def _limit(count: int) -> None:
    if count > _MOST_WEIGHTS:
        raise Unsupported(f"it needs {count} weights or places, more than {_MOST_WEIGHTS}")


def _sampled(node: Node, x: View, axes: list[_Axis], mode: str, nearest: str) -> View:
    """By RESAMPLE2, which has 4 dimensions at most: those in a row along which nothing happens are one to it. Of types
    that it does not take the nearest elements are gathered, along one dimension after the other."""
    direction, more = _ROUNDINGS.get(nearest, ("", 0.0))
    if mode == "nearest" and not direction:
        raise Unsupported(f"its nearest_mode is {nearest}")
    if mode == "nearest" and x.data_type not in takes("RESAMPLE2", "InputTensor"):
        for place, axis in enumerate(axes):
            if not axis.is_whole:
                x = gathered(node, x, node.build.constant(_nearest(axis, direction, more)), place)
        return x
    groups: list[tuple[int, _Axis]] = []
    many = len(axes) > _MOST_TO_RESAMPLE
    for axis in axes:
        if many and axis.is_whole and groups and groups[-1][1].is_whole:
            count = groups[-1][0] * axis.size
            groups[-1] = (count, replace(axis, size=count, output=count))
        elif not (many and axis.is_whole and axis.size == 1):
            groups.append((axis.size, axis))
    if len(groups) > _MOST_TO_RESAMPLE:
        raise Unsupported(f"it resamples {len(groups)} dimensions, more than {_MOST_TO_RESAMPLE}")
    kept = [axis for _, axis in groups]
    if all(axis.is_whole for axis in kept):
        return x
    taken = node.reshaped(x, tuple(size for size, _ in groups))
    made = node.build.operator(
        "RESAMPLE2",
        {"InputTensor": taken},
        {
            "InterpolationMode": "LINEAR" if mode == "linear" else "NEAREST_NEIGHBOR",
            "RoundingDirection": direction or "INCREASING",
            "Scales": [axis.scale for axis in kept],
            "InputPixelOffsets": [
                axis.before + (more if mode == "nearest" and not axis.is_whole else 0.0) for axis in kept
            ],
            "OutputPixelOffsets": [axis.after for axis in kept],
        },
        {"OutputTensor": (x.data_type, tuple(axis.output for axis in kept))},
    )
    return node.reshaped(made["OutputTensor"], tuple(axis.output for axis in axes))


def _nearest(axis: _Axis, direction: str, more: float) -> Array:
    """Which element of the input each of the output is, as RESAMPLE2 finds them."""
    _limit(axis.output)
    scaled = (np.arange(axis.output) - axis.after) / np.float64(np.float32(axis.scale))
    at = scaled - axis.before - more
    half = np.rint(at * 2) * 0.5
    at = np.where(abs(at - half) <= abs(scaled) * 2.0**-24, half, at)
    rounded = np.ceil(at) if direction == "INCREASING" else np.floor(at)
    found: Array = np.clip(rounded, 0, axis.size - 1).astype(np.int64)
    return found


def _weighted(node: Node, x: View, axes: list[_Axis], mode: str, *, antialias: bool) -> View:
    """Axis by axis, the product of a matrix of weights and the tensor as a matrix of this axis and all behind it."""
    if x.data_type not in (DataType.FLOAT32, DataType.FLOAT16):
        raise Unsupported(f"its mode is {mode}{', antialiased,' if antialias else ''} and its type {x.data_type}")
    a = float(node.attribute("cubic_coeff_a", -0.75))
    drops = bool(node.attribute("exclude_outside", 0))
    for place, axis in enumerate(axes):
        if axis.is_whole:
            continue
        _limit(axis.output * axis.size)
        weights = _weights(axis, mode, a, antialias=antialias, drops=drops)
        matrix = node.cast(node.build.constant(weights.astype(np.float32)), x.data_type)
        sizes: Sizes = x.sizes
        before, behind = prod(sizes[:place]), prod(sizes[place + 1 :])
        taken = node.reshaped(x, (before, axis.size, behind))
        product = node.build.operator(
            "GEMM",
            {"ATensor": matrix.broadcast((before, axis.output, axis.size)), "BTensor": taken, "CTensor": None},
            {"TransA": "NONE", "TransB": "NONE", "Alpha": 1.0, "Beta": 0.0},
            {"OutputTensor": (x.data_type, (before, axis.output, behind))},
        )
        x = node.reshaped(product["OutputTensor"], (*sizes[:place], axis.output, *sizes[place + 1 :]))
    return x


def _weights(axis: _Axis, mode: str, a: float, *, antialias: bool, drops: bool) -> Array:
    """{ output, input }: of each element of the output, what each one of the input weighs. Those outside weigh as the
    nearest one inside, or nothing where it `drops` them, and then the others make up for them."""
    if axis.size == 1:  # there may be none inside for coordinates that are far from it
        return np.ones((axis.output, 1))
    made = np.zeros((axis.output, axis.size))
    reach = 2 if mode == "cubic" else 1
    squeezed = min(axis.stated, 1.0) if antialias else 1.0
    radius = reach / squeezed
    for place in range(axis.output):
        source = axis.source(place)
        found = range(floor(source - radius), floor(source + radius) + 2)
        weights = np.array([_kernel(mode, abs(source - k) * squeezed, a) for k in found])
        if drops:
            weights *= [0 <= k < axis.size for k in found]
        weights /= weights.sum()
        np.add.at(made[place], np.clip(found, 0, axis.size - 1), weights)
    return made


def _kernel(mode: str, distance: float, a: float) -> float:
    if mode == "linear":
        return max(1 - distance, 0.0)
    if distance <= 1:
        return ((a + 2) * distance - (a + 3)) * distance * distance + 1
    if distance < 2:
        return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return 0.0
