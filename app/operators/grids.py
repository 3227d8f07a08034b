"""How kernels that are written in CUDA C++ are launched, and what they write to."""

from collections.abc import Sequence
from typing import Any


def blocks_of(count: int, threads: int) -> tuple[int]:
    """A grid of one dimension, of blocks of so many `threads`, with a thread for each of `count`."""
    return (-(-count // threads),)


def packed_in(xp: Any, into: Any, sizes: Sequence[int], dtype: Any) -> Any:
    """The array `into`, if there is one and it is packed, or a new one of these sizes."""
    return into if into is not None and into.flags.c_contiguous else xp.empty(sizes, dtype)
