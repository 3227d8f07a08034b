"""Every error has a type that stays what it is, and a place on the page that tells of it."""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException

import app
from app.codecs.structure import Unreadable
from app.contract.kinds import MEANINGS, Kind, kind_at
from app.contract.violations import MAX_VIOLATIONS, ContractError, Violation, refused
from app.engine.dispatch import bind
from app.engine.graph_store import GraphConflict, StoreFull, UnknownGraph
from app.engine.service import Abandoned, DeadlineExceeded, Draining
from app.engine.workers import QueueFull
from app.http.core.documents import CODECS
from app.http.core.exchange import Disconnected
from app.http.core.problems import EXPECTED, OF_STATUS, Problem, Throttled, problem_for
from app.http.native.inputs import described
from app.http.server.replies import head_of
from app.memory.accounts import LimitExceeded, MemoryExhausted
from app.operators.catalog import OPERATORS
from tests.http.refusals import error_at, refusal_of
from tests.messages import problem_of

RAISED: list[tuple[type[Exception], Exception | None, Kind]] = [
    (Unreadable, Unreadable("It is not."), Kind.UNREADABLE),
    (LimitExceeded, LimitExceeded("max_body_bytes", "Bytes", 2, 1), Kind.LIMIT),
    (LimitExceeded, LimitExceeded("max_tensor_bytes", "Bytes", 2, 1, ("operator", "InputTensor")), Kind.LIMIT),
    (MemoryExhausted, MemoryExhausted(2, 1), Kind.MEMORY),
    (MemoryError, MemoryError("65536 bytes"), Kind.MEMORY),
    (Draining, Draining(), Kind.DRAINING),
    (DeadlineExceeded, DeadlineExceeded(), Kind.DEADLINE),
    (Abandoned, Abandoned(), Kind.TIMEOUT),
    (Disconnected, Disconnected(), Kind.TIMEOUT),
    (Throttled, Throttled("Later."), Kind.RATE),
    (HTTPException, HTTPException(403), Kind.NOT_ALLOWED),
    (HTTPException, HTTPException(404), Kind.NOT_FOUND),
    (HTTPException, HTTPException(405), Kind.METHOD),
    (HTTPException, HTTPException(406, "No."), Kind.NOT_ACCEPTABLE),
    (HTTPException, HTTPException(415, "No."), Kind.MEDIA_TYPE),
    (Exception, Exception(), Kind.INTERNAL),
]
PATHS: list[tuple[tuple[str | int, ...], Kind]] = [
    (("operator", "InputTensor", "DataType"), Kind.DATA_TYPE),
    (("operator", "InputTensors", 1, "Sizes"), Kind.SIZES),
    (("InputTensor", "Strides"), Kind.STRIDES),
    (("operator", "InputTensor", "Flags"), Kind.LAYOUT),
    (("operator", "Sizes"), Kind.ATTRIBUTE),
    (("operator", "Alpha"), Kind.ATTRIBUTE),
    (("operator", "FusedActivation", "Alpha"), Kind.ATTRIBUTE),
    (("inputs", "InputTensor"), Kind.DATA),
    (("inputs", "InputTensor", "Sizes"), Kind.DATA),
    (("in_place",), Kind.IN_PLACE),
    (("device",), Kind.DEVICE),
    (("graph", "InputEdges", 0, "ToNode"), Kind.GRAPH),
    (("graph", "Nodes", 0, "Desc", "InputTensor", "Sizes"), Kind.SIZES),
    (("graph", "Nodes", 0, "Desc", "Alpha"), Kind.ATTRIBUTE),
    (("Accept",), Kind.OUTPUT),
    ((), Kind.FIELD_TYPE),
]
CELU = {"Type": "ACTIVATION_CELU", "InputTensor": {"DataType": "FLOAT32", "Sizes": [1]}}


@pytest.mark.parametrize(("error", "kind"), [(error, kind) for _, error, kind in RAISED if error])
def test_what_is_raised(error: Exception, kind: Kind) -> None:
    assert problem_of_error(error)["type"] == kind.uri


def problem_of_error(error: Exception) -> dict[str, Any]:
    made: dict[str, Any] = httpx.Response(200, content=b"".join(problem_for(error).at("/").pieces)).json()
    return made


@pytest.mark.parametrize(("path", "kind"), PATHS)
def test_where_it_is(path: tuple[str | int, ...], kind: Kind) -> None:
    problem = problem_of_error(refused(path, "No."))
    assert problem["type"] == problem["errors"][0]["type"] == kind.uri


def test_every_kind_can_be_raised_and_is_told_of() -> None:
    """By an exception or a status, by a path, or by who names it."""
    named: set[str] = set()
    for file in Path(app.__file__).parent.rglob("*.py"):
        if file.name != "kinds.py":
            named |= {
                node.attr
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Kind"
            }
    raised = {Kind[name] for name in named} | {kind for _, kind in PATHS}
    assert raised == set(Kind) == set(MEANINGS)
    known = {kind for kind, _, _ in RAISED} | {UnknownGraph, GraphConflict, StoreFull, QueueFull}
    assert set(EXPECTED) - {type(refused((), ""))} <= known


