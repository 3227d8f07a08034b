"""Graphs on tensors that lie on a GPU, against its own copy, and what it takes the host to send out many kernels.

    python tests/benchmarks/gpu_graphs.py [--mib 1024]

Times are the median of batches between two CUDA events. A floor moves the bytes of the tensors that a graph must read
and write, at the rate of the best copy of the same run.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import cupy
import numpy as np

from app.contract.constants import NEWEST
from app.contract.validation import validate
from app.devices.binaries import Binaries
from app.devices.cuda.arenas import UNRECORDED, Recording
from app.devices.cuda.compiler import KernelCache
from app.devices.cuda.device import CudaDevice
from app.devices.cuda.pinned import PinnedMemory
from app.devices.placement import find_gpus
from app.formula.structures import Structures
from app.graphs.descriptor import GraphDesc
from app.graphs.judgement import resolve
from app.graphs.schedule import InitializedGraph, schedule
from app.settings import MIB, Settings

CHEAP = ("ABS", "RELU", "HARD_SIGMOID", "NEGATE", "LEAKY_RELU")
WITH_TANH = ("ABS", "TANH", "HARD_SIGMOID", "NEGATE", "LEAKY_RELU")
ELEMENT_WISE = ("ABS", "NEGATE", "ADD", "MULTIPLY")

ACTIVATIONS = ("CELU", "ELU", "GELU", "HARD_SIGMOID", "LEAKY_RELU", "RELU", "SIGMOID", "SOFTPLUS", "SWISH", "TANH")

Document = dict[str, Any]


def operator(kind: str, sizes: list[int], *names: str, **attributes: Any) -> Document:
    desc = {"DataType": "FLOAT32", "Sizes": sizes}
    kind = f"{'ELEMENT_WISE' if kind in ELEMENT_WISE else 'ACTIVATION'}_{kind}"
    return {"Type": "OPERATOR", "Desc": {"Type": kind, **dict.fromkeys(names or ("InputTensor",), desc), **attributes}}


def edge(**ends: Any) -> Document:
    return ends


def chain(kinds: tuple[str, ...], sizes: list[int], attributes: Document | None = None) -> Document:
    nodes = [operator(kind, sizes, **(attributes or {})) for kind in kinds]
    last = len(nodes) - 1
    return {
        "Nodes": nodes,
        "InputEdges": [edge(GraphInput="x", ToNodeIndex=0, ToNodeInputIndex=0)],
        "IntermediateEdges": [
            edge(FromNodeIndex=n, FromNodeOutputIndex=0, ToNodeIndex=n + 1, ToNodeInputIndex=0) for n in range(last)
        ],
        "OutputEdges": [edge(FromNodeIndex=last, FromNodeOutputIndex=0, GraphOutput="y")],
    }


def diamond(sizes: list[int]) -> Document:
    """relu(x) + a, relu(x) * b, and their sum."""
    pair = ("ATensor", "BTensor")
    return {
        "Nodes": [
            operator("RELU", sizes),
            operator("ADD", sizes, *pair),
            operator("MULTIPLY", sizes, *pair),
            operator("ADD", sizes, *pair),
        ],
        "InputEdges": [
            edge(GraphInput="x", ToNodeIndex=0, ToNodeInputIndex=0),
            edge(GraphInput="a", ToNodeIndex=1, ToNodeInputIndex=1),
            edge(GraphInput="b", ToNodeIndex=2, ToNodeInputIndex=1),
        ],
        "IntermediateEdges": [
            edge(FromNodeIndex=0, FromNodeOutputIndex=0, ToNodeIndex=1, ToNodeInputIndex=0),
            edge(FromNodeIndex=0, FromNodeOutputIndex=0, ToNodeIndex=2, ToNodeInputIndex=0),
            edge(FromNodeIndex=1, FromNodeOutputIndex=0, ToNodeIndex=3, ToNodeInputIndex=0),
            edge(FromNodeIndex=2, FromNodeOutputIndex=0, ToNodeIndex=3, ToNodeInputIndex=1),
        ],
        "OutputEdges": [edge(FromNodeIndex=3, FromNodeOutputIndex=0, GraphOutput="y")],
    }


def compiled(document: Document, structures: Structures | None = None) -> InitializedGraph:
    structures = structures or Structures()
    graph = resolve(validate(GraphDesc, document), NEWEST, {}, structures)
    return InitializedGraph(schedule(graph, structures), ())


def seconds(launch: Callable[[], None], stream: Any = None, batch: int = 10) -> float:
    """Median time of one of `batch`, queued on `stream`."""
    times: list[float] = []
    for _ in range(9):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        for _ in range(batch):
            launch()
        stop.record(stream)
        stop.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3 / batch)
    return median(times)


def resident(gpu: CudaDevice, made: InitializedGraph, tensors: list[Any]) -> Recording:
    """The only kernel of `made` over tensors on the device: its inputs, then its outputs."""
    count = len(made.schedule.inputs)
    addresses = [tensor.data.ptr for tensor in tensors]
    assert len(made.schedule.steps) == 1
    kernel = gpu.whole(made)
    kernel.upload()
    return kernel.record(addresses[:count], addresses[count:], 0)


def rows(gpu: CudaDevice, elements: int) -> None:
    """One kernel for a whole graph, against a copy of as many bytes."""
    data = [cupy.random.standard_normal(elements, dtype=np.float32) for _ in range(4)]
    copy = seconds(lambda: cupy.copyto(data[1], data[0])) / (2 * data[0].nbytes)
    for name, document, count in (
        ("chain of 5", chain(CHEAP, [elements]), 2),
        ("chain of 5 with tanh", chain(WITH_TANH, [elements]), 2),
        ("diamond of 3 inputs", diamond([elements]), 4),
    ):
        launch = resident(gpu, compiled(document), data[:count])
        floor = copy * count * data[0].nbytes
        with gpu.slots.take() as slot:
            took = seconds(lambda launch=launch, slot=slot: launch(slot), slot.stream)  # type: ignore[misc]
        print(f"{name:24} {took * 1e3:8.3f} ms, floor {floor * 1e3:8.3f} ms: {floor / took:5.2f} of it")


def many(gpu: CudaDevice, count: int) -> None:
    """What it takes the host to send out `count` small kernels, one by one and as one CUDA graph."""
    sizes = [32, 32]
    nodes = [operator("SOFTMAX1", sizes, Axes=[number % 2]) for number in range(count)]
    document = chain(("SOFTMAX1",) * count, sizes, {"Axes": [1]}) | {"Nodes": nodes}
    made = compiled(document)
    assert len(made.schedule.steps) == count
    kernel = gpu.whole(made)
    kernel.upload()
    work = kernel.new_arena().work
    times: dict[str, list[float]] = {"one by one": [], "as one graph": []}
    with gpu.slots.take() as slot:
        for _ in range(UNRECORDED + 1):
            work(slot)
        queues: dict[str, Callable[[], None]] = {
            "one by one": lambda: work.queue(slot.stream),
            "as one graph": lambda: work(slot),
        }
        for _ in range(200):
            for name, queue in queues.items():
                slot.stream.synchronize()
                started = time.perf_counter()
                queue()
                times[name].append(time.perf_counter() - started)
        slot.stream.synchronize()
    for name, each in times.items():
        took = median(each) * 1e6
        print(f"{count} kernels {name:16} {took:8.1f} us of the host's, {took / count:.2f} each")


def compiling(gpu: CudaDevice, name: str, kinds: tuple[str, ...], nodes: int = 200, rounds: int = 9) -> None:
    """A chain of `nodes` from its document to its first result: with nothing of it known, with what a service that was
    started anew finds on disk, and as a service that had it before. Medians."""
    rng = random.Random(0)
    described = chain(tuple(rng.choice(kinds) for _ in range(nodes)), [1024])
    x, y = memoryview(bytearray(4096)), memoryview(bytearray(4096))
    times: dict[str, list[float]] = {"nothing known": [], "kernels on disk": [], "known": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for how, took in times.items():
                if how != "known":
                    structures = Structures()
                    device = CudaDevice(
                        gpu.ordinal, KernelCache(Binaries(Path(folder))), 16 * MIB, PinnedMemory(0), structures
                    )
                started = time.perf_counter()
                device.prepare(compiled(described, structures)).dispatch([x], [y], lambda: False)
                took.append(1e3 * (time.perf_counter() - started))
    for how, each in times.items():
        said = f"{median(each):6.1f} ms ({min(each):.1f} to {max(each):.1f})"
        print(f"{nodes} of {name}, {how:15}: first result after {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="of each tensor")
    arguments = parser.parse_args()
    gpus, problems = find_gpus(Settings(), PinnedMemory(1 << 28))
    if not gpus:
        raise SystemExit("; ".join(problems))
    gpus[0].use()
    print(gpus[0].facts.description)
    rows(gpus[0], arguments.mib << 18)
    many(gpus[0], 50)
    compiling(gpus[0], "the chain with tanh", WITH_TANH)
    compiling(gpus[0], "ten activations", ACTIVATIONS)


if __name__ == "__main__":
    main()
