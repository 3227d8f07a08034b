"""The constraints of CI's leg with the oldest versions: what pyproject.toml allows, and no version above its least."""

import subprocess
import sys
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.packaging.oldest import PYPROJECT, constraints


def project(*dependencies: str, test: list[str]) -> dict[str, Any]:
    return {"dependencies": list(dependencies), "optional-dependencies": {"test": test}}


def test_lower_bounds_and_what_tests_need() -> None:
    made = constraints(
        project(
            "first>=1.2,<2",
            "second-one>=3",
            "third[extra]>=0.4.1,<1; sys_platform != 'win32'",
            test=["fourth[http]>=2.6,<3", "fifth>=14,<15; sys_platform == 'linux'"],
        )
    )
    assert list(made) == [
        "first==1.2",
        "second-one==3",
        "third==0.4.1; sys_platform != 'win32'",
        "fourth>=2.6,<3",
        "fifth>=14,<15; sys_platform == 'linux'",
    ]


@pytest.mark.parametrize("requirement", ["first", "first<2", "first==1", "first<2,>=1", "first @ file:///first.whl"])
def test_a_dependency_states_its_lower_bound_first(requirement: str) -> None:
    with pytest.raises(ValueError, match="lower bound"):
        list(constraints(project(requirement, test=[])))


def test_every_dependency_is_held_to_the_least_version_that_it_may_have() -> None:
    printed = subprocess.run(
        [sys.executable, PYPROJECT.parent / "tests/packaging/oldest.py"], capture_output=True, text=True, check=True
    ).stdout
    held = {each.name: each for each in map(Requirement, printed.splitlines())}
    assert len(held) == len(printed.splitlines())
    for dependency in map(Requirement, tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]):
        constraint = held[dependency.name]
        assert constraint.marker == dependency.marker
        (pin,) = constraint.specifier
        lower = [each.version for each in dependency.specifier if each.operator == ">="]
        assert (pin.operator, [pin.version]) == ("==", lower)
