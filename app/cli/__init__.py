"""The command `dmlserve`: serve, run, inspect, operators, capabilities."""

import os
import sys

from app.cli.streams import occupy_standard_streams

if sys.argv[1:2] == ["serve"]:
    occupy_standard_streams()

    from app.signals import expect_the_end

    expect_the_end()  # the imports take most of a second, in which it may be told to end already
    # NumPy's BLAS has one thread in the service. As it is imported it would start others, and where there can be none
    # it ends the process by a SIGINT, which is no failure.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from app.cli.group import main

__all__ = ["main"]
