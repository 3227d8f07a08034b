"""Kernels for operators' calls on a GPU: those that are written in CUDA C++, and those of formulas.

CuPy's own compiler is passed by (`devices/cuda/compiler.py`): each GPU says how it comes to its kernels.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from app.programs.dispatchable import Dispatchable


class Loader(Protocol):
    def __call__(self, source: str, name: str, shared_bytes: int) -> Any:
        """The kernel `name` of `source` on one GPU, which CuPy launches as its own, with up to so many bytes of shared
        memory that are asked for at a launch."""


LOADERS: dict[int, Loader] = {}
"""By the ordinals of GPUs, which put themselves here."""


def kernel(cupy: Any, source: str, name: str, *, shared_bytes: int = 0) -> Any:
    """The kernel `name` of `source` on the current GPU: called with a grid, a block, arguments, and `shared_mem`."""
    return LOADERS[cupy.cuda.runtime.getDevice()](source, name, shared_bytes)


OverArrays: TypeAlias = Callable[[Sequence[Any]], None]
"""Queues a kernel on CuPy's current stream, over arrays of inputs and then of the output. Of one thread at a time."""

FORMULA_LOADERS: dict[int, Callable[[Dispatchable], OverArrays]] = {}
"""The same of kernels of formulas."""


def formula_kernel(cupy: Any, compiled: Dispatchable) -> OverArrays:
    """The kernel of a program's one output on the current GPU, over arrays that lie as they are described."""
    return FORMULA_LOADERS[cupy.cuda.runtime.getDevice()](compiled)
