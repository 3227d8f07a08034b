"""GEMM on the CPU: by loops that LLVM compiled, which threads share at once, or by NumPy's BLAS.

In a graph a matrix that is known before is packed once, in panels as wide as the loops' tiles: so what a loop reads
lies one after the other. A BLAS would do that at every dispatch, which for a few rows takes longer than the products.
Others are read as they lie, or packed first where they are turned, if the cache holds them or some rows read them once;
with few rows what is turned is read as it lies, too, along its terms.
What is larger is the BLAS', and so is what is small. Of FLOAT16 a BLAS has no products: loops widen it in registers,
so they are sooner done with larger matrices and with less; what is left is widened as a whole (`coordinates.py`).
"""

import math
import struct
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from app.contract.constants import DataType, MatrixTransform
from app.contract.tensors import TensorDesc, packed_strides
from app.devices.cpu.activations import ActivationLoop, LoweredActivation, lowered_activation, source_with
from app.devices.cpu.alone import MOST_OF_A_CALL, CallsKernel
from app.devices.cpu.calls import Call, Calls, Of, Pointer, pieces
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.products import FIELDS, Addend, ProductTile, source
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.packs import Packing
from app.devices.cpu.product_panels import Turned, packed
from app.devices.cpu.tensors import Tensor
from app.devices.cpu.threads import RAN, Threads, parts
from app.devices.device import ExecutionRecord, ensuring
from app.memory.arrays import Array, ignoring_float_errors
from app.memory.buffers import Buffer
from app.operators.arrays import READ, Activation, is_for_blas, matmul, on_words, pieces_of
from app.operators.compiled import CompiledOperator
from app.operators.fusion import Fused
from app.operators.linear_algebra.products import Gemm
from app.operators.looks import looking
from app.programs.dispatchable import Dispatchable
from app.programs.walks import collapse

MOST_PACKED, MOST_FILLED = 32 << 20, 8 << 20
"""Bytes that one matrix, which is known before, may have packed, beside the matrix; and panels of few columns, where
that is more than twice the matrix."""

MOST_READ, MOST_NEAR, MOST_OWN = 1 << 20, 4 << 20, 16 << 20
"""Bytes of a matrix that is read again and again while rows go through the cache; where the cache holds these; and
where they are so few that they read it once, or it is packed."""

FEW_ROWS, MANY_ROWS = 1 << 6, 1 << 8
"""Rows of FLOAT16 that loops are done with before all of the matrix that they meet is widened, however large that is;
and rows of which more are done sooner by a BLAS, since loops widen them again for each panel."""

WIDENED = 8
"""What an element that has to be widened for a BLAS comes to, in products."""

MOST_MATRICES = 1 << 6
"""Calls for matrices that are no even steps apart."""

LEAST_ALONE, MOST_LOOPED = 1 << 22, 1 << 33
"""Products outside of graphs that are worth loops: threads share them at once, where they take a BLAS 80 us, and to cut
them for sizes that are new takes 100; and so many that loops look often enough whether to go on."""

LEAST_ACTIVATED = 1 << 8
"""Elements that are worth a loop for an activation by itself, which takes 10 to 30 ms to compile, once."""

MOST_ALONG = 12
"""Rows that are multiplied with a turned matrix as it lies; for more it is turned first."""

AHEAD = 1 << 10
"""Elements of a packed matrix, which is seldom in a cache."""

LARGE = 1 << 20
"""Bytes of a known matrix from which on it is in no cache of a processor's own, so that reading it is what takes time:
two vectors at a time do for few rows, too, and it is packed once for any number of them."""

TERMS_AHEAD = 16
"""Terms of a matrix that no cache holds, and that is read as it lies: each is far from the one before."""

INLINE = 1 << 24
"""Work, in products, that is done in a millisecond."""

COPIED = 64
"""What an element comes to that has to be copied for a BLAS, others READ."""


