"""Tensor data as the protocol writes them in JSON: numbers, in one list or nested as the shape is.

The text is never parsed as a whole: its brackets are compared with those that the shape asks for, and the numbers are
read in pieces, so that a big tensor takes hardly more memory than its text and its elements.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson

from app.buffers import Buffer
from app.codecs.codec import Piece
from app.codecs.structure import Unreadable
from app.contract.constants import DataType
from app.contract.violations import ContractError, refused
from app.execution.device import WHOLE_BYTES
from app.execution.numpy_lowering import numpy_type
from app.limits import MemoryShare

DATATYPES = {"BOOL": DataType.UINT8} | {str(data_type).replace("FLOAT", "FP"): data_type for data_type in WHOLE_BYTES}
"""Data types by the protocol's names."""

NAMES = {data_type: name for name, data_type in DATATYPES.items()}
"""The protocol's names by data type."""

_PIECE_BYTES = 1 << 18
_PIECE_ELEMENTS = 1 << 15
_NUMBER = b"+-.0123456789Ee"
_SPACE = b" \t\r\n"
_AS_DIGIT = bytes.maketrans(_NUMBER, b"0" * len(_NUMBER))
_STRAY = re.compile(rb"[^-+.0-9eE\s,\[\]]")
_FRACTION = re.compile(rb"[.eE]")
_ENDS = re.compile(rb"[\s,\[\]]")


def read_numbers(name: str, text: Buffer, shape: Sequence[int], datatype: str, memory: MemoryShare) -> Buffer:
    """The elements that `text`, a JSON array, lists. Raises ContractError, Unreadable, LimitExceeded."""
    elements = math.prod(shape)
    dtype = numpy_type(DATATYPES[datatype])
    buffer = memory.buffer(elements * dtype.itemsize)
    memory.take(3 * len(text))
    numbers = bytes(text)
    if datatype == "BOOL":
        numbers = numbers.replace(b"true", b"1").replace(b"false", b"0")
    _check_brackets(name, numbers, shape)
    if dtype.kind in "iu" and (found := _FRACTION.search(numbers)):
        raise _refused(name, f"Data of {name} hold {_value(numbers, found.start())}; {datatype} takes whole numbers.")
    result = np.frombuffer(buffer, dtype)
    position = 0
    for piece in _pieces(numbers.translate(None, b"[]")):
        try:
            values = orjson.loads(b"[%b]" % piece)
        except orjson.JSONDecodeError as error:
            raise Unreadable(f"Data of {name} are not JSON numbers: {error}.") from None
        if values:
            result[position : position + len(values)] = _converted(name, values, datatype, dtype)
            position += len(values)
    if position != elements:
        raise Unreadable(f"Data of {name} are not JSON numbers: there is a comma without a number.")
    memory.give(3 * len(text))
    return buffer


def write_numbers(name: str, data: Buffer, data_type: DataType, memory: MemoryShare) -> Iterator[Piece]:
    """`data` as a JSON array, in pieces. Raises ContractError for what JSON has no number for."""
    elements = np.frombuffer(data, numpy_type(data_type))
    opening = b"["
    for start in range(0, elements.size, _PIECE_ELEMENTS):
        part = elements[start : start + _PIECE_ELEMENTS]
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            raise _refused(name, f"{name} holds infinity or NaN, which JSON has no number for; ask for binary_data.")
        text = orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)
        memory.take(len(text))
        yield opening
        yield memoryview(text)[1:-1]
        opening = b","
    yield b"]"


def _check_brackets(name: str, text: bytes, shape: Sequence[int]) -> None:
    """Raise unless `text` has the brackets and commas of one list, or of lists nested as `shape` is."""
    elements = math.prod(shape)
    skeleton = text.translate(None, _NUMBER + _SPACE)
    if skeleton.translate(None, b"[],") and (stray := _STRAY.search(text)):
        raise _refused(name, f"Data of {name} hold {_value(text, stray.start())}; they must be numbers.")
    count = skeleton.count(b",") + 1 if re.search(rb"[0-9]", text) else 0
    if count == elements:
        if skeleton == b"[%b]" % (b"," * (elements - 1)):
            return
        lists = sum(math.prod(shape[:axis]) for axis in range(len(shape)))
        if skeleton.count(b"[") == lists and skeleton == _nested(shape):
            digits = text.translate(_AS_DIGIT, _SPACE)
            if b"0[" not in digits and b"]0" not in digits:
                return
    raise _refused(
        name,
        f"Data of {name} are {count} values{' in other lists' if count == elements else ''}; shape {list(shape)} takes "
        f"{elements}, in one list or in lists nested as the shape is.",
    )


def _nested(shape: Sequence[int]) -> bytes:
    text = b""
    for size in reversed(shape):
        text = b"[%b]" % b",".join([text] * size)
    return text


def _pieces(text: bytes) -> Iterator[bytes]:
    """`text` cut at commas."""
    start = 0
    while len(text) - start > _PIECE_BYTES:
        comma = text.rfind(b",", start, start + _PIECE_BYTES)
        if comma < 0:
            break  # a number of that many digits: the parser says what it thinks of it
        yield text[start:comma]
        start = comma + 1
    yield text[start:]


def _converted(name: str, values: list[Any], datatype: str, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """`values` as elements. Raises ContractError for those that are none."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            result = np.array(values, np.float64).astype(dtype)
        if np.isfinite(result).all():
            return result
        bounds = f"{-np.finfo(dtype).max} to {np.finfo(dtype).max}"
    else:
        bounds = "true or false" if datatype == "BOOL" else f"{np.iinfo(dtype).min} to {np.iinfo(dtype).max}"
        if float not in set(map(type, values)):  # else one has more than 64 bits
            with contextlib.suppress(OverflowError):
                result = np.array(values, dtype)
                if datatype != "BOOL" or result.max() <= 1:
                    return result
    raise _refused(name, f"Data of {name} hold a number that is no {datatype}; that is {bounds}.")


def _value(text: bytes, position: int) -> str:
    """The value in `text` that has something at `position`, for a refusal."""
    start = max(position - 20, 0)
    before = _ENDS.split(text[start:position])[-1]
    after = _ENDS.split(text[position : position + 20])[0]
    return (before + after).decode("ascii", "backslashreplace")


def _refused(name: str, message: str) -> ContractError:
    return refused(("inputs", name, "data"), message)
