"""RESAMPLE to RESAMPLE3 and the gradients against matrices of weights, one for each dimension, and their rules."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from app.contract.constants import FeatureLevel
from app.memory.arrays import Array
from tests.contract.refusals import check_wording
from tests.operators.arrays import laid_out
from tests.operators.descriptors import compiled, descriptor, output_of, refusals
from tests.operators.runs import Runner, close

FORWARD = ("RESAMPLE", "RESAMPLE1", "RESAMPLE2", "RESAMPLE3")
GRADIENTS = ("RESAMPLE_GRAD", "RESAMPLE_GRAD1")
ROUNDED = ("RESAMPLE2", "RESAMPLE3", "RESAMPLE_GRAD1")
PREFIX = "DML_OPERATOR_"


def weights(size: int, count: int, scale: float, offsets: tuple[float, float], how: str) -> Array:
    """Of each of `size` elements in each of `count` samples; by `how` LINEAR, ANTIALIASED, NEAREST, and so on."""
    made = np.zeros((count, size))
    exact = Fraction(float(np.float32(scale)))
    for place in range(count):
        at = (place - Fraction(offsets[1])) / exact - Fraction(offsets[0])
        if how in ("LINEAR", "ANTIALIASED"):
            edge = min(max(at, Fraction(0)), Fraction(size - 1))
            stretched = how == "ANTIALIASED" and exact < Fraction(1, 2)
            centre, stretch = (at, exact) if stretched else (edge, Fraction(1))
            row = [max(Fraction(1) - abs(centre - k) * stretch, Fraction(0)) for k in range(size)]
            if not any(row):
                row[int(edge)] = Fraction(1)
            made[place] = [float(each / sum(row)) for each in row]
        else:
            thirds = Fraction(round(at * 2), 2)
            at = thirds if abs(at - thirds) < abs(at + Fraction(offsets[0])) / 2**24 else at
            index = {"INCREASING": -(-at // 1), "DECREASING": at // 1, "NEAREST": (at + Fraction(1, 2)) // 1}[how]
            made[place, min(max(int(index), 0), size - 1)] = 1
    return made


def applied(x: Array, matrices: Sequence[Array]) -> Array:
    """Each along its dimension."""
    for axis, matrix in enumerate(matrices):
        x = np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
    return x


SCALES = [1, 2, 3, 0.5, 1 / 3, 0.4, 1.5, 0.7, 0.1, 2.75]


def attributes(kind: str, rng: np.random.Generator, rank: int, mode: str) -> tuple[dict[str, Any], list[Any], str]:
    """Random ones, offsets for each dimension, and how samples are taken."""
    members: dict[str, Any] = {"Scales": [float(each) for each in rng.choice(SCALES, rank)], "InterpolationMode": mode}
    how = "LINEAR" if mode == "LINEAR" else "NEAREST"
    offsets = [(0.5, -0.5)] * rank
    if kind != "RESAMPLE":
        offsets = [
            ((0.5, -0.5), (0, 0), (0.25, 1.5), (-0.5, 0.5))[rng.choice(4, p=[0.6, 0.2, 0.1, 0.1])] for _ in range(rank)
        ]
        members |= {"InputPixelOffsets": [each for each, _ in offsets]}
        members |= {"OutputPixelOffsets": [each for _, each in offsets], "DimensionCount": rank}
    if kind in ROUNDED:
        members["RoundingDirection"] = str(rng.choice(["INCREASING", "DECREASING"]))
        how = how if mode == "LINEAR" else members["RoundingDirection"]
    if kind == "RESAMPLE3":
        members["Antialiased"] = bool(rng.random() < 0.7)
        how = "ANTIALIASED" if mode == "LINEAR" and members["Antialiased"] else how
    return members, offsets, how


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint8])
@pytest.mark.parametrize("mode", ["LINEAR", "NEAREST_NEIGHBOR"])
@pytest.mark.parametrize("kind", FORWARD)
def test_samples(run: Runner, kind: str, mode: str, dtype: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 5))
    sizes = [int(each) for each in rng.integers(1, 9 if rank < 4 else 5, rank)]
    members, offsets, how = attributes(kind, rng, rank, mode)
    implied = [int(np.float32(size) * np.float32(scale)) for size, scale in zip(sizes, members["Scales"], strict=True)]
    counts = [max(each + int(rng.integers(-2, 3)), 1) for each in implied]
    x = rng.integers(-99, 99, sizes)
    x = laid_out(rng, (x & 0xFF).astype(dtype) if np.dtype(dtype).kind != "f" else (x / 8).astype(dtype))
    out: dict[str, Any] | None = {"DataType": x.dtype.name.upper(), "Sizes": counts}
    if min(implied) > 0 and seed % 2:
        counts, out = implied, None
    made = run(kind, {"InputTensor": x}, OutputTensor=out, **members)["OutputTensor"]
    each = zip(sizes, counts, members["Scales"], offsets, strict=True)
    expected = applied(x.astype(np.float64), [weights(*given, how) for given in each])
    if mode == "NEAREST_NEIGHBOR":
        np.testing.assert_array_equal(made, expected)
    elif np.dtype(dtype).kind == "f":
        close(made, expected, scale=12.5 if dtype is np.float32 else 0, ulp=0.51)
    else:
        assert (np.abs(made - expected) <= 0.5 + 1e-9).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("mode", ["LINEAR", "NEAREST_NEIGHBOR"])
@pytest.mark.parametrize("kind", GRADIENTS)
def test_gradients(run: Runner, kind: str, mode: str, dtype: Any, seed: int) -> None:
    """They are applied transposed."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 5))
    sizes = [int(each) for each in rng.integers(1, 9 if rank < 4 else 4, rank)]
    members, offsets, how = attributes(kind, rng, rank, mode)
    counts = [
        max(int(size * scale) + int(rng.integers(-2, 3)), 1)
        for size, scale in zip(sizes, members["Scales"], strict=True)
    ]
    gradient = laid_out(rng, (rng.integers(-99, 99, counts) / 8).astype(dtype))
    out = {"DataType": gradient.dtype.name.upper(), "Sizes": sizes}
    made = run(kind, {"InputGradientTensor": gradient}, OutputGradientTensor=out, **members)["OutputGradientTensor"]
    each = zip(sizes, counts, members["Scales"], offsets, strict=True)
    matrices = [weights(*given, how).T for given in each]
    scale = applied(np.abs(gradient.astype(np.float64)), matrices)
    close(made, applied(gradient.astype(np.float64), matrices), scale=scale * 1e-3 + 1e-6, ulp=0.51)


