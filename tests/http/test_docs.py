"""/docs and /openapi.json, which need no other host."""

import asyncio
import re
import threading
from html.parser import HTMLParser
from typing import Any, cast
from unittest.mock import AsyncMock
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.http.core import openapi
from app.http.core.exchange import Reply, Request
from app.http.core.routes import routed, router
from app.http.native.accepted import FORMATS
from app.http.telemetry.operations import Health
from app.http.web import docs
from app.operators.catalog import OPERATORS
from tests.conftest import ServerFactory
from tests.http.refusals import refusal_of

OPERATIONS = {
    ("post", "/v1/dispatch"): "dispatch",
    ("post", "/v1/dxdispatch"): "runDxDispatch",
    ("post", "/v1/operators/{Type}/dispatch"): "dispatchFiles",
    ("get", "/v1/graphs"): "listGraphs",
    ("post", "/v1/graphs"): "keepGraph",
    ("get", "/v1/graphs/{id}"): "getGraph",
    ("delete", "/v1/graphs/{id}"): "dropGraph",
    ("post", "/v1/graphs/{id}/dispatch"): "dispatchGraph",
    ("post", "/v1/graphs/{id}/times"): "timeGraph",
    ("get", "/v1/capabilities"): "getCapabilities",
    ("get", "/v1/operators"): "listOperators",
    ("get", "/v1/operators/{Type}"): "getOperator",
    ("post", "/v1/feature-support"): "checkFeatureSupport",
    ("get", "/health/live"): "live",
    ("get", "/health/ready"): "ready",
    ("get", "/metrics"): "getMetrics",
}


class Links(HTMLParser):
    """What a page loads."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.targets |= {value for name, value in attributes if name in ("src", "href") and value}


@pytest.fixture(scope="module")
def page(client: httpx.Client) -> str:
    response = client.get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    return response.text


def test_the_page_names_no_other_host(page: str) -> None:
    assert "http:" not in page
    assert "https:" not in page
    assert not re.findall(r"""["'(]//""", page)


def test_all_that_the_page_loads_is_served(client: httpx.Client, page: str) -> None:
    targets = Links(page).targets
    kinds = {"js": "javascript", "css": "text/css", "png": "image/png"}
    assert {target.rpartition(".")[2] for target in targets} == kinds.keys()
    for target in targets:
        url = urlsplit(urljoin(f"{client.base_url}/docs", target))
        assert url.netloc == urlsplit(str(client.base_url)).netloc
        response = client.get(url.path)
        assert response.status_code == 200
        assert kinds[target.rpartition(".")[2]] in response.headers["content-type"]
        assert response.content


def test_the_style_loads_nothing_more(client: httpx.Client) -> None:
    style = client.get("/docs/assets/swagger-ui.css").text
    assert "@import" not in style
    assert not [url for url in re.findall(r"url\(([^)]*)", style) if not url.strip("'\"").startswith("data:")]


def test_the_page_shows_our_document(client: httpx.Client) -> None:
    (shown,) = re.findall(r"""url: ['"]([^'"]*)['"]""", client.get("/static/docs.js").text)
    assert urljoin("/docs", shown) == "/openapi.json"


def test_a_file_is_there_once_for_all_who_want_it() -> None:
    """They are long, and nothing counts what a request has read before it is answered."""
    path, handler, body = "/docs/assets/swagger-ui-bundle.js", routed(docs.routes()), cast("Any", None)

    async def asked() -> list[Reply]:
        requests = [Request("GET", path, path.encode(), b"", [], body, {}) for _ in range(20)]
        return await asyncio.gather(*map(handler, requests))

    assert len({id(piece) for reply in asyncio.run(asked()) for piece in reply.pieces}) == 1


@pytest.mark.parametrize(
    "path", ["/docs/assets/nothing.js", "/docs/assets/", "/docs/assets/..%2f..%2fmain.py", "/docs/x"]
)
def test_what_is_not_there(client: httpx.Client, path: str) -> None:
    refusal_of(client.get(path), 404)


def test_the_document(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    operations = {
        (method, path): operation["operationId"]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if not path.startswith("/v2")
    }
    assert operations == OPERATIONS
    dispatch = document["paths"]["/v1/dispatch"]["post"]
    both = {"application/json", "application/msgpack"}
    assert dispatch["requestBody"]["content"].keys() == both
    assert dispatch["responses"]["200"]["content"].keys() == both | {*FORMATS}


def test_the_document_is_made_once_and_not_by_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    makers: list[int] = []

    def make(**stated: Any) -> dict[str, Any]:
        makers.append(threading.get_ident())
        return get_openapi(**stated)

    monkeypatch.setattr(openapi, "get_openapi", make)
    app = FastAPI(openapi_url=None)
    there = router("operations")
    there.get("/health/live", **openapi.health("live", "Tell whether the process answers", Health))(AsyncMock())
    app.router.routes += there.routes
    openapi.install(app)
    handler = routed(openapi.routes(app))

    async def ask() -> list[Reply]:
        body: Any = None
        request = Request("GET", "/openapi.json", b"/openapi.json", b"", [], body, {})
        return await asyncio.gather(*(handler(request) for _ in range(3)))

    assert [reply.status for reply in asyncio.run(ask())] == [200] * 3
    (maker,) = makers
    assert maker != threading.get_ident()


def test_every_example_of_the_document_works(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]

    def content(path: str) -> dict[str, Any]:
        return dict(paths[path]["post"]["requestBody"]["content"]["application/json"])

    examples = content("/v1/dispatch")["examples"]
    assert examples.keys() == {operator.short_name() for operator in OPERATORS.values()} | {"GRAPH"}
    for example in examples.values():
        response = client.post("/v1/dispatch", json=example["value"])
        assert response.status_code == 200, response.text
    kept = client.post("/v1/graphs", json=content("/v1/graphs")["example"])
    assert kept.status_code in (200, 201), kept.text  # another test may have it kept
    path = f"/v1/graphs/{kept.json()['id']}"
    made = client.post(f"{path}/dispatch", json=content("/v1/graphs/{id}/dispatch")["example"])
    assert client.delete(path).status_code == 204
    at_once = client.post("/v1/dispatch", json=examples["GRAPH"]["value"])
    assert made.json()["outputs"] == at_once.json()["outputs"]
    assert client.post("/v1/feature-support", json=content("/v1/feature-support")["example"]).status_code == 200


def test_the_documentation_can_be_left_out(start_server: ServerFactory) -> None:
    running = start_server("--no-docs")
    with httpx.Client(base_url=running.url) as client:
        for path in ("/", "/static/app.js", "/docs", "/docs/assets/swagger-ui.css", "/openapi.json", "/operators.json"):
            refusal_of(client.get(path), 404)
        assert client.get("/v1/operators").status_code == 200
