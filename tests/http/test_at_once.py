"""Small dispatches, the second time, when they are answered without a task: all must be as it was the first time."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgpack
import numpy as np
import pytest

from tests.conftest import RunningServer, ServerFactory, ours_only, running_server
from tests.http.load import ENDLESS, ENDLESS_SETTINGS, NOT_BRIEF, metric, start, wait_for, wait_until
from tests.http.refusals import refusal_of
from tests.http.test_observation import ID, line_about
from tests.http.wire import CHUNKED, Connection, chunks, connection, header, length
from tests.messages import CELU, answer_of, output_of, post_json, post_msgpack, request

SMALL = request(CELU, {"InputTensor": np.array([1, 2, 3], np.float32)})
BODY: bytes = msgpack.packb(SMALL)
MSGPACK = (b"Content-Type: application/msgpack", b"Accept: application/msgpack")
REQUEST = header(*MSGPACK, length(len(BODY))) + BODY
PAGE = "https://page.example"


def ask(client: Connection, *fields: bytes) -> httpx.Response:
    """The answer to a small dispatch with these header fields."""
    return client.ask(header(*MSGPACK, *fields, length(len(BODY))), BODY)


def check(response: httpx.Response) -> None:
    assert output_of(response).tolist() == [1, 2, 3]


def check_ones(response: httpx.Response) -> None:
    assert (output_of(response) == 1).all()


def test_the_answer_is_the_same_but_for_times(server: RunningServer) -> None:
    answers = []
    with connection(server) as client:
        for _ in range(3):
            response = ask(client)
            check(response)
            answer = msgpack.unpackb(response.content)
            assert answer["execution"].pop("compute_seconds") > 0
            names = [name for name, _ in response.headers.raw]
            answers.append((names, response.headers["content-type"], answer))
    assert answers[0] == answers[1] == answers[2]


def test_several_in_one_packet(server: RunningServer) -> None:
    with connection(server) as client:
        check(client.ask(REQUEST))
        client.send(REQUEST * 20 + header(method=b"GET", path=b"/health/live") + REQUEST * 2)
        for number in range(23):
            response = client.receive()
            if number == 20:
                assert response.json()["status"] == "ready"
            else:
                check(response)


@pytest.mark.parametrize("close", [True, False], ids=["close", "1.0"])
def test_the_last_of_a_connection(server: RunningServer, close: bool) -> None:
    for _ in range(2):
        with connection(server) as client:
            check(client.ask(REQUEST))
            last = header(*MSGPACK, length(len(BODY)), *[b"Connection: close"] * close) + BODY
            response = client.ask(last if close else last.replace(b"HTTP/1.1", b"HTTP/1.0"))
            check(response)
            assert response.headers["connection"] == "close"
            assert client.is_closed()


def test_chunks(server: RunningServer) -> None:
    with connection(server) as client:
        for _ in range(3):
            check(client.ask(header(*MSGPACK, CHUNKED) + chunks(BODY[:20], BODY[20:])))


def test_representations(client: httpx.Client) -> None:
    for _ in range(3):
        check(post_json(client, SMALL))
        check(post_msgpack(client, SMALL))
        refusal_of(client.post("/v1/dispatch", content=BODY, headers={"content-type": "text/plain"}), 415)
        headers = {"content-type": "application/msgpack", "accept": "text/plain"}
        refusal_of(client.post("/v1/dispatch", content=BODY, headers=headers), 406)


def test_other_methods_and_paths(server: RunningServer) -> None:
    with connection(server) as client:
        check(client.ask(REQUEST))
        for head, status in [(header(method=b"PUT"), 405), (header(path=b"/v1/dispatch/"), 404)]:
            whole = head[:-2] + REQUEST[len(header()) - 2 :]
            refusal_of(client.ask(whole), status)
        check(client.ask(REQUEST))


def test_every_request_has_its_own_id_and_line(server: RunningServer) -> None:
    with connection(server) as client:
        made = {ask(client).headers[ID] for _ in range(3)}
        assert len(made) == 3
        for number in range(3):
            given = f"at-once-{number}"
            response = ask(client, f"{ID}: {given}".encode())
            assert response.headers[ID] == given
            line = line_about(server, given)
            assert (line["status"], line["operator"], line["device"]) == (200, CELU, "numpy")
            assert (line["request_bytes"], line["response_bytes"]) == (len(BODY), len(response.content))
            assert line["client"] == "127.0.0.1"


def test_the_client_behind_a_proxy(server: RunningServer) -> None:
    with connection(server) as client:
        for number in range(3):
            ask(client, b"X-Forwarded-For: 192.0.2.7", f"{ID}: proxied-{number}".encode())
            assert line_about(server, f"proxied-{number}")["client"] == "192.0.2.7"


def test_they_are_counted(server: RunningServer) -> None:
    with connection(server) as client, httpx.Client(base_url=server.url) as observer:
        check(client.ask(REQUEST))
        labels = {"operator": CELU, "device": "numpy"}
        before = metric(observer, "dispatches_total", **labels)
        for _ in range(5):
            check(client.ask(REQUEST))
        assert metric(observer, "dispatches_total", **labels) == before + 5
        wait_for(observer, "memory_bytes", 0)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a key, that pages may call."""
    flags = ["--cors-origins", PAGE, "--api-keys", "the-key"]
    with running_server(tmp_path_factory.mktemp("guarded") / "log", *flags) as running:
        yield running


