"""Graphs in place of operators: compiled, initialized and executed by one request."""

from typing import Any

import httpx
import msgpack
import numpy as np
import pytest

from tests.conftest import ServerFactory
from tests.graphs.documents import QUANTIZED, Document, add, between, graph, into, of_many_inputs, out, relu, tensor
from tests.graphs.requests import BIAS, X, Y, biased, post, result, weighted
from tests.http.load import metric
from tests.http.refusals import error_at, refusal_of
from tests.messages import answer_of

PATH = "/v1/dispatch"
both = pytest.mark.parametrize("binary", [True, False], ids=["MessagePack", "JSON"])
DATA = {"x": X.tobytes()}


@both
def test_by_names_with_a_constant_that_is_broadcast(client: httpx.Client, binary: bool) -> None:
    response = post(client, PATH, {"graph": biased(), "inputs": DATA}, binary)
    np.testing.assert_array_equal(result(response), Y)
    answer = answer_of(response)
    assert answer["execution"]["in_place"] is False
    facts = answer["capability"]
    assert (facts["nodes"], facts["kernels"], facts["feature_level"]) == (3, 1, "DML_FEATURE_LEVEL_6_4")
    assert facts["operators"] == ["DML_OPERATOR_ELEMENT_WISE_ADD", "DML_OPERATOR_ACTIVATION_RELU"]


@both
def test_null_is_what_is_left_out(client: httpx.Client, binary: bool) -> None:
    left_out = dict.fromkeys(("operator", "feature_level", "device", "data"))
    response = post(client, PATH, {"graph": biased(), "inputs": DATA} | left_out, binary)
    np.testing.assert_array_equal(result(response), Y)
    error_at("/operator", post(client, PATH, {"graph": biased(), "inputs": DATA, "operator": {}}, binary))


@both
def test_null_is_what_is_bound_to_an_input_that_no_node_reads(client: httpx.Client, binary: bool) -> None:
    document = weighted() | {"InputCount": 12}
    inputs = {"0": X.tobytes(), "1": X.tobytes()}
    response = post(client, PATH, {"graph": document, "inputs": inputs | {"2": None, "11": None}}, binary)
    np.testing.assert_array_equal(result(response, "0"), X + np.maximum(X, 0))
    for name in ("12", "02", "-1", "\u0663", "z", "9" * 5000):
        wrong = post(client, PATH, {"graph": document, "inputs": inputs | {name: None}}, binary)
        assert "has no input" in error_at(f"/inputs/{name}", wrong)["message"]
    for name in inputs:
        wrong = post(client, PATH, {"graph": document, "inputs": inputs | {name: None}}, binary)
        assert "are null" in error_at(f"/inputs/{name}", wrong)["message"]
    by_name = post(client, PATH, {"graph": biased() | {"InputCount": 1}, "inputs": DATA | {"0": None}}, binary)
    assert "has no input 0" in error_at("/inputs/0", by_name)["message"]


def test_a_refusal_does_not_tell_all_inputs_of_a_graph_that_has_many(client: httpx.Client) -> None:
    names = [f"x{index:02}" + "y" * 500 for index in range(40)]
    document = of_many_inputs(names)
    refused = post(client, PATH, {"graph": document, "inputs": dict.fromkeys(map(str, range(40)), b"1234")})
    error = refused.json()["errors"][0]
    assert error["message"].startswith("graph has no input 0; inputs are x00")
    assert error["allowed"] == ["one of 40 names"]
    assert len(refused.content) < 100_000


@both
def test_by_indices_with_an_input_that_is_owned(client: httpx.Client, binary: bool) -> None:
    for again in range(3):  # the third is found by the second
        w = X[::-1] * (again + 1)
        response = post(client, PATH, {"graph": weighted(), "inputs": {"0": X.tobytes(), "1": w.tobytes()}}, binary)
        np.testing.assert_array_equal(result(response, "0"), X + np.maximum(w, 0))


