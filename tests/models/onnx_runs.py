"""ONNX models run as graphs, on the CPU and without a server."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from app.contract.constants import NEWEST, DataType
from app.engine.graphs import GraphRequest
from app.engine.service import Service
from app.graphs.descriptor import GraphDesc
from app.memory.arrays import apart, numpy_type, together
from app.memory.buffers import Buffer
from app.models.onnx.importer import Imported, import_model
from app.settings import Settings

if TYPE_CHECKING:
    from onnx import ModelProto

Array = np.ndarray[Any, Any]


@cache
def service() -> Service:
    """On NumPy and LLVM, with one thread."""
    made = Service(Settings(threads=1, gpus="none", max_graph_nodes=1 << 16, max_tensor_bytes=1 << 30))
    made.open()
    return made


def never() -> bool:
    return False


def memory(size: int) -> Buffer:
    return memoryview(bytearray(size))


def run(model: "ModelProto", inputs: Mapping[str, Array], known: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """The model's outputs by name. Inputs that are `known` are constants of the graph."""
    sizes = {name: each.shape for name, each in inputs.items()}
    sizes = {name: each for name, each in sizes.items() if name not in (known or {})}
    return run_imported(import_model(with_constants(model, known or {}), sizes), inputs)


def with_constants(model: "ModelProto", known: Mapping[str, Array]) -> "ModelProto":
    """The model with these inputs as constants."""
    from onnx import ModelProto, numpy_helper

    made = ModelProto()
    made.CopyFrom(model)
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(each), name) for name, each in known.items())
    return made


def run_imported(imported: Imported, inputs: Mapping[str, Array]) -> dict[str, Array]:
    desc = GraphDesc.model_validate(imported.graph.document)
    compiler = service().compiler
    graph = compiler.compile(GraphRequest(desc, NEWEST, imported.graph.constants, {}), memory, never)
    prepared = service().prepare_graph(graph, "numpy")
    data = {
        name: _bytes(inputs[name], each.data_type)
        for name, each in imported.inputs.items()
        if name not in imported.unread
    }
    with service().memory.open() as share:
        outputs = service().execute_here(prepared, data, share).outputs
        made = {}
        for name, tensor in imported.outputs.items():
            count = int(np.prod(tensor.sizes))
            raw = bytes(outputs[name])
            if tensor.data_type.bits == 4:
                array = apart(np.frombuffer(raw, np.uint8), tensor.data_type, count)
            else:
                array = np.frombuffer(raw, numpy_type(tensor.data_type), count)
            assert tensor.type != "bool" or array.max(initial=0) <= 1, "bytes of a bool are 0 and 1"
            made[name] = array.reshape(tensor.sizes).astype(np.dtype(tensor.type), copy=False)
    return made


def _bytes(array: Array, data_type: DataType) -> Buffer:
    if data_type.bits == 4:
        array = together(array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data.toreadonly()  # or outputs might take its place
