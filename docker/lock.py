"""Write the lock files that the image and the tests are installed from: docker/locks/EXTRAS.txt, cpu.txt without any.

Usage: lock.py [EXTRA[,EXTRA...]...]     by default all that are there, anew

Each has the newest versions that pyproject.toml allows, of all that is installed, with the hashes of all files of them,
and holds for every Python that the project does, on every system: what only some of these want has its marker.
uv, which is one of the tests' packages, resolves it; where packages are had from is up to its own configuration.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCKS = HERE / "locks"
PYPROJECT = HERE.parent / "pyproject.toml"
PROJECT = tomllib.loads(PYPROJECT.read_text())

ALWAYS = "otel"
"""An extra that every image has: whether there are traces is for who runs it to say."""

BUILD = "build"
"""The lock of what the service's own wheel is built with."""

UV = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--upgrade", "--universal", "--generate-hashes"]
SPARSE = ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]


def requirements(name: str) -> str:
    """What a lock is made of, a requirement a line."""
    if name == BUILD:
        needed: list[str] = PROJECT["build-system"]["requires"]
        return "\n".join(needed)
    extras = ALWAYS if name == "cpu" else f"{name},{ALWAYS}"
    command = [sys.executable, str(HERE / "requirements.py"), str(PYPROJECT), extras]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603


def locked(needed: str) -> str:
    """The lines of a lock."""
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    command = [*UV, *SPARSE, f"--python-version={oldest}", "-"]
    made = subprocess.run(command, input=needed, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    return "# Made by docker/lock.py.\n" + made.stdout


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in LOCKS.glob("*.txt")):
        (LOCKS / f"{name}.txt").write_text(locked(requirements(name)))
