"""The heap on huge pages.

Python's objects lie all over it, and a request touches some thousand of them. With pages of 4 KiB the processor finds
many of their addresses only by a walk through the page tables, in a virtual machine through two of them. With the heap
on huge ones a request that is like none before takes 4 to 6 per cent less (tests/benchmarks/http.md).
"""

import ctypes
import re
from pathlib import Path

SIZE = 1 << 21
"""Of a huge page, where others have 4 KiB."""

_MADV_COLLAPSE = 25  # since Linux 6.1

_HEAP = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw.p 0+ 00:00 0 +(?:\[heap\])?$", re.MULTILINE)
"""A line of /proc/self/maps about memory that is the process' own and of no file."""


def collapse() -> int:
    """Move what is in memory onto huge pages, where there is something in all of one. Returns how many there are: none
    where Linux has none, is older than 6.1, or is not there at all.

    Pages that a process has in common with its parent are its own afterwards.
    """
    try:
        ranges = _HEAP.findall(Path("/proc/self/maps").read_text())
    except OSError:
        return 0
    libc = ctypes.CDLL(None)
    made = 0
    for first, end in ranges:
        start = -(-int(first, 16) // SIZE) * SIZE
        for page in range(start, int(end, 16) - SIZE + 1, SIZE):
            made += libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(SIZE), _MADV_COLLAPSE) == 0
    return made
