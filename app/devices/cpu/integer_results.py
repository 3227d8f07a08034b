"""The last stage of products and convolutions of 8-bit integers: results of sums that are in a kernel's own memory."""

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import mul

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.alone import portions
from app.devices.cpu.calls import Call, Of, Pointer
from app.devices.cpu.llvm import integer_results as loops
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.integer_results import FIELDS, GIVEN, Kind, Result
from app.programs.walks import Walk

LARGEST = (1 << 31) // (255 * 255)
"""Terms of a sum of which INT32 holds any."""

KINDS: Mapping[DataType, Kind] = {
    DataType.INT8: "int8",
    DataType.UINT8: "uint8",
    DataType.INT32: "int32",
    DataType.FLOAT32: "float32",
}

WORK = 8
"""Of a result, in bytes and instructions."""

_NONE = np.zeros(1, np.float32)
"""What is read where a zero point is left out."""


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor that results are made with: by its name, and the steps in bytes from group to group (of each dimension
    that leads), row to row, and column to column."""

    name: str
    groups: Sequence[int]
    row: int
    column: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Results:
    """How sums become results."""

    result: Result
    code: Code
    reads: Sequence[str]
    """The kernel's inputs, in their order."""
    given: Mapping[str, Given]
    """By what they are of GIVEN."""

    @classmethod
    def of(cls, result: Result, compiler: Compiler, reads: Sequence[str], given: Mapping[str, Given]) -> "Results":
        return cls(result, Code(compiler, loops.source(result)), reads, given)

    def strides(self, leading: int) -> list[list[int]]:
        """From group to group, of each of GIVEN."""
        return [[*self.given[name].groups] if name in self.given else [0] * leading for name in GIVEN]

    def calls(
        self, walk: Walk, sizes: tuple[int, int, int], steps: dict[str, int], starts: tuple[int, int], threads: int
    ) -> Iterator[Call]:
        """Those for so many rows, lines of each and results of each of these, in each group that `walk` goes to, by
        bytes of sums, results and each of GIVEN. `steps` are those of rows and lines; sums and results begin so many
        bytes behind the kernel's own memory and its output."""
        rows, lines, count = sizes
        (*outer, groups), strides = walk
        frame = dict.fromkeys(FIELDS, 0) | {"lines": lines, "count": count} | steps
        frame |= dict.fromkeys(GIVEN, _NONE.ctypes.data)
        for name, one in self.given.items():
            frame[f"{name}_row"] = one.row
        names = ("sums", "results", *GIVEN)
        frame |= {f"{name}_group": along[-1] for name, along in zip(names, strides, strict=True)}
        for at in product(*map(range, outer)):
            sums, results, *others = (sum(map(mul, at, along)) for along in strides)
            pointers = [Pointer(0, Of.OWN, 0, starts[0] + sums), Pointer(1, Of.OUTPUT, 0, starts[1] + results)]
            for place, (name, start) in enumerate(zip(GIVEN, others, strict=True), 2):
                if name in self.given:
                    pointers.append(Pointer(place, Of.INPUT, self.reads.index(self.given[name].name), start))
            whole = [range(groups), range(rows)]
            cut = 0 if groups > rows else 1
            for part in portions(whole[cut], len(whole[1 - cut]) * lines * count * WORK, threads):
                own = [part, whole[1]] if cut == 0 else [whole[0], part]
                for name, along in zip(("group", "row"), own, strict=True):
                    frame[f"first_{name}"], frame[f"end_{name}"] = along.start, along.stop
                work = math.prod(map(len, own)) * lines * count * WORK
                yield Call(self.code, array("q", frame.values()), pointers, work)
