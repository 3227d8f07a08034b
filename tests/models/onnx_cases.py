"""ONNX models of one node each, and what onnxruntime makes of them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from onnx import ModelProto, ValueInfoProto, helper

from tests.models.onnx_runs import run

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"


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
    def domain(self) -> str:
        if self.type.startswith("Dml"):
            return f"{MICROSOFT}.dml"
        return MICROSOFT if self.microsoft else ""

    def model(self) -> ModelProto:
        names = ["" if each is None else f"x{place}" for place, each in enumerate(self.inputs)]
        node = helper.make_node(
            self.type,
            names,
            [f"y{place}" for place in range(self.outputs)],
            domain=self.domain,
            **self.attributes,
        )
        ports = [
            helper.make_tensor_value_info(f"x{place}", helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
            for place, each in enumerate(self.inputs)
            if each is not None
        ]
        outputs = [ValueInfoProto(name=name) for name in node.output]
        graph = helper.make_graph([node], "one", ports, outputs)
        others = [helper.make_opsetid(domain, 1) for domain in (MICROSOFT, f"{MICROSOFT}.dml")]
        opsets = [helper.make_opsetid("", self.opset), *others]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def given(self) -> dict[str, Array]:
        return {f"x{place}": each for place, each in enumerate(self.inputs) if each is not None}


def expected(model: ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """onnxruntime's results, whose types and ranks the outputs of `model` get."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    made: list[Array] = session.run(None, dict(inputs))
    for port, each in zip(model.graph.output, made, strict=True):
        typed = helper.make_tensor_value_info(port.name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        port.CopyFrom(typed)
    return made


def ours(case: Case, model: ModelProto) -> dict[str, Array]:
    given = case.given()
    known = {f"x{place}": given.pop(f"x{place}") for place in case.known}
    return run(model, given, known)


RNG = np.random.default_rng(5)


def floats(*sizes: int, dtype: str = "float32") -> Array:
    made: Array = RNG.normal(size=sizes).astype(dtype)
    return made


def bytes_(*sizes: int, dtype: str = "uint8") -> Array:
    limits = np.iinfo(dtype)
    made: Array = RNG.integers(limits.min, limits.max + 1, sizes).astype(dtype)
    return made


def scalar(value: float, dtype: str = "float32") -> Array:
    return np.array(value, dtype)


def told(case: object) -> str:
    """For the names of tests."""
    return f"{case.type}-{case.opset}" if isinstance(case, Case) else ""
