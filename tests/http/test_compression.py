"""Compressed requests and answers, within the same limits as plain ones."""

import gzip
import zlib
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import numpy as np
import orjson
import pytest
from starlette.exceptions import HTTPException

from app.codecs.structure import Unreadable
from app.engine.graph_documents import EXAMPLE, EXAMPLE_DATA
from app.http.core.compression import coding_of_request, compress, decompress
from app.memory.accounts import LimitExceeded, MemoryAccount, MemoryShare
from app.models.dxdispatch.answer import EXAMPLE as MODEL
from tests.codecs.test_tensor_files import npy
from tests.codings import COMPRESS, plain, zstd
from tests.conftest import RunningServer, running_server
from tests.http.refusals import refusal_of
from tests.inference.wire import CELU, LENGTH, X, behind, body, error_of, listed

coding = pytest.mark.parametrize("coding", COMPRESS)


def send(client: httpx.Client, content: bytes, headers: dict[str, str]) -> tuple[dict[str, str], bytes]:
    """Header fields and body as they come, not decompressed."""
    with client.stream("POST", CELU, content=content, headers=headers) as response:
        assert response.status_code == 200, response.read()
        return dict(response.headers), b"".join(response.iter_raw())


@coding
@pytest.mark.parametrize("elements", [6, 1 << 20])
def test_both_ways(client: httpx.Client, coding: str, elements: int) -> None:
    x = np.arange(elements, dtype=np.float32)
    document = {"inputs": [behind("InputTensor", x)], "parameters": {"binary_data_output": True}}
    content, headers = body(document, x.tobytes())
    headers |= {"content-encoding": coding, "accept-encoding": coding}
    found, answer = send(client, COMPRESS[coding](content), headers)
    assert found["content-encoding"] == coding
    assert int(found["content-length"]) == len(answer)
    assert plain(coding, answer)[int(found[LENGTH.lower()]) :] == x.tobytes()


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (b"", b""),
        (b" ", b""),
        (b"Identity", b""),
        (b" GZIP", b"gzip"),
        (b"X-gzip", b"gzip"),
        (b"zstd", b"zstd"),
        (b", gzip,", b"gzip"),
        (b",", b""),
    ],
)
def test_codings_of_requests(header: bytes, coding: bytes) -> None:
    assert coding_of_request(header) == coding


@pytest.mark.parametrize("header", [b"br", b"gzip, gzip", b"identity, gzip", b"x" * 1000])
def test_other_codings_are_refused(header: bytes) -> None:
    with pytest.raises(HTTPException, match="send gzip, deflate, zstd") as refusal:
        coding_of_request(header)
    assert refusal.value.status_code == 415
    assert refusal.value.headers == {"Accept-Encoding": "gzip, deflate, zstd"}
    assert len(refusal.value.detail) < 250


@coding
def test_a_body_may_be_as_long_as_the_limit(coding: str) -> None:
    content = np.random.default_rng(0).bytes(100_000)
    packed = COMPRESS[coding](content)
    with MemoryAccount(1 << 30).open() as memory:
        assert decompress(packed, coding.encode(), 100_000, memory) == content
    with MemoryAccount(1 << 30).open() as memory, pytest.raises(LimitExceeded, match="max_body_bytes allows 99999"):
        decompress(packed, coding.encode(), 99_999, memory)


@coding
def test_nothing(coding: str) -> None:
    with MemoryAccount(1 << 30).open() as memory:
        assert decompress(COMPRESS[coding](b""), coding.encode(), 1, memory) == b""


@coding
def test_what_decompressing_takes(coding: str) -> None:
    """Is held: what the body may have, pieces, and what zstd looks back on."""
    most = 1 << 20
    packed = COMPRESS[coding](np.random.default_rng(0).bytes(most))
    needed = most + (3 << 18) + (most + (1 << 19) if coding == "zstd" else 0)
    with MemoryAccount(needed).open() as memory:
        assert len(decompress(packed, coding.encode(), most, memory)) == memory.held == most
    with MemoryAccount(needed - 1).open() as memory, pytest.raises(LimitExceeded, match="max_memory_bytes"):
        decompress(packed, coding.encode(), most, memory)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_where_bodies_are_small_so_are_pieces(coding: str) -> None:
    with MemoryAccount(1000).open() as memory:
        assert decompress(COMPRESS[coding](bytes(100)), coding.encode(), 100, memory) == bytes(100)


