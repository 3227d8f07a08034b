"""Clients that send no more, but still read: they get what they have asked for."""

import json
import socket
import struct

import httpx
import msgpack
import numpy as np
import pytest

from tests.conftest import RunningServer, ServerFactory, ours_only
from tests.http.load import ENDLESS, ENDLESS_SETTINGS, start, wait_for
from tests.http.wire import Connection, connection, header, length
from tests.messages import CELU, as_json, output_of, request

pytestmark = ours_only

TYPES = {"msgpack": b"application/msgpack", "json": b"application/json"}


def whole(kind: str, elements: int) -> bytes:
    message = request(CELU, {"InputTensor": np.arange(elements, dtype=np.float32)})
    body: bytes = msgpack.packb(message) if kind == "msgpack" else json.dumps(as_json(message)).encode()
    fields = (name + TYPES[kind] for name in (b"Content-Type: ", b"Accept: "))
    return header(*fields, length(len(body))) + body


def check(client: Connection, elements: int) -> None:
    assert (output_of(client.receive()) == np.arange(elements)).all()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("size", [64, 4096, 60_000, 1 << 16, 100_000, 392_900, 600_000, 1 << 20, 4 << 20, 16 << 20])
@pytest.mark.parametrize("before", [0, 3])
def test_at_every_size(server: RunningServer, kind: str, size: int, before: int) -> None:
    with connection(server) as client:
        for _ in range(before):
            client.send(whole(kind, size // 4))
            check(client, size // 4)
        client.send(whole(kind, size // 4))
        client.socket.shutdown(socket.SHUT_WR)
        check(client, size // 4)
        assert client.is_closed()


def test_several_in_a_pipeline(server: RunningServer) -> None:
    sizes = [10, 100_000, 1000, 1 << 20, 20]
    with connection(server) as client:
        client.send(*(whole("msgpack", size) for size in sizes), header(method=b"GET", path=b"/health/live"))
        client.socket.shutdown(socket.SHUT_WR)
        for size in sizes:
            check(client, size)
        assert client.receive().status_code == 200
        assert client.is_closed()


def test_what_is_not_whole_is_given_up_and_what_was_before_it_is_answered(server: RunningServer) -> None:
    rest = whole("msgpack", 1000)
    for cut in (10, len(rest) - 3):
        with connection(server) as client:
            client.send(whole("msgpack", 100_000), rest[:cut])
            client.socket.shutdown(socket.SHUT_WR)
            check(client, 100_000)
            assert client.is_closed()
    for cut in (10, len(rest) - 3):
        with connection(server) as client:
            client.send(rest[:cut])
            client.socket.shutdown(socket.SHUT_WR)
            assert client.is_closed()


def test_who_reads_no_more_either_is_noticed(start_server: ServerFactory) -> None:
    server = start_server(*ENDLESS_SETTINGS)
    with httpx.Client(base_url=server.url) as observer:
        with connection(server) as client:
            start(client, ENDLESS)
            wait_for(observer, "running_dispatches", 1)
        wait_for(observer, "running_dispatches", 0)


def test_who_resets_a_pipeline_is_noticed_at_its_first_request(start_server: ServerFactory) -> None:
    server = start_server(*ENDLESS_SETTINGS)
    with httpx.Client(base_url=server.url) as observer:
        with connection(server) as client:
            start(client, ENDLESS)
            client.send(header(method=b"GET", path=b"/health/live"))
            wait_for(observer, "running_dispatches", 1)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for(observer, "running_dispatches", 0)
    assert server.stop() == 0
    assert '"ERROR"' not in server.log.read_text()


def test_who_waits_long_is_told_to_go_on_waiting(start_server: ServerFactory) -> None:
    """By an interim response, which clients skip: one that is gone answers it with a reset."""
    server = start_server(*ENDLESS_SETTINGS)
    with connection(server) as client, httpx.Client(base_url=server.url) as observer:
        start(client, ENDLESS)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.receive().status_code == 100
        wait_for(observer, "running_dispatches", 1)
