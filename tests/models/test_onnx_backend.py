"""Every case of the `onnx` package's backend suite passes, or is in a list with the reason, and fails for it."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onnx.backend.test import BackendTest

from app.contract.violations import ContractError
from tests.models.onnx_backend import REFUSALS, OurBackend, refused

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the suite computes what it expects, overflows included
    CASES = (
        BackendTest(OurBackend, __name__)
        .exclude("^test_(vgg|bvlc|densenet|inception|resnet|zfnet|shufflenet|squeezenet)")
        .test_cases
    )

Case = Callable[..., None]
README = Path(__file__).resolve().parents[2] / "README.md"


def failing(case: Case, reason: str) -> Case:
    """`case`, which fails for that `reason` and no other."""

    @functools.wraps(case)
    def wrapped(*args: Any) -> None:
        with pytest.raises((*REFUSALS, ContractError, AssertionError)) as raised:
            case(*args)
        if reason.startswith("differs"):
            assert raised.errisinstance(AssertionError)
        else:
            assert raised.errisinstance((*REFUSALS, ContractError))
            assert reason in str(raised.value)

    return wrapped


def unwarned(case: Case) -> Case:
    @functools.wraps(case)
    def wrapped(*args: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case(*args)

    return wrapped


_known = refused()
for _cases in CASES.values():
    for _name, _case in list(vars(_cases).items()):
        if _name.endswith("_cuda"):
            delattr(_cases, _name)
        elif _name.endswith("_cpu"):
            _found = _known.pop(_name.removesuffix("_cpu"), None)
            setattr(_cases, _name, unwarned(failing(_case, _found) if _found else _case))
globals().update(CASES)


def test_the_list_has_nothing_else() -> None:
    assert not _known


def test_the_readme_has_the_numbers() -> None:
    cases = [case for group in CASES.values() for name, case in vars(group).items() if name.endswith("_cpu")]
    run = sum(not hasattr(case, "__unittest_skip__") for case in cases)
    assert f"{run - len(refused()):,} of {run:,} cases" in README.read_text()
