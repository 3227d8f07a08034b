"""npy, npz and safetensors: what their own libraries write is read in place, and nothing else harms."""

import contextlib
import io
import json
import struct
import tracemalloc
import zipfile
import zlib
from types import SimpleNamespace
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given

import app.codecs.npz
from app.codecs.codec import Span
from app.codecs.npy import Npy
from app.codecs.npz import Deflated, Npz
from app.codecs.safetensors import Safetensors
from app.codecs.structure import PARSED, Unreadable
from app.codecs.tensor_files import EmbeddedFile, FileCodec, FileLimits, Parcel, TensorFormat
from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.contract.violations import ContractError
from app.memory.accounts import LimitExceeded, MemoryAccount, MemoryShare
from tests.codecs.documents import mutations, share
from tests.messages import Array

LIMITS = FileLimits(1 << 16, 1 << 24)
TYPES = [np.dtype(each.value.lower()) for each in DataType if each.bits >= 8]
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def npy(array: Array, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def npz(compressed: bool = False, /, **arrays: Any) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def read(kind: TensorFormat, body: bytes, limits: FileLimits = LIMITS) -> dict[str, Array]:
    """The arrays in a file, by the way that a dispatch takes."""
    memory = share()
    tensors = kind.read(body, Span(0, len(body)), "X", limits, memory)
    codec = FileCodec(kind, "", {}, "X", limits.max_bytes)
    made = {}
    for name, each in tensors.items():
        data = codec.binary(body, each.data, ("inputs", name), memory)
        assert each.data_type is not None
        assert each.sizes is not None
        array = np.frombuffer(data, each.data_type.value.lower())
        assert array.size == np.prod(each.sizes, dtype=object)
        strides = None if each.strides is None else [step * array.itemsize for step in each.strides]
        made[name] = (
            np.lib.stride_tricks.as_strided(array, each.sizes, strides) if strides else array.reshape(each.sizes)
        )
    return made


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_each_type_is_read_and_written_as_numpy_and_safetensors_do(dtype: np.dtype[Any]) -> None:
    x = np.arange(6).astype(dtype).reshape(3, 2)
    for kind, body in (
        (Npy(), npy(x)),
        (Npz(), npz(X=x)),
        (Npz(), npz(True, X=x)),
        (Safetensors(), safetensors.numpy.save({"X": x})),
    ):
        np.testing.assert_array_equal(read(kind, body)["X"], x)
        assert read(kind, body)["X"].dtype == dtype
    desc = TensorDesc(DataType=DataType(dtype.name.upper()), Sizes=[3, 2])
    written = {"X": (desc, memoryview(x.tobytes()))}
    made = [b"".join(kind.write(written).pieces) for kind in (Npy(), Npz(), Safetensors())]
    for again in (
        np.load(io.BytesIO(made[0])),
        np.load(io.BytesIO(made[1]))["X"],
        safetensors.numpy.load(made[2])["X"],
    ):
        np.testing.assert_array_equal(again, x)
        assert again.dtype == dtype
    lengths = [kind.write(written).length for kind in (Npy(), Npz(), Safetensors())]
    assert lengths == [len(body) for body in made]


def test_files_in_npz_are_from_the_first_day_of_zip_and_need_version_2() -> None:
    written = {"X": (TensorDesc(DataType=DataType.INT8, Sizes=[3]), memoryview(b"123"))}
    with zipfile.ZipFile(io.BytesIO(b"".join(Npz().write(written).pieces))) as opened:
        (told,) = opened.infolist()
    assert told.date_time == (1980, 1, 1, 0, 0, 0)
    assert (told.create_version, told.extract_version) == (20, 20)
    assert (told.volume, told.internal_attr, told.external_attr) == (0, 0, 0)


@pytest.mark.parametrize("length", range(1, 9))
def test_tensors_in_safetensors_are_aligned(length: int) -> None:
    """However long the header is; the widest come first, whatever comes behind them."""
    narrow = TensorDesc(DataType=DataType.INT8, Sizes=[3]), memoryview(b"123")
    wide = TensorDesc(DataType=DataType.FLOAT64, Sizes=[1]), memoryview(bytes(8))
    body = b"".join(Safetensors().write({"X" * length: narrow, "Y": wide}).pieces)
    start = Safetensors().data_start(body, len(body))
    assert start % 8 == 0
    assert body[start:] == bytes(8) + b"123"
    padding = len(body[:start]) - len(body[:start].rstrip())
    assert padding < 8
    assert safetensors.numpy.load(body).keys() == {"X" * length, "Y"}


def test_booleans_are_bytes() -> None:
    x = np.array([True, False])
    for kind, body in ((Npy(), npy(x)), (Npz(), npz(X=x)), (Safetensors(), safetensors.numpy.save({"X": x}))):
        assert read(kind, body)["X"].dtype == np.uint8
        assert read(kind, body)["X"].tolist() == [1, 0]


@pytest.mark.parametrize("kind", [Npy(), Npz(), Safetensors()])
def test_elements_of_4_bits_have_no_type(kind: TensorFormat) -> None:
    desc = TensorDesc(DataType=DataType.INT4, Sizes=[2])
    with pytest.raises(ContractError, match=r"X is INT4, which .* has no type for") as refusal:
        kind.write({"X": (desc, memoryview(b"1"))})
    assert [each.pointer for each in refusal.value.violations] == ["/Accept"]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_of_each_version_and_order(version: tuple[int, int]) -> None:
    for x in (X, X.T, X[0], X[:, :0], np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)), np.array(3.5)):
        np.testing.assert_array_equal(read(Npy(), npy(x, version))["X"], np.atleast_1d(x), strict=True)