def product_kernel(
    compiled: Dispatchable, team: Team | None, threads: Threads, known: Mapping[str, Buffer] | None
) -> "ProductKernel | CallsKernel | None":
    """For the operator, if it is a product without repeated elements, and of FLOAT16 if loops are better. `known` are
    inputs that are the same for all dispatches; it is None outside of graphs."""
    operator = _product_of(compiled)
    if operator is None:
        return None
    loops = None
    if team and (known is not None or _work_of_blas(compiled, operator) >= LEAST_ALONE):
        loops = _Loops.of(compiled, operator, team, threads, known or {})
        if loops and (known is None or _is_half(operator)):
            kept = [loops.panels] if loops.panels is not None else []
            return CallsKernel(compiled, loops.calls(), team, kept, inline=INLINE)
    if _is_half(operator):
        return None
    return ProductKernel(compiled, operator, loops, _activation(compiled, operator, team), threads)


def _is_half(operator: Gemm) -> bool:
    """A BLAS has no product of FLOAT16: each dispatch would widen all of both matrices for it."""
    return operator.ATensor.DataType is DataType.FLOAT16


def _bytes(operator: Gemm) -> int:
    """Of an element."""
    return operator.ATensor.DataType.bits // 8


def _work_of_blas(compiled: Dispatchable, operator: Gemm) -> int:
    """In products."""
    widened = WIDENED * operator.BTensor.elements if _is_half(operator) else 0
    return _products(compiled, operator) + widened


def _products(compiled: Dispatchable, operator: Gemm) -> int:
    return compiled.outputs["OutputTensor"].elements * _matrix(operator.ATensor, operator.TransA)[0][1]


def product_packing_of(compiled: Dispatchable, compiler: Compiler, known: Collection[str]) -> Packing | None:
    """Of the matrix that `product_kernel` packs in a graph, whose inputs of the names `known` are the same for all
    dispatches; None if it packs none."""
    operator = _product_of(compiled)
    if operator is None or not _is_packed(operator, compiled, compiler, known):
        return None
    return _packing(operator, compiled, compiler) if _is_for_loops(operator, compiled, compiler, True) else None


def _packing(operator: Gemm, compiled: Dispatchable, compiler: Compiler) -> Packing:
    sizes, strides = _matrix(operator.BTensor, operator.TransB)
    layout = "panels", _bytes(operator), *sizes, *strides, _wide(operator, compiled, compiler, True)
    return Packing(("BTensor",), layout, _panel_bytes(operator, compiled, compiler, True))


def _product_of(compiled: Dispatchable) -> Gemm | None:
    """The operator, if it is a product without repeated elements."""
    operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
    if not isinstance(operator, Gemm):
        return None
    output = compiled.outputs["OutputTensor"]
    operands = [compiled.inputs["ATensor"], compiled.inputs["BTensor"], output]
    repeats = any(
        stride == 0 and size > 1 for each in operands for stride, size in zip(each.strides, each.Sizes, strict=True)
    )
    return operator if output.is_packed and not repeats else None


def _is_packed(operator: Gemm, compiled: Dispatchable, compiler: Compiler, known: Collection[str]) -> bool:
    """Whether its second operand is one matrix that is known before, and packed is not too large."""
    if "BTensor" not in known or math.prod(compiled.outputs["OutputTensor"].Sizes[:-2]) != 1:
        return False
    most = min(max(2 * _bytes(operator) * operator.BTensor.elements, MOST_FILLED), MOST_PACKED)
    return _panel_bytes(operator, compiled, compiler, True) <= most


def _is_for_loops(operator: Gemm, compiled: Dispatchable, compiler: Compiler, is_packed: bool) -> bool:
    """Whether loops are better than a BLAS, its second matrix being packed before or not."""
    c, fused = operator.CTensor, operator.FusedActivation
    depth, columns = _matrix(operator.BTensor, operator.TransB)[0]
    if fused and _lowered(fused, compiled) is None:
        return False
    if c and columns > 1 and c.strides[-1] not in (0, 1):
        return False
    rows = compiled.outputs["OutputTensor"].Sizes[-2]
    if _is_half(operator) and rows > MANY_ROWS:
        return False
    if is_packed:
        return True
    is_turned = _is_turned(operator, compiled)
    if is_turned and _matrix(operator.BTensor, operator.TransB)[1][0] != 1:
        return False
    if is_turned and _is_along(operator, compiled):
        return _products(compiled, operator) <= MOST_LOOPED
    is_held = not is_turned or _own_bytes(operator, compiled, compiler) <= MOST_OWN
    if not is_held or _products(compiled, operator) > MOST_LOOPED:
        return False
    if _is_half(operator) and rows <= FEW_ROWS:
        return True
    if is_turned and rows == 1:
        return False
    most, size = MOST_READ, _bytes(operator)
    if size * rows * depth <= MOST_READ:
        (tile, _), *_ = _tiles(operator, compiled, compiler, False)
        most = MOST_OWN if is_turned or tile.rows == rows else MOST_NEAR
    return size * depth * columns <= most