def test_keys(guarded: RunningServer) -> None:
    with connection(guarded) as client:
        for _ in range(3):
            check(ask(client, b"Authorization: Bearer the-key"))
            refusal_of(ask(client), 401)
            for wrong in (b"Bearer wrong", b"Bearer", b"the-key", b"Basic the-key", b"Bearer the-key, Bearer the-key"):
                refusal_of(ask(client, b"Authorization: " + wrong), 401)


def test_pages_of_other_origins(guarded: RunningServer) -> None:
    key = b"Authorization: Bearer the-key"
    with connection(guarded) as client:
        for _ in range(3):
            check(ask(client, key))
            allowed = ask(client, key, b"Origin: " + PAGE.encode())
            assert allowed.headers["access-control-allow-origin"] == PAGE


def test_a_full_queue(start_server: ServerFactory) -> None:
    running = start_server(*ENDLESS_SETTINGS, "--queue-depth", "0")
    with connection(running) as client, connection(running) as busy, httpx.Client(base_url=running.url) as observer:
        check(client.ask(REQUEST))
        check(client.ask(REQUEST))
        start(busy, ENDLESS)
        wait_for(observer, "running_dispatches", 1)
        assert "retry-after" in client.ask(REQUEST).headers


def test_what_takes_long_is_left_to_a_worker(client: httpx.Client) -> None:
    x = np.ones(NOT_BRIEF, np.float32)
    for _ in range(3):
        response = post_msgpack(client, request(CELU, {"InputTensor": x}))
        assert answer_of(response)["execution"]["queue_seconds"] > 0


def test_memory_that_there_is_not(start_server: ServerFactory) -> None:
    running = start_server("--max-memory-bytes", str(1 << 20))
    large = request(CELU, {"InputTensor": np.ones(60_000, np.float32)})
    body: bytes = msgpack.packb(large)
    with connection(running) as holder, httpx.Client(base_url=running.url) as client:
        output_of(post_msgpack(client, large))
        holder.send(header(*MSGPACK, length(1_000_000)), bytes(1 << 19))
        wait_until(lambda: metric(client, "memory_bytes") >= 1_000_000)
        headers = {"content-type": "application/msgpack"}
        refusal_of(client.post("/v1/dispatch", content=body, headers=headers), 503)


def test_an_answer_holds_its_memory_until_it_is_taken(server: RunningServer) -> None:
    """But for the last pieces, which the connection has taken over."""
    body: bytes = msgpack.packb(request(CELU, {"InputTensor": np.ones(60_000, np.float32)}))
    whole = header(*MSGPACK, length(len(body))) + body
    with httpx.Client(base_url=server.url) as observer, ThreadPoolExecutor(1) as sender:
        wait_for(observer, "memory_bytes", 0)
        with connection(server) as client:
            check_ones(client.ask(whole))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
            sent = sender.submit(client.send, whole * 60)  # more than the system takes while nobody reads
            wait_until(lambda: metric(observer, "memory_bytes") > 0)
            assert metric(observer, "memory_bytes") < 3 * len(body)
            for _ in range(60):
                check_ones(client.receive())
            sent.result()
            wait_for(observer, "memory_bytes", 0)
            sent = sender.submit(client.send, whole * 60)
            wait_until(lambda: metric(observer, "memory_bytes") > 0)
            client.socket.shutdown(socket.SHUT_RDWR)
            sent.exception()  # or all was taken before
        wait_for(observer, "memory_bytes", 0)


