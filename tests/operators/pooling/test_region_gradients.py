"""ROI_ALIGN_GRAD against plain loops, and what it refuses."""

import math
from typing import Any

import numpy as np
import pytest

from app.memory.arrays import Array
from app.operators.pooling import region_gradients
from tests.contract.refusals import check_wording
from tests.operators.arrays import laid_out
from tests.operators.calls import run
from tests.operators.descriptors import compiled, descriptor, refusals
from tests.operators.pooling.test_regions import drawn, positions, regions

GRAD = "DML_OPERATOR_ROI_ALIGN_GRAD"
Weighted = list[tuple[int, int, float]]


def elements(y: float, x: float, mode: str) -> Weighted:
    """What a sample is made of."""
    if mode == "NEAREST_NEIGHBOR":
        return [(math.ceil(y - 0.5), math.ceil(x - 0.5), 1)]
    i, j = math.floor(y), math.floor(x)
    u, v = y - i, x - j
    return [
        (i, j, (1 - u) * (1 - v)),
        (i, math.ceil(x), (1 - u) * v),
        (math.ceil(y), j, u * (1 - v)),
        (math.ceil(y), math.ceil(x), u * v),
    ]


def gradients(x: Array, dy: Array, rois: Array, batches: Array, a: dict[str, Any]) -> tuple[Array, Array]:
    """Of the input and of the regions."""
    made, of_regions = np.zeros(x.shape), np.zeros(rois.shape)
    rows, columns = dy.shape[2:]

    def read(plane: Array, i: int, j: int) -> float:
        inside = 0 <= i < plane.shape[0] and 0 <= j < plane.shape[1]
        return float(plane[i, j]) if inside else 0.0

    for r, (x1, y1, x2, y2) in enumerate(rois.tolist()):
        down = positions(y1, y2, rows, a, a["SpatialScaleY"])
        across = positions(x1, x2, columns, a, a["SpatialScaleX"])
        for c, i, j in np.ndindex(*dy.shape[1:]):
            at = (min(int(batches[r]), len(x) - 1), c)
            samples = [(v, u) for v in down[i] for u in across[j]]
            if a["ReductionFunction"] == "MAX":
                values = [
                    sum(w * read(x[at], *place) for *place, w in elements(v, u, a["InterpolationMode"]))
                    for v, u in samples
                ]
                samples = [samples[int(np.argmax(values))]]
            share = float(dy[r, c, i, j]) / len(samples)
            for v, u in samples:
                for row, column, weight in elements(v, u, a["InterpolationMode"]):
                    if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                        made[at][row, column] += share * weight
                if a["InterpolationMode"] == "LINEAR":
                    tl, tr, bl, br = (read(x[at], *place) for *place, _ in elements(v, u, "LINEAR"))
                    fy, fx = v - math.floor(v), u - math.floor(u)
                    gx = ((1 - fy) * (tr - tl) + fy * (br - bl)) * share
                    gy = ((1 - fx) * (bl - tl) + fx * (br - tr)) * share
                    of_regions[r] += [gx * (columns - j), gy * (rows - i), gx * j, gy * i]
    return made, of_regions


@pytest.mark.parametrize("piece", [5, 1 << 18])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients(dtype: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_gradients, "_PIECE", piece)
    rng = np.random.default_rng(3)
    for turn in range(9):
        sizes = [int(each) for each in rng.integers(1, 5, 4)]
        x = (rng.integers(-16, 17, sizes) / 4).astype(dtype)
        rois, batches = regions(rng, sizes, dtype)
        document = drawn(rng, "ROI_ALIGN_GRAD")
        dy = (rng.integers(-8, 9, [len(rois), sizes[1], *rng.integers(1, 4, 2)]) / 4).astype(dtype)
        of_input, of_regions = gradients(x, dy, rois, batches, document)
        rank = int(rng.integers(2, 5))
        rois = rois.reshape([1] * (rank - 2) + [-1, 4])
        alone = turn % 3 == 0 and document["ReductionFunction"] == "AVERAGE"
        if turn % 3 != 1:
            document["OutputGradientTensor"] = {"DataType": dtype.upper(), "Sizes": sizes}
        if not alone:
            document["OutputROIGradientTensor"] = {"DataType": dtype.upper(), "Sizes": list(rois.shape)}
        made = run(
            document,
            InputTensor=None if alone else laid_out(rng, x),
            InputGradientTensor=laid_out(rng, dy),
            ROITensor=laid_out(rng, rois),
            BatchIndicesTensor=batches,
        )
        epsilon = float(np.finfo(dtype).eps)
        for name, exact in (("OutputGradientTensor", of_input), ("OutputROIGradientTensor", of_regions)):
            assert (name in made) == (name in document)
            if name in made:
                flat = made[name].reshape(exact.shape)
                np.testing.assert_allclose(flat, exact, rtol=2 * epsilon, atol=epsilon)