@both
def test_each_has_its_own_constants(client: httpx.Client, binary: bool) -> None:
    for value in range(4):
        response = post(client, PATH, {"graph": biased(BIAS * value), "inputs": DATA}, binary)
        np.testing.assert_array_equal(result(response), np.maximum(X + BIAS * value, 0))


def test_two_outputs_and_one_input_for_several_readers(client: httpx.Client) -> None:
    document = graph(
        [add("sum"), relu("positive")],
        [into("x", "sum", "ATensor"), into("x", "sum", "BTensor"), into("x", "positive", "InputTensor")],
        [out("sum", "twice", "OutputTensor"), out("positive", "once", "OutputTensor")],
    )
    response = post(client, PATH, {"graph": document, "inputs": DATA})
    np.testing.assert_array_equal(result(response, "twice"), X + X)
    np.testing.assert_array_equal(result(response, "once"), np.maximum(X, 0))


def test_the_metrics_count_it_as_a_graph(client: httpx.Client) -> None:
    before = metric(client, "dispatches_total", operator="graph", device="numpy")
    result(post(client, PATH, {"graph": biased(), "inputs": DATA}))
    assert metric(client, "dispatches_total", operator="graph", device="numpy") == before + 1


def test_a_reader_of_rows_with_the_gaps_between_them(client: httpx.Client) -> None:
    """Which no coordinates of the writer lead to; they are 0."""
    rows = tensor(sizes=(2, 3), Strides=[8, 1])
    flat = tensor(sizes=(8,), TotalTensorSizeInBytes=44)
    document = graph(
        [relu("rows", OutputTensor=rows), relu("flat", flat)],
        [into("x", "rows", "InputTensor")],
        [out("flat", "y", "OutputTensor")],
        [between("rows", "flat", "InputTensor", "OutputTensor")],
    )
    response = post(client, PATH, {"graph": document, "inputs": DATA})
    np.testing.assert_array_equal(result(response), [*np.maximum(X[0], 0), 0, 0, 0, 0, 0])


def changed(document: Document, where: list[Any], value: object) -> Document:
    part: Any = (document := msgpack.unpackb(msgpack.packb(document)))  # nothing in it is shared
    for name in where[:-1]:
        part = part[name]
    part[where[-1]] = value
    return document


REFUSED = {
    "unknown operator": (["Nodes", 0, "Desc", "Type"], "NO_SUCH", "/graph/Nodes/0/Desc/Type"),
    "wrong field": (["Nodes", 2, "Desc", "Alpha"], 1, "/graph/Nodes/2/Desc/Alpha"),
    "bad sizes": (["Nodes", 2, "Desc", "InputTensor", "Sizes"], [], "/graph/Nodes/2/Desc/InputTensor/Sizes"),
    "unknown node": (["InputEdges", 0, "ToNode"], "nobody", "/graph/InputEdges/0/ToNode"),
    "unknown tensor": (["IntermediateEdges", 1, "ToNodeInput"], "ATensor", "/graph/IntermediateEdges/1/ToNodeInput"),
    "unequal bytes": (["Nodes", 2, "Desc", "InputTensor", "Sizes"], [2, 4], "/graph/IntermediateEdges/1"),
    "length of a constant": (["Nodes", 1, "Data"], b"\0" * 8, "/graph/Nodes/1/Data"),
    "no edges": (["OutputEdges"], [], "/graph/OutputEdges"),
    "count": (["NodeCount"], 7, "/graph/NodeCount"),
}


@pytest.mark.parametrize(("where", "value", "pointer"), REFUSED.values(), ids=REFUSED)
@both
def test_what_is_wrong_is_pointed_at(
    client: httpx.Client, binary: bool, where: list[Any], value: object, pointer: str
) -> None:
    document = changed(biased(), where, value)
    error_at(pointer, post(client, PATH, {"graph": document, "inputs": DATA}, binary))
    error_at(pointer, post(client, "/v1/graphs", {"graph": document}, binary))


