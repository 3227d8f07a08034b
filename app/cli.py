"""The command `dmlserve`: serve, run, operators, capabilities."""

import asyncio
from collections.abc import Callable
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
from app.capabilities import describe, summarize
from app.codecs.documents import CODECS, read_dispatch
from app.codecs.structure import Unreadable
from app.contract.constants import FeatureLevel
from app.contract.violations import ContractError
from app.dispatch import DispatchResponse, OutputTensor
from app.execution.numpy_lowering import numpy_type
from app.limits import LimitExceeded, MemoryShare
from app.operators.catalog import OPERATORS, find_operator
from app.operators.operator import PREFIX
from app.service import DeadlineExceeded, Service
from app.settings import Settings

json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="dmlserve")
def main() -> None:
    """DirectML's operator contract as an HTTP microservice."""


def _setting_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A flag for each setting."""
    for name, info in reversed(Settings.model_fields.items()):
        command = _setting_flag(name, info)(command)
    return command


def _setting_flag(name: str, info: FieldInfo) -> Callable[[Callable[..., None]], Callable[..., None]]:
    flag = f"--{name.replace('_', '-')}"
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
    kind: Any = None if isinstance(default, bool) else str
    if get_origin(info.annotation) is Literal:
        kind = click.Choice(get_args(info.annotation))
    text = f"{info.description}  [env: DMLSERVE_{name.upper()}; default: {shown or 'none'}]"
    return click.option(flag, name, type=kind, default=None, help=text)


@main.command()
@_setting_flags
def serve(**flags: Any) -> None:
    """Serve over HTTP until SIGTERM or SIGINT.

    A flag wins over its environment variable. Sizes are bytes, times seconds.
    """
    from app.main import serve as run_server  # noqa: PLC0415 - the other commands load no server

    settings = _settings(flags)
    try:
        settings.keys()
    except OSError as error:
        _fail(f"api_keys_file cannot be read: {error}")
    run_server(settings)


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Save the answer in this file.")
@json_flag
def run(file: Path, output: Path | None, as_json: bool) -> None:
    """Execute the dispatch request in FILE without a server.

    FILE holds what POST /v1/dispatch takes: JSON, or MessagePack if its name ends in .msgpack. The same goes for the
    file that the answer is saved in.
    """
    service = Service(_settings({"max_memory_bytes": str(1 << 62)}))
    service.open()
    try:
        with service.memory.open() as memory:
            answer = _dispatch(service, file, memory)
            if output:
                output.write_bytes(b"".join(_codec(output).encode(answer, memory)))
            elif as_json:
                click.echo(b"".join(CODECS["application/json"].encode(answer, memory)))
            else:
                _show_answer(answer)
    finally:
        service.close()


@main.command()
@click.argument("name", required=False)
@json_flag
def operators(name: str | None, as_json: bool) -> None:
    """List all operators, or show the one called NAME."""
    if name is None:
        summaries = [summarize(operator) for operator in OPERATORS.values()]
        if as_json:
            _print_json(summaries)
        else:
            rows = [
                [_short(each["Type"]), _short(each["introduced"]), ", ".join(each["in_place"]), each["formula"]]
                for each in summaries
            ]
            _print_table(["operator", "introduced", "in place", "formula"], rows)
        return
    found = find_operator(name)
    if found is None:
        _fail(f"There is no operator {name}; 'dmlserve operators' lists them.")
    described = describe(found)
    if as_json:
        _print_json(described)
        return
    console = _console()
    console.print(
        f"[bold]{described['Type']}[/bold]\n{described['summary']}\n\n  {described['formula']}\n", highlight=False
    )
    fields = [
        [each["name"], each["kind"].replace("_", " "), each["type"], _default(each), each["description"]]
        for each in described["fields"]
    ]
    _print_table(["field", "kind", "type", "default", "meaning"], fields)
    support = [
        [_short(row["feature_level"]), tensor, ", ".join(can["data_types"]), _span(can["dimension_counts"])]
        for row in described["support"]
        for tensor, can in row["tensors"].items()
    ]
    _print_table(["from feature level", "tensor", "data types", "dimensions"], support)
    console.print(f"In place: {', '.join(described['in_place']) or 'no'}")
    for note in described["notes"]:
        console.print(f"Note: {note}", highlight=False)
    console.print("\nA request for POST /v1/dispatch:")
    click.echo(orjson.dumps(described["example"], option=orjson.OPT_INDENT_2))


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
        [each.name, each.kind, each.description, _size(each.memory_total_bytes), _size(each.memory_available_bytes)]
        for each in facts["devices"]
    ]
    _print_table(["device", "kind", "description", "memory", "available"], devices)
    _print_table(["limit", "value"], [[name, f"{value:,}"] for name, value in facts["limits"].items()])
    _console().print(
        f"dmlserve {facts['version']}, {len(facts['operators'])} operators, feature levels "
        f"{facts['feature_levels'][0]} to {facts['feature_levels'][-1]}",
        highlight=False,
    )


def _dispatch(service: Service, file: Path, memory: MemoryShare) -> DispatchResponse:
    try:
        body = bytearray(file.read_bytes())
        if len(body) > service.settings.max_body_bytes:
            raise LimitExceeded("max_body_bytes", "Bytes of the file", len(body), service.settings.max_body_bytes)
        request, data = read_dispatch(_codec(file), body, service.settings, memory)
        return asyncio.run(service.dispatch(request, data, memory))
    except ContractError as error:
        _fail("\n".join(f"{violation.pointer}: {violation.message}" for violation in error.violations))
    except (Unreadable, LimitExceeded) as error:
        _fail(str(error))
    except DeadlineExceeded:
        _fail(f"The dispatch was not done within deadline_seconds, {service.settings.deadline_seconds:g}.")


def _codec(file: Path) -> Any:
    return CODECS["application/msgpack" if file.suffix == ".msgpack" else "application/json"]


def _settings(flags: dict[str, Any]) -> Settings:
    """Flags over environment over defaults."""
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        _fail("\n".join(f"{each['loc'][0]} is {each['input']!r}: {each['msg']}." for each in error.errors()))


def _fail(message: str) -> NoReturn:
    raise click.ClickException(message)


def _show_answer(answer: DispatchResponse) -> None:
    rows = [
        [name, output["DataType"], str(output["Sizes"]), str(output["Strides"] or "packed"), _preview(output)]
        for name, output in answer["outputs"].items()
    ]
    _print_table(["output", "type", "sizes", "strides", "data"], rows)
    execution = answer["execution"]
    place = ", in place" if execution["in_place"] else ""
    milliseconds = execution["compute_seconds"] * 1000
    _console().print(f"{answer['capability']['operator']} on {execution['device']}{place}: {milliseconds:.3f} ms")


def _preview(output: OutputTensor) -> str:
    """The first elements of the buffer, in memory order."""
    data = np.frombuffer(output["data"], numpy_type(output["DataType"]))
    return " ".join(f"{each:g}" for each in data[:8].tolist()) + (" ..." if data.size > 8 else "")


def _default(field: Any) -> str:
    return "required" if field["required"] else "null" if field["default"] is None else str(field["default"])


def _short(name: str) -> str:
    """A constant without its prefix."""
    return name.removeprefix(PREFIX).removeprefix(FeatureLevel.prefix())


def _span(counts: list[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _size(count: int | None) -> str:
    return "unknown" if count is None else f"{count / (1 << 30):.1f} GiB"


def _console() -> Console:
    return Console(soft_wrap=True)


def _print_table(columns: list[str], rows: list[list[str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, no_wrap=position == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _print_json(value: Any) -> None:
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2))