def test_examples_of_the_pages(run: Runner) -> None:
    """Of RESAMPLE_GRAD, at offsets of 0 rounded down."""
    members: dict[str, Any] = {"Scales": [0.5, 1.5], "InputPixelOffsets": [0, 0], "OutputPixelOffsets": [0, 0]}
    members |= {"InterpolationMode": "DML_INTERPOLATION_MODE_NEAREST_NEIGHBOR"}
    members |= {"RoundingDirection": "DML_AXIS_DIRECTION_DECREASING"}
    x = np.array([[1, 2], [3, 4]], np.float32)
    assert run("RESAMPLE2", {"InputTensor": x}, **members)["OutputTensor"].tolist() == [[1, 1, 2]]
    gradient = np.array([[4, 5, 6]], np.float32)
    out = {"DataType": "FLOAT32", "Sizes": [2, 2]}
    made = run("RESAMPLE_GRAD1", {"InputGradientTensor": gradient}, OutputGradientTensor=out, **members)
    assert made["OutputGradientTensor"].tolist() == [[9, 6], [0, 0]]


def test_halves_are_rounded_up(run: Runner) -> None:
    x = np.arange(8, dtype=np.float32)
    members: dict[str, Any] = {"InterpolationMode": "NEAREST_NEIGHBOR"}
    assert run("RESAMPLE", {"InputTensor": x}, Scales=[0.5], **members)["OutputTensor"].tolist() == [1, 3, 5, 7]
    members |= {"Scales": [0.5], "InputPixelOffsets": [0], "OutputPixelOffsets": [0], "RoundingDirection": "DECREASING"}
    members["InputPixelOffsets"] = [-0.5]
    assert run("RESAMPLE2", {"InputTensor": x}, **members)["OutputTensor"].tolist() == [0, 2, 4, 6]
    members |= {"InputPixelOffsets": [0.5 - 0.5], "OutputPixelOffsets": [-0.5]}
    assert run("RESAMPLE2", {"InputTensor": x}, **members)["OutputTensor"].tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize("direction", ["INCREASING", "DECREASING"])
