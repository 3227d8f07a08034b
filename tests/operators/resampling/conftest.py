"""The devices that the operators run on."""

from tests.operators.runs import run

__all__ = ["run"]
