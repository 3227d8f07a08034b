"""API keys: from the environment and from a file, asked for everywhere but on the open paths."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.conftest import RunningServer, ServerFactory, running_server
from tests.http.refusals import refusal_of
from tests.http.wire import JSON, connection, header, length
from tests.messages import CELU, as_json, output_of, request

KEYS_OF_ENVIRONMENT = ["first-key", "second=key/+~"]
KEYS_OF_FILE = ["file-key", "Key With Spaces"]
KEYS = KEYS_OF_ENVIRONMENT + KEYS_OF_FILE
MESSAGE = as_json(request(CELU, {"InputTensor": np.array([1, 2, 3], np.float32)}))
CLOSED = [
    ("POST", "/v1/dispatch"),
    ("POST", "/v1/feature-support"),
    ("GET", "/v1/capabilities"),
    ("GET", "/v1/operators"),
    ("GET", "/v1/operators/ACTIVATION_CELU"),
    ("GET", "/metrics"),
    ("GET", "/nowhere"),
    ("PUT", "/v1/dispatch"),
    ("GET", "/"),
]
OPEN = ["/health/live", "/health/ready", "/docs", "/docs/assets/swagger-ui.css", "/operators", "/openapi.json"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with keys of both sources."""
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "keys"
    file.write_bytes(b"# of the team\nfile-key\r\n\n  \n   # retired: old-key\n  Key With Spaces  \n")
    environment = {"DMLSERVE_API_KEYS": " first-key,,second=key/+~ ,", "DMLSERVE_API_KEYS_FILE": str(file)}
    with running_server(folder / "log", **environment) as running:
        yield running


@pytest.fixture(scope="module")
def stranger(guarded: RunningServer) -> Iterator[httpx.Client]:
    """A client without a key."""
    with httpx.Client(base_url=guarded.url, timeout=30) as opened:
        yield opened


def bearer(key: str, scheme: str = "Bearer") -> dict[str, str]:
    return {"authorization": f"{scheme} {key}"}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
def test_valid_keys(stranger: httpx.Client, key: str, scheme: str) -> None:
    output_of(stranger.post("/v1/dispatch", json=MESSAGE, headers=bearer(key, scheme)))
    refusal_of(stranger.get("/nowhere", headers=bearer(key, scheme)), 404)


def challenge_of(response: httpx.Response) -> str:
    """What a 401 says in WWW-Authenticate."""
    refusal_of(response, 401)
    challenge: str = response.headers["www-authenticate"]
    assert challenge.startswith('Bearer realm="dmlserve"')
    return challenge


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_without_a_key(stranger: httpx.Client, method: str, path: str) -> None:
    assert "error" not in challenge_of(stranger.request(method, path))


@pytest.mark.parametrize(
    "path", [b"/%76%31/capabilities", b"/v1/../health/live", b"/HEALTH/live", b"//health/live", b"/health", b"/ready/"]
)
def test_paths_that_only_look_open(guarded: RunningServer, path: bytes) -> None:
    with connection(guarded) as client:
        challenge_of(client.ask(header(method=b"GET", path=path)))


@pytest.mark.parametrize(
    "path", [b"/health/../v1/capabilities", b"/docs/../v1/capabilities", b"/docs/assets/..%2f..%2fv1/capabilities"]
)
def test_open_paths_lead_nowhere_else(guarded: RunningServer, path: bytes) -> None:
    with connection(guarded) as client:
        refusal_of(client.ask(header(method=b"GET", path=path)), 404)


@pytest.mark.parametrize(
    "key",
    [
        "wrong",
        "first-ke",
        "first-key1",
        "FIRST-KEY",
        "first-key,second=key/+~",
        "old-key",
        "#",
        "# of the team",
        "file",
    ],
)
def test_invalid_keys(stranger: httpx.Client, key: str) -> None:
    assert 'error="invalid_token"' in challenge_of(stranger.post("/v1/dispatch", json=MESSAGE, headers=bearer(key)))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"first-key",
        b"Basic first-key",
        b"Digest first-key",
        b"Bearer\xa0first-key",
        b"\xff \xff",
    ],
)
def test_other_schemes(guarded: RunningServer, value: bytes) -> None:
    with connection(guarded) as client:
        response = client.ask(header(b"Authorization: " + value))
    assert "Bearer" in refusal_of(response, 401)["detail"]
    assert "error" not in challenge_of(response)


def test_keys_that_are_no_ascii_are_just_wrong(guarded: RunningServer) -> None:
    with connection(guarded) as client:
        assert "invalid_token" in challenge_of(client.ask(header(b"Authorization: Bearer \xff\xe4")))


@pytest.mark.parametrize("path", ["/v1/dispatch?api_key=first-key", "/v1/dispatch?access_token=first-key"])
def test_a_key_in_the_url_does_not_count(stranger: httpx.Client, path: str) -> None:
    challenge_of(stranger.post(path, json=MESSAGE))


@pytest.mark.parametrize("path", OPEN)
def test_open_paths(stranger: httpx.Client, path: str) -> None:
    assert stranger.get(path).status_code == 200
    assert stranger.get(path, headers=bearer("wrong")).status_code == 200


def test_the_body_is_not_waited_for(guarded: RunningServer) -> None:
    with connection(guarded) as client:
        challenge_of(client.ask(header(JSON, length(10**12))))


def test_a_refusal_leaves_the_connection_usable(guarded: RunningServer) -> None:
    with connection(guarded) as client:
        challenge_of(client.ask(header(JSON, length(5)), b"12345"))
        refusal_of(client.ask(header(JSON, b"Authorization: Bearer first-key", length(5)), b"12345"), 422)


def test_keys_are_not_logged(guarded: RunningServer, stranger: httpx.Client) -> None:
    stranger.post("/v1/dispatch", json=MESSAGE, headers=bearer(KEYS[0]))
    stranger.post("/v1/dispatch", json=MESSAGE, headers=bearer("tried-key"))
    log = guarded.log.read_text()
    assert "API keys: 4" in log
    assert not [key for key in [*KEYS, "tried-key", "old-key"] if key in log]


def test_no_key_is_asked_for_where_none_is_set(start_server: ServerFactory, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# none yet\n\n")
    running = start_server("--api-keys", " , ", "--api-keys-file", str(file))
    with httpx.Client(base_url=running.url) as client:
        output_of(client.post("/v1/dispatch", json=MESSAGE))
    assert "API keys: none" in running.log.read_text()


def test_a_file_without_keys_is_warned_of(start_server: ServerFactory, tmp_path: Path) -> None:
    """It is what compose mounts if no key is wanted; else it is a mistake."""
    file = tmp_path / "keys"
    file.write_text("# none yet\n")
    running = start_server("--api-keys-file", str(file))
    assert "every client is let in" in running.log.read_text()
    output_of(httpx.post(f"{running.url}/v1/dispatch", json=MESSAGE))


def test_the_file_is_read_once(start_server: ServerFactory, tmp_path: Path) -> None:
    """It may be a pipe, as in `--api-keys-file <(show-keys)`."""
    pipe = tmp_path / "keys"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        written = pool.submit(pipe.write_text, "piped-key\n")
        running = start_server("--api-keys-file", str(pipe))
        written.result()
    assert "API keys: 1" in running.log.read_text()
    with httpx.Client(base_url=running.url) as client:
        challenge_of(client.get("/v1/capabilities"))
        assert client.get("/v1/capabilities", headers=bearer("piped-key")).status_code == 200