@pytest.mark.parametrize("status", [*OF_STATUS, 402, 501])
def test_every_status_has_a_kind(status: int) -> None:
    problem = Problem(status, "No.").document
    assert Kind(problem["type"].removeprefix("/errors#")) is OF_STATUS.get(
        status, Kind.UNSUPPORTED if status > 500 else Kind.UNREADABLE
    )


@pytest.mark.parametrize(
    ("status", "phrase"),
    [
        (400, "Bad Request"),
        (413, "Content Too Large"),
        (414, "URI Too Long"),
        (416, "Range Not Satisfiable"),
        (422, "Unprocessable Content"),
    ],
)
def test_phrases_are_the_same_whichever_python_it_is(status: int, phrase: str) -> None:
    reply = Problem(status, "No.").at("/")
    assert head_of(reply, []).startswith(f"HTTP/1.1 {status} {phrase}\r\n".encode())
    assert httpx.Response(200, content=b"".join(reply.pieces)).json()["title"] == phrase


def test_tensors_are_told_by_their_names() -> None:
    for operator in OPERATORS.values():
        for name in operator.tensor_names():
            assert kind_at(("operator", name, "Sizes")) is Kind.SIZES


@pytest.mark.parametrize(
    ("given", "allowed", "options"),
    [
        ("INT8", ["FLOAT32", "FLOAT16"], ["FLOAT32", "FLOAT16"]),
        ([2, 3], [3, 2], [[3, 2]]),
        ([2, 3], [[3, 2], [1, 6]], [[3, 2], [1, 6]]),
        (2, [4, 5], [4, 5]),
        (0, ">= 1", [">= 1"]),
        (0, None, []),
    ],
)
def test_what_is_allowed_is_a_list_of_it(given: object, allowed: object, options: list[object]) -> None:
    assert Violation(("x",), "No.", given, allowed).options == options


@pytest.mark.parametrize("kind", [Kind.NAME, Kind.FIELD_UNKNOWN])
def test_names_are_allowed_one_by_one_whatever_was_given(kind: Kind) -> None:
    assert Violation(("x",), "No.", ["a"], ["b", "c"], kind).options == ["b", "c"]


def test_names_are_told_one_by_one_where_a_list_was_given(client: httpx.Client) -> None:
    relu = {"Type": "ACTIVATION_RELU", "InputTensor": {"DataType": ["FLOAT32"], "Sizes": [1]}, "Axes": [0]}
    document = {"operator": relu, "inputs": {}, "data": ["numbers"]}
    for pointer in ("/operator/InputTensor/DataType", "/operator/Axes", "/data"):
        allowed = error_at(pointer, client.post("/v1/dispatch", json=document))["allowed"]
        assert {*map(type, allowed)} == {str}


def test_the_page_has_each(client: httpx.Client) -> None:
    page = client.get("/errors")
    assert page.headers["content-type"].startswith("text/html")
    assert re.findall(r'<dt id="([\w-]+)"', page.text) == [kind.value for kind in Kind]
    assert all(client.get("/errors").text.count(f"#{kind}") for kind in Kind)
    assert client.head("/errors").content == b""


@pytest.mark.parametrize(
    ("operator", "pointer", "kind", "meant"),
    [
        (CELU | {"Type": "ACTIVATION_CELUU"}, "/operator/Type", Kind.NAME, "ACTIVATION_CELU"),
        (CELU | {"Type": "DML_OPERATOR_ACTIVATON_CELU"}, "/operator/Type", Kind.NAME, "DML_OPERATOR_ACTIVATION_CELU"),
        (CELU | {"Type": "activation_celu"}, "/operator/Type", Kind.NAME, "ACTIVATION_CELU"),
        (CELU | {"Alpa": 1}, "/operator/Alpa", Kind.FIELD_UNKNOWN, "Alpha"),
        (
            CELU | {"InputTensor": {"DataType": "FLOAT23", "Sizes": [1]}},
            "/operator/InputTensor/DataType",
            Kind.NAME,
            "FLOAT32",
        ),
        (CELU | {"Alpha": "x"}, "/operator/Alpha", Kind.FIELD_TYPE, None),
        (CELU | {"Alfa": 2}, "/operator/Alfa", Kind.FIELD_UNKNOWN, "Alpha"),
        (CELU | {"Type": "xyz"}, "/operator/Type", Kind.NAME, None),
        ({"Type": "ACTIVATION_CELU"}, "/operator/InputTensor", Kind.FIELD_MISSING, None),
    ],
)
def test_misspelt_names(client: httpx.Client, operator: Any, pointer: str, kind: Kind, meant: str | None) -> None:
    refused = client.post("/v1/dispatch", json={"operator": operator, "inputs": {"InputTensor": "AACAPw=="}})
    error = error_at(pointer, refused)
    assert error["type"] == kind.uri
    assert re.findall(r"Did you mean (\S+)\?", error["message"]) == ([meant] if meant else [])


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("OPERATER", "OPERATOR"),
        ("DML_GRAPH_NODE_TYPE_OPERATER", "DML_GRAPH_NODE_TYPE_OPERATOR"),
        ("GRAPH_NODE_TYPE_OPERATOR", None),  # which has half of a prefix
        ("GEMM", None),  # which goes into an operator's Desc
        (5, None),
    ],
)
def test_misspelt_types_are_meant_with_their_prefix_or_without(
    client: httpx.Client, given: object, meant: str | None
) -> None:
    graph = {"Nodes": [{"Type": given}], "InputEdges": [], "OutputEdges": []}
    error = error_at("/graph/Nodes/0/Type", client.post("/v1/dispatch", json={"graph": graph, "inputs": {}}))
    known = f"Type {given} is not known here; known are OPERATOR, CONSTANT."
    assert error["message"] == known + (f" Did you mean {meant}?" if meant else "")
    assert error["allowed"] == ["DML_GRAPH_NODE_TYPE_OPERATOR", "DML_GRAPH_NODE_TYPE_CONSTANT"]


