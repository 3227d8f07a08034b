"""The command `dmlserve`: serve, run, operators, capabilities."""

import sys

from app.signals import Signals, expect_the_end

if sys.argv[1:2] == ["serve"]:  # the imports take most of a second, in which it may be told to end already
    expect_the_end()

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

import click
import numpy as np
import orjson
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from rich import box
from rich.console import Console
from rich.table import Table

from app import __version__
from app.codecs.codec import Decoder, Piece
from app.codecs.structure import Unreadable
from app.contract.constants import FeatureLevel
from app.contract.suggestions import did_you_mean
from app.contract.tensors import element_name
from app.contract.validation import validate
from app.contract.violations import ContractError, Violation
from app.engine.capabilities import (
    OperatorDescription,
    OperatorFilter,
    describe,
    field_kind,
    paste,
    select,
    span,
    summarize,
    support_groups,
)
from app.engine.dispatch import DispatchResponse, OutputTensor
from app.engine.service import DeadlineExceeded, Service
from app.http.core.documents import CODECS
from app.http.native.answers import DocumentForm
from app.http.native.attributes import in_query
from app.http.native.requests import DispatchReader
from app.memory.accounts import LimitExceeded
from app.memory.arrays import numpy_type
from app.memory.buffers import Buffer
from app.model_commands import Commands, Tools, add_commands
from app.operators.catalog import OPERATORS, find_operator
from app.operators.operator import PREFIX, Operator
from app.runs import (
    STANDARD,
    answer_form,
    document_codec,
    file_codec,
    read_file,
    read_files,
    sort_arguments,
    write_file,
)
from app.settings import GIB, KIB, MIB, Settings

_LISTED = "'dmlserve operators' lists them."


json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="dmlserve")
def main() -> None:
    """DirectML's operator contract as an HTTP microservice."""


def _setting_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A flag for each setting."""
    for name, info in reversed(Settings.model_fields.items()):
        command = _setting_flag(name, info)(command)
    return command


def _setting_flag(name: str, info: FieldInfo) -> Callable[[Callable[..., None]], Callable[..., None]]:
    flag = _flag(name)
    default = info.get_default(call_default_factory=True)
    match default:
        case bool():
            flag, shown = f"{flag}/--no-{flag[2:]}", str(default).lower()
        case SecretStr():
            shown = default.get_secret_value()
        case list():
            shown = ",".join(default)
        case _:
            shown = str(default)
    kind = None if isinstance(default, bool) else str  # Settings judge what a value may be, wherever it comes from
    choices = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    unit = {"bytes": "BYTES", "seconds": "SECONDS"}.get(name.rpartition("_")[2])
    metavar = f"[{'|'.join(choices)}]" if choices else unit or ("INTEGER" if isinstance(default, int) else "TEXT")
    text = f"{info.description}  [env: {_variable(name)}; default: {shown or 'none'}]"
    return click.option(flag, name, type=kind, metavar=metavar, default=None, help=text)


def _flag(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def _variable(setting: str) -> str:
    return f"{Settings.model_config['env_prefix']}{setting.upper()}"


@main.command()
@_setting_flags
def serve(**flags: Any) -> None:
    """Serve over HTTP until SIGTERM, SIGINT or SIGQUIT.

    A flag wins over its environment variable. Sizes are bytes, times seconds. A variable that is empty names no key and
    no file of keys; SIGHUP has the file read again.
    """
    _occupy_standard_streams()
    with Signals() as signals:
        from app.main import serve as run_server  # noqa: PLC0415 - the other commands load no server

        settings = _settings(flags)
        for name in ("api_keys", "api_keys_file"):
            if flags[name] == "":  # a shell's variable that is not set, for one
                _fail(f"{_flag(name)} is empty; leave it out to let every client in.", status=2)
        run_server(settings, signals)


def _occupy_standard_streams() -> None:
    """Where the process was started without them: a socket would get their numbers, and the log be written to it."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest that is free
        pass
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - while the process lives


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar="FILE | OPERATOR [FILE]...")
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE", help="The file that holds the input NAME.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Save the answer in this file.")
@json_flag
def run(arguments: tuple[str, ...], inputs: tuple[str, ...], output: Path | None, as_json: bool) -> None:
    """Execute a dispatch without a server: the request in FILE, or OPERATOR on tensors in files.

    A request is what POST /v1/dispatch takes: JSON, or MessagePack if its name ends in .msgpack. Tensors are .npy, .npz
    and .safetensors files; attributes stand where they are wanted: run ACTIVATION_CELU --Alpha 2 x.npy -o y.npy. A file
    called - is standard input, or output. The name of the file that the answer is saved in tells its form: .json,
    .msgpack, .npy, .npz or .safetensors. Limits are those of 'dmlserve serve', from the environment.
    """
    service = Service(_settings({"max_memory_bytes": str(1 << 62)}))
    service.open()
    try:
        with service.memory.open() as memory, _failing(service):
            operator, codec, body = _asked(service, arguments, inputs)
            try:
                dispatch, data = DispatchReader(service).read(codec, body, memory, lambda: False)
                form = answer_form(output, dispatch, operator is not None) if output else None
                outcome = asyncio.run(service.execute(dispatch.prepared, data, memory))
                if form and output:
                    _save(output, list(form.write(dispatch, outcome, memory).content.pieces))
            except ContractError as error:
                raise (in_query(error) if operator else error) from None
            if as_json:
                answer = DocumentForm(CODECS["application/json"]).write(dispatch, outcome, memory)
                click.echo(b"".join(answer.content.pieces))
            elif not output:
                timing = outcome.queue_seconds, outcome.compute_seconds
                _show_answer(dispatch.prepared.answer(outcome.ran, outcome.outputs, *timing))
    finally:
        service.close()


