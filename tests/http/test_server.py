"""The server's end, as an orchestrator sees it: a process, signals, an exit code."""

import asyncio
import http.client
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from app.codecs.codec import Encoded
from app.http.core.exchange import Reply, Request
from app.http.server.connection import connections
from app.http.server.limit import ConnectionLimit
from app.http.server.server import Server, listen
from app.http.server.tls import ADMITTED
from app.memory.accounts import MemoryAccount
from app.settings import Settings, Unusable
from tests.preloaded import Preloaded

TIMEOUT_SECONDS = 30.0
"""After which a test fails instead of hanging, in seconds."""

# Prints what happens to it, line by line; exits with what Server.run leaves it with. Only where it is to be given up
# is that done as soon as in the service: elsewhere a busy machine may take longer.
PROGRAM = """
import asyncio, sys, time, uvicorn
from app.http.server import process as processes
from app.http.server.process import Process
from app.http.server.server import Server, listen
from app.signals import Signals, end

draining = False
if "given-up" not in sys.argv:
    processes.GRACE_SECONDS = 60

def on_drain():
    global draining
    draining = True
    print("draining", flush=True)
    if "faulty" in sys.argv:
        raise ValueError

def hang():
    time.sleep(60)

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        if "slow-startup" in sys.argv:
            print("starting", flush=True)
            await asyncio.sleep(60)
        if "hanging-startup" in sys.argv:
            print("starting", flush=True)
            hang()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        print("lifespan over", flush=True)
        if "hanging-end" in sys.argv:
            hang()
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["path"] == "/exit":
        server.should_exit = True
    if scope["path"] == "/hang":
        print("hanging", flush=True)
        hang()
    if scope["path"] == "/hang-aside":
        print("hanging", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, hang)
    if scope["path"].startswith("/sleep/"):
        print("sleeping", flush=True)
        try:
            await asyncio.sleep(float(scope["path"].removeprefix("/sleep/")))
        except asyncio.CancelledError:
            print("cancelled", flush=True)
            raise
    if scope["path"] == "/drained":
        print("waiting", flush=True)
        while not draining:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.4)
    status = 503 if draining else 200
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})

class Slow(Server):
    async def on_tick(self, counter):
        await asyncio.sleep(3)
        return await super().on_tick(counter)

loop, drain_seconds, graceful_seconds, max_requests = sys.argv[1:5]
config = uvicorn.Config(
    app, port=0, loop=loop, log_level="info", access_log=False,
    timeout_graceful_shutdown=float(graceful_seconds), limit_max_requests=int(max_requests) or None,
)
server = (Slow if "slow-ticks" in sys.argv else Server)(config, on_drain, float(drain_seconds))
reload = lambda: print("reloaded", flush=True)
process = Process(lambda: server, Signals(), reload, float(drain_seconds) + float(graceful_seconds))
went_well = process.run(listen("127.0.0.1", 0))
print("force_exit", server.force_exit, flush=True)
end(0 if went_well else 1)
"""


