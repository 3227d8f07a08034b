"""Standard input, output and error of the process."""

import os
import sys


def occupy_standard_streams() -> None:
    """Where the process was started without them: a socket would get their numbers, and the log be written to it.

    What is imported may take them, too, as libffi does for ctypes: this comes before.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest that is free
        pass
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - while the process lives