def _asked(
    service: Service, arguments: tuple[str, ...], inputs: tuple[str, ...]
) -> tuple[type[Operator] | None, Decoder, Buffer]:
    """What is to be executed: the operator, if it is not in a request, and the file or files, with their codec."""
    try:
        names, attributes = sort_arguments(arguments)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    most = service.settings.max_body_bytes
    first, *others = names or [""]
    operator = find_operator(first.upper())
    is_request = first == str(STANDARD) or Path(first).is_file()
    try:
        if is_request and not (operator and (others or inputs)):
            if others or inputs or attributes:
                raise click.UsageError(f"{first} is a request in a file, which nothing can be added to.")
            body = read_file(Path(first), most)
            return None, document_codec(Path(first), body), body
        if operator is None:
            raise click.UsageError(f"There is neither a file nor an operator {first}; {_LISTED}{_meant(first)}")
        named = [each.partition("=")[::2] for each in inputs]
        if missing := [name for name, file in named if not file]:
            raise click.UsageError(f"--input {missing[0]} names no file; give NAME=FILE.")
        files = [*(file for _, file in named), *others]
        if not files:
            raise click.UsageError(f"{first} has no file to execute it on; give one, or - for standard input.")
        body, parts = read_files([Path(each) for each in files], most)
    except OSError as error:
        _fail(f"{error.filename} cannot be read: {error.strerror}.")
    given = {name: part for (name, _), part in zip(named, parts, strict=False)}
    return operator, file_codec(operator, attributes, given, parts[len(named) :], most), body


@contextmanager
def _failing(service: Service) -> Iterator[None]:
    """Say what a dispatch is refused for."""
    try:
        yield
    except ContractError as error:
        _fail(*(f"{violation.pointer}: {violation.message}" for violation in error.violations))
    except (Unreadable, LimitExceeded) as error:
        _fail(str(error))
    except DeadlineExceeded:
        _fail(f"The dispatch was not done within deadline_seconds, {service.settings.deadline_seconds:g}.")


def _filter_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A flag for each field of OperatorFilter, which judges what is given."""
    for name, info in reversed(OperatorFilter.model_fields.items()):
        command = click.option(_flag(name), name, metavar=name.rpartition("_")[2].upper(), help=info.description)(
            command
        )
    return command


@main.command()
@click.argument("name", required=False)
@_filter_flags
@json_flag
def operators(name: str | None, as_json: bool, **wanted: str | None) -> None:
    """List all operators, or those that the flags ask for, or show the one called NAME."""
    given = {field: value.upper() for field, value in wanted.items() if value is not None}
    if name is None:
        _list_operators(given, as_json)
        return
    if given:
        _fail(f"Give a name, here {name}, or {' and '.join(map(_flag, given))}, not both.", status=2)
    found = find_operator(name.upper())
    if found is None:
        alike = [short for short in map(_short, OPERATORS) if name.upper() in short]
        meant = f"do you mean {' or '.join(alike)}?" if alike else f"{_LISTED}{_meant(name)}"
        _fail(f"There is no operator {name}; {meant}")
    described = describe(found)
    if as_json:
        _print_json(described)
    else:
        _show_operator(described)


@main.command()
@json_flag
def capabilities(as_json: bool) -> None:
    """Show devices, feature levels and the limits in force."""
    service = Service(_settings({}))
    service.open()
    facts = service.capabilities()
    service.close()
    if as_json:
        _print_json(facts)
        return
    devices = [
        [each.name, each.kind, each.description, _gib(each.memory_total_bytes), _gib(each.memory_available_bytes)]
        for each in facts["devices"]
    ]
    meanings = {name: info.description or "" for name, info in Settings.model_fields.items()}
    limits = [
        [name, _amount(name, value), meanings.get(name, "DirectML's own limit.")]
        for name, value in facts["limits"].items()
    ]
    levels = facts["feature_levels"]
    _print(
        f"dmlserve {facts['version']}: {len(facts['operators'])} operators, "
        f"feature levels {_short(levels[0])} to {_short(levels[-1])}\n"
    )
    _print_table(["device", "kind", "description", "memory", "available"], devices)
    _print()
    _print_table(["limit", "value", "meaning"], limits)


def _list_operators(given: dict[str, str], as_json: bool) -> None:
    try:
        chosen = select(validate(OperatorFilter, given))
    except ContractError as error:
        _fail(*(_bad_flag(violation) for violation in error.violations), status=2)
    summaries = [summarize(operator) for operator in chosen]
    if as_json:
        _print_json(summaries)
    elif summaries:
        rows = [[_short(each["Type"]), _short(each["introduced"]), each["formula"]] for each in summaries]
        _print_table(["operator", "since", "formula"], rows)
    else:
        _print("No operator is like that.")


def _bad_flag(violation: Violation) -> str:
    allowed = violation.allowed if isinstance(violation.allowed, list) else []
    meant = did_you_mean(violation.given, allowed)
    return f"{_flag(str(violation.path[0]))} is {violation.given}; give one of {', '.join(map(str, allowed))}." + meant


def _save(file: Path, pieces: list[Piece]) -> None:
    try:
        write_file(file, pieces)
    except OSError as error:
        _fail(f"{file} cannot be written: {error.strerror}.")


def _settings(flags: dict[str, Any]) -> Settings:
    """Flags over environment over defaults."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        _fail(*(_bad_setting(each["loc"][0], each["input"], each["msg"], given) for each in error.errors()), status=2)


