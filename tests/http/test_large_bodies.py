"""Bodies that are received into buffers of their own: everything must be as with small ones."""

import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest

from app.http.server.scratch import LARGE
from tests.conftest import SERVER, STOCK, RunningServer, ServerFactory, ours_only, running_server
from tests.http.load import metric, wait_for, wait_until
from tests.http.refusals import refusal_of
from tests.http.wire import CHUNKED, chunks, connection, header, length
from tests.messages import PARAMETERIZED_RELU, as_json, output_of, post_json, post_msgpack, request

MIB = 1 << 20
MSGPACK = b"Content-Type: application/msgpack"
ANSWER = b"Accept: application/msgpack"
IDLE = 16 * MIB


@pytest.fixture(scope="module", params=["ours", "stock"])
def any_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """On our HTTP protocol and on uvicorn's own."""
    command = SERVER if request.param == "ours" else STOCK
    flags = ("--idle-buffer-bytes", str(IDLE), "--queue-depth", "1000")
    with running_server(tmp_path_factory.mktemp("large") / "log", *flags, command=command) as running:
        yield running


@pytest.fixture
def any_client(any_server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=any_server.url, timeout=60) as opened:
        yield opened


def message_of(elements: int, seed: int = 0, **fields: Any) -> tuple[dict[str, Any], Any]:
    """A request and its result."""
    rng = np.random.default_rng(seed)
    x, slope = (rng.integers(-1000, 1000, elements).astype(np.float32) for _ in range(2))
    message = request(PARAMETERIZED_RELU, {"InputTensor": x, "SlopeTensor": slope}, **fields)
    return message, np.where(x >= 0, x, x * slope)


def body_of(elements: int, seed: int = 0) -> tuple[bytes, Any]:
    message, expected = message_of(elements, seed)
    return msgpack.packb(message), expected


def check(response: httpx.Response, expected: Any) -> None:
    np.testing.assert_array_equal(output_of(response), expected)