def _lowered(fused: Fused, compiled: Dispatchable) -> LoweredActivation | None:
    """None where it is not of each element by itself, or NumPy's."""
    is_apart = not fused.axes(len(compiled.outputs["OutputTensor"].Sizes))
    return lowered_activation(fused) if is_apart else None


def _activation(compiled: Dispatchable, operator: Gemm, team: Team | None) -> ActivationLoop | Activation | None:
    """What follows a BLAS."""
    fused, output = operator.FusedActivation, compiled.outputs["OutputTensor"]
    if fused is None:
        return None
    lowered = _lowered(fused, compiled) if team and output.elements >= LEAST_ACTIVATED else None
    return (
        ActivationLoop(lowered, team.compiler) if lowered and team else Activation(fused, fused.axes(len(output.Sizes)))
    )


def _is_turned(operator: Gemm, compiled: Dispatchable) -> bool:
    """Whether rows of its second operand do not lie as vectors are loaded."""
    return compiled.outputs["OutputTensor"].Sizes[-1] > 1 and _matrix(operator.BTensor, operator.TransB)[1][1] != 1


def _is_along(operator: Gemm, compiled: Dispatchable) -> bool:
    """Whether its second operand, which is turned, is multiplied as it lies."""
    rows = compiled.outputs["OutputTensor"].Sizes[-2]
    return rows <= MOST_ALONG and _matrix(operator.ATensor, operator.TransA)[1][1] == 1


def _own_bytes(operator: Gemm, compiled: Dispatchable, compiler: Compiler) -> int:
    """Of all of the second operand's matrices, packed."""
    return math.prod(compiled.outputs["OutputTensor"].Sizes[:-2]) * _panel_bytes(operator, compiled, compiler, False)


