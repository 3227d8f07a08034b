"""The CPU's loops beside onnxruntime and PyTorch, on as many threads: `python tests/benchmarks/peers.py`.

All compute into one buffer that is there, in this process, by turns: some milliseconds of calls one after another,
then a pause in which all threads go to sleep. (Into a buffer each, whose pages are chance, passes over 64 MiB differ by
a tenth.) The calling thread has a processor for itself (Linux). The best time of a call counts, since other work on the
machine only ever adds to it: by the clock, but of one thread at 16 Mi, which others will always interrupt, its
processor's. A row tells ours in microseconds, and ours over theirs at each size, below 1 ours is quicker; then the
largest errors of all three in ULP, for 256 Ki ordinary numbers, where there is an exact function of floats. What is not
installed, lacks the operator or gives something else is a dash. Of FLOAT16 there are rows for operators of floats.

On a machine with other work it is measured piece by piece: `--columns "16 Mi" --operators EXP --into FILE` puts these
cells into the table that a document has.
"""

import argparse
import importlib.util
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from operators import COMPILER, NAIVE, RANGES, ROW, A, E, compiled, inputs_of

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.memory.arrays import Array, numpy_type
from app.operators.operator import PREFIX
from tests.operators.descriptors import output_of
from tests.operators.numerics.cases import BINARY, UNARY, Case
from tests.operators.numerics.reference import wide
from tests.operators.numerics.ulp import errors

LOGICAL = {f"LOGICAL_{each}" for each in ("AND", "OR", "XOR", "NOT")}

ONNX: dict[str, tuple[str, dict[str, Any]]] = {
    A + "ELU": ("Elu", {}),
    A + "CELU": ("Celu", {}),
    A + "SCALED_ELU": ("Selu", {}),
    A + "HARDMAX": ("Hardmax", {"axis": -1}),
    A + "HARDMAX1": ("Hardmax", {"axis": -1}),
    A + "HARD_SIGMOID": ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
    A + "IDENTITY": ("Identity", {}),
    A + "LEAKY_RELU": ("LeakyRelu", {"alpha": 0.01}),
    A + "LOG_SOFTMAX": ("LogSoftmax", {"axis": -1}),
    A + "LOG_SOFTMAX1": ("LogSoftmax", {"axis": -1}),
    A + "PARAMETERIZED_RELU": ("PRelu", {}),
    A + "RELU": ("Relu", {}),
    A + "SIGMOID": ("Sigmoid", {}),
    A + "SOFTMAX": ("Softmax", {"axis": -1}),
    A + "SOFTMAX1": ("Softmax", {"axis": -1}),
    A + "SOFTPLUS": ("Softplus", {}),
    A + "SOFTSIGN": ("Softsign", {}),
    A + "TANH": ("Tanh", {}),
    A + "THRESHOLDED_RELU": ("ThresholdedRelu", {"alpha": 1.0}),
    A + "SHRINK": ("Shrink", {"lambd": 0.5, "bias": 0.0}),
    A + "GELU": ("Gelu", {}),
    A + "SWISH": ("com.microsoft.QuickGelu", {"alpha": 1.0}),
    A + "HARD_SWISH": ("HardSwish", {}),
    **{
        E + name: (kind, {})
        for name, kind in {
            **{name: name.title() for name in ("IDENTITY", "ABS", "ACOS", "ADD", "ASIN", "ATAN", "CEIL", "COS", "EXP")},
            **{name: name.title() for name in ("FLOOR", "LOG", "MAX", "MEAN", "MIN", "POW", "SIN", "SQRT", "TAN")},
            **{name: name.title() for name in ("SIGN", "ERF", "SINH", "COSH", "TANH", "ASINH", "ACOSH", "ATANH")},
            "CLIP": "Clip",
            "CLIP1": "Clip",
            "DIVIDE": "Div",
            "MULTIPLY": "Mul",
            "SUBTRACT": "Sub",
            "NEGATE": "Neg",
            "RECIP": "Reciprocal",
            "IF": "Where",
            "ROUND": "Round",
            "IS_NAN": "IsNaN",
            "IS_INFINITY": "IsInf",
            "LOGICAL_AND": "And",
            "LOGICAL_OR": "Or",
            "LOGICAL_XOR": "Xor",
            "LOGICAL_NOT": "Not",
            "LOGICAL_EQUALS": "Equal",
            "LOGICAL_GREATER_THAN": "Greater",
            "LOGICAL_LESS_THAN": "Less",
            "LOGICAL_GREATER_THAN_OR_EQUAL": "GreaterOrEqual",
            "LOGICAL_LESS_THAN_OR_EQUAL": "LessOrEqual",
            "BIT_AND": "BitwiseAnd",
            "BIT_OR": "BitwiseOr",
            "BIT_XOR": "BitwiseXor",
            "BIT_NOT": "BitwiseNot",
            "QUANTIZE_LINEAR": "QuantizeLinear",
            "DEQUANTIZE_LINEAR": "DequantizeLinear",
            "QUANTIZED_LINEAR_ADD": "com.microsoft.QLinearAdd",
            "CONSTANT_POW": "Pow",
            "MODULUS_FLOOR": "Mod",
        }.items()
    },
    E + "MODULUS_TRUNCATE": ("Mod", {"fmod": 1}),
    E + "BIT_SHIFT_LEFT": ("BitShift", {"direction": "LEFT"}),
    E + "BIT_SHIFT_RIGHT": ("BitShift", {"direction": "RIGHT"}),
}
"""The operator's name, of ONNX unless it says, and attributes."""

