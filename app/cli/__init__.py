"""The command `dmlserve`: serve, run, inspect, operators, capabilities."""

import sys

from app.signals import expect_the_end

if sys.argv[1:2] == ["serve"]:  # the imports take most of a second, in which it may be told to end already
    expect_the_end()

from app.cli.group import main

__all__ = ["main"]
