"""ROI_POOLING and ROI_ALIGN against plain loops, and what they refuse."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.contract.violations import Violation
from app.memory.arrays import Array
from tests.contract.refusals import check_wording
from tests.operators.arrays import laid_out
from tests.operators.calls import run
from tests.operators.descriptors import compiled, descriptor, refusals


def the_refusal(document: dict[str, Any]) -> Violation:
    (refusal,) = refusals(document)
    check_wording(refusal)
    return refusal


# Pooling


def pooled(x: Array, rois: Array, scale: float, height: int, width: int) -> Array:
    made = np.zeros((len(rois), x.shape[1], height, width), x.dtype)
    for r, (batch, *corners) in enumerate(rois.astype(float).tolist()):
        x1, y1, x2, y2 = (int(np.rint(each * scale)) for each in corners)
        tall, wide = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        plane = x[min(max(int(batch), 0), len(x) - 1)]
        for i, j in np.ndindex(height, width):
            down = range(i * tall // height + y1, -(-(i + 1) * tall // height) + y1)
            across = range(j * wide // width + x1, -(-(j + 1) * wide // width) + x1)
            rows = [each for each in down if 0 <= each < x.shape[2]]
            columns = [each for each in across if 0 <= each < x.shape[3]]
            if rows and columns:
                made[r, :, i, j] = plane[:, rows][:, :, columns].max((1, 2))
    return made


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pooling(dtype: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(12):
        x = rng.standard_normal([int(each) for each in rng.integers(1, 7, 4)]).astype(dtype)
        rois = (rng.integers(-6, 18, (int(rng.integers(1, 5)), 5)) / 2).astype(dtype)
        rois[:, 0] = rng.integers(-1, len(x) + 1, len(rois))
        scale, height, width = float(rng.choice([0.5, 1, 2])), int(rng.integers(1, 5)), int(rng.integers(1, 5))
        document = {"Type": "ROI_POOLING", "SpatialScale": scale, "PooledSize": {"Height": height, "Width": width}}
        made = run(document, InputTensor=laid_out(rng, x), ROITensor=laid_out(rng, rois[None, None]))["OutputTensor"]
        np.testing.assert_array_equal(made, pooled(x, rois, scale, height, width))


def test_pooling_of_far_regions() -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    far = 3e38
    rois = np.array([[0, -far, -far, far, far], [far, 0, 0, 0, 0], [0, far, far, -far, -far], [np.nan] * 5], np.float32)
    document = {"Type": "ROI_POOLING", "SpatialScale": far, "PooledSize": {"Height": 1, "Width": 1}}
    made = run(document, InputTensor=x, ROITensor=rois[None, None])["OutputTensor"]
    assert made.reshape(-1).tolist() == [3, 0, 0, 0]


def test_sizes_of_pooling() -> None:
    document = descriptor("DML_OPERATOR_ROI_POOLING", PooledSize={"Height": 3, "Width": 5})
    assert compiled(document).outputs["OutputTensor"].Sizes == [2, 1, 3, 5]
    rois = {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 4]}
    refusal = the_refusal(document | {"ROITensor": rois})
    assert (refusal.pointer, refusal.allowed) == ("/ROITensor/Sizes", [1, 1, 2, 5])
    refusal = the_refusal(document | {"OutputTensor": {"DataType": "FLOAT32", "Sizes": [2, 1, 5, 3]}})
    assert (refusal.pointer, refusal.allowed) == ("/OutputTensor/Sizes", [2, 1, 3, 5])
    refusal = the_refusal(document | {"PooledSize": {"Height": 0, "Width": 1}})
    assert (refusal.pointer, refusal.given, refusal.allowed) == ("/PooledSize/Height", 0, ">= 1")
    large = the_refusal(document | {"PooledSize": {"Height": 1 << 20, "Width": 1 << 15}})
    assert large.pointer == "/OutputTensor/Sizes"
    assert "with PooledSize Width 32768 and Height 1048576 imply" in large.message


# Alignment

Reader = Callable[[int, int], Array]


def positions(first: float, last: float, size: int, a: dict[str, Any], scale: float) -> list[list[float]]:
    """Where the samples of each output element lie along a dimension."""
    begin, end = np.float32(first) * np.float32(scale), np.float32(last) * np.float32(scale)
    length = end - begin
    most = min(a["MaximumSamplesPerOutput"], 1024)
    n = min(max(math.ceil(abs(length) / np.float32(size)), a["MinimumSamplesPerOutput"]), most)
    into, out = a.get("InputPixelOffset", 0.5), a.get("OutputPixelOffset", -0.5)
    if a.get("AlignRegionsToCorners"):
        if size * n == 1:
            return [[0.5 * float(length) + float(begin) - into]]
        return [
            [s * (float(length) / max(size * n - 1, 1)) + float(begin) - into for s in range(o * n, o * n + n)]
            for o in range(size)
        ]
    step = float(length) / (size * n)
    return [[(s - out) * step + float(begin) - into for s in range(o * n, o * n + n)] for o in range(size)]


def sampled(read: Reader, y: float, x: float, mode: str) -> Array:
    if mode == "NEAREST_NEIGHBOR":
        return read(math.ceil(y - 0.5), math.ceil(x - 0.5))
    i, j = math.floor(y), math.floor(x)
    u, v = y - i, x - j
    made = np.zeros_like(read(i, j), float)
    for row, weight in ((i, 1 - u), (i + 1, u)):
        for column, other in ((j, 1 - v), (j + 1, v)):
            if weight * other:
                made = made + weight * other * read(row, column)
    return made


def aligned(x: Array, rois: Array, batches: Array, a: dict[str, Any], height: int, width: int) -> Array:
    made = np.zeros((len(rois), x.shape[1], height, width))
    for r, (x1, y1, x2, y2) in enumerate(rois.tolist()):
        plane = x[min(int(batches[r]), len(x) - 1)].astype(float)

        def read(i: int, j: int, plane: Array = plane) -> Array:
            inside = 0 <= i < plane.shape[1] and 0 <= j < plane.shape[2]
            return plane[:, i, j] if inside else np.full(len(plane), a["OutOfBoundsInputValue"])

        down = positions(y1, y2, height, a, a["SpatialScaleY"])
        across = positions(x1, x2, width, a, a["SpatialScaleX"])
        for i, j in np.ndindex(height, width):
            values = [sampled(read, y, x, a["InterpolationMode"]) for y in down[i] for x in across[j]]
            made[r, :, i, j] = np.max(values, 0) if a["ReductionFunction"] == "MAX" else np.mean(values, 0)
    return made


def drawn(rng: np.random.Generator, kind: str) -> dict[str, Any]:
    least = int(rng.integers(1, 3))
    made = {
        "Type": kind,
        "ReductionFunction": str(rng.choice(["AVERAGE", "MAX"])),
        "InterpolationMode": str(rng.choice(["LINEAR", "NEAREST_NEIGHBOR"])),
        "SpatialScaleX": float(rng.choice([0.5, 1, 2])),
        "SpatialScaleY": float(rng.choice([0.25, 1, 1.5])),
        "MinimumSamplesPerOutput": least,
        "MaximumSamplesPerOutput": int(rng.choice([least, 3, 2**32 - 1])),
    }
    if kind != "ROI_ALIGN_GRAD":
        made["OutOfBoundsInputValue"] = float(rng.choice([0, -3]))
    if kind != "ROI_ALIGN" and rng.integers(0, 3):
        made |= {
            "InputPixelOffset": float(rng.choice([0, 0.5, 0.25])),
            "OutputPixelOffset": float(rng.choice([0, -0.5])),
            "AlignRegionsToCorners": bool(rng.integers(0, 2)),
        }
    return made


def regions(rng: np.random.Generator, sizes: list[int], dtype: str) -> tuple[Array, Array]:
    """Some inside, some beyond, some empty, some inverted; a batch may be beyond."""
    count = int(rng.integers(1, 4))
    rois = (rng.integers(-8, 4 * max(sizes[2:]) + 8, (count, 4)) / 4).astype(dtype)
    rois[rng.random(count) < 0.2, 2:] = 1
    rois[rng.random(count) < 0.2] = 1
    batches = rng.integers(0, sizes[0] + 1, count).astype(np.uint32)
    return rois, batches


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["ROI_ALIGN", "ROI_ALIGN1"])
def test_alignment(kind: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    for turn in range(12):
        sizes = [int(each) for each in rng.integers(1, 6, 4)]
        x = (rng.integers(-16, 17, sizes) / 4).astype(dtype)
        rois, batches = regions(rng, sizes, dtype)
        height, width = (int(each) for each in rng.integers(1, 4, 2))
        document = drawn(rng, kind)
        exact = aligned(x, rois, batches, document, height, width)
        document["OutputTensor"] = {"DataType": dtype.upper(), "Sizes": list(exact.shape)}
        rank = int(rng.integers(2, 5))
        made = run(
            document,
            InputTensor=laid_out(rng, x),
            ROITensor=laid_out(rng, rois.reshape([1] * (rank - 2) + [-1, 4])),
            BatchIndicesTensor=batches.reshape([1] * (rank - 2) + [-1]).astype(np.uint64 if turn % 2 else np.uint32),
        )["OutputTensor"]
        epsilon = float(np.finfo(dtype).eps)
        np.testing.assert_allclose(made, exact, rtol=2 * epsilon, atol=epsilon)


def test_the_example_of_nearest_neighbors() -> None:
    """That of the page of ROI_ALIGN_GRAD."""
    x = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
    rois = np.array([[0, 0, 2, 2], [2, 0, 4, 2], [0, 2, 2, 4], [2, 2, 4, 4]], np.float32)
    document = descriptor(
        "DML_OPERATOR_ROI_ALIGN",
        InterpolationMode="NEAREST_NEIGHBOR",
        MaximumSamplesPerOutput=1,
        OutputTensor={"DataType": "FLOAT32", "Sizes": [4, 1, 1, 3]},
    )
    made = run(document, InputTensor=x, ROITensor=rois, BatchIndicesTensor=np.zeros(4, np.uint32))["OutputTensor"]
    assert made.reshape(4, 3).tolist() == [[1, 1, 2], [3, 3, 4], [9, 9, 10], [11, 11, 12]]


def aligned_one(x: list[float], roi: list[float], **members: Any) -> float:
    document = descriptor(
        "DML_OPERATOR_ROI_ALIGN1", OutputTensor={"DataType": "FLOAT32", "Sizes": [1, 1, 1, 1]}, **members
    )
    made = run(
        document,
        InputTensor=np.array(x, np.float32).reshape(1, 1, 1, -1),
        ROITensor=np.array([roi], np.float32),
        BatchIndicesTensor=np.array([2**32 - 1], np.uint32),
    )
    return float(made["OutputTensor"].item())


@pytest.mark.parametrize("function", ["AVERAGE", "MAX"])
@pytest.mark.parametrize("roi", [[1, 0, 4, 0], [4, 0, 1, 0]])
def test_a_sample_that_is_alone_lies_halfway_between_corners(roi: list[float], function: str) -> None:
    """As TensorFlow's crop_and_resize has it, whose operator this is; so an inverted region is its mirror image."""
    members: dict[str, Any] = {"AlignRegionsToCorners": True, "InputPixelOffset": 0.0, "OutputPixelOffset": 0.0}
    members |= {"ReductionFunction": function, "MaximumSamplesPerOutput": 1}
    assert aligned_one([0, 1, 4, 9, 16], roi, **members) == 6.5


