"""Code that is compiled when it is first called."""

from array import array
from collections.abc import Sequence

from app.devices.cpu.llvm.compiler import Compiler, Function
from app.devices.cpu.llvm.vectors import WIDE
from app.memory.buffers import Buffer


class Code:
    """A nest, compiled when it is first called. Safe to use from several threads."""

    __slots__ = ("_compiler", "source")

    def __init__(self, compiler: Compiler, source: str) -> None:
        self._compiler = compiler
        self.source = source

    @property
    def is_compiled(self) -> bool:
        return self._compiler.has(self.source)

    def in_halves(self) -> "Code":
        """The same without registers of 512 bits, for what is soon done: what slows down with them is Python's code
        behind it, too, by 6 us of a request with 1,024 elements."""
        return Code(self._compiler, self.source.replace(WIDE, "")) if WIDE in self.source else self

    def function(self) -> Function:
        """To be called with the address of a frame, for as long as it is held."""
        return self._compiler.function(self.source)

    def __call__(self, frame: "array[int]") -> None:
        self._compiler.function(self.source)(frame.buffer_info()[0])

    def over(self, bounds: "array[int]", frame: "array[int]", inputs: Sequence[Buffer], output: Buffer) -> None:
        """Call it with the frame and the addresses of buffers, as `CallOver` says. Raises ValueError."""
        function = self._compiler.function(self.source)  # held while it is called
        self._compiler.call_over(function.address, bounds, frame, *inputs, output)
