"""The text of JSON numbers: never parsed as a whole, but cut into blocks, in which what is no number is refused."""

import contextlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from app.codecs.structure import Unreadable
from app.contract.constants import DataType
from app.contract.scalars import INFINITIES
from app.contract.suggestions import did_you_mean
from app.contract.violations import ContractError, Path, refused
from app.memory.accounts import MemoryShare
from app.memory.arrays import numpy_type
from app.memory.buffers import Buffer

BLOCK = 1 << 16
"""Bytes of text that are looked at, or read, at a time."""

SPECIAL = {"NaN": math.nan, **INFINITIES}
"""What JSON has no number for, as strings."""

NUMBER = b"+-.0123456789Ee"
SPACE = b" \t\r\n"


class _MinusZero(int):
    """-0, as Go and C write -0.0: a 0 for fields of integers, and for those of floats one that has a sign."""

    def __float__(self) -> float:
        return -0.0


_MINUS_ZERO = _MinusZero()

_SPECIAL_TEXT = re.compile(rb'"(?:NaN|-?Infinity)"')
_STRAY = re.compile(rb"[^-+.0-9eE\s,\[\]]")
_ENDS = re.compile(rb"[\s,\[\]]")


@dataclass(frozen=True, slots=True)
class Elements:
    """What numbers are to become: elements of the tensor `name`, which are at `path`.

    `called` is the data type in messages. With `has_specials` "NaN", "Infinity" and "-Infinity" are numbers too, with
    `has_booleans` true and false.
    """

    name: str
    path: Path
    data_type: DataType
    called: str
    has_specials: bool = False
    has_booleans: bool = False
    is_flat: bool = False
    """Whether they are what lies in the buffer of a tensor with strides."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return numpy_type(self.data_type)

    @property
    def takes(self) -> list[str]:
        """What its elements may be, in words."""
        if self.dtype.kind in "iu":
            return ["true", "false"] if self.has_booleans else ["whole numbers"]
        return ["numbers", *(f'"{name}"' for name in SPECIAL)] if self.has_specials else ["numbers"]

    def refused(self, message: str, given: object = None, allowed: object = None) -> ContractError:
        return refused(self.path, message, given, allowed)


def blocks(elements: Elements, text: Buffer, memory: MemoryShare) -> Iterator[bytes]:
    """`text` cut behind commas, with numbers for true and false. Raises Unreadable, RequestOver."""
    start = 0
    while start < len(text):
        memory.ensure_open()
        block = bytes(text[start : start + BLOCK])
        if start + len(block) < len(text):
            block = block[: block.rfind(b",") + 1]
            if not block:
                raise Unreadable(
                    f"Data of {elements.name} are not JSON numbers: there are {BLOCK} bytes without a comma."
                )
        start += len(block)
        if elements.has_booleans:
            block = block.replace(b"true", b" 1 ").replace(b"false", b" 0 ")  # by themselves, as in -false they are not
        yield block


def skeleton_of(elements: Elements, block: bytes) -> tuple[bytes, bytes]:
    """The brackets and commas of `block`, and `block` with a number for each string that is one. Raises ContractError
    for what is no number."""
    if elements.has_specials and b'"' in block:
        block = _SPECIAL_TEXT.sub(b"0", block)
    skeleton = block.translate(None, NUMBER + SPACE)
    if skeleton.translate(None, b"[],") and (stray := _STRAY.search(block)):
        value, takes = value_at(block, stray.start()), elements.takes
        words = " or ".join(filter(None, (", ".join(takes[:-1]), takes[-1])))
        raise elements.refused(
            f"Data of {elements.name} hold {value}; they must be {words}.{did_you_mean(value, takes)}",
            plain(value),
            takes,
        )
    return skeleton, block


def has(block: bytes, wanted: bytes) -> bool:
    """Whether one of the `wanted` bytes is in `block`, found out several times as quickly as a pattern would."""
    return len(block.translate(None, wanted)) < len(block)


def value_at(text: bytes, position: int) -> str:
    """The value in `text` that has something at `position`, for a refusal."""
    start = max(position - 20, 0)
    before = _ENDS.split(text[start:position])[-1]
    after = _ENDS.split(text[position : position + 20])[0]
    return (before + after).decode("ascii", "backslashreplace")


def integer(text: str) -> int:
    """The number that `text`, a JSON integer, is. Raises ValueError if it has thousands of digits."""
    return _MINUS_ZERO if text == "-0" else int(text)


def plain(text: str) -> object:
    """The value that `text` is in JSON, or the text if it is none."""
    with contextlib.suppress(orjson.JSONDecodeError):
        return orjson.loads(text)
    return text
