"""Functions of one float16 that are looked up: there are 65,536 of these, so that a function whose results are all
computed once need not be computed again. A result is the same, to the last bit."""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from app.devices.cpu.llvm.kernels import Loop, LoopCode
from app.devices.cpu.llvm.loop_calls import LoopCall
from app.devices.cpu.numpy import lowering
from app.devices.cpu.routines import Routine, run_routine
from app.memory.addresses import address_of
from app.memory.arrays import Array

BITS = 16
EVERY = 1 << BITS
"""All float16 there are."""

WORTH = 4 * EVERY
"""Elements of a function that are computed before a table is, which takes as long as EVERY of them."""

LONG = {16: 46, 8: 31}
"""The work of an element, by `Loop.work` with what is of float64 twice, from which it is sooner looked up than
computed, where registers have so many float32, or fewer."""

KEPT = 64
"""Functions whose tables are kept, of which each has up to 512 KiB and most 128; the least recently prepared are
dropped."""


class Table:
    """What is known of one function. Safe to use from several threads."""

    def __init__(self, routine: Routine, arguments: Any, dtype: np.dtype[Any]) -> None:
        self._routine = routine
        self._arguments = arguments
        self._dtype = dtype
        self._computed = 0
        self.results: Array | None = None
        """By the bits of the argument."""
        self.bytes = EVERY * dtype.itemsize
        """Of these, once they are there."""

    def is_due(self, elements: int) -> bool:
        """Whether so many more elements are worth the table that there is not yet."""
        return self.results is None and self._computed + elements >= WORTH

    def found(self, elements: int) -> Array | None:
        """All results, computed if they are due; else so many elements are about to be computed without them."""
        if self.is_due(elements):
            every = np.arange(EVERY, dtype=np.uint16).view(np.float16)
            results: Array = np.empty(EVERY, self._dtype)
            run_routine(self._routine, self._arguments, [every], results)
            self.results = results
        self._computed += elements  # two threads that lose a count of each other's only wait longer
        return self.results


def is_tabled(routine: Routine, types: Sequence[np.dtype[Any]]) -> bool:
    """Whether a routine over inputs and an output of these `types` may be worth a table."""
    if len(types) != 2 or types[0] != np.float16:
        return False
    return not isinstance(routine, Loop) or routine.work + routine.of_float64 >= LONG[max(routine.vector_floats, 8)]


class Tables:
    """Those of the functions that were prepared last. Safe to use from several threads."""

    def __init__(self, loops: LoopCode | None) -> None:
        self._loops = loops
        self._tables: OrderedDict[Hashable, Table] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, routine: Routine, arguments: Any, dtype: np.dtype[Any]) -> Table:
        """That of a routine that `is_tabled`, with an output of type `dtype`, which NumPy's calls do not tell."""
        numbers = tuple(each.tobytes() for each in arguments) if isinstance(arguments, tuple) else bytes(arguments)
        key = routine, dtype, numbers
        with self._lock:
            table = self._tables.setdefault(key, Table(routine, arguments, dtype))
            self._tables.move_to_end(key)
            if len(self._tables) > KEPT:
                self._tables.popitem(last=False)
        return table

    def call(
        self,
        results: Array,
        sizes: Sequence[int],
        strides: Sequence[Sequence[int]],
        item_sizes: Sequence[int],
    ) -> LoopCall | None:
        """What looks up all elements of a tensor, where there are loops; it needs `results` to be held."""
        if self._loops is None:
            return None
        address = array("q", [address_of(results.view(np.uint8).data)])
        look_up = self._loops.look_up(results.itemsize, BITS)
        return LoopCall(look_up, address, sizes, strides, item_sizes, self._loops.team)


def by_take(results: Array) -> Routine:
    """What looks up elements without loops."""

    def look_up(x: Array, out: Array) -> None:
        np.take(results, x.view(np.uint16), out=out, mode="clip")

    return lowering.Calls(("X",), (), (), (lowering.SlotCall(look_up, (0,), 1),))
