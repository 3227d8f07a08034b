"""TILE against numpy.tile, UPSAMPLE_2D against its definition."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.memory.arrays import Array
from tests.operators.arrays import laid_out
from tests.operators.calls import run
from tests.operators.data_movement.tensors import TYPES, any_bits, assert_same_bits, sized, some_layout, told
from tests.operators.descriptors import descriptor, refusals


@pytest.mark.parametrize("data_type", [each for each in TYPES if each is not DataType.FLOAT64])
def test_tile(data_type: DataType) -> None:
    rng = np.random.default_rng(1)
    for rank in range(1, 9):
        sizes, repeats = ([int(each) for each in rng.integers(1, 5 if rank < 5 else 3, rank)] for _ in range(2))
        x = any_bits(rng, sizes, data_type)
        expected = np.tile(x, repeats)
        for output in ({}, {"OutputTensor": some_layout(rng, expected), "RepeatsCount": rank}):
            made = run({"Type": "TILE", "Repeats": repeats} | output, InputTensor=x)
            assert_same_bits(made["OutputTensor"], expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"Repeats": [1, 1, 0, 1]}, ("/Repeats/2", 0, ">= 1")),
        ({"Repeats": [1, 2]}, ("/Repeats", 2, 4)),
        ({"RepeatsCount": 3}, ("/RepeatsCount", 3, 4)),
        ({"OutputTensor": sized(1, 1, 2, 3)}, ("/OutputTensor/Sizes", [1, 1, 2, 3], [1, 1, 2, 6])),
        ({"Repeats": [2**16, 2**16, 1, 1]}, ("/OutputTensor/Sizes", [2**16, 2**16, 2, 3], None)),
    ],
)
def test_what_tile_refuses(change: dict[str, Any], expected: tuple[str, Any, Any]) -> None:
    document = descriptor("DML_OPERATOR_TILE", Repeats=[1, 1, 1, 2])
    assert refusals(document) == []
    assert told(document | change) == expected


def upsample(kind: str, height: int, width: int) -> dict[str, Any]:
    return {
        "Type": "UPSAMPLE_2D",
        "ScaleSize": {"Height": height, "Width": width},
        "InterpolationMode": f"DML_INTERPOLATION_MODE_{kind}",
    }


def linear(x: Array, axis: int, factor: int) -> Array:
    """Of float64, along one dimension."""
    size = x.shape[axis]
    at = np.clip((np.arange(size * factor) + 0.5) / factor - 0.5, 0, size - 1)
    before = np.floor(at).astype(int)
    weight = (at - before).reshape([-1 if each == axis else 1 for each in range(x.ndim)])
    after = np.minimum(before + 1, size - 1)
    made: Array = x.take(before, axis) * (1 - weight) + x.take(after, axis) * weight
    return made


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("sizes", [[2, 3, 4, 5], [1, 2, 2, 3, 1], [1, 1, 1, 1]])
def test_upsample(sizes: list[int], dtype: Any) -> None:
    rng = np.random.default_rng(2)
    x = laid_out(rng, rng.standard_normal(sizes).astype(dtype))
    for height, width in ((1, 1), (2, 2), (3, 5), (4, 1), (7, 2)):
        nearest = x.repeat(height, -2).repeat(width, -1)
        for output in ({}, {"OutputTensor": some_layout(rng, nearest)}):
            document = upsample("NEAREST_NEIGHBOR", height, width) | output
            assert_same_bits(run(document, InputTensor=x)["OutputTensor"], nearest)
            mean = linear(linear(x.astype(np.float64), x.ndim - 1, width), x.ndim - 2, height).astype(dtype)
            made = run(upsample("LINEAR", height, width) | output, InputTensor=x)["OutputTensor"]
            np.testing.assert_allclose(made, mean, 2 * np.finfo(dtype).eps, 1e-7)


def test_an_element_without_weight_has_no_part() -> None:
    """In the middle of an odd factor, and beyond the edges, an element stands alone."""
    x = np.array([[[[1, np.inf, 2]]]], np.float32)
    made = run(upsample("LINEAR", 1, 3), InputTensor=x)["OutputTensor"].reshape(-1)
    assert made[[0, 1, 4, 7, 8]].tolist() == [1, 1, np.inf, 2, 2]
    assert not np.isnan(made).any()


def test_what_upsample_refuses() -> None:
    document = descriptor("DML_OPERATOR_UPSAMPLE_2D", ScaleSize={"Width": 2, "Height": 3})
    assert refusals(document) == []
    for name in ("Width", "Height"):
        zero = {"ScaleSize": {"Width": 2, "Height": 3} | {name: 0}}
        assert told(document | zero) == (f"/ScaleSize/{name}", 0, ">= 1")
    assert told(document | {"OutputTensor": sized(1, 1, 4, 6)}) == ("/OutputTensor/Sizes", [1, 1, 4, 6], [1, 1, 6, 6])
    large = {"ScaleSize": {"Width": 2**31, "Height": 2}}
    assert told(document | large) == ("/OutputTensor/Sizes", [1, 1, 4, 3 * 2**31], None)
