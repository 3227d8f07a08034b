"""How kernels that are written in CUDA C++ are launched."""


def blocks_of(count: int, threads: int) -> tuple[int]:
    """A grid of one dimension, of blocks of so many `threads`, with a thread for each of `count`."""
    return (-(-count // threads),)
