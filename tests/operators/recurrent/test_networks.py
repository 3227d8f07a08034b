"""RNN, LSTM and GRU against loops over items in float64, written from the equations; optional tensors; refusals."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.contract.constants import NEWEST, DataType
from app.devices.cpu import recurrent_calls, runs
from app.devices.cpu.coordinates import CallKernel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.recurrent import RecurrentKernel
from app.devices.device import Cancelled, own_bytes
from app.memory.arrays import Array
from app.operators.catalog import OPERATORS
from app.operators.compiled import compile_operator
from tests.contract.refusals import check_wording
from tests.operators import calls
from tests.operators.arrays import desc_of, laid_out
from tests.operators.calls import run
from tests.operators.conftest import compiler
from tests.operators.descriptors import descriptor, refusals

GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
FUNCTIONS: dict[str, tuple[dict[str, Any], Callable[[Array], Array]]] = {
    "sigmoid": ({"Type": "ACTIVATION_SIGMOID"}, lambda x: 1 / (1 + np.exp(-x))),
    "tanh": ({"Type": "ACTIVATION_TANH"}, np.tanh),
    "relu": ({"Type": "ACTIVATION_RELU"}, lambda x: np.maximum(x, 0)),
    "leaky": ({"Type": "ACTIVATION_LEAKY_RELU", "Alpha": 0.25}, lambda x: np.where(x < 0, x * 0.25, x)),
    "affine": ({"Type": "ACTIVATION_LINEAR", "Alpha": 0.5, "Beta": 0.125}, lambda x: x * 0.5 + 0.125),
}


def expected(kind: str, t: dict[str, Array | None], functions: list[str], document: dict[str, Any]) -> dict[str, Array]:
    """Item by item, step by step, gate by gate."""
    given = {name: None if each is None else each.astype(float) for name, each in t.items()}
    x, w, r = given["InputTensor"], given["WeightTensor"], given["RecurrenceTensor"]
    assert x is not None
    assert w is not None
    assert r is not None
    steps, batch, hidden, gates = x.shape[1], x.shape[2], r.shape[3], GATES[kind]
    many = w.shape[1]
    each = len(functions) // many

    def filled(name: str, *sizes: int) -> Array:
        there = given.get(name)
        return np.zeros(sizes) if there is None else there

    bias = filled("BiasTensor", 1, 1, many, 2 * gates * hidden)
    peephole = filled("PeepholeTensor", 1, 1, many, 3 * hidden)
    h0, c0 = (filled(name, 1, many, batch, hidden) for name in ("HiddenInitTensor", "CellMemInitTensor"))
    lengths = filled("SequenceLengthsTensor", 1, 1, 1, batch)[0, 0, 0]
    if t.get("SequenceLengthsTensor") is None:
        lengths = np.full(batch, steps)
    sequence = np.zeros((steps, many, batch, hidden))
    last, cells = np.zeros((1, many, batch, hidden)), np.zeros((1, many, batch, hidden))

    def gate(d: int, g: int, of_x: Array, of_h: Array) -> tuple[Array, Array]:
        rows = slice(g * hidden, (g + 1) * hidden)
        both = bias[0, 0, d].reshape(2, gates, hidden)
        return of_x @ w[0, d, rows].T + both[0, g], of_h @ r[0, d, rows].T + both[1, g]

    def whole(d: int, g: int, of_x: Array, of_h: Array) -> Array:
        one, other = gate(d, g, of_x, of_h)
        return one + other

    def clip(a: Array) -> Array:
        limit = document.get("ClipThreshold", 0)
        return np.clip(a, -limit, limit) if document.get("UseClipThreshold") else a

    for d in range(many):
        f, g, k = (FUNCTIONS[name][1] for name in [*functions[d * each : (d + 1) * each], "tanh", "tanh"][:3])
        p_i, p_o, p_f = peephole[0, 0, d].reshape(3, hidden)
        for b in range(batch):
            h, c = h0[0, d, b], c0[0, d, b]
            order = list(range(min(int(lengths[b]), steps)))
            if d == 1 or document["Direction"] == "BACKWARD":
                order.reverse()
            for step in order:
                now = x[0, step, b]
                if kind == "RNN":
                    h = f(whole(d, 0, now, h))
                elif kind == "LSTM":
                    i = f(clip(whole(d, 0, now, h) + p_i * c))
                    fg = 1 - i if document["CoupleInputForget"] else f(clip(whole(d, 2, now, h) + p_f * c))
                    c = fg * c + i * g(clip(whole(d, 3, now, h)))
                    o = f(clip(whole(d, 1, now, h) + p_o * c))
                    h = o * k(clip(c))
                else:
                    z, reset = (f(whole(d, which, now, h)) for which in (0, 1))
                    if document["LinearBeforeReset"]:
                        of_x, of_h = gate(d, 2, now, h)
                        new = g(of_x + reset * of_h)
                    else:
                        new = g(whole(d, 2, now, reset * h))
                    h = (1 - z) * new + z * h
                sequence[step, d, b] = h
            last[0, d, b], cells[0, d, b] = h, c
    made = {"OutputSequenceTensor": sequence, "OutputSingleTensor": last}
    return made | ({"OutputCellSingleTensor": cells} if kind == "LSTM" else {})


def request(
    rng: np.random.Generator, kind: str, dtype: str, direction: str, larger: int = 0, more: int = 0
) -> tuple[dict[str, Any], dict[str, Array | None], list[str]]:
    """Weights and states are `larger` by so much, of so many `more` items."""
    steps, batch, width, hidden = (int(each) for each in rng.integers(1, 6, 4))
    batch, width, hidden = batch + more, width + larger, hidden + larger
    many, gates = 2 if direction == "BIDIRECTIONAL" else 1, GATES[kind]

    def random(*sizes: int) -> Array:
        return laid_out(rng, (rng.normal(size=sizes) / (2 + larger / 4)).astype(dtype))

    def perhaps(*sizes: int) -> Array | None:
        return random(*sizes) if rng.random() < 0.6 else None

    tensors: dict[str, Array | None] = {
        "InputTensor": random(1, steps, batch, width),
        "WeightTensor": random(1, many, gates * hidden, width),
        "RecurrenceTensor": random(1, many, gates * hidden, hidden),
        "BiasTensor": perhaps(1, 1, many, 2 * gates * hidden),
        "HiddenInitTensor": perhaps(1, many, batch, hidden),
        "SequenceLengthsTensor": (
            rng.integers(0, steps + 3, (1, 1, 1, batch)).astype(np.uint32) if rng.random() < 0.5 else None
        ),
    }
    functions = [str(each) for each in rng.choice(list(FUNCTIONS), {"RNN": 1, "LSTM": 3, "GRU": 2}[kind] * many)]
    document: dict[str, Any] = {
        "Type": kind,
        "Direction": direction,
        "ActivationDescs": [FUNCTIONS[name][0] for name in functions],
    }
    if kind == "LSTM":
        tensors["CellMemInitTensor"] = perhaps(1, many, batch, hidden)
        tensors["PeepholeTensor"] = perhaps(1, 1, many, 3 * hidden)
        document |= {
            "ClipThreshold": 0.5,
            "UseClipThreshold": bool(rng.random() < 0.5),
            "CoupleInputForget": bool(rng.random() < 0.5),
        }
    if kind == "GRU":
        document["LinearBeforeReset"] = bool(rng.random() < 0.5)
    return document, tensors, functions


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("direction", ["FORWARD", "BACKWARD", "BIDIRECTIONAL"])
@pytest.mark.parametrize("scratch", [1 << 20, 1 << 8], ids=["whole", "pieces"])
@pytest.mark.parametrize("kind", GATES)
def test_networks_are_their_equations(
    kind: str, scratch: int, direction: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.operators.recurrent.stepping.SCRATCH", {"numpy": scratch})
    rng = np.random.default_rng(len(kind))
    for _ in range(8):
        check(rng, dtype, *request(rng, kind, dtype, direction))


def check(
    rng: np.random.Generator,
    dtype: str,
    document: dict[str, Any],
    tensors: dict[str, Array | None],
    functions: list[str],
) -> None:
    right = expected(document["Type"], tensors, functions, document)
    for name in right:
        if rng.random() < 0.7:
            document[name] = desc_of(laid_out(rng, np.zeros(right[name].shape, dtype)))
    if not right.keys() & document.keys():
        document["OutputSingleTensor"] = desc_of(np.zeros(right["OutputSingleTensor"].shape, dtype))
    made = run(document, tensors)
    assert made.keys() == right.keys() & document.keys()
    for name, array in made.items():
        tolerance = 1e-5 if dtype == "float32" else 1e-3
        np.testing.assert_allclose(array, right[name], rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("kind", GATES)
def test_loops_are_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With states shorter than a vector, and longer; a step at a time, and all."""
    monkeypatch.setattr(CallKernel, "dispatch", None)
    rng = np.random.default_rng(1)
    for turn, direction in enumerate(["FORWARD", "BACKWARD", "BIDIRECTIONAL"] * 2):
        monkeypatch.setattr(recurrent_calls, "AT_A_TIME", 1 if turn % 2 else 1 << 20)
        monkeypatch.setattr(recurrent_calls, "AT_ONCE", 2 if turn > 3 else 8)
        dtype = "float16" if turn == 2 else "float32"
        check(rng, dtype, *request(rng, kind, dtype, direction, larger=turn % 3 * 13))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", GATES)
