"""application/x-safetensors: tensors by name. Source of the format: the README of huggingface/safetensors."""

import json
from collections.abc import Mapping
from math import prod
from typing import Any

import orjson

from app.codecs.codec import Body, Encoded, Span
from app.codecs.structure import PARSED, Unreadable, characters, object_of, too_long
from app.codecs.tensor_files import FileLimits, FileTensor, cut_short, whole_type
from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.contract.validation import abbreviate, in_words
from app.contract.violations import refused
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer

_LENGTH = 8
_MOST_COUNTS = 64
_METADATA = "__metadata__"
_LETTERS = {"FLOAT": "F", "INT": "I", "UINT": "U"}
_NAMES = {each: f"{_LETTERS[each.value.rstrip('0123456789')]}{each.bits}" for each in DataType if each.bits >= 8}
_TYPES = {name: each for each, name in _NAMES.items()} | {"BOOL": DataType.UINT8}
_MEMBERS = {"dtype", "shape", "data_offsets"}


class Safetensors:
    """Implements `TensorFormat`."""

    media_type = "application/x-safetensors"
    expands = False

    def data_start(self, beginning: bytes, length: int) -> int:
        start = _LENGTH + int.from_bytes(beginning[:_LENGTH], "little")
        return start if len(beginning) >= _LENGTH and start < length else 0

    def read(
        self, body: Body, file: Span, first: str, limits: FileLimits, memory: MemoryShare
    ) -> Mapping[str, FileTensor]:
        view = memoryview(body)[file.start : file.stop]
        length = int.from_bytes(view[:_LENGTH], "little")
        if length > limits.max_structure_bytes and len(view) > limits.max_structure_bytes:
            raise too_long(limits.max_structure_bytes)
        if _LENGTH + length > len(view):
            raise cut_short("the header of safetensors")
        memory.take(PARSED * length)
        header = _header(bytes(view[_LENGTH : _LENGTH + length]))
        start = file.start + _LENGTH + length
        tensors = {
            characters(name): _tensor(name, each, start, file.stop)
            for name, each in header.items()
            if name != _METADATA
        }
        end = start
        for data in sorted((each.data for each in tensors.values() if isinstance(each.data, Span)), key=_place):
            if data.start != end:
                raise Unreadable("The tensors of the safetensors file overlap, or something is between them.")
            end = data.stop
        if end != file.stop:
            raise Unreadable(f"The safetensors file goes on for {file.stop - end} bytes behind its tensors.")
        return tensors

    def write(self, tensors: Mapping[str, tuple[TensorDesc, Buffer]]) -> Encoded:
        header: dict[str, Any] = {}
        end = 0
        ordered = sorted(tensors.items(), key=lambda item: -item[1][0].DataType.bits)  # so that each is aligned
        for name, (desc, data) in ordered:
            dtype = _NAMES[whole_type(name, desc, "safetensors")]
            header[name] = {"dtype": dtype, "shape": desc.Sizes, "data_offsets": [end, end + data.nbytes]}
            end += data.nbytes
        text = orjson.dumps(header)
        text = text.ljust(-(-len(text) // _LENGTH) * _LENGTH)
        opening = len(text).to_bytes(_LENGTH, "little") + text
        return Encoded(len(opening) + end, [opening, *(data for _, (_, data) in ordered)])


def _place(span: Span) -> tuple[int, int]:
    return span.start, span.stop


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode(), object_pairs_hook=object_of)
    except (ValueError, RecursionError):  # what is no UTF-8 and no JSON are ValueErrors
        raise Unreadable("The header of the safetensors file is not JSON.") from None
    if not isinstance(header, dict):
        raise Unreadable("The header of the safetensors file is not an object.")
    return header


def _tensor(name: str, entry: Any, start: int, stop: int) -> FileTensor:
    """A tensor of a file whose data are from `start` to `stop`. Raises Unreadable, and ContractError for its type."""
    if not isinstance(entry, dict) or entry.keys() != _MEMBERS:
        raise Unreadable(f"{in_words(name)} in the safetensors file has not dtype, shape and data_offsets alone.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    data_type = _TYPES.get(dtype) if isinstance(dtype, str) else None
    if data_type is None:
        raise refused(
            ("inputs", name, "dtype"),
            f"dtype of {in_words(name)} is {in_words(dtype)}; it must be one of {', '.join(_TYPES)}.",
            abbreviate(dtype),
            list(_TYPES),
        )
    if not (_are_counts(shape) and _are_counts(offsets) and len(offsets) == 2):
        raise Unreadable(f"shape or data_offsets of {in_words(name)} in the safetensors file are no lists of counts.")
    begin, end = offsets
    if not begin <= end <= stop - start:
        raise Unreadable(f"data_offsets of {in_words(name)} in the safetensors file lie beyond its end.")
    if end - begin != prod(shape) * data_type.bytes:
        raise Unreadable(
            f"{in_words(name)} in the safetensors file has {end - begin} bytes; its shape and dtype ask for others."
        )
    return FileTensor(data_type, shape or [1], None, Span(start + begin, start + end))


def _are_counts(values: object) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= _MOST_COUNTS
        and all(type(each) is int and 0 <= each < 1 << 64 for each in values)
    )
