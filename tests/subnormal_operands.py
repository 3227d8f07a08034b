"""Whether this thread computes with subnormal numbers, which takes it a hundred times as long: x86 keeps note of it.

Memory that nobody has written to holds such numbers, as two halves of an address are, by what it was used for before.
"""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from app.memory.arrays import Array

noted = pytest.mark.skipif(platform.machine() != "x86_64", reason="only these processors note subnormal operands")

_OPERAND = 2
"""What stays in the register MXCSR once there was one."""


def memory(size: int) -> Array:
    """So many bytes and some more, all of subnormal numbers, of FLOAT32 and of FLOAT16."""
    return np.full(size // 4 + 64, 0x00120012, np.uint32).view(np.uint8)


@contextmanager
def unused() -> Iterator[None]:
    """Fails if there was one within."""
    libm, environment = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()  # the last of which is MXCSR
    libm.fegetenv(environment)
    environment[7] &= ~_OPERAND
    libm.fesetenv(environment)
    yield
    libm.fegetenv(environment)
    assert not environment[7] & _OPERAND, "something was computed of what memory happened to hold"
