"""Updates of cells on a GPU, of which the last one of each stays: each cell has the number of its last update, of those
that ask for it at once the largest, and then those write whose number it is."""

from functools import cache
from typing import Any

from app.operators.c_numbers import C_TYPES
from app.operators.grids import blocks_of
from app.operators.written import kernel

THREADS = 256

_KERNELS = r"""
typedef %(element)s element;
/* `last` has a number for each cell, 0 at first; updates are counted from 1 on. */
extern "C" __global__ void __launch_bounds__(%(threads)d)
ask(const long long* cells, unsigned* last, unsigned long long updates, long long count)
{
    const unsigned long long n = (unsigned long long)blockIdx.x * %(threads)d + threadIdx.x;
    if (n < updates && cells[n] < count) atomicMax(last + cells[n], (unsigned)n + 1);
}
extern "C" __global__ void __launch_bounds__(%(threads)d)
put(const long long* cells, const unsigned* last, const element* from, element* to, unsigned long long elements,
    unsigned long long width, long long count)
{
    const unsigned long long i = (unsigned long long)blockIdx.x * %(threads)d + threadIdx.x;
    if (i >= elements) return;
    const unsigned long long n = i / width;
    const long long cell = cells[n];
    if (cell < count && last[cell] == (unsigned)n + 1) to[cell * width + i - n * width] = from[i];
}
"""


def put_last(cupy: Any, made: Any, cells: Any, updates: Any) -> None:
    """Into { cells, width } `made` { updates, width } `updates`, each at one of `cells`, int64: of several for the same
    the last. All three are packed, and a cell beyond those of `made` is none."""
    last = cupy.zeros(len(made), cupy.uint32)
    count, number, width = cupy.int64(len(made)), len(cells), updates.shape[1]
    ask, put = (kernel(cupy, source_of(updates.itemsize), name) for name in ("ask", "put"))
    ask(blocks_of(number, THREADS), (THREADS,), (cells, last, cupy.uint64(number), count))
    sizes = cupy.uint64(updates.size), cupy.uint64(width), count
    put(blocks_of(updates.size, THREADS), (THREADS,), (cells, last, updates, made, *sizes))


@cache
def source_of(bytes_: int) -> str:
    """The kernels, of elements of so many bytes, whatever they are."""
    return _KERNELS % {"element": C_TYPES[f"uint{8 * bytes_}"], "threads": THREADS}
