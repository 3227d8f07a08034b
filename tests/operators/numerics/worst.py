"""Prints the largest error of each operator and type in ULP: `python -m tests.operators.numerics.worst` in the root."""

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from app.execution.device import Device
from app.execution.numpy_device import NumpyDevice
from app.execution.numpy_lowering import Array
from tests.operators.numerics.cases import (
    PARAMETERIZED_RELUS,
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
from tests.operators.numerics.ulp import distance, rounded

RANDOM = 1 << 20


def inputs_of(case: Case) -> Iterator[tuple[Array, ...]]:
    """All float16 values, then special and random float32 values: fewer where powers in long double take long."""
    count = RANDOM >> 5 if case in SCALED_CONSTANT_POWS else RANDOM
    singles = [float32_inputs(case), random_float32(count), ordinary_float32(count)]
    if case in PARAMETERIZED_RELUS:
        rng = np.random.default_rng(2)
        yield rng.choice(all_float16(), count), rng.choice(all_float16(), count)
        yield from ((x, rng.permutation(x)) for x in singles)
    else:
        yield (all_float16(),)
        yield from ((x,) for x in singles)


def worst(device: Device, case: Case) -> dict[str, int]:
    """The largest error by type."""
    found: dict[str, int] = defaultdict(int)
    for inputs in inputs_of(case):
        with np.errstate(all="ignore"):
            exact = case.exact(*map(wide, inputs))
        actual = evaluate(device, case.kind, case.attributes, *inputs)
        apart = distance(actual, rounded(exact, actual.dtype))
        found[actual.dtype.name] = max(found[actual.dtype.name], int(apart.max()))
    return found


def main() -> None:
    rows: dict[str, list[dict[str, int]]] = defaultdict(list)
    with ThreadPoolExecutor(2) as helpers:
        device = NumpyDevice(helpers, 2)
        for case in [*UNARY, *PARAMETERIZED_RELUS]:
            found = worst(device, case)
            print(f"{case!s:64} {found['float32']:4} {found['float16']:4}")
            name = case.kind + (" with ScaleBias" if case in SCALED_CONSTANT_POWS else "")
            rows[name].append(found)
    print(f"\n{'worst':64} {'f32':>4} {'f16':>4}")
    for name, each in rows.items():
        print(f"{name:64} {max(found['float32'] for found in each):4} {max(found['float16'] for found in each):4}")


if __name__ == "__main__":
    main()
