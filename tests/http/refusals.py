"""What every error of the HTTP API must be, whatever it is about."""

from typing import Any

import httpx

from app.contract.kinds import MEANINGS, Kind
from tests.messages import problem_of

MEMBERS = {"type", "title", "status", "detail", "errors"}


def refusal_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The problem of an answer that must be one, as the API promises it."""
    problem = problem_of(response, status)
    assert response.headers["x-request-id"]
    assert problem.keys() - {"hresult"} == MEMBERS
    assert problem["detail"].endswith((".", "?")), problem["detail"]
    assert Kind(problem["type"].removeprefix("/errors#")) in MEANINGS
    assert "Traceback" not in response.text
    assert len(response.content) < 64 * 1024
    for error in problem["errors"]:
        assert error.keys() == {"type", "pointer", "message", "given", "allowed"}
        assert error["message"].endswith((".", "?")), error["message"]
        assert isinstance(error["allowed"], list)
        assert Kind(error["type"].removeprefix("/errors#")) in MEANINGS
    return problem


def error_at(pointer: str, response: httpx.Response, status: int = 422) -> dict[str, Any]:
    """The error about the field at `pointer`, of an answer that must be refused for it."""
    errors = refusal_of(response, status)["errors"]
    found = [error for error in errors if error["pointer"] == pointer]
    assert found, f"nothing is said of {pointer}: {errors}"
    error: dict[str, Any] = found[0]
    return error
