"""CUDA kernels of rows, built as C++ for the CPU: a thread for each of a group's, one group after the other."""

import ctypes
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from app.devices.cuda.functions import PRIMITIVES
from app.devices.cuda.grids import KERNEL, THREADS
from app.devices.cuda.groups import Rows
from app.devices.cuda.reducers import REDUCERS, REDUCERS_ACROSS
from app.devices.cuda.rows import RowLowering
from app.devices.cuda.sums import TWICE
from app.formula.structures import Questions
from app.formula.uniform import evaluator, typed
from app.formula.values import Value
from app.memory.arrays import Array, numpy_type
from app.operators.compiled import CompiledOperator
from tests.devices import cuda_on_cpu

_SHARED = r"""
struct float2 { float x, y; };
static float2 make_float2(float x, float y) { return float2{x, y}; }
template <int GROUP, class T> static T shared_by_all(T value) {
    static T kept;
    pthread_barrier_wait(&barrier);
    if (threadIdx.x == 0) kept = value;
    pthread_barrier_wait(&barrier);
    T made = kept;
    pthread_barrier_wait(&barrier);
    return made;
}
"""

_HEAD = re.compile(rf'extern "C" __global__ void __launch_bounds__\([^)]*\) {KERNEL}\(')
_FOR_GPUS = re.compile(r"#if __CUDA_ARCH__ >= 800.*?#endif", re.DOTALL)


def build_rows(folder: Path, operators: Sequence[CompiledOperator]) -> list[Callable[..., Array]]:
    """A function of arrays for the one output of each operator, whose formula reduces."""
    threads = cuda_on_cpu._THREADS.replace(f"#define THREADS {cuda_on_cpu._LANES}\n", "")
    parts = [cuda_on_cpu._PRIMITIVES, f"#define THREADS {THREADS}\n{threads}", _SHARED]
    made: list[tuple[Rows, tuple[Value, ...]]] = []
    for number, operator in enumerate(operators):
        ((name, each),) = operator.program.maps.items()
        rows = Rows.of(operator, name)
        kind = rows.kind(aligned=True)
        ask, inputs = Questions(operator.numbers).ask, list(operator.program.inputs.items())
        source, arguments = RowLowering(ask, each.expression, inputs, each.stored).source(kind)
        defined = f"#define THREADS {kind.threads_of_block}\n"
        body = source.removeprefix(PRIMITIVES).replace(defined, "").replace(TWICE, "")
        reducers = REDUCERS_ACROSS if kind.across else REDUCERS
        assert reducers in body
        body = body.replace(reducers, "".join(reducers.partition("template <class T> DEVICE T larger(")[1:]))
        body = _HEAD.sub(f"static void {KERNEL}(", _FOR_GPUS.sub("", body)).replace('asm volatile("" : "+f"(x));', "")
        over, of = ("%", "/") if kind.across else ("/", "%")
        count = kind.groups_of_block if kind.across else kind.threads
        first, thread = (
            f"blockIdx.x * {kind.groups_of_block} + threadIdx.x {over} {count}",
            f"thread = threadIdx.x {of} {count}",
        )
        assert first in body
        assert thread in body
        call = f"launched(from_table<n{number}::{KERNEL}>::call, table, blocks, {kind.threads}, true)"
        parts.append(
            f"#undef THREADS\n#define THREADS {kind.threads}\nnamespace n{number} {{\n"
            f"{body.replace(first, 'blockIdx.x').replace(thread, 'thread = threadIdx.x')}\n}}\n"
            f'extern "C" void kernel{number}(void** table, unsigned blocks) {{ {call}; }}'
        )
        made.append((rows, arguments))
    library = cuda_on_cpu._built(folder / "rows.cpp", parts, "-O0")
    return [
        _function(library[f"kernel{number}"], operator, *each)
        for number, (operator, each) in enumerate(zip(operators, made, strict=True))
    ]


def _function(
    kernel: Callable[..., object], operator: CompiledOperator, rows: Rows, arguments: Sequence[Value]
) -> Callable[..., Array]:
    (desc,) = operator.outputs.values()

    def run(*inputs: Array) -> Array:
        output = np.zeros(desc.Sizes, numpy_type(desc.DataType))
        packed = [*map(np.ascontiguousarray, inputs), output]
        given: list[Array] = [
            *(np.array(each.ctypes.data, np.uint64) for each in packed),
            np.array(rows.groups, np.uint64),
        ]
        given += [rows.shape, *(np.array(typed(each.type, evaluator(each)(operator.numbers))) for each in arguments)]
        table = (ctypes.c_void_p * len(given))(*[each.ctypes.data for each in given])
        kernel(ctypes.c_void_p(ctypes.addressof(table)), ctypes.c_uint(rows.groups))
        return output

    return run
