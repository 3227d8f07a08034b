"""Loops compiled with LLVM: what there are, what they become on any processor, and what happens without LLVM."""

import asyncio
import gc
import re
import subprocess
import sys
import threading
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llvmlite import binding

from app.contract.constants import DataType
from app.contract.validation import validate
from app.devices.cpu import rows
from app.devices.cpu.device import COMPILED, NumpyDevice, NumpyKernel
from app.devices.cpu.llvm import compiler as llvm_compiler
from app.devices.cpu.llvm import nests
from app.devices.cpu.llvm.compiler import PICKS_BYTES, Compiler, Unavailable
from app.devices.cpu.llvm.frames import start_of_frame
from app.devices.cpu.llvm.kernels import Loop, LoopCode
from app.devices.cpu.llvm.loop_calls import LoopCall, RowCall
from app.devices.cpu.llvm.lowering import lower, lower_part
from app.devices.cpu.llvm.math.functions import EXPANSIONS
from app.devices.cpu.llvm.math.primitives import kept
from app.devices.cpu.llvm.nest import FETCHED, PIECE, Access, Nest
from app.devices.cpu.llvm.nests import WHOLE
from app.devices.cpu.llvm.operations import FUNCTIONS
from app.devices.cpu.llvm.vectors import Registers
from app.devices.cpu.numpy.lowering import FUNCTIONS as NUMPY_FUNCTIONS
from app.devices.device import ExecutionRecord
from app.engine.dispatch import DispatchRequest
from app.engine.service import Service
from app.formula.expansions import EXPANSIONS as NUMPY_EXPANSIONS
from app.formula.functions import FLOAT_MAX
from app.formula.structures import Questions, Structures
from app.formula.values import (
    FLOAT32,
    FLOAT64,
    Input,
    Parameter,
    Value,
    absolute,
    cast,
    ceil,
    cos,
    erf,
    exp,
    expm1,
    floor,
    log,
    maximum,
    normal_cdf,
    power,
    rint,
    saturate,
    sin,
    tan,
    tanh,
    trunc,
    widen,
)
from app.memory.addresses import LINE
from app.memory.arrays import Array, numpy_type
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator
from app.settings import Settings
from tests.devices.test_chosen import made_of_tables
from tests.devices.test_cuda_lowering import compile_at, data_for, samples
from tests.devices.test_numpy_device import never
from tests.formula.spelled import SPELLED, ask, number
from tests.messages import CELU, CONSTANT_POW, PARAMETERIZED_RELU, request
from tests.operators.descriptors import compiled, descriptor, expression_of, output_name_of, output_of
from tests.operators.widths import narrow

COMPILER = Compiler()
LOOPS = LoopCode(COMPILER, Structures())
X = Input(FLOAT32, "X", DataType.FLOAT32)
Y = Input(FLOAT32, "Y", DataType.FLOAT32)
WIDE = Input(FLOAT64, "X", DataType.FLOAT64)

LEFT_TO_NUMPY = {"expm1"}
"""Operations that loops would compute one element at a time, as NumPy does."""


def operator_of(kind: str, elements: int, **members: Any) -> CompiledOperator:
    return compiled(descriptor(kind, {"DataType": "FLOAT32", "Sizes": [elements]}, **members))


def dispatch(device: NumpyDevice, operator: CompiledOperator, inputs: list[Array]) -> Array:
    output = np.empty(output_of(operator).elements, numpy_type(output_of(operator).DataType))
    buffers = [array.view(np.uint8).data for array in inputs]
    device.prepare(operator).dispatch(buffers, [output.view(np.uint8).data], never)
    return output


def scaled() -> list[CompiledOperator]:
    """Every operator that has a ScaleBias, with one: its functions are of float64."""
    made = []
    for kind, operator in OPERATORS.items():
        if "ScaleBias" in operator.model_fields:
            for data_type in ("FLOAT32", "FLOAT16"):
                tensor, bias = {"DataType": data_type, "Sizes": [2, 3]}, {"Scale": 0.5, "Bias": 0.25}
                made.append(compiled(descriptor(kind, tensor, ScaleBias=bias)))
    return made


def powers() -> list[CompiledOperator]:
    """By exponents of every kind that has a way of its own."""
    return [
        compiled(descriptor(CONSTANT_POW, {"DataType": data_type, "Sizes": [2, 3]}, Exponent=exponent))
        for data_type in ("FLOAT32", "FLOAT16")
        for exponent in (3, -0.5, 0.4545, 1.7, 5.3, 100.3)
    ]


def assembly_of(source: str, triple: str, processor: str, features: str = "") -> str:
    """What a module becomes on some machine."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=processor, features=features, opt=3)
    registers: dict[str, Registers] = {"sapphirerapids": "avx512", "znver4": "avx512", "x86-64-v3": "avx2"}
    return str(machine.emit_assembly(COMPILER.optimized(source, machine, registers.get(processor, ""))))


FUNCTIONS_OF_FORMS = [
    *(exp(X), tanh(X), erf(X), cast(exp(widen(X)), FLOAT32)),
    # Where powers of two are multiplied, their exponent is rounded down, by a function that a formula may call as well.
    *(exp(floor(X)), cast(exp(floor(widen(X))), FLOAT32)),
    *(log(X), sin(X), cos(X), tan(X), maximum(X, -FLOAT_MAX) * normal_cdf(widen(X))),
]


@pytest.mark.parametrize("tables", [True, False])
@pytest.mark.parametrize("stored", [DataType.FLOAT32, DataType.FLOAT16])
def test_what_processors_have_instructions_for_gives_the_same_without(
    stored: DataType, tables: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Powers of two are multiplied, what is subnormal being rounded once, and tables looked up."""
    made_of_tables(monkeypatch, tables)
    ends = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 1e-42, -3e38], np.float32)
    x = np.concatenate([np.linspace(-110, 90, 1 << 16, dtype=np.float32), np.linspace(-10, 10, 4999), ends])
    x = x.astype(np.float32)
    given: set[Registers] = {"", COMPILER.registers, "avx2" if COMPILER.registers else ""}
    for function in FUNCTIONS_OF_FORMS:
        source = nests.elements(lower(ask, function, stored), ["X"], 1, ["packed", "packed"])
        made = []
        for registers in given:
            with mock.patch.object(Compiler, "registers", registers):
                y = np.empty_like(x, numpy_type(stored))
                frame = array("q", [x.size, x.ctypes.data, 4, y.ctypes.data, y.itemsize])
                Compiler().function(source)(frame.buffer_info()[0])
                made.append(y[~np.isnan(y)].tobytes())
        assert len(set(made)) == 1