@pytest.mark.parametrize("divisor", [3, 5, 7, 10, 49])
def test_scales_that_have_no_float(run: Runner, divisor: int, direction: str) -> None:
    """Centres of blocks of an odd size are elements, in whatever direction is rounded, far from 0 as well."""
    x = np.arange(divisor * 4000, dtype=np.float32)
    members: dict[str, Any] = {"InterpolationMode": "NEAREST_NEIGHBOR", "RoundingDirection": direction}
    members |= {"InputPixelOffsets": [0.0], "OutputPixelOffsets": [0.0], "Scales": [1 / divisor]}
    made = run("RESAMPLE2", {"InputTensor": x}, OutputTensor={"DataType": "FLOAT32", "Sizes": [4000]}, **members)
    np.testing.assert_array_equal(made["OutputTensor"], x[::divisor])


def test_infinities_stay_where_they_are(run: Runner) -> None:
    x = np.array([1, np.inf, 2, np.nan, 3], np.float32)
    made = run("RESAMPLE", {"InputTensor": x}, Scales=[1], InterpolationMode="LINEAR")["OutputTensor"]
    np.testing.assert_array_equal(made, x)
    offsets: dict[str, Any] = {"InputPixelOffsets": [0], "OutputPixelOffsets": [0], "InterpolationMode": "LINEAR"}
    made = run("RESAMPLE1", {"InputTensor": x}, Scales=[2], **offsets)["OutputTensor"]
    np.testing.assert_array_equal(made[[0, 1, 2, 3, 4, 5, 8, 9]], [1, np.inf, np.inf, np.inf, 2, np.nan, 3, 3])
    out = {"DataType": "FLOAT32", "Sizes": [3]}
    outputs = run("RESAMPLE_GRAD", {"InputGradientTensor": x}, OutputGradientTensor=out, Scales=[2], **offsets)
    np.testing.assert_array_equal(outputs["OutputGradientTensor"], [np.inf, np.nan, np.nan])


def test_scales_far_from_1(run: Runner) -> None:
    """Everything is of one element, or an element takes all; nothing is read outside."""
    x = np.arange(1, 7, dtype=np.float32)
    out = {"DataType": "FLOAT32", "Sizes": [3]}
    for mode in ("LINEAR", "NEAREST_NEIGHBOR"):
        made = run("RESAMPLE", {"InputTensor": x}, Scales=[1e38], InterpolationMode=mode, OutputTensor=out)
        assert made["OutputTensor"].tolist() == [1, 1, 1]
        made = run("RESAMPLE", {"InputTensor": x}, Scales=[1e-38], InterpolationMode=mode, OutputTensor=out)
        assert made["OutputTensor"].tolist() == [6, 6, 6]
        offsets: dict[str, Any] = {"InputPixelOffsets": [0.5], "OutputPixelOffsets": [-0.5], "InterpolationMode": mode}
        for scale, expected in ((1e38, [21, 0, 0]), (1e-38, [0, 0, 21])):
            made = run("RESAMPLE_GRAD", {"InputGradientTensor": x}, OutputGradientTensor=out, Scales=[scale], **offsets)
            assert made["OutputGradientTensor"].tolist() == expected
    members = offsets | {"InterpolationMode": "LINEAR", "RoundingDirection": "DECREASING", "Antialiased": True}
    made = run("RESAMPLE3", {"InputTensor": x}, Scales=[1e-38], OutputTensor=out, **members)
    np.testing.assert_allclose(made["OutputTensor"], [3.5] * 3)


