"""Prints the largest error of each operator and type in ULP: `python -m tests.operators.numerics.worst` in the root.

`worst.md` keeps the table of the last run.
"""

import platform
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.chosen import HOLD_TABLES
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.device import Device
from app.memory.arrays import Array
from app.operators.operator import PREFIX
from tests.operators.numerics.cases import (
    BINARY,
    SCALED_CONSTANT_POWS,
    UNARY,
    Case,
    all_float16,
    float32_inputs,
    ordinary_float32,
    random_float32,
)
from tests.operators.numerics.evaluation import evaluate
from tests.operators.numerics.reference import wide
from tests.operators.numerics.ulp import errors

RANDOM = 1 << 20


def inputs_of(case: Case) -> Iterator[tuple[Array, ...]]:
    """All float16 values, then special and random float32 values: fewer where powers in long double take long."""
    count = RANDOM >> 5 if case in SCALED_CONSTANT_POWS else RANDOM
    singles = [float32_inputs(case), random_float32(count), ordinary_float32(count)]
    if case in BINARY:
        rng = np.random.default_rng(2)
        quiet = np.where(np.isnan(all_float16()), np.float16("nan"), all_float16())
        yield rng.choice(quiet, count), rng.choice(quiet, count)
        yield from ((x, rng.permutation(x)) for x in singles)
    else:
        yield (all_float16(),)
        yield from ((x,) for x in singles)


def worst(device: Device, case: Case) -> dict[str, int]:
    """The largest error by type."""
    found: dict[str, int] = defaultdict(int)
    for inputs in inputs_of(case):
        actual = evaluate(device, case.kind, case.attributes, *inputs)
        with np.errstate(all="ignore"):
            exact = case.exact(*map(wide, inputs))
            largest = case.largest(*map(wide, inputs)) if case.largest else None
        apart = errors(actual, exact, largest)
        found[actual.dtype.name] = max(found[actual.dtype.name], int(apart.max()))
    return found


def main() -> None:
    rows: dict[str, list[dict[str, int]]] = defaultdict(list)
    compiler = Compiler()
    with ThreadPoolExecutor(2) as helpers:
        device = NumpyDevice(helpers, 2, compiler)
        for case in [*UNARY, *BINARY]:
            name = case.kind.removeprefix(PREFIX) + (" with ScaleBias" if "ScaleBias" in case.attributes else "")
            rows[name].append(worst(device, case))
    print("# Largest errors in ULP\n")
    print(
        f"NumPy {np.__version__} and LLVM {compiler.version}, {platform.machine()}; all float16 values, special values"
    )
    print("and 2^20 random ones in float32, for each choice of attributes in `cases.py`; made by")
    tables = "with" if compiler.registers in HOLD_TABLES else "without"
    print(
        "`python -m tests.operators.numerics.worst`. TANH, SCALED_TANH, ERF, GELU, SIN, COS, TAN\n"
        f"and LOG are by the formulas {tables} AVX-512.\n"
    )
    print("| operator | float32 | float16 |\n|---|--:|--:|")
    for name, each in sorted(rows.items()):
        largest = [max(found[dtype] for found in each) for dtype in ("float32", "float16")]
        print(f"| {name} | {largest[0]} | {largest[1]} |")


if __name__ == "__main__":
    main()
