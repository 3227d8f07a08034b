"""Cross-origin requests: not allowed unless a setting says so, and then on every answer, errors included."""

from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tests.conftest import RunningServer, ServerFactory, running_server
from tests.http.refusals import refusal_of
from tests.http.wire import JSON, connection, header, length
from tests.messages import CELU, as_json, output_of, request

PAGE = "https://page.example"
OTHER_PAGE = "https://page.example.evil"
MESSAGE = as_json(request(CELU, {"InputTensor": np.array([1, 2, 3], np.float32)}))
KEY = {"authorization": "Bearer the-key"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that two origins may call, with a key."""
    flags = ["--cors-origins", f"{PAGE}, http://localhost:3000", "--api-keys", "the-key"]
    with running_server(tmp_path_factory.mktemp("shared") / "log", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def page(shared: RunningServer) -> Iterator[httpx.Client]:
    """What a browser that shows `PAGE` sends."""
    with httpx.Client(base_url=shared.url, headers={"origin": PAGE}, timeout=30) as opened:
        yield opened


def preflight(client: httpx.Client, origin: str, method: str = "POST", headers: str = "content-type") -> httpx.Response:
    asked = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": headers,
    }
    return client.options("/v1/dispatch", headers=asked)


def allowed_origin(response: httpx.Response) -> str | None:
    origin: str | None = response.headers.get("access-control-allow-origin")
    return origin


def list_of(response: httpx.Response, name: str) -> set[str]:
    return {each.strip().lower() for each in response.headers[name].split(",")}


class TestOff:
    def test_answers_allow_no_origin(self, client: httpx.Client) -> None:
        response = client.post("/v1/dispatch", json=MESSAGE, headers={"origin": PAGE})
        output_of(response)
        assert not [name for name in response.headers if name.startswith("access-control")]

    def test_a_preflight_is_told_of_methods_alone(self, client: httpx.Client) -> None:
        response = preflight(client, PAGE)
        assert (response.status_code, response.headers["allow"]) == (204, "OPTIONS, POST")
        assert not [name for name in response.headers if name.startswith("access-control")]


class TestOn:
    @pytest.mark.parametrize("origin", [PAGE, "http://localhost:3000"])
    @pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
    def test_a_preflight_needs_no_key(self, page: httpx.Client, origin: str, method: str) -> None:
        response = preflight(page, origin, method, "authorization, content-type, x-request-id")
        assert (response.status_code, response.text) == (200, "OK")
        assert allowed_origin(response) == origin
        assert list_of(response, "access-control-allow-methods") == {"get", "post", "delete"}
        assert {"authorization", "content-type", "x-request-id"} <= list_of(response, "access-control-allow-headers")

    @pytest.mark.parametrize(
        ("origin", "method", "headers", "what"),
        [
            (OTHER_PAGE, "POST", "content-type", "origin"),
            ("null", "POST", "content-type", "origin"),
            ("http://page.example", "POST", "content-type", "origin"),
            (PAGE, "PUT", "content-type", "method"),
            (PAGE, "POST", "x-other", "headers"),
        ],
    )
    def test_a_preflight_is_refused(
        self, page: httpx.Client, origin: str, method: str, headers: str, what: str
    ) -> None:
        response = preflight(page, origin, method, headers)
        assert what in refusal_of(response, 400)["detail"]
        assert allowed_origin(response) in (None, PAGE if origin == PAGE else None)

    @pytest.mark.parametrize(
        ("method", "origin", "asked", "status"),
        [
            ("GET", PAGE, "POST", 405),
            ("OPTIONS", None, "POST", 204),
            ("OPTIONS", PAGE, None, 204),
        ],
    )
    def test_what_is_no_preflight_is_answered_as_ever(
        self, shared: RunningServer, method: str, origin: str | None, asked: str | None, status: int
    ) -> None:
        """That one is OPTIONS, from a page, and asks for a method."""
        said = {"origin": origin, "access-control-request-method": asked}
        headers = KEY | {name: value for name, value in said.items() if value}
        response = httpx.request(method, f"{shared.url}/v1/dispatch", headers=headers)
        assert (response.status_code, response.headers["allow"]) == (status, "OPTIONS, POST")
        assert "origin" in list_of(response, "vary")

    def test_all_that_the_api_has_may_be_sent_and_read(self, page: httpx.Client) -> None:
        document = page.get("/openapi.json").json()
        operations = [each for path in document["paths"].values() for each in path.values()]
        sent = {part["name"].lower() for each in operations for part in each["parameters"] if part["in"] == "header"}
        sent |= {"content-type", "if-match", "if-none-match"}
        methods = {method for path in document["paths"].values() for method in path}
        for method in methods:
            assert preflight(page, PAGE, method.upper(), ", ".join(sorted(sent))).status_code == 200
        read = {name.lower() for name in document["components"]["headers"]} - {"www-authenticate"}
        assert read <= list_of(page.get("/health/live"), "access-control-expose-headers")

    def test_answers_can_be_read(self, page: httpx.Client) -> None:
        response = page.post("/v1/dispatch", json=MESSAGE, headers=KEY)
        output_of(response)
        assert allowed_origin(response) == PAGE
        assert "origin" in list_of(response, "vary")
        assert {"x-request-id", "retry-after"} <= list_of(response, "access-control-expose-headers")
        assert "access-control-allow-credentials" not in response.headers

    @pytest.mark.parametrize(
        ("method", "path", "headers", "status"),
        [
            ("POST", "/v1/dispatch", {}, 401),
            ("POST", "/v1/dispatch", {"authorization": "Bearer wrong"}, 401),
            ("POST", "/v1/dispatch", KEY, 415),
            ("POST", "/v1/dispatch", KEY | {"accept": "text/html"}, 406),
            ("POST", "/v1/dispatch", KEY | {"content-type": "application/json"}, 400),
            ("GET", "/nowhere", KEY, 404),
            ("PUT", "/v1/dispatch", KEY, 405),
        ],
    )
    def test_errors_can_be_read(
        self, page: httpx.Client, method: str, path: str, headers: dict[str, str], status: int
    ) -> None:
        response = page.request(method, path, headers=headers)
        refusal_of(response, status)
        assert allowed_origin(response) == PAGE

    def test_a_body_over_the_limit(self, shared: RunningServer) -> None:
        fields = [JSON, f"Origin: {PAGE}".encode(), b"Authorization: Bearer the-key"]
        with connection(shared) as client:
            response = client.ask(header(*fields, length(10**12)))
        refusal_of(response, 413)
        assert allowed_origin(response) == PAGE

    def test_other_origins_get_no_permission(self, page: httpx.Client) -> None:
        response = page.post("/v1/dispatch", json=MESSAGE, headers=KEY | {"origin": OTHER_PAGE})
        output_of(response)
        assert allowed_origin(response) is None


def test_every_origin(start_server: ServerFactory) -> None:
    running = start_server(DMLSERVE_CORS_ORIGINS="*")
    with httpx.Client(base_url=running.url) as client:
        assert allowed_origin(preflight(client, OTHER_PAGE)) == "*"
        assert allowed_origin(client.get("/v1/capabilities", headers={"origin": OTHER_PAGE})) == "*"
