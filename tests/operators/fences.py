"""Memory next to pages that nobody may touch: a loop that reads or writes one byte beside a tensor ends the process."""

import ctypes
import mmap

import numpy as np

from app.memory.arrays import Array


class fenced:  # noqa: N801 - a context manager
    """Copies of arrays in memory of their own, next to pages that nobody may touch."""

    def __init__(self, arrays: list[Array], *, at_the_end: bool) -> None:
        self._arrays, self._at_the_end = arrays, at_the_end
        self._fences: list[tuple[int, int]] = []
        self._libc = ctypes.CDLL(None)

    def __enter__(self) -> list[Array]:
        made = []
        for array in self._arrays:
            size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
            memory = np.frombuffer(mmap.mmap(-1, size + 2 * mmap.PAGESIZE), np.uint8)
            start = memory.ctypes.data
            begin = mmap.PAGESIZE + (size - array.nbytes if self._at_the_end else 0)
            copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
            copy[...] = array
            made.append(copy)
            self._fences += [(start, 0), (start + mmap.PAGESIZE + size, 0)]
        for address, protection in self._fences:
            assert not self._libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, protection)
        return made

    def __exit__(self, *exception: object) -> None:
        for address, _ in self._fences:
            self._libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
