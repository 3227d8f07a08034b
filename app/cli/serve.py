"""`dmlserve serve`."""

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
    with Signals() as signals:
        from app.main import serve as run_server  # noqa: PLC0415 - the other commands load no server

        settings = settings_of(flags)
        for name in ("api_keys", "api_keys_file"):
            if flags[name] == "":  # a shell's variable that is not set, for one
                fail(f"{flag_of(name)} is empty; leave it out to let every client in.", status=2)
        run_server(settings, signals)
