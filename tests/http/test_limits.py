"""413: each limit is named, at its own boundary, before memory is taken."""

import gzip
import itertools
import json
import math
import re
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest

from app.codecs.request_cache import MOST_BYTES
from tests.codings import zstd
from tests.conftest import RunningServer, ServerFactory, ours_only, running_server
from tests.http.load import metric, resident, wait_until
from tests.http.refusals import error_at, refusal_of
from tests.http.wire import CHUNKED, JSON, chunks, connection, header, length
from tests.messages import CELU, PARAMETERIZED_RELU, as_json, output_of, post_json, post_msgpack, request

MIB = 1 << 20
INFER = b"/v2/models/activation_celu/infer"
MSGPACK = b"Content-Type: application/msgpack"
X = np.array([1, 2], np.float32)
VALID = request(CELU, {"InputTensor": X})

SMALL_LIMITS = {
    "max_body_bytes": 4096,
    "max_structure_bytes": 2048,
    "max_depth": 10,
    "max_graph_nodes": 300,
    "max_graph_structure_bytes": 4096,
    "max_graphs": 7,
    "max_graph_bytes": 2048,
    "max_model_bytes": 4096,
    "max_model_graphs": 5,
    "graph_seconds": 900.0,
    "max_numbers": 300,
    "max_tensor_bytes": 1024,
    "max_memory_bytes": MIB,
    "max_header_bytes": 4096,
    "max_connections": 200,
    "queue_depth": 3,
    "deadline_seconds": 9.0,
    "header_seconds": 8.0,
    "body_seconds": 7.0,
    "send_seconds": 6.0,
}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with `SMALL_LIMITS`."""
    settings = {f"DMLSERVE_{name.upper()}": str(value) for name, value in SMALL_LIMITS.items()}
    with running_server(tmp_path_factory.mktemp("limited") / "log", **settings) as running:
        yield running


@pytest.fixture(scope="module")
def limited_client(limited: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=limited.url, timeout=30) as opened:
        yield opened


def assert_over(limit: str, allowed: int, response: httpx.Response) -> dict[str, Any]:
    """The problem of a 413 that names the limit and says what it allows."""
    problem = refusal_of(response, 413)
    assert f"where {limit} allows {allowed}." in problem["detail"]
    return problem


def test_the_capabilities_show_the_limits_in_force(limited_client: httpx.Client) -> None:
    shown = limited_client.get("/v1/capabilities").json()["limits"]
    assert shown == SMALL_LIMITS | {"max_dimension_count": 8, "max_elements": 2**32 - 1}


def padded(size: int) -> bytes:
    """A valid request of `size` bytes."""
    body = json.dumps(as_json(VALID)).encode()
    return body + b" " * (size - len(body))


class TestBody:
    def test_up_to_the_limit(self, limited: RunningServer) -> None:
        body = padded(2048)  # of JSON all but tensor data counts as structure, and so do short ones
        with connection(limited) as client:
            output_of(client.ask(header(JSON, length(len(body))), body))
            output_of(client.ask(header(JSON, CHUNKED), chunks(body[:1000], body[1000:])))

    @pytest.mark.parametrize("path", [b"/v1/dispatch", b"/v1/feature-support"])
    @pytest.mark.parametrize("announced", [4097, 10**12, 2**63])
    def test_is_refused_by_its_length_before_it_is_sent(
        self, limited: RunningServer, path: bytes, announced: int
    ) -> None:
        with connection(limited) as client:
            problem = assert_over("max_body_bytes", 4096, client.ask(header(JSON, length(announced), path=path)))
            assert str(announced) in problem["detail"]
            assert problem["errors"] == []  # it is no field's

    def test_does_not_invite_what_it_will_refuse(self, limited: RunningServer) -> None:
        with connection(limited) as client:
            response = client.ask(header(JSON, length(4097), b"Expect: 100-continue"))
            assert_over("max_body_bytes", 4096, response)

    @ours_only
    @pytest.mark.parametrize("also", [b"", b" " * 4097])
    def test_closes_where_it_cannot_know_what_comes_next(self, limited: RunningServer, also: bytes) -> None:
        """Who expects to be invited may send the body all the same, or a request in its place (RFC 9110, 10.1.1)."""
        with connection(limited) as client:
            response = client.ask(header(JSON, length(4097), b"Expect: 100-continue"))
            assert_over("max_body_bytes", 4096, response)
            assert response.headers["connection"] == "close"
            client.send(also, header(JSON, length(200)), padded(200))
            assert client.socket.recv(1) == b""

    @pytest.mark.parametrize("path", [b"/v1/dispatch", b"/v1/feature-support"])
    def test_is_refused_in_chunks_as_soon_as_it_is_over(self, limited: RunningServer, path: bytes) -> None:
        with connection(limited) as client:
            client.send(header(JSON, CHUNKED, path=path), b"1001\r\n", b" " * 4096)
            client.send(b" ")
            assert_over("max_body_bytes", 4096, client.receive())

    def test_that_was_sent_all_the_same_leaves_the_connection_usable(self, limited: RunningServer) -> None:
        good = padded(200)
        with connection(limited) as client:
            assert_over("max_body_bytes", 4096, client.ask(header(JSON, length(5000)), b" " * 5000))
            output_of(client.ask(header(JSON, length(200)), good))
            assert_over("max_body_bytes", 4096, client.ask(header(JSON, CHUNKED), chunks(b" " * 3000, b" " * 3000)))
            output_of(client.ask(header(JSON, length(200)), good))


def test_only_numbers_count_as_numbers(limited_client: httpx.Client) -> None:
    """Not what comes as base64 beside them."""
    descs = [{"DataType": "UINT8", "Sizes": [size]} for size in (400, 1)]
    inputs = {"InputTensors": [as_json(request(CELU, {"x": np.zeros(400, np.uint8)}))["inputs"]["x"], [1]]}
    message = {"operator": {"Type": "JOIN", "Axis": 0, "InputTensors": descs}, "inputs": inputs, "data": "base64"}
    output_of(limited_client.post("/v1/dispatch", json=message))
    inputs["InputTensors"][0] = [0] * 300
    descs[0]["Sizes"] = [300]
    assert_over("max_numbers", 300, limited_client.post("/v1/dispatch", json=message))


class TestStructure:
    """All of a body that is not tensor data."""

    def test_json_up_to_the_limit(self, limited_client: httpx.Client) -> None:
        headers = {"content-type": "application/json"}
        output_of(limited_client.post("/v1/dispatch", content=padded(2048), headers=headers))
        response = limited_client.post("/v1/dispatch", content=padded(2049), headers=headers)
        assert_over("max_structure_bytes", 2048, response)

    @pytest.mark.parametrize("value", ["t" * 3000, [0] * 2100, {f"n{i}": i for i in range(400)}])
    def test_msgpack(self, limited_client: httpx.Client, value: object) -> None:
        assert_over("max_structure_bytes", 2048, post_msgpack(limited_client, VALID | {"device": value}))

    @pytest.mark.parametrize("value", ["t" * 3000, ["t" * 30] * 100, [0] * 1500, {f"n{i}": i for i in range(250)}])
    def test_json(self, limited_client: httpx.Client, value: object) -> None:
        assert_over("max_structure_bytes", 2048, post_json(limited_client, VALID | {"device": value}))

    @pytest.mark.parametrize("post", [post_json, post_msgpack])
    def test_tensor_data_do_not_count(self, client: httpx.Client, post: Any) -> None:
        structure = client.get("/v1/capabilities").json()["limits"]["max_structure_bytes"]
        x = np.ones(structure // 4 + 1000, np.float32)
        output_of(post(client, request(CELU, {"InputTensor": x})))

    @pytest.mark.parametrize("kind", ["json", "msgpack"])
    def test_with_the_default_limit(self, client: httpx.Client, kind: str) -> None:
        message = {"operator": list(range(100_000, 160_000))}
        body = json.dumps(message) if kind == "json" else msgpack.packb(message)
        response = client.post("/v1/dispatch", content=body, headers={"content-type": f"application/{kind}"})
        assert_over("max_structure_bytes", 256 * 1024, response)


def assert_depth_is_limited(server: RunningServer, limit: int) -> None:
    for kind, opening, closing in ((JSON, b"[", b"]"), (MSGPACK, b"\x91", b"")):
        at_limit, beyond = (opening * depth + b"0" + closing * depth for depth in (limit, limit + 1))
        with connection(server) as client:
            refusal_of(client.ask(header(kind, length(len(at_limit))), at_limit), 422)
            assert_over("max_depth", limit, client.ask(header(kind, length(len(beyond))), beyond))


def test_depth(limited: RunningServer) -> None:
    assert_depth_is_limited(limited, 10)


def test_the_greatest_depth_that_can_be_set(start_server: ServerFactory) -> None:
    """Python's own limit on recursion is not met before."""
    assert_depth_is_limited(start_server("--max-depth", "256"), 256)


