"""Groups so few and so long that a cluster of blocks goes over each: which groups these are, the kernels under NVRTC,
which needs none, and on a GPU."""

import math
from typing import Any

import numpy as np
import pytest

from app.contract.constants import NEWEST
from app.contract.validation import validate
from app.devices.cuda.groups import Rows
from app.devices.cuda.rows import RowLowering
from app.formula.structures import Questions
from app.memory.arrays import Array
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator, compile_operator
from tests.gpu import assert_compiles, first_gpu
from tests.operators.arrays import run

KINDS = ("ACTIVATION_SOFTMAX1", "ACTIVATION_LOG_SOFTMAX1", "ACTIVATION_HARDMAX1", "MEAN_VARIANCE_NORMALIZATION1")
H200 = 132
"""Its multiprocessors."""

LONG = [(1, 16385), (1, 16392), (1, 50257), (3, 20000), (64, 16400), (66, 32768), (1, 200_003), (5, 262_144)]


def operator_of(kind: str, *sizes: int, data_type: str = "FLOAT32", axes: tuple[int, ...] = (1,)) -> CompiledOperator:
    document: dict[str, Any] = {"Type": f"DML_OPERATOR_{kind}", "Axes": list(axes)}
    document["InputTensor"] = {"DataType": data_type, "Sizes": list(sizes)}
    if kind.startswith("MEAN"):
        document |= {"NormalizeVariance": True, "Epsilon": 1e-5}
    return compile_operator(validate(OPERATORS[document["Type"]], document), NEWEST)


@pytest.mark.parametrize(
    ("sizes", "axes", "data_type", "expected"),
    [
        ([1, 16384], [1], "FLOAT16", (1, 1024, 2)),
        ([1, 16385], [1], "FLOAT16", (4, 4096, 5)),
        ([1, 50257], [1], "FLOAT16", (8, 8192, 7)),
        ([1, 50256], [1], "FLOAT32", (8, 8192, 2)),
        ([1, 1 << 17], [1], "FLOAT16", (8, 8192, 2)),
        ([1, (1 << 17) + 8], [1], "FLOAT16", (8, 8192, 0)),
        ([33, 65536], [1], "FLOAT16", (4, 4096, 2)),
        ([64, 32768], [1], "FLOAT16", (2, 2048, 2)),
        ([66, 32776], [1], "FLOAT16", (2, 2048, 0)),
        ([67, 32768], [1], "FLOAT16", (1, 1024, 0)),
        ([16, 64, 64, 64], [0, 2, 3], "FLOAT32", (2, 2048, 0)),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, list) else None,
)
def test_how_many_blocks(sizes: list[int], axes: list[int], data_type: str, expected: tuple[int, int, int]) -> None:
    """Blocks, threads, and what each of them keeps; on GPUs that have no clusters one block."""
    operator = operator_of("ACTIVATION_SOFTMAX1", *sizes, data_type=data_type, axes=tuple(axes))
    rows = Rows.of(operator, "OutputTensor")
    kind = rows.kind(aligned=True, clustered=H200)
    if len(axes) == 1 and kind.kept * kind.width > 16:
        pytest.fail("more than a thread has registers for")
    assert (kind.blocks_of_group, kind.threads, kind.kept) == expected
    assert kind.threads_of_block <= 1024
    assert rows.kind(aligned=True).blocks_of_group == 1


@pytest.mark.parametrize(("clustered", "blocks"), [(0, 1), (31, 1), (32, 2), (63, 2), (64, 4), (127, 4), (128, 8)])
def test_small_gpus(clustered: int, blocks: int) -> None:
    """Of which not as many multiprocessors are neighbours."""
    rows = Rows.of(operator_of("ACTIVATION_SOFTMAX1", 1, 100_000), "OutputTensor")
    assert rows.kind(aligned=True, clustered=clustered).blocks_of_group == blocks


