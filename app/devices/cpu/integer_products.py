"""Products of matrices of 8-bit integers on the CPU, by loops that LLVM compiled: exact, and quicker than of floats.

Both matrices are packed first, the right one once where it is known before, and then multiplied.
"""

import math
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from operator import mul
from typing import Literal

import numpy as np

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc, packed_strides
from app.devices.cpu.alone import MOST_OF_A_CALL, CallsKernel, make_calls, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer, pieces
from app.devices.cpu.llvm import integer_products as loops
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.integer_products import HEAD, PACKED, PRODUCTS, Panel, Terms, row_bytes
from app.devices.cpu.llvm.kernels import Code
from app.devices.cpu.llvm.nests import LINE
from app.devices.cpu.products import MOST_PACKED, shares, sums_at_once
from app.devices.cpu.threads import Threads
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator
from app.operators.quantization.matrices import MatrixMultiplyInteger
from app.programs.dispatchable import Dispatchable
from app.programs.walks import Walk, collapse

MOST_MATRICES = 1 << 6
"""Calls for matrices that are no even steps apart."""

FASTER = 4
"""Products of bytes that take as long as one of floats, in which work is counted."""

_NO_ZERO = np.zeros(1, np.uint8)
"""What is read where there is no zero point."""


def integer_product_kernel(
    compiled: Dispatchable, compiler: Compiler, threads: Threads, known: Mapping[str, Buffer] | None
) -> CallsKernel | None:
    """For the operator, if it is one that the loops are for. `known` are inputs that are the same for all dispatches;
    it is None outside of graphs."""
    found = _IntegerProduct.of(compiled, compiler)
    if found is None:
        return None
    kept = found.kept(known, threads) if known and found.is_kept(known) else None
    return CallsKernel(compiled, found.calls(kept, threads.most), threads, kept)


def packed_integer_bytes(compiled: Dispatchable, compiler: Compiler, known: Collection[str]) -> int:
    """Of the matrices that `integer_product_kernel` keeps a second time, packed, if inputs of the names `known` are the
    same for all dispatches."""
    found = _IntegerProduct.of(compiled, compiler)
    return found.right.packed_bytes + LINE if found and found.is_kept(known) else 0


@dataclass(frozen=True, eq=False, slots=True)
class _Side:
    """One of the two matrices of each product, and how it is packed: in so many lines, rows or panels, of so many
    bytes. What leads the matrices has the sizes `batch`, and steps of the elements and of the zero points."""

    code: Code
    frame: Mapping[str, int]
    """What all calls have that pack it."""
    elements: str
    zeros: str | None
    batch: Sequence[int]
    steps: Sequence[list[int]]
    lines: int
    line_bytes: int

    @property
    def _sizes(self) -> list[int]:
        """Of what leads the packed matrices: what repeats neither elements nor zero points."""
        return [size if any(steps) else 1 for size, *steps in zip(self.batch, *self.steps, strict=True)]

    @property
    def packed_steps(self) -> list[int]:
        """Bytes from one packed matrix to the next one."""
        sizes, each = self._sizes, self.lines * self.line_bytes
        return [each * step if size > 1 else 0 for size, step in zip(sizes, packed_strides(sizes), strict=True)]

    @property
    def packed_bytes(self) -> int:
        return math.prod(self._sizes) * self.lines * self.line_bytes

    def walk(self) -> Walk:
        """Through the matrices, by elements, zero points and packed bytes."""
        return collapse(self._sizes, [*self.steps, self.packed_steps])

    def calls(self, reads: Sequence[str], to: Pointer, threads: int) -> Iterator[Call]:
        """What packs it from inputs in this order to where the pointer says, on so many threads."""
        (*outer, groups), strides = self.walk()
        frame = dict(self.frame) | {
            name: steps[-1] for name, steps in zip(("group", "zero_group", "packed_group"), strides, strict=True)
        }
        for at in product(*map(range, outer)):
            start, zero, packed = (sum(map(mul, at, steps)) for steps in strides)
            pointers = [Pointer(0, Of.INPUT, reads.index(self.elements), start)]
            if self.zeros:
                pointers.append(Pointer(1, Of.INPUT, reads.index(self.zeros), zero))
            pointers.append(to._replace(offset=to.offset + packed))
            whole = [range(groups), range(self.lines)]
            cut = whole.index(max(whole, key=len))
            for part in portions(whole[cut], len(whole[1 - cut]) * self.line_bytes, threads):
                own = [part, whole[1]] if cut == 0 else [whole[0], part]
                for name, along in zip(("group", ""), own, strict=True):
                    frame["_".join(["first", name]).strip("_")] = along.start
                    frame["_".join(["end", name]).strip("_")] = along.stop
                work = math.prod(map(len, own)) * self.line_bytes
                yield Call(self.code, array("q", frame.values()), pointers, work)