@coding
def test_what_was_outgrown_is_given_back(coding: str) -> None:
    """There are few steps, and no room in the last one for what there may not be."""
    most = 5 << 20
    content = np.random.default_rng(0).bytes(1 << 14) * 320
    packed = COMPRESS[coding](content)
    with (
        MemoryAccount(1 << 30).open() as memory,
        mock.patch.object(MemoryShare, "buffer", autospec=True, side_effect=MemoryShare.buffer) as made,
    ):
        assert decompress(packed, coding.encode(), most, memory) == content
        assert memory.held == most
    assert 2 < made.call_count < 10


@coding
def test_of_what_a_body_may_have_it_takes_what_it_needs(coding: str) -> None:
    with MemoryAccount(1 << 23).open() as memory:
        content = decompress(COMPRESS[coding](bytes(1 << 20)), coding.encode(), 1 << 30, memory)
        assert len(content) == 1 << 20
        assert memory.held <= 1 << 22


@coding
def test_much_that_follows(coding: str) -> None:
    packed = COMPRESS[coding](b"{}") + bytes(1 << 20)
    with MemoryAccount(1 << 30).open() as memory, pytest.raises(Unreadable, match="goes on for 1048576 bytes after"):
        decompress(packed, coding.encode(), 1 << 20, memory)


@coding
def test_what_compressing_takes(coding: str) -> None:
    pending = 1 << 21 if coding == "zstd" else 1 << 18
    with MemoryAccount(pending + 1000).open() as memory:
        compress([b"x" * 900], coding.encode(), memory)
    with MemoryAccount(pending + 800).open() as memory, pytest.raises(LimitExceeded, match="max_memory_bytes"):
        compress([b"x" * 900], coding.encode(), memory)
    with MemoryAccount(1 << 30).open() as memory:
        made = compress([np.random.default_rng(0).bytes(1 << 20)], coding.encode(), memory)
        assert memory.held >= made.length > 1 << 20


@coding
def test_others_have_their_turn(coding: str) -> None:
    content = np.random.default_rng(0).bytes(1 << 22)
    with MemoryAccount(1 << 30).open() as memory, mock.patch.object(MemoryShare, "ensure_open") as asked:
        packed = b"".join(map(bytes, compress([content], coding.encode(), memory).pieces))
        assert asked.call_count >= 16
        asked.reset_mock()
        assert decompress(packed, coding.encode(), len(content), memory) == content
        assert asked.call_count >= 16


@coding
def test_json_too(client: httpx.Client, coding: str) -> None:
    content, _ = body({"inputs": [listed("InputTensor", X)]})
    headers = {"content-encoding": coding, "accept-encoding": coding}
    found, answer = send(client, COMPRESS[coding](content), headers)
    assert found["content-type"] == "application/json"
    assert b'"data":[' in plain(coding, answer)


@pytest.mark.parametrize("wish", ["", "identity", "gzip, deflate", "gzip, deflate, br, zstd", "br", "*"])
def test_what_is_no_wish_for_a_coding(client: httpx.Client, wish: str) -> None:
    content, _ = body({"inputs": [listed("InputTensor", X)]})
    found, answer = send(client, content, {"accept-encoding": wish, "content-encoding": "identity"})
    assert "content-encoding" not in found
    assert answer.startswith(b"{")


@coding
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:-1], "The body ends before its"),
        (lambda data: data[: len(data) // 2], "The body ends before its"),
        (lambda data: data + b"more", "The body goes on for 4 bytes after its"),
        (lambda data: b"{}" + data, "The body is not"),
        (lambda data: data[:-3] + bytes(3), "The body is not"),
    ],
    ids=["cut", "half", "longer", "other", "checksum"],
)
def test_broken(client: httpx.Client, coding: str, change: Any, said: str) -> None:
    content, _ = body({"inputs": [listed("InputTensor", np.random.default_rng(1).random(1000, np.float32))]})
    response = client.post(CELU, content=change(COMPRESS[coding](content)), headers={"content-encoding": coding})
    assert error_of(response).startswith(said)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With small bodies."""
    with running_server(tmp_path_factory.mktemp("small") / "log", "--max-body-bytes", "1048576") as server:
        yield server


@pytest.fixture(scope="module")
def poor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With little memory."""
    with running_server(tmp_path_factory.mktemp("poor") / "log", "--max-memory-bytes", "2097152") as server:
        yield server


