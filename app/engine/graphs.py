"""Graphs that are ready to be dispatched."""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, Protocol

from app.contract.constants import FeatureLevel
from app.contract.tensors import TensorDesc, path_of
from app.contract.validation import in_words
from app.contract.violations import ContractError, Hresult, Path, Violation
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.packs import PackKey
from app.devices.schedules import initialize
from app.engine.dispatch import GraphFacts
from app.formula.structures import Structures
from app.graphs.descriptor import GraphDesc
from app.graphs.ends import is_index
from app.graphs.graph import Constant, Graph, GraphInput, Input, Source
from app.graphs.identity import computed_ids, graph_id
from app.graphs.judgement import resolve
from app.graphs.schedule import InitializedGraph, schedule
from app.memory.accounts import LimitExceeded
from app.memory.buffers import Buffer
from app.operators.compiled import CompiledOperator


class CompiledGraph:
    """Implements `Work`: a graph that has passed judgement and has been initialized."""

    name = "graph"
    unbound = "at execution: it is OWNED_BY_DML, and was bound at initialization"

    def __init__(
        self,
        facts: GraphFacts,
        graph: Graph,
        initialized: InitializedGraph,
        packed: Mapping[PackKey, int],
        input_indices: int,
        computed: Mapping[str, Buffer],
    ) -> None:
        """The CPU keeps what is `packed`, of so many bytes, a second time. Of `input_indices` some may be read by no
        node. Of what is kept, `computed` was made of constants alone, by id, if it is a model's."""
        schedule = initialized.schedule
        self.subject = facts
        self.runnable = initialized
        self.inputs: Mapping[str, TensorDesc] = schedule.inputs
        self.outputs: Mapping[str, TensorDesc] = schedule.outputs
        self.scratch_bytes = schedule.scratch_bytes
        self.packed = packed
        self.computed = computed
        self.memory_bytes = sum(each.nbytes for each in initialized.kept) + self.packed_bytes
        self._lengths = {name: set(_lengths(graph.inputs[name], least)) for name, least in schedule.read_bytes.items()}
        self.reusable = initialized.reusable
        self._input_indices = input_indices

    @property
    def packed_bytes(self) -> int:
        return sum(self.packed.values())

    def with_own_tensors(self, copied: Callable[[Buffer], Buffer]) -> "CompiledGraph":
        """The same graph, whose kept tensors are what `copied` makes of these."""
        made = copy(self)
        made.runnable = replace(self.runnable, kept=tuple(map(copied, self.runnable.kept)))
        return made

    def lengths(self, name: str) -> set[int]:
        return self._lengths[name]

    def fewest(self) -> list[tuple[str, int]]:
        return [(name, min(self._lengths[name])) for name in self.inputs]

    def is_known(self, name: str) -> bool:
        return name in self.runnable.schedule.owned

    def is_idle(self, name: str) -> bool:
        """Whether it is an input to which nothing is bound at execution."""
        return self.is_known(name) or (name not in self.inputs and is_index(name, self._input_indices))


def _lengths(given: Input, least: int) -> Iterator[int]:
    """Bytes that data for an input of a graph may have: those that any reader may be given, if they will do for all."""
    for desc in given.readers.values():
        yield from (length for length in desc.data_lengths if length >= least)


class Known(Protocol):
    """What is known of a model's constants, which its graphs for inputs of different sizes share."""

    def digest(self, data: Buffer) -> str:
        """As `identity.digest`."""

    def computed(self, id_: str) -> Buffer | None:
        """What was computed of constants alone, by its id."""


class GraphRequest(NamedTuple):
    """A graph as it was sent, its data read: of constant nodes by their index, and of inputs by name."""

    desc: GraphDesc
    level: FeatureLevel
    constants: Mapping[int, Buffer]
    inputs: Mapping[str, Buffer]
    known: Known | None = None
    """Of a model: what is known of its constants."""


