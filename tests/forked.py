"""Work in a process of its own."""

import os
from collections.abc import Callable

from llvmlite import binding


def forked(work: Callable[[], None]) -> int:
    """The id of a process that does `work` and ends as by SIGKILL: without any cleaning up."""
    with binding.ffi.lib._lock:  # which another thread that disposes of code may hold, and would for ever in the child
        process = os.fork()
    if process == 0:
        try:
            work()
        finally:
            os._exit(0)
    return process
