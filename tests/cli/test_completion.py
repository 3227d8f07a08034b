"""What shells complete, by the protocol that click has with each of them."""

import re

import pytest

from app.contract.constants import DataType, FeatureLevel
from app.operators.catalog import OPERATORS
from tests.cli.command import dmlserve, printed
from tests.operators.facts import FAMILIES
from tests.readme import README

SHORT = [operator.short_name() for operator in OPERATORS.values()]


def completed(*words: str) -> list[str]:
    """What bash is told that the last one of `words` may be: each with its type."""
    environment = {"COMP_WORDS": " ".join(["dmlserve", *words]), "COMP_CWORD": str(len(words))}
    return printed(dmlserve(env=environment | {"_DMLSERVE_COMPLETE": "bash_complete"})).splitlines()


def plain(known: list[str]) -> set[str]:
    return {f"plain,{each}" for each in known}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["operators", "ACTIVATION_C"], ["ACTIVATION_CELU"]),
        (["operators", "activation_c"], ["activation_celu"]),
        (["operators", "DML_OPERATOR_GEM"], ["DML_OPERATOR_GEMM"]),
        (["operators", "--family", ""], list(FAMILIES)),
        (["operators", "--data-type", "float"], [each.lower() for each in DataType if each.startswith("FLOAT")]),
        (["operators", "--feature-level", "6"], [each for each in FeatureLevel if each.startswith("6")]),
        (["run", "GEM"], ["GEMM"]),
        (["serve", "--log-format", "t"], ["text"]),
        (["inspec"], ["inspect"]),
    ],
)
def test_names(words: list[str], expected: list[str]) -> None:
    assert set(completed(*words)) == plain(expected)


def test_all_operators() -> None:
    assert plain(SHORT) <= set(completed("operators", ""))


@pytest.mark.parametrize(
    "words", [["run", ""], ["run", "x.np"], ["run", "GEMM", "A"], ["serve", "--api-keys-file", "k"]]
)
def test_files_are_left_to_the_shell(words: list[str]) -> None:
    assert completed(*words) == [f"file,{words[-1]}"]


@pytest.mark.parametrize(
    ("kind", "flag"),
    [
        *(("file", each) for each in ("--api-keys-file", "--log-file", "--tls-certificate", "--tls-key", "--uds")),
        *(("dir", each) for each in ("--models", "--kernel-cache")),
    ],
)
def test_settings_that_are_files_and_folders(kind: str, flag: str) -> None:
    assert completed("serve", flag, "x") == [f"{kind},x"]


def test_the_readme_says_how() -> None:
    lines = re.findall(r"^.*_DMLSERVE_COMPLETE=.*$", README, re.MULTILINE)
    assert [re.findall("[a-z]+(?=_source)", line) for line in lines] == [["bash"], ["zsh"], ["fish"]]
    for line in lines:
        shell = line.partition("#")[2].strip().split()[-1].removesuffix("rc").removeprefix("~/.").split("/")[-1]
        assert shell.startswith(("bash", "zsh", "config.fish"))
        made = printed(dmlserve(env={"_DMLSERVE_COMPLETE": re.findall(r"COMPLETE=(\w+)", line)[0]}))
        assert "_DMLSERVE_COMPLETE" in made
