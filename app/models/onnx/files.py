"""Files of models, which may become something else while they are read."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def opened(file: str | Path) -> BinaryIO:
    """`file`, to be read. Raises OSError, also of what is no file: a pipe would keep a worker waiting for ever."""
    made = open(file, "rb", opener=_at_once)  # noqa: SIM115 - whoever asks for it closes it
    if stat.S_ISREG(os.fstat(made.fileno()).st_mode):
        return made
    made.close()
    raise OSError(errno.EINVAL, "it is no file")


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
