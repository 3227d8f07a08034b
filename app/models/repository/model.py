"""A model that was read from its file, and its graphs for inputs of certain sizes."""

import os
import time
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from app.contract.constants import NEWEST
from app.contract.validation import validate
from app.contract.violations import ContractError
from app.devices.device import Cancelled
from app.engine.graphs import CompiledGraph, GraphRequest
from app.engine.prepared import Prepared
from app.engine.service import Service
from app.graphs.batches import BatchGraph, are_apart
from app.graphs.descriptor import GraphDesc
from app.graphs.graph import Graph
from app.graphs.judgement import resolve
from app.memory.accounts import MemoryShare, RequestOver
from app.models.onnx.builder import Array
from app.models.onnx.errors import NotSupported, UnsupportedNode, WrongSizes
from app.models.onnx.files import opened
from app.models.onnx.importer import PARTS_BYTES, Imported, KnownParts, Parts, import_model, never_supported
from app.models.onnx.protos import operator_of
from app.models.onnx.reading import Port, Signature, Unreadable, detached, read_model, signature
from app.models.onnx.tensors import Sizes, Unsupported
from app.models.repository.batching import Batching, batching_of
from app.models.repository.config import VersionPolicy, apply_config, parse, policy_of, text_in
from app.models.repository.constants import ModelConstants
from app.models.repository.rows import row_bytes

if TYPE_CHECKING:
    from app.models.onnx.reading import ModelProto

_SLICE, _TURN = 2e-3, 1e-5
"""Seconds after which the event loop may go on, and in which it may. On a busy machine that takes milliseconds."""

T = TypeVar("T")

SizesOfAll: TypeAlias = tuple[Sizes, ...]
"""Of a model's inputs, in their order."""


def batch_sizes(sizes: SizesOfAll, rows: int) -> SizesOfAll:
    """With so many rows in place of what there are."""
    return tuple((rows, *rest) for _, *rest in sizes)


class CacheKey:
    """Stands for what a model has compiled: another one as soon as some of that is dropped."""