class ServerProcess:
    """A server in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        (stdout, out), (stderr, err) = os.pipe(), os.pipe()
        self._process = Preloaded(["-c", PROGRAM, *arguments], {}, out, err, error=Warning)
        os.close(out)
        os.close(err)
        self._stdout, self._stderr = open(stdout), open(stderr)  # noqa: SIM115 - closed by `kill`
        self.port = 0

    def wait_until_up(self) -> None:
        for line in self._stderr:
            if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                return
        raise AssertionError("The server did not start.")

    @property
    def pid(self) -> int:
        return self._process.pid

    def next_line(self) -> str:
        return self._stdout.readline().rstrip()

    def send(self, *signals: signal.Signals) -> None:
        for each in signals:
            self._process.send_signal(each)

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
        connection.connect()
        return connection

    def end(self) -> tuple[int, list[str], str]:
        """Waits for the process to exit; the exit code, the lines it still printed and what it logged."""
        status = self._process.wait(TIMEOUT_SECONDS)
        return status, self._stdout.read().splitlines(), self._stderr.read()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._stdout.close()
        self._stderr.close()


class Starter:
    """Starts servers, and sees to it that none survives its test."""

    def __init__(self, loop: str) -> None:
        self._loop = loop
        self.processes: list[ServerProcess] = []

    def __call__(
        self,
        *options: str,
        drain_seconds: float = 0,
        graceful_seconds: float = 5,
        max_requests: int = 0,
        wait: bool = True,
    ) -> ServerProcess:
        process = ServerProcess(self._loop, str(drain_seconds), str(graceful_seconds), str(max_requests), *options)
        self.processes.append(process)
        if wait:
            process.wait_until_up()
        return process


@pytest.fixture(params=["uvloop", "asyncio"])
def start(request: pytest.FixtureRequest) -> Iterator[Starter]:
    starter = Starter(request.param)
    yield starter
    for process in starter.processes:
        process.kill()


def status(connection: http.client.HTTPConnection, path: str = "/") -> int:
    connection.request("GET", path)
    with connection.getresponse() as response:
        response.read()
        return response.status


def is_closed(connection: http.client.HTTPConnection) -> bool:
    return connection.sock.recv(1) == b""


def test_several_connections_are_accepted_in_one_turn_of_the_event_loop(start: Starter) -> None:
    """By as many file descriptors of the one socket that listens."""
    server = start()
    connection = server.connect()
    assert status(connection) == 200  # it is up
    connection.close()
    listening = "0A"
    (number,) = [
        fields[9]
        for fields in map(str.split, Path(f"/proc/{server.pid}/net/tcp").read_text().splitlines())
        if fields[1].endswith(f":{server.port:04X}") and fields[3] == listening
    ]
    targets = [os.readlink(each) for each in Path(f"/proc/{server.pid}/fd").iterdir()]
    assert targets.count(f"socket:[{number}]") == ADMITTED


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_drains_finishes_what_runs_and_exits_with_0(start: Starter, sig: signal.Signals) -> None:
    server = start()
    idle, busy = server.connect(), server.connect()
    assert status(idle) == 200
    busy.request("GET", "/drained")
    assert server.next_line() == "waiting"

    server.send(sig)
    assert server.next_line() == "draining"
    assert is_closed(idle)
    with pytest.raises(ConnectionRefusedError):
        server.connect()
    response = busy.getresponse()
    assert (response.status, response.headers["connection"]) == (503, "close")

    code, lines, log = server.end()
    assert (code, lines) == (0, ["lifespan over", "force_exit False"])
    assert "Traceback" not in log
    idle.close()
    busy.close()


def test_who_has_connected_when_the_port_is_closed_is_answered() -> None:
    """Though nobody has accepted the connection yet."""
    answers = []

    async def handle(request: Request) -> Reply:
        return Reply(200, [(b"content-length", b"0")], Encoded(0, ()))

    async def nobody(scope: object, receive: object, send: object) -> None:
        """The application, which is asked for nothing."""

    async def end() -> None:
        connect = connections(handle, Settings(), ConnectionLimit(), MemoryAccount(1 << 30))
        config = uvicorn.Config(nobody, lifespan="off", http=connect, log_config=None)
        config.load()
        server, listening = Server(config, lambda: None), listen("127.0.0.1", 0)
        server.lifespan = config.lifespan_class(config)
        await server.startup(listening)
        clients = [socket.create_connection(listening[0].getsockname()) for _ in range(3 * ADMITTED)]
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
        await server.shutdown(listening)
        for client in clients:
            with client:
                answers.append(client.recv(100)[:12])

    asyncio.run(end())
    assert answers == 3 * ADMITTED * [b"HTTP/1.1 200"]


def test_while_draining_everything_is_answered(start: Starter) -> None:
    """In the second half of the time by connections that end, so that clients that keep theirs go elsewhere."""
    server = start(drain_seconds=4)
    idle = server.connect()
    assert status(idle) == 200
    signalled = time.monotonic()
    server.send(signal.SIGTERM)
    assert server.next_line() == "draining"
    time.sleep(0.25)  # some ticks later
    new = server.connect()
    for closing in (None, "close"):
        for connection in (idle, new):
            connection.request("GET", "/")
            with connection.getresponse() as response:
                assert (response.status, response.headers["connection"]) == (503, closing)
                response.read()
        time.sleep(max(0.0, signalled + 2.1 - time.monotonic()))
    idle.close()
    new.close()
    code, lines, _ = server.end()
    assert (code, lines) == (0, ["lifespan over", "force_exit False"])
    assert time.monotonic() - signalled >= 4


def test_draining_begins_before_uvicorn_looks_whether_to_exit(start: Starter) -> None:
    server = start("slow-ticks")
    signalled = time.monotonic()
    server.send(signal.SIGTERM)
    assert server.next_line() == "draining"
    assert time.monotonic() - signalled < 2.5
    assert server.end()[0] == 0


def test_draining_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the main thread says so, and the event loop may find it out in the same moment."""
    began: list[int] = []
    begin = Server._begin_drain

    def noted(server: Server) -> float:
        began.append(threading.get_ident())
        return begin(server)

    monkeypatch.setattr(Server, "_begin_drain", noted)

    async def nobody(scope: object, receive: object, send: object) -> None:
        """The application, which is asked for nothing."""

    drained: list[None] = []
    server = Server(uvicorn.Config(nobody, lifespan="off", log_config=None), lambda: drained.append(None))
    serving = threading.Thread(target=server.run, args=(listen("127.0.0.1", 0),))
    serving.start()
    while not server.started:
        time.sleep(0.01)
    server.stop()
    serving.join(TIMEOUT_SECONDS)
    assert {*began} == {serving.ident}
    assert len(drained) == 1


