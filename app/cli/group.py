"""The command itself, of which all others are."""

import errno
from pathlib import Path
from typing import Any

import click

from app import __version__
from app.cli import capabilities, models, operators, run, serve
from app.models.dxdispatch.model import is_model
from app.settings import Unusable


class _Refusal(click.ClickException):
    exit_code = 2


class _Commands(click.Group):
    """In which `run` of a model is a command of its own for each kind. What is Unusable is told, by all, and that
    there is no room for what they print."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Unusable as error:
            raise _Refusal(str(error)) from None
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise click.ClickException(f"Standard output cannot be written: {error.strerror}.") from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name == "run":
            for each in rest:
                if each.endswith(".onnx") and "=" not in each:
                    return name, models.run_onnx, rest
                if each.endswith(".json") and _is_dxdispatch(Path(each)):
                    return name, models.run_dxdispatch, rest
        return name, command, rest


def _is_dxdispatch(file: Path) -> bool:
    try:
        return is_model(file.read_bytes())
    except OSError:
        return False  # who reads it for its own sake will say so


@click.group(
    "dmlserve", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.version_option(__version__, prog_name="dmlserve")
def main() -> None:
    """DirectML's operator contract as an HTTP microservice."""


for _each in (serve.serve, run.run, models.inspect, operators.operators, capabilities.capabilities):
    main.add_command(_each)