@pytest.mark.parametrize("in_place", [{}, {"in_place": "InputTensor"}])
def test_an_answer_that_waits_for_its_client_stays_as_it_is(server: RunningServer, in_place: dict[str, str]) -> None:
    """Whatever is read from other connections meanwhile, into the same buffer."""

    def whole(value: int) -> bytes:
        message = request(CELU, {"InputTensor": np.full(60_000, value, np.float32)}) | in_place
        body: bytes = msgpack.packb(message)
        return header(*MSGPACK, length(len(body))) + body

    with connection(server) as client, connection(server) as other:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        outstanding = 3  # more than the system takes while nobody reads
        for value in range(1, 300):
            client.send(whole(value))
            assert (output_of(other.ask(whole(100))) == 100).all()
            if value > outstanding:
                assert (output_of(client.receive()) == value - outstanding).all()


def test_draining(start_server: ServerFactory) -> None:
    running = start_server("--drain-seconds", "6")  # connections close in the second half
    with connection(running) as client:
        check(client.ask(REQUEST))
        check(client.ask(REQUEST))
        running.process.terminate()

        def is_draining() -> bool:
            with connection(running) as new:
                return bool(new.ask(REQUEST).headers.get("connection") == "close")

        wait_until(is_draining)
        last = client.ask(REQUEST)
        check(last)
        assert last.headers["connection"] == "close"
        assert client.is_closed()


def test_what_is_no_tensor_data_is_refused_as_ever(client: httpx.Client) -> None:
    headers = {"content-type": "application/msgpack"}
    too_short = msgpack.packb(SMALL | {"inputs": {"InputTensor": b"12345678"}})
    for _ in range(2):
        check(post_msgpack(client, SMALL))
        refusal_of(client.post("/v1/dispatch", content=too_short, headers=headers), 422)
        refusal_of(client.post("/v1/dispatch", content=BODY + b"\0", headers=headers), 400)
        refusal_of(client.post("/v1/dispatch", content=b"", headers=headers), 400)


class TestKnownHeader:
    """A header that is the same as the last one is not parsed again; nothing else must pass for one."""

    def test_other_headers_of_the_same_length(self, guarded: RunningServer) -> None:
        fields = (*MSGPACK, length(len(BODY)), b"Authorization: Bearer the-key")
        whole = header(*fields) + BODY
        with connection(guarded) as client:
            for _ in range(2):
                for _ in range(3):
                    check(client.ask(whole))
                refusal_of(client.ask(whole.replace(b"the-key", b"teh-key")), 401)
                refusal_of(client.ask(whole.replace(b"/v1/dispatch", b"/v1/dispatcH")), 404)
                refusal_of(client.ask(whole.replace(b"POST", b"LOCK")), 405)
                refusal_of(client.ask(whole.replace(b"Accept: application", b"Accept: applicatiom")), 406)

    def test_two_in_one_packet_again_and_again(self, server: RunningServer) -> None:
        with connection(server) as client:
            for _ in range(4):
                client.send(REQUEST * 2)
                check(client.receive())
                check(client.receive())

    @ours_only
    def test_is_no_header_in_the_middle_of_one(self, server: RunningServer) -> None:
        with connection(server) as client:
            for _ in range(3):
                check(client.ask(REQUEST))
            client.send(b"GET /health/live HTTP/1.1\r\nHost: test\r\nX-Beginning: ")
            pause(server)
            assert client.ask(REQUEST).status_code == 400  # it has two Host fields

    def test_is_no_header_in_a_body(self, server: RunningServer) -> None:
        """Not even if the request was answered before its body came."""
        with connection(server) as client:
            for _ in range(3):
                check(client.ask(REQUEST))
            refused = header(MSGPACK[0], b"Accept: text/plain", length(2 * len(REQUEST)))
            refusal_of(client.ask(refused), 406)
            for _ in range(2):
                client.send(REQUEST)
                pause(server)
            response = client.ask(header(method=b"GET", path=b"/health/live"))
            assert response.json()["status"] == "ready"

    @ours_only
    def test_is_not_a_part_of_one(self, server: RunningServer) -> None:
        with connection(server) as client:
            for _ in range(2):
                client.send(REQUEST[:20])
                pause(server)
                check(client.ask(REQUEST[20:]))
            assert client.ask(REQUEST[20:]).status_code == 400

    def test_waits_for_its_turn(self, server: RunningServer) -> None:
        large: bytes = msgpack.packb(request(CELU, {"InputTensor": np.ones(2_000_000, np.float32)}))
        with connection(server) as client:
            for _ in range(3):
                check(client.ask(REQUEST))
            client.send(header(*MSGPACK, length(len(large))), large)
            client.send(REQUEST)
            check_ones(client.receive())
            check(client.receive())


def pause(server: RunningServer) -> None:
    """Until the server has read what was sent."""
    for _ in range(2):
        assert httpx.get(f"{server.url}/health/live").status_code == 200
