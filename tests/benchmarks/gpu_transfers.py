"""What surrounds the kernels: launches, first use, transfers, the crossover with NumPy, several GPUs.

    python tests/benchmarks/gpu_transfers.py [--parts launch,first,calls,transfers,crossover,gpus]

Rates are bytes of one direction: a tensor of 1 GiB that goes in and comes out in 20 ms is 53.7 GB/s.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import cupy
import numpy as np

from app.devices.binaries import Binaries
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.team import Team
from app.devices.cuda.compiler import KernelCache
from app.devices.cuda.device import CudaDevice
from app.devices.cuda.pinned import PinnedMemory
from app.devices.device import Kernel
from app.devices.estimates import gelu, hard_sigmoid, measure, sample, square_product
from app.devices.placement import find_gpus, samples
from app.memory.buffers import Buffer, BufferPool
from app.operators.compiled import CompiledOperator
from app.settings import GIB, KIB, MIB, Settings


def never() -> bool:
    return False


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The median, without the first."""
    call()
    return median(once(call) for _ in range(repeats))


def once(call: Callable[[], object]) -> float:
    """Seconds."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def dispatching(kernel: Kernel, source: Buffer, target: Buffer) -> Callable[[], object]:
    """A dispatch of one tensor, to be called."""
    return lambda: kernel.dispatch([source], [target], never)


def launch(gpu: CudaDevice) -> None:
    """Python's time for one launch of a prepared dispatch, tensors on the device."""
    gpu.use()
    stream = cupy.cuda.Stream(non_blocking=True)
    x, s, y = (cupy.ones(KIB, np.float32) for _ in range(3))
    desc = {"DataType": "FLOAT32", "Sizes": [KIB]}
    prelu = sample(
        "DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU", {"InputTensor": desc, "SlopeTensor": desc | {"Strides": [0]}}
    )
    cases = {
        "HARD_SIGMOID, bound once": gpu.kernels(hard_sigmoid(KIB))[0].bind([x.data.ptr, y.data.ptr]),
        "PRELU, bound once": gpu.kernels(prelu)[0].bind([x.data.ptr, s.data.ptr, y.data.ptr]),
    }
    kernel = cupy.ElementwiseKernel("T x", "T y", "y = fmaxf(0.f, fminf(0.2f * x + 0.5f, 1.f))", "peer")
    raw = cupy.RawKernel('extern "C" __global__ void k(const float* x, float* y) {}', "k")
    calls: dict[str, Callable[[], object]] = {name: partial(bound, stream) for name, bound in cases.items()}
    first = gpu.kernels(hard_sigmoid(KIB))[0].launch()
    calls["HARD_SIGMOID, bound anew each time"] = lambda: first.bind([x.data.ptr, y.data.ptr], KIB)(stream)
    calls["cupy.ElementwiseKernel, output given"] = lambda: kernel(x, y)
    calls["cupy.RawKernel, 2 arguments"] = lambda: raw((1,), (256,), (x, y))
    print("## Launching 1 Ki elements, µs of Python per call (medians of 40 batches of 500)\n")
    for name, call in calls.items():
        times = []
        for _ in range(40):
            started = time.perf_counter()
            for _ in range(500):
                call()
            times.append((time.perf_counter() - started) / 500)
            cupy.cuda.Device().synchronize()
        print(f"| {name} | {median(times) * 1e6:.1f} | least {min(times) * 1e6:.1f} |")
    print()


def first_use(gpu: CudaDevice) -> None:
    """Compiling, and loading what was compiled before."""
    print("## First use of a kernel, ms\n")
    os.environ["CUDA_CACHE_DISABLE"] = "1"  # NVRTC has a cache of its own, which would make "cold" warm
    cold: list[float] = []
    warm: list[float] = []
    power = "DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW"
    desc = {"DataType": "FLOAT32", "Sizes": [1 << 12]}
    others = [sample(power, {"InputTensor": desc, "Exponent": each}) for each in (10.7, 4.0, 100.0)]
    others.append(sample(power, {"InputTensor": desc, "Exponent": 7.1, "ScaleBias": {"Scale": 2.0, "Bias": 1.0}}))
    with tempfile.TemporaryDirectory() as folder:
        for times in (cold, warm):
            device = CudaDevice(gpu.ordinal, KernelCache(Binaries(Path(folder))), 16 * MIB, PinnedMemory(0))
            for compiled in [*samples(), *others]:
                started = time.perf_counter()
                device.kernels(compiled)[0].launch()
                times.append((time.perf_counter() - started) * 1e3)
    print(f"| cold | median {median(cold):.0f} | most {max(cold):.0f} | of {len(cold)} kernels |")
    print(f"| cached on disk | median {median(warm):.1f} | most {max(warm):.1f} | |\n")


