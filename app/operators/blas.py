"""cuBLAS, asked for what CuPy's functions do not offer: products of halves that are added up, and come, in float32."""

import itertools
import math
from typing import Any

import numpy as np

_HALF, _FLOAT = 2, 0
"""CUDA_R_16F and CUDA_R_32F of cudaDataType."""

_ONE, _ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)
"""In the host's memory, where cuBLAS reads factors from."""


def product_of_halves(cupy: Any, a: Any, b: Any, *, rounded: bool) -> Any:
    """The matrix products of { ..., M, K } and { ..., K, N }, added up in float32; in float16 if they are `rounded`.

    Leading dimensions are equal or 1, and matrices have one dimension of stride 1 and no rows that overlap.
    """
    cublas = cupy.cuda.cublas
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (rows, depth), columns = a.shape[-2:], b.shape[-1]
    made = cupy.empty((*batch, rows, columns), np.float16 if rounded else np.float32)
    a, b = (_stacked(cupy, x, batch) for x in (a, b))
    if len(a) == 1 < len(b) or len(b) == len(a) == 1:
        count, a_step, b_step = len(b), 0, b.strides[0] // 2
    elif len(b) == 1 and _lies(a)[0] == "N" and a.strides[0] == rows * a.strides[1]:
        count, a_step, b_step = 1, 0, 0  # one large product is quicker than many small ones
        rows *= len(a)
    else:
        count, a_step, b_step = len(a), a.strides[0] // 2, b.strides[0] // 2 if len(b) > 1 else 0
    # cuBLAS takes columns one after the other: so what it makes is the transposed product, of the operands exchanged.
    (a_form, a_width), (b_form, b_width) = _lies(a), _lies(b)
    cublas.gemmStridedBatchedEx(
        cupy.cuda.device.get_cublas_handle(),
        _operation(cublas, b_form),
        _operation(cublas, a_form),
        columns,
        rows,
        depth,
        _ONE.ctypes.data,
        b.data.ptr,
        _HALF,
        b_width,
        b_step,
        a.data.ptr,
        _HALF,
        a_width,
        a_step,
        _ZERO.ctypes.data,
        made.data.ptr,
        _HALF if rounded else _FLOAT,
        columns,
        rows * columns,
        count,
        cublas.CUBLAS_COMPUTE_32F,
        cublas.CUBLAS_GEMM_DEFAULT,
    )
    return made


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


def _lies(x: Any) -> tuple[str, int]:
    """Whether matrices lie row by row ("N") or column by column ("T"), and how far the next row or column is."""
    row, column = (step // 2 for step in x.strides[-2:])
    rows, columns = x.shape[-2:]
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return "N", max(row if rows > 1 else columns, columns)
    return "T", max(column if columns > 1 else rows, rows)


def _operation(cublas: Any, form: str) -> int:
    operation: int = cublas.CUBLAS_OP_N if form == "N" else cublas.CUBLAS_OP_T
    return operation
