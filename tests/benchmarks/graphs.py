"""Graphs on the CPU beside onnxruntime, and what it takes to compile one.

    python tests/benchmarks/graphs.py [--threads 2] [--rounds 9] [--alone]

Both compute into buffers that are there, in one process, five times each by turns after a pause, in which threads go to
sleep: onnxruntime's look for work for a while, and would have a processor that ours then wants. It is left out (with
onnx, which writes its models) where it is not installed. Times are medians in milliseconds; a share is ours over its.
--alone takes the processor time of one thread each, for machines on which others work. One operator is what memory lets
through.
"""

import argparse
import importlib.util
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import prod
from statistics import median
from typing import Any

import numpy as np

from app.contract.constants import NEWEST
from app.contract.validation import validate
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.device import Kernel
from app.formula.structures import Structures
from app.graphs.descriptor import GraphDesc
from app.graphs.judgement import resolve
from app.graphs.schedule import InitializedGraph, schedule
from app.memory.arrays import Array
from app.memory.buffers import Buffer

SIZES = (1 << 20, 1 << 24)

CHAINS: dict[str, list[tuple[str, str, dict[str, float]]]] = {
    "one": [("ELEMENT_WISE_ABS", "Abs", {})],
    "cheap": [
        ("ELEMENT_WISE_ABS", "Abs", {}),
        ("ACTIVATION_RELU", "Relu", {}),
        ("ACTIVATION_HARD_SIGMOID", "HardSigmoid", {"Alpha": 0.2, "Beta": 0.5}),
        ("ELEMENT_WISE_NEGATE", "Neg", {}),
        ("ACTIVATION_LEAKY_RELU", "LeakyRelu", {"Alpha": 0.01}),
    ],
    "with tanh": [
        ("ELEMENT_WISE_ABS", "Abs", {}),
        ("ACTIVATION_TANH", "Tanh", {}),
        ("ACTIVATION_HARD_SIGMOID", "HardSigmoid", {"Alpha": 0.2, "Beta": 0.5}),
        ("ELEMENT_WISE_NEGATE", "Neg", {}),
        ("ACTIVATION_LEAKY_RELU", "LeakyRelu", {"Alpha": 0.01}),
    ],
}
"""Operators one after another, as DirectML and ONNX call them."""


def document(kinds: list[tuple[str, dict[str, Any]]], elements: int) -> dict[str, Any]:
    desc = {"DataType": "FLOAT32", "Sizes": [elements]}
    last = len(kinds) - 1
    return {
        "Nodes": [{"Type": "OPERATOR", "Desc": {"Type": kind, "InputTensor": desc, **more}} for kind, more in kinds],
        "InputEdges": [{"GraphInputIndex": 0, "ToNodeIndex": 0, "ToNodeInputIndex": 0}],
        "IntermediateEdges": [
            {"FromNodeIndex": n, "FromNodeOutputIndex": 0, "ToNodeIndex": n + 1, "ToNodeInputIndex": 0}
            for n in range(last)
        ],
        "OutputEdges": [{"FromNodeIndex": last, "FromNodeOutputIndex": 0, "GraphOutputIndex": 0}],
    }


def kernel_of(device: NumpyDevice, structures: Structures, described: dict[str, Any]) -> tuple[Kernel, int]:
    """The kernel of a graph, and how much scratch it wants, in bytes."""
    planned = schedule(resolve(validate(GraphDesc, described), NEWEST, {}, structures), structures)
    return device.prepare(InitializedGraph(planned, ())), planned.scratch_bytes


def ours(device: NumpyDevice, structures: Structures, chain: str, x: Array, y: Array) -> Callable[[], None]:
    described = document([(kind, dict(more)) for kind, _, more in CHAINS[chain]], x.size)
    kernel, scratch_bytes = kernel_of(device, structures, described)
    assert scratch_bytes == 0, "a chain is one kernel"
    source, target = x.view(np.uint8).data, y.view(np.uint8).data

    def run() -> None:
        kernel.dispatch([source], [target], lambda: False)

    return run


