"""Tensor data as JSON numbers, in one list or nested as the tensor's sizes are.

The text is never parsed as a whole: its brackets are compared with those that the sizes ask for, and the numbers are
read in pieces, so that a big tensor takes hardly more memory than its text and its elements.
"""

import contextlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from app.codecs.nesting import check_brackets, inner_lists, shape_in_json, shape_of
from app.codecs.number_text import BLOCK, SPECIAL, Elements, blocks, has, plain, value_at
from app.codecs.structure import Unreadable
from app.contract.constants import DataType
from app.contract.tensors import TensorDesc, tensor_name
from app.contract.validation import abbreviate
from app.contract.violations import ContractError, Path, refused
from app.memory.accounts import MemoryShare
from app.memory.arrays import together
from app.memory.buffers import Buffer

_COST = 32
"""Bytes that a byte of a block's text may come to while it is read: lists of Python's numbers, and arrays of them."""

_FRACTION = b".eE"

_NUMBER = re.compile(rb"(?<![\w.+-])-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?(?![\w.+-])")

_MINUS_ZERO = re.compile(rb"(?<![eE])-0(?![.eE\d])")
"""As Go and C write -0.0. To orjson it is an integer, which has no sign."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Tensor data that are numbers: the text of a JSON array, unread."""

    text: Buffer

    @classmethod
    def of(cls, values: list[Any]) -> "Numbers":
        """Of an array that was read already, as short ones between other things are."""
        return cls(memoryview(json.dumps(values, default=lambda _: "text").encode()))

    def read(self, path: Path, desc: TensorDesc, memory: MemoryShare) -> Buffer:
        """The data of the tensor that `desc` describes: of a packed one its elements, flat or nested; of one with
        strides what lies in its buffer, flat. Raises ContractError, Unreadable, LimitExceeded, RequestOver."""
        elements = Elements(
            tensor_name(path), path, desc.DataType, desc.DataType.value, has_specials=True, is_flat=not desc.is_packed
        )
        return read_numbers(elements, self.text, shape_in_json(desc), memory)

    def shape(self, path: Path, memory: MemoryShare) -> list[int]:
        """How the lists nest. Raises ContractError where they are ragged or hold nothing, RequestOver."""
        return shape_of(
            Elements(tensor_name(path), path, DataType.FLOAT32, "number", has_specials=True), self.text, memory
        )

    def split(self, path: Path, memory: MemoryShare) -> list["Numbers"]:
        """The lists in this list. Raises ContractError if anything else is in it, RequestOver."""
        places = list(inner_lists(self.text, memory))
        stops, starts = [0, *(stop for _, stop in places)], [*(start for start, _ in places), len(self.text)]
        between = [bytes(self.text[stop:start]).strip() for stop, start in zip(stops, starts, strict=True)]
        if not places and not between[0][1:-1].strip():  # no tensors, of which others know whether there may be none
            return []
        if between != [b"[", *[b","] * (len(places) - 1), b"]"]:
            name = tensor_name(path)
            raise refused(path, f"Data of {name} must be a list, with those of each of its tensors.", None, "a list")
        return [Numbers(self.text[start:stop]) for start, stop in places]


def read_numbers(elements: Elements, text: Buffer, shape: Sequence[int], memory: MemoryShare) -> Buffer:
    """The elements that `text`, a JSON array, lists. Raises ContractError, Unreadable, LimitExceeded, RequestOver."""
    count, dtype = math.prod(shape), elements.dtype
    buffer = memory.buffer(count * dtype.itemsize)
    with memory.passing(_COST * min(len(text), BLOCK)):
        check_brackets(elements, text, shape, memory)
        result = np.frombuffer(buffer, dtype)
        position = 0
        if dtype.kind in "iu":
            for block in blocks(elements, text, memory):
                if has(block, _FRACTION + b'"'):
                    place = min(place for byte in _FRACTION + b'"' if (place := block.find(byte)) >= 0)
                    value = value_at(block, place)
                    raise elements.refused(
                        f"Data of {elements.name} hold {value}; {elements.called} takes whole numbers.",
                        plain(value),
                        elements.takes,
                    )
        for block in blocks(elements, text, memory):
            made = _read(elements, block)
            if dtype.kind == "f" and not made.all() and _MINUS_ZERO.search(block):
                made = _read(elements, _MINUS_ZERO.sub(b"-0.0", block))
            result[position : position + made.size] = made
            position += made.size
    if position != count:
        raise Unreadable(f"Data of {elements.name} are not JSON numbers: there is a comma without a number.")
    if elements.data_type.bits < 8:
        packed = together(result)
        buffer[: packed.size] = packed.data
        buffer = buffer[: packed.size]
    return buffer


def _read(elements: Elements, block: bytes) -> np.ndarray[Any, np.dtype[Any]]:
    """The numbers in `block` as elements. Raises Unreadable, and ContractError for those that are none."""
    try:
        values = orjson.loads(b"[%b]" % block.translate(None, b"[]").removesuffix(b","))
    except orjson.JSONDecodeError as error:
        beyond = next((each[0].decode() for each in _NUMBER.finditer(block) if math.isinf(float(each[0]))), None)
        if beyond is not None:  # which JSON allows
            raise _not_one(elements, abbreviate(beyond)) from None
        raise Unreadable(f"Data of {elements.name} are not JSON numbers: {error}.") from None
    return _converted(elements, values, b'"' in block) if values else np.empty(0, elements.dtype)


def _converted(elements: Elements, values: list[Any], has_specials: bool) -> np.ndarray[Any, np.dtype[Any]]:
    """`values` as elements. Raises ContractError for those that are none."""
    dtype = elements.dtype
    if dtype.kind == "f":
        if has_specials:
            values = [SPECIAL[each] if isinstance(each, str) else each for each in values]
        with np.errstate(over="ignore"):
            wide = np.array(values, np.float64)
            result = wide.astype(dtype)
        is_right = np.isfinite(result) | ~np.isfinite(wide)
        if is_right.all():
            return result
        raise _not_one(elements, values[int(np.argmin(is_right))])
    least, most = _range(elements)
    if float not in set(map(type, values)):  # else one has more than 64 bits
        with contextlib.suppress(OverflowError):
            result = np.array(values, dtype)
            if least <= result.min() <= result.max() <= most:
                return result
    raise _not_one(elements, next(each for each in values if not (isinstance(each, int) and least <= each <= most)))


def _range(elements: Elements) -> tuple[int, int]:
    """The least and the greatest number of a type of integers."""
    if elements.has_booleans:
        return 0, 1
    bits, info = elements.data_type.bits, np.iinfo(elements.dtype)
    return int(info.min) >> max(8 - bits, 0), int(info.max) >> max(8 - bits, 0)


def _not_one(elements: Elements, given: object) -> ContractError:
    """That `given` is a number, and yet none of these elements."""
    if elements.dtype.kind == "f":
        bounds = f"{-np.finfo(elements.dtype).max} to {np.finfo(elements.dtype).max}"
    else:
        bounds = "true or false" if elements.has_booleans else " to ".join(map(str, _range(elements)))
    message = f"Data of {elements.name} hold {given}, which is no {elements.called}; that is {bounds}."
    return elements.refused(message, given, bounds)
