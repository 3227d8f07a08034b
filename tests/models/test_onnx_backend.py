"""Every case of the `onnx` package's backend suite passes, or is in a list with the reason, and fails for it."""

import functools
import string
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from onnx.backend.test import BackendTest

from app.contract.violations import ContractError
from tests.models.onnx_backend import REFUSALS, OurBackend, refused

Case = Callable[[None], None]
README = Path(__file__).resolve().parents[2] / "README.md"
PREFIX, OURS = "test_", "_cpu"


@functools.cache
def cases() -> dict[str, Case]:
    """By name, as the list has them. Made by the first test that asks: the suite computes what it expects, which takes
    nine seconds, and each of pytest's processes collects the tests of all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it computes overflows, too
        groups = BackendTest(OurBackend, __name__).test_cases.values()
    named = [(name, case) for group in groups for name, case in vars(group).items() if name.endswith(OURS)]
    made = {name.removesuffix(OURS): case for name, case in named if not hasattr(case, "__unittest_skip__")}
    assert len(made) == sum(not hasattr(case, "__unittest_skip__") for _, case in named)
    return made


def fails(case: Case, reason: str) -> None:
    """For that `reason` and no other."""
    with pytest.raises((*REFUSALS, ContractError, AssertionError)) as raised:
        case(None)
    if reason.startswith("differs"):
        assert raised.errisinstance(AssertionError)
    else:
        assert raised.errisinstance((*REFUSALS, ContractError))
        assert reason in str(raised.value)


def first_letter(name: str) -> str:
    return name.removeprefix(PREFIX)[0].lower()


@pytest.mark.parametrize("letter", string.ascii_lowercase)
def test_cases_that_begin_with(
    letter: str, subtests: pytest.Subtests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNX_MODELS", str(tmp_path))  # cases of whole models write their data there
    known = refused()
    for name, case in cases().items():
        if first_letter(name) == letter:
            with subtests.test(name), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if name in known:
                    fails(case, known[name])
                else:
                    case(None)


def test_each_begins_with_a_letter() -> None:
    assert {first_letter(name) for name in cases()} <= {*string.ascii_lowercase}


def test_the_list_has_nothing_else() -> None:
    assert refused().keys() <= cases().keys()


def test_the_readme_has_the_numbers() -> None:
    run = len(cases())
    assert f"{run - len(refused()):,} of {run:,} cases" in README.read_text()
