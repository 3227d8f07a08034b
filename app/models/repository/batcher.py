"""Requests to a model that are run together: they wait for one another, are one dispatch, and part again.

A request stays its own in all that it is answered for: its data are looked at before it waits, its place in the queue,
its deadline, its client's hanging up and its memory are as if it were run by itself. What befalls a batch as a whole,
that there is no memory for it or that its kernel fails, befalls no request: each is then run by itself.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from app.contract.violations import ContractError
from app.devices.device import Cancelled
from app.engine.prepared import Outcome, Prepared
from app.engine.service import DeadlineExceeded, Draining, Service
from app.engine.workers import QueueFull, Ticket
from app.memory.accounts import LimitExceeded, MemoryExhausted, MemoryShare, RequestOver
from app.memory.buffers import Buffer
from app.models.repository.batching import Batching
from app.models.repository.model import LoadedModel, SizedModel, SizesOfAll, batch_sizes
from app.models.repository.repository import Repository
from app.models.repository.rows import RowSlice, put_together, row_bytes, take_apart

log = logging.getLogger("app")

_AGAIN_SECONDS = 1.0
"""After a batch could not be compiled for lack of memory or time, until that is tried again."""


class Executed(NamedTuple):
    """An execution of a model: so many rows of so many requests, and nanoseconds of its parts."""

    rows: int
    """0 if it was of a request that is none to be run with others, since it has too many, for example."""
    requests: int
    input_ns: int
    infer_ns: int
    output_ns: int


Observe: TypeAlias = Callable[[LoadedModel, Executed], None]


@dataclass(eq=False, slots=True)
class _Member:
    """A request that waits for others."""

    sized: SizedModel
    prepared: Prepared
    data: Mapping[str, Buffer]
    memory: MemoryShare
    lent: AbstractContextManager[None]
    place: Ticket[None]
    rows: int
    outcome: Outcome | None = None
    """None of what is to be run by itself."""
    batch: "_Batch | None" = None
    outputs: dict[str, Buffer] = field(default_factory=dict)
    is_alone: bool = False


class Batcher:
    """Executes requests to models, together where that is asked for. For the event loop's thread."""

    def __init__(self, service: Service, repository: Repository, observe: Observe) -> None:
        """`observe` is told of each execution of a model whose requests are run together."""
        self._service = service
        self._repository = repository
        self._observe = observe
        self._queues: WeakKeyDictionary[LoadedModel, OrderedDict[object, _Queue]] = WeakKeyDictionary()

    async def execute(
        self,
        prepared: Prepared,
        data: Mapping[str, Buffer],
        memory: MemoryShare,
        hang_up: "Callable[[], Awaitable[None]] | None" = None,
    ) -> Outcome:
        """The same as `Service.execute`, which also says what is raised."""
        service = self._service
        sized = self._repository.use(prepared.work)
        queue = self._queue(sized, prepared) if sized else None
        if sized is None or queue is None:
            outcome = await service.execute(prepared, data, memory, hang_up)
            self._count(sized, 0, outcome)
            return outcome
        service.ensure_open()
        prepared.bind(data)
        rows = sized.sizes[0][0]
        member = _Member(sized, prepared, data, memory, memory.lent(), service.pool.reserve(), rows)
        queue.add(member)
        try:
            await service.wait(member.place, hang_up)
            if member.outcome is None:
                outcome = await service.execute(prepared, data, memory, hang_up, place=member.place)
                self._count(sized, rows, outcome)
                return outcome
            return member.outcome
        finally:
            queue.leave(member)
            del member  # or a refusal, which holds this frame, would hold the request's memory

    def count_alone(self, prepared: Prepared, outcome: Outcome) -> None:
        """Count an execution that nobody waited for others with, of a model whose requests are run together."""
        self._count(self._repository.use(prepared.work), 0, outcome)

    def _count(self, sized: SizedModel | None, rows: int, outcome: Outcome) -> None:
        """Of one request, with as many rows as `Executed` has."""
        if sized and sized.model.batching:
            self._observe(sized.model, Executed(rows, 1, 0, int(outcome.compute_seconds * 1e9), 0))

    def _queue(self, sized: SizedModel, prepared: Prepared) -> "_Queue | None":
        """Where requests of these sizes wait; None if they do not."""
        model, batching = sized.model, sized.model.batching
        if batching is None or len({sizes[0] for sizes in sized.sizes}) > 1 or sized.sizes[0][0] >= batching.most:
            return None
        key = (batch_sizes(sized.sizes, 0), prepared.device.name, tuple(prepared.input_names))
        queues = self._queues.setdefault(model, OrderedDict())
        queue = queues.get(key)
        if queue is None:
            queue = queues[key] = _Queue(self._service, self._repository, self._observe, batching, sized.sizes)
            for idle in [each for each, one in queues.items() if one.is_idle and one is not queue]:
                if len(queues) <= self._service.settings.max_model_graphs:
                    break
                del queues[idle]
        queues.move_to_end(key)
        return queue


