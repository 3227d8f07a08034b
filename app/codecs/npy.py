"""application/x-npy: one tensor, as numpy.save writes it. Nothing is unpickled.

Source of the format: NEP 1 and numpy.lib.format, versions 1.0, 2.0 and 3.0.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import NamedTuple

from app.codecs.codec import Body, Encoded, Span
from app.codecs.structure import Unreadable
from app.codecs.tensor_files import FileLimits, FileTensor, cut_short, whole_type
from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.contract.validation import abbreviate, in_words
from app.contract.violations import ContractError, refused
from app.memory.accounts import MemoryShare
from app.memory.arrays import numpy_type
from app.memory.buffers import ALIGNMENT, Buffer

LONGEST_HEADER = 10_000
"""Bytes of the dictionary, of which numpy.load takes no more either."""

OPENING = 12
"""Bytes before the dictionary, at most."""

_MAGIC = b"\x93NUMPY"
_PAIR = re.compile(
    r"""\s*(['"])(descr|fortran_order|shape)\1\s*:\s*"""
    r"""(?:(['"])(?P<descr>[^'"]*)\3|(?P<order>True|False)|\((?P<shape>[\dL,\s]*+)\))\s*(?:,|(?=\}))"""
)
_SIZE = re.compile(r"\s*(\d{1,20})L?\s*")

_TYPES = {numpy_type(each).str: each for each in DataType if each.bits >= 8} | {"|b1": DataType.UINT8}
_SHORT = {"<i1": DataType.INT8, "<u1": DataType.UINT8}


class Header(NamedTuple):
    """What a file says before its data, which are from `length` bytes on."""

    data_type: DataType
    shape: list[int]
    is_fortran: bool
    length: int

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return prod(self.shape) * self.data_type.bytes

    def tensor(self, data: Span) -> FileTensor:
        """The tensor whose `data` are there. One without dimensions has one of one element."""
        sizes = self.shape or [1]
        if not self.is_fortran or len(sizes) == 1:
            return FileTensor(self.data_type, sizes, None, data)
        strides = [prod(sizes[:axis]) for axis in range(len(sizes))]
        return FileTensor(self.data_type, sizes, strides, data)


class Npy:
    """Implements `TensorFormat`."""

    media_type = "application/x-npy"
    expands = False

    def data_start(self, beginning: bytes, length: int) -> int:
        try:
            return _dictionary(beginning)[1]
        except Unreadable:
            return 0

    def read(
        self, body: Body, file: Span, first: str, limits: FileLimits, memory: MemoryShare
    ) -> Mapping[str, FileTensor]:
        view = memoryview(body)[file.start : file.stop]
        header = read_header(bytes(view[: OPENING + LONGEST_HEADER]), first)
        check_size(header, len(view) - header.length)
        return {first: header.tensor(Span(file.start + header.length, file.stop))}

    def write(self, tensors: Mapping[str, tuple[TensorDesc, Buffer]]) -> Encoded:
        ((name, (desc, data)),) = tensors.items()
        header = write_header(name, desc)
        return Encoded(len(header) + data.nbytes, (header, data))


def check_size(header: Header, given: int) -> None:
    """Raise Unreadable unless the data have as many bytes as the header says."""
    if given != header.size:
        raise Unreadable(
            f"The npy file has {given} bytes of data; {header.data_type} {header.shape} are {header.size} bytes."
        )


def read_header(beginning: bytes, name: str) -> Header:
    """What a file that begins like this says of the tensor `name`. Raises Unreadable, and ContractError for what is no
    tensor."""
    text, length = _dictionary(beginning)
    found: dict[str, re.Match[str]] = {}
    position = 1
    while pair := _PAIR.match(text, position):
        if pair[2] in found:
            raise _malformed()
        found[pair[2]] = pair
        position = pair.end()
    if not text.startswith("{") or text[position:].strip() != "}":
        if "'descr': [" in text or '"descr": [' in text:
            raise _no_type(name, "a structure")
        raise _malformed()
    if found.keys() != {"descr", "fortran_order", "shape"}:
        raise _malformed()
    descr, order, shape = found["descr"]["descr"], found["fortran_order"]["order"], found["shape"]["shape"]
    if descr is None or order is None or shape is None:
        raise _malformed()
    data_type = _TYPES.get(descr) or _SHORT.get(descr)
    if data_type is None:
        raise _no_type(name, descr)
    return Header(data_type, _sizes(shape), order == "True", length)


def write_header(name: str, desc: TensorDesc) -> bytes:
    """All before the data of a packed tensor, which thereby begin at a multiple of 64 bytes."""
    return _written(numpy_type(whole_type(name, desc, "npy")).str, tuple(desc.Sizes))


@lru_cache(1024)
def _written(kind: str, sizes: tuple[int, ...]) -> bytes:
    shape = "".join(f"{size}, " for size in sizes)
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}".encode()
    before = len(_MAGIC) + 4
    text = text.ljust(-(-(before + len(text) + 1) // ALIGNMENT) * ALIGNMENT - before - 1) + b"\n"
    return _MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text


def _dictionary(beginning: bytes) -> tuple[str, int]:
    """The text of a file's dictionary, and where it ends. Raises Unreadable."""
    if not beginning.startswith(_MAGIC):
        raise Unreadable("The file is no npy file: it does not begin with \\x93NUMPY.")
    major, minor = beginning[6:7], beginning[7:8]
    if major not in (b"\x01", b"\x02", b"\x03") or minor != b"\x00":
        raise Unreadable("The npy file has another version than 1.0, 2.0 or 3.0.")
    start = 10 if major == b"\x01" else OPENING
    length = int.from_bytes(beginning[8:start], "little")
    if length > LONGEST_HEADER:
        raise Unreadable(f"The header of the npy file has {length} bytes; it may have {LONGEST_HEADER}.")
    text = beginning[start : start + length]
    if len(beginning) < start + length:
        raise cut_short("the header of npy")
    try:
        return text.decode("utf-8" if major == b"\x03" else "latin-1"), start + length
    except UnicodeDecodeError:
        raise Unreadable("The header of the npy file is not UTF-8.") from None


def _sizes(text: str) -> list[int]:
    """The numbers of a tuple, each with a comma behind it but for the last of several."""
    parts = text.split(",")
    if not parts[-1].strip():
        parts.pop()
    elif len(parts) == 1:
        raise _malformed()  # a number in brackets is no tuple
    sizes = [_SIZE.fullmatch(each) for each in parts]
    if None in sizes:
        raise _malformed()
    return [int(each[1]) for each in sizes if each]


def _malformed() -> Unreadable:
    return Unreadable("The header of the npy file is not a dictionary of descr, fortran_order and shape.")


def _no_type(name: str, descr: str) -> ContractError:
    allowed = list(_TYPES)
    return refused(
        ("inputs", name, "descr"),
        f"descr of {name} is {in_words(descr)}; it must be one of {', '.join(allowed)}: little-endian numbers, and "
        "no objects.",
        abbreviate(descr),
        allowed,
    )
