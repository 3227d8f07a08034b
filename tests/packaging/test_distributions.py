"""sdist and wheel: what is in them, and that a clean environment with nothing else runs the service."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from app import __version__
from app.engine.capabilities import example
from app.operators.catalog import OPERATORS
from tests.conftest import running_server
from tests.messages import HARD_SIGMOID

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def execute(*command: str | Path, folder: Path) -> str:
    """Standard output of `command`, executed in `folder`."""
    finished = subprocess.run(command, check=False, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def build(target: str, sources: Path, folder: Path) -> Path:
    """The sdist or the wheel of `sources`, made in `folder`."""
    execute(sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", folder, folder=sources)
    (made,) = folder.iterdir()
    return made


def contents(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


INSTALLS = pytest.mark.timeout(600)
"""A test that may be the first to need `installed`, which takes what the package index needs to answer."""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel_of_sdist(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    execute("tar", "-xf", sdist, folder=folder)  # tarfile's ways to do it differ among Python 3.11 to 3.14
    return build("wheel", folder / sdist.name.removesuffix(".tar.gz"), tmp_path_factory.mktemp("wheel-of-sdist"))


@pytest.fixture(scope="module")
def installed(wheel_of_sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of an environment that holds the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("clean")
    uv = [sys.executable, "-m", "uv"]
    execute(*uv, "venv", "--python", sys.executable, "environment", folder=folder)
    execute(*uv, "pip", "install", "--python", "environment", wheel_of_sdist, folder=folder)
    execute(*uv, "pip", "check", "--python", "environment", folder=folder)
    return folder / "environment" / "bin"


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(contents(wheel))
    about = {name for name in names if name.startswith(f"dmlserve-{__version__}.dist-info/")}
    kinds = {".py", ".typed", ".html", ".css", ".js", ".svg"}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "app").rglob("*") if path.suffix in kinds}
    assert {"app/py.typed", "app/http/web/pages/operators.html", "app/http/web/static/app.js"} < names
    assert names - about == sources
    assert any(name.endswith("LICENSE") for name in about)


def test_sdist_makes_the_same_wheel(wheel_of_sdist: Path, wheel: Path) -> None:
    assert contents(wheel_of_sdist) == contents(wheel)


def test_sdist_holds_what_building_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= names
    assert not [name for name in names if name.startswith(("tests/", "docker/"))]


@INSTALLS
def test_command_works_from_a_clean_environment(installed: Path, tmp_path: Path) -> None:
    command = installed / "dmlserve"
    request = tmp_path / "request.json"
    request.write_text(json.dumps(example(OPERATORS[HARD_SIGMOID])))
    assert execute(command, "--version", folder=tmp_path) == f"dmlserve, version {__version__}\n"
    listed = execute(command, "operators", folder=tmp_path)
    assert all(operator.short_name() in listed for operator in OPERATORS.values())
    assert "0 0.1 0.5 0.7 0.9 1" in execute(command, "run", request, folder=tmp_path)
    assert execute(installed / "python", "-c", "import app; print(app.__file__)", folder=tmp_path).startswith(
        str(installed.parent)
    )


@INSTALLS
def test_service_works_from_a_clean_environment(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with running_server(tmp_path / "log", command=(installed / "dmlserve",), PYTHONPATH="") as server:
        with httpx.Client(base_url=server.url) as client:
            page = client.get("/docs").raise_for_status().text
            assets = re.findall(r'(?:src|href)="([^"]+)"', page)
            assert {asset.rpartition(".")[2] for asset in assets} == {"js", "css", "png"}
            for asset in assets:
                assert client.get(f"/{asset}").raise_for_status().content
            operators = client.get("/operators").raise_for_status().text
            assert all(f'id="{operator.short_name()}"' in operators for operator in OPERATORS.values())
            answer = client.post("/v1/dispatch", json=example(OPERATORS[HARD_SIGMOID])).raise_for_status().json()
        assert answer["outputs"]["OutputTensor"]["Sizes"] == [1, 1, 2, 3]
        assert server.stop() == 0


def test_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dynamic"] == ["version"]
    assert "version" not in project
