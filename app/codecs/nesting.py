"""How lists of JSON numbers nest: their brackets are compared with those that a tensor's sizes ask for."""

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from app.codecs.number_text import BLOCK, NUMBER, SPACE, Elements, blocks, has, skeleton_of
from app.contract.tensors import MAX_RANK, TensorDesc
from app.contract.violations import ContractError
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer

_NOTHING = re.compile(rb"[\[\s]*+\]")
"""How a list begins whose first list, or itself, is empty."""

_AS_DIGIT = bytes.maketrans(NUMBER, b"0" * len(NUMBER))
_DIGITS = b"0123456789"
_BRACKETS = np.frombuffer(b"],[", np.uint8)


def shape_in_json(desc: TensorDesc) -> list[int]:
    """How lists of numbers nest that are the data of a tensor: as its sizes do, and not at all if it has strides."""
    return list(desc.Sizes) if desc.is_packed else [desc.reach]


def check_brackets(elements: Elements, text: Buffer, shape: Sequence[int], memory: MemoryShare) -> None:
    """Raise unless `text` has the brackets and commas of one list, or of lists nested as `shape` is."""
    name, count, commas, has_digits = elements.name, math.prod(shape), 0, False
    expected: Nesting | None = None
    is_expected = True
    for each in blocks(elements, text, memory):
        skeleton, block = skeleton_of(elements, each)
        has_digits = has_digits or has(block, _DIGITS)
        commas += _commas(skeleton)
        if commas > count + BLOCK:  # whatever follows
            raise elements.refused(
                f"Data of {name} are more than {commas} values; shape {list(shape)} takes {count}.", commas, count
            )
        if expected is None:
            is_nested = len(shape) > 1 and skeleton.startswith(b"[" * len(shape))
            expected = Nesting(shape if is_nested else [count])
        is_expected = is_expected and expected.goes_on(skeleton) and _are_inside(block.translate(_AS_DIGIT, SPACE))
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


def shape_of(elements: Elements, text: Buffer, memory: MemoryShare) -> list[int]:
    """The sizes of lists that nest evenly: the first list of each depth tells its length, which all others have."""
    with memory.passing(2 * len(text)):
        skeleton = b"".join([skeleton_of(elements, block)[0] for block in blocks(elements, text, memory)])
        depth = len(skeleton) - len(skeleton.lstrip(b"["))
        if depth > MAX_RANK:
            raise elements.refused(
                f"Data of {elements.name} are lists {depth} deep; a tensor has at most {MAX_RANK} dimensions.",
                depth,
                MAX_RANK,
            )
        if _NOTHING.match(text):
            raise elements.refused(
                f"Data of {elements.name} are an empty list; a tensor has at least one element.", 0, ">= 1"
            )
        shape: list[int] = []
        unit = 0  # length of an element of the list that is looked at
        for level in range(1, depth + 1):
            start = depth - level + 1
            end = skeleton.find(b"]" * level)
            inside = (len(skeleton) if end < 0 else end + level - 1) - start
            shape.insert(0, -(-(inside + 1) // (unit + 1)))
            unit = inside + 2
        expected, passed, start = Nesting(shape), 0, 0
        while start < len(skeleton):
            memory.ensure_open()
            stop = start + BLOCK
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


def inner_lists(text: Buffer, memory: MemoryShare) -> Iterator[tuple[int, int]]:
    """Where in `text`, a list of lists, each of these begins and ends."""
    depth = begin = 0
    for start in range(0, len(text), BLOCK):
        memory.ensure_open()
        block = np.frombuffer(text[start : start + BLOCK], np.uint8)
        steps = (block == ord("[")).astype(np.int8) - (block == ord("]"))
        (places,) = np.nonzero(steps)
        depths = depth + np.cumsum(steps[places], dtype=np.int64)
        opens = steps[places] > 0
        for place in np.flatnonzero(depths == 1 + opens).tolist():
            at = start + int(places[place])
            if opens[place]:
                begin = at
            else:
                yield begin, at + 1
        depth = int(depths[-1]) if len(depths) else depth


class Nesting:
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
            self._opening = b""
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


def _are_inside(digits: bytes) -> bool:
    """Whether numbers, all as 0, are behind opening and before closing brackets."""
    return b"0[" not in digits and b"]0" not in digits


def _commas(skeleton: bytes) -> int:
    return len(skeleton) - len(skeleton.translate(None, b","))  # bytes.count takes its time where there are many