class _Queue:
    """Requests that differ in their rows only. As many executions go on at once as there are workers."""

    def __init__(
        self, service: Service, repository: Repository, observe: Observe, batching: Batching, sizes: SizesOfAll
    ) -> None:
        """`sizes` are those of any of the requests."""
        self._service = service
        self._repository = repository
        self._observe = observe
        self._batching = batching
        self._sizes = sizes
        self._waiting: deque[_Member] = deque()
        self._running = 0
        self._timer: asyncio.TimerHandle | None = None
        self._compiling: dict[int, asyncio.Task[None]] = {}
        self._not_before: dict[int, float] = {}
        """By rows, when batches of them may be tried to be compiled again."""

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running and not self._compiling

    def add(self, member: _Member) -> None:
        """Have a request wait until its place's future is done."""
        self._waiting.append(member)
        self._pump()

    def leave(self, member: _Member) -> None:
        """Nobody waits for this request any more, which may be done."""
        self._service.pool.release(member.place)
        if member in self._waiting:
            self._waiting.remove(member)
        batch, member.batch = member.batch, None  # or both would be there until the garbage collector comes
        if batch:
            batch.leave()
        if member.is_alone:
            self._running -= 1
        self._pump()

    def _pump(self) -> None:
        """Start what may be started."""
        while self._waiting and self._running < self._service.pool.threads:
            count = rows = 0
            for member in self._waiting:
                if rows + member.rows > self._batching.most:
                    break
                count, rows = count + 1, rows + member.rows
            if count == len(self._waiting) and rows < self._batching.most:
                left = self._waiting[0].place.submitted + self._batching.delay_us / 1e6 - perf_counter()
                if left > 0:
                    self._wake(left)
                    return
            self._start([self._waiting.popleft() for _ in range(count)], rows)

    def _wake(self, seconds: float) -> None:
        def woken() -> None:
            self._timer = None
            self._pump()

        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, woken)

    def _start(self, members: list[_Member], rows: int) -> None:
        made = self._compiled(members[0], self._batching.padded(rows)) if len(members) > 1 else None
        if made is None or not all(_fits(each, *made) for each in members):
            for each in members:
                each.is_alone = True
                self._running += 1
                each.place.future.set_result(None)  # who is gone does not wait any more
            return
        self._running += 1
        batch = _Batch(self._service, *made, members)
        model = members[0].sized.model

        def ended(done: "asyncio.Future[None]") -> None:
            self._running -= 1
            if not done.cancelled():
                done.exception()  # or nobody might have looked at it
            if batch.executed:
                self._observe(model, batch.executed)
            self._pump()

        asyncio.wrap_future(batch.submitted().future).add_done_callback(ended)

    def _compiled(self, member: _Member, rows: int) -> tuple[SizedModel, Prepared] | None:
        """What executes so many rows, if it is compiled. Else it will be: meanwhile requests are run one by one."""
        model, sizes = member.sized.model, batch_sizes(self._sizes, rows)
        sized = self._repository.lookup(model, sizes)
        device = member.prepared.device.name
        if sized and device in sized.of_batches:
            prepared = sized.of_batches[device]
            return (sized, prepared) if prepared else None
        if rows not in self._compiling and perf_counter() >= self._not_before.get(rows, 0.0):
            task = asyncio.create_task(self._compile(model, sizes, device, rows))
            self._compiling[rows] = task
            task.add_done_callback(lambda _: self._compiling.pop(rows, None))
        return None

    async def _compile(self, model: LoadedModel, sizes: SizesOfAll, device: str, rows: int) -> None:
        self._not_before[rows] = perf_counter() + _AGAIN_SECONDS
        try:
            sized = await self._repository.compiled(model, sizes)
            with self._service.memory.open() as memory:
                made = await self._service.run(lambda ticket: self._prepared(ticket, sized, device), memory)
            sized.of_batches[device] = made
            if made is None:
                log.warning(
                    "Requests to model %s are not run together: its rows may depend on one another.", model.called
                )
        except (MemoryError, MemoryExhausted, QueueFull, Draining, DeadlineExceeded, Cancelled, RequestOver) as error:
            log.info("A batch of model %s is not compiled yet: %s", model.called, error or type(error).__name__)
        except (ContractError, LimitExceeded) as error:
            log.warning("Batches of %d rows of model %s cannot be: %s", rows, model.called, error)
            self._not_before[rows] = float("inf")
        except Exception:
            log.exception("A batch of model %s cannot be compiled", model.called)
            self._not_before[rows] = float("inf")

    def _prepared(self, ticket: Ticket[None], sized: SizedModel, device: str) -> Prepared | None:
        """By a worker: what executes batches of these sizes, unless they would be mixed."""
        rows = sized.sizes[0][0]
        prepared = sized.prepared.get(device) or self._service.prepare_graph(sized.graph, device)
        for name, tensor in sized.outputs.items():
            if tensor.sizes[:1] != (rows,) or prepared.output_bytes[name] != rows * row_bytes(tensor):
                return None
        return prepared if sized.rows_are_apart(self._service, ticket.cancelled) else None


