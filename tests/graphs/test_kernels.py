"""Kernels of graphs on a GPU: what is found in the cache is what would be written, and is written once."""

import random
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.devices.cuda.kernels import CudaKernel
from app.devices.cuda.resident import Resident
from app.formula.structures import Structures
from app.graphs.schedule import schedule
from tests.graphs.random_graphs import Drawer, Drawn

SHARED = Structures()
"""Kept from graph to graph, as a service does."""

SMALL = Structures(most=40)
"""The same where most of it has been dropped again."""


class _Gpu:
    """What a CudaKernel needs to write its source."""

    clustered = 132

    def __init__(self, structures: Structures) -> None:
        self.structures = structures


def written(drawn: Drawn, structures: Structures) -> list[tuple[str, int, list[bytes]]]:
    """The kernels of a graph: source, elements of a block, and the arguments that are known."""
    gpu: Any = _Gpu(structures)
    planned = schedule(drawn.graph(structures), structures)
    found: list[tuple[str, int, list[bytes]]] = []

    def launch(_: Any, form: Any, tensors: int, arguments: list[Any]) -> mock.Mock:
        found.append((form.source, form.per_block, [np.asarray(each).tobytes() for each in arguments]))
        return mock.Mock(per_block=form.per_block)

    with mock.patch("app.devices.cuda.kernels.Launch", launch):
        for step in (*planned.first, *planned.steps):
            for kernel in Resident(step.dispatchable, gpu).kernels:
                for aligned in (True, False):
                    kernel.launch(aligned=aligned)
    return found


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(1, 30), st.sampled_from([0.0, 0.0, 0.3]), st.booleans())
def test_what_is_found_is_what_would_be_written(rng: random.Random, nodes: int, moving: float, exact: bool) -> None:
    """For any graph, whatever was written before for others."""
    drawn = Drawer(rng, exact=exact, moving=moving).draw(nodes)
    alone = written(drawn, Structures())
    assert alone
    for structures in (SHARED, SMALL):
        assert written(drawn, structures) == alone
    assert SMALL.size <= SMALL.most


def test_what_is_known_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, structures = Drawer(random.Random(5), exact=False).draw(30), Structures()
    known = written(drawn, structures)
    monkeypatch.setattr(CudaKernel, "_form", None)
    assert written(drawn, structures) == known
