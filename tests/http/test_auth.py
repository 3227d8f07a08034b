"""API keys: from the environment and from a file, asked for everywhere but on the open paths, read again on SIGHUP
and when the file changes; what each may ask for, and how much of it."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from app.codecs.codec import Encoded
from app.http.core.auth import authenticating
from app.http.core.exchange import Handler, Reply
from app.http.core.exchange import Request as HttpRequest
from app.http.core.keys import Keys, Terms, Usage
from app.http.core.problems import refusing
from app.memory.buffers import Buffer
from app.settings import Unusable
from tests.conftest import RunningServer, ServerFactory, running_server
from tests.http.load import metric, series, wait_until
from tests.http.refusals import refusal_of
from tests.http.wire import CHUNKED, JSON, Connection, chunks, connection, header, length
from tests.messages import CELU, as_json, output_of, request

KEYS_OF_ENVIRONMENT = ["first-key", "second=key/+~"]
KEYS_OF_FILE = ["file-key", "!#KeyWithMarks~"]
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
    ("GET", "/static"),
]
OPEN = [
    "/",
    "/static/app.js",
    "/health/live",
    "/health/ready",
    "/docs",
    "/docs/assets/swagger-ui.css",
    "/operators",
    "/operators.json",
    "/operators/GEMM.json",
    "/openapi.json",
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with keys of both sources."""
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "keys"
    file.write_bytes(b"\xef\xbb\xbffile-key\r\n# of the team\n\n  \n   # retired: old-key\n\t !#KeyWithMarks~  \n")
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


def test_no_key_is_asked_for_where_none_is_set(start_server: ServerFactory) -> None:
    """Empty variables are how compose says that there is none."""
    running = start_server(DMLSERVE_API_KEYS="", DMLSERVE_API_KEYS_FILE="")
    with httpx.Client(base_url=running.url) as client:
        output_of(client.post("/v1/dispatch", json=MESSAGE))
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: running.process.poll() is None and status_of(running, "some-key") == 200)
    assert "API keys: none" in running.log.read_text()


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
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: f"{pipe} is no regular file" in running.log.read_text())
        assert client.get("/v1/capabilities", headers=bearer("piped-key")).status_code == 200


def status_of(running: RunningServer, key: str) -> int:
    """What a request with `key` gets, on a connection of its own."""
    return httpx.get(f"{running.url}/v1/capabilities", headers=bearer(key)).status_code


def hang_up(running: RunningServer, message: str, times: int) -> None:
    """Send SIGHUP, and wait until the log says `message` so many times in all."""
    running.process.send_signal(signal.SIGHUP)
    wait_until(lambda: running.log.read_text().count(message) == times)


PROCESSES = pytest.mark.parametrize(("workers", "processes"), [(1, 1), (2, 3)])
"""How many serve, and how many read the keys."""


def keyed_server(start_server: ServerFactory, file: Path, workers: int, *flags: str) -> RunningServer:
    file.write_text("key-one\n")
    running = start_server("--api-keys-file", str(file), "--workers", str(workers), *flags)
    wait_until(lambda: running.log.read_text().count("Application startup complete") == workers)
    return running


@PROCESSES
def test_sighup_reads_the_keys_again(start_server: ServerFactory, tmp_path: Path, workers: int, processes: int) -> None:
    file = tmp_path / "keys"
    running = keyed_server(start_server, file, workers, "--api-keys", "of-the-flag")
    with httpx.Client(base_url=running.url, headers=bearer("of-the-flag")) as client:
        assert client.get("/v1/capabilities").status_code == 200
        file.write_text("key-two\nkey-three\n")
        hang_up(running, "keys were read again: 3", processes)
        assert client.get("/v1/capabilities").status_code == 200
    for _ in range(4 * workers):
        assert [status_of(running, key) for key in ("key-one", "key-two", "key-three")] == [401, 200, 200]
    assert running.stop() == 0


UNUSABLE = {
    b"": "holds no key",
    b"# none\n\n": "holds no key",
    b"good\nhidden-text is bad\n": "Line 2 of",
    b"\xff\xfe": "not UTF-8",
    None: "No such file",
}
"""What a file of keys may hold, and why it cannot be used then."""


@PROCESSES
def test_keys_that_cannot_be_used_leave_the_old_ones_in_force(
    start_server: ServerFactory, tmp_path: Path, workers: int, processes: int
) -> None:
    file = tmp_path / "keys"
    running = keyed_server(start_server, file, workers)
    for times, (content, reason) in enumerate(UNUSABLE.items(), 1):
        before = running.log.read_text().count(reason)
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        hang_up(running, '"ERROR","logger":"app","message":"The API keys stay as they were', times * processes)
        assert running.log.read_text().count(reason) == before + processes
        for _ in range(4 * workers):
            assert [status_of(running, key) for key in ("key-one", "good")] == [200, 401]
    assert "hidden-text" not in running.log.read_text()
    assert running.stop() == 0


