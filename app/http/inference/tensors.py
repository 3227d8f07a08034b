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

from app.codecs.codec import Piece
from app.codecs.structure import Unreadable
from app.contract.constants import DataType
from app.contract.violations import ContractError, refused
from app.devices.device import WHOLE_BYTES
from app.memory.accounts import MemoryShare
from app.memory.arrays import numpy_type
from app.memory.buffers import Buffer

DATATYPES = {"BOOL": DataType.UINT8} | {str(data_type).replace("FLOAT", "FP"): data_type for data_type in WHOLE_BYTES}
"""Data types by the protocol's names."""

NAMES = {data_type: name for name, data_type in DATATYPES.items()}
"""The protocol's names by data type."""

_BLOCK = 1 << 16
"""Bytes of text that are looked at, or read, at a time."""

_COST = 32
"""Bytes that a byte of a block's text may come to while it is read: lists of Python's numbers, and arrays of them."""

_WRITTEN = 1 << 15
"""Elements that are written at a time."""

_LONGEST = 26
"""Bytes of text that an element may come to, its comma included."""

_NUMBER = b"+-.0123456789Ee"
_SPACE = b" \t\r\n"
_AS_DIGIT = bytes.maketrans(_NUMBER, b"0" * len(_NUMBER))
_STRAY = re.compile(rb"[^-+.0-9eE\s,\[\]]")
_FRACTION = b".eE"
_ENDS = re.compile(rb"[\s,\[\]]")
_DIGITS = b"0123456789"
_BRACKETS = np.frombuffer(b"],[", np.uint8)


def read_numbers(name: str, text: Buffer, shape: Sequence[int], datatype: str, memory: MemoryShare) -> Buffer:
    """The elements that `text`, a JSON array, lists. Raises ContractError, Unreadable, LimitExceeded, RequestOver."""
    elements = math.prod(shape)
    dtype = numpy_type(DATATYPES[datatype])
    buffer = memory.buffer(elements * dtype.itemsize)
    with memory.passing(_COST * min(len(text), _BLOCK)):
        _check_brackets(name, text, shape, datatype, memory)
        result = np.frombuffer(buffer, dtype)
        position = 0
        if dtype.kind in "iu":
            for block in _blocks(name, text, datatype, memory):
                if _has(block, _FRACTION):
                    shown = _value(block, min(place for byte in _FRACTION if (place := block.find(byte)) >= 0))
                    raise _refused(name, f"Data of {name} hold {shown}; {datatype} takes whole numbers.")
        for block in _blocks(name, text, datatype, memory):
            try:
                values = orjson.loads(b"[%b]" % block.translate(None, b"[]").removesuffix(b","))
            except orjson.JSONDecodeError as error:
                raise Unreadable(f"Data of {name} are not JSON numbers: {error}.") from None
            if values:
                result[position : position + len(values)] = _converted(name, values, datatype, dtype)
                position += len(values)
    if position != elements:
        raise Unreadable(f"Data of {name} are not JSON numbers: there is a comma without a number.")
    return buffer


def write_numbers(name: str, data: Buffer, data_type: DataType, memory: MemoryShare) -> Iterator[Piece]:
    """`data` as a JSON array, in pieces. Raises ContractError for what JSON has no number for."""
    elements = np.frombuffer(data, numpy_type(data_type))
    opening = b"["
    for start in range(0, elements.size, _WRITTEN):
        memory.ensure_open()
        part = elements[start : start + _WRITTEN]
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            raise _refused(name, f"{name} holds infinity or NaN, which JSON has no number for; ask for binary_data.")
        with memory.passing(_LONGEST * part.size):
            text = orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)
            memory.take(len(text))
        yield opening
        yield memoryview(text)[1:-1]
        opening = b","
    yield b"]"


