"""Convolutions by NVIDIA's libraries, on a GPU: by cuDNN, with its frontend installed, and by cuBLAS what is a product
of matrices in float32, which is 1.0 to 4.6 times as quick there."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from app.formula.values import FLOAT32
from app.operators import blas
from app.operators import cudnn as frontend
from app.operators.arrays import for_blas
from app.operators.convolution.windows import Windows
from app.operators.cudnn import FARTHEST, Plan


class Shape(NamedTuple):
    """All that a plan depends on. Sizes and strides, in elements, are of tensors with two or three spatial
    dimensions."""

    data_type: str
    x: tuple[tuple[int, ...], tuple[int, ...]]
    filters: tuple[tuple[int, ...], tuple[int, ...]]
    with_bias: bool
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    backward: bool
    made: tuple[int, ...]


def convolution(
    cupy: Any,
    x: Any,
    filters: Any,
    bias: Any,
    windows: Windows,
    channels: int,
    made_type: Any,
    into: Any,
    *,
    backward: bool,
) -> Any:
    """The convolution, to so many `channels`, with the `bias` added if that is not None, in `made_type`, which is
    float32 or that of `x`; made in the array `into`, if there is one, and that is packed and as it is. None if there is
    no cuDNN, or it does not do this.

    `windows` are over `x`, or if `backward` over what is made. Float32 is computed in float32, and float16 added up in
    float32, neither by transforms that lose much of that.
    """
    groups = (channels if backward else x.shape[1]) // filters.shape[1]
    if bias is None and made_type == FLOAT32 and is_product(windows, groups):
        return _product(cupy, x, filters, into, backward=backward)
    if not frontend.is_there():
        return None
    ends = [
        (count - 1) * stride + (extent - 1) * dilation + 1 - start - size
        for size, count, extent, stride, dilation, start in zip(
            *(windows.sizes, windows.positions, windows.extents, windows.strides, windows.dilations, windows.starts),
            strict=True,
        )
    ]
    if any(-end >= stride for end, stride in zip(ends, windows.strides, strict=True)):
        return None  # cuDNN would have one position more
    starts, ends = list(windows.starts), [max(end, 0) for end in ends]
    sizes = (len(x), channels, *(windows.sizes if backward else windows.positions))
    if backward and bias is not None and math.prod(sizes[2:]) == 1:
        return None  # of which cuDNN 9.19 makes something else of halves
    if starts != ends and filters.shape[1] == 1 and _is_row(windows):
        # cuDNN 9.19 has as much padding behind a row as before it, if each channel has a filter of its own.
        if backward:
            return None
        x, starts, ends = _padded(cupy, x, starts, ends), [0] * len(starts), [0] * len(ends)
    if max(x.size, filters.size, math.prod(sizes)) > FARTHEST:
        return None
    # cuDNN 9.19 makes float32 of halves itself, two to three times as quick, but not of all channels, and with one
    # spatial dimension its results are wrong.
    x, filters = (each.astype(made_type, copy=False) for each in (x, filters))
    missing = max(4 - x.ndim, 0)
    x, filters = (_with_ones(cupy, frontend.near(cupy, each), missing) for each in (x, filters))
    fits = into is not None and into.shape == sizes and into.dtype == made_type and into.flags.c_contiguous
    result = into if fits else cupy.empty(sizes, made_type)
    target = _with_ones(cupy, result, missing)
    ones, nothing = (1,) * missing, (0,) * missing
    shape = Shape(
        x.dtype.name,
        _lies(x),
        _lies(filters),
        bias is not None,
        (*ones, *windows.strides),
        (*ones, *windows.dilations),
        (*nothing, *starts),
        (*nothing, *ends),
        backward,
        target.shape,
    )
    plan = _plan(cupy.cuda.runtime.getDevice(), shape)
    if plan is None:
        return None
    tensors = [x, filters, *([cupy.ascontiguousarray(bias, made_type)] if bias is not None else []), target]
    plan.run(cupy, tensors)
    return result


def is_product(windows: Windows, groups: int) -> bool:
    """Whether it is a product of matrices: of filters of one element over channels that are one group."""
    return windows.is_pointwise and groups == 1


def _is_row(windows: Windows) -> bool:
    """Whether one dimension at most is longer than an element."""
    return sum(max(lengths) > 1 for lengths in zip(windows.sizes, windows.extents, strict=True)) <= 1


def _padded(cupy: Any, x: Any, starts: Sequence[int], ends: Sequence[int]) -> Any:
    """With as many zeros before and behind, along each spatial dimension."""
    sizes = [start + size + end for start, size, end in zip(starts, x.shape[2:], ends, strict=True)]
    padded = cupy.zeros((*x.shape[:2], *sizes), x.dtype)
    padded[(..., *[slice(start, start + size) for start, size in zip(starts, x.shape[2:], strict=True)])] = x
    return padded


def _product(cupy: Any, x: Any, filters: Any, into: Any, *, backward: bool) -> Any:
    batch, depth = x.shape[:2]
    matrix = filters.reshape(filters.shape[:2])
    rows = for_blas(cupy, matrix.T if backward else matrix)
    sizes = (batch, len(rows), *x.shape[2:])
    fits = into is not None and into.shape == sizes and into.dtype == FLOAT32 and into.flags.c_contiguous
    columns = for_blas(cupy, x.reshape(batch, depth, -1))
    target = into.reshape(batch, len(rows), -1) if fits else None
    made = blas.product_of_floats(cupy, rows[None], columns, FLOAT32, target)
    return into if fits else made.reshape(sizes)


def _with_ones(cupy: Any, x: Any, missing: int) -> Any:
    """With so many spatial dimensions of 1 more, each element where cuDNN takes it from."""
    if 0 in [step for size, step in zip(x.shape, x.strides, strict=True) if size > 1]:
        x = cupy.ascontiguousarray(x)
    return x.reshape(*x.shape[:2], *(1,) * missing, *x.shape[2:])


def _lies(x: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes, and strides in elements: of one element that of a packed one, for by another one cuDNN 9.19 goes wrong."""
    steps: list[int] = []
    packed = 1
    for size, step in zip(x.shape[::-1], x.strides[::-1], strict=True):
        steps.append(step // x.itemsize if size > 1 else packed)
        packed = steps[-1] * size
    return x.shape, tuple(steps[::-1])


@frontend.kept("convolution")
def _plan(ordinal: int, shape: Shape) -> Plan:
    import cudnn  # noqa: PLC0415 - part of the GPU extras

    types = {"float16": cudnn.data_type.HALF, "float32": cudnn.data_type.FLOAT}
    graph = cudnn.pygraph(
        io_data_type=types[shape.data_type],
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=frontend.handle_on(ordinal),
    )

    def tensor(name: str, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        return graph.tensor(name=name, dim=list(sizes), stride=list(strides), data_type=types[shape.data_type])

    x, filters = tensor("x", *shape.x), tensor("filters", *shape.filters)
    steps = {
        "pre_padding": list(shape.starts),
        "post_padding": list(shape.ends),
        "stride": list(shape.strides),
        "dilation": list(shape.dilations),
    }
    made = (
        graph.conv_dgrad(loss=x, filter=filters, **steps)
        if shape.backward
        else graph.conv_fprop(image=x, weight=filters, **steps)
    )
    tensors = [x, filters]
    made_strides = tuple(np.cumprod((1, *shape.made[:0:-1]))[::-1].tolist())
    if shape.backward:
        made.set_dim(list(shape.made)).set_stride(list(made_strides))
    if shape.with_bias:
        channels = shape.made[1]
        bias = tensor("bias", (1, channels, *[1] * (len(shape.made) - 2)), (channels, *[1] * (len(shape.made) - 1)))
        made = graph.bias(input=made, bias=bias)
        tensors.append(bias)
    made.set_output(True).set_data_type(types[shape.data_type])
    made.set_dim(list(shape.made)).set_stride(list(made_strides))
    tensors.append(made)
    note = cudnn.numerical_note
    avoided = [note.REDUCED_PRECISION_REDUCTION, note.DOWN_CONVERT_INPUTS, note.FFT]
    avoided += [note.WINOGRAD_TILE_6x6, note.WINOGRAD_TILE_13x13]
    if shape.data_type == "float32":
        avoided.append(note.TENSOR_CORE)  # which would be TF32
    return Plan.of(ordinal, graph, tensors, avoided)