def test_forms_become_instructions() -> None:
    for function, processor, instructions, absent in [
        (exp(X), "sapphirerapids", ["vscalefps"], "vperm"),
        (exp(X), "znver4", ["vscalefps", "%zmm"], "vperm"),
        (exp(X), "x86-64-v3", ["vpslld", "%ymm"], "vround"),
        (tanh(X), "znver4", ["vperm"], "vdiv"),
        (tanh(X), "x86-64-v3", ["vdivps", "%ymm"], "vperm"),
        (erf(X), "x86-64-v3", ["vblendvps", "%ymm"], "vperm"),
        (cast(exp(widen(X)), FLOAT32), "znver4", ["vscalefpd"], "vgather"),
        (log(X), "sapphirerapids", ["vgetexpps", "vgetmantps", "vperm"], "vcmpltps"),
        (log(X), "x86-64-v3", ["vpsrad", "%ymm"], "vperm"),
    ]:
        source = nests.elements(lower(ask, function, DataType.FLOAT32), ["X"], 1, ["packed", "packed"])
        assembly = assembly_of(source, "x86_64-unknown-linux-gnu", processor)
        assert all(each in assembly for each in instructions)
        assert absent not in assembly
        assert "call" not in assembly


def test_bytes_are_picked_out_of_registers() -> None:
    source = LOOPS.look_up(1, 8).write(1, ("packed", "packed"), False)
    with mock.patch.object(COMPILER, "_features", dict(COMPILER._features) | {PICKS_BYTES: True}):
        assembly = assembly_of(source, "x86_64-unknown-linux-gnu", "znver4")
    assert "vpermt2b" in assembly or "vpermi2b" in assembly
    assert "call" not in assembly
    assert "perm" not in assembly_of(source, "x86_64-unknown-linux-gnu", "x86-64-v3")


@pytest.mark.parametrize("compiler", [COMPILER, narrow(8)], ids=["own", "narrow"])
def test_bytes_are_looked_up_alike_however_many_at_once(compiler: Compiler) -> None:
    """Vectors of 64, 32 or 16 where there are instructions for that, and one by one."""
    random = np.random.default_rng(11)
    table = random.integers(0, 256, 256, np.uint8)
    x = np.concatenate([np.arange(256, dtype=np.uint8), random.integers(0, 256, 1000, np.uint8)])
    look_up = compiler.function(LOOPS.look_up(1, 8).write(1, ("packed", "packed"), False))
    for size, start in product([*range(1, 40), 63, 64, 65, 127, 128, 129, 255, 256, 257, 1111], (0, 3)):
        y = np.full(size + 1, 7, np.uint8)
        frame = array("q", [size, x[start:].ctypes.data, 1, y.ctypes.data, 1, table.ctypes.data])
        look_up(frame.buffer_info()[0])
        assert y[:size].tobytes() == table[x[start : start + size]].tobytes()
        assert y[size] == 7


@pytest.mark.parametrize(("processor", "size"), [("x86-64-v3", 32), ("znver4", 64)])
def test_vectors_on_the_stack_do_not_lie_across_cache_lines(processor: str, size: int) -> None:
    """Of what has more numbers than there are registers."""
    source = nests.elements(lower(ask, tanh(X) * erf(X), DataType.FLOAT32), ["X"], 1, ["packed", "packed"])
    assembly = assembly_of(source, "x86_64-unknown-linux-gnu", processor)
    assert re.search(rf"andq\s+\$-{size}, %rsp", assembly)


@pytest.mark.parametrize(("stored", "bits"), [(DataType.FLOAT32, np.uint32), (DataType.FLOAT16, np.uint16)])
def test_remainders_of_floats_are_those_of_c(stored: DataType, bits: type[np.unsignedinteger[Any]]) -> None:
    """Bit for bit, of quotients of up to 277 digits too, of some that are whole or right beside it, and at the ends."""
    type_ = numpy_type(stored)
    rng = np.random.default_rng(7)
    a, b = rng.integers(0, np.iinfo(bits).max, (2, 1 << 16), bits, endpoint=True).view(type_)
    ends = np.array(
        [0, -0.0, 1, np.inf, -np.inf, np.nan, np.finfo(type_).max, np.finfo(type_).smallest_subnormal], type_
    )
    a[:64], b[:64] = np.repeat(ends, 8), np.tile(ends, 8)
    with np.errstate(all="ignore"):
        b[64:20000] = a[64:20000] / rng.integers(1, 1000, 19936).astype(type_)
        a[20000:40000] = b[20000:40000] * rng.integers(1, 1 << 11, 20000).astype(type_)
        a[25000:40000].view(bits)[:] += rng.integers(-1, 2, 15000).astype(bits)  # right beside multiples
        expected = np.fmod(a, b)
    operator = compiled(
        descriptor("DML_OPERATOR_ELEMENT_WISE_MODULUS_TRUNCATE", {"DataType": stored.value, "Sizes": [a.size]})
    )
    with ThreadPoolExecutor(1) as helpers:
        made = dispatch(NumpyDevice(helpers, 1, COMPILER, least=1), operator, [a, b])
    assert np.isnan(made).tolist() == np.isnan(expected).tolist()
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(made[known].view(bits), expected[known].view(bits))


