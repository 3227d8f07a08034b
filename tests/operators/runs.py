"""Operators run on the CPU with arrays, strided in memory as a test likes, for comparison with plain NumPy."""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.contract.constants import NEWEST, FeatureLevel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler
from app.formula.structures import Structures
from app.memory.arrays import Array
from app.operators.catalog import OPERATORS
from app.operators.compiled import compile_operator
from app.operators.operator import PREFIX
from tests.operators import arrays
from tests.operators.arrays import desc_of

COMPILER = Compiler()
STRUCTURES = Structures()


class Runner:
    """Runs operators on one device. What is made of a formula is made once for all, as in a service."""

    def __init__(self, device: NumpyDevice) -> None:
        self.device = device

    def __call__(
        self, kind: str, inputs: Mapping[str, Array], level: FeatureLevel = NEWEST, **members: Any
    ) -> dict[str, Array]:
        """The outputs by name. Inputs are described as they lie in memory; `members` are added to the descriptor."""
        document = {name: desc_of(array) for name, array in inputs.items()} | members
        kind = PREFIX + kind
        stated = OPERATORS[kind].model_validate_json(json.dumps({"Type": kind} | document))
        operator = compile_operator(stated, level, STRUCTURES)
        return arrays.run(self.device, operator, inputs)


@pytest.fixture(scope="module", params=["calls", "loops"])
def run(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """With NumPy's calls alone, and with loops compiled for whatever they can compute."""
    with ThreadPoolExecutor(2) as executor:
        yield Runner(NumpyDevice(executor, 2, COMPILER if request.param == "loops" else None, 1, STRUCTURES))


def close(made: Array, expected: Array, *, scale: Array | float = 0, ulp: float = 1) -> None:
    """That `made` is `expected`, of float64 or more, but for `ulp` units in the last place of the larger of it and
    `scale`, the size of what was added up."""
    info = np.finfo(made.dtype)
    with np.errstate(all="ignore"):
        size = np.maximum(np.maximum(np.abs(expected), scale), float(info.tiny))
        bound = ulp * size * float(info.eps)
        nearest = expected.astype(made.dtype)
        fine = (made == nearest) | (np.isnan(made) & np.isnan(nearest)) | (np.abs(made - expected) <= bound)
    wrong = np.argwhere(~fine)
    assert not len(wrong), (wrong[0], made[tuple(wrong[0])], expected[tuple(wrong[0])])