def test_what_is_not_read() -> None:
    """A neighbor of weight 0, whatever it is; what is far outside."""
    assert aligned_one([5, np.inf, np.nan], [0, 0, 1, 1]) == 5
    for far in (3e38, -3e38, np.inf, np.nan):
        assert aligned_one([5, 6], [far, far, far, far], OutOfBoundsInputValue=-7.0) == -7
    assert aligned_one([5, 6], [0, 0, 3e38, 1], OutOfBoundsInputValue=0.0, MaximumSamplesPerOutput=2**32 - 1) == 0


@pytest.mark.parametrize("mode", ["NEAREST_NEIGHBOR", "LINEAR"])
def test_what_is_outside_takes_no_part_in_a_maximum_if_it_is_an_infinity(mode: str) -> None:
    members = {"InterpolationMode": mode, "ReductionFunction": "MAX", "MaximumSamplesPerOutput": 4}
    assert aligned_one([-5, -6], [-2, 0, 2, 1], OutOfBoundsInputValue=-np.inf, **members) == -5
    assert aligned_one([-5, -6], [-3, 0, -1, 1], OutOfBoundsInputValue=-np.inf, **members) == -np.inf


def test_a_size_that_is_whole_in_float32_takes_no_sample_more() -> None:
    """0.7 * 10 is 7 in float32, and 7.00000003 in float64; of 7 samples over 7 elements the fourth is the highest."""
    x = [0.0, 0, 0, 1, 0, 0, 0]
    members = {"SpatialScaleX": 10.0, "ReductionFunction": "MAX", "MaximumSamplesPerOutput": 100}
    assert aligned_one(x, [0, 0, 0.7, 1], **members) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("kind", ["ROI_ALIGN", "ROI_ALIGN1", "ROI_ALIGN_GRAD"])
