"""A graph ready for devices: its kernels in their order, and where each tensor of it lies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.formula.structures import Structures
from app.formula.values import Input as InputValue
from app.graphs.fusion import Fused, fuse
from app.graphs.graph import Constant, Graph, GraphInput, NodeOutput, Source
from app.graphs.members import PlannedKernel, plain_desc
from app.graphs.places import place_intervals
from app.memory.buffers import Buffer
from app.operators.looks import look
from app.programs.dispatchable import Dispatchable
from app.programs.program import Map, Program

ALIGNMENT = 256
"""Bytes at whose multiples tensors begin in scratch: what CUDA's allocations have."""


class Room(Enum):
    """What memory a tensor lies in."""

    INPUT = "input"
    OUTPUT = "output"
    KEPT = "kept"
    SCRATCH = "scratch"


@dataclass(frozen=True, slots=True)
class Place:
    """`size` bytes of the input, output or kept tensor of this `number`, or of scratch from `offset` on."""

    room: Room
    number: int
    offset: int
    size: int


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """A kernel: where the tensors of `dispatchable` lie, and of these what is set to 0 before. `nodes` by index."""

    nodes: tuple[int, ...]
    dispatchable: Dispatchable
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]
    clears: tuple[Place, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Schedule:
    """All that a device does for a graph.

    `first` is done once, when the graph is initialized: it reads inputs that are OWNED_BY_DML, and constants, and
    writes kept tensors. `steps` are done for each dispatch. Both have scratch of `scratch_bytes`.
    """

    inputs: dict[str, TensorDesc]
    """Of those that are bound at execution, as their first readers describe them."""
    owned: dict[str, TensorDesc]
    """Of those that are bound at initialization."""
    outputs: dict[str, TensorDesc]
    read_bytes: dict[str, int]
    """How many bytes of each of `inputs` are read."""
    first: tuple[Step, ...]
    steps: tuple[Step, ...]
    kept: tuple[Source, ...]
    """What the kept tensors are, by number."""
    kept_bytes: tuple[int, ...]
    scratch_bytes: int


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class InitializedGraph:
    """A schedule with its kept tensors, ready to be dispatched. While it lives, devices may keep copies of these."""

    schedule: Schedule
    kept: tuple[Buffer, ...]
    is_model: bool = False
    """Whether it is made for many dispatches, whose rows may come by themselves or with others: to the last bit, none
    may be another one for that."""

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return "this graph"

    @property
    def elements(self) -> int:
        """Of the largest tensor that a kernel writes."""
        return max(step.dispatchable.elements for step in self.schedule.steps)

    @property
    def only(self) -> Dispatchable | None:
        """What all of it is, if that is one step over just its inputs and outputs, in their order."""
        schedule = self.schedule
        if len(schedule.steps) > 1:
            return None
        (step,) = schedule.steps
        for room, places, tensors in (
            (Room.INPUT, step.reads, schedule.inputs),
            (Room.OUTPUT, step.writes, schedule.outputs),
        ):
            if [(place.room, place.number) for place in places] != [(room, n) for n in range(len(tensors))]:
                return None
        return step.dispatchable

    @property
    def reusable(self) -> list[str]:
        """Inputs whose buffers the output may take: of which the only step reads an element where it writes one, and
        for that one alone."""
        only, schedule = self.only, self.schedule
        if only is None or len(schedule.outputs) > 1 or not only.program.is_by_position:
            return []
        (made,), (desc,), (written,) = only.program.maps.values(), schedule.outputs.values(), only.outputs.values()
        return [
            name
            for (name, given), read in zip(schedule.read_bytes.items(), only.inputs.values(), strict=True)
            if not made.axes and read.same_layout(written) and given >= desc.data_bytes
        ]


def alone(work: Dispatchable) -> InitializedGraph:
    """A graph of just that."""
    rooms = {Room.INPUT: work.inputs, Room.OUTPUT: work.outputs}
    reads, writes = (
        tuple(Place(room, number, 0, desc.data_bytes) for number, desc in enumerate(descs.values()))
        for room, descs in rooms.items()
    )
    read_bytes = {name: desc.data_bytes for name, desc in work.inputs.items()}
    step = Step((0,), work, reads, writes)
    return InitializedGraph(Schedule(work.inputs, {}, work.outputs, read_bytes, (), (step,), (), (), 0), ())


def schedule(graph: Graph, structures: Structures) -> Schedule:
    """How `graph` is computed."""
    return _Scheduler(graph, fuse(graph, structures)).schedule()


class _Scheduler:
    def __init__(self, graph: Graph, fused: Fused) -> None:
        self._graph = graph
        self._fused = fused
        self._owned = {name: each for name, each in graph.inputs.items() if each.owned_by_dml}
        self._bound = {name: each for name, each in graph.inputs.items() if not each.owned_by_dml}
        self._numbers = {name: number for number, name in enumerate(self._bound)}
        self._outputs = list(graph.outputs.values())
        self._fixed: set[NodeOutput] = set()
        self._kept: dict[Source, Place] = {}
        self._written: dict[NodeOutput, Place] = {}

    def schedule(self) -> Schedule:
        first, later = self._split()
        copies = self._place_outputs(later)
        for part in (*first, *later):
            for source in part.reads.values():
                self._keep(source)
        for part in first:
            for output in part.writes.values():
                self._keep(output)
        scratch, scratch_bytes = self._place_scratch(later, copies)
        self._written |= scratch
        return Schedule(
            {name: next(iter(each.readers.values())) for name, each in self._bound.items()},
            {name: next(iter(each.readers.values())) for name, each in self._owned.items()},
            {each.name: each.desc for each in self._outputs},
            {name: max(desc.data_bytes for desc in each.readers.values()) for name, each in self._bound.items()},
            tuple(map(self._step, first)),
            (*map(self._step, later), *[self._copy(source, number) for source, number in copies]),
            tuple(self._kept),
            tuple(place.size for place in self._kept.values()),
            scratch_bytes,
        )

    def _split(self) -> tuple[list[PlannedKernel], list[PlannedKernel]]:
        """What is done once, and what for each dispatch."""
        first, later = [], []
        for part in self._fused.parts:
            if all(self._is_fixed(source) for source in part.reads.values()):
                self._fixed.update(part.writes.values())
                first.append(part)
            else:
                later.append(part)
        return first, later

    def _is_fixed(self, source: Source) -> bool:
        match source:
            case NodeOutput():
                return source in self._fixed
            case GraphInput():
                return source.name in self._owned
        return True

    def _place_outputs(self, later: Sequence[PlannedKernel]) -> list[tuple[NodeOutput, int]]:
        """Puts what it can where the graph's outputs are, and gives what must be copied there, by number."""
        copies = []
        read_bytes: dict[Source, int] = {}
        for part in later:
            for name, source in part.reads.items():
                read_bytes[source] = max(read_bytes.get(source, 0), part.dispatchable.inputs[name].data_bytes)
        for number, each in enumerate(self._outputs):
            source = self._fused.aliases.get(each.source, each.source)
            size = each.desc.data_bytes
            if source in self._written or source in self._fixed or read_bytes.get(source, 0) > size:
                copies.append((source, number))  # a reader that reads further finds zeros there, in scratch
            else:
                self._written[source] = Place(Room.OUTPUT, number, 0, size)
        return copies

    def _keep(self, source: Source) -> None:
        match source:
            case Constant():
                size = self._graph.constants[source.node].nbytes
            case GraphInput() if source.name in self._owned:
                size = self._owned[source.name].total_bytes
            case NodeOutput() if source in self._fixed:
                size = self._desc(source).total_bytes
            case _:
                return
        self._kept.setdefault(source, Place(Room.KEPT, len(self._kept), 0, size))

    def _place_scratch(
        self, later: Sequence[PlannedKernel], copies: Sequence[tuple[NodeOutput, int]]
    ) -> tuple[dict[NodeOutput, Place], int]:
        """Where what is neither output nor kept lies, each from the part that writes it to the last that reads it."""
        ends: dict[NodeOutput, int] = {}
        starts: dict[NodeOutput, int] = {}
        for at, part in enumerate(later):
            for output in part.writes.values():
                if output not in self._written:
                    starts[output] = ends[output] = at
            for source in part.reads.values():
                if source in starts and isinstance(source, NodeOutput):
                    ends[source] = at
        for source, _ in copies:
            if source in starts:
                ends[source] = len(later)
        sizes = {output: -(-self._desc(output).total_bytes // ALIGNMENT) * ALIGNMENT for output in starts}
        offsets, total = place_intervals({output: (starts[output], ends[output], sizes[output]) for output in starts})
        places = {
            output: Place(Room.SCRATCH, 0, offset, self._desc(output).total_bytes) for output, offset in offsets.items()
        }
        return places, total

    def _step(self, part: PlannedKernel) -> Step:
        look()
        writes = [self._place(output) for output in part.writes.values()]
        # Bytes that nobody writes but a reader may read are not to hold what the memory held before.
        clears = [
            place
            for place, output in zip(writes, part.writes.values(), strict=True)
            if place.room is not Room.OUTPUT and not _fills(self._desc(output), place)
        ]
        reads = [
            replace(self._place(source), size=part.dispatchable.inputs[name].data_bytes)
            for name, source in part.reads.items()
        ]
        return Step(part.nodes, part.dispatchable, tuple(reads), tuple(writes), tuple(clears))

    def _copy(self, source: NodeOutput, number: int) -> Step:
        size = self._outputs[number].desc.data_bytes
        desc = plain_desc(DataType.UINT8, [size])
        read = replace(self._place(source), size=size)
        copy = Dispatchable({"in0": desc}, {"out": desc}, _COPY, {})
        return Step((source.node,), copy, (read,), (Place(Room.OUTPUT, number, 0, size),))

    def _desc(self, output: NodeOutput) -> TensorDesc:
        return self._graph.nodes[output.node].compiled.outputs[output.tensor]

    def _place(self, source: Source) -> Place:
        if isinstance(source, NodeOutput) and source in self._written:
            return self._written[source]
        if source in self._kept:
            return self._kept[source]
        assert isinstance(source, GraphInput), "all else has been placed"
        return Place(Room.INPUT, self._numbers[source.name], 0, self._bound[source.name].total_bytes)


def _fills(desc: TensorDesc, place: Place) -> bool:
    """Whether each bit there is one of an element's."""
    return desc.elements * desc.DataType.bits == 8 * place.size


_COPY = Program({"in0": DataType.UINT8}, {"out": Map(InputValue("uint8", "in0", DataType.UINT8), DataType.UINT8)})
