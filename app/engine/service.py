"""The one door between the protocols and the devices: dispatch, capabilities, life cycle."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from functools import partial
from time import perf_counter, time_ns
from typing import Protocol, TypeVar

from app import __version__
from app.contract.constants import FeatureLevel
from app.contract.suggestions import did_you_mean
from app.contract.tensors import MAX_ELEMENTS, MAX_RANK
from app.contract.validation import in_words
from app.contract.violations import ContractError, refused
from app.devices.binaries import Binaries, cache_folder
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.compiler import Compiler, Unavailable
from app.devices.device import Device, ensuring
from app.devices.placement import Placement
from app.engine.capabilities import Capabilities
from app.engine.dispatch import DispatchRequest, Work
from app.engine.graph_documents import GraphTimes, KernelTime
from app.engine.graph_entries import Entries, LocalEntries
from app.engine.graph_store import GraphStore
from app.engine.graphs import CompiledGraph, GraphCompiler, GraphRequest, limit_tensors
from app.engine.prepared import Bound, Outcome, Prepared
from app.engine.workers import Ticket, WorkerPool
from app.formula.structures import Structures
from app.memory.accounts import MemoryAccount, MemoryShare
from app.memory.buffers import Buffer
from app.memory.neighbours import Neighbour
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.looks import looking
from app.settings import Settings
from app.stages import Stages, recorded, staged
from app.steps import in_step

log = logging.getLogger("app")

T = TypeVar("T")


class State(StrEnum):
    """Of the service, as readiness tells it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Draining(Exception):
    """The service is shutting down and takes no more work."""


class DeadlineExceeded(Exception):
    """The dispatch was not done in time."""

    def __init__(self, message: str = "The dispatch was not done within deadline_seconds; it was given up.") -> None:
        super().__init__(message)


class Abandoned(Exception):
    """The client hung up."""


class Cache(Protocol):
    """What metrics tell of something that is kept."""

    hits: int
    misses: int

    @property
    def size(self) -> int:
        """How many are kept."""


