"""What tables of ONNX nodes are made of."""

from typing import Any, NamedTuple

import numpy as np

from tests.models.onnx_nodes import OneNode
from tests.models.onnx_runs import Array


class Case(NamedTuple):
    """A node with inputs by position, of which some are known; with `microsoft`, of com.microsoft's domain, or its
    provider's."""

    type: str
    inputs: list[Array | None]
    attributes: dict[str, Any] = {}  # noqa: RUF012 - never written
    known: tuple[int, ...] = ()
    opset: int = 17
    microsoft: bool = False
    outputs: int = 1
    within: float = 1e-5
    """Absolute and relative, of floats."""

    @property
    def node(self) -> OneNode:
        domain = "com.microsoft" if self.microsoft else ""
        if self.type.startswith("Dml"):
            domain = "com.microsoft.dml"
        return OneNode(self.type, self.inputs, self.known, self.outputs, self.opset, domain, **self.attributes)


RNG = np.random.default_rng(5)


def floats(*sizes: int, dtype: str = "float32") -> Array:
    made: Array = RNG.normal(size=sizes).astype(dtype)
    return made


def bytes_(*sizes: int, dtype: str = "uint8") -> Array:
    """Signed ones of 7 bits: products with unsigned ones onnxruntime adds up in 16 bits, saturated, where the processor
    has no instruction for sums of 32."""
    limits = np.iinfo(dtype)
    low, high = (-64, 63) if dtype == "int8" else (limits.min, limits.max)
    made: Array = RNG.integers(low, high + 1, sizes).astype(dtype)
    return made


def scalar(value: float, dtype: str = "float32") -> Array:
    return np.array(value, dtype)


def told(case: object) -> str:
    """For the names of tests."""
    return f"{case.type}-{case.opset}" if isinstance(case, Case) else ""