COMPILED = [((1, 50257), (1,)), ((1, 300_000), (1,)), ((16, 64, 64, 64), (0, 2, 3))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sizes", "axes"), COMPILED)
def test_kernels_compile(sizes: tuple[int, ...], axes: tuple[int, ...], kind: str) -> None:
    """Kinds and sizes have both types, in turns."""
    data_type = ("FLOAT32", "FLOAT16")[(list(KINDS).index(kind) + COMPILED.index((sizes, axes))) % 2]
    operator = operator_of(kind, *sizes, data_type=data_type, axes=axes)
    made, inputs = operator.program.maps["OutputTensor"], list(operator.program.inputs.items())
    lowering = RowLowering(Questions(operator.numbers).ask, made.expression, inputs, made.stored)
    source, _ = lowering.source(Rows.of(operator, "OutputTensor").kind(aligned=True, clustered=H200))
    assert "__cluster_dims__" in source
    assert_compiles(source, 90)


def expected_of(kind: str, x: Array) -> Array:
    made: Array
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        if kind.startswith("MEAN"):
            apart = x - x.mean(1, keepdims=True)
            made = apart / np.sqrt((apart * apart).mean(1, keepdims=True) + np.float32(1e-5))
        elif "HARDMAX" in kind:
            made = np.arange(x.shape[1]) == x.argmax(1, keepdims=True)
        else:
            apart = x - x.max(1, keepdims=True)
            total = np.exp(apart).sum(1, keepdims=True)
            made = apart - np.log(total) if "LOG" in kind else np.exp(apart) / total
    return made


def on_gpu(kind: str, x: Array, axes: tuple[int, ...] = (1,)) -> Array:
    operator = operator_of(kind, *x.shape, data_type=x.dtype.name.upper(), axes=axes)
    made: Array = run(first_gpu(), operator, {"InputTensor": x})["OutputTensor"]
    return made


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", LONG, ids=str)
def test_long_groups(sizes: tuple[int, int], kind: str, dtype: Any) -> None:
    """Each element of each is different, and the largest is in any of the blocks."""
    rng = np.random.default_rng(sizes[1])
    x = rng.standard_normal(sizes).astype(dtype)
    for row in x:
        row[rng.integers(sizes[1])] = 6 + rng.random()
    made = on_gpu(kind, x).astype(np.float64)
    unit = float(np.finfo(dtype).eps)
    expected = expected_of(kind, x)
    least = 4 * unit * abs(expected).max() / 1e3 + float(np.finfo(dtype).smallest_subnormal)
    np.testing.assert_allclose(made, expected, rtol=4 * unit, atol=least)


@pytest.mark.gpu
def test_several_dimensions() -> None:
    x = np.random.default_rng(1).standard_normal((16, 64, 40, 50)).astype(np.float32)
    apart = x.astype(np.float64) - x.mean((0, 2, 3), dtype=np.float64, keepdims=True)
    expected = apart / np.sqrt((apart * apart).mean((0, 2, 3), keepdims=True) + np.float32(1e-5))
    made = on_gpu("MEAN_VARIANCE_NORMALIZATION1", x, (0, 2, 3))
    np.testing.assert_allclose(made, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("place", [0, 1024, 6_283, 12_566, 50_256])
def test_what_one_block_meets_all_know(place: int) -> None:
    """NaN, and equals of which the first is chosen, in any of the blocks."""
    x = np.random.default_rng(place).standard_normal((1, 50_257)).astype(np.float32)
    x[0, place:] = np.where(np.arange(50_257 - place) % 5_000 == 0, 9, x[0, place:])
    assert on_gpu("ACTIVATION_HARDMAX1", x).nonzero()[1].tolist() == [place]
    x[0, place] = np.nan
    for kind in ("ACTIVATION_SOFTMAX1", "MEAN_VARIANCE_NORMALIZATION1"):
        assert np.isnan(on_gpu(kind, x)).all()
    assert on_gpu("ACTIVATION_HARDMAX1", x).nonzero()[1].tolist() == [place]


@pytest.mark.gpu
@pytest.mark.parametrize("size", [50_257, 300_000])
@pytest.mark.parametrize("scale", [1e-30, 1e25, 3e38])
def test_what_is_too_far_for_two_floats(scale: float, size: int) -> None:
    """One block's elements are so large or so small that all blocks compute once more, with wides."""
    x = np.random.default_rng(3).standard_normal((2, size)).astype(np.float32)
    x[1, size // 2] = scale
    x[0, :] *= np.float32(min(scale, 1e37))
    expected = expected_of("MEAN_VARIANCE_NORMALIZATION1", x)
    made = on_gpu("MEAN_VARIANCE_NORMALIZATION1", x)
    np.testing.assert_allclose(made, expected, rtol=1e-6, atol=1e-6 * math.sqrt(1 / size))
