"""How many connections a process has, and how many it may have."""

import logging
import os
import resource
import sys
from pathlib import Path
from time import monotonic
from typing import Protocol

from app.settings import Unusable
from app.sink import Cells

log = logging.getLogger("app.http")

RESERVE = 32
"""Connections beyond the limit that are still served, for health and metrics only: an orchestrator that cannot ask
would take a busy process for a dead one."""

RESERVE_SECONDS = 1.0
"""In which a request must come on one of those."""

FILES = 32
"""Descriptors left for all that is no connection: files, shared memory, sockets to other workers."""

_LOG_SECONDS = 10.0
"""At most one line in so many says that connections are refused."""


class Connection(Protocol):
    """What is counted."""

    def drop(self) -> None:
        """Cut it off at once."""


class ConnectionLimit:
    """Counts connections. For one event loop."""

    def __init__(self, most: int = sys.maxsize) -> None:
        self.most = most
        self._refused: Cells = memoryview(bytearray(8)).cast("d")
        self._served: set[Connection] = set()
        self._reserve: dict[Connection, None] = {}  # the one that came first is the first
        self._logged = -_LOG_SECONDS

    @property
    def count(self) -> int:
        """Connections there are."""
        return len(self._served) + len(self._reserve)

    def count_in(self, refused: Cells) -> None:
        """From now on count connections that have no place but in the reserve in the one number of `refused`."""
        self._refused = refused

    def enter(self, connection: Connection) -> bool:
        """Whether the new `connection`, which is to leave when it is closed, may ask for everything."""
        if len(self._served) < self.most:
            self._served.add(connection)
            return True
        self._refused[0] += 1
        now = monotonic()
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            log.warning("There are as many connections as max_connections allows, %d; others get 503", self.most)
        if len(self._reserve) >= RESERVE:
            # The last one to come may be a probe, and whoever holds the others does not ask for anything.
            oldest = next(iter(self._reserve))
            del self._reserve[oldest]
            oldest.drop()
        self._reserve[connection] = None
        return False

    def leave(self, connection: Connection) -> None:
        """When it is closed."""
        self._served.discard(connection)
        self._reserve.pop(connection, None)


def raise_descriptor_limit() -> None:
    """Raise the limit of open files to the hard one. Raises Unusable if that leaves none for connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.warning("The limit of open files stays at %d: %s", soft, error)
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < FILES + RESERVE:
        raise Unusable(
            f"The system allows this process {most} open files, where the service needs {FILES + RESERVE} at least; "
            "`ulimit -n` raises that."
        )


def room_for_connections(wanted: int, others: int) -> int:
    """How many of `wanted` connections the limit of open files has room for, at least 1, beside `others` to come.

    Called when nearly all files that the process keeps open are open.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return wanted
    room = max(most - _open_files() - FILES - RESERVE - others, 1)
    if room < wanted:
        log.warning("The system allows this process %d open files, so there may be %d connections", most, room)
    return min(room, wanted)


def _open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.is_dir() else FILES
