"""What is said of models that cannot be imported."""

from collections.abc import Sequence
from typing import NamedTuple


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
        return f"{self.name} ({self.operator}, opset {self.opset}): {self.why}"


class NotSupported(Exception):
    """Some of a model's nodes cannot be imported, which are all in `nodes`."""

    def __init__(self, nodes: Sequence[UnsupportedNode]) -> None:
        self.nodes = list(nodes)
        super().__init__("; ".join(map(str, nodes)))


class WrongSizes(Exception):
    """Sizes of inputs are missing, or are not the model's. The text is a sentence."""
