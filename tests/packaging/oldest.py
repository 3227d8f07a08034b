"""Constraints for pip under which the oldest versions that pyproject.toml allows are installed.

    python tests/packaging/oldest.py > oldest.txt
    pip install --constraint oldest.txt --editable . pytest httpx

Each dependency is held to its lower bound; what the tests need stays within its bounds and is as new as it can be.
"""

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,]+\])?(?P<bounds>>=(?P<lower>[\w.]+)[^;]*?)\s*(?P<marker>;.*)?")


def constraints(project: Mapping[str, Any]) -> Iterator[str]:
    """A line for each dependency in the table `project`, and for each of its extra `test`.

    ValueError where one does not begin with its lower bound.
    """
    for requirement in project["dependencies"]:
        parts = _parts(requirement)
        yield f"{parts['name']}=={parts['lower']}{parts['marker'] or ''}"
    for requirement in project["optional-dependencies"]["test"]:
        parts = _parts(requirement)
        yield f"{parts['name']}{parts['bounds']}{parts['marker'] or ''}"


def _parts(requirement: str) -> dict[str, str | None]:
    found = _REQUIREMENT.fullmatch(requirement)
    if found is None:
        raise ValueError(f"{requirement} does not begin with its lower bound: name>=version")
    return found.groupdict()


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in constraints(tomllib.loads(PYPROJECT.read_text())["project"]))
