"""The cases of this folder against the service: what others say that operators beside the first two families make."""

import base64
import gzip
import json
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest

from tests.conformance.client import Case, HttpClient
from tests.conformance.judge import fault
from tests.conformance.sample import LEAST, LONGEST, SAMPLE, chosen
from tests.conftest import RunningServer
from tests.messages import Array


@cache
def cases() -> list[Case]:
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_every_case_passes(encoding: Literal["json", "msgpack"], server: RunningServer) -> None:
    client = HttpClient(server.url, encoding)
    with client.http:
        faults = {case["id"]: fault(case, client.execute(case)) for case in cases()}
    assert len(faults) == len(cases())  # of which none has another's name
    assert {name: found for name, found in faults.items() if found} == {}


def test_it_is_small_and_has_every_kind_of_case() -> None:
    assert SAMPLE.stat().st_size <= 150 << 10
    assert len({case["operator"] for case in cases()}) == 58
    assert {case["tolerance"]["kind"] for case in cases()} >= {"exact", "rel"}
    assert any(isinstance(tensor, list) for case in cases() for tensor in case["tensors"].values())
    outputs = [output for case in cases() for output in case.get("outputs", [])]
    assert any("index" in output for output in outputs)
    assert any("compare" in output for output in outputs)


X = np.array([1, -2, np.inf, np.nan], np.float32)


def expecting(array: Array, kind: str = "exact", value: float = 0, **members: Any) -> Case:
    data = base64.b64encode(array.tobytes()).decode()
    output = {"name": "OutputTensor", "DataType": array.dtype.name.upper(), "Sizes": list(array.shape)}
    limits = {name: members.pop(name) for name in ["atol"] if name in members}
    return {
        "outputs": [output | {"data_b64": data} | members],
        "tolerance": {"kind": kind, "value": value} | limits,
    }


def judged(case: Case, made: Array | list[Array]) -> str | None:
    return fault(case, (200, {"OutputTensor": made}, {}))


@pytest.mark.parametrize("kind", ["exact", "ulp", "abs", "rel"])
def test_what_is_expected_passes(kind: str) -> None:
    assert judged(expecting(X, kind), X.copy()) is None


@pytest.mark.parametrize(
    ("kind", "value", "limits", "within", "beyond"),
    [
        ("exact", 0, {}, 2, np.nextafter(np.float32(2), np.float32(3))),
        ("ulp", 2, {}, 2 + 2**-21, 2 + 2**-20),
        ("abs", 0.25, {}, 2.25, 2.5),
        ("rel", 0.125, {}, 1.75, 1.5),
        ("rel", 0.125, {"atol": 0.25}, 1.5, 1.25),
    ],
)
def test_tolerances_hold_for_each_element(
    kind: str, value: float, limits: dict[str, float], within: float, beyond: float
) -> None:
    expected = np.array([5, 2], np.float32)
    case = expecting(expected, kind, value, **limits)
    assert judged(case, np.array([5, within], np.float32)) is None
    assert judged(case, np.array([5, beyond], np.float32))


@pytest.mark.parametrize("kind", ["exact", "ulp", "abs", "rel"])
@pytest.mark.parametrize("place", [2, 3])
def test_nothing_is_near_an_infinity_or_nan(kind: str, place: int) -> None:
    for other in (1, -np.inf, np.nan if place == 2 else np.inf):
        made = X.copy()
        made[place] = other
        assert judged(expecting(X, kind, 1e30), made)


def test_whole_numbers_have_no_tolerance() -> None:
    assert judged(expecting(np.array([3], np.int32), "rel", 1), np.array([4], np.int32))


def test_shape_and_type_count() -> None:
    assert judged(expecting(X), X.reshape(2, 2))
    assert judged(expecting(X), X.astype(np.float64))


def test_only_what_is_to_be_compared_counts() -> None:
    case = expecting(X[:2], compare=[[0, 1]])
    assert judged(case, np.array([1, 7], np.float32)) is None
    assert judged(case, np.array([7, -2], np.float32))


def test_each_tensor_of_an_array() -> None:
    case = expecting(X, index=1)
    assert judged(case, [X[:1], X]) is None
    assert judged(case, [X, X[:1]])
    assert judged(case, [X])
    assert judged(case, X)


def test_refusals_and_missing_outputs_are_faults() -> None:
    assert fault(expecting(X), (422, None, "Sizes"))
    assert fault(expecting(X), (200, {"OtherTensor": X}, {}))


def line(case_id: int, padding: int = 0, **attributes: Any) -> str:
    case = {"id": case_id, "attributes": attributes, "tensors": {}, "output": {"name": "Y", "DataType": "INT8"}}
    return json.dumps(case | {"padding": "x" * padding})


def test_a_sample_has_each_choice_and_is_of_short_cases() -> None:
    modes = [line(each, Mode=f"MODE_{each % 5}") for each in range(20)]
    assert sorted(json.loads(each)["attributes"]["Mode"] for each in chosen(modes)) == [f"MODE_{k}" for k in range(5)]
    numbers = [line(each, Alpha=each) for each in range(20)]
    assert chosen(numbers) == numbers[:LEAST]
    long = line(1, LONGEST, Mode="OTHER")
    assert chosen([*modes[:1], long]) == modes[:1]
    assert chosen([long]) == [long]
