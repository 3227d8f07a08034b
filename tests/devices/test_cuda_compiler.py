"""Kernels under NVRTC, which needs no GPU, and the cache of what it makes."""

import json
import os
import random
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.contract.constants import NEWEST, DataType
from app.contract.validation import validate
from app.contract.violations import ContractError
from app.devices.binaries import Binaries
from app.devices.cuda import compiler as cuda_compiler
from app.devices.cuda.compiler import OPTIONS, WRITTEN, CompilationError, KernelCache, compile_source
from app.devices.cuda.grids import TOGETHER, render
from app.devices.cuda.groups import Rows
from app.devices.cuda.layouts import Access, Layout, choose_layout
from app.devices.cuda.lowering import LONG, MOST_FUNCTIONS, is_long, lower
from app.devices.cuda.places import Coordinates
from app.devices.cuda.rows import RowLowering
from app.devices.cuda.splits import Splits
from app.devices.placement import samples
from app.engine.capabilities import example
from app.formula.structures import Questions, Structures
from app.formula.values import Operation, parts
from app.graphs.schedule import schedule
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator, compile_operator
from app.programs.dispatchable import Dispatchable
from tests.devices.cuda_on_cpu import arithmetic_of, coordinate_source, split_sources
from tests.devices.test_cuda_lowering import samples as all_samples
from tests.graphs.documents import between, graph, into, node, out, resolved, tensor
from tests.graphs.random_graphs import Drawer
from tests.graphs.test_depth import chain
from tests.operators.descriptors import compiled, descriptor, output_name_of, output_of
from tests.operators.numerics.cases import UNARY, Case

try:
    MINIMAL = ["-minimal"] * (cuda_compiler.nvrtc_version() >= (12, 4))
    from cupy_backends.cuda.libs import nvrtc
except Exception as error:
    pytest.skip(f"there is no NVRTC: {error}", allow_module_level=True)

EXHAUSTIVE = os.environ.get("DMLSERVE_EXHAUSTIVE") == "1"


def layouts(operator: CompiledOperator) -> dict[str, Layout]:
    """One of each class."""
    sizes = [data_type.bytes for data_type in operator.element_types(output_name_of(operator))]
    count = len(sizes)
    packed = choose_layout([1 << 10], [[1]] * count, sizes, aligned=True)
    assert packed.width > 1
    repeated = [[64, 0]] * (count - 1)
    return {
        "packed": packed,
        "unaligned": choose_layout([1 << 10], [[1]] * count, sizes, aligned=False),
        "rows": choose_layout([16, 64], [*[[128, 1]] * (count - 1), [256, 1]], sizes, aligned=True),
        "repeated": choose_layout([16, 64], [*repeated, [64, 1]], sizes, aligned=True),
        "turned": choose_layout([400, 500], [*[[1, 400]] * (count - 1), [500, 1]], sizes, aligned=True),
        "strided": choose_layout([4, 5, 6, 7], [[3, 500, 1, 100]] * count, sizes, aligned=True),
        "eight": replace(packed, rank=8, width=1, steps=(Access.ANY,) * count),
    }


@pytest.mark.parametrize(
    "operator", samples(), ids=lambda each: f"{each.operator.short_name()} {output_of(each).DataType}"
)
def test_kernels_of_the_four_operators_compile(operator: CompiledOperator) -> None:
    """In every data type and layout class, for Ampere and for Hopper."""
    kinds = layouts(operator)
    assert len(set(kinds.values())) == len(kinds)
    for number, (name, layout) in enumerate(kinds.items()):
        # Both architectures for the packed class; the others take turns, unless all is asked for.
        wanted = (80, 90) if EXHAUSTIVE or name == "packed" else (80 + 10 * (number % 2),)
        for architecture in wanted:
            assert compile_source(render(arithmetic_of(operator), layout), architecture).startswith(b"\x7fELF")


