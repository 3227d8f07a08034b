"""Servers under test, each a process of its own on 127.0.0.1, and how they are started and stopped."""

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import processes

HERE = Path(__file__).parent
START_SECONDS = 60
STOP_SECONDS = 15


@dataclass(frozen=True)
class Server:
    """A server that answers; `pid` is None when someone else started it."""

    name: str
    url: str
    pid: int | None = None

    def settle(self) -> None:
        """Wait until it has done what the last load left behind."""
        if self.pid is None:
            time.sleep(1)
        else:
            processes.settle(self.pid)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5, context=ssl._create_unverified_context()) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


@contextlib.contextmanager
def running(
    name: str,
    command: Sequence[str],
    port: int,
    ready: str,
    environment: Mapping[str, str] | None = None,
    scheme: str = "http",
) -> Iterator[Server]:
    """The server that `command` starts, from its first 200 on the path `ready` until the block ends.

    `environment` is added to this process's.
    """
    url = f"{scheme}://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | (environment or {}),
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not answers(url + ready):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise SystemExit(f"{name} did not start: {' '.join(command)}\n{log.read()[-2000:]}")
                time.sleep(0.01)
            yield Server(name, url, process.pid)
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the process, and whatever is left of its group when it does not end in time."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def service(arguments: Sequence[str] = (), root: Path | None = None) -> contextlib.AbstractContextManager[Server]:
    """`dmlserve serve`, the one installed beside this interpreter, with further arguments.

    With `root` the code is that of another checkout, in the same environment.
    """
    beside = Path(sys.executable).with_name("dmlserve")
    executable = str(beside) if beside.exists() else shutil.which("dmlserve")
    if executable is None:
        raise SystemExit("dmlserve is not installed in this environment: pip install -e . (or measure one with --url)")
    port = free_port()
    command = [executable, "serve", "--port", str(port), *arguments]
    if root is None:
        return running("service", command, port, "/health/ready")
    environment = {"PYTHONPATH": str(root.resolve())}
    where = [sys.executable, "-c", "import app; print(app.__file__)"]
    found = subprocess.run(where, env=os.environ | environment, cwd="/", capture_output=True, text=True, check=True)
    if not Path(found.stdout.strip()).is_relative_to(root.resolve()):
        raise SystemExit(f"{root} is no checkout of dmlserve: its code is taken from {found.stdout.strip()}")
    return running("old service", command, port, "/health/ready", environment)


def yardstick() -> contextlib.AbstractContextManager[Server]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "yardstick:app", "--app-dir", str(HERE), "--port", str(port)]
    command += ["--loop", "uvloop", "--http", "httptools", "--lifespan", "off", "--log-level", "warning"]
    # uvicorn counts an answer still being sent as idle time, and would close a slow connection after 5 s.
    return running("yardstick", [*command, "--timeout-keep-alive", "75"], port, "/")


def naive() -> contextlib.AbstractContextManager[Server]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "naive:app", "--app-dir", str(HERE), "--port", str(port)]
    return running("naive", [*command, "--log-level", "warning", "--timeout-keep-alive", "75"], port, "/")


def floor() -> contextlib.AbstractContextManager[Server]:
    port = free_port()
    return running("floor", [sys.executable, str(HERE / "floor.py"), "--port", str(port)], port, "/")