def test_what_runs_too_long_is_cancelled(start: Starter) -> None:
    server = start(graceful_seconds=0.2)
    busy = server.connect()
    busy.request("GET", "/sleep/60")
    assert server.next_line() == "sleeping"
    server.send(signal.SIGTERM)
    assert server.next_line() == "draining"
    code, lines, _ = server.end()
    assert (code, lines) == (0, ["cancelled", "lifespan over", "force_exit False"])
    busy.close()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGQUIT])
@pytest.mark.parametrize("drain_seconds", [0, 60])
def test_a_second_signal_ends_it_at_once(start: Starter, second: signal.Signals, drain_seconds: float) -> None:
    server = start(drain_seconds=drain_seconds, graceful_seconds=60)
    busy = server.connect()
    busy.request("GET", "/sleep/60")
    assert server.next_line() == "sleeping"
    server.send(signal.SIGTERM)
    assert server.next_line() == "draining"
    server.send(second)
    with pytest.raises(ConnectionError):
        busy.getresponse()
    code, lines, _ = server.end()
    assert code == 0
    assert "force_exit True" in lines
    assert "lifespan over" not in lines
    busy.close()


@pytest.mark.parametrize("startup", ["slow-startup", "hanging-startup"])
def test_a_signal_during_startup_ends_it_at_once(start: Starter, startup: str) -> None:
    server = start(startup, wait=False)
    assert server.next_line() == "starting"
    server.send(signal.SIGTERM)
    code, lines, log = server.end()
    assert (code, lines) == (0, [])
    assert "Traceback" not in log


@pytest.mark.parametrize("path", ["/hang", "/hang-aside"])
def test_what_hangs_does_not_keep_it_from_ending(start: Starter, path: str) -> None:
    """Be it the event loop or another thread. Sixty seconds would be too long for `end`."""
    server = start("given-up", graceful_seconds=0.2)
    busy = server.connect()
    busy.request("GET", path)
    assert server.next_line() == "hanging"
    server.send(signal.SIGTERM)
    code, _, log = server.end()
    assert code == 1
    assert "does not end" in log
    busy.close()


def test_a_second_signal_is_heard_by_a_server_that_hangs(start: Starter) -> None:
    server = start("given-up", drain_seconds=60, graceful_seconds=60)
    busy = server.connect()
    busy.request("GET", "/hang")
    assert server.next_line() == "hanging"
    server.send(signal.SIGTERM)
    time.sleep(0.1)  # or both signals are one
    server.send(signal.SIGTERM, signal.SIGINT)
    assert server.end()[0] == 1
    busy.close()


def test_an_application_that_does_not_end_is_left(start: Starter) -> None:
    server = start("hanging-end", "given-up", graceful_seconds=0.2)
    server.send(signal.SIGTERM)
    code, lines, _ = server.end()
    assert (code, lines) == (1, ["draining", "lifespan over"])


def test_sighup_reloads_and_ends_nothing(start: Starter) -> None:
    server = start()
    busy = server.connect()
    busy.request("GET", "/sleep/0.4")
    assert server.next_line() == "sleeping"
    server.send(signal.SIGHUP)
    assert server.next_line() == "reloaded"
    with busy.getresponse() as response:
        assert response.status == 200
    server.send(signal.SIGHUP)
    assert server.next_line() == "reloaded"
    server.send(signal.SIGTERM)
    assert server.end()[:2] == (0, ["draining", "lifespan over", "force_exit False"])
    busy.close()


def test_other_reasons_to_exit_drain_too(start: Starter) -> None:
    for server, path in [(start(drain_seconds=1.5, max_requests=1), "/"), (start(drain_seconds=1.5), "/exit")]:
        connection = server.connect()
        assert status(connection, path) == 200
        assert server.next_line() == "draining"
        assert status(connection) == 503
        code, lines, log = server.end()
        assert (code, lines) == (0, ["lifespan over", "force_exit False"])
        assert log.count("Maximum request limit") == (path == "/")
        connection.close()


def test_it_listens_on_every_address_of_a_name() -> None:
    addresses = {each[4] for each in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
    sockets = listen("localhost", 0)
    for each, (host, *_) in zip(sockets, addresses, strict=True):
        assert each.getsockname()[0] in {name for name, *_ in addresses}, host
        socket.create_connection(each.getsockname()[:2], timeout=TIMEOUT_SECONDS).close()
        each.close()


def test_it_does_without_addresses_of_ipv6_where_a_name_has_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is for documents stands for `::1` in a container without IPv6."""
    other = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 0, 0, 0))
    own = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [other, own])
    (listening,) = listen("localhost", 0)
    assert listening.getsockname()[0] == "127.0.0.1"
    listening.close()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [other])
    with pytest.raises(Unusable, match=r"cannot listen on localhost, port 0: (Cannot assign|Address family not)"):
        listen("localhost", 0)


def test_an_error_in_the_callback_does_not_keep_it_from_draining(start: Starter) -> None:
    server = start("faulty")
    server.send(signal.SIGTERM)
    code, lines, log = server.end()
    assert (code, lines) == (0, ["draining", "lifespan over", "force_exit False"])
    assert "ValueError" in log
