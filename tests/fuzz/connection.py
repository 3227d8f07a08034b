"""A connection whose two directions are independent: it goes on sending while it reads, and while it does not read."""

import select
import socket
import struct
import time
from dataclasses import dataclass

from tests.fuzz.payload import Wrong

SECONDS = 30.0
"""How long to wait for an answer."""

_AT_ONCE = 1 << 18
"""Bytes read in one call."""


class Closed(Wrong):
    """The service ended the connection."""


@dataclass(frozen=True)
class Answer:
    """One answer."""

    status: int
    fields: dict[bytes, bytes]
    """By name in lower case."""
    body: bytes
    size: int
    """Bytes of all of it."""


class Connection:
    """One connection to the service, for one thread."""

    def __init__(self, port: int, receive_buffer: int | None = None) -> None:
        """`receive_buffer` is how many bytes the kernel takes for a client that does not read."""
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(SECONDS)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, 0)
        self._unsent = memoryview(b"")
        self._received = bytearray()

    def send(self, data: bytes) -> None:
        """Sends what can be sent now; the rest goes on its way during the next calls."""
        self._unsent = memoryview(bytes(self._unsent) + data if self._unsent else data)
        self._push()

    def idle(self, seconds: float) -> None:
        """Reads nothing for as long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not self._unsent:
                time.sleep(left)
            elif self._wait(select.POLLOUT, left):
                self._push()

    def finish_sending(self) -> None:
        """Returns when all is sent, having read nothing. Raises Wrong if it is not taken."""
        end = time.monotonic() + SECONDS
        while self._unsent:
            if not self._wait(select.POLLOUT, end - time.monotonic()):
                raise Wrong("the request was not taken")
            self._push()

    def receive(self, at_once: int = _AT_ONCE) -> Answer:
        """The next final answer, read in pieces of so many bytes. Raises Wrong if there is none."""
        end = time.monotonic() + SECONDS
        while True:
            while (header := self._received.find(b"\r\n\r\n")) < 0:
                self._read(end, at_once)
            status_line, *lines = bytes(self._received[:header]).split(b"\r\n")
            if not status_line.startswith(b"HTTP/1.1 "):
                raise Wrong(f"an answer begins with {status_line[:60]!r}")
            status = int(status_line[9:12])
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
            size = header + 4 + int(fields.get(b"content-length", 0))
            while len(self._received) < size:
                self._read(end, at_once)
            body = bytes(memoryview(self._received)[header + 4 : size])
            del self._received[:size]
            if status >= 200:
                return Answer(status, fields, body, size)

    def receive_part(self, size: int) -> None:
        """Reads at least so many bytes of what is answered, which has them."""
        end = time.monotonic() + SECONDS
        while len(self._received) < size:
            self._read(end, _AT_ONCE)

    def await_some(self) -> None:
        """Returns when the next answer, or an interim one before it, has begun."""
        end = time.monotonic() + SECONDS
        while not self._received:
            self._read(end, _AT_ONCE)

    def expect_end(self) -> None:
        """Raises Wrong if anything comes but the end of the connection."""
        end = time.monotonic() + SECONDS
        try:
            while not self._received:
                self._read(end, _AT_ONCE)
        except Closed:
            return
        raise Wrong(f"after the last answer there is {bytes(self._received[:60])!r}")

    def close(self, reset: bool = False) -> None:
        """`reset` drops what is under way."""
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _wait(self, events: int, seconds: float) -> bool:
        self._poll.modify(self._socket, events)
        return bool(self._poll.poll(max(seconds, 0) * 1000))

    def _push(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # the answer, or its absence, tells more
            self._unsent = memoryview(b"")

    def _read(self, end: float, at_once: int) -> None:
        if not self._wait(select.POLLIN | (select.POLLOUT if self._unsent else 0), end - time.monotonic()):
            raise Wrong(f"no answer for {SECONDS:g} seconds; it begins with {bytes(self._received[:60])!r}")
        self._push()
        try:
            data = self._socket.recv(at_once)
        except BlockingIOError:
            return
        except OSError as error:
            raise Closed(f"the connection ended: {error}") from error
        if not data:
            raise Closed(f"the connection ended after {len(self._received)} bytes of an answer")
        self._received += data
