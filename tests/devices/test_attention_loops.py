"""The softmax of MULTIHEAD_ATTENTION by loops: as exact as NumPy's calls, and compiled before it is inline."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.devices.cpu.attention import AttentionKernel, _Softmax
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.kernels import LoopCode
from app.formula.structures import Structures
from app.memory.arrays import Array
from app.operators.attention.softmax import NOTHING, Added, softmax
from tests.operators.arrays import bytes_of, desc_of
from tests.operators.calls import compiled
from tests.operators.conftest import compiler

RNG = np.random.default_rng(29)


def both(scores: Array, scale: float, threads: int = 1, added: Added = NOTHING) -> tuple[Array, Array]:
    """By loops, and by NumPy's calls."""
    by_loops, by_calls = scores.copy(), scores.copy()
    structures = Structures()
    _Softmax(LoopCode(compiler(), structures, threads), structures)(np, by_loops, scale, added)
    with np.errstate(all="ignore"):
        softmax(np, by_calls, scale, added)
    return by_loops, by_calls


def errors(made: Array, scores: Array, scale: float) -> Array:
    scaled = (scores * np.float32(scale)).astype(np.float64)
    right = np.exp(scaled - scaled.max(-1, keepdims=True))
    right /= right.sum(-1, keepdims=True)
    found: Array = np.abs(made - right) / np.maximum(right, 2.0**-126)
    return found


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 31, 32, 33, 127, 128, 129, 1000, 4099])
@pytest.mark.parametrize("spread", [1, 30])
def test_no_less_exact_than_numpy(length: int, spread: float) -> None:
    scores = (spread * RNG.standard_normal((2, 3, 5, length))).astype(np.float32)
    for scale in (1.0, 0.125, 0.3):
        by_loops, by_calls = both(scores, scale)
        assert errors(by_loops, scores, scale).max() <= max(errors(by_calls, scores, scale).max(), 2.0**-22)


SHAPE = (2, 3, 2, 5, 37)
"""Of scores: items, heads that keys have, groups of them, queries, and keys."""


@pytest.mark.parametrize("relative", ["", "float32", "float16"])
@pytest.mark.parametrize("masked", ["", "each", "of keys, for all"])
@pytest.mark.parametrize("keys", [False, True])
def test_what_is_added(relative: str, masked: str, *, keys: bool) -> None:
    """Bit for bit what the softmax is of scores to which NumPy added it, of parts of tensors, which may repeat."""
    scores = RNG.standard_normal(SHAPE, np.float32)
    parts = (slice(1, 3), slice(None), slice(None), slice(2, 7))
    whole = RNG.standard_normal((4, 3, 2, 9, 37), np.float32)
    mask = np.broadcast_to(RNG.integers(0, 3, (1, 1, 1, 1, 37), np.int32), whole.shape)
    mask = RNG.integers(0, 3, whole.shape, np.int32) if masked == "each" else mask
    of_keys = np.where(RNG.random((4, 1, 1, 1, 37)) < 0.5, -np.inf, 0).astype(np.float32)
    of_keys[1] = -np.inf  # of an item with nothing at all there are no numbers
    added = Added(
        whole.astype(relative)[parts] if relative else None,
        mask[parts] if masked else None,
        of_keys[1:3] if keys else None,
        -2.5,
    )
    by_loops, by_calls = both(scores, 0.375, 2, added)
    total = scores * np.float32(0.375)
    for term in (added.relative, None if added.masked is None else np.where(added.masked == 0, -2.5, 0), added.of_keys):
        total = total if term is None else total + np.asarray(term, np.float32)
    np.testing.assert_array_equal(by_loops, both(total, 1.0, 2)[0])
    np.testing.assert_allclose(by_loops, by_calls, 1e-6, 1e-38)
    assert np.isnan(by_loops[0]).all() == keys


def test_scores_are_not_read_again_where_weights_took_their_place() -> None:
    """The first loop of a row keeps scaled scores, another one exponentials; the last one reads these."""
    structures = Structures()
    assert _Softmax(LoopCode(compiler(), structures, 1), structures)._loops({}).kept == [4, 4]


@pytest.mark.parametrize("length", [1, 5, 8, 40, 131])
def test_what_is_no_number(length: int) -> None:
    scores = RNG.standard_normal((64, length)).astype(np.float32)
    for row, value in enumerate((np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, -0.0)):
        scores[row, RNG.integers(length)] = value
        scores[row + 7] = value
    scores[20, 0], scores[20, -1] = np.nan, np.inf
    by_loops, by_calls = both(scores, 2.0)
    np.testing.assert_array_equal(np.isnan(by_loops), np.isnan(by_calls))
    np.testing.assert_allclose(by_loops, by_calls, 1e-6, 1e-44)


def test_rows_are_shared_by_threads() -> None:
    scores = RNG.standard_normal((3000, 256)).astype(np.float32)
    one, several = (both(scores, 0.5, threads)[0] for threads in (1, 2))
    np.testing.assert_array_equal(one.view(np.uint32), several.view(np.uint32))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_scores_are_packed_however_items_lie(dtype: str) -> None:
    """NumPy's products lie as what is multiplied: here items within heads, as in models whose sequences come first."""
    x = RNG.standard_normal((2, 2, 5, 3, 8)).astype(dtype).transpose(2, 0, 1, 3, 4)
    document: dict[str, Any] = {"Type": "MULTIHEAD_ATTENTION", "Scale": 0.5, "HeadCount": 2, "MaskType": "NONE"}
    made = []
    with ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 1, compiler())
        for stacked in (x, np.ascontiguousarray(x)):
            operator = compiled(document | {"StackedQueryKeyValueTensor": desc_of(stacked)})
            output = np.empty((5, 2, 16), dtype)
            device.prepare(operator).dispatch([bytes_of(stacked)], [output.view(np.uint8).data], lambda: False)
            made.append(output)
    np.testing.assert_allclose(made[0], made[1], 1e-5 if dtype == "float32" else 2e-3)


def test_not_inline_before_it_is_compiled() -> None:
    x: dict[str, Any] = {"DataType": "FLOAT32", "Sizes": [1, 8, 32]}
    document = {"Type": "MULTIHEAD_ATTENTION", "Scale": 0.3125, "HeadCount": 2, "MaskType": "NONE"}
    inputs = dict.fromkeys(("QueryTensor", "KeyTensor", "ValueTensor"), x)
    with ThreadPoolExecutor(1) as helpers:
        kernel = NumpyDevice(helpers, 1, compiler()).prepare(compiled(document | inputs))
        assert isinstance(kernel, AttentionKernel)
        assert not kernel.runs_inline
        given = [RNG.standard_normal(256, np.float32).view(np.uint8).data for _ in range(3)]
        kernel.dispatch(given, [np.empty(1024, np.uint8).data], lambda: False)
        assert kernel.runs_inline
