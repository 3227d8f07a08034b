"""FLOAT16 converted by loops: NumPy takes some ns for each element, which is longer than many a product takes."""

from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.kernels import Loop, LoopCode
from app.formula.structures import Questions
from app.formula.values import FLOAT32, Input
from app.memory.arrays import Array
from app.operators.looks import shared

HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)

LEAST = 1 << 8
"""Elements that are worth a loop."""

PIECE = 1 << 18
"""Elements at a time, so that threads share what takes long."""

_NONE = array("q")
"""Loops without attributes have none."""


class Conversions:
    """Converts between float16 and float32. Safe to use from several threads."""

    def __init__(self, code: LoopCode) -> None:
        self._code = code

    @cached_property
    def _loops(self) -> Mapping[tuple[np.dtype[Any], np.dtype[Any]], Loop]:
        """By the types of both arrays."""
        make = partial(Loop, Questions({}).ask, inputs=["X"], code=self._code)
        return {
            (HALF, FLOAT): make(Input(FLOAT32, "X", DataType.FLOAT16), stored=DataType.FLOAT32),
            (FLOAT, HALF): make(Input(FLOAT32, "X", DataType.FLOAT32), stored=DataType.FLOAT16),
        }

    @cached_property
    def _codes(self) -> Sequence[Code]:
        return [self._code.of(each, 1, ("packed", "packed")) for each in self._loops.values()]

    @property
    def are_compiled(self) -> bool:
        return all(each.is_compiled for each in self._codes)

    def get_compiled(self) -> None:
        """Some 20 ms, once."""
        for each in self._codes:
            each.function()

    def copied(self, x: Array, target: Array) -> bool:
        """Write `x` to `target`, an array of the same shape in memory of its own; whether that is so. It is not for
        other types, few elements, and those that do not lie one after the other, in the same order in both."""
        loop = self._loops.get((x.dtype, target.dtype))
        if loop is None or x.size < LEAST:
            return False
        order = sorted(range(x.ndim), key=lambda axis: -x.strides[axis])
        x, target = x.transpose(order), target.transpose(order)
        if not (x.flags.c_contiguous and target.flags.c_contiguous):
            return False
        given, made = x.reshape(-1), target.reshape(-1)

        def convert(turn: int) -> None:
            piece = slice(turn * PIECE, (turn + 1) * PIECE)
            loop.run(_NONE, [given[piece]], made[piece], ())

        shared(-(-given.size // PIECE), convert)
        return True

    def packed(self, x: Array) -> Array:
        """`x` in float32, packed: itself if it is so."""
        if x.dtype == HALF:
            made = np.empty(x.shape, FLOAT)
            if self.copied(x, made):
                return made
        return np.ascontiguousarray(x, FLOAT)

    def store(self, x: Array, target: Array) -> None:
        """Write `x` to `target`, of any type, in memory of its own."""
        if not self.copied(x, target):
            target[...] = x