# Descriptors of CELU's tensors that need 1025 bytes and more, in a few bytes of request.
TOO_LARGE: dict[str, tuple[str, int, dict[str, Any]]] = {
    "sizes": ("InputTensor", 1028, {"InputTensor": {"Sizes": [257]}}),
    "input strides": ("InputTensor", 1028, {"InputTensor": {"Sizes": [2], "Strides": [256]}}),
    "repeated input": ("InputTensor", 1028, {"InputTensor": {"Sizes": [257], "Strides": [0]}}),
    "output strides": (
        "OutputTensor",
        1028,
        {"InputTensor": {"Sizes": [2]}, "OutputTensor": {"Sizes": [2], "Strides": [256]}},
    ),
    "input total": ("InputTensor", 1028, {"InputTensor": {"Sizes": [2], "TotalTensorSizeInBytes": 1028}}),
    "output total": (
        "OutputTensor",
        1028,
        {"InputTensor": {"Sizes": [2]}, "OutputTensor": {"Sizes": [2], "TotalTensorSizeInBytes": 1028}},
    ),
    "huge stride": ("InputTensor", 4 * 2**32, {"InputTensor": {"Sizes": [2], "Strides": [2**32 - 1]}}),
    "huge total": (
        "InputTensor",
        2**62,
        {"InputTensor": {"Sizes": [2], "TotalTensorSizeInBytes": 2**62}},
    ),
    "most elements": ("InputTensor", 4 * (2**32 - 1), {"InputTensor": {"Sizes": [2**32 - 1], "Strides": [0]}}),
}