@cache
def assembly_of(source: str, *, whole: bool) -> str:
    """PTX, from which on instructions keep their types; if `whole`, the binary has been made of it, too."""
    program = nvrtc.createProgram(source, "dmlserve.cu", [], [])
    try:
        nvrtc.compileProgram(program, (*OPTIONS, *MINIMAL, "-arch=sm_90" if whole else "-arch=compute_90"))
        assert not whole or bytes(nvrtc.getCUBIN(program)).startswith(b"\x7fELF")
        return str(nvrtc.getPTX(program).decode())
    finally:
        nvrtc.destroyProgram(program)


def examples_of(data_type: DataType) -> Iterator[CompiledOperator]:
    """The examples of operators, with this in place of FLOAT32."""
    for kind in OPERATORS.values():
        given = json.dumps(example(kind)["operator"])
        text = given.replace('"FLOAT32"', f'"{data_type}"')
        if text == given and data_type is not DataType.FLOAT32:
            continue
        try:
            yield compile_operator(validate(kind, json.loads(text)), NEWEST)
        except ContractError:
            continue  # it does not take this type


COORDINATES = frozenset(
    {
        *("RESAMPLE", "RESAMPLE1", "RESAMPLE2", "RESAMPLE3", "RESAMPLE_GRAD", "RESAMPLE_GRAD1"),
        *("ROI_ALIGN", "ROI_ALIGN1", "ROI_POOLING"),
    }
)
"""Operators whose coordinates are float64: which element is read, and whether it is looked at at all, must be what it
is on a CPU."""

EXACT_QUOTIENTS = frozenset({"QUANTIZED_LINEAR_AVERAGE_POOLING"})
"""An integer next to a quotient of float64, of two the even one."""


def sources_of(operator: Dispatchable) -> Iterator[str]:
    """The kernels of its outputs, as far as they are formulas."""
    for name, made in operator.program.maps.items():
        if made.by_coordinates:
            yield coordinate_source(operator, name)[0]
        elif made.axes:
            yield row_source(operator, name)
        else:
            inputs = list(operator.program.inputs.items())
            arithmetic = lower(Questions(operator.numbers).ask, made.expression, inputs, made.stored)
            sizes = [each.bytes for each in operator.element_types(name)]
            yield render(arithmetic, choose_layout([1 << 10], [[1]] * len(sizes), sizes, aligned=True))


@pytest.mark.parametrize(
    ("data_type", "count"),
    [(DataType.FLOAT32, 151), (DataType.FLOAT16, 136), (DataType.INT8, 56), (DataType.UINT8, 51)],
)
def test_kernels_of_all_operators_compile_without_float64(data_type: DataType, count: int) -> None:
    """Not in what is written and not in CUDA's functions; others of the 177 are calls of libraries. The examples as
    they are become binaries, too."""
    found: dict[str, bool] = {}
    for operator in examples_of(data_type):
        kind = operator.operator.short_name()
        for source in sources_of(operator):
            text = assembly_of(source, whole=data_type is DataType.FLOAT32)
            found[kind] = ".f64" in text or found.get(kind, False)
    assert len(found) == count
    assert {kind for kind, has_float64 in found.items() if has_float64} <= COORDINATES | EXACT_QUOTIENTS


GROUPS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(
        ("REDUCE", {"Function": function, "Axes": [2, 3]})
        for function in ("SUM", "AVERAGE", "MULTIPLY", "L1", "L2", "SUM_SQUARE", "LOG_SUM", "LOG_SUM_EXP")
    ),
    *(("LP_NORMALIZATION", {"Axis": 3, "P": p, "Epsilon": 1e-5}) for p in (1, 2)),
    *(
        ("MEAN_VARIANCE_NORMALIZATION2", {"Axes": axes, "UseMean": mean, "UseVariance": variance, "Epsilon": 1e-5})
        for axes in ([3], [2, 3])
        for mean, variance in ((True, True), (True, False), (False, True))
    ),
    *(
        (
            "LOCAL_RESPONSE_NORMALIZATION",
            {"CrossChannel": across, "LocalSize": 5, "Alpha": 0.1, "Beta": beta, "Bias": 2.0},
        )
        for across in (True, False)
        for beta in (0.75, 0.6)
    ),
)
"""Operators of one tensor that add up, with attributes that choose code."""


