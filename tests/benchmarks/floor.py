"""The floor: what Python reaches on plain sockets, for hard sigmoid on float32.

A thread for each connection receives the body into one reused buffer, computes in place by blocks that stay in the
cache, and sends the same buffer back. It knows just enough HTTP for wrk and http.client.
"""

import argparse
import socket
import socketserver

import numpy as np

HEAD_BYTES = 8192
MAX_BODY_BYTES = 64 << 20
BLOCK_ELEMENTS = 64 << 10


def hard_sigmoid(buffer: memoryview) -> None:
    """max(0, min(0.2 x + 0.5, 1)) over float32 elements, in place."""
    values = np.frombuffer(buffer, "<f4")
    for start in range(0, values.size, BLOCK_ELEMENTS):
        block = values[start : start + BLOCK_ELEMENTS]
        np.multiply(block, np.float32(0.2), out=block)
        np.add(block, np.float32(0.5), out=block)
        np.minimum(block, np.float32(1), out=block)
        np.maximum(block, np.float32(0), out=block)


def content_length(head: bytearray) -> int:
    """Bytes of body that a request's head announces."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


class Handler(socketserver.BaseRequestHandler):
    request: socket.socket

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = bytearray(HEAD_BYTES)
        buffer = memoryview(bytearray(HEAD_BYTES))
        try:
            while count := self.request.recv_into(received):
                while (end := received.find(b"\r\n\r\n", 0, count) + 4) < 4:
                    if count == HEAD_BYTES or not (more := self.request.recv_into(memoryview(received)[count:])):
                        return
                    count += more
                length = content_length(received[:end])
                if length > MAX_BODY_BYTES or length % 4:
                    return
                if length > len(buffer):
                    buffer = memoryview(bytearray(length))
                body = buffer[:length]
                filled = count - end
                body[:filled] = received[end:count]
                while filled < length:
                    more = self.request.recv_into(body[filled:])
                    if not more:
                        return
                    filled += more
                hard_sigmoid(body)
                self.answer(body)
        except ConnectionError:
            return

    def answer(self, body: memoryview) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
        sent = self.request.sendmsg([head, body])
        if sent < len(head) + len(body):
            self.request.sendall(body[max(0, sent - len(head)) :])


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 256


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    with Server(("127.0.0.1", parser.parse_args().port), Handler) as server:
        server.serve_forever()
