"""application/x-npz: tensors by name, as numpy.savez and numpy.savez_compressed write them: a ZIP archive of npy files.

Data that are stored are taken as they lie in the archive, and their checksums are not looked at, as little as those of
any other body are; what is deflated is inflated to as many bytes as the archive says, and compared with its checksum.
Source of the format: PKWARE's APPNOTE.TXT.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from app.codecs.codec import Body, Encoded, Piece, Span
from app.codecs.npy import LONGEST_HEADER, OPENING, check_size, read_header, write_header
from app.codecs.structure import PARSED, Unreadable, too_long, twice
from app.codecs.tensor_files import FileLimits, FileTensor, check_held, cut_short
from app.contract.tensors import TensorDesc
from app.contract.validation import in_words
from app.contract.violations import refused
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_LOCATOR64 = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")

_STORED, _DEFLATED = 0, 8
_ENCRYPTED, _UTF8 = 0x1, 0x800
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_DAY = 0x21
"""1980-01-01, which the format's time begins with."""

_LONGEST_COMMENT = 0xFFFF
_MOST_DENSE = 1032
"""Bytes that a byte of deflated data can stand for."""

_BLOCK = 1 << 18
"""Bytes that are inflated at a time."""


class _Member(NamedTuple):
    """A file in the archive, of `size` bytes, and where it is. Its local header begins at `header`."""

    name: str
    method: int
    header: int
    data: Span
    size: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Deflated:
    """Implements `Packed`: the data behind the first `skipped` of the `inflated` bytes that are deflated at `span`."""

    span: Span
    skipped: int
    inflated: int
    checksum: int

    @property
    def size(self) -> int:
        return self.inflated

    def unpacked(self, body: Body, memory: MemoryShare) -> Buffer:
        made = memory.buffer(self.inflated)
        filled = checksum = 0
        for piece in _inflate(memoryview(body)[self.span.start : self.span.stop], self.inflated):
            memory.ensure_open()
            made[filled : filled + len(piece)] = piece
            filled += len(piece)
            checksum = zlib.crc32(piece, checksum)
        if filled != self.inflated or checksum != self.checksum:
            raise Unreadable("Deflated data in the npz file are not those that it has the length and checksum of.")
        return made[self.skipped :]


class Npz:
    """Implements `TensorFormat`."""

    media_type = "application/x-npz"
    expands = True

    def data_start(self, beginning: bytes, length: int) -> int:
        return 0

    def read(
        self, body: Body, file: Span, first: str, limits: FileLimits, memory: MemoryShare
    ) -> Mapping[str, FileTensor]:
        archive = memoryview(body)[file.start : file.stop]
        tensors: dict[str, FileTensor] = {}
        for member in _members(archive, limits.max_structure_bytes, memory):
            name = member.name.removesuffix(".npy")
            if name in tensors:
                raise twice(name)
            data = archive[member.data.start : member.data.stop]
            longest = OPENING + LONGEST_HEADER
            inflates = member.method == _DEFLATED
            beginning = next(_inflate(data, longest), b"") if inflates else bytes(data[:longest])
            try:
                header = read_header(beginning, name)
                check_size(header, member.size - header.length)
            except Unreadable as problem:
                raise Unreadable(f"{in_words(member.name)} in the npz file: {problem}") from None
            start, stop = file.start + member.data.start, file.start + member.data.stop
            tensor = header.tensor(Span(start + header.length, stop))
            if inflates:
                deflated = Deflated(Span(start, stop), header.length, member.size, member.checksum)
                tensor = tensor._replace(data=deflated)
            tensors[name] = tensor
        check_held(tensors, limits)
        return tensors

    def write(self, tensors: Mapping[str, tuple[TensorDesc, Buffer]]) -> Encoded:
        pieces: list[Piece] = []
        central: list[bytes] = []
        offset = 0
        for name, (desc, data) in tensors.items():
            header, called = write_header(name, desc), f"{name}.npy".encode()
            size = len(header) + data.nbytes
            if len(called) > _MAX16:
                message = f"{in_words(name)} is too long a name for a file in npz; ask for safetensors."
                raise refused(("Accept",), message, len(called), _MAX16)
            if offset + size + (1 << 16) > _MAX32:
                raise refused(("Accept",), f"{name} makes the npz file 4 GiB long; ask for safetensors.", size, _MAX32)
            checksum = zlib.crc32(data, zlib.crc32(header))
            flags = 0 if called.isascii() else _UTF8  # without it readers take bytes for an old PC's
            common = (flags, _STORED, 0, _DAY, checksum, size, size, len(called), 0)
            pieces += (_LOCAL.pack(b"PK\3\4", 20, *common) + called + header, data)
            central.append(_CENTRAL.pack(b"PK\1\2", 20, 20, *common, 0, 0, 0, 0, offset) + called)
            offset += _LOCAL.size + len(called) + size
        directory = b"".join(central)
        count = len(central)
        end = _END.pack(b"PK\5\6", 0, 0, count, count, len(directory), offset, 0)
        pieces.append(directory + end)
        return Encoded(sum(map(len, pieces)), pieces)


