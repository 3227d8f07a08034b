"""Where memory is, for what takes pointers: compiled loops and the CUDA driver."""

import ctypes

import numpy as np

from app.memory.buffers import Buffer

_address_of, _first_byte = ctypes.addressof, ctypes.c_char.from_buffer  # found at once, for each tensor of a dispatch


def address_of(buffer: Buffer) -> int:
    """Of its first byte, for as long as somebody holds the buffer."""
    if buffer.readonly:  # which ctypes refuses
        return np.frombuffer(buffer, np.uint8).ctypes.data
    return _address_of(_first_byte(buffer))
