"""What is said of models that cannot be imported."""

from collections.abc import Sequence
from typing import NamedTuple

_MOST_LISTED, _LONGEST = 100, 500
"""Nodes in a message, and characters of each part of one."""


class UnsupportedNode(NamedTuple):
    """An ONNX node that has no place in a graph of DirectML operators."""

    name: str
    operator: str
    opset: int
    why: str

    @property
    def is_for_good(self) -> bool:
        """Whether it is so for all sizes of inputs."""
        return self.why.startswith("DirectML") or self.why.endswith("is not constant")

    def __str__(self) -> str:
        opset = f", opset {self.opset}" if self.opset else ""  # tensors have none
        return f"{_short(self.name)} ({_short(self.operator)}{opset}): {_short(self.why)}"


class NotSupported(Exception):
    """Some of a model's nodes cannot be imported, which are all in `nodes`."""

    def __init__(self, nodes: Sequence[UnsupportedNode]) -> None:
        self.nodes = list(nodes)
        more = len(nodes) - _MOST_LISTED
        ends = [f"and {more} more"] if more > 0 else []
        super().__init__("; ".join([*map(str, nodes[:_MOST_LISTED]), *ends]))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


class WrongSizes(Exception):
    """Sizes of inputs are missing, or are not the model's. The text is a sentence."""

    def __init__(self, text: str, given: object = None, allowed: object = None) -> None:
        super().__init__(text)
        self.given, self.allowed = given, allowed


def shown(sizes: Sequence[object]) -> str:
    """As 2x3, with ? for what is free and has no name."""
    return "x".join("?" if each in (None, "") else str(each) for each in sizes) or "a scalar"


def missing_sizes(name: str, sizes: Sequence[object] | None) -> WrongSizes:
    """Those of the input `name`, of which the model has `sizes`: numbers, names or nothing."""
    own = None if sizes is None else [each or "?" for each in sizes]
    free = "sizes" if own is None else ", ".join(map(str, own))
    return WrongSizes(f"Sizes of {name} are missing; they are free: {free}.", None, own and [own])
