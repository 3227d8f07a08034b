"""`dmlserve serve`."""

import os
import sys
from typing import Any

import click

from app.cli.common import fail, flag_of, settings_of
from app.cli.flags import GroupedHelp, setting_flags
from app.signals import Signals


@click.command(cls=GroupedHelp)
@setting_flags
def serve(**flags: Any) -> None:
    """Serve over HTTP until SIGTERM, SIGINT or SIGQUIT.

    A flag wins over its environment variable. Sizes are bytes, times seconds. A variable that is empty names no key and
    no file of keys; SIGHUP has the file read again.
    """
    _occupy_standard_streams()
    with Signals() as signals:
        from app.main import serve as run_server  # noqa: PLC0415 - the other commands load no server

        settings = settings_of(flags)
        for name in ("api_keys", "api_keys_file"):
            if flags[name] == "":  # a shell's variable that is not set, for one
                fail(f"{flag_of(name)} is empty; leave it out to let every client in.", status=2)
        run_server(settings, signals)


def _occupy_standard_streams() -> None:
    """Where the process was started without them: a socket would get their numbers, and the log be written to it."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest that is free
        pass
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - while the process lives
