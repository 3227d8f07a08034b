"""A Unix domain socket in place of a port."""

import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.http.server.server import UnixSocket
from app.settings import Unusable
from tests.conftest import ROOT, RunningServer, ours_only, running_server
from tests.http.load import ENDLESS, ENDLESS_SETTINGS, start, wait_for
from tests.http.wire import SECONDS, Connection, header
from tests.messages import CELU, output_of, post_msgpack, request

pytestmark = ours_only

SMALL = request(CELU, {"InputTensor": np.array([-1, 2, 3], np.float32)})
LARGE = request(CELU, {"InputTensor": np.linspace(-4, 4, 3_000_000, dtype=np.float32)})


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of two processes at a path where another one was killed."""
    folder = tmp_path_factory.mktemp("local")
    path = folder / "socket"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with running_server(folder / "log", "--uds", str(path), "--workers", "2", *ENDLESS_SETTINGS) as running:
        assert running.url == str(path)
        yield running


@pytest.fixture
def local_client(local: RunningServer) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=local.url)
    with httpx.Client(base_url="http://localhost", transport=transport, timeout=30) as opened:
        yield opened


@contextmanager
def connected(local: RunningServer) -> Iterator[Connection]:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.settimeout(SECONDS)
        opened.connect(local.url)
        yield Connection(opened)


def test_the_same_answers(local_client: httpx.Client, client: httpx.Client) -> None:
    for message in (SMALL, LARGE, SMALL):
        difference = output_of(post_msgpack(local_client, message)) - output_of(post_msgpack(client, message))
        assert np.abs(difference).max() < 1e-6  # one has no LLVM


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl(local: RunningServer) -> None:
    command = ["curl", "-sS", "--unix-socket", local.url, "http://localhost/health/ready"]
    assert '"ready"' in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_who_only_closes_its_sending_side_is_answered(local: RunningServer) -> None:
    with connected(local) as client:
        client.send(header(method=b"GET", path=b"/v1/capabilities"))
        client.socket.shutdown(socket.SHUT_WR)
        assert client.receive().status_code == 200


@pytest.mark.parametrize("half", [True, False])
def test_who_hangs_up_is_noticed(local: RunningServer, local_client: httpx.Client, half: bool) -> None:
    with connected(local) as client:
        start(client, ENDLESS)
        wait_for(local_client, "running_dispatches", 1)
        if half:
            client.socket.shutdown(socket.SHUT_WR)
            wait_for(local_client, "running_dispatches", 1)
        client.hang_up()
    wait_for(local_client, "running_dispatches", 0)


def test_only_its_user_may_connect(tmp_path: Path) -> None:
    """As the umask says."""
    before = os.umask(0o077)
    try:
        made = UnixSocket(str(tmp_path / "socket"))
    finally:
        os.umask(before)
    with made.socket:
        assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o700
    made.remove()
    assert not (tmp_path / "socket").exists()


def test_what_is_there_stays(tmp_path: Path, local: RunningServer) -> None:
    file = tmp_path / "file"
    file.write_text("of somebody")
    (tmp_path / "link").symlink_to(local.url)
    no_sockets = dict.fromkeys([str(file), str(tmp_path), str(tmp_path / "link")], "what is there is no socket")
    for path, why in {local.url: "somebody listens there", **no_sockets}.items():
        with pytest.raises(Unusable, match=why):
            UnixSocket(path)
    datagrams = str(tmp_path / "datagrams")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(datagrams)
        with pytest.raises(Unusable, match="somebody listens there"):
            UnixSocket(datagrams)
        assert Path(datagrams).is_socket()
    for path in (str(tmp_path / "none" / "socket"), "x" * 200):
        with pytest.raises(Unusable, match="cannot listen at"):
            UnixSocket(path)
    assert file.read_text() == "of somebody"
    made = UnixSocket(str(tmp_path / "socket"))
    with made.socket:
        (tmp_path / "socket").unlink()
        (tmp_path / "socket").touch()
        made.remove()
    assert (tmp_path / "socket").exists()


def test_it_is_removed_where_the_service_cannot_start(tmp_path: Path) -> None:
    """Though it listened already: here there is no folder for what workers share."""
    path = tmp_path / "socket"
    program = f"import tempfile\ntempfile.tempdir = {str(tmp_path / 'none')!r}\nfrom app.cli import main\nmain()"
    command = [sys.executable, "-c", program, "serve", "--uds", str(path), "--workers", "2", "--gpus", "none"]
    ended = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert "need a folder for temporary files" in ended.stderr
    assert not path.exists()


def test_it_is_removed_at_the_end(local: RunningServer) -> None:
    """The last test of the server."""
    assert local.stop() == 0
    assert not Path(local.url).exists()