class Service:
    """Devices, workers and limits. Make it inside a running process, close it at the end."""

    def __init__(self, settings: Settings, graphs: Entries | None = None, neighbour: Neighbour | None = None) -> None:
        """`graphs` are those that several processes keep, of which this is one `neighbour`."""
        self.settings = settings
        self.state = State.STARTING
        self._is_closed = False
        self.pool = WorkerPool(settings.threads, settings.queue_depth)
        self.structures = Structures()
        """What has been built of formulas, for this service's dispatches."""
        self.caches: dict[str, Cache] = {"structures": self.structures}
        """By name. Those who read requests add theirs."""
        self.loops = _compiler(settings)
        """Compiles loops for the CPU, if any are."""
        numpy_device = NumpyDevice(self.pool.executor, settings.threads, self.loops, structures=self.structures)
        self.placement = Placement(settings, numpy_device, self.structures, neighbour)
        self.devices: dict[str, Device] = self.placement.devices
        self.compiler = GraphCompiler(
            numpy_device,
            self.structures,
            settings.max_graph_nodes,
            settings.max_tensor_bytes,
            settings.max_memory_bytes,
        )
        self.graphs = GraphStore(settings, self.compiler, self.prepare_graph, graphs or LocalEntries())
        self.memory = MemoryAccount(settings.max_memory_bytes, settings.idle_buffer_bytes, self.placement.pinned)
        self.placement.charge(self.memory)

    def open(self) -> None:
        """From now on ready."""
        self.placement.open()
        self.pool.open()
        self.state = State.READY

    def drain(self) -> None:
        """From now on not ready: nothing more should come. What comes all the same is done as before."""
        self.state = State.DRAINING

    def close(self) -> None:
        """Refuse new dispatches, and stop the workers once they are done."""
        self.state = State.DRAINING
        self._is_closed = True
        self.pool.close()

    def capabilities(self) -> Capabilities:
        limits = {name: value for name, value in self.settings if Settings.is_limit(name)}
        return Capabilities(
            version=__version__,
            state=self.state,
            devices=[device.info() for device in self.devices.values()],
            device_troubles=self.placement.troubles(),
            feature_levels=[level.full_name for level in FeatureLevel],
            operators=list(OPERATORS),
            limits=limits | {"max_dimension_count": MAX_RANK, "max_elements": MAX_ELEMENTS},
        )

    async def prepare(self, request: DispatchRequest) -> Prepared:
        """Judge `request`, without its data, in steps (app/steps.py). Raises ContractError, LimitExceeded."""
        self.check_device(request.device)
        compiled = self.compiled(request)
        limit_tensors(compiled, self.settings.max_tensor_bytes, ("operator",))
        if request.in_place is not None:
            compiled.check_in_place(request.in_place)
        await in_step()
        return self._prepared(compiled, request.device, request.in_place)

    def compiled(self, request: DispatchRequest) -> CompiledOperator:
        """The operator of `request`. Raises ContractError."""
        try:
            return compile_operator(request.operator, request.feature_level, self.structures)
        except ContractError as error:
            raise error.below("operator") from None

    def compile(self, request: GraphRequest, memory: MemoryShare, cancelled: Callable[[], bool]) -> CompiledGraph:
        """A graph for one request, whose `memory` it takes. It is for a worker.

        Raises ContractError, LimitExceeded, MemoryExhausted, Cancelled.
        """
        compiled = self.compiler.compile(request, memory.buffer, cancelled)
        memory.take(compiled.packed_bytes)
        return compiled

    def prepare_graph(self, graph: CompiledGraph, device: str) -> Prepared:
        """Raises ContractError."""
        self.check_device(device)
        return self._prepared(graph, device, None)

    def graph_times(
        self, graph: CompiledGraph, device: str, memory: MemoryShare, cancelled: Callable[[], bool]
    ) -> GraphTimes:
        """What each kernel of the graph takes. It is for a worker. Raises MemoryExhausted, LimitExceeded, Cancelled."""
        runnable = graph.runnable
        memory.take(graph.packed_bytes)  # the steps are timed by themselves, with matrices of their own
        ran, seconds = self.placement.step_seconds(device, runnable, memory.buffer, cancelled)
        return GraphTimes(
            device=ran.device,
            kind=ran.kind,
            fallback_reason=ran.fallback_reason,
            kernels=[
                KernelTime(nodes=list(step.nodes), seconds=each)
                for step, each in zip(runnable.schedule.steps, seconds, strict=True)
            ],
        )

    def _prepared(self, work: Work, device: str, in_place: str | None) -> Prepared:
        chosen = self.placement.choose(device, work.runnable)
        assert chosen is not None  # it was looked for before
        return Prepared(work, in_place, chosen)

    async def execute(
        self,
        prepared: Prepared,
        data: Mapping[str, Buffer],
        memory: MemoryShare,
        hang_up: "Callable[[], Awaitable[None]] | None" = None,
        stages: Stages | None = None,
        place: Ticket[None] | None = None,
    ) -> Outcome:
        """Execute what was prepared, on `data`.

        `memory` is the request's share, to which the output is added; `hang_up()` returns when the client has gone,
        and what happens is added to `stages`. `place` is what was reserved in the queue: it is admitted, and its
        deadline counts from then on. Raises ContractError, MemoryExhausted, QueueFull, Draining, DeadlineExceeded,
        Abandoned.
        """
        if prepared.kernel.runs_inline:
            if place is not None:
                self.pool.release(place)
            return self.execute_here(prepared, data, memory, stages, is_admitted=place is not None)
        bound = self._bound(prepared, prepared.bind(data), memory)
        return await self.run(partial(self._computed, prepared, bound), memory, hang_up, stages, place)

    def execute_here(
        self,
        prepared: Prepared,
        data: Mapping[str, Buffer],
        memory: MemoryShare,
        stages: Stages | None = None,
        *,
        is_admitted: bool = False,
    ) -> Outcome:
        """The same of a kernel that `runs_inline`, here and now; it may have been admitted before.

        Raises ContractError, MemoryExhausted, QueueFull, Draining.
        """
        if not is_admitted:
            self.ensure_open()
        buffers = prepared.bind(data)
        self.pool.check_room()  # a full queue is full for small ones too
        bound = self._bound(prepared, buffers, memory)
        started = perf_counter()
        if stages is None:
            ran = prepared.dispatch(bound, _never)
        else:
            ran = recorded(stages, staged, prepared.stage, prepared.dispatch, bound, _never)
        return Outcome(bound.outputs, 0.0, perf_counter() - started, ran)

    async def run(
        self,
        work: Callable[[Ticket[None]], T],
        memory: MemoryShare,
        hang_up: "Callable[[], Awaitable[None]] | None" = None,
        stages: Stages | None = None,
        place: Ticket[None] | None = None,
    ) -> T:
        """What `work` returns, done by a worker, to which `memory` is lent meanwhile: the way of all that takes long.

        If nobody waits for it any more, `work` should notice soon, by `memory.ensure_open` or its ticket. `place` is
        as for `execute`. Raises what `work` does, QueueFull, Draining, DeadlineExceeded, Abandoned.
        """
        if place is None:
            self.ensure_open()
        made: list[T] = []
        lent = memory.lent()
        submitted = time_ns()

        def job(ticket: Ticket[None]) -> None:
            if stages is not None:
                stages.add("queue", submitted)
            with lent, looking(ensuring(ticket.cancelled)):
                made.append(recorded(stages, work, ticket))

        await self.wait(self.pool.submit(job, place), hang_up)
        return made.pop()

    def execute_in(
        self, ticket: Ticket[None], prepared: Prepared, data: Mapping[str, Buffer], memory: MemoryShare
    ) -> Outcome:
        """The same as `execute`, by the worker that read the request: it was admitted before."""
        return self._computed(prepared, self._bound(prepared, prepared.bind(data), memory), ticket)

    def _computed(self, prepared: Prepared, bound: Bound, ticket: Ticket[None]) -> Outcome:
        started = perf_counter()
        ran = staged(prepared.stage, prepared.dispatch, bound, ticket.cancelled)
        return Outcome(bound.outputs, ticket.queue_seconds, perf_counter() - started, ran)

    def check_inline(self) -> None:
        """Whether something that is done here and now is taken. Raises QueueFull, Draining."""
        self.ensure_open()
        self.pool.check_room()  # a full queue is full for small ones too

    def ensure_open(self) -> None:
        """Raises Draining."""
        if self._is_closed:
            raise Draining

    def check_device(self, name: str) -> None:
        """Raises ContractError."""
        if name != "auto" and name not in self.devices:
            allowed, troubles = ["auto", *self.devices], self.placement.troubles()
            why = f", since {troubles[0]}" if troubles and name.startswith("cuda") else ""
            raise refused(
                ("device",),
                f"There is no device {in_words(name)}{why}; give {' or '.join(allowed)}.{did_you_mean(name, allowed)}",
                name,
                allowed,
            )

    @classmethod
    def _bound(cls, prepared: Prepared, inputs: list[Buffer], memory: MemoryShare) -> Bound:
        if prepared.own_bytes:
            memory.take(prepared.own_bytes)
        outputs: dict[str, Buffer] = {}
        for name, size in prepared.output_bytes.items():
            outputs[name] = memory.buffer(size) if outputs else cls._first_output(prepared, size, inputs, memory)
        return Bound(inputs, outputs, memory.buffer(prepared.scratch_bytes) if prepared.scratch_bytes else None)

    @staticmethod
    def _first_output(prepared: Prepared, size: int, inputs: list[Buffer], memory: MemoryShare) -> Buffer:
        """The only one that may take the place of an input: of several it is computed last."""
        if prepared.in_place is not None:
            taken = inputs[prepared.input_names.index(prepared.in_place)]
            return _beginning(memoryview(bytearray(taken)) if taken.readonly else taken, size)
        for number in prepared.reusable:
            if not inputs[number].readonly:  # nobody else will read it, so its memory may as well hold the output
                return _beginning(inputs[number], size)
        return memory.buffer(size)

    async def wait(self, ticket: Ticket[None], hang_up: "Callable[[], Awaitable[None]] | None") -> None:
        """Wait for the job, until its deadline; one that nobody waits for gives its place free.

        Raises what the job does, DeadlineExceeded, Abandoned.
        """
        done: asyncio.Future[None] = asyncio.wrap_future(ticket.future)
        gone = asyncio.ensure_future(hang_up()) if hang_up else None
        try:
            await asyncio.wait(
                {done, gone} if gone else {done},
                timeout=max(self.settings.deadline_seconds - (perf_counter() - ticket.submitted), 0.0),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if done.done():
                done.result()
            elif gone and gone.done():
                raise Abandoned
            else:
                raise DeadlineExceeded
        finally:
            if gone:
                gone.cancel()
            if not done.done():
                ticket.cancel()
                done.cancel()  # or its exception, which nobody awaits any more, would be logged
            del ticket, done  # they hold the exception, which holds this frame, and so the request's memory


def _compiler(settings: Settings) -> Compiler | None:
    """LLVM, if it is wanted and there."""
    try:
        return Compiler(Binaries(cache_folder(settings.kernel_cache))) if settings.llvm else None
    except Unavailable as reason:
        log.info("NumPy computes all that the CPU does: %s", reason)
        return None


def _beginning(buffer: Buffer, size: int) -> Buffer:
    return buffer if buffer.nbytes == size else buffer[:size]


def _never() -> bool:
    return False
