"""Processes that share a GPU by NVIDIA's Multi-Process Service.

Without a GPU a program of the test's stands in for NVIDIA's, and says how it was called.
"""

import ctypes
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.apart import done_apart
from app.devices.cuda import mps
from tests.conftest import ServerFactory
from tests.gpu import first_gpu
from tests.http.load import metric, wait_until
from tests.messages import CELU, answer_of, array_of, post_msgpack, request

FOLDER, VISIBLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES"

STAND_IN = """#!/bin/sh
echo "called with '$*', $CUDA_MPS_PIPE_DIRECTORY, GPUs '${CUDA_VISIBLE_DEVICES-all}'" >> "$SAID"
if [ "$1" = -d ]; then [ -z "$REFUSES" ] || { echo "$REFUSES" >&2; exit 1; }; else cat >> "$SAID"; fi
"""


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What the program that is in PATH was told."""
    program = tmp_path / mps.PROGRAM
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    monkeypatch.setenv(VISIBLE, "1")
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.setattr(mps, "_BY_DEFAULT", tmp_path / "none")
    (tmp_path / "said").touch()
    yield tmp_path / "said"
    assert FOLDER not in os.environ


def test_a_service_is_there_for_forked_processes_until_its_end(
    said: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "_trouble", lambda _: "" if os.environ[FOLDER] == str(tmp_path / "mps") else "no folder")
    assert mps.is_there()
    service = mps.start(tmp_path / "mps", None)
    assert service
    assert done_apart(lambda: os.environ[FOLDER]) == str(tmp_path / "mps")
    assert said.read_text() == f"called with '-d', {tmp_path}/mps, GPUs 'all'\n"  # of which clients choose theirs
    service.end()
    assert said.read_text().splitlines()[1:] == [f"called with '', {tmp_path}/mps, GPUs 'all'", "quit"]


@pytest.mark.parametrize("refuses", ["", "An instance of this daemon is already running"])
def test_one_that_does_not_work_ends_and_the_log_says_why(
    said: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refuses: str
) -> None:
    monkeypatch.setenv("REFUSES", refuses)
    monkeypatch.setattr(mps, "_trouble", lambda _: "cuInit answers 805")
    assert mps.start(tmp_path / "mps", None) is None
    assert said.read_text().endswith("quit\n")
    assert FOLDER not in os.environ
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warned) == 1
    assert warned[0].endswith(refuses or "cuInit answers 805")


def test_without_a_gpu_none_is_kept(said: Path, tmp_path: Path) -> None:
    """What CUDA says decides: on this machine that there is no driver, or no service behind the stand-in."""
    assert mps.start(tmp_path / "mps", None) is None
    assert said.read_text().endswith("quit\n")


@pytest.mark.parametrize("by", ["variable", "place"])
def test_one_that_is_there_is_left_alone(said: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    with monkeypatch.context() as given:
        if by == "variable":
            given.setenv(FOLDER, "/somebody/else's")
        else:
            (tmp_path / "control").touch()
            given.setattr(mps, "_BY_DEFAULT", tmp_path / "control")
        assert mps.is_there()
        assert mps.start(tmp_path / "mps", None) is None
        assert os.environ.get(FOLDER) == ("/somebody/else's" if by == "variable" else None)
    assert said.read_text() == ""
    assert not (tmp_path / "mps").exists()


@pytest.mark.parametrize(
    ("gpus", "tried", "said"),
    [(None, [0, 1], "cuDevicePrimaryCtxRetain answers 46 for GPU 1"), ([2, 0], [2, 0], ""), ([3], [], "cuDeviceGet")],
)
def test_only_the_gpus_that_are_used_need_work(
    monkeypatch: pytest.MonkeyPatch, gpus: list[int] | None, tried: list[int], said: str
) -> None:
    """Of three, the second is for one process alone."""
    started: list[int] = []

    class Cuda:
        """The driver, by its names."""

        def cuInit(self, flags: int) -> int:  # noqa: N802
            return 0

        def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
            count._obj.value = 3
            return 0

        def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
            device._obj.value = ordinal
            return 0 if ordinal < 3 else 101

        def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
            started.append(device.value)
            return 46 if device.value == 1 else 0

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Cuda())
    assert mps._trouble(gpus).startswith(said)
    assert started == tried


def test_without_its_program_there_is_none(
    said: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("PATH", "/nowhere")
    assert not mps.is_there()
    assert mps.start(tmp_path / "mps", None) is None
    assert mps.PROGRAM in caplog.text


def test_what_is_done_apart_leaves_this_process_as_it_was() -> None:
    def fail() -> str:
        raise OSError("no")

    def crash() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    def wait() -> str:
        signal.pause()
        return ""

    here = os.getpid()
    assert done_apart(lambda: str(os.getppid())) == str(here)
    assert done_apart(fail) is None
    assert done_apart(crash) is None
    assert done_apart(wait, seconds=0.1) is None


def daemons() -> set[int]:
    """Process ids of NVIDIA's control daemons."""
    found = subprocess.run(["pgrep", "-f", mps.PROGRAM], capture_output=True, text=True, check=False).stdout
    return set(map(int, found.split()))


@pytest.mark.gpu
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_workers_share_a_gpu_and_leave_nothing_behind(start_server: ServerFactory, ending: signal.Signals) -> None:
    """Also if the process that started the service is killed."""
    gpu = first_gpu()
    if not mps.is_there() or FOLDER in os.environ or mps._BY_DEFAULT.exists():
        pytest.skip("there is no program of NVIDIA's, or a service already")
    before = daemons()
    server = start_server("--workers", "2", "--gpus", str(gpu.ordinal))
    x = np.linspace(-3, 3, 1000, dtype=np.float32)
    with httpx.Client(base_url=server.url) as client:
        wait_until(lambda: metric(client, "workers") == 2)
        for _ in range(20):
            client.headers["connection"] = "close"  # another worker may have the next one
            answer = answer_of(post_msgpack(client, request(CELU, {"InputTensor": x}) | {"device": gpu.name}))
            assert answer["execution"]["device"] == gpu.name
            found = array_of(answer["outputs"]["OutputTensor"])
            np.testing.assert_allclose(found, np.where(x > 0, x, np.expm1(x)), rtol=1e-6)
    assert re.search("share GPUs by NVIDIA's", server.log.read_text())
    assert daemons() - before
    os.kill(server.process.pid, ending)
    server.process.wait()
    deadline = time.monotonic() + 30
    while daemons() - before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not daemons() - before
