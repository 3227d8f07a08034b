"""CONVOLUTION with a fused RELU, and LSTM, on the CPU beside onnxruntime with as many threads:
`python tests/benchmarks/convolutions.py`.

Shapes are of ResNet-50, MobileNetV3, a text detector and a voice detector. Both run in this process, by turns; of each
the best time counts. A row tells milliseconds, onnxruntime's over ours (above 1 ours is quicker), and the largest
difference.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from models import Array, best

from app.contract.constants import NEWEST
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.device import Kernel
from app.operators.catalog import OPERATORS
from app.operators.compiled import compile_operator

RESNET = [
    *((3, 224, 224, 64, 7, 2, 1), (64, 56, 56, 64, 1, 1, 1), (64, 56, 56, 64, 3, 1, 1), (64, 56, 56, 256, 1, 1, 1)),
    *((256, 56, 56, 128, 1, 2, 1), (128, 28, 28, 128, 3, 1, 1), (512, 28, 28, 128, 1, 1, 1)),
    *((256, 14, 14, 256, 3, 1, 1), (1024, 14, 14, 256, 1, 1, 1), (512, 7, 7, 512, 3, 1, 1), (512, 7, 7, 2048, 1, 1, 1)),
    (512, 14, 14, 512, 3, 2, 1),
]
SMALL = [
    *((96, 56, 56, 96, 3, 1, 96), (96, 112, 112, 96, 3, 2, 96), (576, 7, 7, 576, 5, 1, 576)),
    *((240, 14, 14, 240, 5, 1, 240), (8, 24, 96, 8, 5, 2, 8), (200, 2, 96, 32, 1, 1, 1)),
    *((200, 1, 1, 50, 1, 1, 1), (768, 2, 3, 384, 1, 1, 1)),
]
"""Channels, height, width, output channels, size of the filter, stride, groups; padded to half the filter."""

LAYERS = [(1, 1, 128, 128, 1), (100, 1, 128, 128, 1), (40, 4, 256, 256, 2)]
"""Of LSTM: steps, sequences, input, states, directions."""


def theirs(
    onnx: Any, onnxruntime: Any, threads: int, arrays: list[Array], stride: int, padding: int, groups: int
) -> Any:
    """What runs it, and its output."""
    x, filters, bias, y = arrays
    helper = onnx.helper
    types = onnx.TensorProto
    conv = helper.make_node("Conv", ["x", "w", "b"], ["c"], strides=[stride] * 2, pads=[padding] * 4, group=groups)
    graph = helper.make_graph(
        [conv, helper.make_node("Relu", ["c"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", types.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", types.FLOAT, y.shape)],
        [onnx.numpy_helper.from_array(filters, "w"), onnx.numpy_helper.from_array(bias.reshape(-1), "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = session_of(onnxruntime, model, threads)
    binding, output = session.io_binding(), onnxruntime.OrtValue.ortvalue_from_numpy(np.empty_like(y))
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", output)
    return lambda: session.run_with_iobinding(binding), output


def session_of(onnxruntime: Any, model: Any, threads: int) -> Any:
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), chosen, providers=["CPUExecutionProvider"])


def kernel_of(device: NumpyDevice, document: dict[str, Any], tensors: dict[str, Array]) -> Kernel:
    """That of the operator of `document` over packed tensors."""
    descs = {name: {"DataType": "FLOAT32", "Sizes": list(array.shape)} for name, array in tensors.items()}
    operator = OPERATORS[f"DML_OPERATOR_{document['Type']}"].model_validate(document | descs)
    return device.prepare(compile_operator(operator, NEWEST))


def convolution(
    device: NumpyDevice, onnx: Any, onnxruntime: Any, options: argparse.Namespace, shape: Sequence[int]
) -> float:
    """Prints the row of a shape, and gives its ratio."""
    channels, height, width, outputs, size, stride, groups = shape
    random, padding = np.random.default_rng(0), size // 2
    x = random.standard_normal((1, channels, height, width), np.float32)
    filters = random.standard_normal((outputs, channels // groups, size, size), np.float32) * np.float32(0.1)
    bias = random.standard_normal((1, outputs, 1, 1), np.float32)
    y = np.empty((1, outputs, *[(each + 2 * padding - size) // stride + 1 for each in (height, width)]), np.float32)
    document = {
        "Type": "CONVOLUTION",
        "Mode": "CROSS_CORRELATION",
        "Direction": "FORWARD",
        "GroupCount": groups,
        "Strides": [stride] * 2,
        "Dilations": [1, 1],
        "OutputPadding": [0, 0],
        "StartPadding": [padding] * 2,
        "EndPadding": [padding] * 2,
        "FusedActivation": {"Type": "ACTIVATION_RELU"},
    }
    tensors = {"InputTensor": x, "FilterTensor": filters, "BiasTensor": bias, "OutputTensor": y}
    kernel = kernel_of(device, document, tensors)
    *given, taken = [each.data.cast("B") for each in tensors.values()]
    other, output = theirs(onnx, onnxruntime, options.threads, [*tensors.values()], stride, padding, groups)
    ours, its = best([lambda: kernel.dispatch(given, [taken], lambda: False), other], options.rounds)
    print(
        f"| {channels}x{height}x{width} | {outputs} of {size}x{size} | {stride} | {groups} | {ours * 1e3:.3f} "
        f"| {its * 1e3:.3f} | {its / ours:.2f} | {float(np.abs(output.numpy() - y).max()):.0e} |",
        flush=True,
    )
    return its / ours


def layer(device: NumpyDevice, onnx: Any, onnxruntime: Any, options: argparse.Namespace, shape: Sequence[int]) -> None:
    """Prints the row of an LSTM."""
    steps, batch, width, states, many = shape
    random = np.random.default_rng(0)

    def some(*sizes: int) -> Array:
        return random.standard_normal(sizes, np.float32) * np.float32(0.1)

    x = some(1, steps, batch, width)
    weights, recurrence = some(1, many, 4 * states, width), some(1, many, 4 * states, states)
    bias, hidden, cell = some(1, 1, many, 8 * states), some(1, many, batch, states), some(1, many, batch, states)
    y = np.empty((steps, many, batch, states), np.float32)
    sides = "BIDIRECTIONAL" if many == 2 else "FORWARD"
    activations = [{"Type": f"ACTIVATION_{each}"} for each in ("SIGMOID", "TANH", "TANH")] * many
    document = {"Type": "LSTM", "Direction": sides, "ActivationDescs": activations, "ClipThreshold": 0.0}
    tensors = dict(
        zip(
            ["Input", "Weight", "Recurrence", "Bias", "HiddenInit", "CellMemInit", "OutputSequence"],
            [x, weights, recurrence, bias, hidden, cell, y],
            strict=True,
        )
    )
    kernel = kernel_of(
        device,
        document | {"UseClipThreshold": False, "CoupleInputForget": False},
        {f"{name}Tensor": array for name, array in tensors.items()},
    )
    *given, taken = [each.data.cast("B") for each in tensors.values()]
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    names = ["x", "w", "r", "b", "", "h", "c"]
    node = helper.make_node("LSTM", names, ["y"], hidden_size=states, direction=sides.lower())
    feeds = {"x": x[0], "h": hidden[0], "c": cell[0]}
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info(name, kind, array.shape) for name, array in feeds.items()],
        [helper.make_tensor_value_info("y", kind, y.shape)],
        [onnx.numpy_helper.from_array(each[0], name) for name, each in (("w", weights), ("r", recurrence))]
        + [onnx.numpy_helper.from_array(bias[0, 0], "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    session = session_of(onnxruntime, model, options.threads)
    ours, its = best(
        [lambda: kernel.dispatch(given, [taken], lambda: False), lambda: session.run(None, feeds)], options.rounds
    )
    difference = float(np.abs(session.run(None, feeds)[0] - y).max())
    print(
        f"| {steps} | {batch} | {width} | {states} | {many} | {ours * 1e3:.3f} | {its * 1e3:.3f} | {its / ours:.2f} "
        f"| {difference:.0e} |",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8, help="of 8 runs each")
    options = parser.parse_args()
    import onnx
    import onnxruntime

    device = NumpyDevice(ThreadPoolExecutor(options.threads), options.threads, Compiler())
    print(f"onnxruntime {onnxruntime.__version__}, NumPy {np.__version__}, {options.threads} threads")
    for title, shapes in (("ResNet-50", RESNET), ("depthwise and small", SMALL)):
        print("\n| input | filters | stride | groups | ms | onnxruntime ms | ratio | difference |")
        print("|---|---|--:|--:|--:|--:|--:|--:|")
        ratios = [convolution(device, onnx, onnxruntime, options, shape) for shape in shapes]
        print(f"\nGeometric mean of {title}: {float(np.exp(np.mean(np.log(ratios)))):.2f}")
    print("\n| steps | sequences | input | states | directions | ms | onnxruntime ms | ratio | difference |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for shape in LAYERS:
        layer(device, onnx, onnxruntime, options, shape)
    return 0


if __name__ == "__main__":
    sys.exit(main())
