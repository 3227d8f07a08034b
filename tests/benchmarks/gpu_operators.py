"""Every operator's kernel on device-resident tensors against the device's own copy of as many bytes.

    python tests/benchmarks/gpu_operators.py [--size 64] [--operators PART] [--half]

Operators, attributes, types and values are those of `operators.py`, or with FLOAT16 for FLOAT32, of those that take it;
times are taken as in `gpu_kernels.py`. Where Nsight Compute (`ncu`) is installed and may read the GPU's counters, each
kernel is run once more under it for the instructions a thread executes for an element and for how busy the units are
that could hold it up.
"""

import argparse
import csv
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cupy
import numpy as np
from gpu_kernels import MI, ROTATED, copy_rate, graphed
from operators import NAIVE, POSITIVE, RANGES, ROW, TYPES, compiled

from app.contract.violations import ContractError
from app.devices.cpu.device import NumpyDevice
from app.devices.cuda.device import CudaDevice
from app.devices.cuda.pinned import PinnedMemory
from app.devices.placement import find_gpus
from app.memory.arrays import numpy_type
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from app.settings import Settings
from tests.operators.descriptors import output_of

AIM = 0.95
CHECKED = 256 * ROW
"""Elements at the start and at the end of each answer that are compared with NumPy's."""

COUNTERS = {
    "smsp__inst_executed.sum": "instructions",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue",
    "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active": "float64",
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active": "special",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "memory",
}
"""Of Nsight Compute, and what they are called here."""

Array = Any


