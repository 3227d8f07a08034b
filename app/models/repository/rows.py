"""Rows of tensors, which are what they have along the batch: put together and taken apart."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from app.memory.buffers import Buffer
from app.models.onnx.importer import ModelTensor


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
