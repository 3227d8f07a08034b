"""The image as it runs, under a container engine.

With TRY_URL and TRY_CONTAINER set, the container of that name, already running and answering there, is tested and, at
the end, stopped. Otherwise, where the docker command reaches an engine, the image is built and run here.
"""

import base64
import http.client
import json
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
LOCKED_DOWN = ["--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
REQUEST = {
    "operator": {
        "Type": "DML_OPERATOR_ACTIVATION_HARD_SIGMOID",
        "InputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 3]},
        "Alpha": 0.2,
        "Beta": 0.5,
    },
    "inputs": {"InputTensor": base64.b64encode(struct.pack("<6f", -4, -2, 0, 1, 2, 4)).decode()},
}


def docker(*arguments: str, timeout: float = 60, check: bool = True) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"DOCKER_BUILDKIT": "1"}  # older engines build without it unless told
    done = subprocess.run(["docker", *arguments], check=False, env=env, capture_output=True, text=True, timeout=timeout)
    if check and done.returncode != 0:
        pytest.fail(f"docker {arguments[0]} exited {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def engine_is_reachable() -> bool:
    if shutil.which("docker") is None:
        return False
    try:
        return docker("info", timeout=15, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


pytestmark = [
    pytest.mark.container,
    pytest.mark.skipif(not engine_is_reachable(), reason="no container engine: 'docker info' fails"),
]


@dataclass(frozen=True)
class Container:
    name: str
    url: str

    def inspect(self) -> dict[str, Any]:
        (found,) = json.loads(docker("inspect", self.name).stdout)
        state: dict[str, Any] = found
        return state

    def python(self, code: str) -> subprocess.CompletedProcess[str]:
        return docker("exec", self.name, "python", "-c", code, check=False)

    def request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def wait_until_healthy(self, seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = self.inspect()["State"]
            if state["Status"] != "running":
                break
            if state["Health"]["Status"] == "healthy":
                return
            time.sleep(0.5)
        logs = docker("logs", "--tail", "40", self.name, check=False)
        pytest.fail(f"{self.name} is {state['Status']} and not healthy:\n{logs.stdout}{logs.stderr}")


def start(image: str, name: str, *options: str) -> Container:
    docker("run", "--detach", f"--name={name}", "--publish=127.0.0.1::8000", *LOCKED_DOWN, *options, image)
    address = docker("port", name, "8000/tcp").stdout.split()[0]
    return Container(name, f"http://{address}")


def remove(name: str) -> None:
    docker("rm", "--force", "--volumes", name, check=False)


@pytest.fixture(scope="module")
def container() -> Iterator[Container]:
    url, name = os.environ.get("TRY_URL"), os.environ.get("TRY_CONTAINER")
    if url and name:
        yield Container(name, url)
        return
    image = "dmlserve:test"
    docker("build", "--file", str(ROOT / "docker" / "Dockerfile"), "--tag", image, str(ROOT), timeout=1800)
    name = f"dmlserve-test-{os.getpid()}"
    try:
        started = start(image, name)
        started.wait_until_healthy()
        yield started
    finally:
        remove(name)


@pytest.fixture
def another(container: Container) -> Iterator[str]:
    """A name for one more container, of the same image."""
    name = f"{container.name}-another"
    yield name
    remove(name)


def test_it_is_ready_and_healthy(container: Container) -> None:
    assert container.request("GET", "/health/live")[0] == 200
    assert container.request("GET", "/health/ready")[0] == 200
    assert container.inspect()["State"]["Health"]["Status"] == "healthy"


def test_it_runs_an_operator(container: Container) -> None:
    status, body = container.request("POST", "/v1/dispatch", REQUEST)
    assert status == 200, body
    data = base64.b64decode(json.loads(body)["outputs"]["OutputTensor"]["data"])
    assert struct.unpack("<6f", data) == pytest.approx([0, 0.1, 0.5, 0.7, 0.9, 1], abs=1e-6)


def test_the_service_is_process_1_and_not_root(container: Container) -> None:
    done = container.python("print(open('/proc/1/cmdline').read()); print(open('/proc/1/status').read())")
    assert "dmlserve" in done.stdout.partition("\n")[0]
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert "0" not in status["Uid"].split() + status["Gid"].split()
    assert int(status["CapEff"], 16) == 0


def test_nothing_but_tmp_can_be_written_with_a_read_only_root(container: Container) -> None:
    host = container.inspect()["HostConfig"]
    if not host["ReadonlyRootfs"]:
        pytest.skip("this container was started without --read-only")
    # /dev/shm and the like are the engine's own mounts, not the image's root file system
    for folder in ("/", "/opt/venv", "/var/tmp"):
        assert container.python(f"open('{folder}/x', 'w')").returncode != 0, folder
    assert container.python("open('/tmp/x', 'w').close(); import os; os.remove('/tmp/x')").returncode == 0


def test_the_image_holds_the_installed_service_and_not_what_built_it(container: Container) -> None:
    done = container.python("import os; print(os.listdir('/opt'), os.path.exists('/src'), os.listdir('/mnt'))")
    assert done.stdout.strip() == "['venv'] False []"


def test_a_key_file_turns_keys_on(container: Container, another: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# one key\na-key-of-this-test-only-0123456789\n")
    keys.chmod(0o644)
    keyed = start(
        container.inspect()["Image"], another, f"--volume={keys}:/keys:ro", "--env=DMLSERVE_API_KEYS_FILE=/keys"
    )
    keyed.wait_until_healthy()
    assert keyed.request("GET", "/health/live")[0] == 200
    assert keyed.request("POST", "/v1/dispatch", REQUEST)[0] == 401


def test_a_key_file_that_cannot_be_read_stops_the_service(container: Container, another: str) -> None:
    done = docker(
        "run",
        f"--name={another}",
        *LOCKED_DOWN,
        "--env=DMLSERVE_API_KEYS_FILE=/keys",
        container.inspect()["Image"],
        check=False,
        timeout=30,
    )
    assert done.returncode not in (0, 125)
    assert "/keys" in done.stdout + done.stderr


def test_it_stops_with_exit_code_0(container: Container) -> None:
    """Keep this one last: it stops the container."""
    docker("stop", "-t", "40", container.name)
    state = container.inspect()["State"]
    assert (state["Status"], state["ExitCode"]) == ("exited", 0)
