"""HTTPS: the same service behind TLS, and a certificate that is renewed while it serves."""

import asyncio
import contextlib
import errno
import gc
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
import uvloop

from app.codecs.codec import Encoded
from app.http.core.exchange import Reply, Request
from app.http.server import tls
from app.http.server.connection import Connection, connections
from app.http.server.limit import ConnectionLimit
from app.http.server.sender import Sender
from app.http.server.server import Server, listen
from app.http.server.tls import ADMITTED, Certificate, Handshakes, Listener, certificate_of
from app.http.server.transfers import NO_THREADS
from app.http.server.watches import FAREWELL_SECONDS
from app.memory.accounts import MemoryAccount
from app.settings import Settings, Unusable
from tests.conftest import ASYNCIO_LOOP, SERVER, RunningServer, ours_only, running_server
from tests.http.load import wait_until
from tests.http.wire import JSON, header, length
from tests.messages import CELU, as_json, output_of, post_msgpack, request

pytestmark = [pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed"), ours_only]

SMALL = request(CELU, {"InputTensor": np.array([-1, 2, 3], np.float32)})
LARGE = request(CELU, {"InputTensor": np.linspace(-4, 4, 3_000_000, dtype=np.float32)})
COMMANDS = {"uvloop": SERVER, "asyncio": (sys.executable, ASYNCIO_LOOP, SERVER[-1])}


def make_certificate(folder: Path, name: str, *flags: str) -> tuple[Path, Path]:
    """A new certificate for this machine, which vouches for itself, and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-days", "2"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", *(flags or ["-nodes"])]
    subprocess.run(
        ["openssl", "req", "-x509", *kind, *subject, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    return certificate, key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    for name in ("first", "second"):
        make_certificate(made, name)
    for kind in ("pem", "key"):
        shutil.copy(made / f"first.{kind}", made / f"used.{kind}")
    return made


@pytest.fixture(scope="module", params=COMMANDS)
def secure(request: pytest.FixtureRequest, folder: Path) -> Iterator[RunningServer]:
    """A server of two processes with the first certificate."""
    flags = ["--tls-certificate", str(folder / "used.pem"), "--tls-key", str(folder / "used.key"), "--header-seconds=4"]
    log = folder / f"{request.param}.log"
    with running_server(log, *flags, "--workers", "2", command=COMMANDS[request.param]) as running:
        assert running.url.startswith("https://")
        wait_until(lambda: log.read_text().count("Application startup complete") == 2)
        yield running


def trusting(folder: Path, *names: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / f"{names[0]}.pem")
    for name in names[1:]:
        context.load_verify_locations(folder / f"{name}.pem")
    return context


@pytest.fixture
def secure_client(secure: RunningServer, folder: Path) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=secure.url, verify=trusting(folder, "first"), timeout=30) as opened:
        yield opened


def test_the_same_answers(secure_client: httpx.Client, client: httpx.Client) -> None:
    for message in (SMALL, LARGE, SMALL):
        assert (
            output_of(post_msgpack(secure_client, message)).tobytes()
            == output_of(post_msgpack(client, message)).tobytes()
        )


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl(secure: RunningServer, folder: Path) -> None:
    body = json.dumps(as_json(LARGE)).encode()  # more than fits into what sockets hold
    address = f"{secure.url}/v1/dispatch"
    command = ["curl", "-sS", "--cacert", str(folder / "first.pem"), "-H", "content-type: application/json"]
    answer = subprocess.run(
        [*command, "--data-binary", "@-", address], input=body, capture_output=True, check=True, timeout=60
    )
    assert len(json.loads(answer.stdout)["outputs"]["OutputTensor"]["data"]) == 16_000_000


def test_what_is_no_tls_is_cut_off(secure: RunningServer, secure_client: httpx.Client) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(secure.url.replace("https", "http") + "/health/live", timeout=10)
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", secure.port), timeout=20) as silent:
        assert silent.recv(1) == b""
    assert time.monotonic() - begun > 1
    assert secure_client.get("/health/live").status_code == 200


class Written:
    """A transport that takes all at once, `most` pieces before the client has gone."""

    def __init__(self, context: object, most: int = 1 << 20) -> None:
        self._context = context
        self._most = most
        self.pieces: list[bytes] = []

    def get_extra_info(self, name: str) -> object:
        return self._context

    def write(self, piece: memoryview) -> None:
        self.pieces.append(bytes(piece))

    def is_closing(self) -> bool:
        return len(self.pieces) >= self._most

    def get_write_buffer_size(self) -> int:
        return 0


def test_openssl_gets_large_answers_piece_by_piece() -> None:
    """Its buffers stay as large as the largest piece was, for as long as connections last."""
    answer = bytes(range(256)) * (3 << 12)

    async def written(context: object) -> list[bytes]:
        transport: Any = Written(context)
        over = asyncio.Event()
        sender = Sender(transport, asyncio.get_running_loop(), 5, NO_THREADS, over.set)
        sender.send(iter([[b"head", memoryview(answer)], [b"end"]]), len(answer), "/")
        await asyncio.wait_for(over.wait(), 5)
        return list(transport.pieces)

    for context in (None, object()):
        pieces = asyncio.run(written(context))
        assert b"".join(pieces) == b"head" + answer + b"end"
        assert (max(map(len, pieces)) <= 1 << 18) is (context is not None)


def test_nothing_more_is_written_for_a_client_that_has_gone() -> None:
    """Event loops would log a warning for each piece, of which a large answer has hundreds."""

    async def written() -> int:
        transport: Any = Written(object(), 2)
        sender = Sender(transport, asyncio.get_running_loop(), 5, NO_THREADS, lambda: None)
        sender.send(iter([[memoryview(bytes(1 << 22))]]), 1 << 22, "/")
        await asyncio.sleep(0.01)
        sender.stop()
        return len(transport.pieces)

    assert asyncio.run(written()) == 2


def test_handshakes_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is silent longest is cut off, and nobody else waits for it."""
    monkeypatch.setattr(tls, "HANDSHAKES", 2)
    context = Certificate(str(folder / "first.pem"), str(folder / "first.key")).context

    async def main() -> None:
        loop = asyncio.get_running_loop()
        made: list[asyncio.Protocol] = []

        def make() -> asyncio.Protocol:
            made.append(asyncio.Protocol())
            return made[-1]

        handshakes = Handshakes(context, make, 60)
        clients = []
        for number in range(4):
            client, accepted = socket.socketpair()
            for each in (client, accepted):
                each.setblocking(False)
            handshakes.begin(accepted)
            clients.append(client)
            await asyncio.sleep(0.05)
            if number == 2:
                assert await asyncio.wait_for(loop.sock_recv(clients[0], 1), 10) == b""
                trusted = trusting(folder, "first")
                transport, _ = await loop.create_connection(
                    asyncio.Protocol, sock=client, ssl=trusted, server_hostname="localhost"
                )
                while len(handshakes._running) == 2:  # noqa: ASYNC110 - until the server knows, too
                    await asyncio.sleep(0.005)
        # The third one was agreed with, so that there is room for the fourth.
        for client in (clients[1], clients[3]):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(loop.sock_recv(client, 1), 0.1)
        transport.abort()
        for client in clients:
            client.close()
        await asyncio.sleep(0.05)

    asyncio.run(main())


def test_clients_that_hang_up_are_noticed(secure: RunningServer, folder: Path, secure_client: httpx.Client) -> None:
    context = trusting(folder, "first")
    with socket.create_connection(("127.0.0.1", secure.port), timeout=20) as raw:
        wrapped = context.wrap_socket(raw, server_hostname="localhost")
        wrapped.sendall(header(JSON, length(1_000_000)) + b" " * 1000)
        wrapped.unwrap().close()  # says that it sends no more, and is told the same
    assert secure_client.get("/health/live").status_code == 200
    assert "Traceback" not in secure.log.read_text()
    assert "returning true from eof_received" not in secure.log.read_text()


def ask_for_the_last_time(secure: RunningServer, folder: Path, message: dict[str, Any]) -> ssl.SSLSocket:
    """By a client whose system takes some 64 KiB of the answer."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    raw.settimeout(20)
    raw.connect(("127.0.0.1", secure.port))
    wrapped = trusting(folder, "first").wrap_socket(raw, server_hostname="localhost")
    body = json.dumps(as_json(message)).encode()
    wrapped.sendall(header(JSON, length(len(body)), b"Connection: close") + body)
    return wrapped


def test_the_last_answer_may_be_taken_as_slowly_as_any(secure: RunningServer, folder: Path) -> None:
    """Of some of these the system has not all when everything is handed over, which ends the connection."""
    sizes = range(300_000, 1_000_001, 100_000)
    with contextlib.ExitStack() as stack:
        clients = []
        for size in sizes:
            message = request(CELU, {"InputTensor": np.zeros(3 * size // 16, np.float32)})
            clients.append(stack.enter_context(ask_for_the_last_time(secure, folder, message)))
        time.sleep(1.5 * FAREWELL_SECONDS)
        for size, client in zip(sizes, clients, strict=True):
            received = b""
            while piece := client.recv(1 << 20):
                received += piece
            head, _, body = received.partition(b"\r\n\r\n")
            assert b"\r\nconnection: close" in head
            assert len(json.loads(body)["outputs"]["OutputTensor"]["data"]) == size


def test_who_has_it_is_not_waited_for(secure: RunningServer, folder: Path) -> None:
    """Nor does the connection stay if the client takes no notice of its end."""
    with ask_for_the_last_time(secure, folder, SMALL) as client:
        begun = time.monotonic()
        with socket.socket(fileno=os.dup(client.fileno())) as raw:
            raw.settimeout(20)  # less than what libraries wait for a client that does not answer
            while raw.recv(1 << 16):  # encrypted, up to the end of the connection itself
                pass
    assert time.monotonic() - begun > 0.5 * FAREWELL_SECONDS


def common_name(secure: RunningServer, folder: Path) -> str:
    with socket.create_connection(("127.0.0.1", secure.port), timeout=20) as raw:
        wrapped = trusting(folder, "first", "second").wrap_socket(raw, server_hostname="localhost")
        with wrapped:
            shown: Any = wrapped.getpeercert()
            return str(dict(pair for (pair,) in shown["subject"])["commonName"])


def replace(folder: Path, name: str) -> None:
    for kind in ("pem", "key"):
        shutil.copy(folder / f"{name}.{kind}", folder / f"next.{kind}")
        (folder / f"next.{kind}").rename(folder / f"used.{kind}")


def test_the_certificate_is_renewed(secure: RunningServer, folder: Path, secure_client: httpx.Client) -> None:
    def said(what: str) -> int:
        return secure.log.read_text().count(what)

    assert secure_client.get("/health/live").status_code == 200
    read = said("certificate was read again")
    try:
        replace(folder, "second")
        wait_until(lambda: said("certificate was read again") == read + 3)
        assert {common_name(secure, folder) for _ in range(8)} == {"second"}
        assert secure_client.get("/health/live").status_code == 200  # on the connection there was

        shutil.copy(folder / "first.pem", folder / "used.pem")  # to which the key does not belong
        os.kill(secure.process.pid, signal.SIGHUP)
        wait_until(lambda: said("certificate stays as it was") == 3)
        assert said("key values mismatch") == 3
        assert {common_name(secure, folder) for _ in range(8)} == {"second"}
    finally:
        replace(folder, "first")
        os.kill(secure.process.pid, signal.SIGHUP)
    wait_until(lambda: common_name(secure, folder) == "first")


def test_files_that_cannot_be_used(tmp_path: Path, folder: Path) -> None:
    locked = make_certificate(tmp_path, "locked", "-passout", "pass:secret")
    (tmp_path / "empty").touch()
    first, second = str(folder / "first.pem"), str(folder / "second.key")
    both = tmp_path / "both"
    both.write_bytes((folder / "first.pem").read_bytes() + (folder / "first.key").read_bytes())
    Certificate(str(both), "")
    for files, says in {
        (first, second): "key values mismatch",
        (first, ""): "cannot be used",
        (first, str(tmp_path / "none")): "No such file",
        (str(tmp_path / "empty"), second): "cannot be used",
        (str(locked[0]), str(locked[1])): "without a password",
    }.items():
        with pytest.raises(Unusable, match=says):
            Certificate(*files)


def test_a_key_without_a_certificate() -> None:
    assert certificate_of(Settings()) is None
    with pytest.raises(Unusable, match="no tls_certificate"):
        certificate_of(Settings(tls_key="some"))


def test_who_is_agreed_with_while_it_ends_does_not_keep_it(folder: Path, tmp_path: Path) -> None:
    """A client that had connected before, and asks for nothing then: it could, for as long as for any header."""
    flags = ["--tls-certificate", str(folder / "first.pem"), "--tls-key", str(folder / "first.key")]
    context = trusting(folder, "first")
    with running_server(tmp_path / "log", *flags, "--header-seconds", "60") as running, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", running.port)
        busy, silent = (stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(2))
        wrapped = stack.enter_context(context.wrap_socket(busy, server_hostname="localhost"))
        body = json.dumps(as_json(SMALL)).encode()
        wrapped.sendall(header(JSON, length(len(body))) + body[:1])
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Waiting for connections to close" in running.log.read_text())
        stack.enter_context(context.wrap_socket(silent, server_hostname="localhost"))
        wrapped.sendall(body[1:])
        assert wrapped.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert running.process.wait(20) == 0


async def served(folder: Path) -> tuple[Server, list[socket.socket]]:
    """A server in this process that answers each request with nothing, and where it listens."""

    async def handle(request: Request) -> Reply:
        return Reply(200, [(b"content-length", b"0")], Encoded(0, ()))

    async def nobody(scope: object, receive: object, send: object) -> None:
        """The application, which is asked for nothing."""

    http = connections(handle, Settings(), ConnectionLimit(), MemoryAccount(1 << 30))
    config = uvicorn.Config(nobody, lifespan="off", http=http, log_config=None)
    config.load()
    config.ssl = Certificate(str(folder / "first.pem"), str(folder / "first.key")).context
    server, listening = Server(config, lambda: None), listen("127.0.0.1", 0)
    server.lifespan = config.lifespan_class(config)
    await server.startup(listening)
    return server, listening


def test_who_has_connected_when_the_port_is_closed_is_answered(folder: Path) -> None:
    """Though nobody has accepted the connection yet."""
    answers = []

    def ask(client: socket.socket) -> None:
        with trusting(folder, "first").wrap_socket(client, server_hostname="localhost") as wrapped:
            wrapped.sendall(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
            answers.append(wrapped.recv(100)[:12])

    async def end() -> None:
        server, listening = await served(folder)
        clients = [socket.create_connection(listening[0].getsockname(), timeout=20) for _ in range(ADMITTED)]
        asking = [asyncio.create_task(asyncio.to_thread(ask, client)) for client in clients]
        await server.shutdown(listening)
        await asyncio.gather(*asking)

    asyncio.run(end())
    assert answers == ADMITTED * [b"HTTP/1.1 200"]


@pytest.mark.usefixtures("_no_collections")
@pytest.mark.parametrize(
    ("loop", "agrees"),
    [(uvloop.new_event_loop, True), (asyncio.new_event_loop, True), (uvloop.new_event_loop, False)],
    ids=["uvloop", "asyncio", "before they agree on TLS"],
)
def test_connections_leave_nothing_to_collect(
    folder: Path, loop: Callable[[], asyncio.AbstractEventLoop], agrees: bool
) -> None:
    """Each would keep half a MiB until the garbage collector comes to what lasted long, which it hardly ever does."""

    def ask(address: tuple[str, int]) -> None:
        client = socket.create_connection(address, timeout=20)
        with trusting(folder, "first").wrap_socket(client, server_hostname="localhost") as wrapped:
            wrapped.sendall(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
            assert wrapped.recv(100).startswith(b"HTTP/1.1 200")

    def leave(address: tuple[str, int]) -> None:
        socket.create_connection(address, timeout=20).close()

    def there() -> int:
        return sum(isinstance(each, Connection) for each in gc.get_objects())

    async def left() -> int:
        server, listening = await served(folder)
        before = there()
        for _ in range(3):
            await asyncio.to_thread(ask if agrees else leave, listening[0].getsockname())
        while server.server_state.connections:  # noqa: ASYNC110 - until the server knows, too
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        count = there() - before
        await server.shutdown(listening)
        return count

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(left()) == 0


def test_without_a_descriptor_nobody_is_accepted_for_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The event loop would else do nothing but try; who has connected is accepted afterwards."""
    monkeypatch.setattr(tls, "_REST_SECONDS", 0.05)

    class Full(socket.socket):
        refusals = 2

        def accept(self) -> tuple[socket.socket, Any]:
            if self.refusals:
                self.refusals -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    async def accepted() -> float:
        begun = time.monotonic()
        came = asyncio.Event()

        def begin(client: socket.socket) -> None:
            client.close()
            came.set()

        handshakes: Any = SimpleNamespace(begin=begin)
        with Full() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            with socket.create_connection(listening.getsockname()):
                Listener(listening, handshakes)
                await asyncio.wait_for(came.wait(), 10)
        return time.monotonic() - begun

    assert asyncio.run(accepted()) >= 0.1
    assert caplog.messages == 2 * ["Nobody is accepted for 0.05 seconds: [Errno 24] Too many open files"]


def test_it_ends_with_idle_connections(secure: RunningServer, secure_client: httpx.Client) -> None:
    """The last test of each server."""
    assert secure_client.get("/health/live").status_code == 200
    assert secure.stop(15) == 0