class LoadedModel:
    """A version of a model. What it holds is charged to `memory`, until it is closed."""

    def __init__(
        self,
        name: str,
        version: str,
        proto: "ModelProto",
        ports: Signature,
        arrays: dict[str, Array],
        memory: MemoryShare,
        batching: Batching | None = None,
        policy: VersionPolicy | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.ports = ports
        self.batching = batching
        """How requests are run together, if they are."""
        self.policy = policy or VersionPolicy()
        """Which versions are served, this one among them."""
        self.cache_key = CacheKey()
        self._proto = proto
        self._arrays = arrays
        self._parts: dict[KnownParts, Parts] = {}
        """Of the main graph, found for the first sizes."""
        self.constants = ModelConstants(arrays.values(), memory)
        """For its graphs."""

    @property
    def called(self) -> str:
        """With its version, as metrics and messages call it."""
        return f"{self.name}:{self.version}"

    @property
    def is_closed(self) -> bool:
        return self.constants.is_closed

    @property
    def is_free(self) -> bool:
        """Whether sizes of inputs are for each request to say."""
        return any(port.is_free for port in self.ports.inputs.values())

    @property
    def own_sizes(self) -> SizesOfAll:
        """Of the inputs of a model that is not free."""
        ports = self.ports.inputs.values()
        return tuple(tuple(size for size in port.sizes or () if isinstance(size, int)) for port in ports)

    @property
    def operators(self) -> list[str]:
        """Of each node of the main graph."""
        return [operator_of(node) for node in self._proto.graph.node]

    @property
    def weight_bytes(self) -> int:
        """Of the initializers, and of constants among the nodes."""
        return sum(each.nbytes for each in self._arrays.values())

    def compile(self, sizes: SizesOfAll, service: Service, cancelled: Callable[[], bool]) -> "SizedModel":
        """For inputs of these sizes. It is for a worker, or for who has no event loop.

        Raises NotSupported, WrongSizes, LimitExceeded, MemoryExhausted, Cancelled.
        """
        imported = self.imported(sizes, cancelled)
        constants = imported.graph.constants
        made = self.constants.made(constants)
        known = {index: data for index, id_ in made.items() if (data := self.constants.computed(id_))}
        imported = replace(imported, graph=imported.graph._replace(constants=constants | known))
        memory = service.memory.open()
        try:
            graph = compile_imported(imported, self.constants, service, memory, cancelled)
            shared: Collection[Hashable] = ()
            with suppress(RequestOver):  # it was closed meanwhile
                shared = self.constants.use(graph, made, memory)
        except BaseException:
            memory.close()
            raise
        return SizedModel(self, sizes, imported, graph, memory, shared)

    def imported(self, sizes: SizesOfAll, cancelled: Callable[[], bool]) -> Imported:
        """As a graph that is not compiled. Raises NotSupported, WrongSizes, Cancelled."""
        stated = dict(zip(self.ports.inputs, sizes, strict=True))
        return import_model(self._proto, stated, arrays=self._arrays, pause=pausing(cancelled), known=self._parts)

    def close(self) -> None:
        """Nobody will compile it any more."""
        self.constants.close()


class SizedModel:
    """A model for inputs of certain sizes, ready to be dispatched. Who dispatches it may go on after it is closed."""

    def __init__(
        self,
        model: LoadedModel,
        sizes: SizesOfAll,
        imported: Imported,
        graph: CompiledGraph,
        memory: MemoryShare,
        shared: Collection[Hashable],
    ) -> None:
        self.model = model
        self.sizes = sizes
        self.imported = imported
        self.unread = imported.unread
        """Inputs that have no effect."""
        self.outputs = imported.outputs
        self.graph = graph
        self.prepared: dict[str, Prepared] = {}
        """By the device that is asked for."""
        self.of_batches: dict[str, Prepared | None] = {}
        """By a device's name: what executes batches of these sizes, or None if it was found to mix their rows."""
        self._memory = memory
        self._shared = shared

    def rows_are_apart(self, service: Service, cancelled: Callable[[], bool]) -> bool:
        """Whether a row of its outputs is computed of the same row of its inputs alone, and however many there are. It
        is for a worker. Raises Cancelled."""
        rows, others = self.sizes[0][0], 3 if self.sizes[0][0] == 2 else 2
        items = {name: 8 * row_bytes(tensor) for name, tensor in self.imported.inputs.items()}
        one = BatchGraph(_judged(self.imported, service), rows)
        try:
            fewer = self.model.imported(batch_sizes(self.sizes, others), cancelled)
            other = BatchGraph(_judged(fewer, service), others)
        except (NotSupported, WrongSizes, ContractError):
            return False  # it is not for any number of them
        return are_apart(one, other, items, self.outputs)

    def close(self) -> None:
        self.model.constants.leave(self._shared)
        self._memory.close()


def pausing(cancelled: Callable[[], bool]) -> Callable[[], None]:
    """For who imports a model in a worker: lets other threads have their turn, and raises Cancelled."""

    since = time.perf_counter()

    def pause() -> None:
        nonlocal since
        if cancelled():
            raise Cancelled
        if time.perf_counter() - since > _SLICE:
            time.sleep(_TURN)
            since = time.perf_counter()

    return pause


def compile_imported(
    imported: Imported, constants: ModelConstants, service: Service, memory: MemoryShare, cancelled: Callable[[], bool]
) -> CompiledGraph:
    """Raises NotSupported for what DirectML's operators refuse, LimitExceeded, MemoryExhausted, Cancelled."""
    return blaming_nodes(
        imported, lambda: service.compile(request_of(imported)._replace(known=constants), memory, cancelled)
    )


def request_of(imported: Imported) -> GraphRequest:
    """Raises ContractError."""
    desc = validate(GraphDesc, imported.graph.document)
    return GraphRequest(desc, NEWEST, imported.graph.constants, {})


def _judged(imported: Imported, service: Service) -> Graph:
    """Raises ContractError."""
    request = request_of(imported)
    most = service.settings.max_graph_nodes
    return resolve(request.desc, request.level, request.constants, service.structures, most)


def blaming_nodes(imported: Imported, made: Callable[[], T]) -> T:
    """What `made` makes. What is said of DirectML's nodes is said of the ONNX nodes that these were made for."""
    try:
        return made()
    except ContractError as error:
        blamed: dict[str, UnsupportedNode] = {}
        for violation in error.violations:
            path = violation.path[1:] if violation.path[:1] == ("graph",) else violation.path
            place = path[1] if len(path) > 1 and path[0] == "Nodes" else None
            label = imported.graph.labels[place] if isinstance(place, int) else ""
            known = imported.nodes.get(label) or UnsupportedNode(label or "the graph", "graph", 0, "")
            blamed.setdefault(label, known._replace(why=violation.message.removesuffix(".")))
    raise NotSupported([*blamed.values()])


def read(
    name: str, version: str, file: Path, config: Path | None, service: Service, cancelled: Callable[[], bool]
) -> LoadedModel:
    """Raises Unreadable, NotSupported, BadConfig, LimitExceeded, MemoryExhausted, Cancelled."""
    most = service.settings.max_model_bytes
    memory = service.memory.open()
    try:
        with opened(file) as found:
            size = os.fstat(found.fileno()).st_size
            if size > most:
                raise Unreadable(f"It has {size} bytes, where max_model_bytes allows {most}.")
            memory.take(size)
            data = found.read(size)
        arrays: dict[str, Array] = {}
        proto = read_model(data, file.parent, most, arrays, memory.take)
        ports = signature(proto)
        _copy_from(data, arrays, memory)
        proto = detached(proto, arrays)
        unsupported = never_supported(proto, ports, arrays, pausing(cancelled))
        if unsupported:
            raise NotSupported(unsupported)
        for port in (*ports.inputs.values(), *ports.outputs.values()):
            _check_port(port)
        stated = text_in(config) if config else ""
        ports = apply_config(stated, name, ports)
        message = parse(stated)
        batching = batching_of(f"{name}:{version}", ports, message, service.settings)
        memory.hold(sum(each.nbytes for each in arrays.values()) + PARTS_BYTES * len(proto.graph.node))
        return LoadedModel(name, version, proto, ports, arrays, memory, batching, policy_of(message))
    except OSError as error:
        memory.close()
        raise Unreadable(f"It cannot be read: {error.strerror}.") from None
    except BaseException:
        memory.close()
        raise


def _copy_from(data: bytes, arrays: dict[str, Array], memory: MemoryShare) -> None:
    """Have those of `arrays` that lie in a file's `data` be copies, which are aligned, and which keep
    nothing else of the file. Raises MemoryExhausted."""
    whole = np.frombuffer(data, np.uint8)
    inside = [name for name, each in arrays.items() if np.may_share_memory(each, whole)]
    memory.take(sum(arrays[name].nbytes for name in inside))
    for name in inside:
        arrays[name] = arrays[name].copy()


def _check_port(port: Port) -> None:
    """Raises NotSupported."""
    try:
        if port.data_type.bits < 8:
            raise Unsupported(f"the protocol has no data type for {port.type}")
    except Unsupported as error:
        raise NotSupported([UnsupportedNode(port.name, "tensor", 0, str(error))]) from None
