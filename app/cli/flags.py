"""The flags of `dmlserve serve`, one for each setting, and its help in groups."""

from collections.abc import Callable
from itertools import chain
from typing import Literal, get_args, get_origin

import click
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from app.cli.common import flag_of, variable_of
from app.cli.completion import Complete, files, names
from app.settings import Settings

_CHOSEN = {
    "Network": "host port uds tls_certificate tls_key cors_origins workers transfer_threads max_connections "
    "keep_alive_seconds shared_memory",
    "API keys": "api_keys api_keys_file",
    "Logs, traces and pages": "log_level log_format log_file access_log otlp_endpoint trace_ratio docs",
    "Devices": "threads llvm gpus require_gpu mps crossover_elements staging_bytes pinned_bytes kernel_cache "
    "compile_ahead",
    "Models from files": "models warm max_model_bytes max_model_graphs max_batch max_delay_us",
    "Graphs that are kept": "max_graphs max_graph_bytes graph_seconds",
    "Limits in time": "deadline_seconds header_seconds body_seconds send_seconds drain_seconds shutdown_seconds",
}

GROUPS = {title: text.split() for title, text in _CHOSEN.items()}
"""All settings, by what they are about."""

GROUPS["Limits of requests"] = [name for name in Settings.model_fields if name not in chain(*GROUPS.values())]

_FILES: dict[str, Complete] = {
    **dict.fromkeys(("api_keys_file", "log_file", "tls_certificate", "tls_key", "uds"), files("file")),
    **dict.fromkeys(("models", "kernel_cache"), files("dir")),
}


class GroupedHelp(click.Command):
    """Its help has the settings in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {each.name: record for each in self.get_params(ctx) if (record := each.get_help_record(ctx))}
        for title, settings in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([records.pop(name) for name in settings])
        with formatter.section("Other"):
            formatter.write_dl([*records.values()])


def setting_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A flag for each setting."""
    for name, info in reversed(Settings.model_fields.items()):
        command = _setting_flag(name, info)(command)
    return command


def _setting_flag(name: str, info: FieldInfo) -> Callable[[Callable[..., None]], Callable[..., None]]:
    flag = flag_of(name)
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
    choices = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    unit = {"bytes": "BYTES", "seconds": "SECONDS"}.get(name.rpartition("_")[2])
    kinds = {int: "INTEGER", float: "NUMBER"}
    metavar = f"[{'|'.join(choices)}]" if choices else unit or kinds.get(type(default), "TEXT")
    text = f"{info.description}  [env: {variable_of(name)}; default: {shown or 'unset'}]"
    complete = names(choices) if choices else _FILES.get(name)
    # Without a type of click's: Settings judge what a value may be, wherever it comes from.
    return click.option(flag, name, metavar=metavar, default=None, help=text, shell_complete=complete)