def large_message(operator: dict[str, Any]) -> dict[str, Any]:
    descs = {name: {"DataType": "FLOAT32"} | desc for name, desc in operator.items()}
    return {"operator": {"Type": CELU} | descs, "inputs": {"InputTensor": b"\0\0\0\0"}}


@pytest.mark.parametrize(("name", "size", "operator"), TOO_LARGE.values(), ids=TOO_LARGE.keys())
@pytest.mark.parametrize("post", [post_json, post_msgpack])
def test_tensor_bytes(limited_client: httpx.Client, post: Any, name: str, size: int, operator: dict[str, Any]) -> None:
    response = post(limited_client, large_message(operator))
    assert_over("max_tensor_bytes", 1024, response)
    error = error_at(f"/operator/{name}", response, 413)
    assert (error["given"], error["allowed"]) == (size, [1024])


@pytest.mark.parametrize(
    "operator",
    [
        {"InputTensor": {"Sizes": [256], "Strides": [0]}},
        {"InputTensor": {"Sizes": [2], "Strides": [0]}, "OutputTensor": {"Sizes": [2], "Strides": [255]}},
        {"InputTensor": {"Sizes": [1], "Strides": [2**32 - 1]}},
    ],
    ids=["repeated input", "output strides", "stride of one element"],
)
def test_tensor_bytes_up_to_the_limit(limited_client: httpx.Client, operator: dict[str, Any]) -> None:
    output_of(post_json(limited_client, large_message(operator)))


