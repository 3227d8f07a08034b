"""Content-Type says what comes in, Accept what goes out, each on its own."""

import itertools

import httpx
import msgpack
import numpy as np
import pytest

from tests.http.refusals import refusal_of
from tests.messages import CELU, array_of, as_json, decoded, request

JSON = "application/json"
MSGPACK = "application/msgpack"
ALIASES = ["application/x-msgpack", "application/vnd.msgpack"]

X = np.array([1, 2, 3], np.float32)
MESSAGE = request(CELU, {"InputTensor": X})
BODIES = {JSON: httpx.Request("POST", "http://test", json=as_json(MESSAGE)).content, MSGPACK: msgpack.packb(MESSAGE)}


def dispatch(client: httpx.Client, content_type: str | None, *accept: str, kind: str = JSON) -> httpx.Response:
    """A valid dispatch in `kind`, with these Content-Type and Accept lines."""
    headers = [("accept", line) for line in accept]
    if content_type is not None:
        headers.append(("content-type", content_type))
    made = client.build_request("POST", "/v1/dispatch", content=BODIES[kind], headers=headers)
    if not accept:
        del made.headers["accept"]
    return client.send(made)


def assert_answered_in(kind: str, response: httpx.Response) -> None:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == kind
    answer = decoded(response.json()) if kind == JSON else msgpack.unpackb(response.content)
    np.testing.assert_array_equal(array_of(answer["outputs"]["OutputTensor"]), X)


@pytest.mark.parametrize(("sent", "wanted"), list(itertools.product([JSON, MSGPACK], repeat=2)))
def test_each_is_chosen_independently(client: httpx.Client, sent: str, wanted: str) -> None:
    assert_answered_in(wanted, dispatch(client, sent, wanted, kind=sent))


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases_of_msgpack(client: httpx.Client, alias: str) -> None:
    assert_answered_in(MSGPACK, dispatch(client, alias, alias, kind=MSGPACK))


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("application/json; charset=utf-8", JSON),
        ("application/json;charset=UTF-8", JSON),
        ("Application/JSON", JSON),
        ("APPLICATION/MSGPACK ; v=1", MSGPACK),
    ],
)
def test_content_type_with_parameters_and_in_any_case(client: httpx.Client, content_type: str, kind: str) -> None:
    assert_answered_in(JSON, dispatch(client, content_type, kind=kind))


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        ([], JSON),
        ([""], JSON),  # no preference, as a list without elements
        ([","], JSON),
        ([", ,"], JSON),
        (["", "application/msgpack"], MSGPACK),
        ([",application/msgpack,,"], MSGPACK),
        (["*/*"], JSON),
        (["application/*"], JSON),
        (["application/msgpack"], MSGPACK),
        (["application/vnd.msgpack, text/html"], MSGPACK),
        (["application/json;q=0.5, application/msgpack;q=0.9"], MSGPACK),
        (["application/json;q=0.9, application/msgpack;q=0.5"], JSON),
        (["application/json, application/msgpack"], JSON),
        (["application/msgpack, application/json"], JSON),
        (["*/*;q=0.1, application/msgpack"], MSGPACK),
        (["application/json;q=0, */*"], MSGPACK),
        (["application/json; q=0.1 , application/*;q=0.2"], MSGPACK),
        (["text/html, application/xhtml+xml, */*;q=0.8"], JSON),
        (["application/json; indent=2; q=0.3"], JSON),
        (["application/json;q=0, application/msgpack;q=0.5, application/json"], JSON),  # the most that is said of it
        (["APPLICATION/MSGPACK"], MSGPACK),
        (["text/html", "application/msgpack"], MSGPACK),
        (["application/json;q=0.1", "application/msgpack;q=0.2"], MSGPACK),
        # What is quoted is no separator (RFC 9110, 5.6.4).
        (['application/json;x="a,b;q=1";q=0.1, application/msgpack;q=0.2'], MSGPACK),
        (['application/json;x=";q=0", application/msgpack;q=0.2'], JSON),
        (['application/json;x="\\";q=0", application/msgpack;q=0.2'], JSON),
        (['application/json;q=0.1, application/msgpack;x="'], MSGPACK),
    ],
)
def test_accept(client: httpx.Client, accept: list[str], answered: str) -> None:
    assert_answered_in(answered, dispatch(client, JSON, *accept))


@pytest.mark.parametrize(
    "accept",
    [
        "text/html",
        "application/xml, image/*",
        "application/json;q=0",
        "*/*;q=0",
        "application/json;q=nan",
        "application/json;q=x",
        "application/json;q=-1",
        "application/json;q=1.5",
        "json",
        ";q=1",
        ";",
        ";;, ;",
    ],
)
def test_accept_that_nothing_meets(client: httpx.Client, accept: str) -> None:
    problem = refusal_of(dispatch(client, JSON, accept), 406)
    assert JSON in problem["detail"]
    assert MSGPACK in problem["detail"]
    assert "application/x-npy or application/x-npz" in problem["detail"]


@pytest.mark.parametrize("path", ["/v1/capabilities", "/v1/operators", "/v1/operators/ACTIVATION_CELU"])
def test_what_is_only_there_in_json(client: httpx.Client, path: str) -> None:
    for accept in ("application/*", ""):
        assert client.get(path, headers={"accept": accept}).headers["content-type"] == JSON
    several = [("accept", MSGPACK), ("accept", JSON)]
    assert client.get(path, headers=several).headers["content-type"] == JSON
    refusal_of(client.get(path, headers={"accept": MSGPACK}), 406)


@pytest.mark.parametrize("path", ["/v1/dispatch", "/v1/feature-support"])
@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "text/plain",
        "application/octet-stream",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "json",
    ],
)
def test_content_type_that_cannot_be_read(client: httpx.Client, path: str, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    problem = refusal_of(client.post(path, content=BODIES[JSON], headers=headers), 415)
    assert JSON in problem["detail"]
    assert MSGPACK in problem["detail"]
    assert (content_type or "is missing") in problem["detail"]


def test_what_else_a_graph_may_come_as_is_told(client: httpx.Client) -> None:
    problem = refusal_of(client.post("/v1/graphs", content=b"", headers={"content-type": "text/plain"}), 415)
    assert problem["detail"].endswith(f"send {JSON} or {MSGPACK}, or application/octet-stream for an ONNX model.")


@pytest.mark.parametrize("coding", ["br", "compress", "identity, gzip", "x" * 1000])
def test_content_encoding(client: httpx.Client, coding: str) -> None:
    headers = {"content-type": JSON, "content-encoding": coding}
    problem = refusal_of(client.post("/v1/dispatch", content=BODIES[JSON], headers=headers), 415)
    assert "Content-Encoding" in problem["detail"]


def test_content_encoding_identity(client: httpx.Client) -> None:
    headers = {"content-type": JSON, "content-encoding": "Identity"}
    assert_answered_in(JSON, client.post("/v1/dispatch", content=BODIES[JSON], headers=headers))


@pytest.mark.parametrize("accept", [JSON, MSGPACK])
def test_errors_are_problems_whatever_is_accepted(client: httpx.Client, accept: str) -> None:
    refusal_of(client.post("/v1/dispatch", content=b"{}", headers={"content-type": JSON, "accept": accept}), 422)
