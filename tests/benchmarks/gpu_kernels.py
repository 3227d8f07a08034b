"""Kernels on device-resident tensors against the device's own copy, and against other ways to the same result.

    python tests/benchmarks/gpu_kernels.py [--quick] [--sizes 16,256] [--others Elementwise,fuse,torch,compile,jax]

Times are the median of batches between two CUDA events, buffers rotate past the L2 cache, data are random. A row's
share is its bytes per second over those of the best copy of the same data type and size in the same run.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import cupy
import numpy as np

from app.devices.cuda.device import CudaDevice
from app.devices.cuda.pinned import PinnedMemory
from app.devices.estimates import sample
from app.devices.placement import find_gpus
from app.settings import Settings

MI = 1 << 20
ROTATED = 256 * MI
"""Bytes of one tensor's buffers together: more than four times an H200's L2 cache."""


@dataclass(frozen=True)
class Row:
    """A case: the operator, its attributes, and the same in CuPy's, PyTorch's and JAX's terms."""

    name: str
    kind: str
    attributes: dict[str, Any]
    data_type: str
    elementwise: str  # for cupy.ElementwiseKernel, of x (and s) in float, `v` and `w`
    python: Callable[..., Any]  # of a module with numpy's names, x (and s)


def power(exponent: float) -> Callable[..., Any]:
    return lambda m, x: x**exponent


def rows(quick: bool) -> list[Row]:
    made = []
    for data_type in ("FLOAT32", "FLOAT16"):
        made += [
            Row(
                "HARD_SIGMOID",
                "ACTIVATION_HARD_SIGMOID",
                {},
                data_type,
                "fmaxf(0.f, fminf(0.2f * v + 0.5f, 1.f))",
                lambda m, x: m.clip(x * 0.2 + 0.5, 0, 1),
            ),
            Row(
                "CELU",
                "ACTIVATION_CELU",
                {},
                data_type,
                "v > 0.f ? v : expm1f(v)",
                lambda m, x: m.maximum(x, 0) + m.expm1(m.minimum(x, 0)),
            ),
            Row(
                "CELU 0.7",
                "ACTIVATION_CELU",
                {"Alpha": 0.7},
                data_type,
                "v > 0.f ? v : 0.7f * expm1f(v / 0.7f)",
                lambda m, x: m.maximum(x, 0) + 0.7 * m.expm1(m.minimum(x / 0.7, 0)),
            ),
        ]
    for data_type in ("FLOAT32", "FLOAT16", "INT32", "INT16", "INT8"):
        body = "v >= 0 ? v : v * w"
        made.append(
            Row(
                "PRELU", "ACTIVATION_PARAMETERIZED_RELU", {}, data_type, body, lambda m, x, s: m.where(x >= 0, x, x * s)
            )
        )
    for data_type in ("FLOAT32", "FLOAT16"):
        for exponent in (0.0, 0.5, 1.0, 2.0, 2.5, 3.0, -1.0, -2.0, 10.7, -0.5, 5.0, -15.9):
            body = f"powf(v, {exponent}f)"
            made.append(
                Row(
                    f"POW {exponent:g}",
                    "ELEMENT_WISE_CONSTANT_POW",
                    {"Exponent": exponent},
                    data_type,
                    body,
                    power(exponent),
                )
            )
    return made[::5] if quick else made