def test_the_example_of_the_page() -> None:
    rois = np.array([[0, 0, 2, 2], [2, 0, 4, 2], [0, 2, 2, 4], [2, 2, 4, 4]], np.float32)
    document = descriptor(GRAD, InputTensor=None, InterpolationMode="NEAREST_NEIGHBOR", MaximumSamplesPerOutput=1)
    made = run(
        document,
        InputGradientTensor=np.arange(1, 13, dtype=np.float32).reshape(4, 1, 1, 3),
        ROITensor=rois,
        BatchIndicesTensor=np.zeros(4, np.uint32),
    )["OutputGradientTensor"]
    assert made[0, 0].tolist() == [[3, 3, 9, 6], [0, 0, 0, 0], [15, 9, 21, 12], [0, 0, 0, 0]]


@pytest.mark.parametrize("far", [3e38, np.inf, np.nan])
def test_what_is_outside_gets_nothing(far: float) -> None:
    """Of a gradient that is NaN neither."""
    document = descriptor(GRAD, OutputROIGradientTensor={"DataType": "FLOAT32", "Sizes": [1, 4]})
    made = run(
        document,
        InputTensor=np.ones((1, 1, 4, 4), np.float32),
        InputGradientTensor=np.full((1, 1, 1, 1), np.nan, np.float32),
        ROITensor=np.full((1, 4), far, np.float32),
        BatchIndicesTensor=np.zeros(1, np.uint32),
    )
    assert not made["OutputGradientTensor"].any()


def tensor(*sizes: int) -> dict[str, Any]:
    return {"DataType": "FLOAT32", "Sizes": list(sizes)}


@pytest.mark.parametrize(
    ("members", "pointer", "allowed"),
    [
        ({"OutputGradientTensor": None}, "/OutputGradientTensor", "a tensor"),
        ({"OutputROIGradientTensor": tensor(2, 4)}, "/InputTensor", "a tensor"),
        ({"ReductionFunction": "MAX"}, "/InputTensor", "a tensor"),
        ({"InputGradientTensor": tensor(3, 1, 2, 2)}, "/InputGradientTensor/Sizes", [2, 1, 2, 2]),
        ({"InputGradientTensor": tensor(2, 2, 5, 6)}, "/InputGradientTensor/Sizes", [2, 1, 5, 6]),
        ({"InputTensor": tensor(1, 1, 4, 5)}, "/OutputGradientTensor/Sizes", [1, 1, 4, 5]),
        (
            {"InputTensor": tensor(1, 1, 4, 4), "OutputROIGradientTensor": tensor(4, 2)},
            "/OutputROIGradientTensor/Sizes",
            [2, 4],
        ),
    ],
)
def test_refusals(members: dict[str, Any], pointer: str, allowed: object) -> None:
    (refusal,) = refusals(descriptor(GRAD, InputTensor=None) | members)
    check_wording(refusal)
    assert (refusal.pointer, refusal.allowed) == (pointer, allowed)


def test_either_output() -> None:
    both = descriptor(GRAD, InputTensor=tensor(1, 1, 4, 4), OutputROIGradientTensor=tensor(2, 4))
    assert list(compiled(both).outputs) == ["OutputGradientTensor", "OutputROIGradientTensor"]
    assert list(compiled(both | {"OutputGradientTensor": None}).outputs) == ["OutputROIGradientTensor"]
