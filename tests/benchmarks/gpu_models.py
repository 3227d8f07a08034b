"""ONNX models on a GPU beside PyTorch, as `torch_models.py` writes them:
`python tests/benchmarks/gpu_models.py model.onnx other.onnx@x=1x3x64x96,y=1x7`.

Both have inputs and outputs on the host, as a request has them, and compute in float32 (no TF32). PyTorch runs what
onnxruntime's basic optimizations leave of the model, call by call and as a CUDA graph (cuDNN chooses its algorithms by
trying them). `on the GPU` is the time between two events for one of many queued without a wait: what the kernels take,
and for call by call what the host takes to send them. Times are medians, by turns. With --kernels each kernel
is told. Exits with 1 if results differ by more than two correct executions may.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import cupy
import numpy as np
import onnx
import onnxruntime
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from models import stated
from torch_models import TorchModel

from app.contract.constants import NEWEST
from app.devices.cuda.schedules import CudaScheduleKernel
from app.engine.graphs import CompiledGraph, GraphRequest
from app.engine.service import Service
from app.graphs.descriptor import GraphDesc
from app.memory.arrays import numpy_type
from app.models.onnx.importer import Imported, import_model
from app.settings import Settings

Array = np.ndarray[Any, Any]
Run = Callable[[], dict[str, Array]]

ROUNDS, RUNS = 9, 20


def simplified(data: bytes, inputs: dict[str, Array]) -> Any:
    """The model for these sizes, with what is constant computed."""
    proto = onnx.load_from_string(data)
    for each in proto.graph.input:
        if each.name in inputs:
            dims = each.type.tensor_type.shape.dim
            for dim, size in zip(dims, inputs[each.name].shape, strict=True):
                dim.dim_value = size
    del proto.graph.value_info[:]
    for each in proto.graph.output:
        each.type.tensor_type.ClearField("shape")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "model.onnx")
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_outputs()]
        wanted = dict(zip(names, session.run(None, inputs), strict=True))
        return onnx.load(options.optimized_model_filepath), wanted


def ours(kernel: Any, graph: CompiledGraph, imported: Imported, inputs: dict[str, Array]) -> Run:
    """What runs it over tensors on the host."""
    schedule = graph.runnable.schedule
    given = [memoryview(bytearray(inputs[name].tobytes())) for name in schedule.inputs]
    made = {name: memoryview(bytearray(desc.total_bytes)) for name, desc in schedule.outputs.items()}
    scratch = [memoryview(bytearray(schedule.scratch_bytes))] if schedule.scratch_bytes else []

    def run() -> dict[str, Array]:
        kernel.dispatch(given, [*made.values(), *scratch], lambda: False)
        return {
            name: np.frombuffer(made[name], numpy_type(each.data_type), int(np.prod(each.sizes))).reshape(each.sizes)
            for name, each in imported.outputs.items()
        }

    return run


def by_calls(model: TorchModel, inputs: dict[str, Array]) -> Run:
    host = [torch.from_numpy(inputs[name]) for name in model.inputs]

    def run() -> dict[str, Array]:
        with torch.inference_mode():
            made = model(*(each.cuda() for each in host))
            return {name: each.cpu().numpy() for name, each in zip(model.outputs, made, strict=True)}

    return run


class Captured:
    """A model as a CUDA graph."""

    def __init__(self, model: TorchModel, inputs: dict[str, Array]) -> None:
        self._names = model.outputs
        self._host = [torch.from_numpy(inputs[name]) for name in model.inputs]
        self._inputs = [each.cuda() for each in self._host]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(stream):
            for _ in range(3):
                model(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(self.graph):
            self._outputs = model(*self._inputs)

    def __call__(self) -> dict[str, Array]:
        for own, host in zip(self._inputs, self._host, strict=True):
            own.copy_(host)
        self.graph.replay()
        return {name: each.cpu().numpy() for name, each in zip(self._names, self._outputs, strict=True)}


def by_turns(runs: list[Callable[[], object]]) -> list[float]:
    """Median seconds of each."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for own, run in zip(times, runs, strict=True):
            for _ in range(RUNS):
                started = perf_counter()
                run()
                own.append(perf_counter() - started)
    return [median(each) for each in times]