def _fits(member: _Member, sized: SizedModel, prepared: Prepared) -> bool:
    """Whether what these sizes are compiled as is but for the rows what the request's are."""
    own = member.prepared
    return own.input_names == prepared.input_names and all(
        own.output_bytes.get(name) == member.rows * row_bytes(tensor) for name, tensor in sized.outputs.items()
    )


class _Batch:
    """Requests that are run together, by a worker."""

    def __init__(self, service: Service, sized: SizedModel, prepared: Prepared, members: list[_Member]) -> None:
        self.executed: Executed | None = None
        self._service = service
        self._sized = sized
        self._prepared = prepared
        self._members = members
        self._ticket: Ticket[None] | None = None
        for each in members:
            each.batch = self

    def submitted(self) -> Ticket[None]:
        """Queue it, in the place of its first request."""
        self._ticket = self._service.pool.submit(self._run, self._members[0].place)
        return self._ticket

    def leave(self) -> None:
        """One of the requests is over. If all are, nobody needs what is computed."""
        if self._ticket and all(each.place.cancelled() for each in self._members):
            self._ticket.cancel()

    def _run(self, ticket: Ticket[None]) -> None:
        for each in self._members:
            each.place.queue_seconds = perf_counter() - each.place.submitted
            self._service.pool.release(each.place)
        try:
            self._compute(ticket)
        except (Cancelled, MemoryExhausted, LimitExceeded) as reason:
            log.debug("Requests that were to be run together are run one by one: %r", reason)
        except Exception:
            log.exception("Requests to model %s that were run together failed", self._sized.model.called)
        finally:
            members, self._members = self._members, []
            for each in members:
                _settle(each)

    def _compute(self, ticket: Ticket[None]) -> None:
        with ExitStack() as lent, self._service.memory.open() as memory:
            members = [each for each in self._members if _entered(each, lent)]
            if not members:
                return
            try:
                self._execute(ticket, members, memory)
            except BaseException:
                for each in members:
                    each.memory.give(sum(each.prepared.output_bytes.values()))
                    each.outputs = {}
                raise

    def _execute(self, ticket: Ticket[None], members: list[_Member], memory: MemoryShare) -> None:
        sized, prepared = self._sized, self._prepared
        began = perf_counter()
        inputs: dict[str, Buffer] = {}
        for name in prepared.input_names:
            row = row_bytes(sized.imported.inputs[name])
            inputs[name] = memory.buffer(sized.sizes[0][0] * row)
            put_together([RowSlice(each.data[name], each.rows * row) for each in members], inputs[name], row)
        read = perf_counter()
        outcome = self._service.execute_in(ticket, prepared, inputs, memory)
        executed = perf_counter()
        for name, tensor in sized.outputs.items():
            row = row_bytes(tensor)
            take_apart(outcome.outputs[name], [RowSlice(each.outputs[name], each.rows * row) for each in members])
        for each in members:
            each.outcome = replace(outcome, outputs=each.outputs, queue_seconds=each.place.queue_seconds)
        self.executed = Executed(
            sum(each.rows for each in members),
            len(members),
            int((read - began) * 1e9),
            int(outcome.compute_seconds * 1e9),
            int((perf_counter() - executed) * 1e9),
        )


def _entered(member: _Member, lent: ExitStack) -> bool:
    """Whether the request is still wanted, and has its memory for what it will be answered."""
    if member.place.cancelled():
        return False
    held = member.memory.held
    try:
        lent.enter_context(member.lent)
        member.outputs = {name: member.memory.buffer(size) for name, size in member.prepared.output_bytes.items()}
    except RequestOver:
        return False
    except (MemoryExhausted, LimitExceeded):  # which it is told when it is run by itself
        member.memory.give(member.memory.held - held)
        return False
    return True


def _settle(member: _Member) -> None:
    """The request goes on, if anybody waits for it: with its outcome, or by itself."""
    member.batch = None
    if member.place.future.set_running_or_notify_cancel():
        member.place.future.set_result(None)
