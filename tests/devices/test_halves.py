"""Halves of float64 in compiled code, where LLVM calls a function for them."""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from llvmlite import binding

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm import nests
from app.devices.cpu.llvm.compiler import OF_HALVES, Compiler
from app.devices.cpu.llvm.lowering import lower_part
from app.formula.structures import Questions, Structures
from app.formula.values import FLOAT32, FLOAT64, Input
from tests.graphs.documents import between, graph, into, node, out, tensor
from tests.graphs.random_graphs import Drawn, dispatched, initialized, one_by_one

STORES = """
define void @kernel(ptr %frame) {
%x = load double, ptr %frame
%half = fptrunc double %x to half
%place = getelementptr double, ptr %frame, i64 1
store half %half, ptr %place
ret void
}
"""


def of_any_kind() -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Doubles at the ends of what halves reach, on all middles of two, right beside these, and others."""
    rng = np.random.default_rng(0)
    halves = np.arange(0x7BFF, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = (halves[1:] + halves[:-1]) / 2
    ends = [0.0, -0.0, np.inf, -np.inf, 65504, 65519.99, 65520, 2**-24, 2**-25, 2**-25 + 2**-60, 1e-42, 5e-324, 1e300]
    more = [middles, np.nextafter(middles, 0), np.nextafter(-middles, -1e9), middles * (1 + 2**-30)]
    return np.concatenate([ends, *more, rng.standard_normal(5000) * 10.0 ** rng.integers(-9, 6, 5000)])


def test_it_is_rounded_once() -> None:
    store, frame, values = Compiler().function(STORES), np.zeros(2), of_any_kind()[::19]
    halves = np.empty(len(values), np.float16)
    for place, value in enumerate(values):
        frame[0] = value
        store(frame.ctypes.data)
        halves[place] = frame[1:].view(np.float16)[0]
    with np.errstate(over="ignore"):
        assert halves.tobytes() == values.astype(np.float16).tobytes()


def test_formulas_round_it_once_many_at_a_time() -> None:
    """NaN stays one, whichever digits say so."""
    nan = np.array([0x7FF0000000000001, 0xFFF0000020000000, 0x7FF8000000000000], np.uint64).view(np.float64)
    element = lower_part(Questions({}).ask, Input(FLOAT64, "a", DataType.FLOAT64), DataType.FLOAT16, "element")
    source = nests.elements(element, ["a"], 1, ["packed", "packed"])
    given = np.concatenate([of_any_kind(), nan])
    made = np.empty(len(given), np.float16)
    frame = np.array([len(given), given.ctypes.data, 8, made.ctypes.data, 2])
    Compiler().function(source)(frame.ctypes.data)
    assert np.isnan(made[-3:]).all()
    with np.errstate(over="ignore"):
        assert made[:-3].tobytes() == given[:-3].astype(np.float16).tobytes()


def test_the_sign_of_a_float64_is_all_that_is_asked_for() -> None:
    """Where a sign is taken from a float64 and the result is rounded to a half, LLVM makes a half of it."""
    desc = tensor("FLOAT16", (512,))
    nodes = [node("ELEMENT_WISE_ASIN", InputTensor=desc), node("ELEMENT_WISE_ABS", InputTensor=desc)]
    data = np.linspace(-1, 1, 512, dtype=np.float16).tobytes()
    drawn = Drawn(graph(nodes, [into("x", 0)], [out(1, "y")], [between(0, 1)]), {"x": data})
    with ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 1, Compiler(), least=1, structures=Structures())
        judged = drawn.graph()
        made = initialized(judged, drawn, device, Structures())
        assert len(made.schedule.steps) == 1
        given, wanted = dispatched(made, drawn, device), one_by_one(judged, drawn, device)
    assert given["y"].tobytes() == wanted["y"].tobytes()


def test_halves_are_loaded_one_by_one_without_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """x86 would put each beside what a register had before, and wait for that."""
    element = lower_part(Questions({}).ask, Input(FLOAT32, "a", DataType.FLOAT16) + 1, DataType.FLOAT16, "element")
    source = nests.elements(element, ["a"], 1, ["strided", "packed"])
    compiler = Compiler()
    given, made = np.arange(100, dtype=np.float16), np.zeros(50, np.float16)
    frame = np.array([50, given.ctypes.data, 4, made.ctypes.data, 2])
    compiler.function(source)(frame.ctypes.data)
    assert made.tobytes() == (given[::2] + np.float16(1)).tobytes()

    monkeypatch.setattr(compiler, "_features", {OF_HALVES: False})
    binding.initialize_all_targets()
    machine = binding.Target.from_triple("x86_64").create_target_machine(cpu="x86-64-v3", opt=3)
    optimized = str(compiler.optimized(source, machine, "avx2"))
    loads = re.findall(r"(%\S+) = load half,", optimized)
    assert "load i16" in optimized
    assert set(loads) <= set(re.findall(r"= insertelement .* half (%[^ ,]+),", optimized))
