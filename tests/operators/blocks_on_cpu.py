"""Kernels whose threads wait for each other, built as C++ for the CPU, to be held against NumPy where there is no GPU:
a thread of the CPU for each of a block, one block after the other."""

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.devices.cuda_on_cpu import COMPILER

_SHIM = r"""
#include <barrier>
#include <cstring>
#include <thread>
#include <vector>
#define __restrict__
#define __global__
#define __launch_bounds__(x)
#define __shared__ static
struct uint4 { unsigned x, y, z, w; };
struct dimensions { unsigned x, y, z; };
static thread_local dimensions threadIdx, blockIdx;
static dimensions blockDim, gridDim;
static std::barrier<>* together_now;
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static int __dp4a(int a, int b, int c)
{
    for (int n = 0; n < 4; ++n) c += (int)(signed char)(a >> 8 * n) * (int)(signed char)(b >> 8 * n);
    return c;
}
static void __syncthreads() { together_now->arrive_and_wait(); }
static void atomicAdd(int* to, int more) { __atomic_fetch_add(to, more, __ATOMIC_RELAXED); }
"""

_MAIN = r"""
extern "C" void run(%(parameters)s, const unsigned* grid, const unsigned* block)
{
    gridDim = {grid[0], grid[1], 1}, blockDim = {block[0], block[1], 1};
    for (unsigned b = 0; b < grid[0] * grid[1]; ++b) {
        std::barrier<> barrier(block[0] * block[1]);
        together_now = &barrier;
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < block[0] * block[1]; ++t)
            threads.emplace_back([=] {
                threadIdx = {t %% block[0], t / block[0], 0}, blockIdx = {b %% grid[0], b / grid[0], 0};
                %(name)s(%(arguments)s);
                together_now->arrive_and_drop();
            });
        for (auto& each : threads) each.join();
    }
}
"""

NUMPY = SimpleNamespace(
    empty=lambda sizes, dtype: np.full(sizes, 77, dtype), zeros=np.zeros, ascontiguousarray=np.ascontiguousarray
)
"""In CuPy's place: what is not written is seen."""


def kernel(folder: Path, source: str, name: str, types: Sequence[str]) -> Callable[..., None]:
    """What a kernel is on a GPU, of parameters of these C++ types, the last of which is a structure."""
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    path = folder / f"{abs(hash(source))}.cpp"
    library = path.with_suffix(".so")
    if not library.exists():
        names = [f"p{place}" for place in range(len(types))]
        declared = [
            *(f"{type_} {each}" for type_, each in zip(types[:-1], names, strict=False)),
            f"{types[-1]}* {names[-1]}",
        ]
        arguments = [*names[:-1], f"*{names[-1]}"]
        parts = {"name": name, "parameters": ", ".join(declared), "arguments": ", ".join(arguments)}
        path.write_text(_SHIM + source + _MAIN % parts)
        command = [COMPILER, "-std=c++20", "-O0", "-w", "-fPIC", "-shared", "-pthread", str(path), "-o", str(library)]
        subprocess.run(command, check=True, timeout=120)
    run = ctypes.CDLL(str(library)).run

    def launch(grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any]) -> None:
        kept = [np.array([arguments[-1]], arguments[-1].dtype)]
        counts = [(ctypes.c_uint * 2)(*each, *[1] * (2 - len(each))) for each in (grid, block)]
        run(*map(_argument, arguments[:-1]), _argument(kept[0]), *counts)

    return launch


def _argument(given: Any) -> Any:
    if isinstance(given, np.ndarray):
        return ctypes.c_void_p(given.ctypes.data)
    return ctypes.c_uint(int(given)) if given.dtype == np.uint32 else ctypes.c_void_p(int(given))
