"""Compressed requests and answers, within the same limits as plain ones."""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.conftest import ServerFactory
from tests.inference.wire import CELU, LENGTH, X, behind, body, error_of, listed

COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
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
    plain = zlib.decompress(answer, zlib.MAX_WBITS + 32)
    assert plain[int(found[LENGTH.lower()]) :] == x.tobytes()


@coding
def test_json_too(client: httpx.Client, coding: str) -> None:
    content, _ = body({"inputs": [listed("InputTensor", X)]})
    headers = {"content-encoding": coding, "accept-encoding": coding}
    found, answer = send(client, COMPRESS[coding](content), headers)
    assert found["content-type"] == "application/json"
    assert b'"data":[' in zlib.decompress(answer, zlib.MAX_WBITS + 32)


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


@coding
def test_bombs_are_refused_before_they_take_memory(start_server: ServerFactory, coding: str) -> None:
    bomb = COMPRESS[coding](bytes(64 << 20))
    assert len(bomb) < 100_000
    server = start_server("--max-body-bytes", "1048576")
    with httpx.Client(base_url=server.url, timeout=30) as client:
        said = error_of(client.post(CELU, content=bomb, headers={"content-encoding": coding}), 413)
        assert said == "Bytes of the decompressed body: more, where max_body_bytes allows 1048576."
        assert "dmlserve_memory_bytes 0.0" in client.get("/metrics").text
    high_water = next(
        line for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    other = start_server("--max-memory-bytes", "2097152")
    with httpx.Client(base_url=other.url, timeout=30) as client:
        said = error_of(client.post(CELU, content=bomb, headers={"content-encoding": coding}), 413)
        assert "max_memory_bytes" in said
    assert int(high_water.split()[1]) < 400 << 10
