"""Formulas that go by coordinates, computed by loops that LLVM compiled."""

import ctypes
from array import array
from collections.abc import Callable, Mapping, Sequence

from app.contract.constants import DataType
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.coordinates import nest
from app.devices.cpu.llvm.frames import Arguments
from app.formula.expansions import Ask
from app.formula.values import Value

BETWEEN_LOOKS = 1 << 26
"""Instructions, about, after which a loop asks whether to go on: some 20 ms."""

SMALL_WORK = 1 << 23
"""Instructions, about, that are done in 2 ms."""

WATCH = 1
"""Where in a frame a watch is, by its `id`."""


class CoordinateLoops:
    """A formula, ready for the numbers of any request. Safe to use from several threads.

    Raises LookupError if there is an operation in it that NumPy is as quick at.
    """

    def __init__(self, ask: Ask, expression: Value, stored: DataType, rank: int, compiler: Compiler) -> None:
        made = nest(ask, expression, stored, rank)
        self.inputs = set(made.inputs)
        self._ranks = made.inputs
        self.arguments = Arguments(made.parameters).of
        """The end of a frame, by the numbers of a request: what is the same for all its elements."""
        self._instructions, self._work, self._row = made.instructions, made.work, made.row
        self.code = Code(compiler, made.source)

    def is_small(self, elements: int, terms: int) -> bool:
        """Whether so many elements, each of so many values, are computed at once, by code that is there already."""
        return elements * terms * self._instructions <= SMALL_WORK and self.code.is_compiled

    def work(self, elements: int, terms: int, width: int) -> int:
        """About how many bytes and instructions it takes to compute so many elements, each of so many values, in rows
        of a `width`."""
        return elements * terms * self._work + elements // width * self._row

    def frame(
        self,
        arguments: "array[int]",
        block: Sequence[range],
        strides: Sequence[int],
        inputs: Mapping[str, tuple[Sequence[int], Sequence[int]]],
    ) -> "tuple[array[int], int, dict[str, int]]":
        """A frame for a block of an output with these strides, without addresses or watch: where in it that of the
        output's first element goes, and those of inputs, of which sizes and strides are given. Strides are in bytes."""
        numbers = [LOOK, 0, max(BETWEEN_LOOKS // self._instructions, 1)]
        for along in block:
            numbers += (along.start, along.stop)
        target = len(numbers)
        numbers += (0, *strides)
        places = {}
        for name, rank in self._ranks.items():
            sizes, steps = inputs[name]
            if len(sizes) != rank:
                raise ValueError(f"{name} has {len(sizes)} dimensions, not {rank}")
            places[name] = len(numbers)
            numbers += (0, *sizes, *steps)
        return array("q", numbers) + arguments, target, places


class Watch:
    """What loops ask now and then, on any threads, whether to go on: they end when `check` has raised."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._error: BaseException | None = None

    def stops(self) -> bool:
        """Call `check`, unless it has raised for some thread already. True if it has, or does."""
        if self._error is None:
            try:
                self._check()
            except BaseException as error:
                self._error = error
        return self._error is not None

    def look(self) -> None:
        """The same for a thread that no other one works with. Raises what `check` raises, or has raised."""
        self.stops()
        self.end()

    def end(self) -> None:
        """Raises what `check` has raised."""
        if self._error:
            try:
                raise self._error
            finally:
                self._error = None  # which has the frames that it goes through, and with them tensors


_look = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object)(Watch.stops)
LOOK = ctypes.cast(_look, ctypes.c_void_p).value or 0
