"""Gradients of maxima on GPUs: the kernels under NVRTC, which needs none, and on one; and the way back from maxima."""

import numpy as np
import pytest

from app.operators.pooling import maxima_on_gpu
from app.operators.pooling.maxima_on_gpu import Axis
from tests.gpu import assert_compiles, first_gpu
from tests.operators import calls
from tests.operators.pooling import test_windows as on_any


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_kernels_compile(dtype: str) -> None:
    assert_compiles(maxima_on_gpu.source(dtype), 80)


@pytest.mark.gpu
@pytest.mark.parametrize("most", [0, 1 << 35])
def test_gradients(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By kernels, and by pieces where these would be at it for long."""
    monkeypatch.setattr(calls, "DEVICE", first_gpu())
    monkeypatch.setattr(maxima_on_gpu, "MOST_LOOKS", most)
    on_any.test_gradients_of_maxima(1 << 20, monkeypatch)


@pytest.mark.gpu
def test_huge_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose elements are nearly all in the padding."""
    monkeypatch.setattr(calls, "DEVICE", first_gpu())
    on_any.test_the_gradient_of_maxima_over_huge_windows_takes_little_memory()


@pytest.mark.gpu
@pytest.mark.parametrize("data_type", ["float16", "float32", "uint8", "int64"])
def test_unpooling(data_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "DEVICE", first_gpu())
    for index_type in ("uint32", "uint64"):
        on_any.test_unpooling(data_type, index_type)


def test_what_would_take_long_is_left() -> None:
    """To pieces between which it is seen whether to go on."""
    x, dy = np.zeros((1, 1, 4096, 4096), np.float32), np.zeros((1, 1, 1, 1), np.float32)
    axes = [Axis(3000, 1, 1, 2999, 4096, 7095)] * 2
    assert maxima_on_gpu.gradient(np, x, np.broadcast_to(dy, (1, 1, 7095, 7095)), axes, None) is None


def test_what_32_bits_do_not_count_is_left() -> None:
    sizes = (1, 1, 1, 1 << 31)
    x = np.broadcast_to(np.zeros((), np.float16), sizes)
    axes = [Axis(1, 1, 1, 0, size, size) for size in sizes[2:]]
    assert maxima_on_gpu.gradient(np, x, x, axes, None) is None