@coding
def test_bombs_are_refused_before_they_take_memory(small: RunningServer, poor: RunningServer, coding: str) -> None:
    bomb = COMPRESS[coding](bytes(64 << 20))
    assert len(bomb) < 100_000
    with httpx.Client(base_url=small.url, timeout=30) as client:
        said = error_of(client.post(CELU, content=bomb, headers={"content-encoding": coding}), 413)
        assert said == "Bytes of the decompressed body: more, where max_body_bytes allows 1048576."
        assert "dmlserve_memory_bytes 0.0" in client.get("/metrics").text
    status = Path(f"/proc/{small.process.pid}/status").read_text()
    high_water = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    assert int(high_water.split()[1]) < 400 << 10
    with httpx.Client(base_url=poor.url, timeout=30) as client:
        said = error_of(client.post(CELU, content=bomb, headers={"content-encoding": coding}), 413)
        assert "max_memory_bytes" in said


class TestGzipMembers:
    """gzip is as many members as a sender likes, one behind the other (RFC 1952, 2.2)."""

    @staticmethod
    def undone(data: bytes, most: int = 1 << 25) -> bytes:
        with MemoryAccount(1 << 26).open() as memory:
            return bytes(decompress(data, b"gzip", most, memory))

    @pytest.mark.parametrize("size", [0, 1, 1000, 70_000, (1 << 20) + 1])
    def test_all_sizes(self, size: int) -> None:
        parts = [np.random.default_rng(seed).bytes(size) for seed in range(3)]
        members = [gzip.compress(part) for part in parts]
        assert self.undone(b"".join(members)) == b"".join(parts)
        for ended in (members[0], b"".join(members)):
            with pytest.raises(Unreadable, match="goes on for 5 bytes after its gzip data"):
                self.undone(ended + bytes(5))
            with pytest.raises(Unreadable, match="goes on for 1 bytes after its gzip data"):
                self.undone(ended + members[0][:1])
            for cut in (2, 10, len(members[0]) - 1):
                with pytest.raises(Unreadable, match="ends before its gzip data do"):
                    self.undone(ended + members[0][:cut])

    def test_a_checksum_in_the_second(self) -> None:
        wrong = bytearray(gzip.compress(b"more"))
        wrong[-5] ^= 1
        with pytest.raises(Unreadable, match=r"The body is not gzip: .*check"):
            self.undone(gzip.compress(b"x") + wrong)

    def test_only_gzip_has_members(self) -> None:
        data = zlib.compress(b"x")
        with MemoryAccount(1 << 26).open() as memory, pytest.raises(Unreadable, match="goes on for"):
            decompress(data + gzip.compress(b"x"), b"deflate", 100, memory)

    def test_each_counts_for_what_it_costs(self) -> None:
        """Empty ones, too, or a body of nothing but them would keep a worker busy for long."""
        data = gzip.compress(b"x" * 100) + 10 * gzip.compress(b"")
        assert self.undone(data, 100 + 10 * 1024) == b"x" * 100
        with pytest.raises(LimitExceeded, match="body, and 1024 for each part of it behind the first: more"):
            self.undone(data, 99 + 10 * 1024)

    def test_none_is_copied_with_all_that_follow_it(self) -> None:
        """zlib copies what follows a member in the same piece: of one with many members, most of it for each."""
        data = 5000 * gzip.compress(b"")
        pieces: list[int] = []
        inflate = zlib.decompressobj

        class Counting:
            def __init__(self, window: int) -> None:
                self._engine = inflate(window)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._engine, name)

            def decompress(self, piece: Any, most: int) -> bytes:
                pieces.append(len(piece))
                return self._engine.decompress(piece, most)

        with mock.patch("zlib.decompressobj", Counting):
            assert self.undone(data) == b""
            assert len(pieces) == 5000
            assert max(pieces) <= 1024
            large = np.random.default_rng(0).bytes(1 << 21)
            assert self.undone(gzip.compress(large)) == large
        assert max(pieces) == 1 << 18

    def test_others_have_their_turn_now_and_then(self) -> None:
        """Not after each, or a body of many would take a worker for long that does nothing."""
        with mock.patch.object(MemoryShare, "ensure_open") as asked:
            assert self.undone(5000 * gzip.compress(b"")) == b""
        assert 20 <= asked.call_count <= 40

    def test_of_a_request(self, client: httpx.Client) -> None:
        content, _ = body({"inputs": [listed("InputTensor", X)]})
        data = gzip.compress(content[:20]) + gzip.compress(b"") + gzip.compress(content[20:])
        assert send(client, data, {"content-encoding": "gzip"})[1].startswith(b"{")


