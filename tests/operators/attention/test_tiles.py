"""Attention on GPUs: the forms of our kernel under NVRTC, which needs none, and on one, with what cuDNN does."""

import itertools
from typing import Any

import numpy as np
import pytest

from app.memory.arrays import Array
from app.operators.attention import library, tiles
from app.operators.attention.kernel import Form, source
from tests.gpu import assert_compiles, first_gpu
from tests.operators import calls
from tests.operators.calls import run

COMPILED = (
    *(Form(8, 64, 64), Form(2, 4, 20), Form(4, 128, 128), Form(4, 36, 96), Form(8, 64, 64, dtype="float16")),
    *(Form(4, 128, 128, False, "float32", "float16"), Form(2, 8, 40, False, "float16", "float32")),
    *(Form(1, 128, 128, True, "float16"), Form(8, 64, 64, True, "float32", "float32"), Form(4, 4, 20, True)),
)


@pytest.mark.parametrize("form", COMPILED)
def test_kernels_compile(form: Form) -> None:
    """And leave room for a block on each multiprocessor of Ampere and Hopper, for which nothing is written apart.
    Turing loads tiles by itself."""
    assert form.shared_bytes <= 163 << 10
    assert_compiles(source(form), (75, 80, 90)[COMPILED.index(form) % 3])


@pytest.mark.parametrize("added", ["float16", "float32"])
def test_the_look_for_rows_without_a_key_compiles(added: str) -> None:
    assert_compiles(library.source(added), 75)


