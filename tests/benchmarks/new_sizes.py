"""Measure what a dispatch takes that has sizes which none before it had, beside one again and again, in process.

    python tests/benchmarks/new_sizes.py [--device cuda:0] [--operators SLICE,PADDING] [--old ../before]

Operators of all kinds, with small tensors of random sizes, of which some were dispatched before, so that kernels are
there: what is left is what a device finds out of sizes. Microseconds, the median of 120, without judging the
descriptor. A second checkout (--old) is measured by turns, a process for each turn; of the medians each has the least.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import options
import report

WARM, COUNTED, AGAIN = 60, 120, 30
ROOT = Path(__file__).parents[2]

Document = dict[str, Any]
Size = Callable[[], int]


def desc(*sizes: int, data_type: str = "FLOAT32", strides: list[int] | None = None) -> Document:
    return {"DataType": data_type, "Sizes": list(sizes)} | ({"Strides": strides} if strides else {})


def _padding(n: Size) -> Document:
    ends = {"StartPadding": [0, 0, 1, 2], "EndPadding": [0, 0, 2, 1]}
    return {"InputTensor": desc(1, 1, n(), n()), "PaddingMode": "CONSTANT", "PaddingValue": 0.0} | ends


def _slice(n: Size) -> Document:
    rows, columns = n(), n()
    window = {"InputWindowOffsets": [1, 2], "InputWindowSizes": [rows - 2, columns - 3], "InputWindowStrides": [1, 1]}
    return {"InputTensor": desc(rows, columns)} | window


def _join(n: Size) -> Document:
    rows = n()
    return {"InputTensors": [desc(rows, n()), desc(rows, n())], "Axis": 1}


def _gather(n: Size) -> Document:
    columns, count = n(), n()
    indices = {"IndicesTensor": desc(1, count, data_type="UINT32"), "IndexDimensions": 1, "Axis": 0}
    return {"InputTensor": desc(n(), columns), "OutputTensor": desc(count, columns)} | indices


def _one_hot(n: Size) -> Document:
    rows = n()
    inputs = {"IndicesTensor": desc(rows, 1, data_type="UINT32"), "ValuesTensor": desc(1, 2)}
    return inputs | {"OutputTensor": desc(rows, n()), "Axis": 1}


def _pooling(n: Size) -> Document:
    window = {"Strides": [1, 1], "WindowSize": [3, 3], "StartPadding": [0, 0], "EndPadding": [0, 0]}
    return {"InputTensor": desc(1, 4, n(), n())} | window


def _resample(n: Size) -> Document:
    rows, columns = n(), n()
    return {
        "InputTensor": desc(1, 1, rows, columns),
        "OutputTensor": desc(1, 1, 2 * rows, 2 * columns),
        "InterpolationMode": "LINEAR",
        "Scales": [1, 1, 2, 2],
        "InputPixelOffsets": [0.5] * 4,
        "OutputPixelOffsets": [-0.5] * 4,
    }


def _gemm(n: Size) -> Document:
    terms = n()
    matrices = {"ATensor": desc(1, 1, n(), terms), "BTensor": desc(1, 1, terms, n())}
    return matrices | {"TransA": "NONE", "TransB": "NONE", "Alpha": 1.0, "Beta": 0.0}


def _convolution(n: Size) -> Document:
    ends = {name: [0, 0] for name in ("StartPadding", "EndPadding", "OutputPadding")}
    steps = {"Strides": [1, 1], "Dilations": [1, 1], "GroupCount": 1}
    ways = {"Mode": "CROSS_CORRELATION", "Direction": "FORWARD"}
    return {"InputTensor": desc(1, 4, n(), n()), "FilterTensor": desc(4, 4, 3, 3)} | ends | steps | ways


def _repeated(n: Size) -> Document:
    rows, columns = n(), n()
    return {"ATensor": desc(rows, columns), "BTensor": desc(rows, columns, strides=[0, 1])}


def _attention(n: Size) -> Document:
    inputs = dict.fromkeys(("QueryTensor", "KeyTensor", "ValueTensor"), desc(1, n(), 16))
    return inputs | {"Scale": 0.5, "HeadCount": 2, "MaskType": "NONE"}


def _rows(n: Size) -> Document:
    return {"InputTensor": desc(n(), n())}


OPERATORS: dict[str, Callable[[Size], Document]] = {
    "ELEMENT_WISE_ADD": _repeated,
    "ACTIVATION_SOFTMAX1": lambda n: _rows(n) | {"Axes": [1]},
    "REDUCE": lambda n: {"InputTensor": desc(n(), n(), 3), "Function": "SUM", "Axes": [1]},
    "MEAN_VARIANCE_NORMALIZATION1": lambda n: _rows(n) | {"Axes": [1], "NormalizeVariance": True, "Epsilon": 1e-5},
    "SLICE1": _slice,
    "PADDING": _padding,
    "TILE": lambda n: _rows(n) | {"Repeats": [2, 3]},
    "JOIN": _join,
    "GATHER": _gather,
    "ONE_HOT": _one_hot,
    "AVERAGE_POOLING": lambda n: _pooling(n) | {"IncludePadding": False},
    "MAX_POOLING": _pooling,
    "RESAMPLE1": _resample,
    "TOP_K": lambda n: _rows(n) | {"Axis": 1, "K": 4},
    "CUMULATIVE_SUMMATION": lambda n: _rows(n) | {"Axis": 1, "AxisDirection": "INCREASING", "HasExclusiveSum": False},
    "GEMM": _gemm,
    "CONVOLUTION": _convolution,
    "MULTIHEAD_ATTENTION": _attention,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="numpy", help="default: numpy")
    parser.add_argument("--operators", help="parts of their names, separated by commas")
    parser.add_argument("--rounds", type=options.bounded(100), default=3)
    parser.add_argument("--old", type=Path, metavar="ROOT", help="a second checkout")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    wanted = (arguments.operators or "").split(",")
    names = [name for name in OPERATORS if any(part in name for part in wanted)]
    if arguments.measure:
        print(json.dumps(measured(arguments.device, names)))
        return 0
    roots = [ROOT, *([arguments.old.resolve()] if arguments.old else [])]
    found: list[list[dict[str, tuple[float, float]]]] = [[] for _ in roots]
    for _ in range(arguments.rounds):
        for root, rounds in zip(roots, found, strict=True):
            rounds.append(_turn(root, arguments.device, names))
    head = ["operator", "new sizes", "again", *(["old, new sizes", "old / new"] if arguments.old else [])]
    lines = []
    for name in names:
        new, *old = [[min(each[name][k] for each in rounds) for k in (0, 1)] for rounds in found]
        more = [report.number(value) for (least, _) in old for value in (least, least / new[0])]
        lines.append([name, *map(report.number, new), *more])
    print(report.table(head, lines, 1))
    return 0


def _turn(root: Path, device: str, names: list[str]) -> dict[str, tuple[float, float]]:
    command = [sys.executable, __file__, "--measure", "--device", device, "--operators", ",".join(names)]
    environment = os.environ | {"PYTHONPATH": str(root)}
    made = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    found: dict[str, tuple[float, float]] = json.loads(made.splitlines()[-1])
    return found


def measured(name_of_device: str, names: list[str]) -> dict[str, tuple[float, float]]:
    """Microseconds of new sizes and again, by operator."""
    from app.contract.constants import NEWEST
    from app.contract.validation import validate
    from app.devices.device import Kernel
    from app.engine.service import Service
    from app.operators.catalog import find_operator
    from app.operators.compiled import CompiledOperator, compile_operator
    from app.settings import Settings

    chosen: dict[str, Any] = {"gpus": "none"} if name_of_device == "numpy" else {"crossover_elements": 1}
    service = Service(Settings(log_file=os.devnull, _env_file=None, **chosen))
    device = service.placement.devices[name_of_device]

    def timed(work: CompiledOperator, kernel: Kernel | None = None) -> tuple[float, Kernel]:
        parts = (work.inputs, work.outputs)
        inputs, outputs = ([memoryview(bytearray(each.data_bytes)) for each in part.values()] for part in parts)
        started = time.perf_counter()
        kernel = kernel or device.prepare(work)
        _ = kernel.runs_inline  # as the event loop asks
        ran = kernel.dispatch(inputs, outputs, lambda: False)
        took = time.perf_counter() - started
        if ran.device != name_of_device:
            raise SystemExit(f"{work.name} was dispatched on {ran.device}: {ran.fallback_reason}")
        return 1e6 * took, kernel

    found = {}
    for name in names:
        kind, numbers = find_operator(name), random.Random(3)
        assert kind
        works = []
        for _ in range(WARM + COUNTED):
            document = OPERATORS[name](partial(numbers.randint, 8, 40))
            works.append(compile_operator(validate(kind, {"Type": name} | document), NEWEST, service.structures))
        kept = [timed(work) for work in works]
        again = [timed(works[-1], kept[-1][1])[0] for _ in range(AGAIN)]
        found[name] = median(took for took, _ in kept[WARM:]), median(again)
    return found


if __name__ == "__main__":
    sys.exit(main())
