"""Attention of FLOAT32 by one kernel: its forms under NVRTC, which needs no GPU, and on one."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from app.memory.arrays import Array
from app.operators.attention import tiles
from tests.gpu import first_gpu
from tests.operators import calls
from tests.operators.calls import run


@pytest.mark.parametrize(("queries", "size", "value_size"), [(8, 64, 64), (2, 4, 20), (4, 128, 128), (4, 36, 96)])
def test_kernels_compile(queries: int, size: int, value_size: int) -> None:
    """And leave room for a block on each multiprocessor of Ampere and Hopper."""
    compiler = pytest.importorskip("app.devices.cuda.compiler")
    try:
        compiler.nvrtc_version()
    except Exception as error:
        pytest.skip(f"there is no NVRTC: {error}")
    form = tiles.Form(queries, size, value_size)
    assert form.shared_bytes <= 163 << 10
    for architecture in (80, 90):
        assert compiler.compile_source(tiles.source(form), architecture).startswith(b"\x7fELF")


def expected(query: Array, key: Array, value: Array, heads: int, key_heads: int, scale: float) -> Array:
    def parts(x: Array, count: int) -> Array:
        split: Array = x.astype(float).reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3)
        return split.repeat(heads // count, 1)

    q, k, v = parts(query, heads), parts(key, key_heads), parts(value, key_heads)
    scores = q @ k.swapaxes(-1, -2) * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    made: Array = (weights / weights.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)
    return made.reshape(*made.shape[:2], -1)


def given(asked: list[tiles.Form], form: tiles.Form, *_: object) -> tiles.Form:
    asked.append(form)
    return form


@pytest.mark.gpu
def test_attention_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sizes around those of tiles."""
    monkeypatch.setattr(calls, "DEVICE", first_gpu())
    rng, asked = np.random.default_rng(6), list[tiles.Form]()
    for batch, heads, key_heads, queries, keys, size, value_size in (
        *((1, 1, 1, 1, 1, 4, 4), (2, 3, 3, 31, 63, 64, 64), (1, 4, 2, 33, 64, 8, 36), (2, 2, 1, 65, 65, 128, 128)),
        *((1, 2, 2, 130, 129, 96, 64), (3, 40, 40, 127, 200, 32, 32), (1, 16, 8, 1000, 77, 64, 48)),
    ):
        query, key, value = (
            rng.normal(size=(batch, items, width)).astype(np.float32)
            for items, width in ((queries, heads * size), (keys, key_heads * size), (keys, key_heads * value_size))
        )
        key[:, 0] *= 10  # scores that grow and shrink
        document: dict[str, Any] = {"Type": "MULTIHEAD_ATTENTION1", "Scale": 0.2, "MaskType": "NONE"}
        document |= {"QueryHeadCount": heads, "KeyValueHeadCount": key_heads}
        right = expected(query, key, value, heads, key_heads, 0.2)
        for of_block in (2, 4, 8) if value_size <= 64 else (2, 4):
            form = tiles.Form(of_block, size, value_size)
            monkeypatch.setattr(tiles, "form_of", partial(given, asked, form))
            made = run(document, {"QueryTensor": query, "KeyTensor": key, "ValueTensor": value})["OutputTensor"]
            np.testing.assert_allclose(made, right, rtol=2e-5, atol=2e-5)
    assert len(asked) == 20


def test_blocks_are_enough_and_fit() -> None:
    """For as many multiprocessors, and their shared memory."""
    much = 228 << 10
    assert tiles.form_of(132, much, (16, 2048, 2048), (64, 64)) == tiles.Form(8, 64, 64)
    assert tiles.form_of(132, much, (96, 512, 512), (64, 64)) == tiles.Form(4, 64, 64)
    assert tiles.form_of(132, much, (12, 128, 128), (64, 64)) == tiles.Form(2, 64, 64)
    assert tiles.form_of(132, much, (16, 2048, 2048), (128, 128)) == tiles.Form(4, 128, 128)
    assert tiles.form_of(132, 100 << 10, (16, 2048, 2048), (64, 64)) == tiles.Form(4, 64, 64)
    assert tiles.form_of(132, 64 << 10, (16, 2048, 2048), (128, 128)) is None


@pytest.mark.parametrize(
    ("heads", "wanted"),
    [
        *(((8, 1, 511), True), ((8, 1, 512), False), ((33, 1, 4096), False), ((34, 1, 4096), True)),
        *(((8, 32, 512), False), ((8, 33, 512), True), ((4, 64, 512), False), ((2, 129, 512), True)),
    ],
)
def test_few_queries_of_many_keys_have_no_tiles(heads: tuple[int, int, int], wanted: bool) -> None:
    """Which each block would go through, and for most multiprocessors there is none."""
    assert (tiles.form_of(132, 228 << 10, heads, (64, 64)) is not None) == wanted


@pytest.mark.gpu
def test_special_scores_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinite scores as without tiles: where there is nothing else, or one is positive, there is no number."""
    monkeypatch.setattr(calls, "DEVICE", first_gpu())
    query = np.ones((1, 4, 4), np.float32)
    key, value = np.ones((1, 200, 4), np.float32), np.arange(800, dtype=np.float32).reshape(1, 200, 4)
    query[0, 1:3, 0] = [-np.inf, np.inf]
    query[0, 3, 0] = np.nan
    key[0, :70, 1] = -np.inf  # the first tile has nothing
    document = {"Type": "MULTIHEAD_ATTENTION", "Scale": 1, "HeadCount": 1, "MaskType": "NONE"}
    made = run(document, {"QueryTensor": query, "KeyTensor": key, "ValueTensor": value})["OutputTensor"]
    np.testing.assert_allclose(made[0, 0], value[0, 70:].mean(0), rtol=1e-5)
    assert np.isnan(made[0, 1:]).all()