CONSTANTS: dict[str, tuple[float, ...]] = {E + "CLIP": (-1, 1), E + "CLIP1": (-1, 1), E + "CONSTANT_POW": (2.5,)}
"""What ONNX has as further inputs."""

TORCH: dict[str, tuple[str, tuple[Any, ...]]] = {
    **{
        E + name: (name.lower(), ())
        for name in (
            *("ABS", "ACOS", "ADD", "ASIN", "ATAN", "CEIL", "COS", "EXP", "FLOOR", "LOG", "POW", "SIN", "SQRT", "TAN"),
            *("SIGN", "ERF", "SINH", "COSH", "TANH", "ASINH", "ACOSH", "ATANH"),
        )
    },
    **{
        E + name: (kind, ())
        for name, kind in {
            "MAX": "maximum",
            "MIN": "minimum",
            "DIVIDE": "div",
            "MULTIPLY": "mul",
            "SUBTRACT": "sub",
            "NEGATE": "neg",
            "RECIP": "reciprocal",
            "IF": "where",
            "ROUND": "round",
            "ATAN_YX": "atan2",
            "IS_NAN": "isnan",
            "IS_INFINITY": "isinf",
            "LOGICAL_AND": "logical_and",
            "LOGICAL_OR": "logical_or",
            "LOGICAL_XOR": "logical_xor",
            "LOGICAL_NOT": "logical_not",
            "LOGICAL_EQUALS": "eq",
            "LOGICAL_GREATER_THAN": "gt",
            "LOGICAL_LESS_THAN": "lt",
            "LOGICAL_GREATER_THAN_OR_EQUAL": "ge",
            "LOGICAL_LESS_THAN_OR_EQUAL": "le",
            "MODULUS_FLOOR": "remainder",
            "MODULUS_TRUNCATE": "fmod",
            "BIT_AND": "bitwise_and",
            "BIT_OR": "bitwise_or",
            "BIT_XOR": "bitwise_xor",
            "BIT_NOT": "bitwise_not",
            "BIT_SHIFT_LEFT": "bitwise_left_shift",
        }.items()
    },
    E + "CLIP": ("clamp", (-1, 1)),
    E + "CLIP1": ("clamp", (-1, 1)),
    E + "CONSTANT_POW": ("pow", (2.5,)),
    A + "ELU": ("elu", ()),
    A + "SCALED_ELU": ("elu", (1.67326319217681884765625, 1.05070102214813232421875)),
    A + "LEAKY_RELU": ("leaky_relu", (0.01,)),
    A + "LOG_SOFTMAX": ("_log_softmax", (-1, False)),
    A + "LOG_SOFTMAX1": ("_log_softmax", (-1, False)),
    A + "RELU": ("relu", ()),
    A + "SIGMOID": ("sigmoid", ()),
    A + "SOFTMAX": ("_softmax", (-1, False)),
    A + "SOFTMAX1": ("_softmax", (-1, False)),
    A + "SOFTPLUS": ("softplus", ()),
    A + "TANH": ("tanh", ()),
    A + "THRESHOLDED_RELU": ("threshold", (1.0, 0.0)),
    A + "SHRINK": ("hardshrink", (0.5,)),
    A + "GELU": ("gelu", ()),
    A + "SWISH": ("silu", ()),
}
"""The name of the function, and what it takes besides tensors; all have a form that writes into a tensor."""

