"""Where memory is, for what takes pointers: compiled loops and the CUDA driver."""

import ctypes
from typing import Any

import numpy as np

from app.memory.buffers import Buffer

_address_of, _first_byte = ctypes.addressof, ctypes.c_char.from_buffer  # found at once, for each tensor of a dispatch

LINE = 64
"""Bytes that processors fetch and own at a time, on most."""


def whole_lines(size: int) -> int:
    """So many bytes and what is left of their last line."""
    return -(-size // LINE) * LINE


def aligned(size: int) -> tuple[object, int]:
    """Memory of so many bytes, for as long as somebody holds the object, and its address, where a line begins."""
    memory: Any = np.empty(size + LINE, np.uint8)
    address = _address_of(_first_byte(memory))
    return memory, address + -address % LINE


def address_of(buffer: Buffer) -> int:
    """Of its first byte, for as long as somebody holds the buffer."""
    if buffer.readonly:  # which ctypes refuses
        return np.frombuffer(buffer, np.uint8).ctypes.data
    return _address_of(_first_byte(buffer))
