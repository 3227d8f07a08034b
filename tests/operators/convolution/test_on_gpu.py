"""Convolutions of halves as a GPU makes them with NumPy in its place: packed rows, one product, and an ending."""

import numpy as np
import pytest

from app.operators.convolution import on_gpu
from tests.operators.calls import desc_of, run
from tests.operators.convolution.test_floats import document_of, inputs_of
from tests.operators.descriptors import refusals
from tests.operators.rows import by_numpy, ended


@pytest.mark.parametrize("scratch", [256 << 20, 1 << 10])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_halves(rank: int, scratch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, and few positions at a time; with an activation, or where channels are not even."""
    by_numpy(monkeypatch)
    monkeypatch.setattr(on_gpu, "SCRATCH", {"cupy": scratch})
    rng, judged = np.random.default_rng(20 + rank), 0
    for number in range(16):
        activation = {"Type": "ACTIVATION_CELU", "Alpha": 0.5} if number % 2 else None
        document = document_of(rng, rank, Direction="FORWARD", FusedActivation=activation, OutputPadding=[0] * rank)
        given = inputs_of(rng, document, "float16", size=(20, 8, 6)[rank - 1], multiple=8)
        if number % 4 == 2:  # channels that are no multiple of 8
            given = inputs_of(rng, document | {"GroupCount": 1}, "float16", size=(20, 8, 6)[rank - 1], multiple=9)
            document["GroupCount"] = 1
        descs = {name: desc_of(each) for name, each in given.items() if each is not None}
        if refusals(document | {"Type": "DML_OPERATOR_CONVOLUTION"} | descs):
            continue
        made = ended(document, given)
        if made is not None:
            judged += 1
            np.testing.assert_allclose(made, run(document, given)["OutputTensor"], rtol=1e-3, atol=1e-3)
    assert judged > 4