ATTRIBUTES: dict[str, dict[str, Any]] = {
    A + "HARD_SWISH": {"Alpha": 1 / 6, "Beta": 0.5},
    A + "SCALED_ELU": {"Alpha": 1.67326319217681884765625, "Gamma": 1.05070102214813232421875},
}
"""Where those of `operators.py` are not what the others have."""

SIZES = {"64 Ki": 1 << 16, "1 Mi": 1 << 20, "16 Mi": 1 << 24}
ULP = "ULP"
COLUMNS = [*SIZES, ULP]
LINE = 64
"""Bytes."""

NUMBERS = 1 << 18
"""Different ones in a tensor."""

BATCH = 0.008
"""Seconds of calls one after another."""

PAUSES = 0.012, 0.001, 0.07
"""Seconds before a batch of each, in which threads of the one before give up waiting for work: PyTorch's after 8 ms,
ours after 50 us, onnxruntime's after 55 ms."""

PROCESSORS = sorted(os.sched_getaffinity(0))

Call = Callable[[], object]


def aligned(sizes: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An array that begins where a line of the cache does, as all three have their own tensors."""
    size = math.prod(sizes) * dtype.itemsize
    memory = np.zeros(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    made: Array = memory[start : start + size].view(dtype).reshape(sizes)
    return made


def moved(array: Array) -> Array:
    """The same, aligned."""
    made = aligned(array.shape, array.dtype)
    made[...] = array
    return made


def arrays_of(name: str, elements: int, data_type: str) -> list[Array]:
    """The inputs of `operators.py`, those that are FLOAT32 as `data_type` unless they go with integers: 256 Ki numbers,
    again and again, which take as long as others and are sooner there."""
    made = [
        each if each.size == 1 else np.tile(each, (elements // each.size, 1))
        for each in inputs_of(name, min(elements, NUMBERS))
    ]
    if "QUANT" not in name:
        type_ = numpy_type(DataType(data_type))
        made = [each.astype(type_) if each.dtype == np.float32 else each for each in made]
    return [moved(each) for each in made]


def ours(name: str, inputs: list[Array], device: NumpyDevice) -> tuple[Call, Array]:
    attributes = ATTRIBUTES.get(name, NAIVE[name][0])
    if "MinMaxDataType" in attributes:
        attributes = attributes | {"MinMaxDataType": inputs[0].dtype.name.upper()}
    operator = compiled(name, inputs, attributes or None)
    kernel = device.prepare(operator)
    output = aligned(output_of(operator).Sizes, numpy_type(output_of(operator).DataType))
    buffers, written = (
        [each.reshape(-1).view(np.uint8).data for each in inputs],
        [output.reshape(-1).view(np.uint8).data],
    )

    def never() -> bool:
        return False

    return lambda: kernel.dispatch(buffers, written, never), output


def of_onnxruntime(name: str, inputs: list[Array], like: Array, threads: int) -> tuple[Call, Array] | None:
    if name not in ONNX or not all(importlib.util.find_spec(each) for each in ("onnx", "onnxruntime")):
        return None
    onnx: Any = __import__("onnx")
    runtime: Any = __import__("onnxruntime")
    kind, attributes = ONNX[name]
    domain, _, kind = kind.rpartition(".")
    logical = "LOGICAL" in name or name in (E + "IS_NAN", E + "IS_INFINITY")
    if name.removeprefix(E) in LOGICAL or name == E + "IF":
        inputs = [moved(each.astype(bool)) if each.dtype == np.uint8 else each for each in inputs]
    output = like.view(np.bool_) if logical else like
    constants = [np.asarray(each, inputs[0].dtype) for each in CONSTANTS.get(name, ())]
    scalars = {}
    for number, each in enumerate(inputs):
        if each.size == 1:
            scalars[f"x{number}"] = each.reshape(())
    helper, types = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype
    names = [f"x{number}" for number in range(len(inputs))]
    given = {each: array for each, array in zip(names, inputs, strict=True) if each not in scalars}
    initializers = {**scalars, **{f"c{number}": each for number, each in enumerate(constants)}}
    graph = helper.make_graph(
        [
            helper.make_node(
                kind, [*names, *(each for each in initializers if each[0] == "c")], ["y"], domain=domain, **attributes
            )
        ],
        name,
        [helper.make_tensor_value_info(each, types(array.dtype), array.shape) for each, array in given.items()],
        [helper.make_tensor_value_info("y", types(output.dtype), output.shape)],
        [onnx.numpy_helper.from_array(array, each) for each, array in initializers.items()],
    )
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if os.environ.get("WHY"):
            print(name, error, file=sys.stderr)
        return None
    binding = session.io_binding()
    for x, array in given.items():
        binding.bind_input(x, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    binding.bind_output("y", "cpu", 0, output.dtype, output.shape, output.ctypes.data)
    kept = [*given.values(), output]  # it has their addresses only

    def run() -> object:
        return session.run_with_iobinding(binding), kept

    return run, output


def of_torch(name: str, inputs: list[Array], like: Array, threads: int) -> tuple[Call, Array] | None:
    if name not in TORCH or not importlib.util.find_spec("torch"):
        return None
    torch: Any = __import__("torch")
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    kind, more = TORCH[name]
    if name.removeprefix(E) in LOGICAL or name == E + "IF":
        inputs = [moved(each.astype(bool)) if each.dtype == np.uint8 else each for each in inputs]
    if "BIT_" in name:
        inputs = [each.view(np.int32) for each in inputs]
    output = like.view(np.bool_) if "LOGICAL" in name or "IS_" in name else like
    tensors = [torch.from_numpy(each) for each in inputs]
    written = torch.from_numpy(output.view(np.int32) if "BIT_" in name else output)
    packet = getattr(torch.ops.aten, kind)
    for overload in packet.overloads():  # to find the one that fits takes up to 500 us at each call of all of them
        function = getattr(packet, overload)

        def run(function: Callable[..., object] = function) -> object:
            return function(*tensors, *more, out=written)

        if does(run):
            return run, output
    return None


def does(run: Call) -> bool:
    """Whether it has the operator for such tensors."""
    try:
        run()
    except Exception as error:
        if os.environ.get("WHY"):
            print(error, file=sys.stderr)
        return False
    return True


def agree(name: str, expected: Array, made: Array) -> bool:
    """Whether a result is about what ours is."""
    away = 1 if "QUANT" in name else 1e-2 if made.dtype == np.float16 else 1e-3
    given = made.reshape(expected.shape).astype(np.float32)
    near = bool(np.allclose(given, expected, 1e-2 if made.dtype == np.float16 else 2e-3, away, equal_nan=True))
    if not near:
        print(f"{name}: up to {np.nanmax(np.abs(given - expected))} apart", file=sys.stderr)
    return near


def batch(run: Call, clock: Callable[[], float]) -> float:
    """The best time of a call in one batch, in seconds."""
    best, ends = math.inf, time.perf_counter() + BATCH
    while time.perf_counter() < ends:
        started = clock()
        run()
        best = min(best, clock() - started)
    return best


def contenders(name: str, inputs: list[Array], device: NumpyDevice, threads: int) -> list[tuple[Call, Array] | None]:
    """Ours, onnxruntime's and PyTorch's, which have run once, with about the same results."""
    own, output = ours(name, inputs, device)
    own()
    expected = output.astype(np.float32)
    others = of_onnxruntime(name, inputs, output, threads), of_torch(name, inputs, output, threads)
    return [(own, output), *(x if x and does(x[0]) and agree(name, expected, x[1]) else None for x in others)]


def part_threads() -> None:
    """Keep all other threads off the processor of this one: a thread that waits for another one of the same processor
    does so for milliseconds, which is chance."""
    own, *others = PROCESSORS
    for each in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(each, {own} if each == threading.get_native_id() else others or {own})


def measured(every: list[tuple[Call, Array] | None], rounds: int, clock: Callable[[], float]) -> list[float | None]:
    """Seconds of each."""
    part_threads()
    best: list[float | None] = [None for _ in every]
    for _ in range(rounds):
        for place, (each, pause) in enumerate(zip(every, PAUSES, strict=True)):
            if each:
                time.sleep(pause)
                best[place] = min(best[place] or math.inf, batch(each[0], clock))
    return best


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def log_softmax(x: Array) -> Array:
    return np.asarray(np.log(softmax(x)))


def exact_of(name: str) -> Case | None:
    """The function in long double."""
    wanted = ATTRIBUTES.get(name, NAIVE[name][0])
    for part, function in ((A + "SOFTMAX", softmax), (A + "LOG_SOFTMAX", log_softmax)):
        if name.startswith(part):
            return Case(name, {}, function, 0)
    for case in (*UNARY, *BINARY):
        if (
            case.kind == PREFIX + name
            and "ScaleBias" not in case.attributes
            and wanted.items() <= case.attributes.items()
        ):
            return case
    return None


def apart(name: str, data_type: str, device: NumpyDevice, threads: int) -> list[int | None]:
    """The largest errors in ULP of each for ordinary numbers."""
    case = exact_of(name)
    inputs = arrays_of(name, NUMBERS, data_type)
    if case is None or inputs[0].dtype.kind != "f":
        return [None] * 3
    if len(inputs) == 1 and name not in RANGES:
        inputs = [(inputs[0] * 2.5).astype(inputs[0].dtype)]
    made = contenders(name, inputs, device, threads)
    with np.errstate(all="ignore"):
        given = [wide(each) for each in inputs]
        true, terms = case.exact(*given), case.largest and case.largest(*given)

        def error(run: Call, output: Array) -> int:
            run()  # all compute into one buffer
            return int(errors(output.reshape(inputs[0].shape), true, terms).max())

        return [each and error(*each) for each in made]


class Table:
    """Rows by operator, each with its columns, of which each is three cells."""

    def __init__(self, data_type: str) -> None:
        self.data_type = data_type
        self.rows: dict[str, dict[str, list[str]]] = {}

    @property
    def columns(self) -> list[str]:
        return [each for each in COLUMNS if any(each in row for row in self.rows.values())]

    @property
    def lines(self) -> list[str]:
        heads = [f"{each}{'' if each == ULP else ', us'} | onnxruntime | torch" for each in self.columns]
        made = [f"| {self.data_type} | {' | '.join(heads)} |", "|---|" + "--:|--:|--:|" * len(heads)]
        for name, row in sorted(self.rows.items()):
            cells = [cell for each in self.columns for cell in row.get(each, ["-"] * 3)]
            made.append(f"| {name} | {' | '.join(cells)} |")
        return made

    def read(self, document: list[str]) -> tuple[int, int]:
        """Take what a document has; between which of its lines that is."""
        begin = next(number for number, line in enumerate(document) if line.startswith(f"| {self.data_type} |"))
        end = begin
        while end < len(document) and document[end].startswith("|"):
            end += 1
        columns = [each.strip().removesuffix(", us") for each in document[begin].split("|")[2:-1:3]]
        for line in document[begin + 2 : end]:
            name, *cells = [each.strip() for each in line.split("|")[1:-1]]
            self.rows[name] = {each: cells[3 * place : 3 * place + 3] for place, each in enumerate(columns)}
        return begin, end


def write(path: Path, table: Table) -> None:
    """Put all cells of `table` into the one that a document has."""
    document = path.read_text().split("\n")
    known = Table(table.data_type)
    begin, end = known.read(document)
    for name, row in table.rows.items():
        known.rows[name] = known.rows.get(name, {}) | row
    path.write_text("\n".join([*document[:begin], *known.lines, *document[end:]]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(PROCESSORS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--operators", default="", help="names, or parts of them")
    parser.add_argument("--columns", default=",".join(COLUMNS), help="sizes, and ULP")
    parser.add_argument("--type", default="FLOAT32", choices=["FLOAT32", "FLOAT16"])
    parser.add_argument("--into", type=Path, help="a document with a table, to put these cells into")
    options = parser.parse_args()
    table = Table(options.type)
    columns = [each for each in COLUMNS if each in options.columns.split(",")]
    clocks = {"16 Mi": time.thread_time} if options.threads == 1 else {}
    with ThreadPoolExecutor(options.threads) as helpers:
        device = NumpyDevice(helpers, options.threads, COMPILER)
        for name in sorted(NAIVE):
            if not any(each in name for each in options.operators.split(",")):
                continue
            if options.type == "FLOAT16" and not any(
                each.dtype == np.float16 for each in arrays_of(name, ROW, "FLOAT16")
            ):
                continue
            row = table.rows[name] = {}
            for column in columns:
                if column == ULP:
                    worst = apart(name, options.type, device, options.threads)
                    row[column] = ["-" if each is None else f"{each:,}" for each in worst]
                    continue
                inputs = arrays_of(name, SIZES[column], options.type)
                own, *others = measured(
                    contenders(name, inputs, device, options.threads),
                    options.rounds,
                    clocks.get(column, time.perf_counter),
                )
                assert own
                ratios = ["-" if other is None else f"{own / other:.2f}" for other in others]
                row[column] = [f"{own * 1e6:.0f}", *ratios]
            print(table.lines[-1] if len(table.rows) > 1 else "\n".join(table.lines), flush=True)
            if options.into:
                write(options.into, table)


if __name__ == "__main__":
    main()
