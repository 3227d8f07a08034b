"""MAX_POOLING and AVERAGE_POOLING by loops along rows: the bits of its formula by coordinates, which is the judge."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.contract.constants import NEWEST
from app.devices.cpu import alone
from app.devices.cpu import device as cpu_device
from app.devices.cpu.coordinates import CoordinateKernel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.pools import LEAST_ROW, PoolKernel
from app.devices.device import Cancelled, Kernel
from app.memory.arrays import Array
from app.operators.catalog import OPERATORS
from app.operators.compiled import compile_operator


@pytest.fixture(scope="module")
def device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(4) as helpers:
        yield NumpyDevice(helpers, 3, Compiler())


def computed(kernel: Kernel, x: Array, sizes: list[int]) -> Array:
    made = np.full(sizes, 7, np.float32)
    kernel.dispatch([memoryview(x.tobytes())], [made.reshape(-1).view(np.uint8).data], lambda: False)
    return made


def windows_of(rng: np.random.Generator) -> tuple[list[int], list[int], dict[str, list[int]]]:
    """Sizes of a tensor with long rows, those of the output, and attributes."""
    while True:
        rank = int(rng.integers(2, 4))
        members = {
            name: [int(each) for each in rng.integers(least, most + 1, rank)]
            for name, least, most in (
                *(("Strides", 1, 3), ("WindowSize", 1, 4), ("Dilations", 1, 3)),
                *(("StartPadding", 0, 5), ("EndPadding", 0, 5)),
            )
        }
        spatial = [*(int(each) for each in rng.integers(1, 9, rank - 1)), int(rng.integers(10, 150))]
        pooled = [
            (size + start + end - 1 - (window - 1) * dilation) // stride + 1
            for size, start, end, window, dilation, stride in zip(
                spatial,
                *(members[name] for name in ("StartPadding", "EndPadding", "WindowSize", "Dilations", "Strides")),
                strict=True,
            )
        ]
        if min(pooled) > 0 and pooled[-1] >= LEAST_ROW:
            leading = [int(each) for each in rng.integers(1, 9, 2)]
            return [*leading, *spatial], [*leading, *pooled], members


@pytest.mark.parametrize("kind", ["MAX_POOLING2", "AVERAGE_POOLING1"])
@pytest.mark.parametrize("seed", range(24))
def test_windows_are_those_by_coordinates(
    device: NumpyDevice, seed: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of NaN, infinities and both zeros as well, beside the tensor and in pieces."""
    rng = np.random.default_rng(seed)
    sizes, pooled, members = windows_of(rng)
    x = rng.standard_normal(sizes).astype(np.float32)
    x[rng.random(sizes) < 0.2] = rng.choice(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32))
    if seed % 2:
        monkeypatch.setattr(alone, "MOST_OF_A_CALL", 1 << 8)
    document: dict[str, Any] = {
        "Type": kind,
        "InputTensor": {"DataType": "FLOAT32", "Sizes": sizes},
        "OutputTensor": {"DataType": "FLOAT32", "Sizes": pooled},
        **members,
    }
    if kind != "MAX_POOLING2":
        document["IncludePadding"] = bool(rng.integers(2))
    operator = compile_operator(OPERATORS[f"DML_OPERATOR_{kind}"].model_validate(document), NEWEST)
    kernel = device._kernel(operator, None, 1)
    assert isinstance(kernel, PoolKernel)
    made = computed(kernel, x, pooled)
    monkeypatch.setattr(cpu_device, "pool_kernel", lambda *_: None)
    monkeypatch.setattr(cpu_device, "array_kernel", lambda *_, **__: None)
    judge = device._kernel(operator, None, 1)
    assert isinstance(judge, CoordinateKernel)
    right = computed(judge, x, pooled)
    np.testing.assert_array_equal(np.isnan(made), np.isnan(right))
    there = ~np.isnan(right)
    np.testing.assert_array_equal(made[there].view(np.uint32), right[there].view(np.uint32))
    with pytest.raises(Cancelled):
        kernel.dispatch([memoryview(x.tobytes())], [memoryview(bytearray(made.nbytes))], lambda: True)
