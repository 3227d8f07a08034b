"""Measure how fast a socket is read, by where in a page the memory lies that it is read to.

The sender's bytes begin a page of the kernel, as a request's do. `STAGGER` of `app.memory.buffers` follows from this.
"""

import mmap
import os
import socket
import statistics
import sys
import time

import options
import report

from app.memory.buffers import STAGGER

PIECE = 1 << 18
PIECES = 40
OFFSETS = [0, 1, 8, 16, 31, 32, 48, 64, 256, 1024, 2048, 3072, 4064]


def pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a TCP connection, with room for a piece on its way."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * PIECE)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * PIECE)
    return sender, receiver


def rate(offset: int) -> float:
    """GB/s of reading pieces that are already there."""
    buffer = memoryview(mmap.mmap(-1, PIECE + mmap.PAGESIZE))[offset:][:PIECE]
    piece = bytes(PIECE)
    sender, receiver = pair()
    seconds = 0.0
    with sender, receiver:
        for _ in range(PIECES):
            sender.sendall(piece)
            started = time.perf_counter()
            received = 0
            while received < PIECE:
                received += receiver.recv_into(buffer[received:])
            seconds += time.perf_counter() - started
    return PIECES * PIECE / seconds / 1e9


def main() -> int:
    arguments = options.rounds_and_output(__doc__)
    loadavg = os.getloadavg()[0]
    rounds = [{offset: rate(offset) for offset in OFFSETS} for _ in range(arguments.rounds)]
    rows = [
        [
            str(offset),
            report.number(statistics.median(each[offset] for each in rounds)),
            report.number(statistics.median(each[offset] / each[STAGGER] for each in rounds)),
        ]
        for offset in OFFSETS
    ]
    head = ["offset in a page", "GB/s", f"over offset {STAGGER}"]
    report.publish(f"# Receiving\n\n{report.facts(loadavg)}\n{report.table(head, rows, texts=1)}", arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
