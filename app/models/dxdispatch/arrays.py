"""Files of NumPy's format .npy: arrays in and out."""

import io
import math
from collections.abc import Sequence
from tokenize import TokenError
from typing import NamedTuple

import numpy as np

from app.contract.constants import DataType
from app.memory.accounts import MemoryShare
from app.memory.arrays import Array, numpy_type
from app.memory.buffers import Buffer

_HEADER = 1 << 16
"""Bytes of a file in which its header ends, of any that is taken."""

_LONGEST = 10_000

_TYPES = {np.dtype(each.value.lower()): each for each in DataType if each.bits >= 8} | {np.dtype(bool): DataType.UINT8}


class Unusable(Exception):
    """A file that nothing can be made of: says why in a sentence, to follow the file's name."""


def words_of(error: Exception) -> str:
    """What a library says of a file. It may end with an object of its own, whose address is nobody's business."""
    return str(error).partition(" <")[0].rstrip(":")[:200]


class Loaded(NamedTuple):
    """Elements, packed and little-endian."""

    data: Buffer
    data_type: DataType


def load(file: Buffer, memory: MemoryShare) -> Loaded:
    """The array in `file`, in its memory if it lies there as it is needed. Raises Unusable, MemoryExhausted."""
    beginning = io.BytesIO(bytes(file[:_HEADER]))
    try:
        version = np.lib.format.read_magic(beginning)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):  # 3.0 is 2.0 in UTF-8, which names of fields need and numbers do not
            read = np.lib.format.read_array_header_2_0
        shape, is_fortran, stored = read(beginning, max_header_size=_LONGEST)
    except (ValueError, SyntaxError, TypeError, KeyError, TokenError, RecursionError, MemoryError, EOFError) as error:
        raise Unusable(f"is no .npy file that NumPy reads: {words_of(error)}") from None
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise Unusable(f"is of version {version[0]}.{version[1]} of .npy; 1.0 to 3.0 are read")
    if is_fortran and len(shape) > 1:
        raise Unusable("is in Fortran's order; save it with numpy.ascontiguousarray")
    data_type = _TYPES.get(stored.newbyteorder("="))
    if data_type is None:
        raise Unusable(f"holds elements of {stored}, which DirectML's buffers do not")
    if any(size < 0 for size in shape):  # which NumPy takes in a header
        raise Unusable(f"has the shape {list(shape)}, which no array has")
    size = math.prod(shape) * data_type.bytes
    data = file[beginning.tell() :]
    if len(data) < size:
        raise Unusable(f"has {len(data)} bytes of elements where its shape {list(shape)} needs {size}")
    data = data[:size]
    if stored.byteorder == ">":
        swapped = memory.buffer(size)
        np.frombuffer(swapped, numpy_type(data_type))[:] = np.frombuffer(data, stored)
        data = swapped
    return Loaded(data, data_type)


def saved(data: Buffer, data_type: DataType, dimensions: Sequence[int], memory: MemoryShare) -> Buffer:
    """A file of `data`'s first elements, as many as `dimensions` have. Raises Unusable, MemoryExhausted."""
    count = math.prod(dimensions)
    if count * data_type.bytes > len(data):
        raise Unusable(
            f"dimensions {list(dimensions)} are {count * data_type.bytes} bytes; the resource has {len(data)}"
        )
    header = io.BytesIO()
    array: Array = np.frombuffer(data, numpy_type(data_type), count)
    told = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": tuple(dimensions)}
    np.lib.format.write_array_header_1_0(header, told)
    file = memory.buffer(header.tell() + array.nbytes)
    file[: header.tell()] = header.getvalue()
    file[header.tell() :] = data[: array.nbytes]
    return file
