"""Rows of tensors, which are what they have along the batch: put together, taken apart, and whether they are apart."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from app.contract.constants import DataType
from app.memory.arrays import Array, numpy_type
from app.memory.buffers import Buffer
from app.models.onnx.importer import ModelTensor

Execute = Callable[[Mapping[str, Buffer]], Mapping[str, bytes]]
"""What is computed of inputs, by name."""

_FLOATS = (DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64)


def row_bytes(tensor: ModelTensor) -> int:
    """Bytes of a row of a tensor that is packed."""
    return math.prod(tensor.sizes[1:]) * tensor.data_type.bytes


class RowSlice(NamedTuple):
    """Of a batch's tensor the rows that are one request's."""

    data: Buffer
    size: int


def put_together(parts: Sequence[RowSlice], into: Buffer, row: int) -> None:
    """The rows of all `parts`, one behind the other. What is left of `into` is filled with the last one, which is as
    good a row as any: a value that the model takes."""
    target = np.frombuffer(into, np.uint8)
    at = 0
    for part in parts:
        target[at : at + part.size] = np.frombuffer(part.data, np.uint8, part.size)
        at += part.size
    target[at:].reshape(-1, row)[...] = target[at - row : at]


def take_apart(made: Buffer, parts: Sequence[RowSlice]) -> None:
    """Each of `parts` is given its rows of `made`."""
    source = np.frombuffer(made, np.uint8)
    at = 0
    for part in parts:
        np.frombuffer(part.data, np.uint8)[: part.size] = source[at : at + part.size]
        at += part.size


def are_apart(inputs: Mapping[str, ModelTensor], outputs: Mapping[str, ModelTensor], execute: Execute) -> bool:
    """Whether no row of what is computed depends on another row, as far as some executions can tell.

    The first row and the last are computed among others that are small, and among others that are large; not a bit of
    theirs may change. This finds what ONNX cannot say: totals and orders along the batch, scales and extremes of a
    whole tensor as dynamic quantization has them, and rows that become others' by reshaping.
    """
    tried: list[tuple[int, int | None]] = [(0, None), (-1, None)]
    if any(each.data_type not in _FLOATS for each in inputs.values()):
        tried += [(0, 0), (-1, 1)]  # random rows have both numbers, so that others change no extreme
    for kept, number in tried:
        first, second = (execute(data) for data in _two(inputs, kept, number))
        for name, tensor in outputs.items():
            size = row_bytes(tensor)
            at = 0 if kept == 0 else (tensor.sizes[0] - 1) * size
            if first[name][at : at + size] != second[name][at : at + size]:
                return False
    return True


def _two(inputs: Mapping[str, ModelTensor], kept: int, number: int | None) -> Iterator[Mapping[str, Buffer]]:
    """Inputs of which one row is the same: random, or for integers a `number`."""
    for is_large in (False, True):
        made = {}
        for name, tensor in inputs.items():
            values = _others(tensor, is_large=is_large)
            is_random = number is None or tensor.data_type in _FLOATS
            values[kept] = _random(tensor)[kept] if is_random else number
            made[name] = memoryview(values.tobytes())
        yield made


def _random(tensor: ModelTensor) -> Array:
    """Integers are 0 or 1: they may be places in a table."""
    random = np.random.default_rng(1)
    is_float = tensor.data_type in _FLOATS
    values = random.normal(0, 1, tensor.sizes) if is_float else random.integers(0, 2, tensor.sizes)
    return values.astype(numpy_type(tensor.data_type))


def _others(tensor: ModelTensor, *, is_large: bool) -> Array:
    dtype = numpy_type(tensor.data_type)
    if tensor.data_type in _FLOATS:
        values = np.random.default_rng(2).normal(0, 1, tensor.sizes)
        return (values * 8 + 3 if is_large else values).astype(dtype)
    large = 100 if dtype.itemsize < 4 and tensor.type != "bool" else 1
    return np.full(tensor.sizes, large if is_large else 0, dtype)
