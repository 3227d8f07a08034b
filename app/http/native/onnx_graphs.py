"""ONNX models as graphs to be kept: files in place of descriptors."""

from collections.abc import Callable, Mapping

from app.contract.validation import validate
from app.contract.violations import ContractError, Hresult, Violation, refused
from app.engine.graph_documents import PART, GraphKeepRequest, OnnxKeepRequest, OnnxQuery
from app.engine.graph_store import KeptGraph
from app.engine.service import Service
from app.http.core.media_types import OCTETS, media_type
from app.http.core.queries import read_query
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer
from app.models.onnx.builder import Array
from app.models.onnx.errors import NotSupported, WrongSizes
from app.models.onnx.importer import Imported, import_model
from app.models.onnx.reading import Unreadable, read_model, signature
from app.models.onnx.tensors import Sizes
from app.models.onnx.wire import parsed_bytes
from app.models.repository.model import blaming_nodes, pausing, request_of
from app.models.repository.warm import STATED, Stated, parse_stated


def is_onnx(content_type: bytes) -> bool:
    """Whether the body is a file by itself."""
    return media_type(content_type) == OCTETS


def of_query(query: bytes) -> tuple[OnnxKeepRequest, Stated]:
    """What the query says of such a file. Raises ContractError."""
    asked = read_query(query, OnnxQuery)
    try:
        stated = parse_stated(asked.sizes or "")
    except ValueError:
        raise refused(("sizes",), f"sizes must be like {STATED}.", asked.sizes) from None
    return validate(OnnxKeepRequest, {"onnx": b"", "name": asked.name, "device": asked.device}), stated


def of_document(asked: OnnxKeepRequest) -> tuple[OnnxKeepRequest, Stated]:
    """The same of a document."""
    return asked, Stated({name: tuple(sizes) for name, sizes in asked.sizes.items()})


def keep_onnx(
    service: Service,
    data: Buffer,
    asked: tuple[OnnxKeepRequest, Stated],
    memory: MemoryShare,
    cancelled: Callable[[], bool],
) -> tuple[KeptGraph, bool]:
    """The graph of the model that `data` is, kept. It is for a worker.

    Raises ContractError, LimitExceeded, MemoryExhausted, GraphConflict, StoreFull, Cancelled.
    """
    request, stated = asked
    service.check_device(request.device)
    try:
        pause = pausing(cancelled)
        with memory.passing(parsed_bytes(data, service.settings.max_graph_structure_bytes, pause)):
            imported = _imported(data, stated, pause)
        memory.take(PART * len(imported.graph.labels) + sum(each.nbytes for each in imported.graph.constants.values()))
        graph = blaming_nodes(imported, lambda: request_of(imported))
        members = request.model_dump(include={"name", "device"}, exclude_unset=True)
        keep = GraphKeepRequest.model_validate({"graph": graph.desc, **members})
        return blaming_nodes(imported, lambda: service.graphs.keep_read(keep, graph, memory, cancelled))
    except NotSupported as error:
        raise ContractError(
            [Violation(("onnx",), f"{each}.", each.operator) for each in error.nodes], Hresult.E_INVALIDARG
        ) from None


def _imported(data: Buffer, stated: Stated, pause: Callable[[], None]) -> Imported:
    """Raises NotSupported, ContractError, Cancelled."""
    try:
        arrays: dict[str, Array] = {}
        model = read_model(data, arrays=arrays)
        sizes: Mapping[str, Sizes] = stated.of(signature(model))
        return import_model(model, sizes, arrays=arrays, pause=pause, is_described=True)
    except Unreadable as error:
        raise refused(("onnx",), str(error), None) from None
    except WrongSizes as error:
        raise refused(("sizes",), str(error), error.given, error.allowed) from None
