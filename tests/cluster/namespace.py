"""A network of the tests' own: what listens on all interfaces is reached by nobody else, and its ports are free."""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_NEW_NETWORK = 0x40000000
_SET_FLAGS = 0x8914
_UP = 0x1


@contextmanager
def own_network() -> Iterator[None]:
    """This thread, those that it starts and its child processes are in a network with a loopback device only."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(_NEW_NETWORK):
            pytest.skip(f"no network namespace of its own: {os.strerror(ctypes.get_errno())}")
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
                fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", _UP))
            yield
        finally:
            assert libc.setns(before, _NEW_NETWORK) == 0
    finally:
        os.close(before)
