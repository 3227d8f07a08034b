"""Kernels that are written in CUDA C++, for operators' calls on a GPU.

CuPy's own compiler is passed by (`devices/cuda/compiler.py`): each GPU says how it comes to its kernels.
"""

from typing import Any, Protocol


class Loader(Protocol):
    def __call__(self, source: str, name: str, shared_bytes: int) -> Any:
        """The kernel `name` of `source` on one GPU, which CuPy launches as its own, with up to so many bytes of shared
        memory that are asked for at a launch."""


LOADERS: dict[int, Loader] = {}
"""By the ordinals of GPUs, which put themselves here."""


def kernel(cupy: Any, source: str, name: str, *, shared_bytes: int = 0) -> Any:
    """The kernel `name` of `source` on the current GPU: called with a grid, a block, arguments, and `shared_mem`."""
    return LOADERS[cupy.cuda.runtime.getDevice()](source, name, shared_bytes)