SIZES = ([2, 3, 4, 5], [64, 64, 4, 32], [1, 2, 8, 512], [1, 1, 64, 3000], [1, 1, 4096, 1024])


@pytest.mark.parametrize("data_type", ["FLOAT32", "FLOAT16"])
def test_sums_of_any_sizes_compile_without_float64(data_type: str) -> None:
    """By threads, by parts of warps, by warps and blocks, and split over blocks."""
    sources = set[str]()
    for name, attributes in GROUPS:
        several = attributes.get("Function", "L2") == "L2" and attributes.get("UseMean", True)
        # Of FLOAT16 only what is loaded and stored is other code.
        every = SIZES if data_type == "FLOAT32" else SIZES[::2]
        for sizes in every if several else SIZES[:1]:
            kind = OPERATORS[f"DML_OPERATOR_{name}"]
            document = {"InputTensor": {"DataType": data_type, "Sizes": sizes}, "Type": kind.name(), **attributes}
            operator = compile_operator(validate(kind, document), NEWEST)
            (made,) = operator.program.maps.values()
            if made.by_coordinates and Splits.of(operator, "OutputTensor", Coordinates.of(operator, "OutputTensor")):
                sources |= {*split_sources(operator, "OutputTensor")}
            else:
                sources |= {*sources_of(operator)}
    assert len(sources) > (30 if data_type == "FLOAT32" else 20)
    assert not [source for source in sources if ".f64" in assembly_of(source, whole=False)]


def test_powers_of_a_step_are_computed_once_for_a_threads_elements() -> None:
    """Two of 16 elements, and two more in each of the ways for single ones."""
    kind = OPERATORS["DML_OPERATOR_ADAM_OPTIMIZER"]
    operator = compile_operator(validate(kind, example(kind)["operator"]), NEWEST)
    made, inputs = operator.program.maps["OutputParametersTensor"], list(operator.program.inputs.items())
    strides = [[0] if name == "TrainingStepTensor" else [1] for name, _ in inputs]
    layout = choose_layout([1 << 12], [*strides, [1]], [4] * 6, aligned=True)
    text = assembly_of(
        render(lower(Questions(operator.numbers).ask, made.expression, inputs, made.stored), layout), whole=False
    )
    assert 2 <= len(re.findall(r"power_of", text[text.index(".visible .entry") :])) <= 6


def test_kernels_with_any_attributes_compile_without_float64() -> None:
    """Of operators of one input, with and without a ScaleBias."""
    found: dict[str, Case] = {}
    for number, case in enumerate(UNARY):
        for data_type in ("FLOAT32", "FLOAT16"):
            operator = compiled(descriptor(case.kind, {"DataType": data_type, "Sizes": [8]}, **case.attributes))
            single = choose_layout([1 << 10], [[1]] * 2, [DataType(data_type).bytes] * 2, aligned=False)
            if data_type == "FLOAT32" or number % 4 == 0 or EXHAUSTIVE:
                found.setdefault(render(arithmetic_of(operator), single), case)
    assert len(found) > 80
    assert not [str(case) for source, case in found.items() if ".f64" in assembly_of(source, whole=False)]


@pytest.mark.skipif(not EXHAUSTIVE, reason="minutes")
@pytest.mark.parametrize("part", range(4))
def test_kernels_of_all_samples_compile(part: int) -> None:
    for operator in all_samples()[part::4]:
        source = render(arithmetic_of(operator), layouts(operator)["packed"])
        assert compile_source(source, 90).startswith(b"\x7fELF")


def row_source(operator: Dispatchable, name: str) -> str:
    """The kernel of an output whose formula reduces."""
    made, inputs = operator.program.maps[name], list(operator.program.inputs.items())
    lowering = RowLowering(Questions(operator.numbers).ask, made.expression, inputs, made.stored)
    return lowering.source(Rows.of(operator, name).kind(aligned=True))[0]


def test_how_many_operators_reduce_or_go_by_coordinates() -> None:
    """Of those whose kernels are compiled above."""
    rows, coordinates = set(), set()
    for operator in examples_of(DataType.FLOAT32):
        for made in operator.program.maps.values():
            if made.by_coordinates:
                coordinates.add(operator.name)
            elif made.axes:
                rows.add(operator.name)
    assert len(rows) == 12
    assert len(coordinates) == 52


