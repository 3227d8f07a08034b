"""Where a model's files are read from and written to."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Protocol

from app.contract.validation import in_words
from app.memory.accounts import LimitExceeded, MemoryShare
from app.memory.buffers import Buffer

_BLOCK = 1 << 22
"""Bytes that are read from a disk at a time."""

_DRIVE = re.compile(r"[A-Za-z]:")


class Missing(Exception):
    """There is no such file, or it may not be read: says why in a sentence."""


class NotWritten(Exception):
    """A file cannot be written: says why."""


class Files(Protocol):
    """What a model reads and writes. Paths are as the model has them."""

    def read(self, path: str, most: int, limit: str, memory: MemoryShare) -> Buffer:
        """The whole file, in memory of `memory`. Raises Missing, LimitExceeded of `limit` for more than `most` bytes,
        MemoryExhausted, RequestOver."""

    def write(self, path: str, data: Buffer) -> None:
        """Make the file, or make it anew, of what is in `data` now. Raises NotWritten."""


def within(path: str) -> PurePosixPath:
    """`path`, which must not lead out of the folder that it starts from. Raises ValueError."""
    told = path.replace("\\", "/")
    parts = [part for part in told.split("/") if part not in ("", ".")]
    if not parts or told.startswith("/") or _DRIVE.match(told) or ".." in parts or "\0" in told:
        raise ValueError(f"{in_words(path)} does not stay within the folder; give a relative path without '..'")
    return PurePosixPath(*parts)


class FolderFiles:
    """Files on this machine: read beside the model, then in the working directory, as DxDispatch does; written below
    one folder and nowhere else."""

    def __init__(self, sources: Path, target: Path) -> None:
        self._sources = sources
        self._target = target

    def read(self, path: str, most: int, limit: str, memory: MemoryShare) -> Buffer:
        found = self._find(path)
        try:
            size = found.stat().st_size
            if size > most:
                raise LimitExceeded(limit, f"Bytes of {path}", size, most)
            buffer = memory.buffer(size)
            filled = 0
            with found.open("rb", buffering=0) as file:
                while filled < size:
                    memory.ensure_open()
                    count = file.readinto(buffer[filled : filled + _BLOCK])
                    if not count:
                        raise Missing(f"{in_words(path)} became shorter while it was read.")
                    filled += count
        except OSError as error:
            raise Missing(f"{in_words(path)} cannot be read: {error.strerror}.") from None
        return buffer

    def _find(self, path: str) -> Path:
        name = path.replace("\\", "/")
        for folder in (self._sources, Path()):
            found = folder / name
            try:
                if found.is_file():
                    return found
            except (OSError, ValueError):  # too long, or with NUL
                break
        raise Missing(f"There is no file {in_words(path)}, neither beside the model nor in the working directory.")

    def write(self, path: str, data: Buffer) -> None:
        try:
            target = self._target / within(path)
            if not target.resolve().is_relative_to(self._target.resolve()):
                raise NotWritten("a link leads out of the output folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError as error:
            raise NotWritten(error.strerror or str(error)) from None
        except ValueError as error:
            raise NotWritten(str(error)) from None


class SentFiles:
    """Files that came with a request and go back with its answer: nothing is read from or written to a disk."""

    def __init__(self, members: "Mapping[str, Member]", memory: MemoryShare, folder: PurePosixPath) -> None:
        """`members` are all files by their path, and `folder` is the one that the model lies in."""
        self._members = members
        self._folder = folder
        self._memory = memory
        self.written: dict[str, Buffer] = {}
        """By path, as the model has it. What is written twice is there once, as in a folder."""

    def read(self, path: str, most: int, limit: str, memory: MemoryShare) -> Buffer:
        try:
            relative = within(path)
        except ValueError as error:
            raise Missing(f"{error}.") from None
        for folder in (self._folder, PurePosixPath()):
            member = self._members.get(str(folder / relative))
            if member:
                return member.read(most, limit, memory)
        raise Missing(
            f"There is no file {in_words(path)} in the request; send the model and the files that it names as a zip."
        )

    def write(self, path: str, data: Buffer) -> None:
        try:
            name = str(within(path))
        except ValueError as error:
            raise NotWritten(str(error)) from None
        copied = self._memory.buffer(len(data))
        copied[:] = data
        replaced = self.written.pop(name, None)
        if replaced is not None:
            self._memory.give(len(replaced))
        self.written[name] = copied


class Member(Protocol):
    """A file in an archive."""

    def read(self, most: int, limit: str, memory: MemoryShare) -> Buffer:
        """All of it. Raises Unreadable, LimitExceeded, MemoryExhausted, RequestOver."""