def test_ends_that_are_ordinary_take_one_comparison_each() -> None:
    """0 does not: which of both zeros is left depends on the order."""
    for ends, comparisons in (((-1.0, 1.0), 2), ((0.0, 1.0), 3), ((-1.0, -0.0), 3)):
        tensor = {"DataType": "FLOAT32", "Sizes": [8]}
        operator = compiled(descriptor("DML_OPERATOR_ELEMENT_WISE_CLIP", tensor, Min=ends[0], Max=ends[1]))
        element = lower(Questions(operator.numbers).ask, expression_of(operator), DataType.FLOAT32)
        assert sum("fcmp" in line for line in element.body) == comparisons
        with ThreadPoolExecutor(1) as helpers:
            x = np.array([-2, 2, np.nan, 0.5, -0.5, np.inf, -np.inf, 1], np.float32)
            made = dispatch(NumpyDevice(helpers, 1, COMPILER, least=1), operator, [x])
            np.testing.assert_array_equal(made, np.clip(x, ends[0], ends[1]))


@pytest.mark.parametrize("type_", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_are_divided_as_numpy_does(type_: str) -> None:
    """All pairs of 8 bits; of more, the ends, numbers of any length, and what is right beside a multiple."""
    info, rng = np.iinfo(type_), np.random.default_rng(3)
    if info.bits == 8:
        a, b = (each.reshape(-1).astype(type_) for each in np.mgrid[info.min : info.max + 1, info.min : info.max + 1])
    else:
        ends = [info.min, info.min + 1, info.max - 1, info.max, 0, 1, 2, 3, info.max // 2, info.min // 2]
        ends += [-1, -2] if info.min else []
        lengths = rng.integers(0, info.bits, 1 << 15).astype(type_)
        a, b = rng.integers(info.min, info.max, (2, 1 << 15), type_, endpoint=True) >> lengths
        a[: 1 << 14] = b[: 1 << 14] * (a[: 1 << 14] >> info.bits // 2) + rng.integers(-1, 2, 1 << 14).astype(type_)
        a[: len(ends) ** 2], b[: len(ends) ** 2] = np.array(list(product(ends, ends)), type_).T
    with ThreadPoolExecutor(1) as helpers:
        for kind in ("DIVIDE", "MODULUS_TRUNCATE", "MODULUS_FLOOR"):
            operator = compiled(
                descriptor(f"DML_OPERATOR_ELEMENT_WISE_{kind}", {"DataType": type_.upper(), "Sizes": [a.size]})
            )
            kernel = NumpyDevice(helpers, 1, COMPILER).prepare(operator)
            assert isinstance(kernel, NumpyKernel)
            assert isinstance(kernel._form.routine, Loop)
            made, expected = (dispatch(NumpyDevice(helpers, 1, each), operator, [a, b]) for each in (COMPILER, None))
            np.testing.assert_array_equal(made, expected, kind)


@pytest.mark.parametrize("given", [DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64])
def test_floats_become_integers_as_numpy_makes_them(given: DataType) -> None:
    """The ends of each type, what is right beside them, numbers of any length, infinities and NaN."""
    type_, rng = numpy_type(given), np.random.default_rng(5)
    targets = [DataType(f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)]
    ends = np.array(
        [0, -0.0, 0.5, -0.5, np.nan, np.inf, -np.inf, *(sign * 2.0**n for n in range(66) for sign in (1, -1))]
    )
    with np.errstate(over="ignore"):
        x = np.concatenate([ends, rng.standard_normal(999) * 2.0 ** rng.integers(-2, 68, 999)]).astype(type_)
    x = np.concatenate([x, np.nextafter(x, type_.type(np.inf)), np.nextafter(x, type_.type(-np.inf))])
    with ThreadPoolExecutor(1) as helpers:
        for target in targets:
            tensors = {"InputTensor": {"DataType": given.value, "Sizes": [x.size]}}
            operator = compiled(
                {"Type": "CAST", "OutputTensor": {"DataType": target.value, "Sizes": [x.size]}} | tensors
            )
            made, expected = (dispatch(NumpyDevice(helpers, 1, each), operator, [x]) for each in (COMPILER, None))
            np.testing.assert_array_equal(made, expected, target)


@pytest.mark.parametrize(
    ("type_", "instruction"),
    [("int32", "vcvttpd2dq"), ("uint32", "vcvttpd2udq"), ("int64", "vcvttpd2qq"), ("uint64", "vcvttpd2uqq")],
)
def test_floats_become_integers_many_at_a_time(type_: str, instruction: str) -> None:
    """LLVM's own function that ends at those of the range would take them one by one."""
    element = lower(ask, saturate(X, type_), DataType(type_.upper()))
    source = nests.elements(element, ["X"], 1, ["packed", "packed"])
    assert instruction in assembly_of(source, "x86_64-unknown-linux-gnu", "sapphirerapids")


def test_halves_are_made_whole_many_at_a_time() -> None:
    """LLVM's own functions of halves would be computed one by one."""
    half = Input(FLOAT32, "X", DataType.FLOAT16)
    for function in (floor, ceil, trunc, rint):
        source = nests.elements(lower(ask, function(half), DataType.FLOAT16), ["X"], 1, ["packed", "packed"])
        assembly = assembly_of(source, "x86_64-unknown-linux-gnu", "x86-64-v3")
        assert re.search(r"vroundps\s.*ymm", assembly), function
        assert re.search(r"vcvtph2ps\s.*ymm", assembly), function


def test_every_operation_is_done_by_loops_or_left_to_numpy() -> None:
    every = set(NUMPY_FUNCTIONS) - {"clip", "floor_divide"} | set(NUMPY_EXPANSIONS)
    assert every - set(FUNCTIONS) - set(EXPANSIONS) == LEFT_TO_NUMPY
    assert set(FUNCTIONS) - every == {
        *("fused", "truncated", "signed", "scaled", "picked", "chosen", "two_to_the", "four_to_the", "lifted"),
        *("exponent_of", "fraction_of", "called_power", "bits_beyond", "picked_at", "picked_within"),
        *("exponent", "significand", "guessed_inverse_of_root"),
    }


def test_every_operator_computes_what_numpy_does() -> None:
    rng = np.random.default_rng(5)
    compiler, looped = Compiler(), 0  # with none of the loops that other tests needed
    with ThreadPoolExecutor(1) as helpers:
        devices = [NumpyDevice(helpers, 1, each, least=1) for each in (None, compiler)]
        for sample in samples():
            operator = compile_at(sample, 1 << 10)
            inputs = data_for(operator, rng, 1 << 10)
            before = compiler.kernels
            expected, actual = (dispatch(device, operator, inputs) for device in devices)
            looped += compiler.kernels > before
            told = (operator.operator.name(), operator.stored_types)
            if actual.dtype.kind != "f":
                assert np.count_nonzero(actual != expected) == 0, told
                continue
            with np.errstate(all="ignore"):
                tolerance = 2e-3 if actual.dtype.itemsize == 2 else 1e-6
                near = np.isclose(actual.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=1e-37)
            assert (near | (np.isnan(actual) & np.isnan(expected))).all(), told
    assert looped > 150


@pytest.mark.parametrize(
    ("triple", "processor", "step"),
    [
        ("x86_64-unknown-linux-gnu", "x86-64-v3", 1),
        ("x86_64-unknown-linux-gnu", "sapphirerapids", 3),
        ("aarch64-unknown-linux-gnu", "generic", 1),
    ],
)
def test_no_loop_calls_a_function(triple: str, processor: str, step: int) -> None:
    """One that is not there, such as a conversion from double to half, would end the process. Of one in so many: there
    is an instruction for all that the processors before it have one for."""
    seen = 0
    for sample in [*samples(), *scaled(), *powers()][::step]:
        stored = sample.stored_types[output_name_of(sample)]
        try:
            element = lower(Questions(sample.numbers).ask, expression_of(sample), stored)
        except LookupError:
            continue
        layout: list[Access] = ["packed"] * (len(sample.inputs) + 1)
        assembly = assembly_of(nests.elements(element, list(sample.inputs), 1, layout), triple, processor)
        known = re.findall(r"movabsq\s+\$memcpy, (%r\w+)$", assembly, re.MULTILINE)  # which there is everywhere
        called = set(re.findall(r"^\s+(?:callq?|bl)\s+(.*)$", assembly, re.MULTILINE))
        assert called <= {"memcpy", *(f"*{each}" for each in known)}, (sample.operator.name(), stored)
        seen += 1
    assert seen > 150 // step


def test_a_power_that_is_one_for_all_is_computed_before_the_loop() -> None:
    """By C's function, of which results have all digits that NumPy's have."""
    base, step = Parameter(FLOAT64, "Beta"), Input(FLOAT32, "T", DataType.FLOAT32)
    formula = cast(widen(X) * (1 - power(base, widen(step))), FLOAT32)
    element = lower(ask, formula, DataType.FLOAT32)
    source = nests.elements(element, ["X", "T"], 1, ["packed", "same", "packed"])
    assembly = assembly_of(source, "x86_64-unknown-linux-gnu", "x86-64-v3")
    assert len(re.findall(r"\bpow\b", assembly)) == 1
    assert "vmulpd" in assembly
    x = np.linspace(-3, 3, COMPILED, dtype=np.float32)
    loop = Loop(ask, formula, ["X", "T"], DataType.FLOAT32, LOOPS)
    for beta, count in ((0.9, 3.0), (np.float32(0.9999999), 1.0), (0.5, 1000.0), (0.0, 0.0), (1.0, np.inf)):
        made, steps = np.empty_like(x), np.full_like(x, count)
        loop.run(loop.arguments({"Beta": float(beta)}), [x, steps], made, ())
        expected = (x.astype(np.float64) * (1 - np.power(np.float64(beta), np.float64(count)))).astype(np.float32)
        np.testing.assert_array_equal(made, expected)


def test_loops_take_many_elements_at_a_time() -> None:
    operator = operator_of(CELU, 1)
    element = lower(Questions(operator.numbers).ask, expression_of(operator), DataType.FLOAT32)
    assembly = assembly_of(
        nests.elements(element, list(element.inputs), 1, ["packed", "packed"]), "x86_64-linux", "x86-64-v3"
    )
    assert re.search(r"vfmadd\w+ps\s.*%ymm", assembly)


@pytest.mark.parametrize(("count", "vectors"), [(1, 4), (5, 4), (20, 2)])
def test_a_long_formula_takes_fewer_vectors_side_by_side(count: int, vectors: int) -> None:
    """Than operators' do: each is a copy of it for the compiler."""
    x: Value = Input(FLOAT32, "X", DataType.FLOAT32)
    for _ in range(count):
        x = tanh(x)
    nest = Nest([lower(ask, x, DataType.FLOAT32)], ["X"], 1, ["packed", "packed"])
    assert f'!"llvm.loop.interleave.count", i32 {vectors}}}' in nest.module()


@pytest.mark.parametrize(
    ("kind", "attribute", "values"), [(CELU, "Alpha", (0.25, 0.5)), (CONSTANT_POW, "Exponent", (1.7, 2.2))]
)
def test_attributes_are_arguments(kind: str, attribute: str, values: tuple[float, float]) -> None:
    sources = set()
    for value in values:
        operator = operator_of(kind, 1, **{attribute: value})
        element = lower(Questions(operator.numbers).ask, expression_of(operator), DataType.FLOAT32)
        sources.add(nests.elements(element, list(operator.inputs), 1, ["packed"] * 2))
    assert len(sources) == 1


@pytest.mark.parametrize("length", [1, 7, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("layout", ["packed", "spaced", "one for all", "in place"])
def test_what_is_kept_is_of_the_same_elements(length: int, rows: int, layout: str) -> None:
    formula = kept(X * Y) - kept(X - 1) * Y * number(2)
    x, y = np.random.default_rng(3).standard_normal((2, rows, length * 2), np.float32)
    x, y = (x[:, ::2], y[:, 1::2]) if layout == "spaced" else (x[:, :length].copy(), y[:, :length].copy())
    if layout == "one for all":
        x = x[:, :1]
    expected = x * y - (x - 1) * y * 2
    output = x if layout == "in place" else np.empty((rows, length * 3), np.float32)[:, ::3]
    loop = Loop(ask, formula, ["X", "Y"], DataType.FLOAT32, LOOPS)
    loop.run(loop.arguments(SPELLED), [x, y], output, ())
    np.testing.assert_allclose(output, expected, 1e-5, 1e-5)


def long_formula(x: Value, y: Value) -> Value:
    """Of more instructions than any operator's."""
    made = x
    for _ in range(70):
        made = absolute(made * y - x)
    return made


@pytest.mark.parametrize("length", [1, WHOLE - 1, WHOLE, WHOLE + 1, 3 * WHOLE + 5])
@pytest.mark.parametrize("layout", ["packed", "rows", "spaced", "one for all", "in place"])
@pytest.mark.parametrize("data_type", [DataType.FLOAT32, DataType.INT8, DataType.UINT64])
def test_long_formulas_are_the_same_to_the_last_element(data_type: DataType, length: int, layout: str) -> None:
    dtype = numpy_type(data_type)
    x, y = (np.random.default_rng(3).standard_normal((2, 3, length * 2)) * 9).astype(np.int8).astype(dtype)
    x, y = (x[:, ::2], y[:, 1::2]) if layout == "spaced" else (x[:, :length].copy(), y[:, :length].copy())
    if layout == "one for all":
        y = y[:, :1]
    with np.errstate(all="ignore"):
        expected = x
        for _ in range(70):
            expected = abs(expected * y - x)
    memory = np.full((3, length + 1), 99, dtype)
    output = x if layout == "in place" else memory[:, :-1] if layout == "rows" else np.empty_like(expected)
    formula = long_formula(*(Input(dtype.name, name, data_type) for name in "XY"))
    loop = Loop(ask, formula, ["X", "Y"], data_type, LOOPS)
    loop.run(loop.arguments(SPELLED), [x, y], output, ())
    np.testing.assert_array_equal(output, expected)
    assert (memory[:, -1] == 99).all()


def test_long_formulas_are_compiled_once() -> None:
    """Without a loop for what is left over, and another one for what that leaves."""
    element = lower(ask, long_formula(X, Y), DataType.FLOAT32)
    source = nests.elements(element, ["X", "Y"], 1, ["packed"] * 3)
    made = assembly_of(source, "x86_64-linux", "x86-64-v3")
    assert len(re.findall(r"vmulps", made)) == 2 * 70  # vectors side by side
    assert "vmulss" not in made


@pytest.mark.parametrize("offset", [0, 4, 60])
def test_all_but_a_rows_ends_goes_past_the_cache(offset: int) -> None:
    """What ends have is found by leaving out what stores it."""
    element = lower(ask, absolute(X), DataType.FLOAT32)
    lines = nests.elements(element, ["X"], 1, ["packed", "packed"], True).splitlines()
    kept = [each for each in lines if not re.search(r"store <16 x i32> .*, align 1$", each)]
    assert len(kept) < len(lines)
    code = COMPILER.function("\n".join(kept))
    piece = nests.STREAMED_PIECE
    x = np.ones(5 * piece + 3, np.float32)
    memory = np.zeros(x.nbytes + 2 * LINE, np.uint8)
    start = -memory.ctypes.data % LINE + offset
    frame, (given, taken) = start_of_frame([x.size], [[4], [4]])
    frame[given], frame[taken] = x.ctypes.data, memory.ctypes.data + start
    code(frame.buffer_info()[0])
    made = memory[start : start + x.nbytes].view(np.float32)
    first = -(start + memory.ctypes.data) % LINE // 4
    last = x.size - (x.size - first) % piece
    np.testing.assert_array_equal(np.flatnonzero(made), np.arange(first, last))


def test_what_goes_past_the_cache_is_computed_in_registers() -> None:
    """It is not stored first somewhere else."""
    element = lower(ask, X + Y, DataType.FLOAT32)
    source = nests.elements(element, ["X", "Y"], 1, ["packed"] * 3, True)
    made = assembly_of(source, "x86_64-linux", "x86-64-v4")
    past = re.findall(r"vmovntps\s+%([yz])mm", made)
    assert sum(64 if each == "z" else 32 for each in past) == 4 * nests.STREAMED_PIECE
    assert not re.search(r"vmov\w+\s.*%rsp", made)


@pytest.mark.parametrize(("layout", "inputs"), [("packed", 2), ("same", 1), ("strided", 1)])
def test_what_goes_past_the_cache_is_read_ahead(layout: Access, inputs: int) -> None:
    """Before it is computed, if its elements lie one after the other: each line once."""
    element = lower(ask, X + Y, DataType.FLOAT32)
    source = nests.elements(element, ["X", "Y"], 1, [layout, "packed", "packed"], True)
    assert source.count("call void @llvm.prefetch") == inputs * 4 * nests.STREAMED_PIECE // LINE
    assert f"i64 {FETCHED}\n" in source
    assert "prefetch" in assembly_of(source, "x86_64-linux", "x86-64-v3")
    assert "prefetch" not in nests.elements(element, ["X", "Y"], 1, [layout, "packed", "packed"])


def test_a_part_keeps_nothing() -> None:
    """What comes before it in a row is kept already."""
    assert lower(ask, kept(X) + 1, DataType.FLOAT32).kept
    assert not lower_part(ask, kept(X) + 1, DataType.FLOAT32, "part").kept


@given(st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=50))
def test_a_double_is_rounded_to_a_half_once(values: list[float]) -> None:
    """By way of a float it would be rounded twice: what lies just beside a tie would become one."""
    with np.errstate(over="ignore"):
        halves = np.array(values, np.float16)
        halves = halves[np.isfinite(halves)].astype(np.float64)
        above = np.nextafter(halves.astype(np.float16), np.float16(np.inf)).astype(np.float64)
        ties = (halves + np.where(np.isfinite(above), above, halves)) / 2
        beside = [np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf)]
        x = np.concatenate([halves, ties, *beside, [np.inf, -1e9, np.nan]])
        expected = x.astype(np.float16)
    output = np.empty(x.shape, np.float16)
    loop = Loop(ask, WIDE * number(1, FLOAT64), ["X"], DataType.FLOAT16, LOOPS)
    loop.run(loop.arguments(SPELLED), [x], output, ())
    np.testing.assert_array_equal(output, expected)


def repeating_slopes() -> CompiledOperator:
    """One slope for each of 40 rows, and gaps between the rows of the output."""
    tensor = {"DataType": "FLOAT32", "Sizes": [40, 30]}
    return compiled(
        descriptor(
            PARAMETERIZED_RELU,
            tensor,
            SlopeTensor=tensor | {"Strides": [1, 0]},
            OutputTensor=tensor | {"Strides": [32, 1]},
        )
    )


def test_dispatches_of_one_block_make_no_arrays() -> None:
    """They compute the same from any memory: read-only, not aligned, longer than need be, but not shorter."""
    rng = np.random.default_rng(6)
    with (
        ThreadPoolExecutor(1) as helpers,
        mock.patch.object(Loop, "run", autospec=True, side_effect=Loop.run) as run,
        mock.patch.object(LoopCall, "__call__", autospec=True, side_effect=LoopCall.__call__) as call,
    ):
        device = NumpyDevice(helpers, 1, COMPILER, least=1)
        for operator in [*(compile_at(sample, 100) for sample in samples()), repeating_slopes()]:
            inputs = [bytes(array) for array in data_for(operator, rng, output_of(operator).elements)]
            size = output_of(operator).total_bytes
            kernel = device.prepare(operator)
            first, second = bytearray(size), bytearray(size + 2)
            kernel.dispatch([memoryview(bytearray(each)) for each in inputs], [memoryview(first)], never)
            shifted = [memoryview(b"?" + each)[1:] for each in inputs]
            kernel.dispatch(shifted, [memoryview(second)[1:]], never)
            assert first == second[1:-1]
            for number in range(len(shifted) + 1):
                buffers = [*shifted, memoryview(second)[:size]]
                buffers[number] = buffers[number][:1]
                with pytest.raises((TypeError, ValueError)):
                    kernel.dispatch(buffers[:-1], [buffers[-1]], never)
    assert call.call_count > 2 * 150
    assert not run.call_count


def test_what_loops_are_no_good_at_is_left_to_numpy() -> None:
    for formula in (expm1(X), cast(sin(widen(X)), FLOAT32)):
        with pytest.raises(LookupError):
            Loop(ask, formula, ["X"], DataType.FLOAT32, LOOPS)
    with ThreadPoolExecutor(1) as helpers:
        x = np.linspace(-3, 3, COMPILED, dtype=np.float32)
        scaled = {"ScaleBias": {"Scale": 0.5, "Bias": 0.25}}
        operator = operator_of("DML_OPERATOR_ELEMENT_WISE_SIN", COMPILED, **scaled)
        made = dispatch(NumpyDevice(helpers, 1, COMPILER), operator, [x])
        np.testing.assert_array_equal(made, dispatch(NumpyDevice(helpers, 1), operator, [x]))


OVER_AXES: list[tuple[str, dict[str, Any]]] = [
    *((f"DML_OPERATOR_ACTIVATION_{name}1", {}) for name in ("SOFTMAX", "LOG_SOFTMAX", "HARDMAX")),
    ("DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1", {"NormalizeVariance": True}),
]
over_axes = pytest.mark.parametrize(("kind", "more"), OVER_AXES)


def over(kind: str, more: dict[str, Any], sizes: Sequence[int], axes: Sequence[int], **desc: Any) -> CompiledOperator:
    tensor = {"DataType": "FLOAT32", "Sizes": [*sizes]}
    return compiled(
        {"Type": kind, "InputTensor": tensor | desc, "OutputTensor": tensor | desc, "Axes": [*axes], **more}
    )


@over_axes
@pytest.mark.parametrize(
    ("sizes", "axes"),
    [
        *(([130, width], [1]) for width in (1, 2, 63, 64, 65)),
        *(([2, width, 130], [1]) for width in (20, 63, 64, 100)),
        *(([3, 100, few], [1]) for few in (7, 15, 16, 17)),
        *(([2, 20, lanes], [1]) for lanes in (1, 63, 64, 65)),
        *(([3, width, 9], [1]) for width in (199, 200, 201)),
        ([70, 2, 3, 5], [3, 1]),
        ([5, 70, 3, 4], [0, 2, 3]),
        ([8, 5, 9], [0, 2]),
        ([17, 3, 2, 5, 40], [0, 2, 4]),
        ([5, 7], [0, 1]),
    ],
)
def test_groups_go_through_all_stages_at_once(
    kind: str, more: dict[str, Any], sizes: list[int], axes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stage of theirs is NumPy's, however they lie."""
    monkeypatch.setattr(rows, "LONGEST", 200)
    operator = over(kind, more, sizes, axes)
    x = np.random.default_rng(2).standard_normal(sizes, np.float32)
    with (
        ThreadPoolExecutor(2) as helpers,
        mock.patch.object(RowCall, "__call__", autospec=True, side_effect=RowCall.__call__) as call,
    ):
        actual = dispatch(NumpyDevice(helpers, 2, COMPILER, 1), operator, [x.reshape(-1)])
        expected = dispatch(NumpyDevice(helpers, 1), operator, [x.reshape(-1)])
    assert call.call_count
    np.testing.assert_allclose(actual, expected, 1e-6, 1e-6)


@over_axes
@pytest.mark.parametrize("width", [5, 20, 63])
def test_a_short_groups_bits_are_the_same_wherever_it_lies(kind: str, more: dict[str, Any], width: int) -> None:
    """How many others there are, how they are apart, and how many threads share them, says nothing of them."""
    x = (np.random.default_rng(3).standard_normal((300, width)) * 5).astype(np.float32)
    x[7, 3], x[9, 2] = np.nan, np.inf
    with ThreadPoolExecutor(3) as helpers:
        one, many = (NumpyDevice(helpers, threads, COMPILER, 1) for threads in (1, 3))
        expected = dispatch(many, over(kind, more, x.shape, [1]), [x.reshape(-1)]).view(np.uint32).reshape(x.shape)
        for count in (1, 17, 64, 131):
            own = x[:count]
            turned = own.T.copy().reshape(-1)
            for made in (
                dispatch(one, over(kind, more, own.shape, [1]), [own.reshape(-1)]).reshape(own.shape),
                dispatch(many, over(kind, more, own.T.shape, [0]), [turned]).reshape(own.T.shape).T,
                dispatch(one, over(kind, more, own.shape, [1], Strides=[1, count]), [turned]).reshape(own.T.shape).T,
            ):
                np.testing.assert_array_equal(made.view(np.uint32), expected[:count])


@over_axes
@pytest.mark.parametrize("count", [1, 7, 15])
def test_a_long_groups_bits_are_the_same_gathered(kind: str, more: dict[str, Any], count: int) -> None:
    """Whether its elements lie one after the other, apart, or along two dimensions with other groups between them."""
    x = (np.random.default_rng(4).standard_normal((count, 6, 50)) * 5).astype(np.float32)
    x[0, 3, 7] = np.nan
    with ThreadPoolExecutor(2) as helpers:
        device = NumpyDevice(helpers, 2, COMPILER, 1)
        expected = dispatch(device, over(kind, more, [count, 300], [1]), [x.reshape(-1)]).reshape(x.shape)
        turned = x.reshape(count, 300).T.copy().reshape(-1)
        apart = dispatch(device, over(kind, more, [300, count], [0]), [turned]).reshape(300, count).T
        between = x.transpose(1, 0, 2).copy()
        made = dispatch(device, over(kind, more, between.shape, [0, 2]), [between.reshape(-1)]).reshape(between.shape)
    np.testing.assert_array_equal(apart.reshape(x.shape).view(np.uint32), expected.view(np.uint32))
    np.testing.assert_array_equal(made.transpose(1, 0, 2).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("most", [7, 1 << 20])
def test_the_first_of_the_largest_is_found_piece_by_piece(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each piece 32 bits say where; a NaN is the largest."""
    monkeypatch.setattr(nests, "_NOWHERE_NEAR", most)
    rng = np.random.default_rng(8)
    x = rng.integers(0, 9, (300, 75)).astype(np.float32)
    x[::3][rng.random((100, 75)) < 0.02] = np.nan
    x[1] = -np.inf
    operator = compiled(descriptor("DML_OPERATOR_ACTIVATION_HARDMAX", {"DataType": "FLOAT32", "Sizes": [300, 75]}))
    with ThreadPoolExecutor(1) as helpers:
        made = dispatch(NumpyDevice(helpers, 1, COMPILER), operator, [x.reshape(-1)])
    np.testing.assert_array_equal(made.reshape(x.shape), np.arange(75) == x.argmax(1, keepdims=True))


def test_kernels_are_compiled_once_and_kept() -> None:
    compiler = Compiler()
    with ThreadPoolExecutor(8) as threads, ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 1, compiler)
        before = device.info().kernels_cached or 0
        x = np.ones(COMPILED, np.float32)
        with mock.patch.object(Compiler, "_compile", autospec=True, side_effect=Compiler._compile) as compile_:
            list(
                threads.map(lambda alpha: dispatch(device, operator_of(CELU, COMPILED, Alpha=alpha), [x]), range(2, 30))
            )
        assert compile_.call_count == 1
        assert device.info().kernels_cached == before + 1


def test_few_kernels_are_kept_and_those_in_use_live_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm_compiler, "KEPT", 2)
    compiler = Compiler()
    code = LoopCode(compiler, Structures())
    loops = [Loop(ask, X + each, ["X"], DataType.FLOAT32, code) for each in range(5)]
    x = np.arange(8, dtype=np.float32)
    for _ in range(2):
        for each, loop in enumerate(loops):
            output = np.empty_like(x)
            loop.run(loop.arguments({}), [x], output, ())
            gc.collect()
            assert (output == x + each).all()
        assert compiler.kernels == 2


MANY = """
import sys
from app.devices.cpu.llvm import compiler
compiler.KEPT = int(sys.argv[1])
compiler, sizes = compiler.Compiler(), []
for number in range(80):
    compiler.function(f"define void @kernel(ptr %frame) {{\\nstore i64 {number}, ptr %frame\\nret void\\n}}")
    sizes.append(int(open("/proc/self/statm").read().split()[1]))
print((sizes[-1] - sizes[19]) * 4 // 60)
"""
"""KiB that each of 60 loops takes, of which so many are kept."""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(("kept", "most"), [(80, 60), (8, 8)])
def test_what_is_kept_of_a_kernel_is_its_code(kept: int, most: int) -> None:
    """And not what it took to generate it, which is 800 KiB, nor llvmlite's passes, 35 KiB for the least of loops."""
    done = subprocess.run([sys.executable, "-c", MANY, str(kept)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < most


def test_small_outputs_are_left_to_numpy() -> None:
    compiler = Compiler()
    with ThreadPoolExecutor(1) as helpers:
        device, before = NumpyDevice(helpers, 1, compiler), compiler.kernels
        dispatch(device, operator_of(CELU, COMPILED - 1), [np.ones(COMPILED - 1, np.float32)])
        assert compiler.kernels == before


# Without LLVM


def test_without_llvmlite_numpy_computes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with pytest.raises(Unavailable, match="llvmlite cannot be loaded"):
        Compiler()
    with caplog.at_level("INFO", "app"):
        service = Service(Settings(threads=1))
    service.close()
    assert "NumPy computes all that the CPU does: llvmlite cannot be loaded" in caplog.text
    assert "LLVM" not in service.devices["numpy"].info().description


def test_a_processor_that_lacks_something_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(llvm_compiler.NEEDED, "some", ("avx2", "telepathy"))
    monkeypatch.setattr("platform.machine", lambda: "some")
    with pytest.raises(Unavailable, match=r"^the processor lacks .*telepathy$"):
        Compiler()


HARDENED = """
import ctypes
import sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, of Linux 6.3
    sys.exit(77)
from app.devices.cpu.llvm.compiler import PICKS_BYTES, Compiler, Unavailable
try:
    Compiler()
except Unavailable as reason:
    print(reason)
"""


def test_where_written_memory_may_not_be_executed_that_is_told() -> None:
    """As under systemd's MemoryDenyWriteExecute; LLVM would end the process there."""
    done = subprocess.run([sys.executable, "-c", HARDENED], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this system cannot forbid it")
    assert (done.stdout, done.returncode) == ("this process may not execute memory that it has written\n", 0)


def test_a_compiler_that_fails_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compiler, "_compile", mock.Mock(side_effect=RuntimeError("no memory may be executed")))
    with pytest.raises(Unavailable, match="LLVM does not compile: no memory may be executed"):
        Compiler()


def test_code_that_calls_what_is_not_there_is_not_run() -> None:
    """It would end the process."""
    source = (
        "declare double @{0}(double)\ndefine void @kernel(ptr %0) {{\n%2 = call double @{0}(double 0.0)\nret void\n}}"
    )
    compiler = Compiler()
    with pytest.raises(RuntimeError, match="calls nowhere_to_be_found, which is not there"):
        compiler.function(source.format("nowhere_to_be_found"))
    compiler.function(source.format("cbrt"))(0)


def test_the_setting_does_without() -> None:
    services = [Service(Settings(threads=1, llvm=llvm)) for llvm in (True, False)]
    descriptions = [service.devices["numpy"].info().description for service in services]
    for service in services:
        service.close()
    assert ["LLVM" in each for each in descriptions] == [True, False]


# On the event loop


def test_nothing_is_compiled_on_the_event_loop() -> None:
    """Others would wait for it, too. Once there is the kernel, a small dispatch is computed there."""
    ran: list[threading.Thread] = []
    service = Service(Settings(threads=1))
    service.open()

    async def main() -> None:
        stated = validate(DispatchRequest, request(CELU, {"InputTensor": np.ones(COMPILED, np.float32)}))
        data = {"InputTensor": np.ones(COMPILED, np.float32).view(np.uint8).data}
        prepared = await service.prepare(stated)
        dispatch = prepared.kernel.dispatch

        def noted(*given: Any) -> ExecutionRecord:
            ran.append(threading.current_thread())
            return dispatch(*given)

        with service.memory.open() as memory, mock.patch.object(prepared.kernel, "dispatch", noted):
            for _ in range(2):
                await service.execute(prepared, data, memory)

    asyncio.run(main())
    service.close()
    assert [thread is threading.main_thread() for thread in ran] == [False, True]
