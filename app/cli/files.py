"""Dispatches of files on a command line, without a server: requests, and tensors of one operator."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from app.codecs.codec import Codec, Decoder, Piece, Span
from app.codecs.npy import Npy
from app.codecs.npz import Npz
from app.codecs.raw import Raw
from app.codecs.safetensors import Safetensors
from app.codecs.tensor_files import EmbeddedFile, FileCodec, Parcel, TensorFormat
from app.contract.violations import refused
from app.http.core.documents import CODECS
from app.http.native.answers import AnswerForm, DocumentForm, FileForm
from app.http.native.attributes import SETTINGS, first_input, read_attributes
from app.http.native.requests import Dispatch
from app.memory.accounts import LimitExceeded
from app.memory.buffers import Buffer
from app.operators.operator import Operator, Role

STANDARD = Path("-")
"""Standard input or output."""

_NPY, _NPZ, _SAFETENSORS, _RAW = Npy(), Npz(), Safetensors(), Raw()
_BY_SUFFIX: Mapping[str, TensorFormat] = {".npy": _NPY, ".npz": _NPZ, ".safetensors": _SAFETENSORS}

_DOCUMENTS = (".json", ".msgpack")

_BLOCK = 1 << 22
_LARGE = 1 << 24
"""Bytes of a file from which on a terminal shows how far it is."""


def sort_arguments(given: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The names and the attributes of a command line, but for flags that are the command's own: `--Alpha 2` and
    `--Alpha=2` are attributes, all else are names. Raises ValueError for one without a value."""
    names: list[str] = []
    attributes: list[tuple[str, str]] = []
    left = iter(given)
    for each in left:
        if not each.startswith("--"):
            names.append(each)
            continue
        name, is_there, value = each[2:].partition("=")
        if not is_there:
            following = next(left, None)
            if following is None:
                raise ValueError(f"--{name} has no value.")
            value = following
        setting = name.replace("-", "_")
        attributes.append((setting if setting in SETTINGS else name, value))
    return names, attributes


def read_file(file: Path, most: int) -> Buffer:
    """What is in a file. Raises OSError, LimitExceeded."""
    (whole,) = read_files([file], most)[1]
    return whole


def read_files(files: Sequence[Path], most: int) -> tuple[Buffer, list[Buffer]]:
    """Files one behind the other, and each of them. Raises OSError, LimitExceeded."""
    if STANDARD in files:
        standard = bytearray()
        while piece := sys.stdin.buffer.read(_BLOCK):
            standard += piece
            _limit(len(standard), most)
    sizes = [len(standard) if file == STANDARD else file.stat().st_size for file in files]
    _limit(sum(sizes), most)
    body = memoryview(bytearray(sum(sizes)))
    parts: list[Buffer] = []
    start = 0
    for file, size in zip(files, sizes, strict=True):
        part = body[start : start + size]
        start += size
        parts.append(part)
        if file == STANDARD:
            part[:] = standard
            continue
        with file.open("rb") as opened, _shown(f"Reading {file.name}", size) as shown:
            filled = 0
            while filled < size and (count := opened.readinto(part[filled : filled + _BLOCK])):
                filled += count
                shown.update(shown.task_ids[0], completed=filled)
    return body, parts


def write_file(file: Path, pieces: Sequence[Piece]) -> None:
    """Raises OSError."""
    if file == STANDARD:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    size = sum(map(len, pieces))
    with file.open("wb") as opened, _shown(f"Writing {file.name}", size) as shown:
        for piece in pieces:
            for begin in range(0, len(piece), _BLOCK):
                shown.advance(shown.task_ids[0], opened.write(piece[begin : begin + _BLOCK]))


def document_codec(file: Path, body: Buffer) -> Decoder:
    """Of a file by its name, and of standard input by how it begins: as no JSON does, if it is a map in MessagePack."""
    if file == STANDARD:
        is_map = len(body) > 0 and (body[0] >> 4 == 0x8 or body[0] in (0xDE, 0xDF))
        return CODECS["application/msgpack" if is_map else "application/json"]
    return _document(file)


def file_codec(
    operator: type[Operator],
    attributes: Sequence[tuple[str, str]],
    named: Mapping[str, Buffer],
    unnamed: Sequence[Buffer],
    most: int,
) -> Decoder:
    """The codec of files of tensors that lie one behind the other, those of `named` first. Raises ContractError."""
    document = read_attributes(operator, attributes)
    names = [name for name in operator.tensor_names(Role.INPUT) if name not in named] if named else []
    names = names or [first_input(operator)]
    if len(unnamed) > len(names):
        raise refused(
            ("inputs",), f"{len(unnamed)} files have no name; give them as --input NAME=FILE.", len(unnamed), len(names)
        )
    has_layout = any(name.rpartition(".")[2] in ("Sizes", "DataType") for name, _ in attributes)
    parts: list[EmbeddedFile] = []
    start = 0
    for name, each in [*named.items(), *zip(names, unnamed, strict=False)]:
        parts.append(EmbeddedFile(_format(name, each, has_layout), Span(start, start + len(each)), name))
        start += len(each)
    return FileCodec(Parcel(parts), "files", document, first_input(operator), most)


def answer_form(file: Path, dispatch: Dispatch, is_of_files: bool) -> AnswerForm:
    """How an answer is saved: by the file's name, else a document for a document and tensors for tensors."""
    several = len(dispatch.prepared.work.outputs) > 1
    found = _BY_SUFFIX.get(file.suffix)
    if found is None and file.suffix not in ("", *_DOCUMENTS):
        endings = [*_BY_SUFFIX, *_DOCUMENTS]
        raise refused(
            ("output",), f"{file} says no form; have it end with {' or '.join(endings)}.", file.suffix, endings
        )
    if found is None and is_of_files and file.suffix not in _DOCUMENTS:
        found = _NPZ if several else _NPY
    if found is _NPY and several:
        raise refused(
            ("output",), f"{file} is for one tensor; there are several outputs, so give a .npz file.", str(file)
        )
    return DocumentForm(_document(file)) if found is None else FileForm(found)


def _document(file: Path) -> Codec:
    return CODECS["application/msgpack" if file.suffix == ".msgpack" else "application/json"]


def _format(name: str, file: Buffer, has_layout: bool) -> TensorFormat:
    """By how the file begins."""
    beginning = bytes(file[:9])
    if beginning.startswith(b"\x93NUMPY"):
        return _NPY
    if beginning.startswith(b"PK"):
        return _NPZ
    if has_layout:
        return _RAW
    if beginning[8:] == b"{":
        return _SAFETENSORS
    raise refused(
        ("inputs", name),
        f"The file for {name} is neither npy nor npz nor safetensors; of bare elements give --Sizes and --DataType.",
    )


def _limit(size: int, most: int) -> None:
    if size > most:
        raise LimitExceeded("max_body_bytes", "Bytes of the file", size, most)


def _is_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def _shown(what: str, size: int) -> Iterator[Progress]:
    """A bar on standard error, where that is a terminal and the file is large."""
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    is_hidden = size < _LARGE or not _is_terminal()
    console = Console(stderr=True, quiet=is_hidden)  # rich before 14.1 ends a bar that is not shown with a line, too
    with Progress(*columns, console=console, transient=True, disable=is_hidden) as progress:
        progress.add_task(what, total=size)
        yield progress