def inputs_of(name: str, elements: int, seed: int, *, half: bool = False) -> list[Array]:
    """What `operators.inputs_of` makes, on the GPU; if `half`, in float16."""
    random = cupy.random.default_rng(seed)
    operator = OPERATORS[PREFIX + name]
    made: list[Array] = []
    for place, tensor in enumerate(operator.tensor_names()[:-1]):
        data_type = TYPES.get(name, ["FLOAT32"] * 9)[place]
        sizes = (1, 1) if tensor in operator.one_element else (elements // ROW, ROW)
        if data_type == "FLOAT32":
            if name in RANGES:
                low, high = RANGES[name]
                x = random.random(sizes, dtype=np.float32) * (high - low) + low
            else:
                x = random.standard_normal(sizes, dtype=np.float32) * 2
            x = cupy.abs(x) if name in POSITIVE or "Scale" in tensor else x
            made.append(cupy.where(x == 0, 1, x).astype(np.float16 if half else np.float32))
        else:
            most = 32 if "SHIFT" in name else 256
            made.append(random.integers(0, most, sizes, dtype=np.uint32).astype(data_type.lower()))
    return made


def takes_half(name: str) -> bool:
    """Whether the operator is there with FLOAT16 in place of FLOAT32."""
    if "FLOAT32" not in TYPES.get(name, ["FLOAT32"]):
        return False
    try:
        compiled(name, inputs_of(name, ROW, 0, half=True))
    except ContractError:
        return False
    return True


class Case:
    """An operator's kernel, bound to several sets of random tensors."""

    def __init__(self, device: CudaDevice, name: str, elements: int, *, rotated: bool, half: bool = False) -> None:
        self.name = name
        self.sets: list[list[Array]] = []
        size = elements
        while len(self.sets) < (max(-(-ROTATED // size), 2) if rotated else 1):
            inputs = inputs_of(name, elements, len(self.sets), half=half)
            operator = compiled(name, inputs)
            output = cupy.empty(output_of(operator).Sizes, numpy_type(output_of(operator).DataType))
            output.view(np.uint8)[...] = 0xA5  # what is not written is told from what is
            self.sets.append([*inputs, output])
            size = min(each.nbytes for each in self.sets[0] if each.size > 1)
        inputs_types = [desc.DataType.value.lower() for desc in operator.inputs.values() if desc.elements > 1]
        types = dict.fromkeys(inputs_types), output_of(operator).DataType.value.lower()
        self.types = f"{', '.join(types[0])} to {types[1]}" if [*types[0]] != [types[1]] else types[1]
        self.moved = sum(each.nbytes for each in self.sets[0])
        (kernel,) = device.kernels(operator)
        self.launches = [kernel.bind([each.data.ptr for each in one]) for one in self.sets]
        cupy.cuda.Device().synchronize()

    def check(self, reference: NumpyDevice) -> None:
        """Both ends of the first answer against NumPy's. Raises AssertionError."""
        for part in (slice(None, CHECKED // ROW), slice(-CHECKED // ROW, None)):
            *inputs, output = (each.get() if each.size == 1 else each[part].get() for each in self.sets[0])
            expected = np.empty_like(output)
            given = [each.reshape(-1).view(np.uint8).data for each in inputs]
            kernel = reference.prepare(compiled(self.name, inputs))
            kernel.dispatch(given, [expected.reshape(-1).view(np.uint8).data], lambda: False)
            tolerance = 2e-3 if expected.dtype == np.float16 else 2e-6
            np.testing.assert_allclose(output.astype(np.float64), expected.astype(np.float64), tolerance, 1e-6)


def profile(arguments: list[str], names: list[str], elements: int) -> dict[str, dict[str, float]]:
    """The counters of one launch of each operator, in a process of its own under Nsight Compute; {} without it."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return {}
    command = [ncu, "--csv", "--clock-control", "none", "--metrics", ",".join(COUNTERS), "-k", "dmlserve_kernel"]
    command += [sys.executable, __file__, "--once", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    head = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        print(f"no counters: {(done.stdout + done.stderr)[-500:]}", file=sys.stderr)
        return {}
    found: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(lines[head:]):
        if row["ID"].isdigit() and row["Metric Name"] in COUNTERS:
            value = float(row["Metric Value"].replace(",", ""))
            found.setdefault(names[int(row["ID"])], {})[COUNTERS[row["Metric Name"]]] = value
    for counters in found.values():
        counters["instructions"] *= 32 / elements  # counted by warps of 32 threads
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=64, help="Mi elements")
    parser.add_argument("--operators", default="", help="parts of their names, separated by commas")
    parser.add_argument("--half", action="store_true", help="FLOAT16 in place of FLOAT32")
    parser.add_argument("--once", action="store_true", help="launch each kernel once and measure nothing")
    options = parser.parse_args()
    elements = options.size * MI
    names = [name for name in sorted(NAIVE) if any(part in name for part in options.operators.split(","))]
    gpus, problems = find_gpus(Settings(kernel_cache="none"), PinnedMemory(0))
    assert gpus, problems
    gpus[0].use()
    stream = cupy.cuda.Stream(non_blocking=True)
    if options.half:
        names = list(filter(takes_half, names))
    if options.once:
        for name in names:
            Case(gpus[0], name, elements, rotated=False, half=options.half).launches[0](stream)
            stream.synchronize()
        return
    counted = profile(
        [f"--size={options.size}", f"--operators={options.operators}", *["--half"] * options.half], names, elements
    )
    print(f"{gpus[0].facts}\n\n{options.size} Mi elements\n")
    print("| operator | types | bytes | GB/s | of copy | instructions | issue % | float64 % | special % | memory % |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    copies: dict[int, float] = {}
    reference = NumpyDevice(ThreadPoolExecutor(1), 1)
    short = []
    for name in names:
        case = Case(gpus[0], name, elements, rotated=True, half=options.half)
        per_element = case.moved // elements
        if per_element not in copies:
            copies[per_element] = copy_rate(per_element * elements // 2, stream, repeats=8)

        def call(n: int, case: Case = case) -> None:
            case.launches[n % len(case.launches)](stream)

        rate = case.moved / graphed(call, stream, repeats=8)
        case.check(reference)
        share = rate / copies[per_element]
        if share < AIM:
            short.append(f"{name} {share:.3f}")
        counters = counted.get(name, {})
        cells = [f"{counters[key]:.0f}" if key in counters else "-" for key in COUNTERS.values()]
        print(
            f"| {name} | {case.types} | {per_element} | {rate / 1e9:.0f} | {share:.3f} | {' | '.join(cells)} |",
            flush=True,
        )
        del case
        cupy.get_default_memory_pool().free_all_blocks()
    rates = ", ".join(f"{size} bytes an element {rate / 1e9:.0f}" for size, rate in sorted(copies.items()))
    print(f"\nThe copy, GB/s: {rates}.\n{len(names) - len(short)} of {len(names)} at {AIM} or more; below: {short}")


if __name__ == "__main__":
    main()
