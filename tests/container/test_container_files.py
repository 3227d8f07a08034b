"""The Dockerfile and the compose file as they are written: no container engine is needed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.settings import Settings
from tests.conftest import ServerFactory
from tests.http.load import wait_until
from tests.http.test_tls import make_certificate

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
HEALTH = ROOT / "docker" / "health.py"
REQUIREMENTS = ROOT / "docker" / "requirements.py"
SCRIPTS = Path(sysconfig.get_path("scripts"))


def run(*command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with none of the caller's own settings of the service."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DMLSERVE_", "COMPOSE_"))}
    return subprocess.run(command, check=False, cwd=ROOT, env=clean | env, capture_output=True, text=True, timeout=60)


def compose(*options: str, **env: str) -> dict[str, Any]:
    # An empty env file keeps a developer's own .env out of it.
    done = run(SCRIPTS / "docker-compose", "--env-file", os.devnull, *options, "config", "--format", "json", **env)
    assert (done.returncode, done.stderr) == (0, "")
    config: dict[str, Any] = json.loads(done.stdout)
    return config


def services() -> dict[str, Any]:
    found: dict[str, Any] = compose("--profile", "gpu")["services"]
    return found


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: the name and the rest of each, without comments and continuations."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", "").splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined if line.strip())]


def test_the_dockerfile_passes_the_linter() -> None:
    done = run(SCRIPTS / "hadolint", DOCKERFILE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_runs_as_a_numeric_user_other_than_root() -> None:
    users = [rest for name, rest in instructions() if name == "USER"]
    assert users
    assert all(int(part) > 0 for part in users[-1].split(":"))


def test_the_image_checks_its_health_with_python_alone() -> None:
    (check,) = [rest for name, rest in instructions() if name == "HEALTHCHECK"]
    assert json.loads(check.partition("CMD ")[2]) == ["python", f"/opt/venv/{HEALTH.name}"]
    (install,) = [rest for name, rest in instructions() if name == "RUN" and "/mnt/*.whl" in rest]
    assert f"cp /mnt/{HEALTH.name} /opt/venv " in install


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_the_health_check_finds_the_service_wherever_it_listens(start_server: ServerFactory, tmp_path: Path) -> None:
    def is_healthy(**environment: str | int | Path) -> bool:
        listening = {f"DMLSERVE_{name}": str(value) for name, value in environment.items()}
        return run(sys.executable, HEALTH, **listening).returncode == 0

    certificate, key = make_certificate(tmp_path, "of-another-host")
    plain = start_server("--drain-seconds", "60")
    secure = start_server("--tls-certificate", str(certificate), "--tls-key", str(key))
    local = start_server("--uds", str(tmp_path / "socket"))
    for host in ("0.0.0.0", "127.0.0.1"):
        assert is_healthy(HOST=host, PORT=plain.port)
        assert is_healthy(HOST=host, PORT=secure.port, TLS_CERTIFICATE=certificate)
    assert is_healthy(HOST="0.0.0.0", PORT=8000, UDS=local.url)
    assert not is_healthy(HOST="0.0.0.0", PORT=secure.port)
    plain.process.send_signal(signal.SIGTERM)
    wait_until(lambda: httpx.get(f"{plain.url}/health/ready").status_code == 503)
    assert not is_healthy(HOST="0.0.0.0", PORT=plain.port)


def test_signals_reach_the_service_with_no_shell_in_between() -> None:
    found = dict(instructions())
    assert json.loads(found["ENTRYPOINT"]) == ["dmlserve"]
    assert json.loads(found["CMD"]) == ["serve"]
    assert found["EXPOSE"] == "8000"


def test_every_stage_starts_from_the_one_base_image() -> None:
    froms = [rest.split() for name, rest in instructions() if name == "FROM"]
    assert froms[0] == ["python:3.12-slim", "AS", "base"]
    assert all(image == "base" for image, *_ in froms[1:])


def test_the_build_context_holds_all_that_is_copied() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        word.removeprefix("./")
        for name, rest in instructions()
        if name == "COPY" and not rest.startswith("--from")
        for word in rest.split()[:-1]
    }
    assert copied == kept
    assert all((ROOT / path).exists() for path in kept)


def test_requirements_are_the_projects_own_and_those_of_the_extras() -> None:
    def requirements(extras: str) -> list[str]:
        done = run(sys.executable, REQUIREMENTS, "pyproject.toml", extras)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    plain, cuda12, cuda13 = requirements(""), requirements("cuda12"), requirements("cuda13")
    assert plain
    assert cuda12[: len(plain)] == cuda13[: len(plain)] == plain
    assert len(plain) < len(cuda12) == len(cuda13)
    assert cuda12 != cuda13


def test_an_unknown_extra_fails_the_build() -> None:
    done = run(sys.executable, REQUIREMENTS, "pyproject.toml", "cuda99")
    assert done.returncode != 0
    assert "cuda99" in done.stderr


def test_one_service_by_default_and_one_more_in_the_gpu_profile() -> None:
    assert list(compose()["services"]) == ["dmlserve"]
    assert list(services()) == ["dmlserve", "dmlserve-gpu"]
    assert services()["dmlserve-gpu"]["profiles"] == ["gpu"]


@pytest.mark.parametrize("name", ["dmlserve", "dmlserve-gpu"])
def test_a_service_is_locked_down(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["user"] == "10001:10001"
    assert [mount.partition(":")[0] for mount in service["tmpfs"]] == ["/tmp"]
    assert not {"privileged", "cap_add", "network_mode", "pid", "volumes"} & set(service)


@pytest.mark.parametrize("name", ["dmlserve", "dmlserve-gpu"])
def test_a_service_is_bounded_watched_and_restarted(name: str) -> None:
    service = services()[name]
    environment = service["environment"]
    assert int(environment["DMLSERVE_MAX_MEMORY_BYTES"]) <= int(service["mem_limit"]) / 2
    assert int(environment["DMLSERVE_THREADS"]) == service["cpus"]
    assert service["pids_limit"] > 0
    assert service["logging"] == {"driver": "local"}
    assert not service["healthcheck"].get("disable")
    assert service["restart"] == "unless-stopped"
    assert service["stop_grace_period"]


def test_variables_that_are_named_are_those_of_settings_or_of_the_compose_file() -> None:
    """What a container is told, and what is said of it in comments and in the README."""
    settings = {f"DMLSERVE_{name.upper()}" for name in Settings.model_fields}
    text = (ROOT / "compose.yaml").read_text()
    asked = {*re.findall(r"\$\{(DMLSERVE_\w+)", text)}
    told = {
        name for service in compose("--profile", "*")["services"].values() for name in service.get("environment", ())
    }
    told |= {each for name, rest in instructions() if name == "ENV" for each in re.findall(r"(\w+)=", rest)}
    assert {name for name in told if name.startswith("DMLSERVE_")} <= settings
    files = [path for path in (ROOT / "docker").rglob("*") if path.is_file()]
    for path in (ROOT / "README.md", ROOT / "compose.yaml", *files):
        named = {*re.findall(r"(?<!\w)DMLSERVE_[A-Z]+(?:_[A-Z]+)*", path.read_text())}
        assert named <= settings | asked, path


def test_ports_are_published_on_loopback_and_do_not_collide() -> None:
    ports = [port for service in services().values() for port in service["ports"]]
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}
    assert {port["target"] for port in ports} == {8000}
    assert [port["published"] for port in ports] == ["8000", "8001"]


def test_only_the_gpu_service_reserves_a_device_and_builds_with_cuda() -> None:
    plain, gpu = services().values()
    assert "deploy" not in plain
    assert "args" not in plain["build"]
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert gpu["build"]["args"] == {"EXTRAS": "cuda13"}


@pytest.mark.parametrize("environment", [{}, {"DMLSERVE_API_KEYS_FILE": ""}])
def test_no_key_file_is_named_unless_the_environment_names_one(environment: dict[str, str]) -> None:
    config = compose("--profile", "gpu", **environment)
    assert config["secrets"]["api-keys"]["file"] == os.devnull
    for service in config["services"].values():
        assert service["environment"]["DMLSERVE_API_KEYS_FILE"] == ""


def test_keys_come_from_the_file_that_the_environment_names() -> None:
    config = compose("--profile", "gpu", DMLSERVE_API_KEYS_FILE="/etc/dmlserve/keys")
    assert config["secrets"]["api-keys"]["file"] == "/etc/dmlserve/keys"
    for service in config["services"].values():
        (secret,) = service["secrets"]
        assert service["environment"]["DMLSERVE_API_KEYS_FILE"] == f"/run/secrets/{secret['source']}"
