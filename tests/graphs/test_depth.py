"""However many operators are put into one another, no kernel is deeper than what walks it can go."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.contract.violations import ContractError
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cuda.lowering import lower
from app.formula.structures import Questions, Structures
from app.formula.values import FLOAT32, Input, exp
from app.graphs.graph import Graph
from app.graphs.members import Depth, size_of
from app.graphs.schedule import InitializedGraph, schedule
from app.operators.catalog import OPERATORS
from app.operators.operator import Role
from app.programs.program import Map
from tests.gpu import first_gpu
from tests.graphs.documents import Document, between, graph, into, node, out, resolved, tensor

NODES = 40

ATTRIBUTES: list[dict[str, Any]] = [
    {},
    *({name: 1.5} for name in ("Alpha", "Exponent", "Steepness", "SigmoidInputScale", "Bias")),
    {"Alpha": 1.5, "Beta": 0.5},
    {"Alpha": 1.5, "Gamma": 1.1},
    {"Min": -0.5, "Max": 0.5},
]
"""Those of operators of one formula; of each the first that are taken."""


def chain(each: Document, inputs: int, length: int) -> Graph:
    """So many of a node, each of which reads the one before as all of its inputs. Raises ContractError."""
    links = [between(n, n + 1, place) for n in range(length - 1) for place in range(inputs)]
    first = [into(0, 0, place) for place in range(inputs)]
    return resolved(graph([each] * length, first, [out(length - 1)], links))


def chains(data_type: str) -> Iterator[Graph]:
    """Of every operator that makes a tensor of one or two like it."""
    for name, operator in OPERATORS.items():
        tensors = dict.fromkeys(operator.tensor_names(Role.INPUT), tensor(data_type, (300,)))
        for attributes in ATTRIBUTES if len(tensors) in (1, 2) else []:
            each = node(name, None, **tensors, **attributes)
            with contextlib.suppress(ContractError, LookupError):
                chain(each, len(tensors), 1)
                yield chain(each, len(tensors), NODES)
                break


@pytest.mark.parametrize("data_type", ["FLOAT32", "FLOAT16"])
def test_every_operator_in_itself_many_times(data_type: str) -> None:
    deep = 0
    with ThreadPoolExecutor(1) as helpers:
        devices = [NumpyDevice(helpers, 1, compiler, structures=Structures()) for compiler in (Compiler(), None)]
        for each in chains(data_type):
            planned = schedule(each, Structures())
            deep += 1 < len(planned.steps) < NODES
            for device in devices:
                device.prepare(InitializedGraph(planned, ()))
            for step in planned.steps[:1]:
                (made,) = step.dispatchable.program.maps.values()
                if not (made.axes or made.by_coordinates):
                    inputs = list(step.dispatchable.program.inputs.items())
                    lower(Questions(step.dispatchable.numbers).ask, made.expression, inputs, made.stored)
    assert deep > 5


def test_how_deep_a_formula_is() -> None:
    """What is no instruction of a processor is written in several."""
    x = Input(FLOAT32, "x", DataType.FLOAT32)
    assert size_of(Map(x, DataType.FLOAT32)) == (1, Depth(1, 1))
    assert size_of(Map(exp(exp(x + x)), DataType.FLOAT32)) == (4, Depth(4, 1 + 1 + 16 + 16))
    assert Depth(1, 2).below(Depth(30, 40)) == Depth(31, 42)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, 1027, 4096])
@pytest.mark.parametrize(
    ("name", "data_type"),
    [("ACTIVATION_HARD_SIGMOID", "FLOAT32"), ("ACTIVATION_HARD_SIGMOID", "FLOAT16"), ("ELEMENT_WISE_NEGATE", "INT8")],
)
def test_long_formulas_on_a_gpu(name: str, data_type: str, size: int) -> None:
    """They are computed by a loop over each thread's elements, some of which the last one has not."""
    attributes = {"Alpha": 0.9, "Beta": 0.3} if name == "ACTIVATION_HARD_SIGMOID" else {}
    each = node(name, None, InputTensor=tensor(data_type, (size,)), **attributes)
    planned = schedule(chain(each, 1, NODES + 1), Structures())
    x = np.random.default_rng(7).standard_normal(size).astype(data_type.lower()) if "FLOAT" in data_type else None
    given = (np.arange(size) % 256).astype(np.uint8).view(np.int8) if x is None else x
    made = []
    with ThreadPoolExecutor(1) as helpers:
        for device in (NumpyDevice(helpers, 1), first_gpu()):
            made.append(np.full(size, 85, given.dtype))
            inputs, outputs = ([array.view(np.uint8).data] for array in (given, made[-1]))
            if planned.scratch_bytes:
                outputs.append(np.empty(planned.scratch_bytes, np.uint8).data)
            device.prepare(InitializedGraph(planned, ())).dispatch(inputs, outputs, lambda: False)
    np.testing.assert_array_equal(made[0], made[1])
