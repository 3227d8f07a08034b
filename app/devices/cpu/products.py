"""GEMM of float32 on the CPU: by NumPy's BLAS, or where one matrix is known before, by a loop that LLVM compiled.

A known matrix is packed once, in panels as wide as the loop's tiles: so what the loop reads lies one after the other.
A BLAS would do that at every dispatch, which for a few rows takes longer than the products.
"""

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from app.contract.constants import DataType, MatrixTransform
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import Code
from app.devices.cpu.llvm.sums import Tile, source
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import RAN, Threads, parts
from app.devices.device import Cancelled, ExecutionRecord
from app.memory.addresses import address_of
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.arrays import Activation, for_blas
from app.operators.compiled import CompiledOperator
from app.operators.linear_algebra.products import Gemm
from app.programs.dispatchable import Dispatchable

MOST_ROWS, MOST_PACKED = 1 << 12, 32 << 20
"""Rows of which the loop reads a panel again and again, and bytes of a matrix that may be kept a second time."""

WORTH_A_PIECE = 4 << 20
"""Products that take a thread some 80 us."""

AHEAD = 1 << 10
"""Elements of a packed matrix, which is seldom in a cache."""

INLINE = 1 << 24
"""Products that are done in less than a millisecond."""


def product_kernel(
    compiled: Dispatchable, compiler: Compiler | None, threads: Threads, known: Mapping[str, Buffer]
) -> "ProductKernel | None":
    """For the operator, if it is a product of float32 without repeated elements. `known` are inputs that are the same
    for all dispatches."""
    operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
    if not isinstance(operator, Gemm) or operator.ATensor.DataType is not DataType.FLOAT32:
        return None
    output = compiled.outputs["OutputTensor"]
    operands = [compiled.inputs["ATensor"], compiled.inputs["BTensor"], output]
    repeats = any(
        stride == 0 and size > 1 for each in operands for stride, size in zip(each.strides, each.Sizes, strict=True)
    )
    if repeats or not output.is_packed:
        return None
    return ProductKernel(compiled, operator, compiler, threads, known.get("BTensor"))


class ProductKernel:
    """Implements `Kernel`."""

    def __init__(
        self,
        compiled: Dispatchable,
        operator: Gemm,
        compiler: Compiler | None,
        threads: Threads,
        known: Buffer | None,
    ) -> None:
        *self._given, self._target = (
            Tensor(compiled, name, desc) for name, desc in [*compiled.inputs.items(), *compiled.outputs.items()]
        )
        self._transforms = [operator.TransA, operator.TransB]
        self._alpha, self._beta = np.float32(operator.Alpha), np.float32(operator.Beta)
        fused, sizes = operator.FusedActivation, self._target.desc.Sizes
        self._activation = Activation(fused, fused.axes(len(sizes))) if fused else None
        *batch, self._rows, self._columns = sizes
        a = operator.ATensor.Sizes
        depth = a[-1] if operator.TransA is MatrixTransform.NONE else a[-2]
        self._work = math.prod(sizes) * depth
        self._threads = threads
        self._loop: _Loop | None = None
        is_plain = operator.TransA is MatrixTransform.NONE and operator.ATensor.is_packed and math.prod(batch) == 1
        fits = 1 < self._rows <= MOST_ROWS and 4 * depth * self._columns <= MOST_PACKED
        if compiler and known is not None and is_plain and fits:
            matrix = self._turned(1, self._given[1].view(known)).reshape(depth, self._columns)
            self._loop = _Loop(matrix, self._rows, compiler, threads)

    @property
    def runs_inline(self) -> bool:
        return self._work <= INLINE and (self._loop is None or self._loop.is_compiled)

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        if cancelled():
            raise Cancelled
        out = self._target.view(outputs[0])
        given = [tensor.view(buffer) for tensor, buffer in zip(self._given, inputs, strict=True)]
        made = np.empty_like(out) if any(np.may_share_memory(out, each) for each in given) else out
        with np.errstate(all="ignore"):
            if self._loop:
                self._loop.run(address_of(inputs[0]), made, cancelled)
            else:
                a, b = (for_blas(np, self._turned(place, given[place])) for place in range(2))
                np.matmul(a, b, out=made)
            if self._alpha != 1:
                made *= self._alpha
            if len(given) > 2:
                made += given[2] if self._beta == 1 else given[2] * self._beta
            if self._activation:
                self._activation.apply(np, made)
            if made is not out:
                out[...] = made
        return RAN

    def _turned(self, place: int, x: Array) -> Array:
        return x if self._transforms[place] is MatrixTransform.NONE else x.swapaxes(-1, -2)


class _Loop:
    """Some rows times a matrix that is known. Safe to use from several threads."""

    def __init__(self, matrix: Array, rows: int, compiler: Compiler, threads: Threads) -> None:
        self._threads = threads
        self._depth, self._columns = matrix.shape
        width = compiler.vector_floats
        tiles = list(_tiles(rows, width))
        wide = tiles[0][0].places
        panels = -(-self._columns // wide)
        padded = np.zeros((self._depth, panels * wide), np.float32)
        padded[:, : self._columns] = matrix
        self._panels = np.ascontiguousarray(padded.reshape(self._depth, panels, wide).swapaxes(0, 1))
        self._row = panels * wide
        self._table = np.arange(self._depth) * wide
        self._zeros = np.zeros(rows, np.float32)
        codes = {tile: Code(compiler, source(tile, AHEAD)) for tile, _ in tiles}
        self._codes = list(codes.values())
        wanted = min(4 * threads.most, rows * matrix.size // WORTH_A_PIECE) if threads.most > 1 else 1
        self._pieces = [
            (codes[tile], self._frame(part, own, wide))
            for part in parts(range(panels), max(wanted, 1))
            for tile, own in tiles
        ]

    @property
    def is_compiled(self) -> bool:
        return all(code.is_compiled for code in self._codes)

    def _frame(self, panels: range, rows: range, wide: int) -> "array[int]":
        fixed = (self._panels.ctypes.data, 0, self._table.ctypes.data, self._zeros.ctypes.data, 0)
        numbers = (self._depth, 0, 1, rows.start, rows.stop, panels.start, panels.stop, 0, 0, self._depth, self._row)
        return array("q", [*fixed, *numbers, self._row, self._depth, (self._depth - 1) * wide])

    def run(self, rows: int, made: Array, cancelled: Callable[[], bool]) -> None:
        """Into `made`, of the rows at this address."""
        is_whole = self._row == self._columns
        results = made if is_whole else np.empty((*made.shape[:-1], self._row), np.float32)
        self._threads.share(len(self._pieces), partial(self._run, rows, results.ctypes.data), cancelled)
        if not is_whole:
            made[...] = results[..., : self._columns]

    def _run(self, rows: int, results: int, turn: int) -> None:
        code, frame = self._pieces[turn]
        frame = frame[:]
        frame[1], frame[4] = rows, results
        code(frame)


def _tiles(rows: int, width: int) -> Iterator[tuple[Tile, range]]:
    """Tiles for so many rows, two vectors wide, and which rows each is for: 32 registers of AVX-512 hold 12 rows' sums,
    16 of AVX2 six."""
    most = 12 if width != 8 else 6
    blocks = -(-rows // most)
    each = -(-rows // blocks)
    whole = rows // each * each
    yield Tile(each, 2, width), range(whole)
    if whole < rows:
        yield Tile(rows - whole, 2, width), range(whole, rows)