def _bad_setting(name: Any, value: object, message: str, flags: dict[str, Any]) -> str:
    source = _flag(name) if name in flags else _variable(name)
    return f"{source} is {value!r}, but {message.replace('Input', 'it', 1)}."


def _fail(*lines: str, status: int = 1) -> NoReturn:
    for line in lines:
        click.echo(f"Error: {line}", err=True)
    sys.exit(status)


def _show_answer(answer: DispatchResponse) -> None:
    rows = [
        [name, output["DataType"], str(output["Sizes"]), str(output["Strides"] or "packed"), _preview(output)]
        for field, made in answer["outputs"].items()
        for name, output in (
            [(element_name(field, place), each) for place, each in enumerate(made)]
            if isinstance(made, list)
            else [(field, made)]
        )
    ]
    _print_table(["output", "type", "sizes", "strides", "data"], rows)
    execution = answer["execution"]
    place = ", in place" if execution["in_place"] else ""
    milliseconds = execution["compute_seconds"] * 1000
    subject = answer["capability"]
    name = _short(subject["operator"]) if "operator" in subject else f"graph {subject['graph']}"
    _print(f"\n{name} on {execution['device']}{place}: {milliseconds:.3f} ms")


def _preview(output: OutputTensor) -> str:
    """The first elements of the buffer, in memory order."""
    packed = output["DataType"].bits < 8  # whose bytes, of two elements each, are shown
    data = np.frombuffer(output["data"], np.uint8 if packed else numpy_type(output["DataType"]))
    shown = [f"{each:g}" if isinstance(each, float) else str(each) for each in data[:8].tolist()]
    return " ".join(shown) + (" ..." if data.size > 8 else "")


def _show_operator(described: OperatorDescription) -> None:
    _print(described["Type"], style="bold")
    _print(f"{described['summary']}\n\n  {described['formula']}\n")
    fields = [
        [
            each["name"],
            field_kind(each),
            "required" if each["required"] else "null" if each["default"] is None else str(each["default"]),
            each["description"],
        ]
        for each in described["fields"]
    ]
    _print_table(["field", "type", "default", "meaning"], fields)
    _print()
    support = [
        [_short(row["feature_level"]), span(counts), tensors, ", ".join(types)]
        for row in described["support"]
        for tensors, types, counts in support_groups(row)
    ]
    _print_table(["from level", "dimensions", "tensors", "data types"], support)
    _print(f"\nIn place: {', '.join(described['in_place']) or 'no'}")
    for note in described["notes"]:
        _print(f"Note: {note}")
    _print("\nA request, for 'dmlserve run' or POST /v1/dispatch:")
    click.echo(paste(described["example"]))


def _meant(name: str) -> str:
    return did_you_mean(name.upper().removeprefix(PREFIX), map(_short, OPERATORS))


def _short(name: str) -> str:
    """A constant without its prefix."""
    return name.removeprefix(PREFIX).removeprefix(FeatureLevel.prefix())


def _amount(limit: str, value: float) -> str:
    """With the unit that the limit's name tells, exactly."""
    if limit.endswith("_seconds"):
        return f"{value:g} s"
    if limit.endswith("_bytes"):
        for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
            if value % size == 0:
                return f"{value // size} {unit}"
        return f"{value:,} bytes"
    return f"{value:,}"


def _gib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / GIB:.1f} GiB"


def _console() -> Console:
    """As wide as the terminal. Into a pipe or a file a row is one line, however long, for grep and its like."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 1 << 16
    return Console(width=width, markup=False, emoji=False, highlight=False)


def _print(text: str = "", style: str | None = None) -> None:
    _console().print(text, style=style)


def _print_table(columns: list[str], rows: list[list[str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, no_wrap=position == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def _print_json(value: Any) -> None:
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2))


add_commands(main, Tools(_settings, _fail, _print, _print_table, _print_json))
