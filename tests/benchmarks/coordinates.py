"""Formulas that go by coordinates on the CPU against the NumPy expression that one would write:
`python tests/benchmarks/coordinates.py`.

Both run in this process, one after the other, round by round, on 1 Mi elements of FLOAT32. A row tells the best times
of one thread, NumPy's over ours, and how long the loop takes to compile. Above 1 the formula is faster.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.contract.constants import NEWEST, DataType
from app.contract.tensors import TensorDesc
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.formula import coordinates as c
from app.formula.coordinates import Operand, coordinates
from app.formula.structures import Structures
from app.formula.values import INT64, Parameter, Value, cast, maximum, minimum, quotient, remainder_of_floor, where
from app.memory.arrays import Array
from app.operators.compiled import CompiledOperator
from app.operators.parameters import bare
from app.operators.structure import sizes_of
from app.programs.program import Map, Program
from tests.operators.coordinate_operators import Slice1

Formula = Callable[..., Value]
N = {name: Parameter(INT64, name) for name in ("p", "s", "w")}
P, S, W = N.values()


def padding(x: Operand) -> Value:
    at = [each - P for each in coordinates(2)]
    inside = (at[0] >= 0) & (at[0] < x.sizes[0]) & (at[1] >= 0) & (at[1] < x.sizes[1])
    return where(inside, x[at], 0)


def reflection(x: Operand) -> Value:
    def reflected(at: Value, size: Value) -> Value:
        at = where(at < 0, -at, at)
        return where(at >= size, (size - 1) * 2 - at, at)

    return x[[reflected(each - P, size) for each, size in zip(coordinates(2), x.sizes, strict=True)]]


def gather(x: Operand, indices: Operand) -> Value:
    i, j = coordinates(2)
    at = cast(indices[[i]], INT64)
    return x[[where(at < 0, at + x.sizes[0], at), j]]


def join(x: Operand, y: Operand) -> Value:
    i, j = coordinates(2)
    return where(j < x.sizes[1], x[[i, j]], y[[i, j - x.sizes[1]]])


def max_pooling(x: Operand) -> Value:
    n, i, j = coordinates(3)
    return c.maximum_over([W, W], lambda a, b: x[[n, i * S + a, j * S + b]])


def average_pooling(x: Operand) -> Value:
    """Of windows that are cut off at the ends of the tensor."""
    n, *at = coordinates(3)
    begins = [maximum(each * S - P, 0) for each in at]
    ends = [minimum(each * S - P + W, size) for each, size in zip(at, x.sizes[1:], strict=True)]
    counts = [end - begin for begin, end in zip(begins, ends, strict=True)]
    total = c.sum_over(counts, lambda a, b: x[[n, begins[0] + a, begins[1] + b]])
    return total / cast(counts[0] * counts[1], x.type)


def windows(x: Array, w: int, s: int) -> list[Array]:
    """What is at each place of the windows."""
    ends = [size - w + 1 for size in x.shape[1:]]
    return [x[:, a : ends[0] + a : s, b : ends[1] + b : s] for a in range(w) for b in range(w)]


def folded(function: Callable[[Array, Array], Array], parts: Sequence[Array]) -> Array:
    made = parts[0]
    for each in parts[1:]:
        made = function(made, each)
    return made


SQUARE = (1024, 1024)
PLANES = (16, 256, 256)

CASES: dict[str, tuple[Formula, list[tuple[int, ...]], dict[str, int], Callable[..., Array]]] = {
    "SLICE, step 1": (
        lambda x: x[[each + P for each in coordinates(2)]],
        [(1040, 1040)],
        {"p": 8, "rows": 1024, "columns": 1024},
        lambda x: x[8:1032, 8:1032].copy(),
    ),
    "SLICE, step 2": (
        lambda x: x[[each * S + P for each in coordinates(2)]],
        [(1024, 1024)],
        {"p": 1, "s": 2, "rows": 512, "columns": 512},
        lambda x: x[1::2, 1::2].copy(),
    ),
    "PADDING, constant": (padding, [SQUARE], {"p": 3, "rows": 1030, "columns": 1030}, lambda x: np.pad(x, 3)),
    "PADDING, reflection": (
        reflection,
        [SQUARE],
        {"p": 3, "rows": 1030, "columns": 1030},
        lambda x: np.pad(x, 3, "reflect"),
    ),
    "TILE": (
        lambda x: x[[remainder_of_floor(each, size) for each, size in zip(coordinates(2), x.sizes, strict=True)]],
        [(256, 256)],
        {"rows": 1024, "columns": 1024},
        lambda x: np.tile(x, (4, 4)),
    ),
    "UPSAMPLE": (
        lambda x: x[[quotient(each, S) for each in coordinates(2)]],
        [(512, 512)],
        {"s": 2, "rows": 1024, "columns": 1024},
        lambda x: x.repeat(2, 0).repeat(2, 1),
    ),
    "GATHER": (gather, [SQUARE, (1024,)], {"rows": 1024, "columns": 1024}, lambda x, i: x[i]),
    "JOIN": (join, [(1024, 512)] * 2, {"rows": 1024, "columns": 1024}, lambda x, y: np.concatenate([x, y], 1)),
    "transposed": (lambda x: x[coordinates(2)[::-1]], [SQUARE], {"rows": 1024, "columns": 1024}, lambda x: x.T.copy()),
    "REDUCE sum, last": (
        lambda x: c.sum_over([x.sizes[1]], lambda j: x[[coordinates(2)[0], j]]),
        [SQUARE],
        {"rows": 1024, "columns": 1},
        lambda x: x.sum(1, keepdims=True),
    ),
    "REDUCE sum, first": (
        lambda x: c.sum_over([x.sizes[0]], lambda i: x[[i, coordinates(2)[1]]]),
        [SQUARE],
        {"rows": 1, "columns": 1024},
        lambda x: x.sum(0, keepdims=True),
    ),
    "REDUCE sum, all": (
        lambda x: c.sum_over(x.sizes, lambda i, j: x[[i, j]]),
        [SQUARE],
        {"rows": 1, "columns": 1},
        lambda x: x.sum(keepdims=True),
    ),
    "REDUCE max, last": (
        lambda x: c.maximum_over([x.sizes[1]], lambda j: x[[coordinates(2)[0], j]]),
        [SQUARE],
        {"rows": 1024, "columns": 1},
        lambda x: x.max(1, keepdims=True),
    ),
    "ARGMAX, last": (
        lambda x: c.position_over("first_maximum", [x.sizes[1]], lambda j: x[[coordinates(2)[0], j]]),
        [SQUARE],
        {"rows": 1024, "columns": 1},
        lambda x: x.argmax(1, keepdims=True),
    ),
    "ARGMAX, first": (
        lambda x: c.position_over("first_maximum", [x.sizes[0]], lambda i: x[[i, coordinates(2)[1]]]),
        [SQUARE],
        {"rows": 1, "columns": 1024},
        lambda x: x.argmax(0, keepdims=True),
    ),
    "MAX_POOLING, 3 by 2": (
        max_pooling,
        [PLANES],
        {"w": 3, "s": 2, "planes": 16, "rows": 127, "columns": 127},
        lambda x: folded(np.maximum, windows(x, 3, 2)),
    ),
    "AVERAGE_POOLING, 2 by 2": (
        average_pooling,
        [PLANES],
        {"w": 2, "s": 2, "p": 0, "planes": 16, "rows": 128, "columns": 128},
        lambda x: folded(np.add, windows(x, 2, 2)) * np.float32(0.25),
    ),
}
"""By name: the formula, the inputs' sizes, numbers with the output's sizes among them, and NumPy's expression."""