@pytest.mark.parametrize(
    ("sizes", "axes", "expected"),
    [
        ([9, 2], [1], (1, 1, 2)),
        ([9, 17], [1], (4, 5, 1)),
        ([9, 128], [1], (16, 1, 8)),
        ([2, 1024], [1], (32, 4, 8)),
        ([2, 1023], [1], (32, 32, 1)),
        ([2, 1032], [1], (128, 2, 8)),
        ([2, 2048], [1], (128, 2, 8)),
        ([2, 2049], [1], (256, 9, 1)),
        ([2, 16384], [1], (1024, 2, 8)),
        ([2, 16385], [1], (1024, 0, 1)),
        ([2, 16392], [1], (1024, 0, 8)),
        ([3, 4, 5], [0, 2], (2, 0, 1)),
        ([8, 100, 9, 100], [0, 2], (8, 0, 1)),
        ([4, 8, 256], [1], (1, 8, 1)),
        ([4, 256, 256], [1], (16, 16, 1)),
        ([4, 257, 256], [1], (16, 0, 1)),
        ([4, 9, 255], [1], (4, 3, 1)),
    ],
    ids=[
        *("by one thread", "by four", "by as many as a vector each needs", "kept by a warp", "one by one"),
        *(
            "kept by a block",
            "just",
            "by a larger one",
            "by the largest",
            "too long for that",
            "read again by vectors",
            "of two dimensions",
        ),
        *("of two across", "across, by one thread", "by one of each warp", "too long for these", "too few for that"),
    ],
)
def test_kernels_of_any_groups_compile(sizes: list[int], axes: list[int], expected: tuple[int, int, int]) -> None:
    """Those of SOFTMAX and its kin have no float64."""
    for name in ("SOFTMAX1", "LOG_SOFTMAX1", "HARDMAX1"):
        kind = f"DML_OPERATOR_ACTIVATION_{name}"
        for data_type in ("FLOAT16", "FLOAT32"):
            document = {"Type": kind, "Axes": axes, "InputTensor": {"DataType": data_type, "Sizes": sizes}}
            operator = compile_operator(validate(OPERATORS[kind], document), NEWEST)
            rows = Rows.of(operator, "OutputTensor").kind(aligned=True)
            if data_type == "FLOAT16":
                assert (rows.threads, rows.kept, rows.width) == expected
            assert Rows.of(operator, "OutputTensor").kind(aligned=False).width == 1
            assert ".f64" not in assembly_of(row_source(operator, "OutputTensor"), whole=True)
    assert compile_source(row_source(operator, "OutputTensor"), 80).startswith(b"\x7fELF")


def test_row_kernels_of_random_graphs_compile() -> None:
    """Operators by themselves have few formulas of rows; what is fused around them makes any."""
    structures, sources = Structures(), set()
    for seed in range(60):
        rng = random.Random(seed)
        graph = Drawer(rng, exact=False).draw(rng.randint(1, 14)).graph(structures)
        for step in schedule(graph, structures).steps:
            operator = step.dispatchable
            sources |= {row_source(operator, name) for name, made in operator.program.maps.items() if made.axes}
    assert len(sources) > 20
    for source in sources:
        assert compile_source(source, 90).startswith(b"\x7fELF")


def test_a_long_chain_compiles() -> None:
    """Of branches NVRTC would make twice as many with each operator: of 25 in a minute, of 50 never."""
    structures = Structures()
    leaky = node("ACTIVATION_LEAKY_RELU", None, Alpha=0.5, InputTensor=tensor("FLOAT32", (300,)))
    steps = [step.dispatchable for step in schedule(chain(leaky, 1, 40), structures).steps]
    operator = max(
        steps, key=lambda each: sum(1 for made in each.program.maps.values() for _ in parts(made.expression))
    )
    (made,) = operator.program.maps.values()
    assert sum(isinstance(each, Operation) for each in parts(made.expression)) > LONG
    inputs = list(operator.program.inputs.items())
    source = render(
        lower(Questions(operator.numbers).ask, made.expression, inputs, made.stored),
        choose_layout([300], [[1], [1]], [4, 4], aligned=True),
    )
    assert "||" not in source[source.index("element(float") :]
    assert [source.count(f"element<{near}>(") for near in ("true", "false")] == [TOGETHER, 0]
    assert compile_source(source, 90).startswith(b"\x7fELF")


