"""FlatBuffers from anybody: tables read by slot, nothing outside the file, nothing more often than there is memory for.

The package `flatbuffers` reads where it is told to; that there is something is seen to here, before.
"""

import struct
from typing import Any

import flatbuffers
from flatbuffers import encode
from flatbuffers import number_types as kinds

from app.codecs.structure import Unreadable
from app.memory.accounts import LimitExceeded, MemoryShare
from app.memory.buffers import Buffer

_HELD = 32
"""Bytes of memory that a byte of a table, a string or a vector of numbers may come to."""

_TABLE = 64
"""Bytes that a table counts for, beside what is in it."""


class File:
    """A file. What is read of it, and be it the same again and again, is no more than `most` bytes."""

    def __init__(self, data: Buffer, most: int, memory: MemoryShare) -> None:
        self.data = bytes(data) if len(data) < 4 else data
        self._left = self._most = most
        self._memory = memory

    def root(self) -> "Table":
        """Raises Unreadable, LimitExceeded."""
        return Table(self, self.indirect(0))

    def check(self, place: int, size: int) -> None:
        """Raise Unreadable unless there are `size` bytes at `place`."""
        if place < 0 or size < 0 or place + size > len(self.data):
            raise Unreadable(f"The flatbuffer points to {size} bytes at {place}; it has {len(self.data)} in all.")

    def number(self, flags: Any, place: int) -> Any:
        self.check(place, flags.bytewidth)
        return encode.Get(flags.packer_type, self.data, place)

    def indirect(self, place: int) -> int:
        """Where the offset at `place` leads."""
        return place + int(self.number(kinds.UOffsetTFlags, place))

    def spend(self, size: int) -> None:
        """Count `size` bytes, for which memory is taken. Raises LimitExceeded, MemoryExhausted, RequestOver."""
        self._left -= size
        if self._left < 0:
            raise LimitExceeded("max_graph_structure_bytes", "Bytes of the flatbuffer's structure", None, self._most)
        self._memory.take(_HELD * size)

    def text(self, place: int) -> str:
        """The string at `place`."""
        size = int(self.number(kinds.UOffsetTFlags, place))
        self.check(place + 4, size)
        self.spend(size + 4)
        try:
            return bytes(self.data[place + 4 : place + 4 + size]).decode()
        except UnicodeDecodeError:
            raise Unreadable(f"The flatbuffer has a string at {place} that is not UTF-8.") from None


class Table:
    """A table. Fields are by their slot, and those that are not there are None."""

    def __init__(self, file: File, place: int) -> None:
        self._file = file
        self._place = place
        vtable = place - int(file.number(kinds.SOffsetTFlags, place))
        self._slots = int(file.number(kinds.VOffsetTFlags, vtable))
        self._size = int(file.number(kinds.VOffsetTFlags, vtable + 2))
        file.check(vtable, max(self._slots, 4))
        file.check(place, self._size)
        file.spend(_TABLE)
        self._table = flatbuffers.table.Table(file.data, place)

    def _field(self, slot: int, size: int) -> int | None:
        if slot + 2 > self._slots:
            return None
        offset = int(self._table.Offset(slot))
        if offset and offset + size > self._size:
            raise Unreadable(f"The flatbuffer's table at {self._place} ends within its field {slot}.")
        return self._place + offset if offset else None

    def number(self, slot: int, flags: Any) -> Any:
        """None stands for 0, as what is 0 is not written."""
        place = self._field(slot, flags.bytewidth)
        return None if place is None else self._file.number(flags, place)

    def byte(self, slot: int) -> int:
        return int(self.number(slot, kinds.Uint8Flags) or 0)

    def text(self, slot: int) -> str | None:
        place = self._field(slot, 4)
        return None if place is None else self._file.text(self._file.indirect(place))

    def table(self, slot: int) -> "Table | None":
        place = self._field(slot, 4)
        return None if place is None else Table(self._file, self._file.indirect(place))

    def struct(self, slot: int, *flags: Any) -> list[Any] | None:
        """The numbers of a struct that a union at `slot` is, all of one width."""
        place = self._field(slot, 4)
        if place is None:
            return None
        start = self._file.indirect(place)
        self._file.spend(_TABLE)
        return [self._file.number(each, start + each.bytewidth * number) for number, each in enumerate(flags)]

    def _vector(self, slot: int, width: int) -> tuple[int, int] | None:
        """Where the elements begin, and how many there are."""
        place = self._field(slot, 4)
        if place is None:
            return None
        start = self._file.indirect(place)
        count = int(self._file.number(kinds.UOffsetTFlags, start))
        self._file.check(start + 4, width * count)
        return start + 4, count

    def numbers(self, slot: int, code: str) -> list[Any] | None:
        """A vector of numbers of struct's `code`."""
        width = struct.calcsize(f"<{code}")
        found = self._vector(slot, width)
        if found is None:
            return None
        start, count = found
        self._file.spend(4 + width * count)
        return list(struct.unpack_from(f"<{count}{code}", self._file.data, start))

    def bytes(self, slot: int) -> Buffer | None:
        """A vector of bytes, where it is."""
        found = self._vector(slot, 1)
        return None if found is None else memoryview(self._file.data)[found[0] : found[0] + found[1]]

    def texts(self, slot: int) -> list[str]:
        return [self._file.text(place) for place in self._targets(slot)]

    def tables(self, slot: int) -> "list[Table]":
        return [Table(self._file, place) for place in self._targets(slot)]

    def _targets(self, slot: int) -> list[int]:
        start, count = self._vector(slot, 4) or (0, 0)
        self._file.spend(4 * count)
        return [self._file.indirect(start + 4 * place) for place in range(count)]
