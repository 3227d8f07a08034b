"""CONVOLUTION with a fused RELU on the CPU beside onnxruntime with as many threads:
`python tests/benchmarks/convolutions.py`.

Shapes are of ResNet-50, MobileNetV3 and a text detector. Both run in this process, by turns; of each the best time
counts. A row tells milliseconds, onnxruntime's over ours (above 1 ours is quicker), and the largest difference.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from models import Array, best

from app.contract.constants import NEWEST
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.operators.catalog import OPERATORS
from app.operators.compiled import compile_operator

SHAPES = [
    *((3, 224, 224, 64, 7, 2, 1), (64, 56, 56, 64, 1, 1, 1), (64, 56, 56, 64, 3, 1, 1), (64, 56, 56, 256, 1, 1, 1)),
    *((256, 56, 56, 128, 1, 2, 1), (128, 28, 28, 128, 3, 1, 1), (512, 28, 28, 128, 1, 1, 1)),
    *((256, 14, 14, 256, 3, 1, 1), (1024, 14, 14, 256, 1, 1, 1), (512, 7, 7, 512, 3, 1, 1), (512, 7, 7, 2048, 1, 1, 1)),
    *((96, 56, 56, 96, 3, 1, 96), (240, 14, 14, 240, 5, 1, 240), (8, 24, 96, 8, 5, 2, 8), (200, 2, 96, 32, 1, 1, 1)),
    *((200, 1, 1, 50, 1, 1, 1), (768, 2, 3, 384, 1, 1, 1)),
]
"""Channels, height, width, output channels, size of the filter, stride, groups; padded to half the filter."""


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
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), chosen, providers=["CPUExecutionProvider"])
    binding, output = session.io_binding(), onnxruntime.OrtValue.ortvalue_from_numpy(np.empty_like(y))
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", output)
    return lambda: session.run_with_iobinding(binding), output


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="of 8 runs each")
    options = parser.parse_args()
    import onnx
    import onnxruntime

    device = NumpyDevice(ThreadPoolExecutor(options.threads), options.threads, Compiler())
    random = np.random.default_rng(0)
    ratios = []
    print(f"onnxruntime {onnxruntime.__version__}, NumPy {np.__version__}, {options.threads} threads\n")
    print("| input | filters | stride | groups | ms | onnxruntime ms | ratio | difference |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for channels, height, width, outputs, size, stride, groups in SHAPES:
        padding = size // 2
        x = random.standard_normal((1, channels, height, width), np.float32)
        filters = random.standard_normal((outputs, channels // groups, size, size), np.float32) * np.float32(0.1)
        bias = random.standard_normal((1, outputs, 1, 1), np.float32)
        made = [(each + 2 * padding - size) // stride + 1 for each in (height, width)]
        y = np.empty((1, outputs, *made), np.float32)
        names = ("InputTensor", "FilterTensor", "BiasTensor", "OutputTensor")
        tensors = {
            name: {"DataType": "FLOAT32", "Sizes": list(array.shape)}
            for name, array in zip(names, (x, filters, bias, y), strict=True)
        }
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
        operator = OPERATORS["DML_OPERATOR_CONVOLUTION"].model_validate(document | tensors)
        kernel = device.prepare(compile_operator(operator, NEWEST))
        arrays: list[Any] = [x, filters, bias, y]
        *given, taken = [memoryview(each).cast("B") for each in arrays]
        other, output = theirs(onnx, onnxruntime, options.threads, arrays, stride, padding, groups)
        ours, its = best([lambda: kernel.dispatch(given, [taken], lambda: False), other], options.rounds)  # noqa: B023
        ratios.append(its / ours)
        print(
            f"| {channels}x{height}x{width} | {outputs} of {size}x{size} | {stride} | {groups} | {ours * 1e3:.3f} "
            f"| {its * 1e3:.3f} | {its / ours:.2f} | {float(np.abs(output.numpy() - y).max()):.0e} |",
            flush=True,
        )
    print(f"\nGeometric mean: {float(np.exp(np.mean(np.log(ratios)))):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