def test_formulas_of_many_functions_have_one_copy() -> None:
    """Which no operator's is, however few operations there are."""
    tanh = node("ACTIVATION_TANH", None, InputTensor=tensor("FLOAT32", (300,)))
    packed = choose_layout([300], [[1], [1]], [4, 4], aligned=True)
    rows = choose_layout([3, 100], [[200, 1], [100, 1]], [4, 4], aligned=True)
    copies = []
    for count in (MOST_FUNCTIONS, MOST_FUNCTIONS + 1):
        (step,) = schedule(chain(tanh, 1, count), Structures()).steps
        (made,) = step.dispatchable.program.maps.values()
        inputs = list(step.dispatchable.program.inputs.items())
        arithmetic = lower(Questions({}).ask, made.expression, inputs, made.stored)
        for layout in (packed, rows):
            source = render(arithmetic, layout)
            copies.append([source.count(f"element<{near}>(") for near in ("true", "false")])
            assert compile_source(source, 90).startswith(b"\x7fELF")
    assert copies == [[packed.width, 1], [rows.width, 0], [TOGETHER, 0], [TOGETHER, 0]]
    for operator in all_samples():
        assert not any(is_long(made.expression) for made in operator.program.maps.values()), operator.name


def test_what_is_1_or_0_is_negated_by_an_instruction() -> None:
    """Not known as a choice between -1 and -0, which becomes an integer that has no -0."""
    desc = tensor("FLOAT32", (300,))
    nodes = [node("ELEMENT_WISE_SIGN", InputTensor=desc), node("ELEMENT_WISE_NEGATE", InputTensor=desc)]
    (step,) = schedule(resolved(graph(nodes, [into(0, 0)], [out(1)], [between(0, 1)])), Structures()).steps
    (source,) = sources_of(step.dispatchable)
    assembly = assembly_of(source, whole=False)
    assert "neg.f32" in assembly
    assert "0f80000000" not in assembly


def test_nothing_flushes_subnormal_numbers() -> None:
    for options in (OPTIONS, WRITTEN):
        assert "-ftz=false" in options
        assert not any("fast" in option for option in options)


def test_a_source_that_is_wrong_is_told_with_the_compilers_words() -> None:
    with pytest.raises(CompilationError, match=r"identifier .nothing. is undefined"):
        compile_source('extern "C" __global__ void k() { nothing(); }', 90)


# The cache


