"""What `app/operators/packing.py` packs on a GPU, and cuBLAS multiplies, by NumPy."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from app.formula.structures import Structures
from app.memory.arrays import Array, numpy_type
from app.operators import blas, packing
from app.operators.convolution import floats
from app.operators.convolution.windows import Windows
from app.operators.packing import LANE_BYTES, Packed, up
from app.operators.quantization import convolutions
from tests.operators import calls
from tests.operators.arrays import bytes_of, desc_of
from tests.operators.calls import compiled


def rows(
    xp: Any,
    x: Array,
    windows: Windows,
    groups: int = 1,
    *,
    signed: bool = False,
    around: Array | None = None,
    multiple: int = 1,
    with_sums: bool = False,
    only_sums: bool = False,
) -> Packed:
    """As `packing.packed`, element by element of the filter."""
    batch, depth = len(x), x.shape[1] // groups
    sizes = [batch, groups, depth, *windows.extents, *windows.positions]
    met = np.full(sizes, 0 if around is None else around.reshape(()), x.dtype)
    for k, p in itertools.product(*([*np.ndindex(*each)] for each in (windows.extents, windows.positions))):
        lies = zip(p, windows.strides, k, windows.dilations, windows.starts, strict=True)
        place = [each * stride + element * dilation - start for each, stride, element, dilation, start in lies]
        if all(0 <= each < size for each, size in zip(place, windows.sizes, strict=True)):
            met[(..., *k, *p)] = x[(slice(None), slice(None), *place)].reshape(batch, groups, depth)
    there = met.reshape(batch, groups, -1, math.prod(windows.positions)).transpose(1, 0, 3, 2)
    if signed:
        there = (there ^ np.uint8(128) if x.dtype == np.uint8 else there).view(np.int8)
    count, terms = there.shape[2:]
    made = np.zeros((groups, batch, up(count, multiple), up(terms, LANE_BYTES // x.itemsize)), there.dtype)
    made[:, :, :count, :terms] = there
    sums = made.sum(-1, dtype=np.int32) if with_sums or only_sums else None
    return Packed(None if only_sums else made, sums)


def _product(xp: Any, a: Array, b: Array, into: Array | None = None) -> Array:
    assert {a.dtype.name, b.dtype.name} == {"int8"}
    assert (b.shape[-2] % blas.BYTES_COLUMNS, a.shape[-1] % blas.BYTES_TERMS, b.shape[-1] % blas.BYTES_TERMS) == (
        0,
    ) * 3
    made: Array = a.astype(np.int32) @ b.astype(np.int32).swapaxes(-1, -2)
    return made


def _product_of_floats(xp: Any, a: Array, b: Array, dtype: str) -> Array:
    assert a.dtype == b.dtype
    made: Array = a.astype(dtype) @ b.astype(dtype)
    return made


def direct_by_numpy(
    xp: Any, x: Array, filters: Array, windows: Windows, zeros: tuple[Any, Any] = (None, None)
) -> Array:
    left, right = (
        each.astype(np.float64) - (0 if zero is None else zero.reshape(-1, *[1] * (each.ndim - 1)).astype(np.float64))
        for each, zero in ((x, zeros[0]), (filters, zeros[1]))
    )
    groups = x.shape[1] // filters.shape[1]
    met, terms = rows(xp, left, windows, groups).rows, math.prod(filters.shape[1:])
    made = right.reshape(groups, 1, -1, terms) @ met[..., :terms].swapaxes(-1, -2)
    sizes = (len(x), len(filters), *windows.positions)
    made = made.swapaxes(0, 1).reshape(sizes)
    return np.ascontiguousarray(made, "float32" if x.dtype == np.float16 else "int32")


def by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Ended.product` of bytes, and of packed halves, works with NumPy then."""
    monkeypatch.setattr(packing, "packed", rows)
    monkeypatch.setattr(packing, "begins_at", lambda x, multiple: x.ctypes.data % multiple == 0)
    monkeypatch.setattr(blas, "product_of_bytes", _product)
    monkeypatch.setattr(blas, "product_of_floats", _product_of_floats)
    for module in (convolutions, floats):
        monkeypatch.setattr(module, "direct", direct_by_numpy)


def product_of(document: dict[str, Any], given: Mapping[str, Array | None]) -> Mapping[str, Array]:
    """What an operator that has an ending makes before it."""
    inputs = {name: each for name, each in given.items() if each is not None}
    operator = compiled(document | {name: desc_of(each) for name, each in inputs.items()})
    assert operator.product
    return operator.product(np, inputs)


def ended(document: dict[str, Any], given: Mapping[str, Array | None]) -> Array | None:
    """What a product and its ending make, on a CPU; None if there is no ending."""
    inputs = {name: each for name, each in given.items() if each is not None}
    operator = compiled(document | {name: desc_of(each) for name, each in inputs.items()})
    ending = operator.ending(Structures())
    if ending is None:
        return None
    made = product_of(document, given)
    for name, array in made.items():
        desc = ending.inputs[name]
        steps = [
            0 if size == 1 else step // array.itemsize for size, step in zip(array.shape, array.strides, strict=True)
        ]
        assert (list(array.shape), steps) == (desc.Sizes, list(desc.steps)), name
        assert array.dtype == numpy_type(desc.DataType)
    (output,) = ending.outputs.values()
    result = np.empty(output.Sizes, numpy_type(output.DataType))
    buffers = [bytes_of({**inputs, **made}[name]) for name in ending.inputs]
    calls.DEVICE.prepare(ending).dispatch(buffers, [result.reshape(-1).view(np.uint8).data], lambda: False)
    return result
