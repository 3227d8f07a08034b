"""Python's programs as processes that are forked from one which has imported the service, as its own workers are: the
imports take a second of a processor, which some hundred servers need not take each."""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from typing import Any

from app.signals import expect_the_end
from tests.compiled_once import share

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["app.main", "app.cli"])


class _Descriptor:
    """One of a file, which is sent to the process along with what it is to do."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self._number),)


def _received(sent: Any) -> Any:
    return sent.detach()


class Preloaded:
    """A process as `subprocess.Popen` has it."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stdout: int,
        stderr: int,
        error: type[Warning] = RuntimeWarning,
    ) -> None:
        """The command is a script, or -c and a program, with arguments. Warnings that are an `error` are raised."""
        files = _Descriptor(stdout), _Descriptor(stderr)
        given = list(command), dict(environment), *files, error
        self._process = _FORKING.Process(target=_run, args=given, daemon=True)
        self._process.start()
        assert self._process.pid
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("preloaded", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    command: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int, error: type[Warning]
) -> None:
    """As the interpreter would by itself."""
    share()
    for number, file in ((1, stdout), (2, stderr)):
        os.dup2(file, number)
    for file in {stdout, stderr}:
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    warnings.filterwarnings("error", category=error)
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        exec(command[1], {"__name__": "__main__"})
        return
    sys.argv = list(command)
    if sys.argv[1:2] == ["serve"]:
        expect_the_end()  # as `app.cli` does where it is not imported yet
    runpy.run_path(sys.argv[0], run_name="__main__")