def _panel_bytes(operator: Gemm, compiled: Dispatchable, compiler: Compiler, is_known: bool) -> int:
    """Of its packed matrix. Panels of few columns are filled up to a vector, which is up to 16 times as many."""
    columns, wide = compiled.outputs["OutputTensor"].Sizes[-1], _wide(operator, compiled, compiler, is_known)
    return _bytes(operator) * _matrix(operator.BTensor, operator.TransB)[0][0] * -(-columns // wide) * wide


def _wide(operator: Gemm, compiled: Dispatchable, compiler: Compiler, is_known: bool) -> int:
    """Columns of a panel."""
    return next(_tiles(operator, compiled, compiler, is_known))[0].columns


class ProductKernel:
    """Implements `Kernel`, and `Compiled` if there are `loops`."""

    def __init__(
        self,
        compiled: Dispatchable,
        operator: Gemm,
        loops: "_Loops | None",
        activation: ActivationLoop | Activation | None,
        threads: Threads,
    ) -> None:
        *self._given, self._target = (
            Tensor(compiled, name, desc) for name, desc in [*compiled.inputs.items(), *compiled.outputs.items()]
        )
        self._a = _Operand.of(operator.ATensor, operator.TransA)
        self._b = _Operand.of(operator.BTensor, operator.TransB)
        self._alpha, self._beta = np.float32(operator.Alpha), np.float32(operator.Beta)
        sizes = self._target.desc.Sizes
        self._activation, self._loops = activation, loops
        depth, columns = _matrix(operator.BTensor, operator.TransB)[0]
        self._work = _products(compiled, operator) + READ * self._target.desc.elements
        for tensor, operand in zip(self._given, (self._a, self._b), strict=False):
            self._work += (COPIED if operand.is_copied else READ) * tensor.desc.elements
        self._threads = threads
        self._is_cut = pieces_of([*sizes[:-1], depth], [depth, columns], threads.most) > 1
        self._matmul = partial(matmul, np) if self._is_cut else np.matmul

    @property
    def runs_inline(self) -> bool:
        is_ready = not isinstance(self._activation, ActivationLoop) or self._activation.is_compiled
        return self._work <= INLINE and is_ready and (self._loops is None or self._loops.are_compiled)

    @property
    def own_bytes(self) -> int:
        """Copies of operands that do not lie as BLAS takes them, of an addend that is scaled, and of the output where
        it lies over an operand."""
        operands = [tensor.desc for tensor in self._given[:2] if not tensor.desc.is_packed]
        added = 2 if len(self._given) > 2 and self._beta != 1 else 1
        return 4 * (sum(desc.elements for desc in operands) + added * self._target.desc.elements)

    def calls(self) -> Calls | None:
        return self._loops.calls() if self._loops else None

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        ensure = ensuring(cancelled)
        ensure()
        if not self._is_cut and self._activation is None:
            self._multiply(inputs, outputs[0])
            return RAN
        with looking(ensure, self._threads):
            self._multiply(inputs, outputs[0])
        return RAN

    @ignoring_float_errors
    def _multiply(self, inputs: Sequence[Buffer], output: Buffer) -> None:
        a, b, *addend = [tensor.view(buffer) for tensor, buffer in zip(self._given, inputs, strict=True)]
        out = self._target.view(output)
        # NumPy sees to it that a product may lie over its operands; what is added to it must still be there.
        made = np.empty_like(out) if addend and np.may_share_memory(out, addend[0]) else out
        self._matmul(self._a.matrices(a), self._b.matrices(b), out=made)
        if self._alpha != 1:
            made *= self._alpha
        if addend:
            made += addend[0] if self._beta == 1 else addend[0] * self._beta
        if isinstance(self._activation, ActivationLoop):
            self._activation.apply(made)
        elif self._activation:
            self._activation.apply(np, made)
        if made is not out:
            out[...] = made


class _Operand(NamedTuple):
    """Whether its matrices are transposed, and copied for a BLAS to take them."""

    is_turned: bool
    is_copied: bool

    @classmethod
    def of(cls, desc: TensorDesc, transform: MatrixTransform) -> "_Operand":
        return cls(transform is MatrixTransform.TRANSPOSE, not is_for_blas(*_matrix(desc, transform)))

    def matrices(self, array: Array) -> Array:
        turned = array.swapaxes(-1, -2) if self.is_turned else array
        made: Array = np.ascontiguousarray(turned) if self.is_copied else on_words(turned)
        return made


def _matrix(desc: TensorDesc, transform: MatrixTransform) -> tuple[list[int], list[int]]:
    """Sizes and strides of its matrices as they are multiplied."""
    sizes, strides = list(desc.Sizes[-2:]), list(desc.strides[-2:])
    return (sizes, strides) if transform is MatrixTransform.NONE else (sizes[::-1], strides[::-1])


@dataclass(frozen=True, eq=False, slots=True)
class _Loops:
    """The calls that do a product. Safe to use from several threads."""

    size: int
    """Bytes of an element."""
    codes: dict[ProductTile, Code]
    frame: dict[str, int]
    """What is the same for all calls."""
    panels: Array | None
    """The packed matrix, if it is known."""
    first: Sequence[Call]
    """What packs the second operand into memory of its own, if it is turned."""
    own_bytes: int
    tiles: Sequence[tuple[ProductTile, range]]
    """Which rows each is for."""
    matrices: Sequence[tuple[int, ...]]
    """Where groups begin, in bytes, of both operands as they are multiplied, the addend and the output."""
    groups: int
    work: int
    """Products of a group."""
    threads: Threads
    attributes: Sequence[int]
    """The activation's."""

    @classmethod
    def of(
        cls, compiled: Dispatchable, operator: Gemm, team: Team, threads: Threads, known: Mapping[str, Buffer]
    ) -> "_Loops | None":
        """None where a BLAS is better. `known` are inputs that are the same for all dispatches."""
        compiler = team.compiler
        a, b, output = operator.ATensor, operator.BTensor, compiled.outputs["OutputTensor"]
        c = operator.CTensor
        (rows, depth), (a_row, a_term) = _matrix(a, operator.TransA)
        _, (b_term, b_column) = _matrix(b, operator.TransB)
        columns = output.Sizes[-1]
        batch = output.Sizes[:-2]
        is_known = _is_packed(operator, compiled, compiler, known)
        if not _is_for_loops(operator, compiled, compiler, is_known):
            return None
        is_turned = not is_known and _is_turned(operator, compiled)
        is_along = is_turned and _is_along(operator, compiled)
        is_turned = is_turned and not is_along
        descs = [a, b, c or output, output]
        size = _bytes(operator)
        sizes, strides = collapse(batch, [each.strides[:-2] for each in descs])
        *outer, groups = sizes
        if math.prod(outer) > MOST_MATRICES:
            return None
        addend: Addend = "none"
        if c:
            addend = "columns" if c.strides[-1] == 0 else "rows"
        tiles = list(_tiles(operator, compiled, compiler, is_known))
        if is_along:
            tiles = [(ProductTile(rows, 1, compiler.vector_floats, along=_columns_along(rows, compiler)), range(rows))]
        form = replace(
            tiles[0][0],
            is_packed=is_known or is_turned,
            addend=addend,
            is_scaled=operator.Alpha != 1 or (c is not None and operator.Beta != 1),
            ahead=AHEAD if is_known else 0 if is_turned or is_along or size * b.elements <= MOST_OWN else TERMS_AHEAD,
            stored="half" if _is_half(operator) else "float",
        )
        tiles = [(replace(form, rows=tile.rows), own) for tile, own in tiles]
        wide = form.columns
        panels: Array | None = None
        if is_known:
            view = Tensor(compiled, "BTensor", b).view(known["BTensor"]).reshape(b.Sizes[-2:])
            matrix = view if operator.TransB is MatrixTransform.NONE else view.T
            panels = _packing(operator, compiled, compiler).made(known, lambda: packed(matrix, wide))
        first: list[Call] = []
        if is_turned:
            each = _panel_bytes(operator, compiled, compiler, False) // size
            of_packed = [each * step for step in packed_strides(sizes)]
            first = [*Turned(size, depth, columns, b_column, wide, sizes, strides[1], of_packed).calls(team)]
            strides[1] = of_packed
        fused = operator.FusedActivation
        activation = _lowered(fused, compiled) if fused else None
        frame = dict.fromkeys(FIELDS, 0) | {
            "b": panels.ctypes.data if panels is not None else 0,
            "depth": depth,
            "columns": columns,
            "a_row": a_row,
            "a_term": a_term,
            "b_panel": wide * (depth if form.is_packed else b_column),
            "b_column": b_column,
            "b_term": wide if form.is_packed else b_term,
            "r_row": output.strides[-2],
            "c_row": c.strides[-2] if c else 0,
            "alpha": _bits(operator.Alpha),
            "beta": _bits(operator.Beta),
        }
        for name, steps in zip(("a_group", "b_group", "c_group", "r_group"), strides, strict=True):
            frame[name] = steps[-1]
        matrices = [
            tuple(size * sum(map(int.__mul__, at, steps)) for steps in strides) for at in product(*map(range, outer))
        ]
        codes = {tile: Code(compiler, source_with(activation, source, tile)) for tile, _ in tiles}
        attributes = activation.attributes if activation else ()
        own = _own_bytes(operator, compiled, compiler) if is_turned else 0
        work = (rows + READ if is_along else rows) * depth * columns  # mostly to read it
        return cls(size, codes, frame, panels, first, own, tiles, matrices, groups, work, threads, attributes)

    @property
    def are_compiled(self) -> bool:
        return all(code.is_compiled for code in [*self.codes.values(), *(call.code for call in self.first)])

    def calls(self) -> Calls:
        """All in one stage, after what is turned."""
        work = self.work * self.groups * len(self.matrices)
        count = max(pieces(work, self.threads.most), work // MOST_OF_A_CALL)
        panels = range(-(-self.frame["columns"] // self.tiles[0][0].columns))
        made: list[Call] = []
        for tile, all_rows in self.tiles:
            blocks = [*self._blocks(tile, all_rows)]
            wanted = -(-count // (len(self.matrices) * len(blocks)))
            for starts, rows in product(self.matrices, blocks):
                for own in shares(self.groups, panels, rows, tile.rows, wanted):
                    work = math.prod(map(len, own.values())) * self.work // (len(panels) * self._rows)
                    made.append(self._call(tile, own, starts, work))
        return Calls([self.first, made] if self.first else [made], self.own_bytes)

    def _blocks(self, tile: ProductTile, rows: range) -> Iterator[range]:
        """Whole tiles, of which the cache has the rows for all panels."""
        tiles = range(len(rows) // tile.rows)
        for part in parts(tiles, max(1, self.size * len(rows) * self.frame["depth"] // MOST_READ)):
            yield range(rows.start + part.start * tile.rows, rows.start + part.stop * tile.rows)

    @property
    def _rows(self) -> int:
        return sum(len(rows) for _, rows in self.tiles)

    def _call(self, tile: ProductTile, own: Mapping[str, range], starts: tuple[int, ...], work: int) -> Call:
        frame = dict(self.frame)
        for name, along in own.items():
            frame[f"first_{name}"], frame[f"end_{name}"] = along.start, along.stop
        pointers = [Pointer(FIELDS.index("a"), Of.INPUT, 0, starts[0])]
        if self.first:
            pointers.append(Pointer(FIELDS.index("b"), Of.OWN, 0, starts[1]))
        elif self.panels is None:
            pointers.append(Pointer(FIELDS.index("b"), Of.INPUT, 1, starts[1]))
        if tile.addend != "none":
            pointers.append(Pointer(FIELDS.index("c"), Of.INPUT, 2, starts[2]))
        pointers.append(Pointer(FIELDS.index("results"), Of.OUTPUT, 0, starts[3]))
        return Call(self.codes[tile], array("q", [*frame.values(), *self.attributes]), pointers, work)


def shares(groups: int, panels: range, rows: range, each: int, wanted: int) -> Iterator[dict[str, range]]:
    """Groups, panels and rows in about so many parts as are wanted, cut along one of the three: `each` rows, those of a
    tile, stay together."""
    whole = {"group": range(groups), "panel": panels, "row": range(len(rows) // each)}
    cut = max(whole, key=lambda name: (len(whole[name]) >= wanted, len(whole[name]) * (name != "row")))
    for part in parts(whole[cut], wanted):
        own = whole | {cut: part}
        first, end = (rows.start + each * place for place in (own["row"].start, own["row"].stop))
        yield own | {"row": range(first, end)}


def _bits(number: float) -> int:
    made: int = struct.unpack("<q", struct.pack("<f4x", number))[0]
    return made


def _columns_along(rows: int, compiler: Compiler) -> int:
    """Of a matrix that is multiplied as it lies: as many as registers have the sums of, so that these need not wait for
    one another."""
    return min(8, compiler.vector_floats, 1 << ((12 if compiler.vector_floats == 8 else 24) // rows).bit_length() - 1)


def _tiles(
    operator: Gemm, compiled: Dispatchable, compiler: Compiler, is_known: bool
) -> Iterator[tuple[ProductTile, range]]:
    """Tiles for its rows, and which rows each is for, where its second operand is known before or is not."""
    (rows, columns), width = compiled.outputs["OutputTensor"].Sizes[-2:], compiler.vector_floats
    is_large = is_known and _bytes(operator) * operator.BTensor.elements >= LARGE
    for each, vectors, own in sums_at_once(rows, columns, width):
        yield ProductTile(each, min(vectors, 2) if is_large else vectors, width), own


def sums_at_once(rows: int, columns: int, width: int, spared: int = 0) -> Iterator[tuple[int, int, range]]:
    """How many rows' sums registers hold of how many vectors, and which rows it is for: 32 registers of AVX-512 hold
    those of 12 rows of two vectors, 16 of AVX2 of six, or fewer by those that are `spared`. Fewer rows take more
    vectors, so that sums need not wait for one another."""
    most = (12 if width != 8 else 6) - spared
    blocks = -(-rows // most)
    each = -(-rows // blocks)
    vectors = min(8 if each == 1 else 4 if each <= most // 4 else 2, -(-columns // width))
    whole = rows // each * each
    yield each, vectors, range(whole)
    if whole < rows:
        yield rows - whole, vectors, range(whole, rows)
