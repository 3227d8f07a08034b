"""The locks that the image is installed from, and the bill of what it is made of."""

import json
import re
import site
import sys
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path
from subprocess import run
from typing import Any
from urllib.parse import unquote

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = sorted((DOCKER / "locks").glob("*.txt"))

LINE = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>[\w.!]+)( ; (?P<marker>[^\\]+?))?(?P<hashes>( --hash=sha256:[0-9a-f]{64})+)"
)
PYTHONS = [
    each.rpartition(" ")[2]
    for each in PROJECT["project"]["classifiers"]
    if each.startswith("Programming Language :: Python :: 3.")
]


def environment(python: str, system: str = "linux", processor: str = "x86_64") -> dict[str, str]:
    """What markers are judged by there."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "platform_machine": processor,
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "platform_system": system.capitalize(),
        "sys_platform": system,
        "os_name": "posix",
        "extra": "",
    }


def pins(lock: Path, where: dict[str, str]) -> dict[str, str]:
    """Versions by name. Nothing else is in a lock: no address, no option of pip's."""
    comment, *lines = lock.read_text().replace(" \\\n   ", "").splitlines()
    assert comment == "# Made by docker/lock.py."
    found = {}
    for line in lines:
        pin = LINE.fullmatch(line)
        assert pin, line
        if pin["marker"] and not Marker(pin["marker"]).evaluate(where):
            continue
        assert pin["name"] not in found
        found[pin["name"]] = pin["version"]
    return found


def required(name: str) -> list[str]:
    if name == "build":
        return list(PROJECT["build-system"]["requires"])
    project = PROJECT["project"]
    extras = ["otel", *([] if name == "cpu" else name.split(","))]
    return [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]


def test_there_is_a_lock_of_each_image() -> None:
    assert {"build", "cpu", "cuda12", "cuda13", "test"} <= {lock.stem for lock in LOCKS}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
def test_a_lock_has_what_the_project_requires(lock: Path, python: str, processor: str) -> None:
    where = environment(python, processor=processor)
    found = pins(lock, where)
    for requirement in map(Requirement, required(lock.stem)):
        if requirement.marker is None or requirement.marker.evaluate(where):
            name = canonicalize_name(requirement.name)
            assert name in found, f"{name} is missing: run docker/lock.py"
            assert requirement.specifier.contains(found[name]), f"{name} {found[name]}: run docker/lock.py"


@pytest.mark.parametrize("lock", ["cpu", "test"])
@pytest.mark.parametrize("python", PYTHONS)
def test_a_lock_has_all_that_these_require(lock: str, python: str) -> None:
    """By what is installed here: of the same version it requires the same."""
    where = environment(python)
    found = pins(DOCKER / "locks" / f"{lock}.txt", where)
    same = [each for each in distributions() if found.get(canonicalize_name(each.name)) == each.version]
    needed = [Requirement(line) for each in same for line in each.requires or []]
    for requirement in needed:
        if requirement.marker is None or requirement.marker.evaluate(where):
            assert requirement.specifier.contains(found[canonicalize_name(requirement.name)])
    assert same


def test_what_is_built_is_installed_from_locks_only() -> None:
    installs = re.findall(r"pip (?:--python \S+ )?(?:install|wheel) .+", (DOCKER / "Dockerfile").read_text())
    installs += re.findall(r"^\S+ (?:install|\.venv) .+", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert len(installs) == 7
    for install in installs:
        assert "--require-hashes" in install or "--no-index" in install


def test_the_locks_are_for_all_pythons() -> None:
    """The image's among them; what is older than all is refused."""
    (image,) = re.findall(r"^FROM python:([\d.]+)-", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert image in PYTHONS
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    assert pins(DOCKER / "locks" / "cpu.txt", environment("3.14"))


def bill() -> dict[str, Any]:
    made = run([sys.executable, DOCKER / "sbom.py"], check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(made)
    return found


def test_the_bill_has_all_that_is_installed() -> None:
    made = bill()
    assert (made["bomFormat"], made["specVersion"], made["version"]) == ("CycloneDX", "1.6", 1)
    assert made["metadata"]["component"]["purl"] == f"pkg:pypi/dmlserve@{version('dmlserve')}"
    purls = [each["purl"] for each in made["components"]]
    assert purls == [each["bom-ref"] for each in made["components"]]
    assert len(purls) == len(set(purls))
    there = distributions(path=site.getsitepackages())  # Ray, where it is imported, has others by its side
    installed = {f"pkg:pypi/{canonicalize_name(each.name)}@{each.version}" for each in there}
    assert {unquote(each) for each in purls if each.startswith("pkg:pypi/")} == {
        each for each in installed if not each.startswith("pkg:pypi/dmlserve@")
    }
    assert f"pkg:generic/python@{sys.version.split()[0]}" in purls
    depends = {each["ref"]: each["dependsOn"] for each in made["dependencies"]}
    assert {*depends} <= {*purls, made["metadata"]["component"]["bom-ref"]}
    assert f"pkg:pypi/numpy@{version('numpy')}" in depends[f"pkg:pypi/dmlserve@{version('dmlserve')}"]
    assert all(set(each) <= set(purls) for each in depends.values())


@pytest.mark.skipif(not Path("/usr/bin/dpkg-query").exists(), reason="the system's packages are others than Debian's")
def test_the_bill_has_the_systems_packages() -> None:
    assert any(re.fullmatch(r"pkg:deb/\w+/libc6@\S+\?arch=\w+", each["purl"]) for each in bill()["components"])