def products(rows: int) -> dict[str, CompiledOperator]:
    """Operators of some `rows` that are calls of libraries, and one that is a kernel."""

    def desc(*sizes: int, data_type: str = "FLOAT32") -> dict[str, Any]:
        return {"DataType": data_type, "Sizes": list(sizes)}

    square, bytes_ = desc(1, 1, rows, rows), desc(1, 1, rows, rows, data_type="UINT8")
    heads = desc(1, rows, 256)
    return {
        "HARD_SIGMOID": hard_sigmoid(rows * rows),
        "GEMM": sample("DML_OPERATOR_GEMM", {"ATensor": square, "BTensor": square}),
        "GEMM, C, RELU": sample(
            "DML_OPERATOR_GEMM",
            dict.fromkeys(("ATensor", "BTensor", "CTensor"), square) | {"FusedActivation": {"Type": "ACTIVATION_RELU"}},
        ),
        "CONVOLUTION 3 x 3": sample(
            "DML_OPERATOR_CONVOLUTION",
            {
                "InputTensor": desc(1, 16, rows, rows),
                "FilterTensor": desc(16, 16, 3, 3),
                "DimensionCount": 2,
                "Strides": [1, 1],
                "Dilations": [1, 1],
                "StartPadding": [1, 1],
                "EndPadding": [1, 1],
                "OutputPadding": [0, 0],
            },
        ),
        "MATRIX_MULTIPLY_INTEGER": sample(
            "DML_OPERATOR_MATRIX_MULTIPLY_INTEGER", {"ATensor": bytes_, "BTensor": bytes_}
        ),
        "MULTIHEAD_ATTENTION": sample(
            "DML_OPERATOR_MULTIHEAD_ATTENTION",
            {
                "QueryTensor": heads,
                "KeyTensor": heads,
                "ValueTensor": heads,
                "HeadCount": 4,
                "Scale": 0.125,
                "MaskFilterValue": -1e4,
                "MaskType": "NONE",
            },
        ),
        "REDUCE SUM": sample("DML_OPERATOR_REDUCE", {"Function": "SUM", "InputTensor": square, "Axes": [3]}),
    }


