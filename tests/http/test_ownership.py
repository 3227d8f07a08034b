"""Memory that one request is computed in, or answered from, is no other's."""

import socket
import time
from ctypes import addressof, c_char

import msgpack
import numpy as np
import pytest

from app.http.server.scratch import LARGE, READ, Scratch
from app.memory.buffers import Buffer
from app.operators.operator import PREFIX
from tests.conftest import RunningServer
from tests.http.wire import Connection, connection, header, length
from tests.messages import output_of, request

MSGPACK = b"Content-Type: application/msgpack", b"Accept: application/msgpack"


def dispatch(value: int, size: int) -> bytes:
    x = np.full(size // 4, value, np.uint32).view(np.float32)
    body: bytes = msgpack.packb(request(f"{PREFIX}ACTIVATION_IDENTITY", {"InputTensor": x}))
    return header(*MSGPACK, length(len(body))) + body


def warm(clients: list[Connection], size: int) -> None:
    for _ in range(8):
        for client in clients:
            client.ask(dispatch(7, size))


@pytest.mark.parametrize("size", [4096, 1 << 16, 3 << 16, LARGE - 4096, LARGE - 500, LARGE + 4096, 1 << 20])
def test_an_answer_that_waits_for_its_client_holds_no_byte_of_another_request(server: RunningServer, size: int) -> None:
    """Answers are longer than requests by some hundred bytes, so there are sizes where only they are large."""
    for _ in range(3):
        with connection(server) as late, connection(server) as other:
            late.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            warm([late, other], size)
            values = [0x41414141, 0x42424242, 0x43434343]
            for value in values:
                late.send(dispatch(value, size))
                time.sleep(0.03)  # it is computed, and what the system does not take waits in the service
            for _ in range(3):
                other.ask(dispatch(0x22222222, size))
            for value in values:
                output = output_of(late.receive()).view(np.uint32)
                assert (output == value).all(), np.unique(output)


def place(buffer: Buffer) -> int:
    return addressof(c_char.from_buffer(buffer))


def test_what_was_read_may_be_kept_and_is_not_written_to_again() -> None:
    scratch = Scratch()
    first = place(scratch.take(READ))
    assert place(scratch.take(READ)) == first
    kept = scratch.take(READ)[100:200]
    second = scratch.take(READ)
    begins = place(second)
    assert not begins <= place(kept) < begins + len(second)
    kept[:] = bytes(100)
    second[:] = b"x" * len(second)
    assert bytes(kept) == bytes(100)
    assert place(scratch.take(READ)) == begins