def test_elements_are_at_most_2_to_the_32_less_1(client: httpx.Client) -> None:
    message = large_message({"InputTensor": {"Sizes": [2**16, 2**16], "Strides": [0, 0]}})
    assert error_at("/operator/InputTensor/Sizes", post_json(client, message))["allowed"] == [2**32 - 1]


def test_memory_that_one_request_can_never_have(start_server: ServerFactory) -> None:
    """A 503 would have it try again for ever."""
    running = start_server("--max-memory-bytes", str(MIB))
    with httpx.Client(base_url=running.url) as client:
        fitting = np.ones(50_000, np.float32)
        output_of(post_msgpack(client, request(CELU, {"InputTensor": fitting})))
        body = np.ones(300_000, np.float32)
        assert_over("max_memory_bytes", MIB, post_msgpack(client, request(CELU, {"InputTensor": body})))
        outputs = large_message({"InputTensor": {"Sizes": [300_000], "Strides": [0]}})
        assert_over("max_memory_bytes", MIB, post_msgpack(client, outputs))
        assert_over("max_memory_bytes", MIB, post_json(client, request(CELU, {"InputTensor": body[:200_000]})))
        # Together its text and its tensor are more, but one takes the place of the other.
        output_of(post_json(client, request(CELU, {"InputTensor": body[:150_000]})))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that has not needed much memory yet, but answered once."""
    with running_server(tmp_path_factory.mktemp("fresh") / "log") as running:
        with httpx.Client(base_url=running.url) as client:
            output_of(post_json(client, VALID))
        yield running


@contextmanager
def peak_grows_by_at_most(size: int, server: RunningServer) -> Iterator[None]:
    """The most resident memory that the process has ever had stays about what it was."""
    status = Path(f"/proc/{server.process.pid}/status")

    def peak() -> int:
        (kilobytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        return int(kilobytes) * 1024

    before = peak()
    yield
    assert peak() - before <= size


class TestMemoryIsNotTaken:
    """The peak of the process's resident memory hardly moves, whatever is claimed."""

    @pytest.mark.parametrize(
        ("kind", "body", "status"),
        [
            pytest.param(MSGPACK, b"\x81\xa6device\xc6\xff\xff\xff\xff", 400, id="bin of 4 GiB"),
            pytest.param(MSGPACK, b"\x81\xa6device\xdb\xff\xff\xff\xff", 400, id="str of 4 GiB"),
            pytest.param(MSGPACK, b"\x81\xa6device\xdd\xff\xff\xff\xff", 400, id="array of 4 G"),
            pytest.param(MSGPACK, b"\xdf\xff\xff\xff\xff\xa1a", 400, id="map of 4 G"),
            pytest.param(JSON, b"[" * 30_000 + b"]" * 30_000, 413, id="deep JSON"),
            # Python's decoder comes to its end since 3.14, and before stops where it has gone too deep.
            pytest.param(
                JSON, b"[" * 60_000, 413 if sys.version_info < (3, 14) else 400, id="deep JSON without an end"
            ),
            pytest.param(MSGPACK, b"\x91" * 250_000, 413, id="deep msgpack"),
            pytest.param(JSON, b'{"a":[' + b"1," * MIB, 413, id="long JSON"),
            pytest.param(MSGPACK, b"\xdd\x00\x10\x00\x00" + b"\xc0" * MIB, 413, id="long msgpack"),
        ],
    )
    def test_for_documents(self, fresh: RunningServer, kind: bytes, body: bytes, status: int) -> None:
        with peak_grows_by_at_most(32 * MIB, fresh), connection(fresh) as client:
            for _ in range(3):
                refusal_of(client.ask(header(kind, length(len(body))), body), status)

    @pytest.mark.parametrize(
        "operator",
        [
            {"InputTensor": {"Sizes": [2**32 - 1], "Strides": [0]}},
            {"InputTensor": {"Sizes": [2], "Strides": [0]}, "OutputTensor": {"Sizes": [2], "Strides": [2**30]}},
            {
                "InputTensor": {"Sizes": [2], "Strides": [0]},
                "OutputTensor": {"Sizes": [2], "TotalTensorSizeInBytes": 2**40},
            },
            {"InputTensor": {"Sizes": [70 * MIB], "Strides": [0]}},
        ],
        ids=["repeated input", "output strides", "output total", "just over"],
    )
    def test_for_tensors(self, fresh: RunningServer, operator: dict[str, Any]) -> None:
        with peak_grows_by_at_most(16 * MIB, fresh), httpx.Client(base_url=fresh.url) as client:
            assert_over("max_tensor_bytes", 256 * MIB, post_json(client, large_message(operator)))

    @pytest.mark.parametrize("announced", [256 * MIB + 1, 10**15])
    def test_for_announced_bodies(self, fresh: RunningServer, announced: int) -> None:
        with peak_grows_by_at_most(16 * MIB, fresh), connection(fresh) as client:
            assert_over("max_body_bytes", 256 * MIB, client.ask(header(JSON, length(announced))))

    def test_for_what_is_sent_after_a_refusal(self, fresh: RunningServer) -> None:
        with peak_grows_by_at_most(16 * MIB, fresh), connection(fresh) as client:
            client.send(header(b"Content-Type: text/plain", CHUNKED))
            refusal_of(client.receive(), 415)
            for _ in range(64):
                client.send(b"%x\r\n%b\r\n" % (MIB, bytes(MIB)))
            client.send(b"0\r\n\r\n")
            body = padded(200)
            output_of(client.ask(header(JSON, length(200)), body))

    @pytest.mark.parametrize("end", [b"\\ud83d\\ude00", b'\\"', b"\\\\", b"\\n"])
    def test_for_text_with_escapes(self, fresh: RunningServer, end: bytes) -> None:
        """It is no tensor data, and so no longer than other structure."""
        body = b'{"inputs": {"InputTensor": "' + b"A" * (8 * MIB) + end + b'"}}'
        with peak_grows_by_at_most(16 * MIB, fresh), connection(fresh) as client:
            assert_over("max_structure_bytes", 256 << 10, client.ask(header(JSON, length(len(body))), body))

    @pytest.mark.parametrize("path", [b"/v1/dispatch", b"/v1/feature-support", INFER, b"/v2/repository/index"])
    @pytest.mark.parametrize("filling", [b" ", b'"', b"[", b'"",', b'\\"', b'"\\"'])
    def test_for_structure(self, fresh: RunningServer, path: bytes, filling: bytes) -> None:
        """It is refused where it lies."""
        body = filling * (16 * MIB // len(filling))
        with peak_grows_by_at_most(32 * MIB, fresh), connection(fresh) as client:
            response = client.ask(header(JSON, length(len(body)), path=path), body)
        assert response.status_code == 413
        assert "where max_structure_bytes allows 262144." in response.text


@pytest.mark.parametrize("coding", ["identity", "gzip", "zstd"])
def test_all_that_is_done_to_bodies_is_within_the_memory(start_server: ServerFactory, coding: str) -> None:
    """And what is kept of it for later: several at a time, and one after another."""
    limit = 160 * MIB
    running = start_server("--max-memory-bytes", str(limit), "--threads", "2")
    blanks = b" " * (90 * MIB)
    body = {"identity": blanks, "gzip": gzip.compress(blanks, 1), "zstd": zstd.compress(blanks, 1)}[coding]
    fields = [JSON, length(len(body)), b"Content-Encoding: " + coding.encode()]

    def one_client(_: int) -> None:
        with connection(running) as client:
            for _ in range(3):
                response = client.ask(header(*fields, path=INFER), body)
                assert response.status_code in (413, 503), response.text

    with httpx.Client(base_url=running.url) as client:
        output_of(post_json(client, VALID))
    with peak_grows_by_at_most(limit + 32 * MIB, running), ThreadPoolExecutor(4) as clients:
        list(clients.map(one_client, range(4)))


@ours_only
def test_what_waits_on_connections_is_within_the_memory(start_server: ServerFactory) -> None:
    """Of clients that send on and on and read nothing: requests whose turn has not come, long documents that they have
    asked for, and headers that they do not end."""
    limit, count = 16 * MIB, 300
    running = start_server("--max-memory-bytes", str(limit), "--no-access-log")
    asked = header(method=b"GET", path=b"/docs/assets/swagger-ui-bundle.js")
    posted = header(MSGPACK, length(80_000)) + bytes(80_000)
    fields = header(*(b"X-%d: y" % number for number in range(90)), method=b"GET", path=b"/v2")
    kinds = [asked + posted * 4, asked + fields * 300, b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 8000]
    with httpx.Client(base_url=running.url) as client, ExitStack() as opened:
        output_of(post_json(client, VALID))
        with peak_grows_by_at_most(limit + count * 128 * 1024, running):
            for _, sent in zip(range(count), itertools.cycle(kinds), strict=False):
                each = opened.enter_context(socket.socket())
                each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                each.connect(("127.0.0.1", running.port))
                each.setblocking(False)
                with suppress(OSError):
                    each.send(sent)
            wait_until(lambda: metric(client, "memory_bytes") > limit - 2 * MIB)
            time.sleep(0.5)  # more of it may come
            opened.close()
            wait_until(lambda: metric(client, "memory_bytes") == 0)
            output_of(post_json(client, VALID))


def test_what_is_made_of_requests_is_kept_within_bytes(start_server: ServerFactory) -> None:
    """For those that come again: here 2 MB each, of tables, of a few hundred."""

    def average(shift: int) -> dict[str, Any]:
        padding = {"StartPadding": [0, 120_000 + shift], "EndPadding": [0, 120_000 - shift]}
        descs = {"InputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 1, 1]}}
        window = {"Strides": [1, 1], "WindowSize": [1, 2], "IncludePadding": False}
        return {"operator": {"Type": "AVERAGE_POOLING"} | descs | padding | window, "inputs": {"InputTensor": bytes(4)}}

    def gradient(width: int) -> dict[str, Any]:
        sizes = {"InputTensor": [1, 1, 1020, 2 + width], "InputGradientTensor": [1, 1, 510, 1 + width]}
        descs = {name: {"DataType": "FLOAT32", "Sizes": each} for name, each in sizes.items()}
        window = {"Strides": [1, 1], "WindowSize": [511, 2], "StartPadding": [0, 0], "EndPadding": [0, 0]}
        operator = {"Type": "MAX_POOLING_GRAD", "Dilations": [1, 1]} | descs | window
        return {"operator": operator, "inputs": {name: bytes(4 * math.prod(each)) for name, each in sizes.items()}}

    messages = [*map(average, range(130)), *map(gradient, range(20))]
    running = start_server("--threads", "1", "--no-access-log")
    with httpx.Client(base_url=running.url, timeout=30) as client:
        for message in (messages[0], messages[-1]):
            assert post_msgpack(client, message).status_code == 200
        before = resident(running.process.pid)
        for message in messages:
            for _ in range(2):
                response = post_msgpack(client, message)
                assert response.status_code == 200, response.text
        assert resident(running.process.pid) - before < MOST_BYTES + 64 * MIB
        assert 0 < metric(client, "cache_entries", cache="requests") < len(messages)


@pytest.mark.parametrize("kind", ["many", "one"])
@ours_only
def test_headers(limited: RunningServer, kind: str) -> None:
    fields = [b"X-%d: y" % number for number in range(120)] if kind == "many" else [b"X: " + b"y" * 5000]
    with connection(limited) as client:
        response = client.ask(header(*fields, method=b"GET", path=b"/health/live"))
    assert response.status_code == 431
    assert response.headers["content-type"] == "application/problem+json"


def test_unused_inputs_do_not_hide_a_limit(limited_client: httpx.Client) -> None:
    """The second input is judged like the first."""
    descs = {
        "InputTensor": {"DataType": "FLOAT32", "Sizes": [2]},
        "SlopeTensor": {"DataType": "FLOAT32", "Sizes": [2], "Strides": [4096]},
    }
    message = {"operator": {"Type": PARAMETERIZED_RELU} | descs, "inputs": dict.fromkeys(descs, bytes(8))}
    error_at("/operator/SlopeTensor", post_json(limited_client, message), 413)