def test_filtered_coordinates_go_beyond_the_edges(run: Runner) -> None:
    """As the weights' formula has it: the more they do, the less the elements inside count beside that at the edge."""
    x = np.array([1, 2, 4, 8], np.float32)
    members: dict[str, Any] = {"RoundingDirection": "DECREASING", "Antialiased": True, "Scales": [0.25]}
    for offset, expected in ((2, [4 / 3, 4, 8, 8]), (5, [1, 11 / 6, 4.9, 8])):
        out = {"DataType": "FLOAT32", "Sizes": [4]}
        members |= {"InterpolationMode": "LINEAR", "InputPixelOffsets": [offset], "OutputPixelOffsets": [0]}
        made = run("RESAMPLE3", {"InputTensor": x}, OutputTensor=out, **members)["OutputTensor"]
        np.testing.assert_allclose(made, expected, rtol=1e-6)


def document(kind: str, **members: Any) -> dict[str, Any]:
    return descriptor(PREFIX + kind) | members


@pytest.mark.parametrize("kind", FORWARD)
def test_implied_sizes(kind: str) -> None:
    ten = {"DataType": "FLOAT32", "Sizes": [1, 1, 10, 3]}
    made = output_of(compiled(document(kind, InputTensor=ten, Scales=[1, 4, 0.7, 0.5])))
    assert made.Sizes == [1, 4, 7, 1]
    (refusal,) = refusals(document(kind, InputTensor=ten, Scales=[1, 1, 0.05, 1]))
    check_wording(refusal)
    assert (refusal.pointer, refusal.given) == ("/OutputTensor/Sizes", [1, 1, 0, 3])
    (refusal,) = refusals(document(kind, InputTensor=ten, Scales=[3e38, 3e38, 1, 3e38]))
    assert refusal.pointer == "/OutputTensor/Sizes"


@pytest.mark.parametrize("kind", [*FORWARD, *GRADIENTS])
def test_rules(kind: str) -> None:
    for scales, pointer in (([1, 1, 0, 1], "/Scales/2"), ([1, -2, 1, 1], "/Scales/1")):
        (refusal,) = refusals(document(kind, Scales=scales))
        check_wording(refusal)
        assert (refusal.pointer, refusal.allowed) == (pointer, "> 0")
    lists = [name for name in ("Scales", "InputPixelOffsets", "OutputPixelOffsets") if name in document(kind)]
    (refusal,) = refusals(document(kind, **{name: [1, 1, 1] for name in lists}))
    check_wording(refusal)
    assert (refusal.pointer, refusal.given, refusal.allowed) == ("/Scales", 3, 4)
    count = "ScaleCount" if kind == "RESAMPLE" else "DimensionCount"
    assert refusals(document(kind, **{count: 4})) == []
    (refusal,) = refusals(document(kind, **{count: 3}))
    assert refusal.pointer == f"/{count}"
    for name in lists[1:]:
        (refusal,) = refusals(document(kind, **{name: [0, 0, 0]}))
        assert refusal.pointer == f"/{name}"
    (refusal,) = refusals(document(kind, InterpolationMode="CUBIC"))
    assert refusal.pointer == "/InterpolationMode"


@pytest.mark.parametrize("kind", [*FORWARD, *GRADIENTS])
def test_ranks_are_equal(kind: str) -> None:
    name = "OutputGradientTensor" if kind in GRADIENTS else "OutputTensor"
    (refusal,) = refusals(document(kind, **{name: {"DataType": "FLOAT32", "Sizes": [2, 3]}}))
    check_wording(refusal)
    assert refusal.pointer == f"/{name}/Sizes"


def test_integers_from_6_2_on() -> None:
    eight = {"DataType": "UINT8", "Sizes": [1, 1, 2, 2]}
    assert refusals(document("RESAMPLE2", InputTensor=eight), FeatureLevel.V6_2) == []
    assert refusals(document("RESAMPLE2", InputTensor=eight), FeatureLevel.V6_1) != []
