"""Dispatchables, compiled, and what binds resources to them: all that is computed is computed by the service."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from app.contract.constants import NEWEST
from app.contract.tensors import TensorDesc, path_of
from app.contract.validation import abbreviate, in_words, validate
from app.contract.violations import ContractError, Hresult, Path, Violation, refused
from app.engine.dispatch import DispatchRequest, Work
from app.engine.graph_documents import hold_parts
from app.engine.graphs import GraphRequest
from app.engine.prepared import Outcome, Prepared
from app.engine.service import Service
from app.engine.workers import Ticket
from app.graphs.descriptor import GraphDesc
from app.memory.accounts import LimitExceeded, MemoryShare
from app.memory.arrays import numpy_type, together
from app.memory.buffers import Buffer
from app.models.dxdispatch.descriptors import Described
from app.models.dxdispatch.document import Bindings, Source
from app.models.dxdispatch.files import Files
from app.models.dxdispatch.resources import Held
from app.operators.compiled import CompiledOperator
from app.operators.operator import Operator, Role
from app.steps import at_once

ALIGNMENT = 16
"""DML_MINIMUM_BUFFER_TENSOR_ALIGNMENT: what offsets of bindings are multiples of."""

_REMOVED = Hresult.DXGI_ERROR_DEVICE_REMOVED


@dataclass(slots=True)
class ModelRun:
    """One run of a model, by the worker whose `ticket` it is."""

    service: Service
    ticket: Ticket[None]
    memory: MemoryShare
    files: Files
    resources: dict[str, Held] = field(default_factory=dict)
    dispatched: list[tuple[Prepared, Outcome]] = field(default_factory=list)
    """What ran, without its results."""

    def execute(self, prepared: Prepared, data: Mapping[str, Buffer], store: Callable[[Outcome], None]) -> None:
        """Dispatch on `data`, which are not written, and have `store` copy the results, which are gone afterwards.

        Raises ContractError, LimitExceeded, MemoryExhausted, Cancelled.
        """
        held = self.memory.held
        given = {name: each.toreadonly() for name, each in data.items()}
        outcome = self.service.execute_in(self.ticket, prepared, given, self.memory)
        store(outcome)
        self.memory.give(self.memory.held - held)
        self.dispatched.append((prepared, replace(outcome, outputs={})))


class Dispatchable(Protocol):
    """What the command `dispatch` names."""

    def dispatch(self, bindings: Bindings, run: ModelRun) -> None:
        """Execute it on the resources of `run`. Raises ContractError, LimitExceeded, MemoryExhausted, Cancelled."""


class _Range(NamedTuple):
    """Part of a resource, to its end, which a tensor is bound to."""

    tensor: str
    path: Path
    held: Held
    start: int
    size: int

    @property
    def data(self) -> Buffer:
        return self.held.data[self.start : self.start + self.size]

    def meets(self, other: "_Range") -> bool:
        return (
            self.held is other.held and self.start < other.start + other.size and other.start < self.start + self.size
        )


class Points:
    """The bind points of a dispatchable: by name, the tensors that each is, one for each resource."""

    def __init__(
        self,
        called: str,
        tensors: Mapping[str, list[str]],
        alignments: Mapping[str, int] | None = None,
        *,
        by_count: bool = False,
    ) -> None:
        """`alignments` are what offsets are multiples of, by tensor, where that is more than all are. What is bound
        goes to the resource's end, or, `by_count`, as far as its elements are counted."""
        self._called = called
        self._tensors = tensors
        self._alignments = alignments or {}
        self._by_count = by_count

    @classmethod
    def of(cls, called: str, operator: Operator) -> "Points":
        """Those of an operator. What its descriptor leaves out is a point of no tensors."""
        tensors: dict[str, list[str]] = {name: [] for name in operator.tensor_names()}
        alignments = {}
        for name, desc in operator.tensors().items():
            tensors[str(path_of(name)[0])].append(name)
            alignments[name] = max(desc.GuaranteedBaseOffsetAlignment, ALIGNMENT)
        return cls(called, tensors, alignments)

    def resolve(
        self, bindings: Bindings, wanted: Mapping[str, int], run: ModelRun, path: Path, when: str
    ) -> list[_Range]:
        """Where the `wanted` tensors lie, each of so many bytes. What is no bind point is not looked at, as DxDispatch
        does it. Raises ContractError with all that is wrong."""
        violations: list[Violation] = []
        found: dict[str, _Range] = {}
        for point, (at, sources) in bindings.items():
            tensors = self._tensors.get(point)
            if tensors is None:
                continue
            if len(tensors) != len(sources):
                message = f"Bind point '{point}' requires {len(tensors)} resources, but {len(sources)} were bound."
                if not tensors:
                    message += f" The descriptor of {self._called} leaves it out."
                violations.append(Violation(at, message, len(sources), len(tensors)))
                continue
            for place, (tensor, source) in enumerate(zip(tensors, sources, strict=True)):
                here = (*at, place) if len(sources) > 1 else at
                if tensor not in wanted:
                    violations.append(
                        Violation(
                            here, f"{tensor} of {self._called} is not bound at {when}.", source.name, list(wanted)
                        )
                    )
                    continue
                try:
                    found[tensor] = self._range(tensor, source, wanted[tensor], run.resources, here)
                except ContractError as error:
                    violations += error.violations
        told = {point for point in bindings if point in self._tensors}
        for tensor in wanted:
            if tensor not in found and path_of(tensor)[0] not in told and tensor not in told:
                message = f"Nothing bound for required tensor '{abbreviate(tensor)}' of {self._called} at {when}."
                violations.append(Violation(path, message, None, tensor))
        if violations:
            raise ContractError(violations, _REMOVED)
        return [found[tensor] for tensor in wanted]

    def _range(self, tensor: str, source: Source, size: int, resources: Mapping[str, Held], path: Path) -> _Range:
        held, called = resources[source.name], abbreviate(source.name)
        if held.deferred:
            raise refused(path, f"Resource {called} is deferred; only ONNX models bind such.", source.name)
        start = source.elementOffset * (source.elementSizeInBytes or held.element_bytes)
        alignment = self._alignments.get(tensor, ALIGNMENT)
        if start % alignment:
            raise refused(
                path,
                f"{tensor} begins {start} bytes into {called}; offsets are multiples of {alignment}.",
                start,
                f"a multiple of {alignment}",
            )
        end = len(held.data)
        if self._by_count:
            end = _counted(source, held)
            if end > len(held.data):
                message = f"The elements of {called} that are bound end at byte {end}; it has {len(held.data)}."
                raise refused(path, message, end, f"<= {len(held.data)}")
        left = max(end - start, 0)
        if left < size:
            raise refused(
                path, f"{tensor} takes {size} bytes; from byte {start} on {called} has {left}.", left, f">= {size}"
            )
        return _Range(tensor, path, held, start, size)