class TestZstd:
    """What is its own: how far it looks back, which is memory, and forms that nobody needs to read."""

    @staticmethod
    def undone(data: bytes, most: int = 1 << 25, account: int = 1 << 26) -> bytes:
        with MemoryAccount(account).open() as memory:
            return bytes(decompress(data, b"zstd", most, memory))

    @pytest.mark.parametrize("size", [0, 1, 100, 70_000, (9 << 20) + 1])
    def test_all_sizes(self, size: int) -> None:
        data = np.random.default_rng(1).integers(0, 9, size, np.uint8).tobytes()
        assert self.undone(zstd.compress(data)) == data
        with MemoryAccount(1 << 26).open() as memory:
            made = b"".join(map(bytes, compress([data[:7], data[7:]], b"zstd", memory).pieces))
            assert memory.held >= len(made)
        assert zstd.decompress(made) == data

    def test_the_window_is_memory(self) -> None:
        engine = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 23})
        data = engine.compress(bytes(100)) + engine.flush()
        assert self.undone(data) == bytes(100)
        with pytest.raises(LimitExceeded, match="max_memory_bytes"):
            self.undone(data, account=1 << 23)

    def test_a_window_that_is_too_large(self) -> None:
        engine = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 24})
        data = engine.compress(bytes(100)) + engine.flush()
        with pytest.raises(Unreadable, match="window is 16777216 bytes; send one of at most 8388608"):
            self.undone(data)

    def test_a_window_is_told_in_eighths(self) -> None:
        engine = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 23})
        data = bytearray(engine.compress(bytes(100)) + engine.flush())
        data[5] |= 3
        with pytest.raises(Unreadable, match=f"window is {(8 << 20) + (3 << 20)} bytes"):
            self.undone(bytes(data))

    def test_all_of_a_frame_in_one_segment_is_its_window(self) -> None:
        options: dict[int, int] = {zstd.CompressionParameter.window_log: 24}
        with pytest.raises(Unreadable, match="window is 8388609 bytes; send one of at most 8388608"):
            self.undone(zstd.compress(bytes((1 << 23) + 1), options=options))
        assert len(self.undone(zstd.compress(bytes(1 << 23), options=options))) == 1 << 23

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b"", "ends before"),
            (zstd.compress(b"x")[:3], "ends before"),
            (zstd.compress(b"x")[:5], "ends before"),
            (b"\x50\x2a\x4d\x18\x02\0\0\0x", "ends before"),
            (b"\x4f\x2a\x4d\x18\x01\0\0\0x" + zstd.compress(b"x"), "does not begin as its frames do"),
            (b"\xfd\x2f\xb5\x27" + bytes(20), "does not begin as its frames do"),
            (zstd.compress(b"x") + b"\xfd\x2f\xb5\x27", "goes on for 4 bytes after its zstd data"),
            (zstd.compress(b"x" * 99)[:-1], "ends before"),
        ],
        ids=["nothing", "magic", "header", "skipped", "unknown", "old", "followed", "cut"],
    )
    def test_what_is_no_frame(self, data: bytes, said: str) -> None:
        with pytest.raises(Unreadable, match=said):
            self.undone(data)


class TestZstdFrames:
    """zstd is as many frames as a sender likes, one behind the other, some of which are skipped (RFC 8878, 3)."""

    SKIPPED = b"\x5f\x2a\x4d\x18\x03\0\0\0for"

    @pytest.mark.parametrize("size", [0, 1, 1000, 70_000, (1 << 20) + 1])
    def test_all_sizes(self, size: int) -> None:
        parts = [np.random.default_rng(seed).bytes(size) for seed in range(3)]
        frames = [COMPRESS["zstd"](part) for part in parts]
        whole = b"".join(parts)
        assert TestZstd.undone(b"".join(frames)) == whole
        assert TestZstd.undone(self.SKIPPED + self.SKIPPED.join(frames) + self.SKIPPED) == whole
        for cut in (4, 7, len(frames[2]) - 1):
            with pytest.raises(Unreadable, match="ends before its zstd data do"):
                TestZstd.undone(b"".join(frames[:2]) + frames[2][:cut])

    def test_a_checksum_in_the_second(self) -> None:
        wrong = bytearray(COMPRESS["zstd"](b"more"))
        wrong[-1] ^= 1
        with pytest.raises(Unreadable, match=r"The body is not zstd: .*checksum"):
            TestZstd.undone(COMPRESS["zstd"](b"x") + wrong)

    def test_each_counts_for_what_it_costs(self) -> None:
        data = zstd.compress(b"x" * 100) + 10 * self.SKIPPED
        assert TestZstd.undone(data, 100 + 10 * (1 << 14)) == b"x" * 100
        with pytest.raises(LimitExceeded, match="body, and 16384 for each part of it behind the first: more"):
            TestZstd.undone(data, 99 + 10 * (1 << 14))

    def test_each_has_a_window(self) -> None:
        engine = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 23})
        wide = engine.compress(bytes(100)) + engine.flush()
        with pytest.raises(LimitExceeded, match="max_memory_bytes"):
            TestZstd.undone(zstd.compress(b"x") + wide, account=1 << 23)
        engine = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 24})
        with pytest.raises(Unreadable, match="window is 16777216 bytes"):
            TestZstd.undone(zstd.compress(b"x") + engine.compress(bytes(100)) + engine.flush())

    def test_of_a_request(self, client: httpx.Client) -> None:
        content, _ = body({"inputs": [listed("InputTensor", X)]})
        data = zstd.compress(content[:20]) + self.SKIPPED + zstd.compress(content[20:])
        assert send(client, data, {"content-encoding": "zstd"})[1].startswith(b"{")


