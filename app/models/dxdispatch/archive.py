"""Zip archives with a model and the files that it names, read from memory, one member when it is asked for."""

import io
import zipfile
import zlib
from collections.abc import Mapping

from app.codecs.codec import Body
from app.codecs.structure import SEARCHED, Unreadable
from app.contract.validation import abbreviate, in_words
from app.memory.accounts import LimitExceeded, MemoryShare
from app.memory.buffers import Buffer
from app.models.dxdispatch.files import within

MOST_MEMBERS = 4096
_HEADER = b"PK\x01\x02"
"""What each member's entry in the directory begins with."""

_PIECE = 1 << 18
_HELD = 1 << 11
"""Bytes that a member takes while it is known, beside its name and its extra field."""

_NAMES = 1 << 17
"""Bytes of both at most."""


class _Body(io.RawIOBase):
    """A body as a file to read."""

    def __init__(self, body: Body) -> None:
        self._view = memoryview(body)
        self._place = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        place = offset + (0, self._place, len(self._view))[whence]
        if place < 0:
            raise OSError("before the beginning")  # which is what zipfile expects
        self._place = place
        return place

    def tell(self) -> int:
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        stop = len(self._view) if size is None or size < 0 else self._place + size
        piece = bytes(self._view[self._place : stop])
        self._place += len(piece)
        return piece


class ZipMember:
    """Implements `Member`."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self._archive = archive
        self._info = info

    def read(self, most: int, limit: str, memory: MemoryShare) -> Buffer:
        info = self._info
        name = abbreviate(info.filename)
        if info.file_size > most:
            raise LimitExceeded(limit, f"Bytes of {name}", info.file_size, most)
        if info.flag_bits & 1:
            raise Unreadable(f"{name} in the zip is encrypted; send it as it is.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Unreadable(f"{name} in the zip is neither stored nor deflated; compress it in one of these ways.")
        buffer = memory.buffer(info.file_size)
        filled = 0
        try:
            with memory.passing(_PIECE * 3), self._archive.open(info) as file:
                while piece := file.read(_PIECE):
                    memory.ensure_open()
                    buffer[filled : filled + len(piece)] = piece  # there are no more than the zip says
                    filled += len(piece)
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            OSError,
            ValueError,
            NotImplementedError,
            RuntimeError,
        ) as why:
            raise Unreadable(f"{name} in the zip cannot be read: {why}.") from None
        if filled < len(buffer):
            raise Unreadable(f"{name} in the zip is shorter than the zip says.")
        return buffer


def members(body: Body, memory: MemoryShare) -> Mapping[str, ZipMember]:
    """The files of the zip that is `body`, by path. Raises Unreadable, LimitExceeded, MemoryExhausted, RequestOver."""
    count = _count(body, memory)
    memory.take(_HELD * count + min(4 * len(body), _NAMES * count))
    try:
        archive = zipfile.ZipFile(_Body(body))
        infos = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, UnicodeError) as error:
        raise Unreadable(f"The body is not a zip archive: {error}.") from None
    found: dict[str, ZipMember] = {}
    for info in infos:
        if info.is_dir():
            continue
        try:
            name = str(within(info.filename))
        except ValueError as error:
            raise Unreadable(f"The zip has a file that it must not have: {error}.") from None
        if name in found:
            raise Unreadable(f"The zip has {in_words(name)} twice; put it in once.")
        found[name] = ZipMember(archive, info)
    return found


def _count(body: Body, memory: MemoryShare) -> int:
    """How many members there may be. Of many, their names alone would take more memory than anybody accounts for."""
    view, count = memoryview(body), 0
    for start in range(0, len(view), SEARCHED):
        memory.ensure_open()
        count += bytes(view[start : start + SEARCHED + len(_HEADER) - 1]).count(_HEADER)
        if count > MOST_MEMBERS:
            raise Unreadable(f"The zip has more than {MOST_MEMBERS} files; send those that the model names.")
    return count
