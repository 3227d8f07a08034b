"""What hosts of repositories show: the files in .github, which are true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from app import __version__
from tests.conftest import QUICK
from tests.readme import README

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github"
FILES = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]


@pytest.mark.parametrize("name", FILES)
def test_the_readme_leads_to_each_and_each_to_what_there_is(name: str) -> None:
    assert f"(.github/{name})" in README
    for target in re.findall(r"\]\((?!https:)([^)#]+)\)", (FOLDER / name).read_text()):
        assert (FOLDER / target).exists(), target


def test_the_changes_begin_with_this_version() -> None:
    first, *_ = re.findall(r"^## (\S+?),", (FOLDER / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first == __version__


def test_how_tests_are_run_is_told_alike() -> None:
    text = (FOLDER / "CONTRIBUTING.md").read_text()
    install, quick = re.findall(r"^```sh\n(.+)\n(.+)\n```$", text, re.MULTILINE)[0]
    assert f"{install} && " in README
    assert f"\n{quick}\n" in README
    for program in ("ruff format --check .", "ruff check .", "mypy", "mypy tests"):
        assert f"`{program}`" in text
        assert f".venv/bin/{program}\n" in (ROOT / ".ci" / "run").read_text()


def test_the_bill_is_where_it_is_said_to_be() -> None:
    for file in ("README.md", ".github/SECURITY.md", "docker/Dockerfile"):
        assert "/opt/venv/sbom.cdx.json" in (ROOT / file).read_text(), file


def test_the_quick_tests_are_found_without_the_others() -> None:
    (command,) = re.findall(r"^\.venv/bin/(pytest -m \w+)$", README, re.MULTILINE)
    asked = [sys.executable, "-m", *command.split(), "--collect-only", "-q", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    found = {line.partition(":")[0] for line in done.stdout.splitlines() if line.startswith("tests/")}
    assert found == {str(path.relative_to(ROOT)) for path in QUICK}