def expected(
    query: Array, key: Array, value: Array, heads: int, key_heads: int, scale: float, added: Array | int = 0
) -> Array:
    def parts(x: Array, count: int) -> Array:
        split: Array = x.astype(float).reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3)
        return split.repeat(heads // count, 1)

    q, k, v = parts(query, heads), parts(key, key_heads), parts(value, key_heads)
    scores = q @ k.swapaxes(-1, -2) * scale + added
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    made: Array = (weights / weights.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)
    return made.reshape(*made.shape[:2], -1)


SHAPES = (
    *((1, 1, 1, 1, 1, 8, 8), (2, 3, 3, 31, 63, 64, 64), (1, 4, 2, 33, 64, 8, 40), (2, 2, 1, 65, 65, 128, 128)),
    *((1, 2, 2, 130, 129, 96, 64), (3, 40, 40, 127, 200, 32, 32), (1, 16, 8, 1000, 77, 64, 48)),
    *((2, 8, 2, 1, 1000, 128, 128), (1, 8, 1, 1, 700, 64, 24), (1, 3, 3, 4, 257, 16, 64), (1, 2, 2, 9, 4100, 64, 64)),
)
"""Around those of tiles: items, heads of queries and of keys, queries, keys, sizes of a head."""

FORMS = (2, 8, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("added", ["nothing", "mask", "bias", "lengths", "mask and bias"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_attention_on_a_gpu(dtype: str, added: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all forms, of all keys at once and of parts of them."""
    monkeypatch.setattr(calls, "DEVICE", first_gpu())
    monkeypatch.setattr(library, "attention", lambda *_, **__: None)
    rng, asked = np.random.default_rng(6), list[Form]()
    chosen = itertools.cycle(FORMS)
    for batch, heads, key_heads, queries, keys, size, value_size in SHAPES:
        query, key, value = (
            rng.normal(size=(batch, items, width)).astype(dtype)
            for items, width in ((queries, heads * size), (keys, key_heads * size), (keys, key_heads * value_size))
        )
        key[:, 0] *= 10  # scores that grow and shrink
        inputs: dict[str, Array | None] = {"QueryTensor": query, "KeyTensor": key, "ValueTensor": value}
        more, terms = _terms(rng, added, (batch, heads, queries, keys), dtype)
        document: dict[str, Any] = {"Type": "MULTIHEAD_ATTENTION1", "Scale": 0.2, "MaskType": "NONE"}
        document |= {"QueryHeadCount": heads, "KeyValueHeadCount": key_heads}
        for name, member in more.items():
            (inputs if isinstance(member, np.ndarray) else document)[name] = member
        right = expected(query, key, value, heads, key_heads, 0.2, terms)
        of_block = next(chosen)
        of_block = min(of_block, 4) if value_size > 64 else of_block
        rows = heads // key_heads * queries
        for part in (64, 192, keys):

            def form_of(*given: Any, queries: int = of_block, rows: int = rows) -> Form:
                (size, value_size), *types = given[3:]
                few = [Form(1 << (rows - 1).bit_length(), size, value_size, True, *types)] if rows <= 8 else []
                asked.append([*few, Form(queries, size, value_size, False, *types)][len(asked) % 2 * bool(few) - 1])
                return asked[-1]

            monkeypatch.setattr(tiles, "form_of", form_of)
            monkeypatch.setattr(tiles, "part_of", lambda *_, part=part, few: -(-part // 64) * 64)
            made = run(document, inputs)["OutputTensor"].astype(float)
            bound = 2e-5 if dtype == "float32" else 2e-3
            np.testing.assert_allclose(made, right, rtol=bound, atol=bound)
    assert len(asked) == 3 * len(SHAPES)


def _terms(
    rng: np.random.Generator, added: str, sizes: tuple[int, int, int, int], dtype: str
) -> tuple[dict[str, Any], Array | int]:
    """Members of the request, and what they add to the scores."""
    batch, _, _, keys = sizes
    members: dict[str, Any] = {"MaskFilterValue": -10000.0}
    terms: Array | int = 0
    if "mask" in added:
        mask = rng.integers(0, 2, (batch, 1, 1, keys), np.int32)
        members |= {"MaskType": "BOOLEAN", "MaskTensor": np.broadcast_to(mask, sizes)}
        terms = np.where(mask == 0, -10000.0, 0)
    if "bias" in added:
        bias = rng.normal(size=sizes).astype(dtype)
        members["RelativePositionBiasTensor"] = bias
        terms = terms + bias.astype(float)
    if added == "lengths":
        ends = rng.integers(1, keys + 1, batch).astype(np.int32)
        members |= {"MaskType": "KEY_SEQUENCE_LENGTH", "MaskTensor": ends}
        terms = np.where(np.arange(keys) >= ends[:, None], -10000.0, 0)[:, None, None]
    return members, terms


def test_blocks_are_enough_and_fit() -> None:
    """For as many multiprocessors, and their shared memory."""
    much = 228 << 10
    assert tiles.form_of(132, much, (16, 2048), (64, 64)) == Form(8, 64, 64)
    assert tiles.form_of(132, much, (96, 512), (64, 64)) == Form(4, 64, 64)
    assert tiles.form_of(132, much, (12, 128), (64, 64)) == Form(2, 64, 64)
    assert tiles.form_of(132, much, (16, 2048), (128, 128)) == Form(4, 128, 128)
    assert tiles.form_of(132, 100 << 10, (16, 2048), (64, 64)) == Form(4, 64, 64)
    assert tiles.form_of(132, 64 << 10, (16, 2048), (128, 128)) is None


@pytest.mark.parametrize(
    ("rows", "form"),
    [(1, Form(1, 64, 64, True)), (3, Form(4, 64, 64, True)), (8, Form(8, 64, 64, True)), (9, Form(2, 64, 64))],
)
def test_few_rows_have_a_form_of_their_own(rows: int, form: Form) -> None:
    assert tiles.form_of(132, 228 << 10, (8, rows), (64, 64)) == form


@pytest.mark.parametrize(
    ("blocks", "keys", "few", "part"),
    [
        *((8, 127, False, 128), (8, 191, False, 192), (8, 256, False, 128), (8, 4096, False, 128)),
        *((64, 4096, False, 1024), (132, 4096, False, 2048), (133, 4096, False, 4096), (1, 1, False, 64)),
        *((8, 127, True, 128), (32, 2048, True, 128), (528, 2048, True, 2048), (529, 2048, True, 2048)),
    ],
)
def test_keys_are_parted_where_blocks_are_few(blocks: int, keys: int, few: bool, part: int) -> None:
    """There are not more than two for each multiprocessor, of few queries four, which go through two tiles at
    least."""
    assert tiles.part_of(132, blocks, keys, few=few) == part


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("part", [64, 256])
def test_special_scores_on_a_gpu(part: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinite scores as without tiles: where there is nothing else, or one is positive, there is no number."""
    monkeypatch.setattr(calls, "DEVICE", first_gpu())
    monkeypatch.setattr(tiles, "part_of", lambda *_, few: part)
    query = np.ones((1, 4, 8), dtype)
    key, value = np.ones((1, 200, 8), dtype), np.arange(1600).astype(dtype).reshape(1, 200, 8)
    query[0, 1:3, 0] = [-np.inf, np.inf]
    query[0, 3, 0] = np.nan
    key[0, :70, 1] = -np.inf  # the first tile has nothing
    document = {"Type": "MULTIHEAD_ATTENTION", "Scale": 1, "HeadCount": 1, "MaskType": "NONE"}
    made = run(document, {"QueryTensor": query, "KeyTensor": key, "ValueTensor": value})["OutputTensor"]
    rtol = 1e-5 if dtype == "float32" else 1e-3
    np.testing.assert_allclose(made[0, 0], value[0, 70:].astype(float).mean(0), rtol=rtol)
    assert np.isnan(made[0, 1:]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("by", ["library", "tiles"])
@pytest.mark.parametrize("filtered", [0.0, -10000.0, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("items", [64, 77])
def test_all_masked_on_a_gpu(items: int, by: str, filtered: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is filtered everywhere has weights nevertheless, what is infinitely far none; by cuDNN as by our kernel.
    Nothing is filtered where there is no mask but a bias for each score."""
    monkeypatch.setattr(calls, "DEVICE", first_gpu())
    if by == "library":
        pytest.importorskip("cudnn")
    module = {"library": library, "tiles": tiles}[by]
    asked: list[Any] = []

    def attention(*arguments: Any, quick: Any = module.attention, **more: Any) -> Any:
        asked.append(quick(*arguments, **more))
        return asked[-1]

    monkeypatch.setattr(library, "attention", lambda *_, **__: None)
    monkeypatch.setattr(tiles, "attention", lambda *_: None)
    monkeypatch.setattr(module, "attention", attention)
    rng = np.random.default_rng(4)
    heads, size = 16, 32
    query, key, value = (rng.normal(size=(1, items, heads * size)).astype(np.float16) for _ in range(3))
    bias, mask = np.zeros((1, 1, items, items), np.float16), np.ones((1, 1, items, items), np.int32)
    bias[0, 0, 1, 5:] = bias[0, 0, 2] = bias[0, 0, 4, 9:] = bias[0, 0, 6, : items - 1] = bias[0, 0, 7, :33] = -np.inf
    mask[0, 0, 3:5] = mask[0, 0, 5, 7:] = 0
    sizes = (1, heads, items, items)
    document = {"Type": "MULTIHEAD_ATTENTION", "Scale": 0.2, "HeadCount": heads, "MaskFilterValue": filtered}
    inputs = {"QueryTensor": query, "KeyTensor": key, "ValueTensor": value}
    if filtered:
        inputs |= {
            "RelativePositionBiasTensor": np.broadcast_to(bias, sizes),
            "MaskTensor": np.broadcast_to(mask, sizes),
        }
    else:
        bias = (bias + rng.normal(size=sizes)).astype(np.float16)
        inputs["RelativePositionBiasTensor"] = bias
    made = run(document | {"MaskType": "BOOLEAN" if filtered else "NONE"}, inputs)["OutputTensor"].astype(float)
    with np.errstate(invalid="ignore"):
        added = bias.astype(np.float32) + np.where(mask == 0, np.float32(filtered), np.float32(0))
        if filtered < -10000:  # beside that the scores vanish
            query = np.where(np.isin(np.arange(items), (3, 4))[:, None], 0, query)
        right = expected(query, key, value, heads, heads, 0.2, added.astype(float))
    assert len(asked) == 1
    assert asked[0] is not None
    assert np.isnan(made[0, 2]).all()
    np.testing.assert_allclose(made, right, rtol=2e-3, atol=3e-3)  # and nothing else is NaN


def test_what_is_added_is_bounded_for_cudnn() -> None:
    """It counts in powers of 2, in which the least numbers would be infinite."""
    least, inf = np.finfo(np.float32).min, np.inf
    added = np.array([[[[1, -inf, least], [least, least, -inf]]]], np.float32)
    made = library._bounded(np, added)
    assert np.isfinite(made * np.float32(np.log2(np.e))).all()
    assert made[0, 0, 0, 0] == 1
    assert made[0, 0, 0, 1] == made[0, 0, 1, 2] < made[0, 0, 1, 0] == made[0, 0, 0, 2]