def operator_of(formula: Formula, arrays: Sequence[Array], stored: DataType, **numbers: int) -> CompiledOperator:
    """An operator whose output is what `formula` makes of the arrays."""
    sizes = [numbers.pop(name) for name in ("planes", "rows", "columns") if name in numbers]
    inputs = {
        f"X{place}": TensorDesc(DataType=DataType(each.dtype.name.upper()), Sizes=list(each.shape))
        for place, each in enumerate(arrays)
    }
    operands = [
        Operand(
            name, each.DataType, [Parameter(INT64, c.size_name(name, axis)) for axis in range(each.rank)], each.DataType
        )
        for name, each in inputs.items()
    ]
    made = Map(formula(*operands), stored, by_coordinates=True)
    program = Program({name: each.DataType for name, each in inputs.items()}, {"Y": made})
    given: dict[str, Any] = dict(sizes_of(inputs)) | numbers
    return CompiledOperator(
        inputs, {"Y": TensorDesc(DataType=stored, Sizes=sizes)}, program, given, bare(Slice1), NEWEST
    )


def best(rounds: int, functions: Sequence[Callable[[], object]]) -> list[float]:
    """The best seconds of each function, round by round."""
    times = [float("inf")] * len(functions)
    for _ in range(rounds):
        for place, function in enumerate(functions):
            begun = perf_counter()
            function()
            times[place] = min(times[place], perf_counter() - begun)
    return times


def row(device: NumpyDevice, name: str, rounds: int) -> str:
    """The table's row of a case, whose answer is checked."""
    formula, sizes, numbers, naive = CASES[name]
    rng = np.random.default_rng(1)
    arrays: list[Array] = [rng.standard_normal(each, np.float32) for each in sizes]
    if name == "GATHER":
        arrays[1] = rng.integers(-1024, 1024, 1024, np.int32)
    expected = naive(*arrays)
    operator = operator_of(formula, arrays, DataType(expected.dtype.name.upper()), **numbers)
    output = np.zeros(expected.shape, expected.dtype)
    buffers, made = ([each.view(np.uint8).reshape(-1).data for each in some] for some in (arrays, [output]))

    def ours() -> None:
        kernel.dispatch(buffers, made, lambda: False)

    begun = perf_counter()
    kernel = device.prepare(operator)
    ours()
    compiled = perf_counter() - begun
    np.testing.assert_allclose(output, expected, 1e-4, 1e-2)
    naive_time, time = best(rounds, [lambda: naive(*arrays), ours])
    told = [f"{each * 1e3:.3f}" for each in (naive_time, time)]
    return f"| {name} | {' | '.join(told)} | {naive_time / time:.2f} | {compiled * 1e3:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="", help="part of a row's name")
    options = parser.parse_args()
    print("| | NumPy, ms | ours, ms | NumPy / ours | compiled in, ms |\n|---|---:|---:|---:|---:|")
    with ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 1, Compiler(), structures=Structures())
        for name in CASES:
            if options.only in name:
                print(row(device, name, options.rounds), flush=True)


if __name__ == "__main__":
    main()