def _counted(source: Source, held: Held) -> int:
    """Where elements end that are counted from the resource's beginning; those without a type are all of it."""
    if not held.element_bytes:
        return len(held.data)
    count = source.elementCount or held.initial_bytes // held.element_bytes
    return count * (source.elementSizeInBytes or held.element_bytes) + 3 & ~3


class Compiled:
    """Implements `Dispatchable`: an operator or a graph of the engine."""

    def __init__(self, prepared: Prepared, points: Points, kept: Mapping[str, Buffer], path: Path) -> None:
        """`kept` are inputs that were bound at initialization and are handed over at each dispatch."""
        self._prepared = prepared
        self._points = points
        self._kept = kept
        self._path = path

    def dispatch(self, bindings: Bindings, run: ModelRun) -> None:
        work = self._prepared.work
        inputs = {name: _most(work, name) for name in work.inputs if name not in self._kept}
        outputs = {name: desc.total_bytes for name, desc in work.outputs.items()}
        ranges = self._points.resolve(bindings, inputs | outputs, run, self._path, "execution")
        read, written = ranges[: len(inputs)], ranges[len(inputs) :]
        _judge_overlaps(work, read, written)

        def store(outcome: Outcome) -> None:
            for each in written:
                _copy(outcome.outputs[each.tensor], each.data, work.outputs[each.tensor], run.memory)

        run.execute(self._prepared, {**{each.tensor: each.data for each in read}, **self._kept}, store)


def _most(work: Work, name: str) -> int:
    return max(work.lengths(name))


def _judge_overlaps(work: Work, read: list[_Range], written: list[_Range]) -> None:
    """An output takes the place of an input only where the operator permits it, and all of it. Raises ContractError."""
    for number, output in enumerate(written):
        for other in written[:number]:
            if output.meets(other):
                raise _overlap(output, other, "no two outputs may")
        for source in read:
            if not output.meets(source):
                continue
            is_same = (source.start, source.size) == (output.start, output.size)
            if not is_same or not isinstance(work, CompiledOperator):
                raise _overlap(output, source, "an output may take an input's buffer only in operators, and whole")
            refusal = work.in_place_refusal(source.tensor, output.tensor)
            if refusal:
                raise _overlap(output, source, str(refusal).removeprefix("in_place is "))


def _overlap(output: _Range, other: _Range, why: str) -> ContractError:
    return refused(
        output.path,
        f"{output.tensor} and {other.tensor} overlap in {in_words(output.held.name)}: {why.rstrip('.')}.",
        output.held.name,
        None,
        _REMOVED,
    )