def random_tensor(data_type: str, count: int, seed: int) -> Any:
    """Normal numbers; integers of all sizes."""
    dtype = np.dtype(data_type.lower())
    generator = cupy.random.default_rng(seed)
    if dtype.kind == "i":
        return generator.integers(0, 1 << 32, (count * dtype.itemsize + 3) // 4, dtype=np.uint32).view(dtype)[:count]
    return generator.standard_normal(count, dtype=np.float32).astype(dtype)


def timed(call: Callable[[int], object], stream: Any, *, repeats: int, batches: int = 7) -> float:
    """Seconds of one call: `call(n)` queues the n-th on the stream."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    call(0)
    stream.synchronize()
    times = []
    for _ in range(batches):
        start.record(stream)
        for n in range(repeats):
            call(n)
        end.record(stream)
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end) / 1e3 / repeats)
    return float(median(times))


def graphed(call: Callable[[int], object], stream: Any, *, repeats: int) -> float:
    """The same with a batch captured as a graph, so that launching takes no time."""
    call(0)
    stream.synchronize()
    stream.begin_capture()
    for n in range(repeats):
        call(n)
    graph = stream.end_capture()
    return timed(lambda _: graph.launch(stream), stream, repeats=1) / repeats


def copy_rate(size: int, stream: Any, *, repeats: int) -> float:
    """Bytes per second, read and written, of the best copy of `size`: cudaMemcpyAsync's and a 16-byte kernel's."""
    size = size // 16 * 16
    sets = [
        (random_tensor("INT8", size, n), random_tensor("INT8", size, n + 100))
        for n in range(max(-(-ROTATED // size), 2))
    ]
    cupy.cuda.Device().synchronize()
    kernel = cupy.RawKernel(
        'extern "C" __global__ void copy(const int4* a, int4* b, long long n) {'
        "long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; if (i < n) b[i] = a[i]; }",
        "copy",
    )
    vectors = size // 16

    def by_kernel(threads: int) -> Callable[[int], object]:
        def call(n: int) -> None:
            a, b = sets[n % len(sets)]
            with stream:
                kernel((-(-vectors // threads),), (threads,), (a, b, np.int64(vectors)))

        return call

    def by_memcpy(n: int) -> None:
        a, b = sets[n % len(sets)]
        cupy.cuda.runtime.memcpyAsync(b.data.ptr, a.data.ptr, size, 3, stream.ptr)

    calls = [by_memcpy, by_kernel(128), by_kernel(256), by_kernel(512)]
    return 2 * size / min(graphed(call, stream, repeats=repeats) for call in calls)


class Bench:
    """Cases on one device and one size."""

    def __init__(self, device: CudaDevice, count: int) -> None:
        self.device = device
        self.count = count
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.repeats = 24 if count < 64 * MI else 8
        self._copies: dict[int, float] = {}

    def sets(self, data_type: str, tensors: int, positive: bool) -> list[list[Any]]:
        """Inputs and the output, several of each so that they rotate."""
        size = self.count * np.dtype(data_type.lower()).itemsize
        made = []
        for n in range(max(-(-ROTATED // size), 2)):
            inputs = [random_tensor(data_type, self.count, 10 * n + k) for k in range(tensors)]
            if positive:
                inputs = [cupy.abs(each) + np.dtype(data_type.lower()).type(0.05) for each in inputs]
            made.append([*inputs, cupy.full_like(inputs[0], 1)])
        cupy.cuda.Device().synchronize()
        return made

    def copy(self, itemsize: int) -> float:
        """Bytes per second, read and written, of the best copy of a tensor."""
        if itemsize not in self._copies:
            self._copies[itemsize] = copy_rate(self.count * itemsize, self.stream, repeats=self.repeats)
        return self._copies[itemsize]

    def row(self, row: Row, others: list[str]) -> dict[str, float]:
        """Share of the copy by competitor; `ours` is the first."""
        dtype = np.dtype(row.data_type.lower())
        tensors = 2 if row.name == "PRELU" else 1
        sets = self.sets(row.data_type, tensors, row.name.startswith("POW"))
        moved = (tensors + 1) * self.count * dtype.itemsize
        ceiling = self.copy(dtype.itemsize)
        names = ["InputTensor", "SlopeTensor"][:tensors]
        desc = {"DataType": row.data_type, "Sizes": [self.count]}
        operator = sample("DML_OPERATOR_" + row.kind, dict.fromkeys(names, desc) | row.attributes)
        (kernel,) = self.device.kernels(operator)
        launches = [kernel.bind([each.data.ptr for each in one]) for one in sets]
        shares = {"GB/s": 0.0}

        def share(seconds: float) -> float:
            return moved / seconds / ceiling

        def ours(n: int) -> None:
            launches[n % len(launches)](self.stream)

        seconds = graphed(ours, self.stream, repeats=self.repeats)
        shares["GB/s"] = moved / seconds / 1e9
        shares["ours"] = share(seconds)
        calls: dict[str, Callable[[], float]] = {
            "Elementwise": lambda: self._elementwise(row, sets, tensors),
            "fuse": lambda: self._fuse(row, sets, tensors),
            "torch": lambda: self._torch(row, tensors, compiled=False),
            "compile": lambda: self._torch(row, tensors, compiled=True),
            "jax": lambda: self._jax(row, tensors),
        }
        for name in others:
            try:
                shares[name] = share(calls[name]())
            except Exception as error:  # a competitor that cannot is a gap in the table
                print(f"    {name}: {type(error).__name__}: {str(error)[:100]}")
                shares[name] = float("nan")
        return shares

    def _elementwise(self, row: Row, sets: list[list[Any]], tensors: int) -> float:
        inner = "float" if row.data_type.startswith("FLOAT") else "int"
        given = "T x, T s" if tensors == 2 else "T x"
        body = f"{inner} v = x; " + (f"{inner} w = s; " if tensors == 2 else "") + f"y = (T)({row.elementwise})"
        kernel = cupy.ElementwiseKernel(given, "T y", body, "peer")

        def call(n: int) -> None:
            with self.stream:
                kernel(*sets[n % len(sets)], block_size=256)

        return graphed(call, self.stream, repeats=self.repeats)

    def _fuse(self, row: Row, sets: list[list[Any]], tensors: int) -> float:
        fused = cupy.fuse(kernel_name="peer")(
            (lambda x, s: row.python(cupy, x, s)) if tensors == 2 else (lambda x: row.python(cupy, x))
        )

        def call(n: int) -> None:
            with self.stream:
                fused(*sets[n % len(sets)][:tensors])

        # It allocates its output, which cannot be captured: queued back to back, it launches in less than it takes.
        return timed(call, self.stream, repeats=self.repeats)

    def _torch(self, row: Row, tensors: int, *, compiled: bool) -> float:
        import torch

        class Names:
            """NumPy's names for PyTorch's functions."""

            maximum = staticmethod(lambda x, y: torch.clamp(x, min=y))
            minimum = staticmethod(lambda x, y: torch.clamp(x, max=y))
            clip = staticmethod(torch.clamp)
            expm1 = staticmethod(torch.expm1)
            where = staticmethod(torch.where)

        function: Callable[..., Any]
        if row.name == "HARD_SIGMOID" and not compiled:
            function = lambda x: torch.clamp(torch.add(0.5, x, alpha=0.2), 0, 1)  # noqa: E731
        elif row.name.startswith("CELU") and not compiled:
            alpha = row.attributes.get("Alpha", 1.0)
            function = lambda x: torch.nn.functional.celu(x, alpha)  # noqa: E731
        elif tensors == 2:
            function = lambda x, s: row.python(Names, x, s)  # noqa: E731
        else:
            function = lambda x: row.python(Names, x)  # noqa: E731
        if compiled:
            torch._dynamo.reset()
            function = torch.compile(function, dynamic=False)
        sets = [
            [torch.from_dlpack(each) for each in one[:-1]]
            for one in self.sets(row.data_type, tensors, row.name.startswith("POW"))
        ]
        side = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(side):
            for one in sets:
                function(*one)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                for n in range(8):
                    function(*sets[n % len(sets)])
            times = []
            for _ in range(6):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                graph.replay()
                end.record()
                torch.cuda.synchronize()
                times.append(start.elapsed_time(end) / 1e3 / 8)
        del graph, sets
        torch.cuda.empty_cache()
        return float(median(times[1:]))

    def _jax(self, row: Row, tensors: int) -> float:
        import jax
        import jax.numpy as jnp

        function = jax.jit(lambda *given: row.python(jnp, *given))
        sets = [
            [jax.dlpack.from_dlpack(each) for each in one[:-1]]
            for one in self.sets(row.data_type, tensors, row.name.startswith("POW"))
        ]
        for one in sets:
            function(*one).block_until_ready()
        times = []
        for _ in range(5):
            started = time.perf_counter()
            for n in range(self.repeats):
                result = function(*sets[n % len(sets)])
            result.block_until_ready()
            times.append((time.perf_counter() - started) / self.repeats)
        return float(median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every fifth row only")
    parser.add_argument("--others", default="Elementwise,fuse,torch,compile,jax", help="competitors; empty for none")
    parser.add_argument("--sizes", default="16,256", help="Mi elements")
    arguments = parser.parse_args()
    others = [each for each in arguments.others.split(",") if each]
    gpus, problems = find_gpus(Settings(kernel_cache="none"), PinnedMemory(0))
    assert gpus, problems
    gpus[0].use()
    print(f"{gpus[0].facts}\n")
    for size in map(int, arguments.sizes.split(",")):
        bench = Bench(gpus[0], size * MI)
        print(f"## {size} Mi elements\n")
        print("copy, GB/s: " + ", ".join(f"{8 * each} bit {bench.copy(each) / 1e9:.0f}" for each in (4, 2, 1)) + "\n")
        print(f"| operator | type | GB/s | of copy | {' | '.join(others)} |")
        print("|---|---|---|---|" + "---|" * len(others))
        for row in rows(arguments.quick):
            shares = bench.row(row, others)
            cells = [f"{shares['GB/s']:.0f}", f"{shares['ours']:.3f}", *(f"{shares[each]:.2f}" for each in others)]
            print(f"| {row.name} | {row.data_type.lower()} | {' | '.join(cells)} |", flush=True)
            cupy.get_default_memory_pool().free_all_blocks()
        print()


if __name__ == "__main__":
    main()