def test_data_in_npy_are_aligned() -> None:
    """However long the header is."""
    for zeros in range(64):
        desc = TensorDesc(
            DataType=DataType.INT8, Sizes=[10 ** min(max(zeros - start, 0), 9) for start in range(0, 72, 9)]
        )
        body = b"".join(Npy().write({"X": (desc, memoryview(b""))}).pieces)
        assert len(body) % 64 == 0
        assert body.endswith(b"\n")
        assert Npy().data_start(body, 1 << 20) == len(body)
        assert len(body) - len(body.rstrip()) <= 64


def test_data_lie_where_they_are_in_the_file() -> None:
    for kind, body in ((Npy(), npy(X)), (Npz(), npz(X=X)), (Safetensors(), safetensors.numpy.save({"X": X}))):
        span = kind.read(body, Span(0, len(body)), "X", LIMITS, share())["X"].data
        assert isinstance(span, Span)
        assert body[span.start : span.stop] == X.tobytes()
        assert kind.data_start(body, len(body)) in (0, span.start)
    assert Npy().data_start(npy(X), 1000) == len(npy(X)) - X.nbytes
    assert Npy().data_start(b"{}", 2) == 0


def test_a_codec_of_files_has_what_their_format_says() -> None:
    codecs = [FileCodec(kind, "", {}, "X", 1) for kind in (Npy(), Npz(), Safetensors())]
    assert [codec.expands for codec in codecs] == [False, True, False]
    assert codecs[0].data_start(npy(X), 1000) == len(npy(X)) - X.nbytes


def test_where_data_will_be_is_told_by_the_first_bytes_of_safetensors() -> None:
    body = safetensors.numpy.save({"X": X})
    start = len(body) - X.nbytes
    data_start = Safetensors().data_start
    assert [data_start(body[:count], len(body)) for count in (0, 7, 8, 9, len(body))] == [0, 0, start, start, start]
    assert [data_start(body[:8], length) for length in (start - 1, start, start + 1)] == [0, 0, start]


def header(text: str, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text.encode() + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        '{"shape":(2,),"fortran_order":False,"descr":"<f4"}',
        "{ 'shape' : ( 2L , ) , 'descr':'<f4', 'fortran_order': True}   ",
    ],
)
def test_a_header_in_any_order(text: str) -> None:
    body = header(text, X[0, :2].tobytes())
    assert read(Npy(), body)["X"].tolist() == [0, 1]
    assert Npy().read(body, Span(0, len(body)), "X", LIMITS, share())["X"].strides is None


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_header_is_as_long_as_numpy_takes_it(version: int) -> None:
    for length in (10_000, 10_001):
        opening = b"\x93NUMPY%c\0" % version + struct.pack("<H" if version == 1 else "<L", length)
        body = opening + GOOD.ljust(length).encode() + bytes(8)
        if length == 10_000:
            assert read(Npy(), body)["X"].tolist() == [0, 0]
        else:
            with pytest.raises(Unreadable, match="has 10001 bytes; it may have 10000"):
                read(Npy(), body)


@pytest.mark.parametrize(("descr", "data_type"), [("<i1", "INT8"), ("<u1", "UINT8"), ("|b1", "UINT8")])
def test_other_names_of_types_of_one_byte(descr: str, data_type: str) -> None:
    body = header(GOOD.replace("<f4", descr), b"\0\1")
    assert Npy().read(body, Span(0, len(body)), "X", LIMITS, share())["X"].data_type == data_type


