"""What LLVM makes of a loop, made once for all processes of a run of pytest, servers included: many tests have a
compiler or a process of their own, and need loops that others have needed."""

import hashlib
import os
from functools import wraps
from pathlib import Path

from app.devices.cpu.llvm import chosen
from app.devices.cpu.llvm.compiler import Compiler

FOLDER = "COMPILED_ONCE"
"""The environment variable that says where it is."""


def share() -> None:
    """From here on, what this process compiles."""
    folder, compiled = Path(os.environ[FOLDER]), Compiler._code

    @wraps(compiled)
    def code(self: Compiler, source: str) -> bytes:
        """By all that it depends on and that tests change."""
        told = repr((source, self._features_for(source), self.registers, self.computes_whole, chosen.HOLD_TABLES))
        file = folder / hashlib.sha256(told.encode()).hexdigest()
        try:
            return file.read_bytes()
        except FileNotFoundError:
            made, written = compiled(self, source), file.with_suffix(f".{os.getpid()}")
            written.write_bytes(made)
            written.rename(file)
            return made

    Compiler._code = code  # type: ignore[method-assign]
