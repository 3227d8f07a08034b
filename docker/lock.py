"""Write the lock files that the image is installed from: docker/locks/EXTRAS.txt, or cpu.txt without extras.

Usage: lock.py [EXTRA[,EXTRA...]...]     by default all that are there, anew

Each has the newest versions that pyproject.toml allows, of all that is installed, with the hashes of the wheels for the
image's Python on both processors. Where they are had from is up to pip's own configuration. pip evaluates markers for
the Python that runs this, so that it had better be the image's.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

PYTHON = "3.12"
"""Of the image."""

PROCESSORS = ("x86_64", "aarch64")
_GLIBC = range(17, 37)  # that of the image is 2.36 or newer

HERE = Path(__file__).resolve().parent
LOCKS = HERE / "locks"
PYPROJECT = HERE.parent / "pyproject.toml"

BUILD = "build"
"""The lock of what the service's own wheel is built with."""


def requirements(name: str) -> list[str]:
    """What a lock is made of."""
    if name == BUILD:
        needed: list[str] = tomllib.loads(PYPROJECT.read_text())["build-system"]["requires"]
        return needed
    extras = "" if name == "cpu" else name
    command = [sys.executable, str(HERE / "requirements.py"), str(PYPROJECT), extras]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()  # noqa: S603


def resolve(needed: list[str], processor: str) -> list[dict[str, Any]]:
    """What pip would install for all of `needed`."""
    with tempfile.TemporaryDirectory() as folder:
        asked, report = Path(folder, "requirements.txt"), Path(folder, "report.json")
        asked.write_text("\n".join(needed))
        tags = [*(f"manylinux_2_{minor}" for minor in reversed(_GLIBC)), "manylinux2014"]
        platforms = [f"--platform={tag}_{processor}" for tag in tags]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--only-binary=:all:", f"--python-version={PYTHON}", f"--target={folder}/none", *platforms]
        subprocess.run([*command, f"--report={report}", f"--requirement={asked}"], check=True)  # noqa: S603
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
        return found


def locked(needed: list[str]) -> str:
    """The lines of a lock, with a version that is the same on all processors."""
    hashes: dict[str, set[str]] = {}
    for processor in PROCESSORS:
        held = [*needed, *hashes] if hashes else needed
        for each in resolve(held, processor):
            name = each["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
            pin = f"{name}=={each['metadata']['version']}"
            hashes.setdefault(pin, set()).add(each["download_info"]["archive_info"]["hashes"]["sha256"])
    lines = [
        " \\\n    ".join([pin, *(f"--hash=sha256:{each}" for each in sorted(hashes[pin]))]) for pin in sorted(hashes)
    ]
    return "# Made by docker/lock.py.\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in LOCKS.glob("*.txt")):
        (LOCKS / f"{name}.txt").write_text(locked(requirements(name)))
