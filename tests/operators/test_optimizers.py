"""ADAM_OPTIMIZER: three outputs, each after the formula of the documentation, in place as well."""

import base64
from typing import Any

import httpx
import numpy as np
import pytest

from tests import messages
from tests.operators.descriptors import descriptor, refusals

KIND = "DML_OPERATOR_ADAM_OPTIMIZER"
NAMES = ("InputParametersTensor", "InputFirstMomentTensor", "InputSecondMomentTensor", "GradientTensor")


def step(x: Any, m: Any, v: Any, g: Any, *, t: float) -> list[Any]:
    """The formula once more."""
    rate, beta1, beta2, epsilon = (float(np.float32(each)) for each in (0.001, 0.9, 0.999, 1e-8))
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    correction = np.sqrt(1 - beta2**t) / (1 - beta1**t)
    return [x - rate * correction * m / (np.sqrt(v) + epsilon), m, v]


@pytest.mark.parametrize("in_place", [None, *NAMES])
@pytest.mark.parametrize(("data_type", "dtype"), [("FLOAT32", np.float32), ("FLOAT16", np.float16)])
@pytest.mark.parametrize(("sizes", "counted"), [([1, 1, 2, 3], None), ([1, 2, 30, 50], None), ([1, 1, 2, 3], "UINT32")])
def test_a_step(
    client: httpx.Client, in_place: str | None, data_type: str, dtype: Any, sizes: list[int], counted: str | None
) -> None:
    rng = np.random.default_rng(1)
    x, m, v, g = (rng.standard_normal(sizes).astype(dtype) for _ in range(4))
    v = abs(v)
    t = np.full([1, 1, 1, 1], 3, np.uint32 if counted else dtype)
    desc = {"DataType": data_type, "Sizes": sizes}
    arrays = dict(zip((*NAMES, "TrainingStepTensor"), (x, m, v, g, t), strict=True))
    document = {
        "operator": descriptor(KIND, desc)
        | {"TrainingStepTensor": {"DataType": counted or data_type, "Sizes": [1, 1, 1, 1]}},
        "inputs": {name: base64.b64encode(each.tobytes()).decode() for name, each in arrays.items()},
    } | ({"in_place": in_place} if in_place else {})
    answer = messages.answer_of(client.post("/v1/dispatch", json=document))
    assert list(answer["outputs"]) == [
        "OutputParametersTensor",
        "OutputFirstMomentTensor",
        "OutputSecondMomentTensor",
    ]
    assert answer["execution"]["in_place"] == bool(in_place)
    expected = step(*[each.astype(np.longdouble) for each in (x, m, v, g)], t=3)
    for output, wanted in zip(answer["outputs"].values(), expected, strict=True):
        assert output["Sizes"] == sizes
        found = np.frombuffer(output["data"], dtype).reshape(sizes)
        np.testing.assert_array_max_ulp(found, wanted.astype(dtype), 1)


@pytest.mark.parametrize("name", ["Beta1", "Beta2"])
@pytest.mark.parametrize(("value", "fits"), [(0, True), (1, True), (-0.1, False), (1.001, False)])
def test_betas_lie_from_0_to_1(name: str, value: float, fits: bool) -> None:
    assert [each.pointer for each in refusals(descriptor(KIND, **{name: value}))] == ([] if fits else [f"/{name}"])


def test_a_step_is_one_number() -> None:
    desc = {"DataType": "FLOAT32", "Sizes": [1, 1, 1, 2]}
    assert [each.pointer for each in refusals(descriptor(KIND, TrainingStepTensor=desc))] == [
        "/TrainingStepTensor/Sizes"
    ]


def test_outputs_are_picked_in_an_inference(client: httpx.Client) -> None:
    tensors = [{"name": name, "shape": [1, 1, 1, 2], "datatype": "FP32", "data": [1.0, 2.0]} for name in NAMES] + [
        {"name": "TrainingStepTensor", "shape": [1, 1, 1, 1], "datatype": "FP32", "data": [1.0]}
    ]
    wanted: list[dict[str, Any]] = [
        {"name": "OutputSecondMomentTensor", "parameters": {"binary_data": True}},
        {"name": "OutputFirstMomentTensor"},
    ]
    document = {"inputs": tensors, "outputs": wanted, "parameters": {"LearningRate": 0.5}}
    response = client.post("/v2/models/adam_optimizer/infer", json=document)
    assert response.status_code == 200, response.text
    size = int(response.headers["inference-header-content-length"])
    answer = httpx.Response(200, content=response.content[:size]).json()
    assert [each["name"] for each in answer["outputs"]] == [each["name"] for each in wanted]
    assert answer["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert answer["outputs"][1]["data"] == pytest.approx([1.0, 2.0])
    assert np.frombuffer(response.content[size:], np.float32) == pytest.approx([1.0, 2.002], rel=1e-6)
    everything = client.post("/v2/models/adam_optimizer/infer", json=document | {"outputs": None}).json()
    assert len(everything["outputs"]) == 3
    twice = client.post("/v2/models/adam_optimizer/infer", json=document | {"outputs": [{"name": "OutputTensor"}]})
    assert twice.status_code >= 400
