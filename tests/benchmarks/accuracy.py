"""Prints how far results of sums, products and networks are from exact ones, beside what operators state:
`python -m tests.benchmarks.accuracy` in the root, for accuracy.md.

Of the 92 element-wise operators and activations `tests/operators/numerics/worst.md` has the errors.
"""

import argparse
import platform
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.formula.structures import Structures
from app.operators.accuracy import EXACT, NEAREST
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from tests.operators import calls
from tests.operators.numerics import sampled_products, sampled_sums  # noqa: F401 - they add samples
from tests.operators.numerics.cases import BINARY, UNARY
from tests.operators.numerics.samples import SAMPLES, Measured, measured

SIZES = (16, 64, 256, 1024, 4096)
"""About how many terms the longest sums have."""

SEEDS = 4


def worst(kind: str, dtype: str, sizes: tuple[int, ...], seeds: int) -> Measured:
    """Of the operator with NumPy's calls and with LLVM's loops, that which comes next to its bound."""
    compiler = Compiler()
    found = []
    with ThreadPoolExecutor(2) as helpers:
        for device in (NumpyDevice(helpers, 2), NumpyDevice(helpers, 2, compiler, 1, Structures())):
            calls.DEVICE = device
            found += [measured(kind, dtype, size, seed) for size in sizes for seed in range(seeds)]
    return max(found, key=lambda each: each.part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="terms of the longest sums")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="random tensors of each kind")
    options = parser.parse_args()
    sizes = tuple(size for size in SIZES if size <= options.most)
    print(f"NumPy {np.__version__}, LLVM {Compiler().version}, {platform.machine()}; sums of up to about {sizes[-1]}")
    print(f"terms, {options.seeds} seeds; NumPy's calls and LLVM's loops, the one that comes next to its bound.\n")
    print("| operator | float32, ULP | bound | terms | float16 beyond its rounding, ULP of FLOAT32 | of |")
    print("|---|--:|--:|--:|--:|---|")
    for kind in sorted(SAMPLES):
        own = sizes[:3] if kind in ("RNN", "LSTM", "GRU") or "POOLING_GRAD" in kind else sizes
        single, half = (worst(kind, dtype, own, options.seeds) for dtype in ("float32", "float16"))
        accuracy = OPERATORS[PREFIX + kind].accuracy
        print(
            f"| {kind} | {single.units:.2f} | {single.bound:g} | {single.terms} | {half.units:.2f} | {accuracy.of} |",
            flush=True,
        )
    cases = {case.kind for case in (*UNARY, *BINARY)}
    for told, kinds in (("Exact or rounded once", EXACT), ("The nearest integer", NEAREST)):
        names = [kind for kind, each in OPERATORS.items() if each.accuracy is kinds and kind not in cases]
        print(f"\n{told}, bit for bit in their tests: {', '.join(kind.removeprefix(PREFIX) for kind in names)}.")


if __name__ == "__main__":
    main()
