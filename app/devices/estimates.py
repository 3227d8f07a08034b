"""Whether a GPU is done with a dispatch before the CPU, tensors moved there and back: an estimate from what there is to
move and to compute, and from what both take for that on this machine."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from app.contract.constants import NEWEST
from app.devices.device import Device
from app.formula.costs import FUNCTION
from app.graphs.schedule import InitializedGraph
from app.memory.buffers import BufferPool
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator, compile_operator
from app.programs.dispatchable import Dispatchable

FEW, SOME, MANY = 1 << 14, 1 << 18, 1 << 24
"""Elements that are measured: of which a GPU's time is all start, which a CPU's cache holds, and which it does not."""

FEW_ROWS, MANY_ROWS = 64, 512
"""Of the matrices that are multiplied, and columns: for a GPU, and for a CPU."""

MEASURING = 0.1
"""Seconds that dispatches of one kind are measured for, at least LEAST of them: other processes start meanwhile."""

LEAST = 5

LAUNCH = 4e-6
"""Seconds that a GPU takes for a kernel of a graph at least."""

MOST = 1 << 28
"""Elements up to which `Pace.least` looks."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a dispatch is, whatever device does it."""

    moved: int
    """Bytes of the tensors that are bound, which a GPU is given and gives back."""
    passed: int
    """Bytes of the tensors that kernels read and write."""
    operations: int
    """Of formulas, on all elements."""
    multiplications: int
    """Whose results are added up."""
    kernels: int

    @classmethod
    def of(cls, work: Dispatchable | InitializedGraph) -> "Work":
        if isinstance(work, Dispatchable):
            return _of_kernel(work)
        every = [_of_kernel(step.dispatchable) for step in work.schedule.steps]
        bound = [*work.schedule.read_bytes.values(), *(desc.data_bytes for desc in work.schedule.outputs.values())]
        return cls(
            sum(bound),
            sum(each.passed for each in every),
            sum(each.operations for each in every),
            sum(each.multiplications for each in every),
            len(every),
        )


def _of_kernel(work: Dispatchable) -> Work:
    size = sum(desc.data_bytes for desc in (*work.inputs.values(), *work.outputs.values()))
    of_element = FUNCTION if work.call else work.program.operations
    return Work(size, size, of_element * work.elements, work.multiplications, 1)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: of the GPU, before and after all that depends on sizes, by itself and where there are products, and for
    a byte that it is given or gives back; of the CPU, for a byte that is read or written, for an operation of a
    formula, and for a multiplication."""

    start: float
    product: float
    bus: float
    memory: float
    operation: float
    multiplication: float

    def favours_gpu(self, work: Work) -> bool:
        """Whether the GPU, whose own computing takes no time beside that of the CPU, is done first. A CPU's loop waits
        for memory or computes, whichever takes longer."""
        loops = max(work.passed * self.memory, work.operations * self.operation)
        cpu = loops + work.multiplications * self.multiplication
        start = self.product if work.multiplications else self.start
        return cpu > start + (work.kernels - 1) * LAUNCH + work.moved * self.bus

    def least(self, of: Callable[[int], Dispatchable]) -> int | None:
        """The least power of 2 that a GPU is done first with, in place of the size of what is dispatched; None if it is
        with none."""
        size = 1
        while (work := of(size)).elements <= MOST:
            if self.favours_gpu(Work.of(work)):
                return size
            size *= 2
        return None


def measure(cpu: Device, gpu: Device, pool: BufferPool) -> Pace:
    """The pace of both, with buffers of `pool`, as requests have them. Takes some 0.8 s. Raises DeviceFailed."""
    small, large, function, product = hard_sigmoid(FEW), hard_sigmoid(MANY), gelu(SOME), square_product(MANY_ROWS)
    start = _seconds(gpu, small, pool)
    return Pace(
        start=start,
        product=_seconds(gpu, square_product(FEW_ROWS), pool),
        bus=max(_seconds(gpu, large, pool) - start, 0.0) / (Work.of(large).moved - Work.of(small).moved),
        memory=_seconds(cpu, large, pool) / Work.of(large).passed,
        operation=_seconds(cpu, function, pool) / Work.of(function).operations,
        multiplication=_seconds(cpu, product, pool) / product.multiplications,
    )


def _seconds(device: Device, compiled: CompiledOperator, pool: BufferPool) -> float:
    """The best time of a dispatch: other work on the machine only ever adds to it."""
    inputs, outputs = (
        [pool.take(desc.data_bytes) for desc in descs.values()] for descs in (compiled.inputs, compiled.outputs)
    )
    for each in inputs:
        np.frombuffer(each, np.float32)[:] = 1.5
    kernel = device.prepare(compiled)
    best, spent, count = math.inf, 0.0, 0
    while count < LEAST or spent < MEASURING:
        started = perf_counter()
        kernel.dispatch(inputs, outputs, lambda: False)
        took = perf_counter() - started
        best, spent, count = min(best, took), spent + took, count + 1
    return best


def hard_sigmoid(elements: int) -> CompiledOperator:
    """The operator that a CPU is quickest at."""
    return sample("DML_OPERATOR_ACTIVATION_HARD_SIGMOID", {"InputTensor": _float32([elements])})


def gelu(elements: int) -> CompiledOperator:
    """One that computes."""
    return sample("DML_OPERATOR_ACTIVATION_GELU", {"InputTensor": _float32([elements])})


def square_product(rows: int) -> CompiledOperator:
    """Of two square matrices."""
    matrix = _float32([rows, rows])
    return sample("DML_OPERATOR_GEMM", {"ATensor": matrix, "BTensor": matrix})


def _float32(sizes: list[int]) -> dict[str, Any]:
    return {"DataType": "FLOAT32", "Sizes": sizes}


def sample(name: str, members: dict[str, Any]) -> CompiledOperator:
    """An operator with these tensors and attributes; for attributes that it requires besides, the example's."""
    operator = OPERATORS[name]
    attributes = {
        field: info.examples[0]
        for field, info in operator.model_fields.items()
        if field in operator.attribute_names() and info.is_required() and info.examples
    }
    return compile_operator(operator.model_validate({"Type": name} | attributes | members), NEWEST)
