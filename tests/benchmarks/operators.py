"""Every operator on the CPU against the NumPy expression that one would write: `python tests/benchmarks/operators.py`.

Both run in this process, one after the other, round by round. A row tells the ratio of the best times, since other work
on the machine only ever adds to a time: naive over ours, of one thread's CPU time, and with all threads by the clock.
Above 1 the operator is faster than the expression.
"""

import argparse
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from app.contract.constants import NEWEST
from app.contract.validation import validate
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.device import Kernel
from app.memory.arrays import Array, numpy_type
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.operator import PREFIX
from tests.operators.descriptors import output_of

E, A = "ELEMENT_WISE_", "ACTIVATION_"
F = np.float32


def _erf(x: Array) -> Array:
    """NumPy has none."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), F)


def _sigmoid(x: Array) -> Array:
    return np.asarray(F(1) / (F(1) + np.exp(-x)))


def _hard_sigmoid(x: Array) -> Array:
    return np.asarray(np.maximum(F(0), np.minimum(F(0.2) * x + F(0.5), F(1))))


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _log_softmax(x: Array) -> Array:
    shifted = x - x.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _hardmax(x: Array) -> Array:
    return np.asarray(np.arange(x.shape[-1]) == x.argmax(-1)[..., None], x.dtype)


def _quantize(x: Array, scale: Array, zero: Array) -> Array:
    return np.asarray(np.clip(np.rint(x / scale) + zero, 0, 255), np.uint8)


def _quantized_add(a: Array, sa: Array, za: Array, b: Array, sb: Array, zb: Array, so: Array, zo: Array) -> Array:
    total = (a - za.astype(F)) * sa + (b - zb.astype(F)) * sb
    return np.asarray(np.clip(np.rint(total / so) + zo, 0, 255), np.uint8)


NAIVE: dict[str, tuple[dict[str, Any], Callable[..., Array]]] = {
    A + "ELU": ({}, lambda x: np.asarray(np.where(x >= 0, x, np.expm1(x)))),
    A + "CELU": ({}, lambda x: np.maximum(0, x) + np.minimum(0, np.expm1(x))),
    A + "SCALED_ELU": ({}, lambda x: np.where(x > 0, F(1.0507) * x, F(1.0507) * (F(1.6732) * np.exp(x) - F(1.6732)))),
    A + "HARDMAX": ({}, _hardmax),
    A + "HARDMAX1": ({"Axes": [1]}, _hardmax),
    A + "HARD_SIGMOID": ({}, _hard_sigmoid),
    A + "IDENTITY": ({}, np.copy),
    A + "LEAKY_RELU": ({}, lambda x: np.where(x >= 0, x, F(0.01) * x)),
    A + "LINEAR": ({"Alpha": 2, "Beta": 1}, lambda x: F(2) * x + F(1)),
    A + "LOG_SOFTMAX": ({}, _log_softmax),
    A + "LOG_SOFTMAX1": ({"Axes": [1]}, _log_softmax),
    A + "PARAMETERIZED_RELU": ({}, lambda x, slope: np.where(x >= 0, x, slope * x)),
    A + "PARAMETRIC_SOFTPLUS": ({"Alpha": 0.5, "Beta": 2}, lambda x: F(0.5) * np.log(F(1) + np.exp(F(2) * x))),
    A + "RELU": ({}, lambda x: np.maximum(x, 0)),
    A + "RELU_GRAD": ({}, lambda x, g: np.where(x > 0, g, F(0))),
    A + "SCALED_TANH": ({}, lambda x: F(1) * np.tanh(F(0.5) * x)),
    A + "SIGMOID": ({}, _sigmoid),
    A + "SOFTMAX": ({}, _softmax),
    A + "SOFTMAX1": ({"Axes": [1]}, _softmax),
    A + "SOFTPLUS": ({}, lambda x: np.log(F(1) + np.exp(x))),
    A + "SOFTSIGN": ({}, lambda x: x / (F(1) + np.abs(x))),
    A + "TANH": ({}, np.tanh),
    A + "THRESHOLDED_RELU": ({}, lambda x: np.where(x > 1, x, F(0))),
    A + "SHRINK": ({}, lambda x: np.where(x > F(0.5), x, np.where(x < F(-0.5), x, F(0)))),
    A + "GELU": ({}, lambda x: F(0.5) * x * (F(1) + _erf(x / F(math.sqrt(2))))),
    A + "SWISH": ({}, lambda x: x * _sigmoid(x)),
    A + "HARD_SWISH": ({"Alpha": 0.2}, lambda x: x * _hard_sigmoid(x)),
    E + "IDENTITY": ({}, np.copy),
    E + "ABS": ({}, np.abs),
    E + "ACOS": ({}, np.arccos),
    E + "ADD": ({}, np.add),
    E + "ADD1": ({"FusedActivation": {"Type": "ACTIVATION_RELU"}}, lambda a, b: np.maximum(a + b, 0)),
    E + "ASIN": ({}, np.arcsin),
    E + "ATAN": ({}, np.arctan),
    E + "CEIL": ({}, np.ceil),
    E + "CLIP": ({"Min": -1, "Max": 1}, lambda x: np.clip(x, F(-1), F(1))),
    E + "CLIP1": ({"MinMaxDataType": "FLOAT32", "Min": -1, "Max": 1}, lambda x: np.clip(x, F(-1), F(1))),
    E + "CLIP_GRAD": ({"Min": -1, "Max": 1}, lambda x, g: np.where((x <= F(-1)) | (x >= F(1)), F(0), g)),
    E + "CLIP_GRAD1": (
        {"MinMaxDataType": "FLOAT32", "Min": -1, "Max": 1},
        lambda x, g: np.where((x <= F(-1)) | (x >= F(1)), F(0), g),
    ),
    E + "COS": ({}, np.cos),
    E + "DIVIDE": ({}, np.divide),
    E + "EXP": ({}, np.exp),
    E + "FLOOR": ({}, np.floor),
    E + "LOG": ({}, np.log),
    E + "LOGICAL_AND": ({}, lambda a, b: np.logical_and(a, b).astype(a.dtype)),
    E + "LOGICAL_EQUALS": ({}, lambda a, b: (a == b).astype(np.uint8)),
    E + "LOGICAL_GREATER_THAN": ({}, lambda a, b: (a > b).astype(np.uint8)),
    E + "LOGICAL_LESS_THAN": ({}, lambda a, b: (a < b).astype(np.uint8)),
    E + "LOGICAL_GREATER_THAN_OR_EQUAL": ({}, lambda a, b: (a >= b).astype(np.uint8)),
    E + "LOGICAL_LESS_THAN_OR_EQUAL": ({}, lambda a, b: (a <= b).astype(np.uint8)),
    E + "LOGICAL_NOT": ({}, lambda x: np.logical_not(x).astype(x.dtype)),
    E + "LOGICAL_OR": ({}, lambda a, b: np.logical_or(a, b).astype(a.dtype)),
    E + "LOGICAL_XOR": ({}, lambda a, b: np.logical_xor(a, b).astype(a.dtype)),
    E + "MAX": ({}, np.maximum),
    E + "MEAN": ({}, lambda a, b: (a + b) / F(2)),
    E + "MIN": ({}, np.minimum),
    E + "MULTIPLY": ({}, np.multiply),
    E + "POW": ({}, np.power),
    E + "CONSTANT_POW": ({"Exponent": 2.5}, lambda x: np.power(x, F(2.5))),
    E + "RECIP": ({}, lambda x: F(1) / x),
    E + "SIN": ({}, np.sin),
    E + "SQRT": ({}, np.sqrt),
    E + "DIFFERENCE_SQUARE": ({}, lambda a, b: (a - b) * (a - b)),
    E + "ATAN_YX": ({}, np.arctan2),
    E + "SUBTRACT": ({}, np.subtract),
    E + "TAN": ({}, np.tan),
    E + "THRESHOLD": ({"Min": 0.5}, lambda x: np.maximum(x, F(0.5))),
    E + "QUANTIZE_LINEAR": ({}, _quantize),
    E + "DEQUANTIZE_LINEAR": ({}, lambda x, s, z: (x.astype(F) - z.astype(F)) * s),
    E + "SIGN": ({}, lambda x: np.nan_to_num(np.sign(x))),
    E + "IS_NAN": ({}, lambda x: np.isnan(x).astype(np.uint8)),
    E + "NEGATE": ({}, np.negative),
    E + "ERF": ({}, _erf),
    E + "SINH": ({}, np.sinh),
    E + "COSH": ({}, np.cosh),
    E + "TANH": ({}, np.tanh),
    E + "ASINH": ({}, np.arcsinh),
    E + "ACOSH": ({}, np.arccosh),
    E + "ATANH": ({}, np.arctanh),
    E + "IF": ({}, lambda c, a, b: np.asarray(np.where(c != 0, a, b))),
    E + "BIT_SHIFT_LEFT": ({}, np.left_shift),
    E + "BIT_SHIFT_RIGHT": ({}, np.right_shift),
    E + "ROUND": ({"RoundingMode": "HALVES_TO_NEAREST_EVEN"}, np.rint),
    E + "IS_INFINITY": ({"InfinityMode": "EITHER"}, lambda x: np.isinf(x).astype(np.uint8)),
    E + "MODULUS_TRUNCATE": ({}, np.fmod),
    E + "MODULUS_FLOOR": ({}, np.mod),
    E + "BIT_AND": ({}, np.bitwise_and),
    E + "BIT_OR": ({}, np.bitwise_or),
    E + "BIT_XOR": ({}, np.bitwise_xor),
    E + "BIT_NOT": ({}, np.invert),
    E + "BIT_COUNT": ({}, np.bitwise_count),
    E + "QUANTIZED_LINEAR_ADD": ({}, _quantized_add),
}
"""Attributes, and the expression; operators on bits and of logic run on integers."""

TYPES = dict.fromkeys([f"{E}BIT_{kind}" for kind in ("AND", "OR", "XOR", "NOT", "COUNT")], ["UINT32"] * 2)
TYPES |= dict.fromkeys([f"{E}BIT_SHIFT_{kind}" for kind in ("LEFT", "RIGHT")], ["UINT32"] * 2)
TYPES |= dict.fromkeys([f"{E}LOGICAL_{kind}" for kind in ("AND", "OR", "XOR", "NOT")], ["UINT8"] * 2)
TYPES |= {
    E + "IF": ["UINT8", "FLOAT32", "FLOAT32"],
    E + "QUANTIZE_LINEAR": ["FLOAT32", "FLOAT32", "UINT8"],
    E + "DEQUANTIZE_LINEAR": ["UINT8", "FLOAT32", "UINT8"],
    E + "QUANTIZED_LINEAR_ADD": ["UINT8", "FLOAT32", "UINT8"] * 2 + ["FLOAT32", "UINT8"],
}
"""Of the inputs, where they are not FLOAT32."""

COMPILER = Compiler()

RANGES = {E + "ACOS": (-1, 1), E + "ASIN": (-1, 1), E + "ATANH": (-1, 1), E + "ACOSH": (1, 50)}
POSITIVE = {E + "LOG", E + "SQRT", E + "POW", E + "CONSTANT_POW"}
ROW = 1024


def inputs_of(name: str, elements: int) -> list[Array]:
    rng = np.random.default_rng(1)
    operator = OPERATORS[PREFIX + name]
    made: list[Array] = []
    for place, tensor in enumerate(operator.tensor_names()[:-1]):
        data_type = TYPES.get(name, ["FLOAT32"] * 9)[place]
        sizes = (1, 1) if tensor in operator.one_element else (elements // ROW, ROW)
        if data_type == "FLOAT32":
            x = rng.uniform(*RANGES[name], sizes) if name in RANGES else rng.standard_normal(sizes) * 2
            x = np.abs(x) if name in POSITIVE or "Scale" in tensor else x
            made.append(np.where(x == 0, 1, x).astype(F))
        else:
            made.append(rng.integers(0, 32 if "SHIFT" in name else 256, sizes).astype(data_type.lower()))
    return made


def compiled(name: str, inputs: Sequence[Array], attributes: dict[str, Any] | None = None) -> CompiledOperator:
    """With the attributes of NAIVE, unless others are given."""
    operator = OPERATORS[PREFIX + name]
    tensors = {
        tensor: {"DataType": array.dtype.name.upper(), "Sizes": list(array.shape)}
        for tensor, array in zip(operator.tensor_names()[:-1], inputs, strict=True)
    }
    values = attributes or NAIVE[name][0]
    if "MinMaxDataType" in values:
        values = values | {"MinMaxDataType": inputs[0].dtype.name.upper()}
    return compile_operator(validate(operator, {"Type": name} | tensors | values), NEWEST)


def seconds(function: Callable[[], object], clock: Callable[[], float]) -> float:
    started = clock()
    function()
    return clock() - started


def measure(name: str, elements: int, rounds: int, helpers: Executor, threads: int) -> tuple[float, float, float]:
    """The naive time in ns for an element, and the ratios for one thread and for all."""
    inputs = inputs_of(name, elements)
    operator = compiled(name, inputs)
    buffers = [array.reshape(-1).view(np.uint8).data for array in inputs]
    alone, together = (NumpyDevice(helpers, count, COMPILER).prepare(operator) for count in (1, threads))

    def naive() -> Array:
        return NAIVE[name][1](*inputs)

    def ours(kernel: Kernel) -> Array:
        output = np.empty(output_of(operator).elements, numpy_type(output_of(operator).DataType))
        kernel.dispatch(buffers, [output.view(np.uint8).data], lambda: False)
        return output

    with np.errstate(all="ignore"):
        # Quantization in float32 rounds some quotients to halves that are none.
        tolerance = 1 if "QUANT" in name else 1e-4
        np.testing.assert_allclose(ours(alone).astype(F), naive().reshape(-1).astype(F), 1e-4, tolerance)
        times = [
            (
                seconds(naive, thread_time),
                seconds(lambda: ours(alone), thread_time),
                seconds(naive, perf_counter),
                seconds(lambda: ours(together), perf_counter),
            )
            for _ in range(rounds)
        ]
    cpu, ours_cpu, wall, ours_wall = (min(each[place] for each in times) for place in range(4))
    return cpu / elements * 1e9, cpu / ours_cpu, wall / ours_wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1 << 24, help="of each tensor (default 16 Mi)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--operators", default="", help="a part of their names")
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    families = ("ACTIVATION", "ELEMENT_WISE")
    assert set(NAIVE) == {each.short_name() for each in OPERATORS.values() if each.family() in families}
    versions = f"NumPy {np.__version__}, LLVM {COMPILER.version}"
    print(f"{versions}, {options.elements} elements, {options.rounds} rounds; naive time over ours\n")
    print(f"| operator | naive, ns | 1 thread | {threads} threads |\n|---|--:|--:|--:|")
    with ThreadPoolExecutor(threads) as helpers:
        for name in sorted(NAIVE):
            if options.operators in name:
                slow = name in (A + "GELU", E + "ERF")  # math.erf takes a hundred times as long as all else
                elements = options.elements >> (4 if slow else 0)
                naive, alone, together = measure(name, elements, options.rounds, helpers, threads)
                print(f"| {name} | {naive:.2f} | {alone:.2f} | {together:.2f} |", flush=True)


if __name__ == "__main__":
    main()
