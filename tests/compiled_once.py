"""What LLVM makes of a loop, made once for all processes of a run of pytest, servers included: many tests have a
compiler or a process of their own, and need loops that others have needed."""

import os
from pathlib import Path

from app.devices.binaries import Binaries
from app.devices.cpu.llvm.compiler import Compiler

FOLDER = "DMLSERVE_KERNEL_CACHE"
"""The environment variable that says where it is, to servers too."""


def share() -> None:
    """From here on, what this process compiles."""
    setattr(Compiler.__init__, "__defaults__", (Binaries(Path(os.environ[FOLDER])),))  # noqa: B010 - mypy has no such
