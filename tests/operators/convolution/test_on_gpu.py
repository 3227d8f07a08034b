"""Convolutions as a GPU makes them of packed rows, by one product and an ending: with NumPy in its place, and there."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.memory.arrays import Array
from app.operators.convolution import floats, on_gpu
from tests.gpu import first_gpu
from tests.operators import calls
from tests.operators.arrays import desc_of
from tests.operators.calls import run
from tests.operators.convolution.test_floats import document_of, inputs_of
from tests.operators.descriptors import refusals
from tests.operators.rows import by_numpy, ended


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few outputs, terms and positions are enough."""
    for name in ("MANY_OUTPUTS", "MANY_TERMS"):
        monkeypatch.setattr(floats, name, dict.fromkeys((DataType.FLOAT32, DataType.FLOAT16), 1))
    monkeypatch.setattr(floats, "MANY_POSITIONS", 1)


def cases(rank: int, dtype: str, count: int) -> Iterator[tuple[dict[str, Any], dict[str, Array | None]]]:
    """With an activation or without; of halves also channels that are no multiple of 8."""
    rng = np.random.default_rng(20 + rank)
    for number in range(count):
        activation = {"Type": "ACTIVATION_CELU", "Alpha": 0.5} if number % 2 else None
        document = document_of(rng, rank, Direction="FORWARD", FusedActivation=activation, OutputPadding=[0] * rank)
        size, multiple = (20, 8, 6)[rank - 1], 9 if number % 4 == 2 else 8
        given = inputs_of(rng, document, dtype, size=size, multiple=multiple)
        descs = {name: desc_of(each) for name, each in given.items() if each is not None}
        if not refusals(document | {"Type": "DML_OPERATOR_CONVOLUTION"} | descs):
            yield document, given


@pytest.mark.parametrize("scratch", [256 << 20, 1 << 10])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("float32", 1e-5)])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_packed_rows(rank: int, dtype: str, tolerance: float, scratch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, and few positions at a time."""
    by_numpy(monkeypatch)
    monkeypatch.setattr(on_gpu, "SCRATCH", {"cupy": scratch})
    judged = 0
    for document, given in cases(rank, dtype, 12):
        made = ended(document, given)
        if made is not None:  # which products of matrices without an activation have not
            judged += 1
            np.testing.assert_allclose(made, run(document, given)["OutputTensor"], tolerance, tolerance)
    assert judged > 4


@pytest.mark.gpu
@pytest.mark.parametrize("scratch", [256 << 20, 1 << 10])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("float32", 1e-5)])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_packed_rows_on_a_gpu(
    rank: int, dtype: str, tolerance: float, scratch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_gpu, "SCRATCH", {"cupy": scratch})
    for document, given in cases(rank, dtype, 12):
        expected = run(document, given)["OutputTensor"]
        with monkeypatch.context() as patched:
            patched.setattr(calls, "DEVICE", first_gpu())
            made = run(document, given)["OutputTensor"]
        np.testing.assert_allclose(made, expected, tolerance, tolerance)
