"""The kernel that does all steps of a layer of FLOAT16: its forms under NVRTC, which needs no GPU, and on one."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from app.memory.arrays import Array
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from app.operators.recurrent import lasting
from app.operators.recurrent.cells import Cell, in_two
from app.operators.recurrent.steps import Recurrent
from tests.gpu import assert_compiles, first_gpu
from tests.operators import calls
from tests.operators.descriptors import descriptor
from tests.operators.recurrent.test_networks import FUNCTIONS, check, request

A = "DML_OPERATOR_ACTIVATION_"
ACTIVATIONS = {
    "RNN": [A + "TANH"],
    "LSTM": [A + "SIGMOID", A + "TANH", A + "TANH"],
    "GRU": [A + "SIGMOID", A + "TANH"],
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_kernels_compile(kind: str) -> None:
    """Nothing is written for one of the architectures."""
    for architecture, (batch, hidden) in zip((80, 90, 90), ((1, 5), (17, 512), (33, 1024)), strict=True):
        form = lasting.form_of(kind, ACTIVATIONS[kind], (batch, hidden), 132)
        assert form
        members: dict[str, Any] = {}
        if kind == "LSTM":
            members = {"UseClipThreshold": True, "ClipThreshold": 1.5, "CoupleInputForget": batch > 1}
        elif kind == "GRU":
            members = {"LinearBeforeReset": True}
        operator = OPERATORS[PREFIX + kind].model_validate(descriptor(PREFIX + kind) | members)
        assert isinstance(operator, Recurrent)
        assert_compiles(lasting.source(form, operator.cell(0, in_two, form.functions)), architecture)


def test_what_the_kernel_does_not_do() -> None:
    """Weights that registers do not hold, states that halves might not, and GPUs that cannot."""
    lstm = ACTIVATIONS["LSTM"]
    for batch, processors, found in (
        *((32, 132, (8, 2, 1)), (33, 132, (12, 2, 1)), (16, 60, (10, 2, 1)), (16, 132, (4, 2, 1))),
    ):
        assert lasting.form_of("LSTM", lstm, (batch, 512), processors) == lasting.Form("LSTM", _NAMES, *found)
    assert lasting.form_of("LSTM", lstm, (1000, 512), 132) is None
    assert lasting.form_of("LSTM", lstm, (32, 2048), 132) is None
    assert lasting.form_of("LSTM", lstm, (32, 512), 0) is None
    assert lasting.form_of("LSTM", [lstm[0], A + "RELU", lstm[2]], (32, 512), 132) is None
    assert lasting.form_of("GRU", [A + "TANH", A + "TANH"], (32, 512), 132) is None


_NAMES = ("sigmoid", "tangent", "tangent")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_networks_on_a_gpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sizes around those of tiles, in all directions, and of more steps than one kernel goes through."""
    monkeypatch.setattr(calls, "DEVICE", first_gpu())
    ran: list[lasting.Form] = []
    run = lasting.run

    def counted(cupy: Any, form: lasting.Form, cell: Cell, layer: lasting.Layer, **named: Any) -> None:
        ran.append(form)
        run(cupy, form, cell, layer, **named)

    monkeypatch.setattr(lasting, "run", counted)
    rng, wanted = np.random.default_rng(5), 0
    sizes = [(0, 0), (3, 12), (13, 14), (40, 28), (255, 5), (510, 30), (700, 0), (120, 70)]
    for number, ((larger, more), direction) in enumerate(product(sizes, ["FORWARD", "BACKWARD", "BIDIRECTIONAL"])):
        monkeypatch.setattr(lasting, "STEPS", 2 if number % 3 == 1 else 2048)
        document, tensors, functions = request(rng, kind, "float16", direction, larger, more)
        for place, name in enumerate(functions):
            functions[place] = "sigmoid" if kind != "RNN" and place % len(ACTIVATIONS[kind]) == 0 else "tanh"
            if number % 4 == 3 and name == "sigmoid":
                functions[place] = name
        document["ActivationDescs"] = [FUNCTIONS[name][0] for name in functions]
        if document.get("LinearBeforeReset", True):
            wanted += 2 if direction == "BIDIRECTIONAL" else 1
        check(rng, "float16", document, tensors, functions)
    assert len(ran) == wanted


@pytest.mark.gpu
@pytest.mark.parametrize("repeated", [(0,), (1,), (2,), (0, 1, 2), ()])
def test_repeated_inputs_on_a_gpu(monkeypatch: pytest.MonkeyPatch, repeated: tuple[int, ...]) -> None:
    """Along some dimensions of the input and of the weights, and all of the recurrence, by strides of 0."""
    monkeypatch.setattr(calls, "DEVICE", first_gpu())
    rng = np.random.default_rng(7)

    def some(*sizes: int) -> Array:
        kept = [1 if place - 1 in repeated else size for place, size in enumerate(sizes)]
        return np.broadcast_to(rng.normal(size=kept).astype(np.float16) / 4, sizes)

    inputs: dict[str, Array | None] = {
        "InputTensor": some(1, 3, 18, 4),
        "WeightTensor": some(1, 1, 7, 4),
        "RecurrenceTensor": np.broadcast_to(np.float16(0.25), (1, 1, 7, 7)),
    }
    document = {"Type": "RNN", "Direction": "FORWARD", "ActivationDescs": [FUNCTIONS["tanh"][0]]}
    check(rng, "float16", document, inputs, ["tanh"])
