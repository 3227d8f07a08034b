"""Products of matrices of 8-bit integers on the CPU, by loops that LLVM compiled: exact, and quicker than of floats.

Both matrices are packed first, the right one once where it is known before, then multiplied, and where they have scales
sums become results.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc, packed_strides
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.calls import Calls, Of, Pointer
from app.devices.cpu.integer_packing import Side, Tiles, packing
from app.devices.cpu.integer_results import KINDS, LARGEST, Given, Results
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.integer_results import Result
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.packs import Packing
from app.memory.addresses import whole_lines
from app.memory.arrays import Array
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator
from app.operators.quantization.matrices import (
    MatrixMultiplyInteger,
    MatrixMultiplyIntegerToFloat,
    QuantizedLinearMatrixMultiply,
)
from app.programs.dispatchable import Dispatchable
from app.programs.walks import Walk, collapse

Product: TypeAlias = MatrixMultiplyInteger | QuantizedLinearMatrixMultiply | MatrixMultiplyIntegerToFloat

MOST_MATRICES = 1 << 6
"""Calls for matrices that are no even steps apart."""

_BYTES = (DataType.INT8, DataType.UINT8)


def integer_product_kernel(
    compiled: Dispatchable, team: Team, known: Mapping[str, Buffer] | None
) -> CallsKernel | None:
    """For the operator, if it is one that the loops are for. `known` are inputs that are the same for all dispatches;
    it is None outside of graphs."""
    found = _IntegerProduct.of(compiled, team.compiler)
    if found is None:
        return None
    kept = found.right.kept(known or {}, team)
    return CallsKernel(compiled, found.calls(kept, team.most), team, () if kept is None else [kept])


def integer_packing_of(compiled: Dispatchable, compiler: Compiler, known: Collection[str]) -> Packing | None:
    """Of the matrices that `integer_product_kernel` keeps a second time, packed, if inputs of the names `known` are the
    same for all dispatches."""
    found = _IntegerProduct.of(compiled, compiler)
    return found.right.packing(known) if found else None


@dataclass(frozen=True, eq=False, slots=True)
class _IntegerProduct:
    """The products of an operator."""

    reads: Sequence[str]
    """Its inputs, in their order."""
    left: Side
    right: Side
    tiles: Tiles
    output: TensorDesc
    results: Results | None
    """What sums become, if anything else."""

    @classmethod
    def of(cls, compiled: Dispatchable, compiler: Compiler) -> "_IntegerProduct | None":
        """None where it is none, or lies so that loops would not be quick."""
        operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
        if not isinstance(operator, Product) or operator.ATensor.DataType not in _BYTES:
            return None
        output = compiled.outputs["OutputTensor"]
        rows, columns = output.Sizes[-2:]
        depth = operator.ATensor.Sizes[-1]
        if output.strides[-1] != 1 and columns > 1:
            return None
        reads, results = list(compiled.inputs), None
        if not isinstance(operator, MatrixMultiplyInteger):
            if depth > LARGEST or output.DataType not in KINDS:
                return None
            results = _results(operator, output, compiler, reads)
            if results is None:
                return None
        tiles = Tiles.of(rows, depth, columns, compiler)
        left, right = _side(operator, "A", compiler, tiles), _side(operator, "B", compiler, tiles)
        found = cls(reads, left, right, tiles, output, results)
        walks = [left.walk(), right.walk(), found._matrices(), *([found._groups()] if results else [])]
        return found if all(math.prod(sizes[:-1]) <= MOST_MATRICES for sizes, _ in walks) else None

    @property
    def _sums(self) -> list[int]:
        """Bytes from one matrix of sums to the next one, along each dimension that leads; rows lie together."""
        *batch, rows, columns = self.output.Sizes
        return [4 * rows * columns * step for step in packed_strides(batch)]

    def _matrices(self) -> Walk:
        """Through packed matrices, and sums or results."""
        steps = self._sums if self.results else [4 * step for step in self.output.steps[:-2]]
        return collapse(self.output.Sizes[:-2], [self.left.packed_steps, self.right.packed_steps, steps])

    def _groups(self) -> Walk:
        """Through sums, results and what these are made with."""
        assert self.results
        batch, each = self.output.Sizes[:-2], self.results.result.bytes
        made = [each * step for step in self.output.steps[:-2]]
        sums, *others = [self._sums, made, *self.results.strides(len(batch))]
        sizes, strides = collapse(batch, [*others, sums])
        return sizes, [strides[-1], *strides[:-1]]

    def calls(self, kept: Array | None, threads: int) -> Calls:
        """All: matrices are packed, the right one unless it is `kept`, and multiplied, and results are made."""
        own = whole_lines(self.left.packed_bytes)
        packs = [*self.left.calls(self.reads, Pointer(2, Of.OWN), threads)]
        right: Pointer | int = Pointer(1, Of.OWN, 0, own)
        if kept is None:
            packs += self.right.calls(self.reads, Pointer(2, Of.OWN, 0, own), threads)
            own = whole_lines(own + self.right.packed_bytes)
        else:
            right = kept.ctypes.data
        rows, columns = self.output.Sizes[-2:]
        to, row = Pointer(2, Of.OUTPUT), 4 * self.output.steps[-2]
        if self.results:
            to, row = Pointer(2, Of.OWN, 0, own), 4 * columns
        stages = [
            packs,
            [*self.tiles.calls(columns, self._matrices(), Pointer(0, Of.OWN), right, to, row, threads)],
        ]
        if self.results:
            steps = {"sums_row": row, "results_row": self.results.result.bytes * self.output.steps[-2]}
            stages.append([*self.results.calls(self._groups(), (rows, 1, columns), steps, (to.offset, 0), threads)])
            own += 4 * self.output.elements
        return Calls(stages, own)


def _side(operator: Product, name: Literal["A", "B"], compiler: Compiler, tiles: Tiles) -> Side:
    """How the matrices of one of the two are packed."""
    is_left = name == "A"
    desc, zeros = (
        (operator.ATensor, operator.AZeroPointTensor) if is_left else (operator.BTensor, operator.BZeroPointTensor)
    )
    *batch, rows, columns = desc.Sizes
    *leading, of_rows, of_columns = desc.steps
    zero_steps, zero_line = _each(zeros, len(batch), is_left)
    numbers = {"depth": tiles.depth, "zero_line": zero_line}
    if is_left:
        numbers |= {"size": rows, "line": of_rows, "term": of_columns}
        lines = rows, tiles.row_bytes
    else:
        numbers |= {"size": columns, "line": of_columns, "term": of_rows}
        lines = tiles.panels(columns), tiles.panel_bytes
    of = tiles.panel.terms if is_left else tiles.panel
    code, frame = packing(
        compiler, of, desc.DataType is DataType.INT8, "dense" if of_columns == 1 else "apart", numbers
    )
    zeros_name = f"{name}ZeroPointTensor" if zeros else None
    return Side(code, frame, f"{name}Tensor", zeros_name, batch, (leading, zero_steps), *lines)


def _results(
    operator: QuantizedLinearMatrixMultiply | MatrixMultiplyIntegerToFloat,
    output: TensorDesc,
    compiler: Compiler,
    reads: Sequence[str],
) -> Results | None:
    """What sums become; None where loops would not be quick."""
    leading, given = output.rank - 2, {}
    tensors = operator.tensors()
    for of, name, is_row in (
        ("left", "AScaleTensor", True),
        ("right", "BScaleTensor", False),
        ("scale", "OutputScaleTensor", True),
        ("zero", "OutputZeroPointTensor", True),
    ):
        desc = tensors.get(name)
        if desc is None:
            continue
        size = desc.DataType.bits // 8
        groups, line = _each(desc, leading, is_row)
        row, column = (line, 0) if is_row else (0, line)
        if column not in (0, 1):
            return None
        given[of] = Given(name, [size * step for step in groups], size * row, size * column)
    bias = tensors.get("BiasTensor")
    if bias is not None:
        *groups, row, column = bias.steps
        if bias.DataType is not DataType.FLOAT32 or (column != 1 and bias.Sizes[-1] != 1):
            return None
        given["bias"] = Given("BiasTensor", [4 * step for step in groups], 4 * row)
    result = Result(KINDS[output.DataType], bias is not None, given["right"].column != 0)
    return Results.of(result, compiler, reads, given)


def _each(desc: TensorDesc | None, leading: int, is_row: bool) -> tuple[list[int], int]:
    """Steps of scales or zero points: one for each of so many dimensions that lead matrices, and from row to row or
    from column to column."""
    if desc is None or desc.elements == 1:
        return [0] * leading, 0
    steps = desc.steps
    if desc.rank == 1:
        return [0] * leading, steps[0]
    return ([0] * leading + steps[:-2])[len(steps) - 2 :], steps[-2 if is_row else -1]