def theirs(chain: str, x: Array, y: Array, threads: int) -> Callable[[], None]:
    """The same in onnxruntime, its buffers bound."""
    onnx: Any = __import__("onnx")
    runtime: Any = __import__("onnxruntime")
    helper = onnx.helper
    names = ["x", *(f"t{n}" for n in range(len(CHAINS[chain]) - 1)), "y"]
    nodes = [
        helper.make_node(kind, [names[n]], [names[n + 1]], **{name.lower(): value for name, value in more.items()})
        for n, (_, kind, more) in enumerate(CHAINS[chain])
    ]
    tensors = [[helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [x.size])] for name in ("x", "y")]
    model = helper.make_model(
        helper.make_graph(nodes, "chain", *tensors), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    return lambda: session.run_with_iobinding(binding)


PAUSE_S = 0.08
"""onnxruntime's threads look for 55 ms."""


def by_turns(
    every: list[Callable[[], None]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Median time of each, in milliseconds."""
    times: list[list[float]] = [[] for _ in every]
    for turn in range(rounds + 1):
        for each, run in zip(times, every, strict=True):
            time.sleep(PAUSE_S)
            for _ in range(5):
                started = clock()
                run()
                if turn:
                    each.append((clock() - started) * 1e3)
    return [median(each) for each in times]


def chains(device: NumpyDevice, structures: Structures, threads: int, rounds: int, clock: Callable[[], float]) -> None:
    has_other = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))
    for chain in CHAINS:
        for elements in SIZES:
            x = np.random.default_rng(0).standard_normal(elements, np.float32)
            results = [np.empty_like(x) for _ in range(2)]
            every = [ours(device, structures, chain, x, results[0])]
            if has_other:
                every.append(theirs(chain, x, results[1], threads))
            took = by_turns(every, rounds, clock)
            line = f"operators, {chain:9} {elements >> 20:3} Mi: {took[0]:7.2f} ms"
            if has_other:
                np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-6)
                line += f", onnxruntime {took[1]:7.2f} ms: {took[0] / took[1]:.2f} of it"
            print(line)


MOVERS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "SLICE": ({"Offsets": [4, 4], "Sizes": [4088, 1016], "Strides": [1, 1]}, [4088, 1016]),
    "TILE": ({"Repeats": [2, 2]}, [8192, 2048]),
    "PADDING": (
        {"StartPadding": [1, 1], "EndPadding": [1, 1], "PaddingMode": "CONSTANT", "PaddingValue": 0},
        [4098, 1026],
    ),
}
"""Operators that move elements of a float32 tensor of 4,096 x 1,024: their attributes, and what sizes they make."""


def movers(device: NumpyDevice, structures: Structures, rounds: int) -> None:
    """RELU, what moves elements, and ABS as a graph, beside the kernel of each one after the other."""
    sizes = [4096, 1024]
    x = np.random.default_rng(0).standard_normal(sizes, np.float32)
    for kind, (attributes, made) in MOVERS.items():
        kinds: list[tuple[str, list[int], dict[str, Any]]] = [
            ("ACTIVATION_RELU", sizes, {}),
            (kind, sizes, attributes),
            ("ELEMENT_WISE_ABS", made, {}),
        ]
        between = [
            x.view(np.uint8).data.cast("B"),
            *[memoryview(bytearray(4 * n)) for n in (x.size, *[prod(made)] * 2)],
        ]
        document_ = document([(each, more) for each, _, more in kinds], 1)
        for node, (_, read, _) in zip(document_["Nodes"], kinds, strict=True):
            node["Desc"]["InputTensor"] = {"DataType": "FLOAT32", "Sizes": read}
        fused, _ = kernel_of(device, structures, document_)
        alone = []
        for number, (each, given, more) in enumerate(kinds):
            one = document([(each, more)], 1)
            one["Nodes"][0]["Desc"]["InputTensor"] = {"DataType": "FLOAT32", "Sizes": given}
            alone.append((kernel_of(device, structures, one)[0], between[number], between[number + 1]))

        def one_by_one(every: list[tuple[Kernel, Buffer, Buffer]] = alone) -> None:
            for kernel, source, target in every:
                kernel.dispatch([source], [target], lambda: False)

        def whole(kernel: Kernel = fused, ends: list[Buffer] = between) -> None:
            kernel.dispatch([ends[0]], [ends[-1]], lambda: False)

        took = by_turns([whole, one_by_one], rounds)
        print(f"RELU, {kind}, ABS: {took[0]:6.2f} ms, one by one {took[1]:6.2f} ms: {took[0] / took[1]:.2f} of it")


def compiling(device: NumpyDevice, structures: Structures, nodes: int, rounds: int) -> None:
    """A chain of `nodes` from its document to its first result, cold and then with its kernels known: medians, by the
    clock and by this thread's processor time."""
    rng = random.Random(0)
    kinds = [(kind, dict(more)) for kind, _, more in CHAINS["with tanh"]]
    described = document([rng.choice(kinds) for _ in range(nodes)], 1024)
    x, y = memoryview(bytearray(4096)), memoryview(bytearray(4096))
    for name, times in (("cold", 1), ("known", rounds)):
        walls, used = [], []
        for _ in range(times):
            started, before = time.perf_counter(), time.thread_time()
            kernel, scratch_bytes = kernel_of(device, structures, described)
            kernel.dispatch([x], [y, memoryview(bytearray(scratch_bytes))] if scratch_bytes else [y], lambda: False)
            walls.append(1e3 * (time.perf_counter() - started))
            used.append(1e3 * (time.thread_time() - before))
        print(
            f"{nodes} nodes, {name:5}: first result after {median(walls):6.1f} ms, for which {median(used):6.1f} ms of "
            "a processor"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--alone", action="store_true", help="one thread, by its processor time")
    arguments = parser.parse_args()
    threads = 1 if arguments.alone else arguments.threads
    structures = Structures()
    with ThreadPoolExecutor(threads) as helpers:
        device = NumpyDevice(helpers, threads, Compiler(), structures=structures)
        clock = time.thread_time if arguments.alone else time.perf_counter
        chains(device, structures, threads, arguments.rounds, clock)
        movers(device, structures, arguments.rounds)
        compiling(device, structures, 200, arguments.rounds)


if __name__ == "__main__":
    main()
