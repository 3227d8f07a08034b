"""The cases of a conformance folder against the service, judged by that folder's own runner (README.md)."""

import importlib
import os
from collections import Counter
from types import ModuleType
from typing import Literal

import pytest

from tests.conformance.client import HttpClient
from tests.conftest import RunningServer

VARIABLE = "CONFORMANCE_FOLDER"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """run_cases.py of the folder; it imports the client.py beside it."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"{VARIABLE} names no folder with run_cases.py and cases/")
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module("run_cases")


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_every_case_of_the_listed_operators_passes(
    encoding: Literal["json", "msgpack"], runner: ModuleType, server: RunningServer
) -> None:
    client = HttpClient(server.url, encoding)
    with client.http:
        operators = client.operators()
        cases = [case for case in runner.load(runner.HERE / "cases") if case["operator"] in operators]
        verdicts = [(case["id"], *runner.judge(case, client)) for case in cases]
    print(f"{encoding}: {dict(Counter(outcome for _, outcome, _, _ in verdicts))}")
    assert verdicts
    assert [verdict for verdict in verdicts if verdict[1] != "passed"] == []
