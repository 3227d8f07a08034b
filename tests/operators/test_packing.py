"""Rows for products of matrices, packed by a kernel: its forms under NVRTC, which needs no GPU, and on one."""

import itertools
from typing import Any

import numpy as np
import pytest

from app.memory.arrays import Array
from app.operators import packing
from app.operators.convolution.windows import Windows
from app.operators.packing import Form, packed
from tests.gpu import first_gpu
from tests.operators.rows import rows

TYPES = ["uint8", "int8", "float16", "float32"]


@pytest.mark.parametrize("item_bytes", [1, 2, 4])
def test_kernels_compile(item_bytes: int) -> None:
    compiler = pytest.importorskip("app.devices.cuda.compiler")
    try:
        compiler.nvrtc_version()
    except Exception as error:
        pytest.skip(f"there is no NVRTC: {error}")
    matrices = [Form(item_bytes, 1, True, loads) for loads in (1, 2)]
    for form in (*matrices, *(Form(item_bytes, *each, 0) for each in itertools.product((1, 2, 3), (True, False)))):
        assert compiler.compile_source(packing.source(form), 80).startswith(b"\x7fELF")


def tensor(rng: np.random.Generator, name: str, sizes: list[int]) -> Array:
    """Channels first or last."""
    given = rng.integers(0, 256, sizes).astype(np.uint8)
    made: Array = given.view(np.int8) if name == "int8" else given.astype(name)
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(made, 1, -1)), -1, 1) if rng.random() < 0.5 else made


def windows_over(rng: np.random.Generator, sizes: list[int]) -> Windows:
    """Some of which lie beside the tensor, or are one element each."""
    rank = len(sizes)
    if rng.random() < 0.3:
        return Windows(sizes, sizes, [1] * rank, [1] * rank, [1] * rank, [0] * rank)
    extents, strides, dilations = ([int(each) for each in rng.integers(1, 4, rank)] for _ in range(3))
    starts, positions = ([int(each) for each in rng.integers(low, 7, rank)] for low in (-2, 1))
    return Windows(sizes, positions, extents, strides, dilations, starts)


@pytest.mark.gpu
def test_rows_are_packed() -> None:
    first_gpu()
    cupy = pytest.importorskip("cupy")

    def on_gpu(x: Array) -> Any:
        """With strides as they are."""
        if x.flags.c_contiguous:
            return cupy.asarray(x)
        return cupy.moveaxis(cupy.asarray(np.ascontiguousarray(np.moveaxis(x, 1, -1))), -1, 1)

    rng = np.random.default_rng(51)
    for number in range(300):
        name = TYPES[number % 4]
        groups, batch, depth = (int(rng.integers(1, most)) for most in (4, 4, 40))
        sizes = [int(each) for each in rng.choice([1, 3, 8, 16, 21], 1 + number % 3)]
        x, windows = tensor(rng, name, [batch, groups * depth, *sizes]), windows_over(rng, sizes)
        is_byte = name.endswith("int8")
        around = tensor(rng, name, [1, 1]) if is_byte and rng.random() < 0.5 else None
        more = {"signed": is_byte, "multiple": int(rng.choice([1, 4])), "with_sums": is_byte and rng.random() < 0.7}
        expected = rows(np, x, windows, groups, around=around, **more)
        given = None if around is None else cupy.asarray(around)
        made = packed(cupy, on_gpu(x), windows, groups, around=given, **more)
        np.testing.assert_array_equal(cupy.asnumpy(made.rows), expected.rows, str((number, windows)))
        if more["with_sums"]:
            np.testing.assert_array_equal(cupy.asnumpy(made.sums), expected.sums)
            only = packed(cupy, on_gpu(x), windows, groups, around=given, only_sums=True, **more)
            assert only.rows is None
            np.testing.assert_array_equal(cupy.asnumpy(only.sums), expected.sums)