def test_a_worker_that_is_started_again_has_the_keys_that_were_read_last(
    start_server: ServerFactory, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    running = keyed_server(start_server, file, 2)
    file.write_text("key-two\n")
    hang_up(running, "keys were read again", 3)
    file.unlink()
    children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
    for worker in map(int, children.read_text().split()):
        os.kill(worker, signal.SIGKILL)
    wait_until(lambda: running.log.read_text().count("Application startup complete") == 4)
    for _ in range(8):
        assert [status_of(running, key) for key in ("key-one", "key-two")] == [401, 200]


def test_keys_are_read_again_when_the_file_changes(start_server: ServerFactory, tmp_path: Path) -> None:
    file, workers, processes = tmp_path / "keys", 2, 3
    running = keyed_server(start_server, file, workers)
    other = tmp_path / "other"
    other.write_text("key-two\n")
    other.rename(file)  # as a secret is replaced
    wait_until(lambda: running.log.read_text().count("keys were read again: 1") == processes)
    for _ in range(4 * workers):
        assert [status_of(running, key) for key in ("key-one", "key-two")] == [401, 200]
    file.write_text("not usable\n")
    wait_until(lambda: running.log.read_text().count("The API keys stay as they were") == processes)
    time.sleep(2.2)  # it is said once, not every second
    assert running.log.read_text().count("The API keys stay as they were") == processes
    assert status_of(running, "key-two") == 200


LIMITED = """
one   name=slow requests-per-second=0.25
two   name=narrow routes=/v1/dispatch,GET:/v1/operators/*,/v2/models/*/infer
three name=small  bytes-in-flight=4096
four
five  name=free
"""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose keys have limits."""
    folder = tmp_path_factory.mktemp("limited")
    (folder / "keys").write_text(LIMITED)
    with running_server(folder / "log", "--api-keys-file", str(folder / "keys")) as running:
        yield running


@pytest.fixture(scope="module")
def free(limited: RunningServer) -> Iterator[httpx.Client]:
    """A client whose key has no limits."""
    with httpx.Client(base_url=limited.url, timeout=30, headers=bearer("five")) as opened:
        yield opened


def test_requests_per_second(limited: RunningServer, free: httpx.Client) -> None:
    with httpx.Client(base_url=limited.url, headers=bearer("one")) as client:
        assert client.get("/v1/capabilities").status_code == 200
        refused = client.get("/v1/capabilities")
        assert "0.25 requests a second" in refusal_of(refused, 429)["detail"]
        assert 1 <= int(refused.headers["retry-after"]) <= 4
        assert client.get("/v2").status_code == 429
        assert free.get("/v1/capabilities").status_code == 200  # others are not held up
        time.sleep(4.05)
        assert client.get("/v1/capabilities").status_code == 200
    wait_until(lambda: metric(free, "key_requests_total", key="slow", status="429") == 2)
    assert metric(free, "key_requests_total", key="slow", status="200") == 2
    assert metric(free, "rejections_total", reason="key_limit") >= 2


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/dispatch", 415),
        ("GET", "/v1/dispatch", 405),
        ("GET", "/v1/operators/ACTIVATION_CELU", 200),
        ("HEAD", "/v1/operators/ACTIVATION_CELU", 200),
        ("POST", "/v1/operators/ACTIVATION_CELU", 403),
        ("HEAD", "/v1/operators", 403),
        ("POST", "/v2/models/activation_celu/infer", 400),
        ("GET", "/v2/models/activation_celu", 403),
        ("GET", "/v1/operators", 403),
        ("GET", "/metrics", 403),
        ("POST", "/v1/dispatch/", 403),
        ("POST", "/v1/dispatch%0a", 403),
        ("GET", "/health/live", 200),
    ],
)
def test_routes(limited: RunningServer, method: str, path: str, status: int) -> None:
    answer = httpx.request(method, limited.url + path, headers=bearer("two"))
    assert answer.status_code == status
    if status == 403:
        assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]


def test_bytes_in_flight(limited: RunningServer) -> None:
    key = b"Authorization: Bearer three"

    def status(client: Connection, size: int) -> int:
        return client.ask(header(JSON, key, length(size)), b" " * size).status_code

    with connection(limited) as first, connection(limited) as second:
        refusal_of(second.ask(header(JSON, key, length(4097))), 413)  # never
    with connection(limited) as first, connection(limited) as second:
        first.send(header(JSON, key, length(4000)), b" " * 10)
        wait_until(lambda: status(second, 97) == 429)  # one byte too much
        wait_until(lambda: status(second, 96) == 400)
        wait_until(lambda: status(second, 97) == 429)  # no more was given back than was held
        refused = second.ask(header(JSON, key, length(200)), b" " * 200)
        refusal_of(refused, 429)
        assert refused.headers["retry-after"] == "1"
        first.send(b" " * 3990)
        refusal_of(first.receive(), 400)
        wait_until(lambda: status(second, 4096) == 400)  # what was held is given back
    with connection(limited) as third:
        refusal_of(third.ask(header(JSON, key, CHUNKED), chunks(*[b" " * 1000] * 5)), 413)
    with connection(limited) as fourth:
        body = json.dumps(MESSAGE).encode()
        for _ in range(20):  # and so is what answers took
            assert fourth.ask(header(JSON, key, CHUNKED), chunks(body)).status_code == 200


def test_who_gives_up_gives_back_its_bytes(limited: RunningServer) -> None:
    key = b"Authorization: Bearer three"
    for kind in (length(4000), CHUNKED):
        with connection(limited) as client:
            client.send(header(JSON, key, kind), b"fa0\r\n" if kind is CHUNKED else b"", b" " * 3000)
            time.sleep(0.1)

    def room() -> bool:
        with connection(limited) as client:
            return client.ask(header(JSON, key, length(4000)), b" " * 4000).status_code == 400

    wait_until(room)


def test_the_log_names_keys(limited: RunningServer, free: httpx.Client) -> None:
    free.get("/v1/capabilities", headers={"x-request-id": "named"})
    free.get("/v1/capabilities", headers={"x-request-id": "not-named"} | bearer("four"))
    for request_id, name in (("named", "free"), ("not-named", "unnamed")):
        wait_until(lambda: f'"{request_id}"' in limited.log.read_text().rpartition("\n")[0])  # noqa: B023
        (line,) = [line for line in limited.log.read_text().splitlines() if f'"{request_id}"' in line]
        assert json.loads(line)["key"] == name
    assert not [name for name in series(free) if any(f'"{key}"' in name for key in ("one", "two", "three", "four"))]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("key colour=red", "not a key"),
        ("key name=a name=b", "not a key"),
        ("key name=", "a name that is none"),
        ("key name=a/b", "a name that is none"),
        (f"key name={'a' * 65}", "a name that is none"),
        ("key requests-per-second=0", "requests-per-second that is none"),
        ("key requests-per-second=nan", "requests-per-second that is none"),
        ("key requests-per-second=inf", "requests-per-second that is none"),
        ("key requests-per-second=0.00099", "requests-per-second that is none"),
        ("key requests-per-second=1.1e9", "requests-per-second that is none"),
        ("key bytes-in-flight=1e6", "bytes-in-flight that is none"),
        ("key bytes-in-flight=0", "bytes-in-flight that is none"),
        (f"key bytes-in-flight={10**18}", "bytes-in-flight that is none"),
        ("key routes=", "routes that is none"),
        ("key routes=v1/dispatch", "routes that is none"),
        ("key routes=/v1/dispatch,", "routes that is none"),
        ("other\nkey name=a\nkey name=b", "Line 3"),
    ],
)
def test_lines_that_are_refused(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "keys"
    file.write_text(line)
    with pytest.raises(Unusable) as refused:
        Keys("", str(file))
    assert says in str(refused.value)
    assert "red" not in str(refused.value)  # it could be a key


@pytest.mark.parametrize(
    ("said", "terms"),
    [
        (f"name={'a' * 64}", Terms(name="a" * 64)),
        ("requests-per-second=0.001", Terms(requests_per_second=0.001)),
        ("requests-per-second=1e9", Terms(requests_per_second=1e9)),
        ("bytes-in-flight=1", Terms(bytes_in_flight=1)),
        (f"bytes-in-flight={10**18 - 1}", Terms(bytes_in_flight=10**18 - 1)),
    ],
)
def test_the_most_and_the_least_that_a_line_may_say(tmp_path: Path, said: str, terms: Terms) -> None:
    file = tmp_path / "keys"
    file.write_text(f"key {said}")
    found = Keys("", str(file)).find("key")
    assert found
    assert found.terms == terms


def test_where_there_is_no_file_nothing_is_read_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    keys = Keys("given", "")
    before = keys.find("given")
    keys.reload()
    assert keys.find("given") is before is not None
    assert not caplog.records


OF_FIFTY = SimpleNamespace(announced=50)


class TestFlight:
    """What is in flight of one key, which may have 100 bytes of it, and of a service that answers with `answer`."""

    def handler(self, tmp_path: Path, answer: Handler) -> Callable[..., Reply]:
        """What sends a request whose body has 50 bytes."""
        file = tmp_path / "keys"
        file.write_text("a-key bytes-in-flight=100")
        handler = authenticating(answer, Keys("", str(file)))

        def send(body: Any = OF_FIFTY) -> Reply:
            fields = [(b"authorization", b"Bearer a-key")]
            return asyncio.run(
                handler(HttpRequest("POST", "/v1/dispatch", b"/v1/dispatch", b"", fields, body, dict(fields)))
            )

        return send

    def test_it_is_given_back_when_the_answer_is_sent(self, tmp_path: Path) -> None:
        sent: list[str] = []

        async def answer(_: HttpRequest) -> Reply:
            return Reply(200, [], Encoded(51, (bytes(51),)), lambda: sent.append("told"))

        send = self.handler(tmp_path, answer)
        reply = send()
        assert (reply.status, send().status, sent) == (200, 429, [])
        reply.sent()
        assert (send().status, sent) == (200, ["told"])

    def test_bodies_in_chunks_are_counted_as_they_come(self, tmp_path: Path) -> None:
        """One that is too much by itself need not be sent again."""

        async def read(request: HttpRequest) -> Reply:
            while await request.body.read():
                pass
            return Reply(200, [], Encoded(0, ()))

        pieces = iter([bytes(60), bytes(41)])

        async def next_piece() -> bytes:
            return next(pieces, b"")

        send = self.handler(tmp_path, refusing(read))
        reply = send(SimpleNamespace(announced=-1, read=next_piece))
        assert reply.status == 413
        reply.sent()
        assert send(SimpleNamespace(announced=-1, read=next_piece)).status == 200

    def test_so_are_those_that_are_put_into_buffers(self, tmp_path: Path) -> None:
        filled: list[int] = []

        async def put(request: HttpRequest) -> Reply:
            for size in (60, 41):
                await request.body.fill(memoryview(bytearray(size)))
            return Reply(200, [], Encoded(0, ()))

        async def fill(buffer: Buffer) -> None:
            filled.append(len(buffer))

        send = self.handler(tmp_path, refusing(put))
        assert send(SimpleNamespace(announced=-1, fill=fill)).status == 413
        assert filled == [60]

    def test_clients_that_send_chunks_are_waited_for_until_they_hang_up(self, tmp_path: Path) -> None:
        happened: list[str] = []

        async def wait(request: HttpRequest) -> Reply:
            await request.body.hung_up()
            happened.append("noticed")
            return Reply(200, [], Encoded(0, ()))

        async def hung_up() -> None:
            happened.append("gone")

        self.handler(tmp_path, wait)(SimpleNamespace(announced=-1, hung_up=hung_up))
        assert happened == ["gone", "noticed"]

    def test_it_is_given_back_after_a_fault(self, tmp_path: Path) -> None:
        async def fail(_: HttpRequest) -> Reply:
            raise ZeroDivisionError

        send = self.handler(tmp_path, fail)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                send()


def test_usage_outlives_its_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("key requests-per-second=0.001")
    keys = Keys("", str(file))
    (before,) = [keys.find("key")]
    assert before is not None
    assert before.usage.request(0.001) == 0
    file.write_text("key requests-per-second=0.002 name=renamed")
    keys.reload()
    after = keys.find("key")
    assert after is not None
    assert after.terms.name == "renamed"
    assert after.usage.request(0.002) > 0


def test_when_to_ask_again_is_not_too_soon(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a-key requests-per-second=0.4")

    async def answer(_: HttpRequest) -> Reply:
        return Reply(200, [], Encoded(0, ()))

    handler = authenticating(answer, Keys("", str(file)))
    fields = [(b"authorization", b"Bearer a-key")]
    body: Any = SimpleNamespace(announced=0)
    first, second = (
        asyncio.run(handler(HttpRequest("GET", "/metrics", b"", b"", fields, body, dict(fields)))) for _ in range(2)
    )
    assert (first.status, second.status) == (200, 429)
    assert dict(second.headers)[b"retry-after"] == b"3"  # it is 2.5 s


def test_as_many_requests_as_a_second_allows_may_come_at_once() -> None:
    usage = Usage()
    waits = [usage.request(100.0) for _ in range(150)]
    assert waits[:100] == [0] * 100
    assert 0 < waits[-1] <= 0.01


def test_a_key_that_stays_is_known_while_the_file_is_read_again(tmp_path: Path) -> None:
    """Requests meet the old keys or the new ones, never a part of them, nor those of a file that cannot be used."""
    file, other = tmp_path / "keys", tmp_path / "other"
    file.write_text("stays\n")
    keys = Keys("", str(file))
    contents = ["first name=a\nstays name=b\n", "stays name=c\nlast name=d\n", "stays name=e\nno key at all\n"]

    def reload() -> None:
        for round_ in range(90):
            other.write_text(contents[round_ % 3])
            other.rename(file)
            keys.reload()

    with ThreadPoolExecutor() as pool:
        reloading = pool.submit(reload)
        names = set()
        while not reloading.done():
            found = keys.find("stays")
            assert found is not None
            names.add(found.terms.name)
        reloading.result()
    assert names <= {"unnamed", "b", "c"}