class GraphCompiler:
    """Compiles and initializes graphs, on any thread. `device` computes what is computed once."""

    def __init__(
        self,
        device: NumpyDevice,
        structures: Structures,
        max_nodes: int,
        max_tensor_bytes: int,
        max_memory_bytes: int,
    ) -> None:
        self._device = device
        self._structures = structures
        self._max_nodes = max_nodes
        self._max_tensor_bytes = max_tensor_bytes
        self._max_memory_bytes = max_memory_bytes

    def compile(
        self, request: GraphRequest, take: Callable[[int], Buffer], cancelled: Callable[[], bool]
    ) -> CompiledGraph:
        """The graph, with its kept tensors in what `take` gives, or where they were. Who has it dispatched is to charge
        its `packed_bytes` before.

        Of `inputs` those that are OWNED_BY_DML must be there; others are not looked at. Raises ContractError, whose
        paths start at the request, LimitExceeded, Cancelled, and what `take` raises.
        """
        try:
            graph = resolve(request.desc, request.level, request.constants, self._structures, self._max_nodes)
        except ContractError as error:
            raise error.below("graph") from None
        self._limit(graph)
        owned, known = self._owned(graph, request.inputs), request.known
        id_ = "" if known else graph_id(request.desc, request.level, request.constants, owned)
        planned = schedule(graph, self._structures)
        if planned.scratch_bytes > self._max_memory_bytes:
            scratch = planned.scratch_bytes
            raise LimitExceeded("max_memory_bytes", "Bytes between nodes", scratch, self._max_memory_bytes, ("graph",))
        sources: dict[Source, Buffer] = {Constant(index): data for index, data in request.constants.items()}
        sources |= {GraphInput(name): data for name, data in owned.items()}
        ids = computed_ids(request.desc, graph, known.digest) if known else {}
        sources |= {source: data for source, id_ in ids.items() if known and (data := known.computed(id_))}
        is_model = known is not None
        initialized = initialize(planned, sources, take, self._device.prepare, cancelled, is_model=is_model)
        kept = zip(planned.kept, initialized.kept, strict=True)
        computed = {ids[source]: data for source, data in kept if source in ids and data}
        operators = dict.fromkeys(node.compiled.operator.name() for node in graph.nodes.values())
        kernels = len(planned.steps)
        facts = GraphFacts(id_, request.level, len(request.desc.Nodes), kernels, tuple(operators))
        packed = self._device.packed(initialized)
        return CompiledGraph(facts, graph, initialized, packed, request.desc.input_indices, computed)

    def _limit(self, graph: Graph) -> None:
        for index, node in graph.nodes.items():
            limit_tensors(node.compiled, self._max_tensor_bytes, ("graph", "Nodes", index, "Desc"))

    @staticmethod
    def _owned(graph: Graph, inputs: Mapping[str, Buffer]) -> dict[str, Buffer]:
        """The data of inputs that are OWNED_BY_DML."""
        owned = {name: each for name, each in graph.inputs.items() if each.owned_by_dml}
        violations = []
        for name, each in owned.items():
            allowed = sorted(set(_lengths(each, max(desc.data_bytes for desc in each.readers.values()))))
            if name not in inputs:
                message = f"Data for {in_words(name)} are missing; OWNED_BY_DML inputs are bound at initialization."
                violations.append(Violation(("inputs", name), message, None, name))
            elif inputs[name].nbytes not in allowed:
                size = inputs[name].nbytes
                message = f"Data for {in_words(name)} are {size} bytes; they must be {' or '.join(map(str, allowed))}."
                violations.append(Violation(("inputs", name), message, size, allowed))
        if violations:
            raise ContractError(violations, Hresult.E_INVALIDARG)
        return {name: inputs[name] for name in owned}


def limit_tensors(work: CompiledOperator, most: int, path: Path) -> None:
    """Before any memory is taken: strides let a few bytes ask for gigabytes. Raises LimitExceeded."""
    for name, desc in chain(work.inputs.items(), work.outputs.items()):
        size = desc.total_bytes
        if size <= most and desc.Strides is None:
            continue
        what = "Buffer"
        if size <= most:
            what, size = "Elements without repetition", -(-desc.elements * desc.DataType.bits // 8)
        if size > most:
            raise LimitExceeded("max_tensor_bytes", f"{what} of {name} in bytes", size, most, (*path, *path_of(name)))
