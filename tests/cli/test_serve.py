"""`dmlserve serve`: settings from flags and environment. What it then serves is tested elsewhere."""

import os
import re
import signal
import socket
import subprocess
import sys
from itertools import chain
from math import inf, nextafter
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import httpx
import pytest
from pydantic import SecretStr, ValidationError

from app.cli.flags import GROUPS
from app.settings import Settings
from app.signals import Signals
from tests.cli.command import dmlserve, printed, refusal
from tests.conftest import COMMAND, ROOT, ServerFactory

SETTINGS = Settings.model_fields


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings of servers that were to start; none does."""
    settings: list[Settings] = []

    def serve(given: Settings, signals: Signals) -> None:
        settings.append(given)

    monkeypatch.setattr("app.main.serve", serve)
    return settings


@pytest.mark.parametrize("columns", [80, 120])
def test_help_lists_every_setting_with_flag_variable_default_and_meaning(columns: int) -> None:
    text = printed(dmlserve("serve", "--help", columns=columns))
    entries = {entry.split()[0]: entry for entry in re.split(r"\n  (?=-)", text)}
    for name, info in SETTINGS.items():
        entry = _without_blanks(entries[_flag(name)])
        default = _as_text(info.get_default(call_default_factory=True)) or "unset"
        assert _without_blanks(info.description or "?") in entry
        assert f"[env:DMLSERVE_{name.upper()};default:{default}]" in entry
        assert all(choice in entry for choice in _choices(name))
    kinds = {"max_body_bytes": "BYTES", "body_seconds": "SECONDS", "port": "INTEGER", "trace_ratio": "NUMBER"}
    for name, kind in (kinds | {"host": "TEXT", "docs": f"/ {_off('docs')}"}).items():
        assert entries[_flag(name)].startswith(f"{_flag(name)} {kind}")
    assert len(entries) == 1 + len(SETTINGS) + 1, "usage, the settings, --help"
    assert re.findall(r"^(\w.+):$", text, re.MULTILINE) == [*GROUPS, "Other"]
    assert text.index("API keys:") < text.index("--api-keys-file") < text.index("Logs, traces and pages:")
    assert max(map(len, text.splitlines())) <= columns


@pytest.mark.parametrize("name", SETTINGS)
def test_flag_wins_over_variable_and_variable_over_default(
    name: str, served: list[Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(f"DMLSERVE_{name.upper()}", raising=False)  # as the tests say where code is kept
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


@pytest.mark.parametrize("origin", ["a.example", "https://a.example/", "https://A.example", "https://*.example"])
def test_origins_that_no_browser_sends(origin: str) -> None:
    """They would match no page, and nobody would be told."""
    (line,) = refusal(dmlserve("serve", "--cors-origins", f"https://b.example:8443, null,{origin}"), status=2)
    assert f"but {origin} is no origin as browsers send it; give https://page.example or " in line


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (["--port", "http"], {}, "--port is 'http', but it should be a valid integer"),
        (["--host", ""], {}, "--host is '', but it names no address"),
        ([], {"DMLSERVE_HOST": ""}, "DMLSERVE_HOST is '', but it names no address"),
        ([], {"DMLSERVE_HOST": " "}, "DMLSERVE_HOST is ' ', but it names no address"),
        (["--api-keys", ""], {}, "--api-keys is empty"),
        (["--api-keys-file", ""], {"DMLSERVE_API_KEYS_FILE": "keys"}, "--api-keys-file is empty"),
        (["--port", "70000"], {}, "--port is '70000', but it should be less than or equal to 65535."),
        (
            ["--max-memory-bytes", str(1 << 63)],
            {},
            "--max-memory-bytes is '9223372036854775808', but it should be less than or equal to 9223372036854775807.",
        ),
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


MOST, LARGEST = (1 << 63) - 1, sys.float_info.max
FLOATS = {name for name, info in SETTINGS.items() if info.annotation is float}
ENDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("crossover_elements", "pinned_bytes", "idle_buffer_bytes"), (0, MOST)),
    **dict.fromkeys(("keep_alive_seconds", "shutdown_seconds", "max_connections", "max_numbers"), (1, MOST)),
    **dict.fromkeys(("max_model_bytes", "max_body_bytes", "max_structure_bytes", "max_graph_bytes"), (1024, MOST)),
    **dict.fromkeys(("max_header_bytes", "max_graph_structure_bytes"), (1024, MOST)),
    **dict.fromkeys(("drain_seconds", "graph_seconds"), (0, LARGEST)),
    **dict.fromkeys(("deadline_seconds", "header_seconds", "body_seconds", "send_seconds"), (nextafter(0, 1), LARGEST)),
    "max_tensor_bytes": (4, MOST),
    "max_memory_bytes": (1 << 20, MOST),
    "staging_bytes": (4 << 20, MOST),
    "port": (0, 65535),
    "trace_ratio": (0, 1),
    "max_model_graphs": (1, 4096),
    "max_batch": (1, 256),
    "max_delay_us": (0, 10_000_000),
    "workers": (0, 256),
    "transfer_threads": (0, 64),
    "threads": (1, 1024),
    "queue_depth": (0, 65536),
    "max_depth": (8, 256),
    "max_graph_nodes": (1, 65536),
    "max_graphs": (1, 1024),
}
"""The least and the most of each setting that is a number."""


def test_how_small_and_how_large_settings_may_be() -> None:
    assert ENDS.keys() == {name for name, info in SETTINGS.items() if info.annotation in (int, float)}
    for name, (least, most) in ENDS.items():
        for value in (least, most):
            assert getattr(Settings.model_validate({name: value}), name) == value
        below, above = (nextafter(least, -inf), nextafter(most, inf)) if name in FLOATS else (least - 1, most + 1)
        for value in (below, above):
            with pytest.raises(ValidationError, match=name):
                Settings.model_validate({name: value})


@pytest.mark.parametrize(
    ("processors", "quota", "threads", "transfer_threads"),
    [
        (1, None, 1, 0),
        (3, None, 3, 0),
        (4, None, 4, 2),
        (64, None, 64, 8),
        (16, "max 100000", 16, 8),  # no quota
        (16, "340000 100000", 3, 0),
        (16, "1000 100000", 1, 0),
        (2, "800000 100000", 2, 0),
    ],
)
def test_there_are_threads_for_the_processors_that_there_are(
    monkeypatch: pytest.MonkeyPatch, processors: int, quota: str | None, threads: int, transfer_threads: int
) -> None:
    """In a container, for those that come to its part of the time."""

    def read_text(path: Path) -> str:
        assert str(path) == "/sys/fs/cgroup/cpu.max"
        if quota is None:
            raise FileNotFoundError
        return quota

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(processors)})
    monkeypatch.setattr(Path, "read_text", read_text)
    settings = Settings()
    assert (settings.threads, settings.transfer_threads) == (threads, transfer_threads)


def test_all_bad_values_are_told_at_once() -> None:
    assert (
        len(refusal(dmlserve("serve", "--port", "-1", "--max-depth", "1", env={"DMLSERVE_THREADS": "x"}), status=2))
        == 3
    )


def test_unknown_flag() -> None:
    result = dmlserve("serve", "--colour", "blue")
    assert result.exit_code == 2
    assert re.search(r"No such option:? '?--colour\b", result.stderr)  # as older and newer click put it


NOTHING_LISTENS = "192.0.2.1"
"""An address that no machine has: a server that gets as far as that fails all the same."""


def keys_refused(*flags: object, **environment: str) -> str:
    """What the service says that does not start, for want of keys."""
    (line,) = refusal(dmlserve("serve", "--host", NOTHING_LISTENS, *flags, env=environment), status=2)
    assert re.search(r"\.$", line)
    assert NOTHING_LISTENS not in line
    return line


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds no key; write one into it, or name no file"),
        (b"\xef\xbb\xbf", "holds no key"),
        (b"# none yet\n\n \t\r\n  # nor here\n", "holds no key"),
        (b"\xff\xfe not text", "cannot be read: it is not UTF-8"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_key_file_without_keys_stops_the_service(content: bytes | None, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    for line in (
        keys_refused("--api-keys-file", file),
        keys_refused(DMLSERVE_API_KEYS_FILE=str(file)),
        keys_refused("--api-keys", "good", "--workers", "2", DMLSERVE_API_KEYS_FILE=str(file)),
    ):
        assert line.startswith(f"The API keys' file {file} {reason}")


def test_directory_as_key_file(tmp_path: Path) -> None:
    assert keys_refused("--api-keys-file", tmp_path) == (
        f"The API keys' file {tmp_path} cannot be read: Is a directory."
    )


def test_a_key_file_without_an_end_is_not_read_for_ever() -> None:
    assert keys_refused("--api-keys-file", "/dev/zero") == (
        "The API keys' file /dev/zero has more than 4194304 characters, which is the most."
    )


@pytest.mark.parametrize("given", [" , ", ",", " ", "\t"])
def test_no_key_between_commas_stops_the_service(given: str) -> None:
    assert keys_refused("--api-keys", given).startswith("api_keys holds no key")
    assert keys_refused(DMLSERVE_API_KEYS=given).startswith("api_keys holds no key")


@pytest.mark.parametrize("secret", ["two words", "schlüssel", "nul\0", "no-break\xa0", "del\x7f", "form\x0cfeed"])
def test_what_is_no_key_is_told_by_its_place_and_not_shown(secret: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# comment\ngood\n\n{secret}\n", encoding="utf-8")
    line = keys_refused("--api-keys-file", file)
    assert line.startswith(f"Line 4 of the API keys' file {file} is not a key")
    assert secret not in line
    line = keys_refused("--api-keys", f"good,,{secret}")
    assert line.startswith("Key 2 of api_keys is not a key")
    assert secret not in line


@pytest.mark.parametrize("name", ["no-such-host.invalid", NOTHING_LISTENS])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_address_that_is_not_ours(name: str, workers: str) -> None:
    (line,) = refusal(dmlserve("serve", "--host", name, "--port", "8123", "--workers", workers), status=2)
    assert line.startswith(f"The service cannot listen on {name}, port 8123: ")


def test_every_setting_is_in_one_group() -> None:
    assert sorted(chain(*GROUPS.values())) == sorted(SETTINGS)
    limits = [name for name in GROUPS["Limits of requests"] if not name.startswith("max_")]
    assert limits == ["queue_depth", "idle_buffer_bytes"], "these are of another group"


def test_a_log_file_that_cannot_be_opened(tmp_path: Path) -> None:
    line = not_started("--port", "0", "--log-file", str(tmp_path / "none" / "log"))
    assert line == f"Error: The log file {tmp_path}/none/log cannot be opened: No such file or directory."


def test_what_gpus_may_be_is_told_in_words() -> None:
    (line,) = refusal(dmlserve("serve", "--gpus", "first"), status=2)
    assert line.startswith("--gpus is 'first'. GPUs to use: all, none, or their numbers")


def not_started(*flags: str, **environment: str) -> str:
    """The only line of a service that does not start, in a process of its own."""
    command = [str(COMMAND), "serve", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("flags", "environment", "sentence"),
    [
        (["--gpus", "99"], {}, "The setting gpus is 99, but "),
        (["--require-gpu", "--workers", "2"], {"CUDA_VISIBLE_DEVICES": ""}, "A GPU is required, but "),
    ],
)
def test_gpus_that_are_not_there(flags: list[str], environment: dict[str, str], sentence: str) -> None:
    assert re.fullmatch(f"Error: {sentence}.+[^.]\\.", not_started("--port", "0", *flags, **environment))


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = not_started("--port", port, "--workers", "2")
    assert line == f"Error: The service cannot listen on 127.0.0.1, port {port}: Address already in use."


def test_its_imports_start_no_thread() -> None:
    """NumPy's BLAS would, and where the system has none left it ends the process by a SIGINT, as if told to."""
    program = "import os; from app import cli; import numpy; print(len(os.listdir('/proc/self/task')))"
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    printed = subprocess.check_output([sys.executable, "-c", program, "serve"], cwd=ROOT, env=environment, text=True)
    assert printed == "1\n"


def test_the_command_leaves_signals_as_it_found_them(served: list[Settings]) -> None:
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    printed(dmlserve("serve"))
    assert len(served) == 1
    assert [signal.getsignal(number) for number in signal.valid_signals()] == before


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
    if name.endswith("_ratio"):
        return "0.5", "0.25"
    if isinstance(default, int | float):
        return _as_text(default + 1), _as_text(default + 2)
    if choices := [choice for choice in _choices(name) if choice != default]:
        return choices[0], choices[-1]
    if name == "gpus":
        return "none", "0,2"
    if name == "cors_origins":
        return "http://one", "http://two"
    names = "one", "two"
    if name.endswith("_file"):
        for each in names:
            (folder / each).touch()
        return str(folder / "one"), str(folder / "two")
    return names