# Around the sizes at which something changes: extension or not, the first buffer, the next one
SIZES = [LARGE // 8 - 50, LARGE // 8, LARGE // 8 + 1000, MIB // 8 - 40, MIB // 8, 2 * MIB // 8 + 1, MIB + 77]


@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("post", [post_json, post_msgpack])
def test_sizes(any_client: httpx.Client, elements: int, post: Any) -> None:
    message, expected = message_of(elements)
    check(post(any_client, message), expected)
    message, expected = message_of(elements, in_place="InputTensor")
    check(post(any_client, message), expected)


@pytest.mark.parametrize("step", [100_000, 300_000, 3_000_000])
def test_in_pieces(any_server: RunningServer, step: int) -> None:
    body, expected = body_of(MIB)
    with connection(any_server) as client:
        client.send(header(MSGPACK, ANSWER, length(len(body))))
        for start in range(0, len(body), step):
            client.send(body[start : start + step])
            time.sleep(0.01)
        check(client.receive(), expected)


def test_chunked(any_server: RunningServer) -> None:
    body, expected = body_of(MIB)
    pieces = [body[start : start + 700_000] for start in range(0, len(body), 700_000)]
    with connection(any_server) as client:
        check(client.ask(header(MSGPACK, ANSWER, CHUNKED), chunks(*pieces)), expected)


def test_pipelined_with_small_ones(any_server: RunningServer) -> None:
    requests, results = [], []
    for turn, elements in enumerate([3, MIB // 2, 3, 5, MIB // 4, MIB // 3, 7]):
        body, expected = body_of(elements, turn)
        requests.append(header(MSGPACK, ANSWER, length(len(body))) + body)
        results.append(expected)
    with connection(any_server) as client, ThreadPoolExecutor(1) as sender:
        sent = sender.submit(client.send, *requests)
        for expected in results:
            check(client.receive(), expected)
        sent.result()


def test_expect_100_continue(any_server: RunningServer) -> None:
    body, expected = body_of(MIB)
    with connection(any_server) as client:
        client.send(header(MSGPACK, ANSWER, length(len(body)), b"Expect: 100-continue"))
        assert client.received.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert client.received.readline() == b"\r\n"
        check(client.ask(body), expected)


def test_http_1_0(any_server: RunningServer) -> None:
    body, expected = body_of(MIB)
    with connection(any_server) as client:
        client.send(header(MSGPACK, ANSWER, length(len(body))).replace(b"HTTP/1.1", b"HTTP/1.0"), body)
        check(client.receive(), expected)
        assert client.is_closed()


def test_what_was_received_is_counted(any_server: RunningServer, any_client: httpx.Client) -> None:
    def counted() -> float:
        return metric(any_client, "http_request_size_bytes_sum", route="/v1/dispatch")

    before = counted()
    body, expected = body_of(MIB)
    with connection(any_server) as client:
        check(client.ask(header(MSGPACK, ANSWER, length(len(body))), body), expected)
    assert counted() - before == len(body)


def test_many_clients_abort_and_finish(any_server: RunningServer, any_client: httpx.Client) -> None:
    """Nobody gets another one's bytes; all memory comes back; what is kept stays within its bound."""

    def one_client(seed: int) -> int:
        rng = random.Random(seed)
        finished = 0
        for turn in range(10):
            elements = rng.choice([100, MIB // 8, MIB // 4, MIB // 2, MIB])
            body, expected = body_of(elements, 100 * seed + turn)
            with connection(any_server) as client:
                if rng.random() < 0.5:
                    check(client.ask(header(MSGPACK, ANSWER, length(len(body))), body), expected)
                    finished += 1
                match rng.randrange(4):
                    case 0:  # gone in the middle of the body
                        client.send(header(MSGPACK, ANSWER, length(len(body))), body[: rng.randrange(len(body))])
                        if rng.random() < 0.5:
                            client.socket.shutdown(socket.SHUT_WR)
                    case 1:  # gone without reading the answer, or in the middle of it
                        client.send(header(MSGPACK, ANSWER, length(len(body))), body)
                        client.received.read(rng.choice([1, 1000, 100_000][: 1 + (elements > 100_000) * 2]))
                    case _:
                        for _ in range(2):
                            check(client.ask(header(MSGPACK, ANSWER, length(len(body))), body), expected)
                            finished += 1
        return finished

    with ThreadPoolExecutor(8) as clients:
        assert sum(clients.map(one_client, range(8))) > 20
    wait_for(any_client, "memory_bytes", 0)
    wait_for(any_client, "running_dispatches", 0)
    assert 0 < metric(any_client, "idle_buffer_bytes") <= IDLE


def test_a_client_that_announces_much_holds_little(any_server: RunningServer, any_client: httpx.Client) -> None:
    with connection(any_server) as slow:
        slow.send(header(MSGPACK, length(200 * MIB)), b"\x80" * 400_000)
        wait_until(lambda: metric(any_client, "memory_bytes") > 0)
        for _ in range(20):
            slow.send(b"\x80")
            assert metric(any_client, "memory_bytes") <= 2 * MIB
    wait_for(any_client, "memory_bytes", 0)


@ours_only
def test_too_slow_a_body(start_server: ServerFactory) -> None:
    """Refused in the middle of a body, after which the connection is closed."""
    running = start_server("--body-seconds", "3")
    body, _ = body_of(MIB)
    with connection(running) as client, httpx.Client(base_url=running.url) as observer:
        client.send(header(MSGPACK, ANSWER, length(len(body))), body[: 3 * MIB])
        assert "body_seconds" in refusal_of(client.receive(), 408)["detail"]
        assert client.is_closed()
        wait_for(observer, "memory_bytes", 0)


def test_memory_that_others_hold(start_server: ServerFactory) -> None:
    """The second one is refused as soon as it outgrows what is left, and its connection goes on."""
    running = start_server("--max-memory-bytes", str(12 * MIB))
    body, expected = body_of(MIB)
    with connection(running) as first, connection(running) as second, httpx.Client(base_url=running.url) as observer:
        first.send(header(MSGPACK, ANSWER, length(len(body))), body[:-1])
        wait_until(lambda: metric(observer, "memory_bytes") >= len(body))
        refusal_of(second.ask(header(MSGPACK, ANSWER, length(len(body))), body), 503)
        check(first.ask(body[-1:]), expected)
        check(second.ask(header(MSGPACK, ANSWER, length(len(body))), body), expected)


@ours_only
def test_an_answer_that_nobody_reads_is_dropped(start_server: ServerFactory) -> None:
    running = start_server("--send-seconds", "2")
    body, expected = body_of(4 * MIB)
    with connection(running) as client, httpx.Client(base_url=running.url) as observer:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.send(header(MSGPACK, ANSWER, length(len(body))), body)
        wait_until(lambda: metric(observer, "dispatches_total", operator=PARAMETERIZED_RELU, device="numpy") == 1)
        wait_for(observer, "memory_bytes", 0)
        wait_until(lambda: "took nothing of its answer" in running.log.read_text())
    with connection(running) as client:  # a slow one is served
        client.send(header(MSGPACK, ANSWER, length(len(body))), body)
        time.sleep(0.1)
        check(client.receive(), expected)


def test_json_in_and_out_of_blocks(any_client: httpx.Client) -> None:
    """Elements whose number leaves every remainder of base64's groups and blocks."""
    for elements in (65_535, 65_536, 65_537, 49_152 * 4, 49_152 * 4 + 1):
        x = np.arange(elements, dtype=np.uint8).view(np.int8)
        message = request(PARAMETERIZED_RELU, {"InputTensor": x, "SlopeTensor": x})
        answer = any_client.post("/v1/dispatch", json=as_json(message))
        check(answer, np.where(x >= 0, x, (x.astype(np.int16) * x).astype(np.int8)))


@pytest.mark.parametrize("spoilt", [b"=", b"*", b"\\", b'"', b"\n", b"\xff"])
@pytest.mark.parametrize("place", [0.25, 0.5, 0.999])
def test_spoilt_base64_in_a_large_body(any_client: httpx.Client, spoilt: bytes, place: float) -> None:
    """The first time, and when all around the data is known already."""
    message, expected = message_of(MIB // 8)
    check(post_json(any_client, message), expected)
    body = httpx.Request("POST", "http://test", json=as_json(message)).content
    middle = int(len(body) * place)
    wrong = body[:middle] + spoilt + body[middle + 1 :]
    headers = {"content-type": "application/json"}
    response = any_client.post("/v1/dispatch", content=wrong, headers=headers)
    assert response.status_code in (400, 413, 422)  # 413: what is no string any more counts as structure
    check(post_json(any_client, message), expected)
