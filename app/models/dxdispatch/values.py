"""Elements of resources: from the numbers of a model file, and to the text that DxDispatch prints."""

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from app.contract.constants import DataType
from app.contract.scalars import Uint
from app.contract.validation import abbreviate, validate
from app.contract.violations import ContractError, Path, refused
from app.memory.accounts import LimitExceeded, MemoryShare
from app.memory.arrays import Array, numpy_type
from app.memory.buffers import Buffer
from app.models.dxdispatch.document import called, data_type_of

P = TypeVar("P", bound=BaseModel)

_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_STEP = 4096
"""Elements that are read or printed before another thread has its turn."""

_ADDED = 1 << 20
"""Elements that are added up in one call, for which NumPy keeps other threads waiting."""

NUMBER = 200
"""Bytes that a printed element comes to while it is text, at most."""

_HALF_END = 65536.0
"""The least that no FLOAT16 truncates to."""


class _Constant(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    value: Any
    valueCount: Uint


class _Sequence(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    valueStart: Any
    valueDelta: Any
    valueCount: Uint


class Elements:
    """Makes the initial values of one resource, at `path`, within limits."""

    def __init__(self, path: Path, most_bytes: int, memory: MemoryShare) -> None:
        self._path = path
        self._most = most_bytes
        self._memory = memory

    def listed(self, values: Sequence[object], data_type: DataType) -> Buffer:
        """`[1, "nan", ...]`. Raises ContractError, LimitExceeded, MemoryExhausted."""
        buffer = self._buffer(len(values), data_type)
        array = np.frombuffer(buffer, numpy_type(data_type))
        for start in range(0, len(values), _STEP):
            self._memory.ensure_open()
            some = values[start : start + _STEP]
            array[start : start + len(some)] = _stored(
                [number(each, data_type, (*self._path, start + place)) for place, each in enumerate(some)], data_type
            )
        return buffer

    def typed(self, values: Sequence[object]) -> Buffer:
        """`[{"type": "UINT32", "value": 42}, ...]`, packed without padding. Raises like `listed`."""
        pieces = []
        for place, each in enumerate(values):
            at = (*self._path, place)
            if not isinstance(each, dict) or not {"type", "value"} <= each.keys():
                raise refused(
                    at,
                    "Without initialValuesDataType each of initialValues must be an object with type and value.",
                    abbreviate(each),
                    {"type": "UINT32", "value": 42},
                )
            try:
                data_type = data_type_of(each["type"])
            except PydanticCustomError:
                data_type = None
            if data_type in (None, DataType.FLOAT16):
                allowed = [name for name in DataType if name.bits >= 8 and name is not DataType.FLOAT16]
                given = abbreviate(each["type"])
                raise refused(
                    (*at, "type"), f"type is {given}; it must be one of {', '.join(allowed)}.", given, allowed
                )
            assert data_type is not None
            value = number(each["value"], data_type, (*at, "value"))
            pieces.append(_stored([value], data_type).tobytes())
        data = b"".join(pieces)
        buffer = self._bytes(len(data))
        buffer[:] = data
        return buffer

    def constant(self, document: dict[str, Any], data_type: DataType) -> Buffer:
        """`{"value": 0, "valueCount": 3}`. Raises like `listed`."""
        given = self._validated(_Constant, document)
        value = number(given.value, data_type, (*self._path, "value"))
        buffer = self._buffer(given.valueCount, data_type)
        np.frombuffer(buffer, numpy_type(data_type))[:] = _stored([value], data_type)[0]
        return buffer

    def sequence(self, document: dict[str, Any], data_type: DataType) -> Buffer:
        """`{"valueStart": 1, "valueDelta": 0.5, "valueCount": 3}`: each is the one before, plus delta, in `data_type`.
        Raises like `listed`."""
        given = self._validated(_Sequence, document)
        start = number(given.valueStart, data_type, (*self._path, "valueStart"))
        delta = number(given.valueDelta, data_type, (*self._path, "valueDelta"))
        buffer = self._buffer(given.valueCount, data_type)
        array = np.frombuffer(buffer, numpy_type(data_type))
        first, step = _stored([start, delta], data_type).astype(array.dtype)
        if data_type is DataType.FLOAT16:
            self._fill_halves(array, first, step)
        elif len(array):
            array[0], array[1:] = first, step
            for start in range(0, len(array), _ADDED):
                self._memory.ensure_open()
                some = array[max(start - 1, 0) : start + _ADDED]
                with np.errstate(all="ignore"):
                    np.add.accumulate(some, dtype=array.dtype, out=some)
        return buffer

    def _fill_halves(self, array: Array, value: Any, step: Any) -> None:
        """FLOAT16 sums are truncated, which is no addition of NumPy's. There are few of them before they stay."""
        for place in range(len(array)):
            array[place] = value
            with np.errstate(all="ignore"):
                following = truncated(np.float32(value) + np.float32(step)).astype(np.float16)
            if following == value or np.isnan(following):
                array[place + 1 :] = following
                return
            value = following

    def _validated(self, kind: type[P], document: dict[str, Any]) -> P:
        try:
            return validate(kind, document)
        except ContractError as error:
            raise error.below(*self._path) from None

    def _buffer(self, count: int, data_type: DataType) -> Buffer:
        return self._bytes(count * data_type.bytes)

    def _bytes(self, size: int) -> Buffer:
        if not size:
            raise refused(self._path, "initialValues must be non-empty.", 0, ">= 1 element")
        if size > self._most:
            raise LimitExceeded("max_tensor_bytes", "Bytes of initialValues", size, self._most, self._path)
        return self._memory.buffer(size)


def number(value: object, data_type: DataType, path: Path) -> int | float:
    """A number as DxDispatch's parser takes it for an element of `data_type`. Raises ContractError."""
    if data_type.value.startswith("FLOAT"):
        if isinstance(value, str) and value.lower() in _SPECIAL:
            return _SPECIAL[value.lower()]
        if isinstance(value, float):
            return value
        if type(value) is int:
            try:
                made = float(value)
            except OverflowError:
                made = math.inf
            # Those that are wider than 64 bits are doubles to the parser from the beginning.
            if math.isfinite(made) and (int(made) == value or not -(1 << 63) <= value < 1 << 64):
                return made
        raise refused(
            path,
            f"{called(path)} must be a number that double precision has, or one of the strings nan, inf and -inf.",
            abbreviate(value),
            'a number, "nan", "inf" or "-inf"',
        )
    bits = data_type.bits
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if data_type.value.startswith("I") else (0, (1 << bits) - 1)
    if type(value) is not int or not least <= value <= most:
        raise refused(
            path,
            f"{called(path)} must be an integer from {least} to {most}, since it is {data_type}.",
            abbreviate(value),
            f"{least} to {most}",
        )
    return value


def _stored(values: list[int | float], data_type: DataType) -> Array:
    """`values` rounded to `data_type`, as the parser casts them."""
    if not data_type.value.startswith("FLOAT"):
        return np.array(values, numpy_type(data_type))
    with np.errstate(all="ignore"):
        doubles = np.array(values, np.float64)
        rounded = truncated(doubles.astype(np.float32)) if data_type is DataType.FLOAT16 else doubles
        return rounded.astype(numpy_type(data_type))


def truncated(floats: Any) -> Any:
    """float32 numbers that FLOAT16 has, each the next one toward zero, or infinite."""
    floats = np.asarray(floats, np.float32)
    with np.errstate(all="ignore"):
        halves = floats.astype(np.float16)
        too_far = np.abs(halves.astype(np.float32)) > np.abs(floats)
        halves = np.where(too_far & (np.abs(floats) < _HALF_END), np.nextafter(halves, np.float16(0)), halves)
    return halves.astype(np.float32)


def shown(data: Buffer, data_type: DataType, verbose: bool, memory: MemoryShare) -> str:
    """`data`, packed elements, as C++'s streams print them: 6 significant digits, 8-bit integers as characters.

    `verbose`: each on a line of its own, with its index and its bits. Memory is for the caller to take.
    """
    array = np.frombuffer(data, numpy_type(data_type))
    bits = np.frombuffer(data, f"<u{data_type.bytes}")
    width, digits = len(str(len(array))), 2 * data_type.bytes
    lines: list[str] = []
    for start in range(0, len(array), _STEP):
        memory.ensure_open()
        texts = _texts(array[start : start + _STEP], data_type)
        if verbose:
            raw = bits[start : start + _STEP].tolist()
            texts = [
                f"[{start + place:{width}}] {text} (0x{raw[place]:{digits}X})\n" for place, text in enumerate(texts)
            ]
        lines += texts
    return "".join(lines) if verbose else ", ".join(lines)


def _texts(array: Array, data_type: DataType) -> list[str]:
    if data_type.value.startswith("FLOAT"):
        return [f"{each:.6g}" for each in array.tolist()]
    if data_type.bits == 8:
        return [chr(each) for each in array.view(np.uint8).tolist()]
    return [str(each) for each in array.tolist()]
