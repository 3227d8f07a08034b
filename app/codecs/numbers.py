"""Tensor data as JSON numbers, in one list or nested as the tensor's sizes are.

The text is never parsed as a whole: its brackets are compared with those that the sizes ask for, and the numbers are
read in pieces, so that a big tensor takes hardly more memory than its text and its elements.
"""

import contextlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from app.codecs.codec import Piece
from app.codecs.structure import Unreadable
from app.contract.constants import DataType
from app.contract.suggestions import did_you_mean
from app.contract.tensors import MAX_RANK, TensorDesc, tensor_name
from app.contract.violations import ContractError, Path, refused
from app.memory.accounts import MemoryShare
from app.memory.arrays import apart, numpy_type, together
from app.memory.buffers import Buffer

_BLOCK = 1 << 16
"""Bytes of text that are looked at, or read, at a time."""

_COST = 32
"""Bytes that a byte of a block's text may come to while it is read: lists of Python's numbers, and arrays of them."""

_WRITTEN = 1 << 15
"""Elements that are written at a time."""

_LONGEST = 26
"""Bytes of text that an element may come to, its comma included."""

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""What JSON has no number for, as strings."""

_SPECIAL_TEXT = re.compile(rb'"(?:NaN|-?Infinity)"')
_NUMBER = b"+-.0123456789Ee"
_SPACE = b" \t\r\n"
_AS_DIGIT = bytes.maketrans(_NUMBER, b"0" * len(_NUMBER))
_STRAY = re.compile(rb"[^-+.0-9eE\s,\[\]]")
_FRACTION = b".eE"
_ENDS = re.compile(rb"[\s,\[\]]")
_DIGITS = b"0123456789"
_BRACKETS = np.frombuffer(b"],[", np.uint8)


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
        return ["numbers", *(f'"{name}"' for name in _SPECIAL)] if self.has_specials else ["numbers"]

    def refused(self, message: str, given: object = None, allowed: object = None) -> ContractError:
        return refused(self.path, message, given, allowed)


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
        return _shape(
            Elements(tensor_name(path), path, DataType.FLOAT32, "number", has_specials=True), self.text, memory
        )

    def split(self, path: Path, memory: MemoryShare) -> list["Numbers"]:
        """The lists in this list. Raises ContractError if anything else is in it, RequestOver."""
        places = list(_inner(self.text, memory))
        stops, starts = [0, *(stop for _, stop in places)], [*(start for start, _ in places), len(self.text)]
        between = [bytes(self.text[stop:start]).strip() for stop, start in zip(stops, starts, strict=True)]
        if places and between != [b"[", *[b","] * (len(places) - 1), b"]"]:
            name = tensor_name(path)
            raise refused(path, f"Data of {name} must be a list, with those of each of its tensors.", None, "a list")
        return [Numbers(self.text[start:stop]) for start, stop in places]


def shape_in_json(desc: TensorDesc) -> list[int]:
    """How lists of numbers nest that are the data of a tensor: as its sizes do, and not at all if it has strides."""
    return list(desc.Sizes) if desc.is_packed else [desc.data_bytes * 8 // desc.DataType.bits]


def read_numbers(elements: Elements, text: Buffer, shape: Sequence[int], memory: MemoryShare) -> Buffer:
    """The elements that `text`, a JSON array, lists. Raises ContractError, Unreadable, LimitExceeded, RequestOver."""
    count, dtype = math.prod(shape), elements.dtype
    buffer = memory.buffer(count * dtype.itemsize)
    with memory.passing(_COST * min(len(text), _BLOCK)):
        _check_brackets(elements, text, shape, memory)
        result = np.frombuffer(buffer, dtype)
        position = 0
        if dtype.kind in "iu":
            for block in _blocks(elements, text, memory):
                if _has(block, _FRACTION + b'"'):
                    place = min(place for byte in _FRACTION + b'"' if (place := block.find(byte)) >= 0)
                    value = _value(block, place)
                    raise elements.refused(
                        f"Data of {elements.name} hold {value}; {elements.called} takes whole numbers.",
                        _plain(value),
                        elements.takes,
                    )
        for block in _blocks(elements, text, memory):
            try:
                values = orjson.loads(b"[%b]" % block.translate(None, b"[]").removesuffix(b","))
            except orjson.JSONDecodeError as error:
                raise Unreadable(f"Data of {elements.name} are not JSON numbers: {error}.") from None
            if values:
                result[position : position + len(values)] = _converted(elements, values, b'"' in block)
                position += len(values)
    if position != count:
        raise Unreadable(f"Data of {elements.name} are not JSON numbers: there is a comma without a number.")
    if elements.data_type.bits < 8:
        packed = together(result)
        buffer[: packed.size] = packed.data
        buffer = buffer[: packed.size]
    return buffer


def write_numbers(name: str, data: Buffer, data_type: DataType, memory: MemoryShare) -> Iterator[Piece]:
    """`data` as a JSON array, in pieces. Raises ContractError for what JSON has no number for."""
    elements = np.frombuffer(data, numpy_type(data_type))
    for piece in _written(elements, memory):
        if b"null" in piece:
            raise refused(
                ("outputs", name),
                f"{name} holds infinity or NaN, which JSON has no number for; ask for binary_data.",
            )
        yield piece


def write_nested(data: Buffer, desc: TensorDesc, memory: MemoryShare) -> Iterator[Piece]:
    """`data` as JSON arrays that nest as `shape_in_json` says, with strings for NaN and infinity, in pieces."""
    shape = shape_in_json(desc)
    if desc.DataType.bits < 8:
        array = apart(np.frombuffer(data, np.uint8), desc.DataType, math.prod(shape))
    else:
        array = np.frombuffer(data, numpy_type(desc.DataType))
    if array.dtype.itemsize == 2 and array.dtype.kind == "f":
        array = array.astype(np.float32)  # orjson's are the shortest that are read as the same float32
    for piece, part in _pieces(array.reshape(shape), memory):
        yield _with_specials(piece, part) if b"null" in piece else piece


def _written(array: np.ndarray[Any, np.dtype[Any]], memory: MemoryShare) -> Iterator[bytes]:
    return (piece for piece, _ in _pieces(array, memory))


def _pieces(
    array: np.ndarray[Any, np.dtype[Any]], memory: MemoryShare
) -> Iterator[tuple[bytes, np.ndarray[Any, np.dtype[Any]]]]:
    """`array` as JSON arrays, in pieces, each with the elements that are in it. The memory of the text is taken."""
    inner = array[0].size
    if inner > _WRITTEN:
        for place, part in enumerate(array):
            yield b"," if place else b"[", part[:0]
            yield from _pieces(part, memory)
    else:
        rows = max(_WRITTEN // inner, 1)
        for start in range(0, len(array), rows):
            memory.ensure_open()
            part = array[start : start + rows]
            with memory.passing(_LONGEST * part.size):
                text = orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)
                memory.take(len(text))
            yield (b"," if start else b"[") + text[1:-1], part
    yield b"]", array[:0]


def _with_specials(text: bytes, part: np.ndarray[Any, np.dtype[Any]]) -> bytes:
    """`text` of `part`, with strings for what is null in it."""
    values = part.reshape(-1)
    names = [
        b'"NaN"' if each != each else b'"Infinity"' if each > 0 else b'"-Infinity"'
        for each in values[~np.isfinite(values)].tolist()
    ]
    first, *others = text.split(b"null")
    return b"".join((first, *(each for pair in zip(names, others, strict=True) for each in pair)))


def _blocks(elements: Elements, text: Buffer, memory: MemoryShare) -> Iterator[bytes]:
    """`text` cut behind commas, with numbers for true and false. Raises Unreadable, RequestOver."""
    start = 0
    while start < len(text):
        memory.ensure_open()
        block = bytes(text[start : start + _BLOCK])
        if start + len(block) < len(text):
            block = block[: block.rfind(b",") + 1]
            if not block:
                raise Unreadable(
                    f"Data of {elements.name} are not JSON numbers: there are {_BLOCK} bytes without a comma."
                )
        start += len(block)
        if elements.has_booleans:
            block = block.replace(b"true", b"1").replace(b"false", b"0")
        yield block


def _skeleton(elements: Elements, block: bytes) -> tuple[bytes, bytes]:
    """The brackets and commas of `block`, and `block` with a number for each string that is one. Raises ContractError
    for what is no number."""
    if elements.has_specials and b'"' in block:
        block = _SPECIAL_TEXT.sub(b"0", block)
    skeleton = block.translate(None, _NUMBER + _SPACE)
    if skeleton.translate(None, b"[],") and (stray := _STRAY.search(block)):
        value, takes = _value(block, stray.start()), elements.takes
        words = " or ".join(filter(None, (", ".join(takes[:-1]), takes[-1])))
        raise elements.refused(
            f"Data of {elements.name} hold {value}; they must be {words}.{did_you_mean(value, takes)}",
            _plain(value),
            takes,
        )
    return skeleton, block


def _check_brackets(elements: Elements, text: Buffer, shape: Sequence[int], memory: MemoryShare) -> None:
    """Raise unless `text` has the brackets and commas of one list, or of lists nested as `shape` is."""
    name, count, commas, has_digits = elements.name, math.prod(shape), 0, False
    expected: _Skeleton | None = None
    is_expected = True
    for each in _blocks(elements, text, memory):
        skeleton, block = _skeleton(elements, each)
        has_digits = has_digits or _has(block, _DIGITS)
        commas += _commas(skeleton)
        if commas > count + _BLOCK:  # whatever follows
            raise elements.refused(
                f"Data of {name} are more than {commas} values; shape {list(shape)} takes {count}.", commas, count
            )
        if expected is None:
            is_nested = len(shape) > 1 and skeleton.startswith(b"[" * len(shape))
            expected = _Skeleton(shape if is_nested else [count])
        is_expected = is_expected and expected.goes_on(skeleton) and _are_inside(block.translate(_AS_DIGIT, _SPACE))
    given = commas + 1 if has_digits else 0
    if given != count or not is_expected or expected is None or not expected.is_closed:
        takes = f"shape {list(shape)} takes {count}, in one list or in lists nested as the shape is"
        if elements.is_flat:
            takes = f"of a tensor with strides its buffer's {count} are given, in one list as they lie there"
        raise elements.refused(
            f"Data of {name} are {given} values{' in other lists' if given == count else ''}; {takes}.",
            given,
            count,
        )


def _shape(elements: Elements, text: Buffer, memory: MemoryShare) -> list[int]:
    """The sizes of lists that nest evenly: the first list of each depth tells its length, which all others have."""
    with memory.passing(2 * len(text)):
        skeleton = b"".join([_skeleton(elements, block)[0] for block in _blocks(elements, text, memory)])
        depth = len(skeleton) - len(skeleton.lstrip(b"["))
        if depth > MAX_RANK:
            raise elements.refused(
                f"Data of {elements.name} are lists {depth} deep; a tensor has at most {MAX_RANK} dimensions.",
                depth,
                MAX_RANK,
            )
        shape: list[int] = []
        unit = 0  # length of an element of the list that is looked at
        for level in range(1, depth + 1):
            start = depth - level + 1
            end = skeleton.find(b"]" * level)
            inside = (len(skeleton) if end < 0 else end + level - 1) - start
            shape.insert(0, max(-(-(inside + 1) // (unit + 1)), 1))
            unit = inside + 2
        expected, passed, start = _Skeleton(shape), 0, 0
        while start < len(skeleton):
            memory.ensure_open()
            stop = start + _BLOCK
            if stop < len(skeleton):
                stop = skeleton.rfind(b",", start, stop) + 1 or stop  # without a comma it is no such list anyway
            block = skeleton[start:stop]
            if not expected.goes_on(block):
                raise _ragged(elements, shape, passed, block, expected.text)
            passed += _commas(block)
            start = stop
        if passed + 1 != math.prod(shape):
            raise _ragged(elements, shape, passed, b"", b"")
    return shape


def _ragged(elements: Elements, shape: Sequence[int], passed: int, given: bytes, expected: bytes) -> ContractError:
    """The refusal of lists that nest otherwise than `shape` says: first where `given` is not `expected`."""
    pairs = zip(given, expected, strict=False)
    place = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(given), len(expected)))
    number = passed + given.count(b",", 0, place)
    path: list[int] = []
    for axis in range(len(shape)):
        index, number = divmod(number, math.prod(shape[axis + 1 :]))
        path.append(index)
    if not given.startswith(b"[", place):
        path.pop()  # not an element is otherwise, but the list that it is in
    where = f"{elements.name}{''.join(f'[{index}]' for index in path)}"
    return elements.refused(
        f"Data of {elements.name} are ragged: {where} is not as long or not as deep as what comes before it.",
        where,
        "lists of equal length",
    )


def _inner(text: Buffer, memory: MemoryShare) -> Iterator[tuple[int, int]]:
    """Where in `text`, a list of lists, each of these begins and ends."""
    depth, begin = 0, -1
    for start in range(0, len(text), _BLOCK):
        memory.ensure_open()
        block = np.frombuffer(text[start : start + _BLOCK], np.uint8)
        steps = (block == ord("[")).astype(np.int8) - (block == ord("]"))
        (places,) = np.nonzero(steps)
        depths = depth + np.cumsum(steps[places], dtype=np.int64)
        for place in np.flatnonzero((depths == 1) | ((depths == 2) & (steps[places] > 0))).tolist():
            at = start + int(places[place])
            if steps[places[place]] > 0 and depths[place] == 2:
                begin = at
            elif steps[places[place]] < 0 and depths[place] == 1 and begin >= 0:
                yield begin, at + 1
                begin = -1
        depth = int(depths[-1]) if len(depths) else depth


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
        self.text = b""
        """What was to come in the last block."""

    def goes_on(self, skeleton: bytes) -> bool:
        """Whether these are the next ones, up to a comma or to the end."""
        count = _commas(skeleton)
        if not self._sizes:
            self.text = self._opening + b"," * count
            self._opening = b"" if count else self._opening
            self.is_closed = not skeleton.endswith(b",")
            if self.is_closed:
                self.text += b"]"
            return skeleton == self.text
        places = np.arange(self._passed + 1, self._passed + count + 1)
        self._passed += count
        inner = np.zeros(count, np.int64)  # lists that end before the comma and begin behind it
        for size in self._sizes:
            inner += places % size == 0
        each = np.stack([inner, np.ones_like(inner), inner], axis=1).ravel()
        self.text = self._opening + np.repeat(np.tile(_BRACKETS, count), each).tobytes()
        if skeleton.endswith(b","):
            self._opening = b"[" * int(inner[-1])
            self.text = self.text.removesuffix(self._opening)
        else:
            self.is_closed = True
            self.text += b"]" * self._depth
        return skeleton == self.text


def _converted(elements: Elements, values: list[Any], has_specials: bool) -> np.ndarray[Any, np.dtype[Any]]:
    """`values` as elements. Raises ContractError for those that are none."""
    dtype = elements.dtype
    if dtype.kind == "f":
        if has_specials:
            values = [_SPECIAL[each] if isinstance(each, str) else each for each in values]
        with np.errstate(over="ignore"):
            wide = np.array(values, np.float64)
            result = wide.astype(dtype)
        if np.isfinite(result).all() or (has_specials and (np.isfinite(result) | ~np.isfinite(wide)).all()):
            return result
        bounds = f"{-np.finfo(dtype).max} to {np.finfo(dtype).max}"
        wrong = values[int(np.argmin(np.isfinite(result) | (~np.isfinite(wide) & has_specials)))]
    else:
        bits, info = elements.data_type.bits, np.iinfo(dtype)
        least, most = (int(each) >> max(8 - bits, 0) for each in (info.min, info.max))
        bounds = "true or false" if elements.has_booleans else f"{least} to {most}"
        if float not in set(map(type, values)):  # else one has more than 64 bits
            with contextlib.suppress(OverflowError):
                result = np.array(values, dtype)
                most = 1 if elements.has_booleans else most
                if (bits >= 8 and not elements.has_booleans) or least <= result.min() <= result.max() <= most:
                    return result
        wrong = next(each for each in values if not (isinstance(each, int) and least <= each <= most))
    raise elements.refused(
        f"Data of {elements.name} hold {wrong}, which is no {elements.called}; that is {bounds}.",
        wrong,
        bounds,
    )


def _value(text: bytes, position: int) -> str:
    """The value in `text` that has something at `position`, for a refusal."""
    start = max(position - 20, 0)
    before = _ENDS.split(text[start:position])[-1]
    after = _ENDS.split(text[position : position + 20])[0]
    return (before + after).decode("ascii", "backslashreplace")


def _plain(text: str) -> object:
    """The value that `text` is in JSON, or the text if it is none."""
    with contextlib.suppress(orjson.JSONDecodeError):
        return orjson.loads(text)
    return text
