"""`dmlserve serve`: settings from flags and environment. What it then serves is tested elsewhere."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import httpx
import pytest
from pydantic import SecretStr

from app.settings import Settings
from tests.cli.command import dmlserve, printed, refusal
from tests.conftest import ServerFactory

SETTINGS = Settings.model_fields


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings of servers that were to start; none does."""
    settings: list[Settings] = []

    def serve(given: Settings, keys: Sequence[str]) -> bool:
        settings.append(given)
        return True

    monkeypatch.setattr("app.main.serve", serve)
    return settings


@pytest.mark.parametrize("columns", [80, 120])
def test_help_lists_every_setting_with_flag_variable_default_and_meaning(columns: int) -> None:
    text = printed(dmlserve("serve", "--help", columns=columns))
    entries = {entry.split()[0]: entry for entry in re.split(r"\n  (?=-)", text)}
    for name, info in SETTINGS.items():
        entry = _without_blanks(entries[_flag(name)])
        default = _as_text(info.get_default(call_default_factory=True)) or "none"
        assert _without_blanks(info.description or "?") in entry
        assert f"[env:DMLSERVE_{name.upper()};default:{default}]" in entry
        assert all(choice in entry for choice in _choices(name))
    assert len(entries) == 1 + len(SETTINGS) + 1, "usage, the settings, --help"
    assert max(map(len, text.splitlines())) <= columns


@pytest.mark.parametrize("name", SETTINGS)
def test_flag_wins_over_variable_and_variable_over_default(name: str, served: list[Settings], tmp_path: Path) -> None:
    default = SETTINGS[name].get_default(call_default_factory=True)
    variable, flag = _other_values(name, default, tmp_path)
    flags = [_flag(name), flag] if flag not in ("true", "false") else [_flag(name) if flag == "true" else _off(name)]

    printed(dmlserve("serve"))
    printed(dmlserve("serve", env={f"DMLSERVE_{name.upper()}": variable}))
    printed(dmlserve("serve", *flags, env={f"DMLSERVE_{name.upper()}": variable}))

    assert [_as_text(getattr(settings, name)) for settings in served] == [_as_text(default), variable, flag]


def test_a_server_has_the_settings_it_was_given(start_server: ServerFactory) -> None:
    server = start_server("--queue-depth", "3", "--no-docs", DMLSERVE_QUEUE_DEPTH="5", DMLSERVE_MAX_DEPTH="9")
    limits = httpx.get(f"{server.url}/v1/capabilities").json()["limits"]
    assert (limits["queue_depth"], limits["max_depth"]) == (3, 9)
    assert httpx.get(f"{server.url}/docs").status_code == 404


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (["--port", "http"], {}, "--port is 'http', but it should be a valid integer"),
        (["--port", "70000"], {}, "--port is '70000', but it should be less than or equal to 65535."),
        (["--log-level", "loud"], {}, "--log-level is 'loud', but it should be 'debug', 'info', 'warning' or 'error'."),
        (["--deadline-seconds", "0"], {}, "--deadline-seconds is '0', but it should be greater than 0."),
        (["--deadline-seconds", "inf"], {}, "--deadline-seconds is 'inf', but it should be a finite number."),
        ([], {"DMLSERVE_THREADS": "many"}, "DMLSERVE_THREADS is 'many', but it should be a valid integer"),
        ([], {"DMLSERVE_DOCS": "perhaps"}, "DMLSERVE_DOCS is 'perhaps', but it should be a valid boolean"),
        (
            ["--threads", "0"],
            {"DMLSERVE_THREADS": "4"},
            "--threads is '0', but it should be greater than or equal to 1.",
        ),
    ],
)
def test_bad_value_is_one_line(flags: list[str], environment: dict[str, str], message: str) -> None:
    (line,) = refusal(dmlserve("serve", *flags, env=environment), status=2)
    assert line.startswith(message)


def test_all_bad_values_are_told_at_once() -> None:
    assert (
        len(refusal(dmlserve("serve", "--port", "-1", "--max-depth", "1", env={"DMLSERVE_THREADS": "x"}), status=2))
        == 3
    )


def test_unknown_flag() -> None:
    result = dmlserve("serve", "--colour", "blue")
    assert result.exit_code == 2
    assert "No such option '--colour'" in result.stderr


@pytest.mark.parametrize("content", [None, b"\xff\xfe not text"])
def test_unreadable_key_file_stops_the_service(content: bytes | None, tmp_path: Path, served: list[Settings]) -> None:
    file = tmp_path / "keys"
    if content:
        file.write_bytes(content)
    for result in (
        dmlserve("serve", "--api-keys-file", file),
        dmlserve("serve", env={"DMLSERVE_API_KEYS_FILE": str(file)}),
    ):
        (line,) = refusal(result)
        assert str(file) in line
    assert not served


def test_directory_as_key_file(tmp_path: Path) -> None:
    assert refusal(dmlserve("serve", "--api-keys-file", tmp_path)) == [
        f"The API keys' file {tmp_path} cannot be read: Is a directory."
    ]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _off(name: str) -> str:
    return f"--no-{name.replace('_', '-')}"


def _without_blanks(text: str) -> str:
    """Help is folded anywhere, at hyphens too."""
    return "".join(text.split())


def _choices(name: str) -> tuple[str, ...]:
    annotation = SETTINGS[name].annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _as_text(value: Any) -> str:
    """A setting's value as the environment would hold it."""
    match value:
        case bool():
            return str(value).lower()
        case SecretStr():
            return value.get_secret_value()
        case list():
            return ",".join(value)
        case float():
            return f"{value:g}"
    return str(value)


def _other_values(name: str, default: Any, folder: Path) -> tuple[str, str]:
    """Two values that are not the default; of a switch, the default is one of them."""
    if isinstance(default, bool):
        return _as_text(not default), _as_text(default)
    if isinstance(default, int | float):
        return _as_text(default + 1), _as_text(default + 2)
    if choices := [choice for choice in _choices(name) if choice != default]:
        return choices[0], choices[-1]
    if name == "gpus":
        return "none", "0,2"
    names = "one", "two"
    if name.endswith("_file"):
        for each in names:
            (folder / each).touch()
        return str(folder / "one"), str(folder / "two")
    return names
