"""cuBLAS, asked for what CuPy's functions do not offer: products of halves that are added up, and may come, in float32,
and products while work is captured as a CUDA graph, which CuPy refuses."""

import ctypes
import itertools
import math
import threading
from functools import cache
from typing import Any

import numpy as np

TYPES = {"float32": 0, "float16": 2}
"""Which are multiplied here, and their numbers in cudaDataType."""

_PLAIN, _TRANSPOSED = 0, 1
"""Of cublasOperation_t."""

_COMPUTE_32F, _DEFAULT = 68, -1
"""CUBLAS_COMPUTE_32F, which is no TF32, and CUBLAS_GEMM_DEFAULT."""

_WORKSPACE = 32 << 20
"""Bytes that cuBLAS may compute in: as many as NVIDIA advises for the largest GPUs."""

_ONE, _ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)
"""In the host's memory, where cuBLAS reads factors from."""

_of_thread = threading.local()


def product_of_floats(cupy: Any, a: Any, b: Any, dtype: Any, into: Any = None) -> Any:
    """The matrix products of { ..., M, K } and { ..., K, N }, both float16 or both float32, added up in float32, in
    `dtype`, which is one of the two; made in `into` if that is packed and as the products are.

    Leading dimensions are equal or 1, none is 0, and matrices have one dimension of stride 1 and no rows that overlap.
    """
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (rows, depth), columns = a.shape[-2:], b.shape[-1]
    sizes = (*batch, rows, columns)
    fits = into is not None and into.shape == sizes and into.dtype == dtype and into.flags.c_contiguous
    made = into if fits else cupy.empty(sizes, dtype)
    a, b = (_stacked(cupy, x, batch) for x in (a, b))
    (a_form, a_width), (b_form, b_width) = _lies(a), _lies(b)
    a_step, b_step = (x.strides[0] // x.itemsize if len(x) > 1 else 0 for x in (a, b))
    count, height = max(len(a), len(b)), rows
    if len(b) == 1 < len(a) and a_form is _PLAIN and a_step == rows * a_width:
        count, height = 1, rows * len(a)  # one large product is quicker than many small ones
    workspace = cupy.cuda.alloc(_WORKSPACE)
    handle = _handle(cupy)
    _check(cupy, _library(cupy).cublasSetStream_v2(handle, ctypes.c_void_p(cupy.cuda.get_current_stream().ptr)))
    _check(cupy, _library(cupy).cublasSetWorkspace_v2(handle, ctypes.c_void_p(workspace.ptr), _WORKSPACE))
    # cuBLAS takes columns one after the other: so what it makes is the transposed product, of the operands exchanged.
    status = _library(cupy).cublasGemmStridedBatchedEx(
        handle,
        *(b_form, a_form, columns, height, depth, ctypes.c_void_p(_ONE.ctypes.data)),
        *(ctypes.c_void_p(b.data.ptr), TYPES[b.dtype.name], b_width, ctypes.c_longlong(b_step)),
        *(ctypes.c_void_p(a.data.ptr), TYPES[a.dtype.name], a_width, ctypes.c_longlong(a_step)),
        ctypes.c_void_p(_ZERO.ctypes.data),
        *(ctypes.c_void_p(made.data.ptr), TYPES[made.dtype.name], columns, ctypes.c_longlong(rows * columns)),
        *(count, _COMPUTE_32F, _DEFAULT),
    )
    _check(cupy, status)
    return made


@cache
def _library(cupy: Any) -> ctypes.CDLL:
    """The one that CuPy loads, too."""
    return ctypes.CDLL(f"libcublas.so.{cupy.cuda.cublas.getVersion(_cupys_handle(cupy)) // 10000}")


def _cupys_handle(cupy: Any) -> Any:
    return cupy.cuda.device.get_cublas_handle()


def _handle(cupy: Any) -> ctypes.c_void_p:
    """This thread's own on the current GPU: one that is CuPy's may be in the midst of something else."""
    handles: dict[int, ctypes.c_void_p] = _of_thread.__dict__.setdefault("handles", {})
    ordinal = cupy.cuda.runtime.getDevice()
    if ordinal not in handles:
        handle = ctypes.c_void_p()
        _check(cupy, _library(cupy).cublasCreate_v2(ctypes.byref(handle)))
        handles[ordinal] = handle
    return handles[ordinal]


def _check(cupy: Any, status: int) -> None:
    if status:
        raise cupy.cuda.cublas.CUBLASError(status)


def _stacked(cupy: Any, x: Any, batch: tuple[int, ...]) -> Any:
    """All matrices of `x`, evenly spaced, along one dimension; one where all are the same."""
    if math.prod(x.shape[:-2]) == 1:
        return x.reshape(1, *x.shape[-2:])
    lead = cupy.broadcast_to(x, (*batch, *x.shape[-2:]))
    steps = [(size, step) for size, step in zip(lead.shape[:-2], lead.strides[:-2], strict=True) if size > 1]
    even = all(outer == size * inner for (_, outer), (size, inner) in itertools.pairwise(steps))
    if not even:
        lead = cupy.ascontiguousarray(lead)
        return lead.reshape(-1, *x.shape[-2:])
    count, step = math.prod(batch), steps[-1][1]
    return cupy.ndarray((count, *x.shape[-2:]), x.dtype, x.data, (step, *x.strides[-2:]))


def _lies(x: Any) -> tuple[int, int]:
    """Whether matrices lie row by row or column by column, and how far the next row or column is."""
    row, column = (step // x.itemsize for step in x.strides[-2:])
    rows, columns = x.shape[-2:]
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return _PLAIN, max(row if rows > 1 else columns, columns)
    return _TRANSPOSED, max(column if columns > 1 else rows, rows)