@both
def test_data_of_a_constant_in_another_form(client: httpx.Client, binary: bool) -> None:
    document = changed(biased(), ["Nodes", 1, "Data"], 7)
    error = error_at("/graph/Nodes/1/Data", post(client, PATH, {"graph": document, "inputs": DATA}, binary))
    assert error["message"].startswith("Data of Nodes[1] must be ")


@both
def test_inputs_must_be_those_of_the_graph(client: httpx.Client, binary: bool) -> None:
    def refused(inputs: Document) -> dict[str, Any]:
        return refusal_of(post(client, PATH, {"graph": biased(), "inputs": inputs}, binary), 422)

    assert [error["pointer"] for error in refused({})["errors"]] == ["/inputs/x"]
    assert [error["pointer"] for error in refused(DATA | {"z": b"\0"})["errors"]] == ["/inputs/z"]
    short = refused({"x": X.tobytes()[:20]})["errors"][0]
    assert (short["pointer"], short["given"], short["allowed"]) == ("/inputs/x", 20, [24])


@pytest.mark.parametrize("data", [[1.0, 2.0], "AAAA", {"Sizes": [1], "data": [1.0]}, 5])
def test_an_input_that_there_is_not(client: httpx.Client, data: Any) -> None:
    error_at("/inputs/other", post(client, PATH, {"graph": biased(), "inputs": DATA | {"other": data}}, False))


def test_owned_inputs_must_be_there_and_fit(client: httpx.Client) -> None:
    missing = post(client, PATH, {"graph": weighted(), "inputs": {"0": X.tobytes()}})
    error_at("/inputs/1", missing)
    short = post(client, PATH, {"graph": weighted(), "inputs": {"0": X.tobytes(), "1": bytes(20)}})
    assert error_at("/inputs/1", short)["given"] == 20


def test_feature_levels(client: httpx.Client) -> None:
    message = {"graph": biased(), "inputs": DATA}
    error_at("/graph/Nodes/1/Type", post(client, PATH, message | {"feature_level": "6_1"}))
    error_at("/graph", post(client, PATH, message | {"feature_level": "2_0"}))


def test_other_fields(client: httpx.Client) -> None:
    message = {"graph": biased(), "inputs": DATA}
    error_at("/device", post(client, PATH, message | {"device": "cuda:77"}))
    error_at("/in_place", post(client, PATH, message | {"in_place": "x"}))
    error_at("/operator", post(client, PATH, message | {"operator": {}}))


def test_what_readers_leave_out_cannot_be_fed(client: httpx.Client) -> None:
    document = graph([QUANTIZED], [into(0, 0), into(1, 0, 1), into(2, 0, 2)], [out(0)])
    error_at("/graph/InputEdges/2/ToNodeInputIndex", post(client, PATH, {"graph": document, "inputs": {}}))


def test_limits(start_server: ServerFactory) -> None:
    running = start_server("--max-tensor-bytes", "1024", "--max-graph-nodes", "3", "--max-structure-bytes", "2048")
    with httpx.Client(base_url=running.url) as client:
        result(post(client, PATH, {"graph": biased(), "inputs": DATA}))
        large = tensor(sizes=(257,))
        over = graph([relu(), relu(desc=large)], [into(0, 0), into(1, 1)], [out(0), out(1, 1)])
        error_at("/graph/Nodes/1/Desc/InputTensor", post(client, PATH, {"graph": over, "inputs": {}}), 413)
        many = graph([relu()] * 4, [into(0, 0)], [out(3)], [between(each, each + 1) for each in range(3)])
        error_at("/graph/Nodes", post(client, PATH, {"graph": many, "inputs": {}}))
        long = refusal_of(post(client, PATH, {"graph": biased(), "inputs": DATA, "device": "d" * 3000}), 413)
        assert "max_structure_bytes" in long["detail"]
