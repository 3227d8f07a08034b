"""Compilers for other registers than this machine's, so that no width breaks where nobody has it."""

from functools import cache

from app.devices.cpu.llvm.compiler import Compiler

WIDTHS = (4, 8, 16)
"""Float32 of NEON's vectors, AVX2's and AVX-512's."""


OTHERS = tuple(each for each in WIDTHS if each != Compiler().vector_floats)
"""Than those of this processor, by which tests compute anyway."""


class Narrow(Compiler):
    """For this processor without AVX-512. What is written vector by vector takes so many float32 at a time, which LLVM
    cuts into pieces, or leaves partly empty, as registers are."""

    def __init__(self, floats: int) -> None:
        super().__init__()
        self._floats = floats
        for name in self._features:
            if name.startswith(("avx512", "avx10", "evex512")):
                self._features[name] = False

    @property
    def vector_floats(self) -> int:
        return self._floats


@cache
def narrow(floats: int) -> Narrow:
    """One for all tests: many of them need the same loops."""
    return Narrow(floats)