NO_MAGIC = "does not begin with"
VERSION = "has another version than 1.0, 2.0 or 3.0"
MALFORMED = "is not a dictionary of descr, fortran_order and shape"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", NO_MAGIC),
        (b"\x93NUMP", NO_MAGIC),
        (b"\x93NUMPY\1\0", "ends within the header of npy"),
        (header(GOOD, bytes(8)).replace(b"NUMPY", b"NUMPX"), NO_MAGIC),
        (header(GOOD, bytes(8), b"\0\0"), VERSION),
        (header(GOOD, bytes(8), b"\4\0"), VERSION),
        (header(GOOD, bytes(8), b"\1\1"), VERSION),
        (b"\x93NUMPY\3\0\1\0\0\0\xff", "header of the npy file is not UTF-8"),
        (header(GOOD, bytes(7)), r"has 7 bytes of data; FLOAT32 \[2\] are 8 bytes"),
        (header(GOOD, bytes(9)), r"has 9 bytes of data; FLOAT32 \[2\] are 8 bytes"),
        (header(GOOD)[:-1], "ends within the header of npy"),
        (header(GOOD)[:-3], "ends within the header of npy"),
        (header("{" * 9000), MALFORMED),
        (header(GOOD.replace("{", "(", 1), bytes(8)), MALFORMED),
        (header(GOOD.replace("(2,)", "(2)"), bytes(8)), MALFORMED),
        (header(GOOD.replace("(2,)", "(2,,)"), bytes(8)), MALFORMED),
        (header(GOOD.replace("(2,)", "(-2,)"), bytes(8)), MALFORMED),
        (header(GOOD.replace("(2,)", "(" + "9" * 5000 + ",)"), bytes(8)), MALFORMED),
        (header(GOOD.replace("(2,)", "(99999999999, 99999999999)"), bytes(8)), "has 8 bytes of data; "),
        (header(GOOD.replace("False", "0"), bytes(8)), MALFORMED),
        (header(GOOD.replace("False", "(0,)"), bytes(8)), MALFORMED),
        (header(GOOD.replace("'shape'", "'descr'"), bytes(8)), MALFORMED),
        (header(GOOD.replace("}", "'descr': '<f4'}"), bytes(8)), MALFORMED),
        (header(GOOD.replace("'shape': (2,), ", ""), bytes(8)), MALFORMED),
        (header(GOOD.replace("'<f4'", "True"), bytes(8)), MALFORMED),
        (header(GOOD.replace("(2,)", "'<f4'"), bytes(8)), MALFORMED),
        (header(GOOD + GOOD, bytes(8)), MALFORMED),
        (header(GOOD.replace("}", "'more': 1}"), bytes(8)), MALFORMED),
        (b"\x93NUMPY\2\0\xff\xff\xff\xff" + bytes(100), "has 4294967295 bytes; it may have 10000"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1" * 9000 + "x"), MALFORMED),
    ],
)
def test_no_npy(body: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        read(Npy(), body)


@pytest.mark.parametrize(
    "descr", ["'>f4'", "'|O'", "'<c8'", "'<U4'", "[('a', '<f4')]", "'|V2'", "'<f16'", "'<M8'", f"'{'x' * 5000}'"]
)
@pytest.mark.parametrize("quote", ["'", '"'])
def test_no_tensor_type(descr: str, quote: str) -> None:
    with pytest.raises(ContractError, match="descr of X is ") as refusal:
        read(Npy(), header(GOOD.replace("'<f4'", descr).replace("'", quote), bytes(8)))
    assert len(str(refusal.value)) < 500


def test_a_header_of_version_3_is_utf_8() -> None:
    text = GOOD.replace("<f4", "\u20ac").encode()
    for version, said in ((b"\2\0", "\u00e2\u0082\u00ac"), (b"\3\0", "\u20ac")):
        with pytest.raises(ContractError, match=f"descr of X is {said};"):
            read(Npy(), b"\x93NUMPY" + version + struct.pack("<L", len(text)) + text)


def test_several_tensors_with_their_names() -> None:
    arrays: dict[str, Any] = {"ATensor": X, "BTensor": X.astype(np.int8), "C": np.zeros((3, 1), np.uint64)}
    for kind, body in (
        (Npz(), npz(**arrays)),
        (Npz(), npz(True, **arrays)),
        (Safetensors(), safetensors.numpy.save(arrays, {"by": "hand"})),
    ):
        found = read(kind, body)
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)


