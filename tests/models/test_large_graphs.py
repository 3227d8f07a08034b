"""Graphs of as many nodes as are taken."""

import numpy as np
from onnx import ModelProto, helper

from app.engine.service import Service
from app.engine.workers import Ticket
from app.models.onnx.importer import import_model
from app.models.repository.constants import ModelConstants
from app.models.repository.model import compile_imported
from app.settings import Settings

MOST = 8192


def chain(nodes: int) -> ModelProto:
    """Of negations, one after the other."""
    names = ["x", *(f"t{k}" for k in range(1, nodes)), "y"]
    made = [helper.make_node("Neg", [names[k]], [names[k + 1]]) for k in range(nodes)]
    x, y = (helper.make_tensor_value_info(name, 1, [4]) for name in "xy")
    return helper.make_model(helper.make_graph(made, "chain", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])


def test_as_many_as_max_graph_nodes_allows_are_compiled() -> None:
    """Models with unrolled loops have thousands."""
    service = Service(Settings(gpus="none", llvm=False))
    assert service.settings.max_graph_nodes == MOST
    with service.memory.open() as memory:
        graph = compile_imported(
            import_model(chain(MOST), {}), ModelConstants((), memory), service, memory, lambda: False
        )
        x = np.array([1, -2, 0, 4], np.float32)
        made = service.execute_in(Ticket(), service.prepare_graph(graph, "auto"), {"x": x.view(np.uint8).data}, memory)
        np.testing.assert_array_equal(np.frombuffer(made.outputs["y"], np.float32), x)
    service.close()
