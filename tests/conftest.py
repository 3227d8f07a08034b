"""A real server for the tests that talk HTTP: `dmlserve serve` in a process of its own."""

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest

from tests import compiled_once
from tests.preloaded import Preloaded

ROOT = Path(__file__).resolve().parents[1]

# The same examples every time, and none fails for being slow on a busy machine.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None)
hypothesis.settings.load_profile("fixed")

# A busy machine may take longer than the five seconds after which httpx gives up. Each client would read all
# certificates of authorities for itself, which takes 40 ms.
CERTIFICATES = httpx.create_ssl_context()
for waits in (httpx.Client.__init__, httpx.AsyncClient.__init__, httpx.get, httpx.post):
    (waits.__kwdefaults__ or {}).update(timeout=60, verify=CERTIFICATES)

if sys.dont_write_bytecode:
    # Several hundred processes are started, and each would take two seconds to compile the same modules again.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(ROOT / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

COMMAND = Path(sys.executable).with_name("dmlserve")
STOCK: tuple[str | Path, ...] = (sys.executable, Path(__file__).with_name("stock_protocol.py"))
SERVER: tuple[str | Path, ...] = STOCK if os.environ.get("STOCK_PROTOCOL") else (COMMAND,)
"""What serves in the tests: with STOCK_PROTOCOL=1 they show what does not depend on our HTTP protocol."""

ASYNCIO_LOOP = Path(__file__).with_name("asyncio_loop.py")
"""Runs what serves on asyncio's own event loop instead of uvloop."""

LENT_SOCKETS = Path(__file__).with_name("lent_sockets.py")
"""Runs it with threads that receive and send what else only large bodies would be worth."""

ours_only = pytest.mark.skipif(SERVER is STOCK, reason="uvicorn's own protocol does not do this")


QUICK = [
    Path(__file__).with_name(folder) / name
    for folder, names in {
        "cli": ["test_completion.py"],
        "codecs": ["test_json.py", "test_numbers.py", "test_requests.py", "test_tensor_files.py"],
        "container": ["test_locks.py"],
        "contract": ["test_constants.py", "test_tensor_descriptors.py"],
        "devices": ["test_layout.py", "test_placement.py"],
        "docs": ["test_architecture.py"],
        "engine": ["test_service.py", "test_workers.py"],
        "graphs": ["test_graph_rules.py"],
        "http": ["test_bodies.py", "test_dispatch.py"],
        "memory": ["test_buffers.py"],
        "packaging": ["test_floors.py", "test_oldest.py"],
    }.items()
    for name in names
]
"""Something of each room, for `pytest -m quick`: what one wants to know every few minutes."""


FIRST = {"test_distributions.py", "test_structures.py", "test_widths.py"}
"""They take long, and would be among the last that are taken: one process would be idle while the other has one."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """To collect all tests takes longer than to run the quick ones."""
    is_file = collection_path.suffix == ".py"
    return True if is_file and config.option.markexpr == "quick" and collection_path not in QUICK else None


def pytest_configure(config: pytest.Config) -> None:
    # pytest-xdist is to take files by name. It would have those of few tests last, of which one may take minutes.
    config.option.loadscopereorder = False
    if compiled_once.FOLDER not in os.environ:  # as it is in pytest-xdist's workers
        os.environ[compiled_once.FOLDER] = tempfile.mkdtemp()
        config.add_cleanup(lambda: shutil.rmtree(os.environ[compiled_once.FOLDER]))
    compiled_once.share()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in FIRST)
    quick = {str(path) for path in QUICK}  # paths are compared part by part, for 37,000 tests
    for item in items:
        if str(item.path) in quick:
            item.add_marker("quick")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Ours for `--dist loadfile`. Where there is no pytest-xdist, nobody asks."""
    if config.option.dist != "loadfile":
        return None
    from tests.scheduling import Files

    return Files(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays. To look through it for garbage takes a tenth of the time that collecting takes, and a
    second, again and again, of what comes after."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzz", "the fuzzer in tests/fuzz")
    group.addoption("--fuzz-seconds", type=float, default=1.5, help="how long each of its servers is asked, at least")
    group.addoption("--fuzz-seed", type=int, default=0, help="of what is random")


@dataclass(frozen=True)
class RunningServer:
    """A server process and where it answers: its URL, or the path of its Unix domain socket."""

    process: "Preloaded | subprocess.Popen[bytes]"
    url: str
    log: Path

    def stop(self, seconds: float = 60) -> int:
        """Ask it to end; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def running_server(
    log: Path, *flags: str, command: Sequence[str | Path] = SERVER, **environment: str
) -> Iterator[RunningServer]:
    """`dmlserve serve` with `flags` on a free port, ready for requests; `environment` is added to ours. It is the same
    on large machines and on those with GPUs."""
    environment = {"DMLSERVE_WORKERS": "1", "DMLSERVE_GPUS": "none"} | environment
    process = _started(log, command, ["serve", "--port", "0", *flags], environment)
    try:
        url = _address(process, log)
        yield RunningServer(process, url, log)
    finally:
        process.kill()
        process.wait()


def _started(
    log: Path, command: Sequence[str | Path], arguments: Sequence[str], environment: dict[str, str]
) -> "Preloaded | subprocess.Popen[bytes]":
    """A process of its own. It imports the service itself if the command is another one, or if its environment tells
    Python or a library something."""
    is_python = command[0] == sys.executable
    program = command[1:] if is_python else command
    is_one = len(program) == 1 + (program[0] == "-c") if is_python else command == (COMMAND,)
    with log.open("wb") as written:
        if is_one and all(name.startswith("DMLSERVE_") for name in environment):
            number = written.fileno()
            return Preloaded([*map(str, program), *arguments], os.environ | environment, number, number)
        ours = {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::RuntimeWarning"}  # NumPy's are faults of ours
        return subprocess.Popen(
            [*command, *arguments], stderr=written, stdout=written, env=os.environ | ours | environment
        )


def _address(process: "Preloaded | subprocess.Popen[bytes]", log: Path) -> str:
    """Where the server listens, as its log says, once it does."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        found = re.search(r"running on (?:unix socket )?(https?://[\d.]+:\d+|/\S+)", log.read_text())
        if found:
            return found.group(1)
        time.sleep(0.02)
    raise AssertionError(f"the server did not start:\n{log.read_text()}")


@pytest.fixture
def _no_collections() -> Iterator[None]:
    """The garbage collector comes only where a test asks for it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with default settings, for all tests that do not change it."""
    with running_server(tmp_path_factory.mktemp("server") / "log") as running:
        yield running


@pytest.fixture(scope="session")
def client(server: RunningServer) -> Iterator[httpx.Client]:
    """An HTTP client of `server`."""
    with httpx.Client(base_url=server.url, timeout=30) as opened:
        yield opened


ServerFactory = Callable[..., RunningServer]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[ServerFactory]:
    """Starts servers with settings of their own; they end with the test."""
    with ExitStack() as stack:
        started = 0

        def start(*flags: str, **environment: str) -> RunningServer:
            nonlocal started
            started += 1
            return stack.enter_context(running_server(tmp_path / f"server-{started}.log", *flags, **environment))

        yield start
