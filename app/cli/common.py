"""What the commands share: settings, errors, tables."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click
import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from app.codecs.structure import Unreadable
from app.contract.constants import FeatureLevel
from app.contract.suggestions import did_you_mean
from app.contract.violations import ContractError
from app.engine.service import DeadlineExceeded, Service
from app.environment import strange_variables
from app.memory.accounts import LimitExceeded, MemoryExhausted
from app.memory.arrays import Array
from app.models.onnx import reading
from app.models.onnx.errors import NotSupported, WrongSizes
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from app.settings import Settings

LISTED = "'dmlserve operators' lists them."

SHOWN = 8
"""Elements of an output, and nodes of a kernel, that are shown."""

_RULE = "─ "
"""What the line below a table's header is made of."""

_NARROW = 60
"""Columns of a terminal in which a table has no room."""

json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


@contextmanager
def opened_service(**flags: str) -> Iterator[Service]:
    """For one command: with settings from the environment, but for `flags`."""
    settings = settings_of(flags)
    for sentence in strange_variables(os.environ):
        click.echo(f"Warning: {sentence}", err=True)
    service = Service(settings)
    service.open()
    try:
        yield service
    finally:
        service.close()


@contextmanager
def executing() -> Iterator[Service]:
    """For one command that executes something, which ends where that is refused."""
    with opened_service(max_memory_bytes=str(1 << 62)) as service:
        try:
            yield service
        except ContractError as error:
            fail(*(f"{violation.pointer}: {violation.message}" for violation in error.violations))
        except NotSupported as error:
            fail(*map(str, error.nodes))
        except LimitExceeded as error:
            fail(f"{error} {variable_of(error.limit)} allows more.")
        except (Unreadable, reading.Unreadable, WrongSizes, MemoryExhausted) as error:
            fail(str(error))
        except DeadlineExceeded:
            fail(f"It was not done within deadline_seconds, {service.settings.deadline_seconds:g}.")


def settings_of(flags: dict[str, Any]) -> Settings:
    """Flags over environment over defaults."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        fail(*(_bad_setting(each, given) for each in error.errors()), status=2)


def _bad_setting(error: ErrorDetails, flags: dict[str, Any]) -> str:
    name = str(error["loc"][0])
    begin = f"{flag_of(name) if name in flags else variable_of(name)} is {error['input']!r}"
    if error["type"] == "string_pattern_mismatch":  # nobody should have to read a regular expression
        return f"{begin}. {Settings.model_fields[name].description}"
    return f"{begin}, but {error['msg'].replace('Input', 'it', 1)}."


def fail(*lines: str, status: int = 1) -> NoReturn:
    """End the command with an error in each of the `lines`."""
    for line in lines:
        click.echo(f"Error: {line}", err=True)
    sys.exit(status)


def flag_of(setting: str) -> str:
    """Its flag of `dmlserve serve`."""
    return f"--{setting.replace('_', '-')}"


def variable_of(setting: str) -> str:
    """Its environment variable."""
    return f"{Settings.model_config['env_prefix']}{setting.upper()}"


def meant(name: str) -> str:
    """ " Did you mean ACTIVATION_CELU?" where that is like `name`, else nothing."""
    return did_you_mean(name.upper().removeprefix(PREFIX), map(short, OPERATORS))


def short(name: str) -> str:
    """A constant without its prefix."""
    return name.removeprefix(PREFIX).removeprefix(FeatureLevel.prefix())


def _console() -> Console:
    """As wide as the terminal. Into a pipe or a file a row is one line, however long, for grep and its like."""
    is_terminal = sys.stdout.isatty()  # alone: FORCE_COLOR is often set for other programs, whose output nobody parses
    width = None if is_terminal or "COLUMNS" in os.environ else 1 << 16
    return Console(width=width, force_terminal=is_terminal, markup=False, emoji=False, highlight=False)


def say(text: str = "", style: str | None = None) -> None:
    """Print a paragraph."""
    _console().print(text, style=style)


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Under `columns`, each of the `rows`, whose first cell is never broken; where that is too narrow, row by row."""
    console = _console()
    if console.width < _NARROW:
        for first, *others in rows:
            console.print(first, style="bold")
            for column, cell in zip(columns[1:], others, strict=True):
                console.print(Padding(f"{column}: {cell}", (0, 0, 0, 2), expand=False))
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, no_wrap=position == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    with console.capture() as made:
        console.print(table)
    lines = made.get().splitlines()
    if not sys.stdout.isatty():
        lines = [line.rstrip() for line in lines if line.strip(_RULE)]  # nobody looks there: header and rows alone
    click.echo("\n".join(lines))


def preview(array: Array) -> str:
    """The first elements."""
    shown = [f"{each:g}" if isinstance(each, float) else str(each) for each in array.reshape(-1)[:SHOWN].tolist()]
    return " ".join(shown) + (" ..." if array.size > SHOWN else "")


def print_json(value: Any) -> None:
    """For machines."""
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2))
