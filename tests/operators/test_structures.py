"""Formulas see neither FLOAT attributes nor sizes; what they ask for is all that what is built depends on."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pytest

from app.contract.constants import NEWEST, DataType
from app.contract.validation import validate
from app.contract.violations import ContractError
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cuda import kernels
from app.devices.cuda.kernels import CudaKernel
from app.engine.capabilities import example
from app.formula.structures import Questions, Structures
from app.memory.arrays import Array, numpy_type
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.fusion import FUSABLE
from app.operators.operator import Operator, Role
from app.operators.parameters import bare, fields_of
from app.operators.structure import Structure

TYPES = (DataType.FLOAT32, DataType.FLOAT16, DataType.INT32, DataType.UINT8, DataType.INT64)


def beside(number: float) -> list[float]:
    """A number and its neighbours in float32."""
    single = np.float32(number)
    return [float(each) for each in (single, np.nextafter(single, np.float32(9e9)), np.nextafter(single, -single))]


THRESHOLDS = [
    0,
    1,
    -1,
    2,
    -2,
    0.5,
    -0.5,
    1.25,
    2.5,
    3,
    16,
    64,
    1e-37,
    2.0**60,
    2.0**-60,
    0.3,
    -0.7,
    1.7,
    10.1,
    100.5,
    -9,
]
NUMBERS = [each for threshold in THRESHOLDS for each in beside(threshold)]
"""Right at, above and below what formulas and lowerings ask for, and between."""


def changed(operator: type[Operator], rng: random.Random, data_type: DataType) -> dict[str, Any]:
    """Random attributes."""
    made: dict[str, Any] = {}
    whole = data_type.value[0] in "UI"
    for name in fields_of(operator).numbers:
        made[name] = rng.random() if name in ("Beta1", "Beta2") else rng.choice(NUMBERS)
        if "MinMaxDataType" in operator.model_fields:
            made[name] = rng.randint(0, 100) if whole else made[name]
    if "ScaleBias" in operator.model_fields and rng.random() < 0.5:
        made["ScaleBias"] = {"Scale": rng.choice(NUMBERS), "Bias": rng.choice(NUMBERS)}
    if "FusedActivation" in operator.model_fields and rng.random() < 0.8:
        fused = rng.choice(FUSABLE)
        numbers = {name: rng.choice(NUMBERS) for name in fused.attribute_names()}
        made["FusedActivation"] = {"Type": fused.name()} | numbers
    return made


def laid_out(desc: dict[str, Any], leading: list[int], sizes: list[int], rng: random.Random) -> dict[str, Any]:
    """The tensor in these sizes: packed, with gaps, or turned."""
    rows, columns = sizes
    strides = rng.choice([None, None, [columns + 3, 1], [2 * columns, 2], [1, rows]])
    return desc | {"Sizes": [*leading, *sizes]} | ({"Strides": [0] * len(leading) + strides} if strides else {})


def descriptors(operator: type[Operator], rng: random.Random, count: int) -> Iterator[CompiledOperator]:
    """Random ones, as far as they are right, each compiled by itself."""
    document = example(operator)["operator"]
    if operator.by_coordinates or operator.call:  # whose sizes and attributes go together
        yield compile_operator(validate(operator, document), NEWEST)
        return
    for _ in range(count):
        data_type = rng.choice(TYPES)
        sizes = [rng.choice([1, 3, 4]), rng.choice([5, 40, 64])]
        least = operator.support.rows[-1].ranks[0]
        leading = [1] * (least - 2)
        typed = document | changed(operator, rng, data_type)
        for name in operator.tensor_names(Role.INPUT):
            typed[name] = typed[name] | ({"DataType": data_type} if operator.same_types is None else {})
            one = name in operator.one_element
            typed[name] = (
                typed[name] | {"Sizes": [1] * max(least, 2)} if one else laid_out(typed[name], leading, sizes, rng)
            )
        for name in operator.tensor_names(Role.OUTPUT):
            if name in typed:
                typed[name] = typed[name] | {"Sizes": [*leading, *sizes]}
        if "MinMaxDataType" in typed:
            typed["MinMaxDataType"] = data_type
        if "Axes" in typed:
            typed["Axes"] = [rng.randint(0, 1)]
        try:
            yield compile_operator(validate(operator, typed), NEWEST)
        except ContractError:
            continue


def has_numbers(operator: type[Operator]) -> bool:
    """Whether there is anything to ask of its requests."""
    fields = fields_of(operator)
    return bool(fields.numbers or fields.parts)


FORMULAS = [each for each in OPERATORS.values() if not each.call]
"""Calls read their descriptors."""

EACH = pytest.mark.parametrize("operator", FORMULAS, ids=lambda each: each.short_name())


@EACH
def test_a_formula_sees_neither_numbers_nor_sizes(operator: type[Operator]) -> None:
    """It is called with what raises AttributeError if it looks."""
    rng = random.Random(operator.name())
    seen = 0
    for compiled in descriptors(operator, rng, 12):
        structure = Structure.of(compiled.operator, compiled.inputs | compiled.outputs)
        program = structure.program(Questions(compiled.numbers))
        assert program.maps or program.call
        seen += 1
        if program.call:
            continue  # which reads the descriptor itself
        hidden = structure._skeleton()
        for name in fields_of(operator).numbers:
            with pytest.raises(AttributeError):
                getattr(hidden, name)
        for name in compiled.inputs:
            with pytest.raises(AttributeError):
                getattr(hidden, name).Sizes  # noqa: B018 - to be looked at is all that it is for
    assert seen


def test_a_formula_that_looks_at_a_number_fails() -> None:
    """Also inside a fused activation, and for a number that has a default."""
    for operator in (*FUSABLE, *OPERATORS.values()):
        for name in fields_of(operator).numbers:
            with pytest.raises(AttributeError):
                getattr(bare(operator), name)


class _Launch:
    """A kernel that would be launched: its source, and its arguments."""

    def __init__(self, device: Any, form: Any, tensors: int, arguments: list[Any]) -> None:
        self.source = (form.source, form.per_block, form.threads, tensors)
        self.arguments = [np.asarray(argument).tobytes() for argument in arguments]


class _Gpu:
    """What a CudaKernel needs to write its source."""

    clustered = 132

    def __init__(self, structures: Structures) -> None:
        self.structures = structures


def cuda_of(compiled: CompiledOperator, structures: Structures, output: str, *, aligned: bool) -> _Launch:
    gpu: Any = _Gpu(structures)
    made: Any = CudaKernel(compiled, output, gpu).launch(aligned=aligned)
    assert isinstance(made, _Launch)
    return made


def tensors_for(compiled: CompiledOperator, rng: np.random.Generator) -> list[Array]:
    made = []
    for name, desc in compiled.inputs.items():
        dtype = numpy_type(compiled.stored_types[name])
        with np.errstate(all="ignore"):
            made.append((rng.standard_normal(desc.reach) * 3).astype(dtype))
    return made


def outcome(device: NumpyDevice, compiled: CompiledOperator, inputs: list[Array]) -> bytes:
    outputs = [np.zeros(desc.reach, numpy_type(desc.DataType)) for desc in compiled.outputs.values()]
    buffers = [each.view(np.uint8).data for each in inputs]
    device.prepare(compiled).dispatch(buffers, [each.view(np.uint8).data for each in outputs], lambda: False)
    return b"".join(each.tobytes() for each in outputs)


SHARED = Structures()
COMPILER = Compiler()


@EACH
def test_what_is_found_is_what_would_be_built(operator: type[Operator]) -> None:
    """The program, the loops and the kernel of any descriptor are those that are made of it alone: the same sources,
    arguments and results, whatever was built before for others."""
    rng, arrays = random.Random(operator.name()), np.random.default_rng(7)
    sources: list[str] = []
    called = Compiler.function

    def function(self: Compiler, source: str) -> Any:
        sources.append(source)
        return called(self, source)

    with (
        ThreadPoolExecutor(1) as helpers,
        mock.patch.object(kernels, "Launch", _Launch),
        mock.patch.object(Compiler, "function", function),
    ):
        known = [NumpyDevice(helpers, 1, compiler, least=1, structures=SHARED) for compiler in (None, COMPILER)]
        for alone in descriptors(operator, rng, 12 if has_numbers(operator) else 4):
            found = compile_operator(alone.operator, NEWEST, SHARED)
            inputs = tensors_for(alone, arrays)
            for device in known:
                fresh = NumpyDevice(helpers, 1, device._compiler, least=1)
                sources.clear()
                expected = outcome(fresh, alone, inputs)
                written = [*sources]
                sources.clear()
                assert outcome(device, found, inputs) == expected
                assert sources == written
            by_position = alone.program.is_by_position  # other operators have no kernel of this kind
            for aligned, output in product((True, False), alone.outputs if by_position else ()):
                one = cuda_of(alone, Structures(), output, aligned=aligned)
                other = cuda_of(found, SHARED, output, aligned=aligned)
                assert one.source == other.source
                assert one.arguments == other.arguments


def test_loops_of_one_structure_are_one() -> None:
    """Whatever the sizes and the numbers are."""
    structures = Structures()
    kind = OPERATORS["DML_OPERATOR_ACTIVATION_HARD_SIGMOID"]
    with ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 1, Compiler(), least=1, structures=structures)
        for number in range(1, 30):
            tensor = {"DataType": "FLOAT32", "Sizes": [1 + number % 3, 40 + number]}
            document = {"Type": kind.name(), "InputTensor": tensor, "Alpha": number / 7, "Beta": number / 70}
            made = compile_operator(validate(kind, document), NEWEST, structures)
            kernel = device.prepare(made)
            assert kernel.runs_inline == (number > 1)
            outcome(device, made, [np.ones(made.elements, np.float32)])
    assert structures.misses == 3  # the program, its loops, and their source