def test_misspelt_names_elsewhere(client: httpx.Client) -> None:
    unknown = refusal_of(client.get("/v1/operators/ACTIVATION_CELUU"), 404)
    assert unknown["detail"].endswith("Did you mean ACTIVATION_CELU?")
    assert unknown["type"] == "/errors#not-found"
    x = {"operator": CELU, "inputs": {"InputTensr": "AACAPw=="}}
    assert "Did you mean InputTensor?" in error_at("/inputs/InputTensr", client.post("/v1/dispatch", json=x))["message"]
    numbers = {"operator": {"Type": "ACTIVATION_CELU"}, "inputs": {"InputTensr": [1]}}
    (error,) = problem_of(client.post("/v1/dispatch", json=numbers), 422)["errors"]
    assert (error["pointer"], error["allowed"]) == ("/inputs/InputTensr", ["InputTensor"])
    assert error["message"].endswith("Did you mean InputTensor?")
    wrong = numbers | {"operator": {"Type": "ACTIVATION_CELU", "Alfa": 1}, "devise": "auto"}
    told = problem_of(client.post("/v1/dispatch", json=wrong), 422)
    assert [each["pointer"] for each in told["errors"]] == ["/inputs/InputTensr", "/operator/Alfa", "/devise"]
    assert "hresult" not in told
    two = {"operator": {"Type": "ELEMENT_WISE_ADD", "ATensor": {"DataType": "FLOAT32", "Sizes": [0]}}}
    told = problem_of(client.post("/v1/dispatch", json=two | {"inputs": {"ATensor": [1], "BTenser": [1]}}), 422)
    assert [each["pointer"] for each in told["errors"]] == ["/inputs/BTenser", "/operator/ATensor/Sizes/0"]
    told = problem_of(
        client.post("/v1/dispatch", json=two | {"inputs": {"ATensr": [1], "BTensor": [[1], [2, 3]]}}), 422
    )
    assert [each["pointer"] for each in told["errors"]] == ["/inputs/ATensr", "/inputs/BTensor"]
    placed = client.post("/v1/dispatch", json=numbers | {"inputs": {"InputTensor": [1]}, "in_place": "InputTenso"})
    assert error_at("/in_place", placed)["message"].endswith("Did you mean InputTensor?")
    level = problem_of(client.post("/v1/dispatch", json={"operator": CELU, "inputs": {}, "feature_level": "2_0"}), 422)
    assert level["type"] == "/errors#feature-level"


def test_suggestions_are_made_for_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a while, and a request may have ten thousands of names that are not known."""
    made: list[object] = []

    def suggest(given: object, known: object) -> str:
        made.append(given)
        return ""

    names: Any = {f"InputTenso{number}": [1] for number in range(1000)}
    document = {"operator": {"Type": "ACTIVATION_CELU"}, "inputs": names}
    monkeypatch.setattr("app.http.native.inputs.did_you_mean", suggest)
    monkeypatch.setattr("app.engine.dispatch.meant", suggest)
    unused: Any = None
    work: Any = SimpleNamespace(name="X", inputs={}, is_known=lambda name: False)
    refusals: list[Callable[[], object]] = [
        lambda: described(document, CODECS["application/json"], unused),
        lambda: bind(work, names),
    ]
    for refuse in refusals:
        made.clear()
        with pytest.raises(ContractError) as error:
            refuse()
        assert len(error.value.violations) == len(made) == MAX_VIOLATIONS