def _inflate(data: Buffer, most: int) -> Iterator[bytes]:
    """What `data` are deflated of, in pieces, as far as that is no longer than `most` bytes. Raises Unreadable."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    left = most
    try:
        for start in range(0, len(data), _BLOCK):
            waiting: Piece = data[start : start + _BLOCK]
            while left and not inflater.eof and (piece := inflater.decompress(waiting, min(left, _BLOCK))):
                waiting = inflater.unconsumed_tail  # without it goes on what zlib had no room for
                left -= len(piece)
                yield piece
    except zlib.error:
        raise Unreadable("Data in the npz file are not deflated as they should be.") from None


def _members(archive: Buffer, max_structure_bytes: int, memory: MemoryShare) -> list[_Member]:
    """The files in `archive`, none of which overlaps another one. Raises Unreadable, LimitExceeded, MemoryExhausted."""
    start, length, count = _directory(archive)
    if length > max_structure_bytes:
        raise too_long(max_structure_bytes)
    memory.take(PARSED * length)
    members: list[_Member] = []
    position, stop = start, start + length
    while position < stop:
        member, position = _member(archive[:start], archive[position:stop], position)
        members.append(member)
    if len(members) != count:
        raise Unreadable(f"The npz file has {len(members)} files in its directory, which says {count}.")
    end = 0
    for each in sorted(members, key=lambda member: member.header):
        if each.header < end:
            raise Unreadable("Files in the npz file overlap.")
        end = each.data.stop
    return members


def _directory(archive: Buffer) -> tuple[int, int, int]:
    """Where the central directory begins, its length and the count of its entries."""
    ending = max(len(archive) - _END.size - _LONGEST_COMMENT, 0)
    found = bytes(archive[ending:]).rfind(b"PK\5\6")
    if found < 0 or len(archive) - ending - found < _END.size:
        raise Unreadable("The file is no npz file: it has no end of a ZIP archive's central directory.")
    place = ending + found
    _, disk, of_disk, here, count, length, start, comment = _END.unpack_from(archive, place)
    if place + _END.size + comment != len(archive):
        raise Unreadable("The npz file goes on behind its end.")
    if _MAX16 in (here, count) or _MAX32 in (length, start):
        place -= _LOCATOR64.size
        if place < 0:
            raise cut_short("npz")
        mark, disk, place64, disks = _LOCATOR64.unpack_from(archive, place)
        if mark != b"PK\6\7" or place64 + _END64.size > place or disks > 1:
            raise Unreadable("The npz file has no end of a ZIP64 archive's central directory.")
        mark, _, _, _, disk, of_disk, here, count, length, start = _END64.unpack_from(archive, place64)
        if mark != b"PK\6\6":
            raise Unreadable("The npz file has no end of a ZIP64 archive's central directory.")
        place = place64
    if disk or of_disk or here != count:
        raise Unreadable("The npz file is one of several parts.")
    if start + length > place:
        raise Unreadable("The central directory of the npz file lies beyond its end.")
    return start, length, count


def _member(before: Buffer, entries: Buffer, position: int) -> tuple[_Member, int]:
    """The file that the first of `entries` is about, which lies in `before`, and where the next entry begins."""
    if len(entries) < _CENTRAL.size:
        raise cut_short("the directory of npz")
    mark, _, _, flags, method, _, _, checksum, packed, size, called, extra, comment, *rest = _CENTRAL.unpack_from(
        entries
    )
    header = rest[-1]
    end = _CENTRAL.size + called + extra + comment
    if mark != b"PK\1\2" or end > len(entries):
        raise Unreadable("The directory of the npz file has an entry that is none.")
    try:
        name = str(entries[_CENTRAL.size :][:called], "utf-8" if flags & _UTF8 else "ascii")
    except UnicodeDecodeError:
        raise Unreadable("A name in the npz file is neither ASCII nor UTF-8.") from None
    wide = _wide(bytes(entries[_CENTRAL.size + called :][:extra]))
    size, packed, header = (next(wide, each) if each == _MAX32 else each for each in (size, packed, header))
    if flags & _ENCRYPTED or method not in (_STORED, _DEFLATED):
        raise Unreadable("A file in the npz file is encrypted, or neither stored nor deflated.")
    if header + _LOCAL.size > len(before) or bytes(before[header : header + 4]) != b"PK\3\4":
        raise Unreadable("A file in the npz file is not where its directory says.")
    *_, local_called, local_extra = _LOCAL.unpack_from(before, header)
    start = header + _LOCAL.size + local_called + local_extra
    if start + packed > len(before):
        raise Unreadable("A file in the npz file is longer than there is room for it.")
    if size > packed * _MOST_DENSE if method == _DEFLATED else size != packed:
        raise Unreadable(f"A file in the npz file cannot have {size} bytes: it is {packed} bytes in the archive.")
    return _Member(name, method, header, Span(start, start + packed), size, checksum), position + end


def _wide(extra: bytes) -> Iterator[int]:
    """The numbers of 64 bits in an entry's extra field, in the place of those of 32 that are all ones."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        if kind == 1:
            for start in range(position + 4, min(position + 4 + length, len(extra)) - 7, 8):
                yield int.from_bytes(extra[start : start + 8], "little")
            return
        position += 4 + length