def test_what_alignment_refuses(kind: str) -> None:
    document = descriptor(f"DML_OPERATOR_{kind}")
    rois = {"DataType": "FLOAT32", "Sizes": [2, 4]}
    indices = {"DataType": "UINT32", "Sizes": [2]}
    for sizes, right in (([2, 5], [2, 4]), ([2, 2, 4], [1, 2, 4]), ([1, 2, 2, 4], [1, 1, 2, 4])):
        refusal = the_refusal(document | {"ROITensor": rois | {"Sizes": sizes}})
        assert (refusal.pointer, refusal.allowed) == ("/ROITensor/Sizes", right)
    for sizes, right in (([3], [2]), ([2, 1], [1, 2]), ([2, 2], [1, 2])):
        refusal = the_refusal(document | {"BatchIndicesTensor": indices | {"Sizes": sizes}})
        assert (refusal.pointer, refusal.allowed) == ("/BatchIndicesTensor/Sizes", right)
    for function in ("SUM", "MIN", "ARGMAX"):
        assert the_refusal(document | {"ReductionFunction": function}).pointer == "/ReductionFunction"
    for least, most, pointer in (
        (3, 2, "/MinimumSamplesPerOutput"),
        (1025, 2**32 - 1, "/MinimumSamplesPerOutput"),
        (0, 1, "/MinimumSamplesPerOutput"),
    ):
        members = {"MinimumSamplesPerOutput": least, "MaximumSamplesPerOutput": most}
        assert the_refusal(document | members).pointer == pointer
    assert refusals(document | {"MinimumSamplesPerOutput": 1024, "MaximumSamplesPerOutput": 2**32 - 1}) == []


@pytest.mark.parametrize("kind", ["ROI_ALIGN", "ROI_ALIGN1"])
def test_sizes_of_alignment(kind: str) -> None:
    document = descriptor(f"DML_OPERATOR_{kind}")
    for sizes, right in (([3, 1, 5, 6], [2, 1, 5, 6]), ([2, 2, 1, 1], [2, 1, 1, 1])):
        refusal = the_refusal(document | {"OutputTensor": {"DataType": "FLOAT32", "Sizes": sizes}})
        assert (refusal.pointer, refusal.allowed) == ("/OutputTensor/Sizes", right)
    assert refusals(document | {"OutputTensor": {"DataType": "FLOAT32", "Sizes": [2, 1, 7, 9]}}) == []
