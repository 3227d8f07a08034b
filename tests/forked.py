"""Work in a process of its own."""

import os
import warnings
from collections.abc import Callable

from llvmlite import binding


def forked(work: Callable[[], None]) -> int:
    """The id of a process that does `work` and ends as by SIGKILL: without any cleaning up."""
    # Another thread that disposes of code may hold the lock, and would for ever in the child. Newer Pythons warn of it.
    with binding.ffi.lib._lock, warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        process = os.fork()
    if process == 0:
        try:
            work()
        finally:
            os._exit(0)
    return process