def _blocks(name: str, text: Buffer, datatype: str, memory: MemoryShare) -> Iterator[bytes]:
    """`text` cut behind commas, with numbers for true and false. Raises Unreadable, RequestOver."""
    start = 0
    while start < len(text):
        memory.ensure_open()
        block = bytes(text[start : start + _BLOCK])
        if start + len(block) < len(text):
            block = block[: block.rfind(b",") + 1]
            if not block:
                raise Unreadable(f"Data of {name} are not JSON numbers: there are {_BLOCK} bytes without a comma.")
        start += len(block)
        if datatype == "BOOL":
            block = block.replace(b"true", b"1").replace(b"false", b"0")
        yield block


def _check_brackets(name: str, text: Buffer, shape: Sequence[int], datatype: str, memory: MemoryShare) -> None:
    """Raise unless `text` has the brackets and commas of one list, or of lists nested as `shape` is."""
    elements, commas, has_digits = math.prod(shape), 0, False
    expected: _Skeleton | None = None
    is_expected = True
    for block in _blocks(name, text, datatype, memory):
        skeleton = block.translate(None, _NUMBER + _SPACE)
        if skeleton.translate(None, b"[],") and (stray := _STRAY.search(block)):
            raise _refused(name, f"Data of {name} hold {_value(block, stray.start())}; they must be numbers.")
        has_digits = has_digits or _has(block, _DIGITS)
        commas += _commas(skeleton)
        if commas > elements + _BLOCK:  # whatever follows
            raise _refused(name, f"Data of {name} are more than {commas} values; shape {list(shape)} takes {elements}.")
        if expected is None:
            is_nested = len(shape) > 1 and skeleton.startswith(b"[" * len(shape))
            expected = _Skeleton(shape if is_nested else [elements])
        is_expected = is_expected and expected.goes_on(skeleton) and _are_inside(block.translate(_AS_DIGIT, _SPACE))
    count = commas + 1 if has_digits else 0
    if count != elements or not is_expected or expected is None or not expected.is_closed:
        raise _refused(
            name,
            f"Data of {name} are {count} values{' in other lists' if count == elements else ''}; shape {list(shape)} "
            f"takes {elements}, in one list or in lists nested as the shape is.",
        )


def _has(block: bytes, wanted: bytes) -> bool:
    """Whether one of the `wanted` bytes is in `block`, found out several times as quickly as a pattern would."""
    return len(block.translate(None, wanted)) < len(block)


def _are_inside(digits: bytes) -> bool:
    """Whether numbers, all as 0, are behind opening and before closing brackets."""
    return b"0[" not in digits and b"]0" not in digits


def _commas(skeleton: bytes) -> int:
    return len(skeleton) - len(skeleton.translate(None, b","))  # bytes.count takes its time where there are many


class _Skeleton:
    """The brackets and commas of lists nested as `shape` is, compared with a text's block by block."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._sizes = [math.prod(shape[axis:]) for axis in range(1, len(shape))]  # of inner lists, in elements
        self._depth = len(shape)
        self._opening = b"[" * self._depth  # what is to come before the next element
        self._passed = 0
        self.is_closed = False

    def goes_on(self, skeleton: bytes) -> bool:
        """Whether these are the next ones, up to a comma or to the end."""
        count = _commas(skeleton)
        if not self._sizes:
            expected = self._opening + b"," * count
            self._opening = b"" if count else self._opening
            self.is_closed = not skeleton.endswith(b",")
            return skeleton == (expected + b"]" if self.is_closed else expected)
        places = np.arange(self._passed + 1, self._passed + count + 1)
        self._passed += count
        inner = np.zeros(count, np.int64)  # lists that end before the comma and begin behind it
        for size in self._sizes:
            inner += places % size == 0
        each = np.stack([inner, np.ones_like(inner), inner], axis=1).ravel()
        expected = self._opening + np.repeat(np.tile(_BRACKETS, count), each).tobytes()
        if skeleton.endswith(b","):
            self._opening = b"[" * int(inner[-1])
            return skeleton == expected.removesuffix(self._opening)
        self.is_closed = True
        return skeleton == expected + b"]" * self._depth


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