def archive(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytearray:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as opened:
        for name, data in members:
            opened.writestr(name, data)
    return bytearray(file.getvalue())


END = -22
CENTRAL = END - 46 - len("X.npy")
"""Where the directory's end and its entry for X begin, behind which there is nothing else."""


class TestHostileArchive:
    """What the directory says is believed as far as it is so."""

    def test_a_bomb_is_refused_by_its_size_before_it_is_inflated(self) -> None:
        bomb = archive(("X.npy", npy(np.zeros(1 << 23, np.float32))), method=zipfile.ZIP_DEFLATED)
        assert len(bomb) < 1 << 16
        with pytest.raises(LimitExceeded, match="max_body_bytes"):
            read(Npz(), bytes(bomb))
        with pytest.raises(LimitExceeded, match="max_memory_bytes"):
            Npz().read(bytes(bomb), Span(0, len(bomb)), "X", LIMITS._replace(max_bytes=1 << 30), share())[
                "X"
            ].data.unpacked(bytes(bomb), MemoryAccount(1 << 20).open())  # type: ignore[union-attr]

    def test_two_bombs_that_share_their_data(self) -> None:
        bomb = archive(("A.npy", npy(X)), ("B.npy", npy(X)))
        entry = bomb.rindex(b"PK\1\2")
        bomb[entry + 42 : entry + 46] = bytes(4)  # B begins where A does
        with pytest.raises(Unreadable, match="overlap"):
            read(Npz(), bytes(bomb))

    @pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 32) - 1])
    @pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    @pytest.mark.parametrize("field", [20, 24])
    def test_lying_lengths(self, size: int, method: int, field: int) -> None:
        body = archive(("X.npy", npy(np.zeros(1000, np.float32))), method=method)
        entry = body.index(b"PK\1\2")
        body[entry + field : entry + field + 4] = struct.pack("<L", size)
        with pytest.raises((Unreadable, StopIteration)) as refusal:
            read(Npz(), bytes(body))
        assert refusal.type is Unreadable

    @pytest.mark.parametrize(
        ("place", "number", "said"),
        [
            (END + 4, 1, "one of several parts"),
            (END + 6, 1, "one of several parts"),
            (END + 8, 2, "one of several parts"),
            ((END + 8, END + 10), 2, "has 1 files in its directory, which says 2"),
            ((END + 8, END + 10), 0, "has 1 files in its directory, which says 0"),
            (END + 12, 1 << 12, "central directory of the npz file lies beyond its end"),
            (END + 12, 50, "directory of the npz file has an entry that is none"),
            (END + 12, 45, "ends within the directory of npz"),
            (END + 20, 1, "goes on behind its end"),
            (CENTRAL, 0, "directory of the npz file has an entry that is none"),
            (CENTRAL + 28, 1 << 10, "directory of the npz file has an entry that is none"),
            (CENTRAL + 46, 0xFF, "name in the npz file is neither ASCII nor UTF-8"),
            ((CENTRAL + 8, CENTRAL + 46), 0x8FE, "name in the npz file is neither ASCII nor UTF-8"),
            (CENTRAL + 42, 1, "not where its directory says"),
            (CENTRAL + 42, 1 << 10, "not where its directory says"),
            (0, 0, "not where its directory says"),
            (26, 1 << 10, "longer than there is room for it"),
            (CENTRAL + 20, 1 << 10, "longer than there is room for it"),
            (CENTRAL + 24, 151, "cannot have 151 bytes: it is 152 bytes in the archive"),
        ],
    )
    def test_a_field_that_is_wrong(self, place: int | tuple[int, int], number: int, said: str) -> None:
        """Counted from the end where it is negative."""
        body = archive(("X.npy", npy(X)))
        for each in place if isinstance(place, tuple) else (place,):
            start = each % len(body)
            body[start : start + 2] = struct.pack("<H", number)
        with pytest.raises(Unreadable, match=said):
            read(Npz(), bytes(body))

    @pytest.mark.parametrize("body", [b"", b"PK", archive(("X.npy", npy(X)))[:-1], archive(("X.npy", npy(X)))[:-22]])
    def test_no_end(self, body: bytes) -> None:
        """Also behind more than the longest comment."""
        for whole in (body, bytes(1 << 17) + body):
            with pytest.raises(Unreadable, match="has no end of a ZIP archive's central directory"):
                read(Npz(), bytes(whole))

    def test_a_local_header_that_has_no_room(self) -> None:
        body = archive(("X.npy", npy(np.frombuffer(b"PK\3\4", np.uint8))))
        place = body.index(b"PK\1\2") - 4
        struct.pack_into("<L", body, len(body) + CENTRAL + 42, place)
        with pytest.raises(Unreadable, match="not where its directory says"):
            read(Npz(), bytes(body))

    def test_numbers_of_64_bits_behind_something_else(self) -> None:
        """Which other writers put there: when a file was made, and who made it."""
        wide = struct.pack("<2HQ", 1, 8, len(npy(X)))
        for extra in (wide, struct.pack("<2HL", 0x5455, 4, 7) + wide, struct.pack("<2H", 0x7875, 0) + wide):
            body = archive(("X.npy", npy(X)))
            at = len(body) + CENTRAL
            struct.pack_into("<L", body, at + 24, 0xFFFFFFFF)
            struct.pack_into("<H", body, at + 30, len(extra))
            struct.pack_into("<L", body, len(body) + END + 12, 46 + 5 + len(extra))
            body[END:END] = extra
            np.testing.assert_array_equal(read(Npz(), bytes(body))["X"], X)
            body[len(body) + END - len(wide) + 2] = 7  # the field has no room for it
            with pytest.raises(Unreadable, match="cannot have 4294967295 bytes"):
                read(Npz(), bytes(body))

    def test_names(self) -> None:
        """In UTF-8, and with what numpy puts behind them in the midst of them, too."""
        assert read(Npz(), bytes(archive(("\xe9.npy", npy(X)), ("a.npy.b.npy", npy(X))))).keys() == {"\xe9", "a.npy.b"}

    def test_a_name_beyond_ascii_is_utf_8_only_if_its_flag_says_so(self) -> None:
        body = archive(("\xe9.npy", npy(X)))
        struct.pack_into("<H", body, body.index(b"PK\1\2") + 8, 0)
        with pytest.raises(Unreadable, match="name in the npz file is neither ASCII nor UTF-8"):
            read(Npz(), bytes(body))

    def test_a_comment(self) -> None:
        body = archive(("X.npy", npy(X)))
        for length in (1, 0xFFFF):
            body[-2:] = struct.pack("<H", length)
            np.testing.assert_array_equal(read(Npz(), bytes(body) + bytes(length))["X"], X)

    def test_a_comment_on_a_file(self) -> None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as opened:
            for name in ("A.npy", "B.npy"):
                told = zipfile.ZipInfo(name)
                told.comment = b"of no importance"
                opened.writestr(told, npy(X))
        assert read(Npz(), file.getvalue()).keys() == {"A", "B"}

    def test_a_directory_as_long_as_it_may_be(self) -> None:
        body = npz(X=X)
        file, length = Span(0, len(body)), 46 + len("X.npy")
        limits = LIMITS._replace(max_structure_bytes=length)
        assert Npz().read(body, file, "X", limits, MemoryAccount(PARSED * length).open()).keys() == {"X"}
        with pytest.raises(LimitExceeded, match="max_memory_bytes"):
            Npz().read(body, file, "X", limits, MemoryAccount(PARSED * length - 1).open())
        with pytest.raises(LimitExceeded, match="max_structure_bytes"):
            read(Npz(), body, limits._replace(max_structure_bytes=length - 1))

    def test_what_so_few_bytes_cannot_be_inflated_to(self) -> None:
        """No memory is taken for it."""
        whole = npy(np.zeros(1 << 20, np.float32))
        body = archive(("X.npy", whole[:128]), method=zipfile.ZIP_DEFLATED)
        struct.pack_into("<L", body, len(body) + CENTRAL + 24, len(whole))
        with pytest.raises(Unreadable, match=f"cannot have {len(whole)} bytes"):
            Npz().read(bytes(body), Span(0, len(body)), "X", LIMITS, share())

    @pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    def test_a_large_file_is_copied_in_pieces(self, method: int) -> None:
        body = bytes(archive(("X.npy", npy(np.zeros(1 << 21, np.float32))), method=method))
        memory = share()
        made = memory.buffer(1 << 24)  # beforehand, since others may not be seen
        tracemalloc.start()
        try:
            data = Npz().read(body, Span(0, len(body)), "X", LIMITS, memory)["X"].data
            with mock.patch.object(MemoryShare, "buffer", lambda _, size: made[:size]):
                if not isinstance(data, Span):
                    assert data.unpacked(body, memory).nbytes == 1 << 23
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1 << 20

    def test_others_have_their_turn_while_data_are_inflated(self) -> None:
        body = npz(True, X=np.zeros(1 << 20, np.float32))
        data = Npz().read(body, Span(0, len(body)), "X", LIMITS, share())["X"].data
        with mock.patch.object(MemoryShare, "ensure_open") as asked:
            data.unpacked(body, share())  # type: ignore[union-attr]
        assert asked.call_count >= 16

    @pytest.mark.parametrize(
        ("deflated", "told", "said"),
        [
            (npy(X) + bytes(1 << 20), npy(X), None),
            (npy(X)[:-8], npy(X)[:-8], "not those that it has the length and checksum of"),
            (npy(X), npy(X)[:-8], "not those that it has the length and checksum of"),
        ],
    )
    def test_what_is_deflated_of_another_length(self, deflated: bytes, told: bytes, said: str | None) -> None:
        """No more of it is inflated than there should be, and nothing is believed to be there that is not."""
        body = archive(("X.npy", deflated), method=zipfile.ZIP_DEFLATED)
        struct.pack_into("<L", body, len(body) + CENTRAL + 16, zlib.crc32(told))
        struct.pack_into("<L", body, len(body) + CENTRAL + 24, len(npy(X)))
        if said is None:
            np.testing.assert_array_equal(read(Npz(), bytes(body))["X"], X)
            return
        with pytest.raises(Unreadable, match=said):
            read(Npz(), bytes(body))

    def test_what_is_left_of_deflated_data_when_a_block_is_full(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Their last bytes may stand for more than it has room for."""
        block = 1 << 12
        monkeypatch.setattr(app.codecs.npz, "_BLOCK", block)
        for size in range(block, block + 200):
            x = np.zeros(size, np.uint8)
            np.testing.assert_array_equal(read(Npz(), npz(True, X=x))["X"], x)

    def test_what_follows_deflated_data_is_not_looked_at(self) -> None:
        """The rest of a block aside, zlib would keep a copy of it, made anew for each block."""
        packed = zlib.compress(b"x", wbits=-zlib.MAX_WBITS)
        body = packed.ljust(1 << 23)
        tracemalloc.start()
        try:
            found = Deflated(Span(0, len(body)), 0, 2, 0)
            with pytest.raises(Unreadable, match="length and checksum"):
                found.unpacked(body, share())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1 << 20

    def test_what_is_not_deflated_or_ends_too_early(self) -> None:
        body = archive(("X.npy", npy(X)), method=zipfile.ZIP_DEFLATED)
        packed = struct.unpack_from("<L", body, len(body) + CENTRAL + 20)[0]
        start = body.index(b"X.npy") + 5
        with pytest.raises(Unreadable, match="not deflated as they should be"):
            read(Npz(), bytes(body[:start] + b"\xff" * packed + body[start + packed :]))
        struct.pack_into("<L", body, len(body) + CENTRAL + 20, packed - 5)
        with pytest.raises(Unreadable, match="not those that it has the length and checksum of"):
            read(Npz(), bytes(body))

    @pytest.mark.parametrize("data", [npy(X)[:-1], npy(X) + b"x"])
    def test_more_or_less_than_its_shape_asks_for(self, data: bytes) -> None:
        with pytest.raises(Unreadable, match=r"has 2[35] bytes of data; FLOAT32 \[2, 3\] are 24 bytes"):
            read(Npz(), bytes(archive(("X.npy", data))))

    @pytest.mark.parametrize("data", [b"text", npy(X)[:9], npy(X)[:-1], npy(X).replace(b"descr", b"other")])
    def test_which_file_is_none(self, data: bytes) -> None:
        with pytest.raises(Unreadable, match=r"^notes\.txt in the npz file: "):
            read(Npz(), bytes(archive(("X.npy", npy(X)), ("notes.txt", data))))

    def test_what_no_archive_has_room_for(self) -> None:
        """Without the extensions for more, which few would read."""
        huge: Any = SimpleNamespace(nbytes=1 << 32)
        with pytest.raises(ContractError, match="4 GiB") as refusal:
            Npz().write({"X": (TensorDesc(DataType=DataType.UINT8, Sizes=[1 << 16, 1 << 16]), huge)})
        assert [each.pointer for each in refusal.value.violations] == ["/Accept"]

    def test_names_are_read_as_what_they_are(self) -> None:
        """By NumPy, which takes those without a mark for an old PC's."""
        desc = TensorDesc(DataType=DataType.FLOAT32, Sizes=[2, 3])
        names = ["X", "größe", "日本"]
        body = b"".join(Npz().write({name: (desc, memoryview(X.tobytes())) for name in names}).pieces)
        assert list(np.load(io.BytesIO(body))) == names
        assert list(read(Npz(), body)) == names

    def test_the_longest_name(self) -> None:
        desc = TensorDesc(DataType=DataType.FLOAT32, Sizes=[2, 3])
        for most in ("x" * (0xFFFF - 4), "ß" * (0x7FFF - 2)):
            body = b"".join(Npz().write({most: (desc, memoryview(X.tobytes()))}).pieces)
            assert list(np.load(io.BytesIO(body))) == [most]
            with pytest.raises(ContractError, match="too long a name") as refusal:
                Npz().write({f"{most}xx": (desc, memoryview(X.tobytes()))})
            assert len(str(refusal.value)) < 400

    def test_all_files_together_have_no_more_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nor has what is behind them."""
        monkeypatch.setattr(app.codecs.npz, "_MAX32", 1 << 17)
        desc = TensorDesc(DataType=DataType.UINT8, Sizes=[40_000])
        first, second = ((name, (desc, memoryview(bytes(40_000)))) for name in "XY")
        assert Npz().write(dict([first])).length < 1 << 17
        with pytest.raises(ContractError, match="Y makes the npz file 4 GiB long"):
            Npz().write(dict([first, second]))

    def test_a_wrong_checksum_of_what_is_deflated(self) -> None:
        body = archive(("X.npy", npy(X)), method=zipfile.ZIP_DEFLATED)
        entry = body.index(b"PK\1\2")
        body[entry + 16] ^= 1
        with pytest.raises(Unreadable, match="checksum"):
            read(Npz(), bytes(body))

    def test_a_name_twice(self) -> None:
        with pytest.raises(Unreadable, match="stands twice"):
            read(Npz(), bytes(archive(("A.npy", npy(X)), ("A", npy(X)))))

    def test_many_files(self) -> None:
        with pytest.raises(LimitExceeded, match="max_structure_bytes"):
            read(Npz(), bytes(archive(*((f"{number}.npy", b"") for number in range(2000)))))

    def test_encrypted_and_other_methods(self) -> None:
        for flags, method in ((1, 0), (0, 12)):
            body = archive(("X.npy", npy(X)))
            entry = body.index(b"PK\1\2")
            body[entry + 8], body[entry + 10] = flags, method
            with pytest.raises(Unreadable, match="encrypted"):
                read(Npz(), bytes(body))

    def test_what_is_behind_the_archive(self) -> None:
        with pytest.raises(Unreadable, match="behind its end"):
            read(Npz(), bytes(archive(("X.npy", npy(X)))) + b"more")

    def test_zip64(self) -> None:
        """As other writers than numpy have it: the sizes are in the extra field alone."""
        data = npy(X)
        local = struct.pack("<4s5H3L2H", b"PK\3\4", 45, 0, 0, 0, 0x21, zlib.crc32(data), len(data), len(data), 5, 0)
        extra = struct.pack("<2H3Q", 1, 24, len(data), len(data), 0)
        full = 0xFFFFFFFF
        central = struct.pack(
            "<4s6H3L5H2L",
            b"PK\1\2",
            45,
            45,
            0,
            0,
            0,
            0x21,
            zlib.crc32(data),
            full,
            full,
            5,
            len(extra),
            0,
            0,
            0,
            0,
            full,
        )
        central += b"X.npy" + extra
        start = len(local) + 5 + len(data)
        end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(central), start)
        end += struct.pack("<4sLQL", b"PK\6\7", 0, start + len(central), 1)
        end += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, full, full, 0)
        body = local + b"X.npy" + data + central + end
        np.testing.assert_array_equal(np.load(io.BytesIO(body))["X"], X)
        np.testing.assert_array_equal(read(Npz(), body)["X"], X)
        with pytest.raises(Unreadable):
            read(Npz(), body.replace(extra, struct.pack("<2H3Q", 2, 24, 0, 0, 0)))
        behind, locator, place = len(body) - 22, len(body) - 22 - 20, len(body) - 22 - 20 - 56
        no_end = "has no end of a ZIP64 archive's central directory"
        for at, number, said in (
            (locator, 0, no_end),
            (locator + 8, place + 1, no_end),
            (locator + 8, locator, no_end),
            (locator + 16, 2, no_end),
            (locator + 8, 0xFFFFFFFF, no_end),
            (place, 0, no_end),
            (place + 16, 1, "one of several parts"),
            (place + 20, 1, "one of several parts"),
            (place + 24, 2, "one of several parts"),
            (place + 40, len(central) + 1, "central directory of the npz file lies beyond its end"),
        ):
            spoilt = bytearray(body)
            struct.pack_into("<L", spoilt, at, number)
            with pytest.raises(Unreadable, match=said):
                read(Npz(), bytes(spoilt))
        for needed in (8, 10, 12, 16):  # any of them tells that there is more
            short = bytearray(body)
            struct.pack_into("<2H2L", short, behind + 8, 1, 1, len(central), start)
            short[behind + needed : behind + needed + (2 if needed < 12 else 4)] = b"\xff" * (2 if needed < 12 else 4)
            np.testing.assert_array_equal(read(Npz(), bytes(short))["X"], X)
        with pytest.raises(Unreadable, match="ends within npz"):
            read(Npz(), body[behind:])


def tensors(document: object, data: bytes = bytes(8)) -> bytes:
    text = document.encode() if isinstance(document, str) else json.dumps(document).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(begin: int = 0, end: int = 8, shape: Any = (2,), dtype: object = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


CUT_SHORT = "file ends within the header of safetensors"
JSON_HEADER = "header of the safetensors file is not JSON"
NO_COUNTS = "shape or data_offsets of X in the safetensors file are no lists of counts"
NO_MEMBERS = "X in the safetensors file has not dtype, shape and data_offsets alone"
OTHER_PLACES = "tensors of the safetensors file overlap, or something is between them"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", CUT_SHORT),
        (b"\1", CUT_SHORT),
        (struct.pack("<Q", 1 << 63) + bytes(100), CUT_SHORT),
        (tensors({"X": entry()})[:-9], CUT_SHORT),
        (tensors({}), "goes on for 8 bytes behind its tensors"),
        (tensors([]), "is not an object"),
        (tensors("{"), JSON_HEADER),
        (tensors("[" * 5000), JSON_HEADER),
        (tensors('{"X": 1, "X": 1}'), "name 'X' stands twice"),
        (tensors('{"X": ' + "9" * 5000 + "}"), JSON_HEADER),
        (tensors({"\ud800": entry()}), r"string '\\ud800' holds half of a surrogate pair"),
        (tensors({"X": entry()}, bytes(9)), "goes on for 1 bytes behind its tensors"),
        (tensors({"X": entry()}, bytes(7)), "data_offsets of X in the safetensors file lie beyond its end"),
        (tensors({"X": entry(), "Y": entry()}), OTHER_PLACES),
        (tensors({"X": entry(0, 4, (1,)), "Y": entry(2, 6, (1,))}), OTHER_PLACES),
        (tensors({"X": entry(0, 2, (2,), "U8"), "Y": entry(4, 8, (4,), "U8")}), OTHER_PLACES),
        (tensors({"X": entry(8, 0)}), "data_offsets of X in the safetensors file lie beyond its end"),
        (
            tensors({"X": entry(0, 8, (3,))}),
            "X in the safetensors file has 8 bytes; its shape and dtype",
        ),
        (tensors({"X": entry(0, 8, (-2,))}), NO_COUNTS),
        (tensors({"X": entry(0, 8, (2.0,))}), NO_COUNTS),
        (tensors({"X": entry(0, 8, (True, 2))}), NO_COUNTS),
        (tensors({"X": entry(0, 8, [1] * 64 + [2])}), NO_COUNTS),
        (tensors({"X": entry(0, 8, (1 << 64,))}), NO_COUNTS),
        (tensors({"X": entry(0, 8, "2")}), NO_COUNTS),
        (tensors({"X": entry(0, 8, 2)}), NO_COUNTS),
        (tensors({"X": entry(0, 8, "")}), NO_COUNTS),
        (tensors({"X": entry() | {"data_offsets": [0, 8, 8]}}), NO_COUNTS),
        (tensors({"X": entry() | {"data_offsets": [0]}}), NO_COUNTS),
        (tensors({"X": entry() | {"data_offsets": [0.0, 8]}}), NO_COUNTS),
        (
            tensors({"X": entry() | {"more": 1}}),
            NO_MEMBERS,
        ),
        (tensors({"X": {"dtype": "F32", "shape": [2]}}), NO_MEMBERS),
        (tensors({"X": [*entry()]}), NO_MEMBERS),
        (tensors({"X" * 5000: 1}), "XXX"),
    ],
)
def test_no_safetensors(body: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=said) as refusal:
        read(Safetensors(), body)
    assert len(str(refusal.value)) < 500


def test_safetensors_at_their_bounds() -> None:
    """Tensors without data among those that have some, as many dimensions as there may be, and none."""
    body = tensors({"X": entry(0, 8, [1] * 63 + [2]), "Y": entry(8, 8, (0, 1 << 40)), "Z": entry(0, 0, (0,))})
    assert {name: found.size for name, found in read(Safetensors(), body).items()} == {"X": 2, "Y": 0, "Z": 0}
    assert read(Safetensors(), tensors({"X": entry(0, 4, [])}, bytes(4)))["X"].shape == (1,)
    assert read(Safetensors(), tensors({"X": entry(0, 0, (0,))}, b"")).keys() == {"X"}
    assert read(Safetensors(), tensors({}, b"")) == {}
    assert read(Safetensors(), tensors({"__X": entry(), "__metadata__": {}})).keys() == {"__X"}


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", 1, None, [], "f32", "F" * 5000])
def test_no_dtype(dtype: object) -> None:
    with pytest.raises(ContractError, match="dtype of X is ") as refusal:
        read(Safetensors(), tensors({"X": entry(dtype=dtype)}))
    assert len(str(refusal.value)) < 500
    assert [each.pointer for each in refusal.value.violations] == ["/inputs/X/dtype"]


def test_a_long_header_is_refused_before_it_is_read() -> None:
    limit = LIMITS.max_structure_bytes
    text = json.dumps({"X": entry(0, limit, (limit,), "U8")}).ljust(limit)
    assert read(Safetensors(), tensors(text, bytes(limit)))["X"].size == limit
    with pytest.raises(LimitExceeded, match="max_structure_bytes"):
        read(Safetensors(), tensors(text + " ", bytes(limit)))


@pytest.mark.parametrize("kind", [Npz(), Safetensors()])
def test_what_is_made_of_a_header_is_charged(kind: TensorFormat) -> None:
    body = npz(X=X) if isinstance(kind, Npz) else safetensors.numpy.save({"X": X})
    with MemoryAccount(1000).open() as memory, pytest.raises(LimitExceeded, match="max_memory_bytes"):
        kind.read(body, Span(0, len(body)), "X", LIMITS, memory)


def decoded(**arrays: Array) -> Any:
    body = npz(**arrays)
    return FileCodec(Npz(), "", {}, "X", 1).decode(body, 1 << 16, 8, share())["inputs"]


def test_tensors_of_an_array_are_in_the_order_of_their_numbers() -> None:
    found = decoded(**{f"Y[{number}]": np.ones(1 + number) for number in reversed(range(12))}, X=X)
    assert [each["Sizes"] for each in found["Y"]] == [[1 + number] for number in range(12)]
    assert found["X"]["Sizes"] == [2, 3]


@pytest.mark.parametrize("names", [["Y[1]"], ["Y[0]", "Y[2]"], ["Y", "Y[0]"]])
def test_no_array_of_tensors(names: list[str]) -> None:
    with pytest.raises(ContractError) as refusal:
        decoded(**dict.fromkeys(names, X))
    assert [each.pointer for each in refusal.value.violations] == ["/inputs/Y"]


def test_deflated_tensors_may_be_as_large_as_a_body() -> None:
    body, size = npz(True, X=X, Y=X), 2 * len(npy(X))
    assert read(Npz(), body, LIMITS._replace(max_bytes=size)).keys() == {"X", "Y"}
    with pytest.raises(LimitExceeded, match=f"unpacked: {size}, where max_body_bytes allows {size - 1}"):
        read(Npz(), body, LIMITS._replace(max_bytes=size - 1))


def test_a_name_in_two_files() -> None:
    body = npy(X)
    parts = [EmbeddedFile(Npy(), Span(0, len(body)), name) for name in "XYX"]
    file = Span(0, len(body))
    assert Parcel(parts[:2]).read(body, file, "", LIMITS, share()).keys() == {"X", "Y"}
    with pytest.raises(ContractError, match="X is in two files") as refusal:
        Parcel(parts).read(body, file, "", LIMITS, share())
    assert [each.pointer for each in refusal.value.violations] == ["/inputs/X"]


FILES: list[tuple[TensorFormat, bytes]] = [
    (Npy(), npy(X)),
    (Npy(), npy(np.asfortranarray(X), (2, 0))),
    (Npz(), npz(A=X, B=X)),
    (Npz(), npz(True, A=X, B=X)),
    (Safetensors(), safetensors.numpy.save({"A": X, "B": X})),
]


@given(st.sampled_from(FILES).flatmap(lambda file: st.tuples(st.just(file[0]), mutations(st.just(file[1])))))
def test_spoilt_files(case: tuple[TensorFormat, bytes]) -> None:
    """They are refused, or hold what lies within them."""
    kind, body = case
    try:
        found = read(kind, body)
    except (Unreadable, ContractError, LimitExceeded):
        return
    for array in found.values():
        array.sum(dtype=object)


@given(st.sampled_from([Npy(), Npz(), Safetensors()]), st.binary(max_size=200))
def test_any_bytes(kind: TensorFormat, body: bytes) -> None:
    for each in (body, FILES[0][1][:10] + body, b"PK\3\4" + body, struct.pack("<Q", len(body)) + body):
        with contextlib.suppress(Unreadable, ContractError, LimitExceeded):
            read(kind, each)
