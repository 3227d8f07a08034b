"""Print a software bill of materials, in CycloneDX' JSON, of the Python environment that runs this and of the system's
packages, where dpkg knows them.

It says only what is installed, not when it was asked, so that the same image has the same bill.
"""

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from typing import Any
from urllib.parse import quote

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def bill(subject: str) -> dict[str, Any]:
    """Of the environment, whose distribution `subject` is what all others are there for."""
    found = {_normal(each.name): each for each in distributions()}
    parts = {name: _python(each) for name, each in sorted(found.items())}
    component = parts.pop(subject) | {"type": "application"}
    system = list(_system())
    interpreter = _part(
        "platform", "python", platform.python_version(), f"pkg:generic/python@{platform.python_version()}"
    )
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component},
        "components": [interpreter, *parts.values(), *system],
        "dependencies": [
            {"ref": _purl(each), "dependsOn": sorted({_purl(found[name]) for name in _needs(each) if name in found})}
            for _, each in sorted(found.items())
        ],
    }


def _python(each: Distribution) -> dict[str, Any]:
    made = _part("library", _normal(each.name), each.version, _purl(each))
    expression = each.metadata.json.get("license_expression")
    return made | ({"licenses": [{"expression": expression}]} if expression else {})


def _system() -> Iterator[dict[str, Any]]:
    """The packages of Debian and its like."""
    if program := shutil.which("dpkg-query"):
        lines = subprocess.run(  # noqa: S603
            [program, "--show", "--showformat=${Package} ${Version} ${Architecture}\n"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        system = platform.freedesktop_os_release()["ID"]
        for name, version, architecture in sorted(line.split() for line in lines):
            purl = f"pkg:deb/{system}/{quote(name)}@{quote(version)}?arch={architecture}"
            yield _part("library", name, version, purl)


def _part(kind: str, name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _purl(each: Distribution) -> str:
    return f"pkg:pypi/{_normal(each.name)}@{quote(each.version)}"


def _needs(each: Distribution) -> list[str]:
    """Names of what it requires, but for what only its extras do."""
    needed = [line for line in each.requires or [] if "extra ==" not in line]
    return [_normal(found[0]) for line in needed if (found := _NAME.match(line))]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    json.dump(bill("dmlserve"), sys.stdout, indent=1)
