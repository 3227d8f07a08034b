"""SCATTER on the CPU, by loops that LLVM compiled: all elements are copied, then the updates go where indices lead."""

from array import array
from collections.abc import Iterator
from functools import lru_cache

from app.contract.tensors import packed_strides
from app.devices.cpu.alone import CallsKernel, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.llvm import scatters
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.kernels import Code
from app.devices.cpu.llvm.types import llvm_type
from app.devices.cpu.threads import Threads
from app.operators.compiled import CompiledOperator
from app.operators.indexing.scatter import Scatter
from app.programs.dispatchable import Dispatchable
from app.programs.walks import collapse

WORK = 1 << 4
"""Of an update."""


def scatter_kernel(compiled: Dispatchable, compiler: Compiler, threads: Threads) -> CallsKernel | None:
    """For the operator, if it is the one, of packed tensors."""
    operator = compiled.operator if isinstance(compiled, CompiledOperator) else None
    if not isinstance(operator, Scatter):
        return None
    x, indices, updates = (compiled.inputs[name] for name in ("InputTensor", "IndicesTensor", "UpdatesTensor"))
    made = compiled.outputs["OutputTensor"]
    if not all(each.is_packed for each in (x, indices, updates, made)):
        return None
    size, index = x.DataType.bits // 8, indices.DataType.value.lower()
    to = [step * size for step in packed_strides(x.Sizes)]
    stride, to[operator.Axis] = to[operator.Axis], 0
    counts, (to, steps) = collapse(indices.Sizes, [to, packed_strides(indices.Sizes)])
    names = list(compiled.inputs)
    code = Code(compiler, _source(size, llvm_type(index), len(counts), not index.startswith("u")))
    # Along the axis updates stay in their order. Of the longest one of the others there are parts for threads.
    others = [axis for axis, step in enumerate(to) if step]
    split = max(others, key=lambda axis: counts[axis], default=0)
    work = WORK * indices.elements // counts[split]

    def calls() -> Iterator[Call]:
        whole = range(counts[split])
        for part in portions(whole, work, threads.most) if others else [whole]:
            sizes = [len(part) if axis == split else count for axis, count in enumerate(counts)]
            numbers = [each for dimension in zip(sizes, steps, to, strict=True) for each in dimension]
            number = part.start * steps[split]
            pointers = [
                Pointer(0, Of.INPUT, names.index("IndicesTensor"), number * indices.DataType.bits // 8),
                Pointer(1, Of.INPUT, names.index("UpdatesTensor"), number * size),
                Pointer(2, Of.OUTPUT, 0, part.start * to[split]),
            ]
            frame = array("q", [0, 0, 0, *numbers, x.Sizes[operator.Axis], stride])
            yield Call(code, frame, pointers, work * len(part))

    copy = Code(compiler, _copies())
    copied = [
        Call(
            copy,
            array("q", [0, 0, len(part)]),
            [Pointer(0, Of.INPUT, names.index("InputTensor"), part.start), Pointer(1, Of.OUTPUT, 0, part.start)],
            len(part),
        )
        for part in portions(range(x.elements * size), 1, threads.most)
    ]
    return CallsKernel(compiled, Calls([copied, list(calls())]), threads)


@lru_cache(32)
def _source(size: int, index: str, dimensions: int, is_signed: bool) -> str:
    return scatters.source(size, index, dimensions, is_signed=is_signed)


@lru_cache(1)
def _copies() -> str:
    return scatters.copies()