def test_a_sequence_is_the_same_alone(kind: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, whichever are beside it, and whatever threads take their steps."""
    monkeypatch.setattr(CallKernel, "dispatch", None)
    rng = np.random.default_rng(threads)
    axes = {"InputTensor": 2, "HiddenInitTensor": 2, "CellMemInitTensor": 2, "SequenceLengthsTensor": 3}
    with ThreadPoolExecutor(4) as helpers:
        monkeypatch.setattr(calls, "DEVICE", NumpyDevice(helpers, threads, compiler()))
        for more, direction in (0, "FORWARD"), (2, "BACKWARD"), (7, "BIDIRECTIONAL"), (20, "FORWARD"):
            document, tensors, functions = request(rng, kind, "float32", direction, larger=19, more=more)
            wanted = expected(kind, tensors, functions, document)

            def outputs(
                of: dict[str, Array | None],
                document: dict[str, Any] = document,
                wanted: dict[str, Array] = wanted,
            ) -> dict[str, Array]:
                given = of["InputTensor"]
                assert given is not None
                made = {name: desc_of(each[:, :, : given.shape[2]].astype(np.float32)) for name, each in wanted.items()}
                return run(document | made, of)

            whole = outputs(tensors)
            for own in range(whole["OutputSequenceTensor"].shape[2]):
                one = {
                    name: each if each is None or name not in axes else np.take(each, [own], axes[name])
                    for name, each in tensors.items()
                }
                for name, array in outputs(one).items():
                    np.testing.assert_array_equal(array, whole[name][:, :, own : own + 1])


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("depth", [3, 16, 40])
@pytest.mark.parametrize("kind", GATES)
def test_weights_of_float16_are_read_as_they_lie(kind: str, depth: int) -> None:
    """Nothing of their size is converted, and sums are those of float32."""
    rng = np.random.default_rng(depth)
    hidden, gates = depth + 1, GATES[kind]
    sizes = {"InputTensor": (1, 2, 3, depth), "WeightTensor": (1, 1, gates * hidden, depth)}
    sizes |= {"RecurrenceTensor": (1, 1, gates * hidden, hidden)}
    inputs: dict[str, Array | None] = {name: rng.normal(size=each).astype(np.float16) for name, each in sizes.items()}
    functions = ["sigmoid", "tanh", "tanh"][: {"RNN": 1, "LSTM": 3, "GRU": 2}[kind]]
    document: dict[str, Any] = {
        "Type": kind,
        "Direction": "FORWARD",
        "ActivationDescs": [FUNCTIONS[name][0] for name in functions],
    }
    if kind == "LSTM":
        document |= {"UseClipThreshold": False, "ClipThreshold": 0, "CoupleInputForget": False}
    elif kind == "GRU":
        document["LinearBeforeReset"] = False

    def made(dtype: str) -> tuple[Array, int]:
        given = {name: None if each is None else each.astype(dtype) for name, each in inputs.items()}
        output = {"OutputSequenceTensor": desc_of(np.zeros((2, 1, 3, hidden), dtype))}
        described = {name: desc_of(each) for name, each in given.items() if each is not None}
        kernel = calls.DEVICE.prepare(calls.compiled(document | output | described))
        return run(document | output, given)["OutputSequenceTensor"], own_bytes(kernel)

    (narrow, more), (wide, own) = made("float16"), made("float32")
    np.testing.assert_array_equal(narrow, wide.astype(np.float16))
    assert more == own + 4 * 2 * 3 * depth


@pytest.mark.parametrize(
    ("sequences", "hidden", "loops"),
    [(16, 1024, True), (17, 1024, False), (17, 1023, True), (256, 1, True), (257, 1, False)],
)
def test_what_blas_multiplies(sequences: int, hidden: int, loops: bool) -> None:
    sizes = {"InputTensor": [1, 1, sequences, 4], "WeightTensor": [1, 1, hidden, 4]}
    sizes |= {"RecurrenceTensor": [1, 1, hidden, hidden], "OutputSingleTensor": [1, 1, sequences, hidden]}
    document = {"Type": "RNN", "Direction": "FORWARD", "ActivationDescs": [FUNCTIONS["tanh"][0]]}
    tensors = {name: {"DataType": "FLOAT32", "Sizes": each} for name, each in sizes.items()}
    with ThreadPoolExecutor(1) as helpers:
        kernel = NumpyDevice(helpers, 1, compiler()).prepare(calls.compiled(document | tensors))
    assert isinstance(kernel, RecurrentKernel) is loops


@pytest.mark.usefixtures("loops")
def test_a_long_loop_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"InputTensor": [1, 64, 1, 64], "WeightTensor": [1, 1, 64, 64], "RecurrenceTensor": [1, 1, 64, 64]}
    tensors = {name: {"DataType": "FLOAT32", "Sizes": each} for name, each in sizes.items()}
    document = {"Type": "RNN", "Direction": "FORWARD", "ActivationDescs": [FUNCTIONS["tanh"][0]]}
    output = {"OutputSingleTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 1, 64]}}
    model = OPERATORS["DML_OPERATOR_RNN"].model_validate(document | tensors | output)
    monkeypatch.setattr(recurrent_calls, "AT_A_TIME", 8 * 64 * 128)
    monkeypatch.setattr(runs, "BETWEEN_LOOKS", 8 * 64 * 128)
    kernel = calls.DEVICE.prepare(compile_operator(model, NEWEST))
    asked = iter([False, False])
    given = [memoryview(bytearray(4 * math.prod(each))) for each in sizes.values()]
    with pytest.raises(Cancelled):
        kernel.dispatch(given, [memoryview(bytearray(256))], lambda: next(asked, True))


def test_all_repeated_inputs() -> None:
    """One number for each tensor, by strides of 0."""
    one = np.float32(0.5)
    inputs: dict[str, Array | None] = {
        "InputTensor": np.broadcast_to(one, (1, 3, 2, 4)),
        "WeightTensor": np.broadcast_to(one, (1, 1, 5, 4)),
        "RecurrenceTensor": np.broadcast_to(one, (1, 1, 5, 5)),
    }
    document = {"Type": "RNN", "Direction": "FORWARD", "ActivationDescs": [FUNCTIONS["tanh"][0]]}
    output = {"OutputSequenceTensor": desc_of(np.zeros((3, 1, 2, 5), np.float32))}
    made = run(document | output, inputs)["OutputSequenceTensor"]
    np.testing.assert_allclose(made, expected("RNN", inputs, ["tanh"], document)["OutputSequenceTensor"], rtol=1e-6)


def test_the_state_between_steps_is_not_rounded_to_float16() -> None:
    """Each step adds a quarter of FLOAT16's distance at 1, of which four are one."""
    document = {"Type": "RNN", "Direction": "FORWARD", "ActivationDescs": [{"Type": "ACTIVATION_IDENTITY"}]}
    inputs: dict[str, Array | None] = {
        "InputTensor": np.full((1, 4, 1, 1), 2.0**-12, np.float16),
        "WeightTensor": np.ones((1, 1, 1, 1), np.float16),
        "RecurrenceTensor": np.ones((1, 1, 1, 1), np.float16),
        "HiddenInitTensor": np.ones((1, 1, 1, 1), np.float16),
    }
    output = {"OutputSingleTensor": desc_of(np.zeros((1, 1, 1, 1), np.float16))}
    assert run(document | output, inputs)["OutputSingleTensor"].item() == 1 + 2.0**-10


@pytest.mark.parametrize("kind", [f"DML_OPERATOR_{kind}" for kind in GATES])
def test_sizes_are_refused_with_the_right_ones(kind: str) -> None:
    whole = descriptor(kind)
    for name in OPERATORS[kind].tensor_names():
        if name == "InputTensor":
            continue
        data_type = DataType.UINT32 if name == "SequenceLengthsTensor" else DataType.FLOAT32
        wrong = [7, 7, 7, 7]
        found = refusals(whole | {name: {"DataType": data_type, "Sizes": wrong}})
        for each in found:
            check_wording(each)
        if name != "RecurrenceTensor":  # which says how many hidden ones there are
            assert [(each.pointer, each.allowed) for each in found] == [(f"/{name}/Sizes", whole[name]["Sizes"])]


@pytest.mark.parametrize(
    ("kind", "members", "pointer", "allowed"),
    [
        ("RNN", {"ActivationDescs": [{"Type": "ACTIVATION_TANH"}] * 2}, "/ActivationDescs", 1),
        ("GRU", {"ActivationDescs": [{"Type": "ACTIVATION_TANH"}]}, "/ActivationDescs", 2),
        ("LSTM", {"ActivationDescCount": 6}, "/ActivationDescCount", 3),
        ("LSTM", {"UseClipThreshold": True, "ClipThreshold": -1}, "/ClipThreshold", ">= 0"),
        (
            "RNN",
            {"OutputSequenceTensor": None, "OutputSingleTensor": None},
            "/OutputSequenceTensor",
            ["OutputSequenceTensor", "OutputSingleTensor"],
        ),
    ],
)
def test_refusals(kind: str, members: dict[str, Any], pointer: str, allowed: object) -> None:
    (refusal,) = refusals(descriptor(f"DML_OPERATOR_{kind}") | members)
    check_wording(refusal)
    assert (refusal.pointer, refusal.allowed) == (pointer, allowed)


@pytest.mark.parametrize("members", [{"UseClipThreshold": True, "ClipThreshold": 0}, {"ClipThreshold": -1}])
def test_thresholds_that_are_not_negative_or_not_used(members: dict[str, Any]) -> None:
    assert refusals(descriptor("DML_OPERATOR_LSTM", UseClipThreshold=False) | members) == []


@pytest.mark.parametrize("kind", [f"DML_OPERATOR_{kind}" for kind in GATES])
def test_no_tensor_may_be_owned(kind: str) -> None:
    whole = descriptor(kind)
    for name in OPERATORS[kind].tensor_names():
        if whole.get(name):
            (refusal,) = refusals(whole | {name: whole[name] | {"Flags": "OWNED_BY_DML"}})
            check_wording(refusal)
            assert refusal.pointer == f"/{name}/Flags"


def test_activations_are_judged() -> None:
    incomplete = {"Type": "ACTIVATION_HARD_SIGMOID", "Alpha": 0.2}
    never = {"Type": "ACTIVATION_SOFTPLUS", "Steepness": 0}
    for activation, name in ((incomplete, "Beta"), (never, "Steepness")):
        (refusal,) = refusals(descriptor("DML_OPERATOR_RNN") | {"ActivationDescs": [activation]})
        assert refusal.pointer == f"/ActivationDescs/0/{name}"
