"""Models of one node, run by us and by onnxruntime on the CPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, helper, numpy_helper

from tests.models.onnx_runs import Array, run

RANDOM = np.random.default_rng(18)


def floats(*sizes: int) -> Array:
    return RANDOM.standard_normal(sizes).astype(np.float32)


def integers(*elements: int) -> Array:
    return np.array(elements, np.int64)


class OneNode:
    """A node of `operator` and its inputs, of which those that are `known` by index are constants. Attributes called as
    parameters are here have an underscore behind."""

    def __init__(
        self,
        operator: str,
        inputs: Sequence[Array | None],
        known: Sequence[int] = (),
        outputs: int = 1,
        opset: int = 17,
        domain: str = "",
        version: int = 1,
        **attributes: Any,
    ) -> None:
        """`version` is that of `domain`."""
        self._name = operator
        self._given = {f"x{index}": each for index, each in enumerate(inputs) if each is not None}
        self._known = [f"x{index}" for index in known]
        attributes = {attribute.removesuffix("_"): value for attribute, value in attributes.items()}
        names = [f"x{index}" if each is not None else "" for index, each in enumerate(inputs)]
        self._node = helper.make_node(operator, names, [f"y{k}" for k in range(outputs)], domain=domain, **attributes)
        self._opsets = [helper.make_opsetid("", opset), helper.make_opsetid(domain or "com.microsoft", version)]

    def __repr__(self) -> str:
        return self._name

    @property
    def inputs(self) -> dict[str, Array]:
        """Those that are not known."""
        return {name: each for name, each in self._given.items() if name not in self._known}

    def replaced(self, index: int, by: Array) -> "OneNode":
        """With another input in the place of one that it has."""
        self._given[f"x{index}"] = by
        return self

    def model(self, outputs: Sequence[Array] | None = None) -> ModelProto:
        """With the types and sizes of `outputs`, where these are known."""
        made = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
            for name, each in self.inputs.items()
        ]
        stated = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
            for name, each in zip(self._node.output, outputs or (), strict=False)
        ] or [helper.make_empty_tensor_value_info(name) for name in self._node.output]
        initializers = [numpy_helper.from_array(self._given[name], name) for name in self._known if name in self._given]
        graph = helper.make_graph([self._node], "one", made, stated, initializers)
        return helper.make_model(graph, opset_imports=self._opsets, ir_version=8)

    def expected(self) -> list[Array]:
        """As onnxruntime computes it in one thread: it quantizes what each of several threads has by itself."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(self.model().SerializeToString(), options, ["CPUExecutionProvider"])
        made: list[Array] = session.run(None, self.inputs)
        return made

    def made(self, outputs: Sequence[Array]) -> list[Array]:
        """As we compute it."""
        found = run(self.model(outputs), self.inputs)
        return [found[name] for name in self._node.output]

    def compare(self, tolerance: float = 1e-5) -> None:
        """Fails where we differ from onnxruntime."""
        expected = self.expected()
        for ours, theirs in zip(self.made(expected), expected, strict=True):
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=10 * tolerance, atol=tolerance)