def calls(gpu: CudaDevice) -> None:
    """One dispatch after another of what libraries compute, beside a kernel over tensors of the same sizes."""
    gpu.use()
    gpu.pinned = PinnedMemory(GIB)
    pool = BufferPool(0, gpu.pinned)
    print(
        "## Single dispatches from pinned memory, µs: one operator again and again (median of 200); the first of one\n"
    )
    rounds = {rows: products(rows) for rows in (16, 64, 256, 1024)}
    print(f"| operator | {' | '.join(map(str, rounds))} rows |\n|---|{'---|' * len(rounds)}")
    for name in products(16):
        cells = []
        for operators in rounds.values():
            compiled = operators[name]
            inputs, outputs = (
                [pool.take(desc.data_bytes) for desc in part.values()] for part in (compiled.inputs, compiled.outputs)
            )
            kernel = gpu.prepare(compiled)
            again = seconds(partial(kernel.dispatch, inputs, outputs, never), 200)
            kernels = [gpu.prepare(compiled) for _ in range(20)]
            first = median(once(partial(each.dispatch, inputs, outputs, never)) for each in kernels)
            cells.append(f"{again * 1e6:.0f}; {first * 1e6:.0f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print()


def transfers(gpu: CudaDevice) -> None:
    """Host to host through the GPU."""
    gpu.use()
    gpu.pinned = PinnedMemory(4 * GIB)
    pool = BufferPool(0, gpu.pinned)
    print("## Host to host, hard sigmoid, float32\n")
    print("| tensor | from and to | ms | GB/s each way |\n|---|---|---|---|")
    for size in (MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 64 * MIB, 256 * MIB, GIB):
        kernel = gpu.prepare(hard_sigmoid(size // 4))
        repeats = 5 if size == GIB else 15
        x = np.random.default_rng(0).standard_normal(size // 4, np.float32)
        y = np.ones_like(x)
        source, target = x.view(np.uint8).data, y.view(np.uint8).data
        pinned_source, pinned_target = pool.take(size), pool.take(size)
        pinned_source[:] = source
        cases = {"pinned": (pinned_source, pinned_target), "ordinary": (source, target)}
        cases |= {"pinned to ordinary": (pinned_source, target), "ordinary to pinned": (source, pinned_target)}
        for name, (one, other) in cases.items():
            took = seconds(dispatching(kernel, one, other), repeats)
            print(f"| {size // MIB} MiB | {name} | {took * 1e3:.2f} | {size / took / 1e9:.1f} |", flush=True)
        assert np.array_equal(np.frombuffer(pinned_target, np.float32), y)
        assert np.allclose(y, np.clip(0.2 * x + 0.5, 0, 1), atol=1e-6)
    print()


def crossover(gpu: CudaDevice) -> None:
    """The CPU's loops against the GPU, and what `auto` makes of it."""
    print("## The crossover: hard sigmoid, float32, µs\n")
    print("| elements | CPU | GPU, ordinary memory | GPU, pinned memory from 1 MiB on |\n|---|---|---|---|")
    threads, pool = Settings().threads, BufferPool(0, gpu.pinned)
    with ThreadPoolExecutor(threads) as helpers:
        numpy_device = NumpyDevice(helpers, threads, Compiler())
        for elements in (1 << power for power in range(14, 25, 2)):
            x = np.random.default_rng(0).standard_normal(elements, np.float32).view(np.uint8).data
            y = np.empty(4 * elements, np.uint8).data
            size = 4 * elements
            source, target = pool.take(size), pool.take(size)
            source[:] = x
            took = [
                seconds(dispatching(device.prepare(hard_sigmoid(elements)), one, other), 15) * 1e6
                for device, one, other in ((numpy_device, x, y), (gpu, x, y), (gpu, source, target))
            ]
            print(f"| {elements} | {' | '.join(f'{each:.0f}' for each in took)} |")
        started = time.perf_counter()
        found = [measure(numpy_device, gpu, pool) for _ in range(5)]
        took_each = (time.perf_counter() - started) / 5
        for pace in found:
            firsts = [pace.least(of) for of in (hard_sigmoid, gelu, square_product)]
            print(f"\n{pace}: from {firsts} elements of HARD_SIGMOID and GELU and rows of a GEMM on")
        print(f"\nmeasured in {took_each * 1e3:.0f} ms")
    print(f"({threads} threads)\n")


def together(works: list[Callable[[], None]]) -> float:
    """Seconds until all are done, each in a thread of its own, begun at once."""
    gate = threading.Barrier(len(works) + 1)

    def run(work: Callable[[], None]) -> None:
        gate.wait()
        work()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    gate.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def several(gpus: list[CudaDevice]) -> None:
    """Throughput of several GPUs over that of one."""
    size, count = GIB, GIB // 4
    print("## Several GPUs: hard sigmoid, float32, 1 GiB tensors\n")
    print(
        "| GPUs | resident, GB/s | over one | pinned, GB/s each way | over one | ordinary, GB/s each way | over one |"
    )
    print("|---|---|---|---|---|---|---|")
    resident: list[Callable[[], None]] = []
    pinned: list[Callable[[], None]] = []
    ordinary: list[Callable[[], None]] = []
    kept = []
    for gpu in gpus:
        gpu.use()
        gpu.pinned = PinnedMemory(8 * GIB)
        stream = cupy.cuda.Stream(non_blocking=True)
        x, y = cupy.ones(count, np.float32), cupy.empty(count, np.float32)
        bound = gpu.kernels(hard_sigmoid(count))[0].bind([x.data.ptr, y.data.ptr])
        kernel = gpu.prepare(hard_sigmoid(count))
        pool = BufferPool(0, gpu.pinned)
        source, target = pool.take(size), pool.take(size)
        source[:] = bytes(size)
        one, other = (np.ones(size, np.uint8).data for _ in range(2))
        kept.append((x, y))

        def on_device(gpu: CudaDevice = gpu, bound: Any = bound, stream: Any = stream) -> None:
            gpu.use()
            for _ in range(400):
                bound(stream)
            stream.synchronize()

        def from_pinned(kernel: Any = kernel, source: Any = source, target: Any = target) -> None:
            for _ in range(6):
                kernel.dispatch([source], [target], never)

        def from_ordinary(kernel: Any = kernel, one: Any = one, other: Any = other) -> None:
            for _ in range(4):
                kernel.dispatch([one], [other], never)

        resident.append(on_device)
        pinned.append(from_pinned)
        ordinary.append(from_ordinary)
    first: list[float] = []
    for number in range(1, len(gpus) + 1):
        rates = []
        for works, moved in ((resident, 400 * 2 * size), (pinned, 6 * size), (ordinary, 4 * size)):
            together(works[:number])
            took = median(together(works[:number]) for _ in range(3))
            rates.append(number * moved / took / 1e9)
        first = first or rates
        cells = [f"{rate:.1f} | {rate / base:.2f}" for rate, base in zip(rates, first, strict=True)]
        print(f"| {number} | {' | '.join(cells)} |", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="launch,first,calls,transfers,crossover,gpus")
    parts = parser.parse_args().parts.split(",")
    gpus, problems = find_gpus(
        Settings(kernel_cache="none"), PinnedMemory(4 * GIB), None, Team(Compiler(), Settings().threads)
    )
    assert gpus, problems
    print(f"{len(gpus)} GPUs, {gpus[0].facts}\n")
    one: dict[str, Callable[[CudaDevice], None]] = {
        "launch": launch,
        "first": first_use,
        "calls": calls,
        "transfers": transfers,
        "crossover": crossover,
    }
    for name, part in one.items():
        if name in parts:
            part(gpus[0])
    if "gpus" in parts:
        several(gpus)


if __name__ == "__main__":
    main()