def on_gpu(launch: Callable[[], object], stream: Any) -> float:
    """Median seconds of one of RUNS that are queued on `stream`, CuPy's."""
    times: list[float] = []
    with stream:
        for _ in range(ROUNDS):
            start, stop = cupy.cuda.Event(), cupy.cuda.Event()
            start.record(stream)
            for _ in range(RUNS):
                launch()
            stop.record(stream)
            stop.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3 / RUNS)
    return median(times)


def tell_kernels(name: str, launch: Callable[[], object]) -> None:
    """What runs on the GPU, the longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        launch()
        torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda each: -each.self_device_time_total)
    total = sum(each.self_device_time_total for each in events)
    print(f"    {name}: {sum(each.count for each in events)} kernels and copies, {total:.0f} us")
    for each in events[:12]:
        print(f"    {each.self_device_time_total:7.1f} us {each.count:3d} x {each.key[:100]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="FILE or FILE@input=1x3x64x96,other=1x7")
    parser.add_argument("--kernels", action="store_true", help="tell what they take")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    service = Service(Settings(max_graph_nodes=1 << 14, max_tensor_bytes=1 << 30))
    service.open()
    (gpu, *_) = service.placement.gpus
    wrong = False
    print(f"{gpu.info().description}; torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}\n", flush=True)
    columns = ("ours, ms", "calls", "CUDA graph", "ratio", "on the GPU, us", "calls", "CUDA graph", "kernels")
    print(f"| model | inputs | {' | '.join(columns)} | difference |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for each in options.models:
        path, data, proto, inputs = stated(each)
        simple, wanted = simplified(data, inputs)
        imported = import_model(proto, {name: array.shape for name, array in inputs.items()})
        desc = GraphDesc.model_validate(imported.graph.document)
        request = GraphRequest(desc, NEWEST, imported.graph.constants, {})
        began = perf_counter()
        graph = service.compiler.compile(request, lambda size: memoryview(bytearray(size)), lambda: False)
        kernel = gpu.prepare(graph.runnable)
        run = ours(kernel, graph, imported, inputs)
        for _ in range(3):
            made = run()
        began = perf_counter() - began
        difference = max(
            float(np.max(np.abs(made[name] - right) / (1e-4 + 1e-3 * np.abs(right)))) for name, right in wanted.items()
        )
        wrong |= not difference <= 1
        model = TorchModel(simple, inputs, "cuda")
        calls, captured = by_calls(model, inputs), Captured(model, inputs)
        theirs = calls()
        assert all(np.allclose(theirs[name], right, 1e-3, 1e-3) for name, right in wanted.items())
        for turn in (calls, captured):
            for _ in range(5):
                turn()
        own, one, other = by_turns([run, calls, captured])
        assert isinstance(kernel, CudaScheduleKernel)
        work = kernel.new_arena().work
        with gpu.slots.take() as slot:
            for _ in range(3):
                work(slot)
            ours_there = on_gpu(lambda: work(slot), slot.stream)  # noqa: B023 - called at once
        launches = sum(map(len, work._steps))
        current = cupy.cuda.Stream.from_external(torch.cuda.current_stream())
        host = [torch.from_numpy(inputs[name]).cuda() for name in model.inputs]
        with torch.inference_mode():
            one_there = on_gpu(lambda: model(*host), current)  # noqa: B023 - called at once
        other_there = on_gpu(captured.graph.replay, current)
        shapes = ", ".join("x".join(map(str, array.shape)) for array in inputs.values())
        print(
            f"| {path.name} | {shapes} | {own * 1e3:.3f} | {one * 1e3:.3f} | {other * 1e3:.3f} "
            f"| {own / min(one, other):.2f} | {ours_there * 1e6:.0f} | {one_there * 1e6:.0f} | {other_there * 1e6:.0f} "
            f"| {launches}{'' if work._graphs else ', no CUDA graph'} | {difference:.1e} |",
            flush=True,
        )
        if options.kernels:
            print(f"    compiled in {began:.1f} s")
            with gpu.slots.take() as slot:
                tell_kernels("ours", lambda: work(slot))  # noqa: B023 - called at once
            tell_kernels("PyTorch", captured.graph.replay)
            sys.stdout.flush()
    os._exit(int(wrong))


if __name__ == "__main__":
    main()
