"""One process of the service: a thread for the server, and the main one for signals."""

import logging
import math
import socket
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from time import monotonic

from app.http.core.watched import SECONDS, Watched
from app.http.server.server import Server
from app.signals import RELOADING, Signals, end

log = logging.getLogger("app")

GRACE_SECONDS = 2.0
"""How long the end may take beyond what drain_seconds and shutdown_seconds permit."""

_ENDED = 0
"""What the server's thread tells when it is done; no signal has this number."""


class Process:
    """Runs the server that `make` makes, in a thread, and obeys `signals` in the main thread.

    Python runs signal handlers in the main thread only, so that nothing else may run there that could hang: not the
    event loop, and not the start of a GPU either.

    - The first ending signal drains the server; before it takes requests, the process ends at once, with 0.
    - The second one drops what still runs.
    - A server that has not ended `end_seconds` after the first, or a moment after the second, is left as it is: the
      process ends with 1.
    - SIGHUP calls `reload`, and `watched` are looked at, in a third thread: files may hang, too.
    """

    def __init__(
        self,
        make: Callable[[], Server],
        signals: Signals,
        reload: Callable[[], None],
        end_seconds: float,
        watched: Sequence[Watched] = (),
    ) -> None:
        self._make = make
        self._signals = signals
        self._reload = reload
        self._end_seconds = end_seconds
        self._watched = watched
        self._reloads: SimpleQueue[int] = SimpleQueue()
        self._server: Server | None = None
        self._failed = False

    def run(self, sockets: list[socket.socket] | None = None) -> bool:
        """Returns when the server, on `sockets`, has ended: whether it ended well. Otherwise ends the process."""
        self._signals.hold()
        threading.Thread(target=self._reload_when_told, name="dmlserve-reload", daemon=True).start()
        threading.Thread(target=self._serve, args=(sockets,), name="dmlserve-server", daemon=True).start()
        deadline = math.inf
        while (told := self._signals.next(deadline)) != _ENDED:
            server = self._server
            if told is None:
                end(1, "The server does not end; what still runs is cut off")
            elif told == RELOADING:
                self._reloads.put(told)
            elif server is None or not server.started:
                end(0)
            else:
                seconds = self._end_seconds if deadline == math.inf else 0.0
                deadline = min(deadline, monotonic() + seconds + GRACE_SECONDS)
                server.stop()
        return not self._failed

    def _reload_when_told(self) -> None:
        while True:
            try:
                self._reloads.get(timeout=SECONDS if self._watched else None)
            except Empty:
                for each in self._watched:
                    each.look()
            else:
                self._reload()

    def _serve(self, sockets: list[socket.socket] | None) -> None:
        try:
            self._server = self._make()
            self._server.run(sockets)
        except SystemExit:  # uvicorn has logged why
            self._failed = True
        except BaseException:
            log.exception("The server failed")
            self._failed = True
        finally:
            self._signals.tell(_ENDED)