class TestNative:
    """Under /v1 as under /v2."""

    BODY = orjson.dumps(
        {
            "operator": {"Type": "ACTIVATION_IDENTITY", "InputTensor": {"DataType": "FLOAT32", "Sizes": [1000]}},
            "inputs": {"InputTensor": b64encode(np.arange(1000, dtype=np.float32).tobytes()).decode()},
        }
    )

    @coding
    def test_both_ways(self, client: httpx.Client, coding: str) -> None:
        headers = {"content-type": "application/json", "content-encoding": coding, "accept-encoding": coding}
        for _ in range(3):  # the third is found among the requests that were judged
            with client.stream(
                "POST", "/v1/dispatch", content=COMPRESS[coding](self.BODY), headers=headers
            ) as response:
                assert response.status_code == 200, response.read()
                answer = b"".join(response.iter_raw())
            assert response.headers["content-encoding"] == coding
            assert int(response.headers["content-length"]) == len(answer)
            document = orjson.loads(plain(coding, answer))
            assert document["outputs"]["OutputTensor"]["data"].encode() in self.BODY

    @pytest.mark.parametrize("coding", ["gzip", "Deflate", "zstd"])
    def test_files(self, client: httpx.Client, coding: str) -> None:
        x = npy(np.arange(1 << 18, dtype=np.float32))
        headers = {"content-type": "application/x-npy", "content-encoding": coding, "accept-encoding": coding}
        packed = COMPRESS[coding.lower()](x)
        path = "/v1/operators/ACTIVATION_IDENTITY/dispatch"
        with client.stream("POST", path, content=packed, headers=headers) as response:
            answer = b"".join(response.iter_raw())
        assert response.headers["content-encoding"] == coding.lower()
        assert plain(coding.lower(), answer)[-(1 << 20) :] == x[-(1 << 20) :]

    def test_graphs_and_questions(self, client: httpx.Client) -> None:
        headers = {"content-type": "application/json", "content-encoding": "gzip", "accept-encoding": "gzip"}
        kept = client.post("/v1/graphs", content=gzip.compress(orjson.dumps(EXAMPLE)), headers=headers)
        assert (kept.status_code in (200, 201), kept.headers["content-encoding"]) == (True, "gzip")
        path = kept.headers["location"]
        made = client.post(f"{path}/dispatch", content=gzip.compress(orjson.dumps(EXAMPLE_DATA)), headers=headers)
        assert (made.status_code, made.headers["content-encoding"]) == (200, "gzip")
        asked = orjson.dumps({"Feature": "FEATURE_LEVELS", "RequestedFeatureLevels": ["5_0"]})
        assert client.post("/v1/feature-support", content=gzip.compress(asked), headers=headers).status_code == 200
        models = client.post("/v1/dxdispatch", content=gzip.compress(orjson.dumps(MODEL)), headers=headers)
        assert (models.status_code, models.headers["content-encoding"]) == (200, "gzip")

    @pytest.mark.parametrize("path", ["dispatch", "graphs", "feature-support", "dxdispatch"])
    def test_broken(self, client: httpx.Client, path: str) -> None:
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        problem = refusal_of(client.post(f"/v1/{path}", content=self.BODY, headers=headers), 400)
        assert problem["detail"].startswith("The body is not gzip")

    def test_bombs(self, small: RunningServer) -> None:
        bomb = gzip.compress(bytes(64 << 20))
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        with httpx.Client(base_url=small.url, timeout=30) as client:
            for path in ("dispatch", "graphs", "feature-support", "dxdispatch"):
                problem = refusal_of(client.post(f"/v1/{path}", content=bomb, headers=headers), 413)
                assert "max_body_bytes allows 1048576" in problem["detail"]
            assert "dmlserve_memory_bytes 0.0" in client.get("/metrics").text