class Compiler:
    """Counts."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def __call__(self, source: str, architecture: int, options: Sequence[str]) -> bytes:
        self.calls.append((source, architecture))
        return f"{source} for {architecture}".encode()


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], tuple[KernelCache, Compiler]]:
    def cache() -> tuple[KernelCache, Compiler]:
        compiler = Compiler()
        return KernelCache(Binaries(tmp_path / "kernels"), compiler), compiler

    return cache


def test_a_binary_is_made_once_and_kept_on_disk(make: Callable[[], tuple[KernelCache, Compiler]]) -> None:
    cache, compiler = make()
    assert cache.binary("a", 90) == cache.binary("a", 90) == b"a for 90"
    assert cache.binary("a", 80) == b"a for 80"
    assert compiler.calls == [("a", 90), ("a", 80)]
    again, untouched = make()
    assert again.binary("a", 90) == b"a for 90"
    assert untouched.calls == []
    assert (len(again), again.compiled) == (1, 0)


def test_another_nvrtc_makes_its_own(
    make: Callable[[], tuple[KernelCache, Compiler]], monkeypatch: pytest.MonkeyPatch
) -> None:
    make()[0].binary("a", 90)
    monkeypatch.setattr(cuda_compiler, "nvrtc_version", lambda: (99, 1))
    cache, compiler = make()
    cache.binary("a", 90)
    assert len(compiler.calls) == 1


def test_other_options_make_their_own(make: Callable[[], tuple[KernelCache, Compiler]]) -> None:
    make()[0].binary("a", 90)
    cache, compiler = make()
    cache.binary("a", 90, WRITTEN)
    cache.binary("a", 90, WRITTEN)
    assert len(compiler.calls) == 1


def test_threads_that_want_the_same_wait_for_one() -> None:
    gate = threading.Event()
    calls: list[str] = []

    def slow(source: str, architecture: int, options: Sequence[str]) -> bytes:
        calls.append(source)
        gate.wait(10)
        return b"made"

    cache = KernelCache(Binaries(None), slow)
    with ThreadPoolExecutor(8) as threads:
        results = [threads.submit(cache.binary, "a", 90) for _ in range(8)]
        gate.set()
        assert {each.result() for each in results} == {b"made"}
    assert calls == ["a"]


def test_kernels_of_a_graph_are_made_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compiler, "processors", lambda: 3)
    together = threading.Barrier(3, timeout=10)

    def compiler(source: str, architecture: int, options: Sequence[str]) -> bytes:
        together.wait()
        return source.encode()

    cache = KernelCache(Binaries(None), compiler)
    cache.fill(iter("abc"), 90)
    assert [cache.binary(each, 90) for each in "abc"] == [b"a", b"b", b"c"]
    assert cache.compiled == 3


def test_no_thread_is_asked_for_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many there may be is read from a file, which each dispatch of what is new would do."""
    monkeypatch.setattr(cuda_compiler, "processors", lambda: pytest.fail("threads were to be started"))
    KernelCache(Binaries(None)).fill(iter(()), 90)


def test_what_fails_beside_others_is_told() -> None:
    def compiler(source: str, architecture: int, options: Sequence[str]) -> bytes:
        if source == "b":
            raise CompilationError("no")
        return source.encode()

    cache = KernelCache(Binaries(None), compiler)
    with pytest.raises(CompilationError, match="no"):
        cache.fill(iter("abc"), 90)
    assert len(cache) == 2


def test_a_failure_is_not_kept() -> None:
    outcomes = iter([CompilationError("no"), None])

    def compiler(source: str, architecture: int, options: Sequence[str]) -> bytes:
        error = next(outcomes)
        if error:
            raise error
        return b"made"

    cache = KernelCache(Binaries(None), compiler)
    with pytest.raises(CompilationError):
        cache.binary("a", 90)
    assert cache.binary("a", 90) == b"made"


@pytest.mark.parametrize(
    ("sizes", "strides", "bytes_of_elements", "expected"),
    [
        ([1000], [[1], [1]], [4, 4], (1, 4)),
        ([1000], [[1], [1]], [2, 2], (1, 8)),
        ([1000], [[1], [1], [1]], [1, 1, 1], (1, 16)),
        ([1000], [[1], [1]], [4, 1], (1, 4)),  # the widest decides
        ([3], [[1], [1]], [4, 4], (1, 1)),
        ([1000], [[2], [1]], [4, 4], (1, 1)),
        ([10, 100], [[0, 1], [100, 1]], [4, 4], (2, 4)),
        ([10, 100], [[1, 0], [100, 1]], [4, 4], (2, 4)),
        ([10, 100], [[102, 1], [100, 1]], [4, 4], (2, 2)),
        ([10, 99], [[100, 1], [100, 1]], [4, 4], (2, 1)),
        ([10, 100], [[1, 10], [100, 1]], [4, 4], (2, 1)),
    ],
)
def test_vectors_are_as_wide_as_the_layout_allows(
    sizes: list[int], strides: list[list[int]], bytes_of_elements: list[int], expected: tuple[int, int]
) -> None:
    layout = choose_layout(sizes, strides, bytes_of_elements, aligned=True)
    assert (layout.rank, layout.width) == expected
    assert choose_layout(sizes, strides, bytes_of_elements, aligned=False).width == 1


def test_the_newest_level_is_what_is_compiled_ahead() -> None:
    assert {each.level for each in samples()} == {NEWEST}