def _copy(made: Buffer, target: Buffer, desc: TensorDesc, memory: MemoryShare) -> None:
    """The elements of an output to where it is bound. What lies between them stays as it was. Raises like `take`."""
    if desc.gapless:
        target[: desc.data_bytes] = made[: desc.data_bytes]
        return
    if desc.DataType.bits < 8:
        with memory.passing(2 * desc.reach):
            changes = np.frombuffer(made, np.uint8, desc.data_bytes) ^ np.frombuffer(target, np.uint8, desc.data_bytes)
            changes &= together(np.broadcast_to(np.uint8(0xF), desc.Sizes), desc=desc)
            np.frombuffer(target, np.uint8, desc.data_bytes)[:] ^= changes
        return
    dtype = numpy_type(desc.DataType)
    strides = [step * dtype.itemsize for step in desc.steps]
    there = np.ndarray(desc.Sizes, dtype, target, 0, strides)
    there[...] = np.ndarray(desc.Sizes, dtype, made, 0, strides)


def compile_operator(
    described: Described, name: str, as_graph: bool, bindings: Bindings, path: Path, run: ModelRun
) -> Compiled:
    """An operator, by itself or as a graph of one node, with its OWNED_BY_DML inputs bound.

    Raises ContractError, LimitExceeded, MemoryExhausted, Cancelled.
    """
    operator, called = described.operator, str(abbreviate(name))
    try:
        request = DispatchRequest(operator=operator, inputs={})
        prepared = at_once(run.service.prepare(request))
    except ContractError as error:
        raise described.located(_beyond(error, 1)) from None
    except LimitExceeded as error:
        error.path = (*described.path, *error.path[1:])
        raise
    points = Points.of(called, operator)
    owned = {name: desc.total_bytes for name, desc in operator.tensors(Role.INPUT).items() if desc.owned_by_dml}
    kept = {each.tensor: _copied(each, run.memory) for each in _initial(points, bindings, owned, operator, path, run)}
    if not as_graph:
        return Compiled(prepared, points, kept, path)
    graph = GraphRequest(_graph_of(operator, prepared.work), NEWEST, {}, kept)
    try:
        compiled = run.service.compile(graph, run.memory, run.ticket.cancelled)
    except ContractError as error:
        raise described.located(_beyond(error, 4)) from None
    return Compiled(run.service.prepare_graph(compiled, "auto"), points, {}, path)


def _initial(
    points: Points, bindings: Bindings, owned: Mapping[str, int], operator: Operator, path: Path, run: ModelRun
) -> list[_Range]:
    outputs = operator.tensor_names(Role.OUTPUT)  # which the initializer does not have
    given = {point: each for point, each in bindings.items() if point not in outputs}
    return points.resolve(given, owned, run, path, "initialization")


def _copied(found: _Range, memory: MemoryShare) -> Buffer:
    """Commands may change the resource, but not what was bound when the dispatchable was initialized."""
    buffer = memory.buffer(found.size)
    buffer[:] = found.data
    return buffer


def _graph_of(operator: Operator, work: Work) -> GraphDesc:
    """A graph of one node. Its inputs and outputs have the names of the tensors, arrays one by one, and those that are
    left out are none."""
    node = {"Type": "OPERATOR", "Desc": operator}
    return GraphDesc.model_validate(
        {
            "Nodes": [node],
            "InputEdges": [{"GraphInput": name, "ToNodeIndex": 0, "ToNodeInput": name} for name in work.inputs],
            "OutputEdges": [{"FromNodeIndex": 0, "FromNodeOutput": name, "GraphOutput": name} for name in work.outputs],
        }
    )


def _beyond(error: ContractError, count: int) -> ContractError:
    """`error` without the first `count` parts of its paths."""
    return ContractError(
        [Violation(each.path[count:], each.message, each.given, each.allowed) for each in error.violations],
        error.hresult,
    )


def compile_graph(
    desc: GraphDesc, constants: Mapping[int, Buffer], name: str, path: Path, source: str, run: ModelRun
) -> Compiled:
    """A graph out of the file `source`, which the model names at `path`.

    Raises ContractError, LimitExceeded, MemoryExhausted, Cancelled.
    """
    try:
        compiled = run.service.compile(GraphRequest(desc, NEWEST, constants, {}), run.memory, run.ticket.cancelled)
    except ContractError as error:
        raise in_file(_beyond(error, 1), source, path) from None
    except LimitExceeded as error:
        error.path = path
        raise
    tensors = {each: [each] for each in [*compiled.inputs, *compiled.outputs]}
    points = Points(str(abbreviate(name)), tensors, by_count=True)
    return Compiled(run.service.prepare_graph(compiled, "auto"), points, {}, path[:-1])


def graph_desc(document: object, source: str, path: Path, run: ModelRun) -> GraphDesc:
    """A graph's descriptor out of the file `source`. Raises ContractError, MemoryExhausted."""
    try:
        hold_parts({"graph": document}, run.service.settings.max_graph_nodes, run.memory)
        return validate(GraphDesc, document)
    except ContractError as error:
        raise in_file(error, source, path) from None


def in_file(error: ContractError, source: str, path: Path) -> ContractError:
    """`error`, whose paths start at what is in a file, at the field that names the file."""
    return ContractError(
        [
            Violation(path, f"{in_words(source)}{each.pointer}: {each.message}", each.given, each.allowed)
            for each in error.violations
        ],
        error.hresult,
    )