@dataclass(frozen=True, eq=False, slots=True)
class _IntegerProduct:
    """The products of an operator."""

    reads: Sequence[str]
    """Its inputs, in their order."""
    left: _Side
    right: _Side
    frame: Mapping[str, int]
    """What all calls have that multiply."""
    tiles: Sequence[tuple[int, Code, range]]
    """So many rows at a time, and which rows they are for."""
    matrices: Walk
    """By packed bytes of the left and right ones, and bytes of results."""
    work: int
    """Of a product."""

    @classmethod
    def of(cls, compiled: Dispatchable, compiler: Compiler) -> "_IntegerProduct | None":
        """None where it is none, or lies so that loops would not be quick."""
        operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
        if not isinstance(operator, MatrixMultiplyInteger):
            return None
        output = compiled.outputs["OutputTensor"]
        *batch, rows, columns = output.Sizes
        if output.strides[-1] != 1 and columns > 1:
            return None
        terms: Terms = 4 if compiler.adds_bytes else 2
        tiles = list(sums_at_once(rows, columns, compiler.vector_floats))
        panel = Panel(tiles[0][1], compiler.vector_floats, terms)
        each = row_bytes(operator.ATensor.Sizes[-1], terms)
        left = _side(operator, "A", compiler, panel, (rows, each))
        right = _side(operator, "B", compiler, panel, (-(-columns // panel.columns), each * panel.columns))
        bytes_of_results = [4 * step for step in output.steps]
        matrices = collapse(batch, [left.packed_steps, right.packed_steps, bytes_of_results[:-2]])
        if any(math.prod(sizes[:-1]) > MOST_MATRICES for sizes, _ in (matrices, left.walk(), right.walk())):
            return None
        frame = dict.fromkeys(PRODUCTS, 0) | {
            "lanes": (each - HEAD) // 4,
            "columns": columns,
            "r_row": bytes_of_results[-2],
        }
        frame |= {name: steps[-1] for name, steps in zip(("a_group", "b_group", "r_group"), matrices[1], strict=True)}
        codes = [(count, Code(compiler, _multiplies(panel, count)), own) for count, _, own in tiles]
        work = max(1, math.prod([rows, operator.ATensor.Sizes[-1], columns]) // FASTER)
        return cls(list(compiled.inputs), left, right, frame, codes, matrices, work)

    def is_kept(self, known: Collection[str]) -> bool:
        """Whether the right matrices are packed once, where inputs of these names are known before."""
        of_right = {self.right.elements, self.right.zeros} - {None}
        return of_right <= set(known) and self.right.packed_bytes <= MOST_PACKED

    def kept(self, known: Mapping[str, Buffer], threads: Threads) -> Array:
        """The right matrices packed, from a multiple of a line on."""
        memory = np.empty(self.right.packed_bytes + LINE, np.uint8)
        made = memory[-memory.ctypes.data % LINE :]
        names = [name for name in (self.right.elements, self.right.zeros) if name]
        calls = Calls([list(self.right.calls(names, Pointer(2, Of.OUTPUT), threads.most))])
        given = [np.frombuffer(known[name], np.uint8) for name in names]
        make_calls(calls, given, [made], threads, lambda: False)
        return made

    def calls(self, kept: Array | None, threads: int) -> Calls:
        """All: matrices are packed, the right one unless it is `kept`, and multiplied."""
        own = -(-self.left.packed_bytes // LINE) * LINE
        packs = [*self.left.calls(self.reads, Pointer(2, Of.OWN), threads)]
        frame, right = dict(self.frame), []
        if kept is None:
            packs += self.right.calls(self.reads, Pointer(2, Of.OWN, 0, own), threads)
            right = [Pointer(1, Of.OWN, 0, own)]
            own += self.right.packed_bytes
        else:
            frame["b"] = kept.ctypes.data
        (*outer, groups), strides = self.matrices
        total = self.work * groups * math.prod(outer)
        wanted = -(-max(pieces(total, threads), total // MOST_OF_A_CALL) // math.prod(outer))
        panels = range(self.right.lines)
        made = []
        for at in product(*map(range, outer)):
            starts = [sum(map(mul, at, steps)) for steps in strides]
            if kept is not None:
                frame["b"] = kept.ctypes.data + starts[1]
            pointers = [
                Pointer(0, Of.OWN, 0, starts[0]),
                *(each._replace(offset=each.offset + starts[1]) for each in right),
                Pointer(2, Of.OUTPUT, 0, starts[2]),
            ]
            for count, code, rows in self.tiles:
                for part in shares(groups, panels, rows, count, wanted):
                    for name, along in part.items():
                        frame[f"first_{name}"], frame[f"end_{name}"] = along.start, along.stop
                    work = math.prod(map(len, part.values())) * self.work // (len(panels) * self.left.lines)
                    made.append(Call(code, array("q", frame.values()), pointers, work))
        return Calls([packs, made], own)


def _side(
    operator: MatrixMultiplyInteger, name: Literal["A", "B"], compiler: Compiler, panel: Panel, lines: tuple[int, int]
) -> _Side:
    """How the matrices of one of the two are packed, in so many lines of so many bytes."""
    is_left = name == "A"
    desc, zeros = (
        (operator.ATensor, operator.AZeroPointTensor) if is_left else (operator.BTensor, operator.BZeroPointTensor)
    )
    steps = desc.steps
    line, term = (steps[-2], steps[-1]) if is_left else (steps[-1], steps[-2])
    leading, zero_line = _zero_steps(zeros, desc.rank - 2, is_left)
    frame = dict.fromkeys(PACKED, 0) | {
        "zeros": _NO_ZERO.ctypes.data,
        "depth": desc.Sizes[-1 if is_left else -2],
        "size": desc.Sizes[-2 if is_left else -1],
        "line": line,
        "term": term,
        "zero_line": zero_line,
    }
    source = _packs(panel.terms if is_left else panel, desc.DataType is DataType.INT8, steps[-1] == 1)
    zeros_name = f"{name}ZeroPointTensor" if zeros else None
    batch = desc.Sizes[:-2]
    return _Side(Code(compiler, source), frame, f"{name}Tensor", zeros_name, batch, (steps[:-2], leading), *lines)


def _zero_steps(zeros: TensorDesc | None, leading: int, is_left: bool) -> tuple[list[int], int]:
    """Steps of zero points: one for each of so many dimensions that lead matrices, and from line to line."""
    if zeros is None or zeros.elements == 1:
        return [0] * leading, 0
    steps = zeros.steps
    if zeros.rank == 1:
        return [0] * leading, steps[0]
    return ([0] * leading + steps[:-2])[len(steps) - 2 :], steps[-2 if is_left else -1]


@lru_cache(64)
def _packs(of: Panel | Terms, is_signed: bool, is_dense: bool) -> str:
    return loops.panels(of, is_signed, is_dense) if isinstance(of, Panel) else loops.rows(of, is_signed, is_dense)


@lru_cache(64)
def _multiplies(panel: Panel, rows: int) -> str:
    return loops.products(panel, rows)
