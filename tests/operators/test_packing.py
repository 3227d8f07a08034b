"""Rows for products of matrices, packed by a kernel: its forms under NVRTC, which needs no GPU, and on one."""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.memory.arrays import Array
from app.operators import packing
from app.operators.convolution.windows import Windows
from app.operators.packing import Form, packed
from tests.gpu import assert_compiles, first_gpu
from tests.operators import blocks_on_cpu
from tests.operators.blocks_on_cpu import NUMPY
from tests.operators.rows import rows

TYPES = ["uint8", "int8", "float16", "float32"]


@pytest.mark.parametrize("item_bytes", [1, 2, 4])
def test_kernels_compile(item_bytes: int) -> None:
    matrices = [Form(item_bytes, 1, True, loads) for loads in (1, 2)]
    for form in (*matrices, *(Form(item_bytes, *each, 0) for each in itertools.product((1, 2, 3), (True, False)))):
        assert_compiles(packing.source(form), 80)


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


@dataclass(frozen=True)
class Case:
    """What `packed` is asked for."""

    x: Array
    windows: Windows
    groups: int
    around: Array | None
    more: dict[str, Any]


def cases(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(51)
    for number in range(count):
        name = TYPES[number % 4]
        groups, batch, depth = (int(rng.integers(1, most)) for most in (4, 4, 40))
        sizes = [int(each) for each in rng.choice([1, 3, 8, 16], 1 + number % 3)]
        x, windows = tensor(rng, name, [batch, groups * depth, *sizes]), windows_over(rng, sizes)
        is_byte = name.endswith("int8")
        around = tensor(rng, name, [1, 1]) if is_byte and rng.random() < 0.5 else None
        more: dict[str, Any] = {"signed": is_byte, "multiple": int(rng.choice([1, 4]))}
        more["with_sums"] = is_byte and rng.random() < 0.7
        yield Case(x[..., ::-1] if number % 5 == 0 else x, windows, groups, around, more)


CHOSEN = [Form(1, 2, False, 0), Form(2, 1, False, 0), Form(4, 3, False, 0), Form(1, 1, True, 1), Form(1, 1, True, 2)]
"""Forms that are built for a CPU, which takes some time for each."""


def test_rows_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel, on a CPU; up to three times by each form."""
    types = ("const char*", "uint4*", "int*", "const element*", "unsigned", "const lies")
    asked = dict.fromkeys(map(packing.source, CHOSEN), 0)

    def kernel(cupy: Any, source: str, name: str) -> Any:
        if asked.get(source, 3) == 3:
            raise LookupError
        asked[source] += 1
        return blocks_on_cpu.kernel(tmp_path, source, name, types)

    monkeypatch.setattr(packing, "kernel", kernel)
    monkeypatch.setattr(packing, "begins_at", lambda x, multiple: x.ctypes.data % multiple == 0)
    monkeypatch.setattr(packing, "ENOUGH_WARPS", 8)
    for number, case in enumerate(cases(300)):
        with suppress(LookupError):
            made = packed(NUMPY, case.x, case.windows, case.groups, around=case.around, **case.more)
            expected = rows(np, case.x, case.windows, case.groups, around=case.around, **case.more)
            np.testing.assert_array_equal(made.rows, expected.rows, str((number, case.windows)))
            if case.more["with_sums"]:
                np.testing.assert_array_equal(made.sums, expected.sums, str((number, case.windows)))
    assert all(asked.values())


def test_steps_of_what_is_there_once_may_be_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 32 bits."""
    asked: list[Any] = []
    monkeypatch.setattr(packing, "kernel", lambda *_: lambda *arguments: asked.append(arguments))
    x = np.lib.stride_tricks.as_strided(np.zeros(100, np.float16), (1, 1, 10, 10), (2, 1 << 33, 20, 2))
    packed(NUMPY, x, Windows([10, 10], [8, 8], [3, 3], [1, 1], [1, 1], [0, 0]))
    assert len(asked) == 1


@pytest.mark.gpu
def test_rows_are_packed_on_a_gpu() -> None:
    first_gpu()
    cupy = pytest.importorskip("cupy")

    def on_gpu(x: Array) -> Any:
        """With strides as they are."""
        if min(x.strides) < 0:
            return on_gpu(x[..., ::-1])[..., ::-1]
        if x.flags.c_contiguous:
            return cupy.asarray(x)
        return cupy.moveaxis(cupy.asarray(np.ascontiguousarray(np.moveaxis(x, 1, -1))), -1, 1)

    for number, case in enumerate(cases(300)):
        expected = rows(np, case.x, case.windows, case.groups, around=case.around, **case.more)
        around = None if case.around is None else cupy.asarray(case.around)
        made = packed(cupy, on_gpu(case.x), case.windows, case.groups, around=around, **case.more)
        np.testing.assert_array_equal(cupy.asnumpy(made.rows), expected.rows, str((number, case.windows)))
        if case.more["with_sums"]:
            np.testing.assert_array_equal(cupy.asnumpy(made.sums), expected.sums)
            only = packed(cupy, on_gpu(case.x), case.windows, case.groups, around=around, only_sums=True, **case.more)
            assert only.rows is None
            np.testing.assert_array_equal(cupy.asnumpy(only.sums), expected.sums)
