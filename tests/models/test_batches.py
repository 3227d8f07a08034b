"""Requests that are run together: each is answered with what is its own, and refused for what is its own."""

import asyncio
import gc
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import ModelProto

from app.contract.violations import ContractError
from app.devices.cpu.llvm.compiler import Compiler
from app.engine.prepared import Outcome
from app.engine.service import Abandoned, DeadlineExceeded, Draining, Service
from app.engine.workers import QueueFull
from app.memory.accounts import LimitExceeded, MemoryExhausted, MemoryShare
from app.models.onnx.reading import signature
from app.models.repository import batcher
from app.models.repository.batcher import Batcher, Executed, _Member
from app.models.repository.batching import Batching, batching_of
from app.models.repository.config import BadConfig, parse
from app.models.repository.model import SizedModel
from app.models.repository.repository import Repository
from app.settings import Settings
from tests.conftest import RunningServer, running_server
from tests.inference import wire
from tests.models.documents import Array, affine, model, put

W = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
ROWS = model(
    "m (float[batch,8] x, int64[batch,2] k) => (float[batch,4] y, float[batch,8] u, int64[batch,2] n)"
    "{ h = MatMul(x, w) y = Tanh(h) a = Abs(x) u = Sqrt(a) n = Add(k, k) }",
    w=W,
)
COMPILER = Compiler()
SECONDS = 30.0
"""How long to wait for what must happen, on a machine however busy."""


@pytest.fixture(autouse=True)
def _one_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """All services have the same loops, compiled once."""
    monkeypatch.setattr("app.engine.service.Compiler", lambda _: COMPILER)


async def turns() -> AsyncIterator[None]:
    """One after another, a moment apart, for as long as it takes."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        yield
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen")


async def until(happened: Callable[[], bool]) -> None:
    async for _ in turns():
        if happened():
            return


class Together:
    """A service, its models, and what was executed of those that are run together."""

    def __init__(self, folder: Path, made: ModelProto = ROWS, **settings: Any) -> None:
        put(folder / "rows.onnx", made)
        given = {"threads": 1, "max_batch": 8, **settings}
        self.service = Service(Settings(gpus="none", models=str(folder), **given))
        self.service.open()
        self.repository = Repository(self.service)
        self.repository.open()
        self.executed: list[Executed] = []
        self.outcomes: list[Outcome] = []
        self.batcher = Batcher(self.service, self.repository, lambda _, each: self.executed.append(each))
        self.held = self.service.memory.used

    def close(self) -> None:
        self.repository.close()
        assert self.service.memory.used == 0
        self.service.close()

    async def ask(
        self,
        number: int,
        rows: int = 1,
        hang_up: Callable[[], Awaitable[None]] | None = None,
        memory: MemoryShare | None = None,
    ) -> None:
        """Data that no other request has, and what must come of it."""
        random = np.random.default_rng(number)
        data: dict[str, Array] = {
            "x": random.normal(number, 1, (rows, 8)).astype(np.float32),
            "k": random.integers(0, 1 << 40, (rows, 2)),
        }
        made = await self.made(data, hang_up, memory)
        np.testing.assert_array_equal(made["u"].view(np.float32), np.sqrt(np.abs(data["x"])).ravel())
        np.testing.assert_array_equal(made["n"].view(np.int64), 2 * data["k"].ravel())
        np.testing.assert_allclose(made["y"].view(np.float32), np.tanh(data["x"] @ W).ravel(), rtol=1e-4, atol=1e-5)

    async def made(
        self,
        data: Mapping[str, Array],
        hang_up: Callable[[], Awaitable[None]] | None = None,
        memory: MemoryShare | None = None,
    ) -> dict[str, Array]:
        loaded = self.repository.known("rows", None)
        sized = await self.repository.compiled(loaded, tuple(data[name].shape for name in loaded.ports.inputs))
        prepared = sized.prepared.setdefault("auto", self.service.prepare_graph(sized.graph, "auto"))
        given = {name: memoryview(each.tobytes()) for name, each in data.items()}
        with memory or self.service.memory.open() as share:
            outcome = await self.batcher.execute(prepared, given, share, hang_up)
            self.outcomes.append(outcome)
            return {name: np.frombuffer(bytes(each), np.uint8) for name, each in outcome.outputs.items()}

    async def warm(self) -> None:
        """Have batches of up to 8 rows compiled: until then requests are run by themselves."""
        for count in (3, 5, 9):
            async for _ in turns():
                self.executed.clear()
                await asyncio.gather(*(self.ask(each) for each in range(count)))
                if any(each.requests == count - 1 for each in self.executed):
                    break
        self.executed.clear()

    async def settled(self) -> None:
        """All places are free, and what is held is what was held before."""
        pool, memory = self.service.pool, self.service.memory
        await until(lambda: pool.waiting == pool.running == 0 and memory.used <= self.kept)

    kept = 0


@pytest.fixture
def together(tmp_path: Path) -> Iterator[Together]:
    made = Together(tmp_path)
    yield made
    made.close()


class Gate:
    """Has the next executions of several rows wait until it opens; `fail` has them fail instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail: Exception | None = None) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        real = Service.execute_in

        def execute_in(service: Service, ticket: Any, *given: Any) -> Outcome:
            self.entered.set()
            if fail:
                raise fail
            assert self.open.wait(SECONDS)
            return real(service, ticket, *given)

        monkeypatch.setattr(Service, "execute_in", execute_in)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, SECONDS)


def test_each_request_has_its_own(together: Together) -> None:
    async def main() -> None:
        await together.warm()
        for turn in range(5):
            await asyncio.gather(*(together.ask(100 * turn + each, 1 + each % 3) for each in range(40)))

    asyncio.run(main())
    assert min(each.queue_seconds for each in together.outcomes) > 0
    assert max(each.rows for each in together.executed) == 8
    assert sum(each.requests for each in together.executed) == 200
    assert len(together.executed) < 100


def test_who_goes_in_the_middle_takes_nobody_along(together: Together, monkeypatch: pytest.MonkeyPatch) -> None:
    """One hangs up while its batch is computed, one is cancelled, and so are two that wait for the next batch."""

    async def main() -> None:
        await together.warm()
        together.kept = together.service.memory.used
        gate = Gate(monkeypatch)
        hung_up = asyncio.Event()

        async def hang_up() -> None:
            await hung_up.wait()

        # The first one is run by itself, by `execute`; the next ones are a batch.
        tasks = [asyncio.create_task(together.ask(each, 1, hang_up if each in (3, 12) else None)) for each in range(16)]
        await gate.reached()
        hung_up.set()
        tasks[5].cancel()
        tasks[14].cancel()
        await asyncio.wait([tasks[each] for each in (3, 5, 12, 14)], timeout=SECONDS)
        gate.open.set()
        made = await asyncio.gather(*tasks, return_exceptions=True)
        gone = {place: type(each) for place, each in enumerate(made) if each is not None}
        assert gone == {3: Abandoned, 12: Abandoned, 5: asyncio.CancelledError, 14: asyncio.CancelledError}, made
        await together.settled()

    asyncio.run(main())
    assert [each.requests for each in together.executed if each.requests > 1] == [8, 5]


@pytest.mark.parametrize("is_queued", [False, True])
def test_if_all_go_nobody_computes(together: Together, monkeypatch: pytest.MonkeyPatch, is_queued: bool) -> None:
    """And nothing of theirs is kept, which would be found by the garbage collector only."""

    async def main() -> None:
        await together.warm()
        together.kept = together.service.memory.used
        gate, pool = Gate(monkeypatch), together.service.pool
        if is_queued:
            pool.submit(lambda _: gate.open.wait(SECONDS))
        tasks = [asyncio.create_task(together.ask(each)) for each in range(6)]
        await (until(lambda: (pool.running, pool.waiting) == (1, 6)) if is_queued else gate.reached())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gate.open.set()
        del tasks, task
        await together.settled()
        assert not [each for each in together.executed if each.requests > 1]
        await together.ask(7)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main())
        assert not [each for each in gc.get_objects() if isinstance(each, _Member)]
    finally:
        gc.enable()


def test_models_that_are_not_run_together_are_not_counted(tmp_path: Path) -> None:
    together = Together(tmp_path, max_batch=Settings().max_batch)
    asyncio.run(together.ask(1))
    assert (len(together.outcomes), together.executed) == (1, [])
    together.close()


def test_who_goes_while_it_waits_takes_no_turn(together: Together) -> None:
    """Nor does who is refused before a worker has seen it keep its place."""

    async def main() -> None:
        await together.ask(9)  # or it would be compiling that they wait for
        is_open, pool = threading.Event(), together.service.pool
        pool.submit(lambda _: is_open.wait(SECONDS))
        first, second = (asyncio.create_task(together.ask(each)) for each in range(2))
        await until(lambda: (pool.running, pool.waiting) == (1, 2))
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        is_open.set()
        await asyncio.wait_for(asyncio.gather(first, together.ask(2)), SECONDS)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Service, "execute", refused)
            with pytest.raises(ZeroDivisionError):
                await together.ask(3)
        assert pool.waiting == 0
        await asyncio.wait_for(together.ask(4), SECONDS)

    async def refused(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    asyncio.run(main())


def test_deadlines_are_counted_from_when_a_request_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by its own: the setting is another one when the late ones come."""
    together = Together(tmp_path)

    async def main() -> None:
        await together.warm()
        together.kept = together.service.memory.used
        gate, settings = Gate(monkeypatch), together.service.settings
        settings.deadline_seconds = 1.5
        early = [asyncio.create_task(together.ask(each)) for each in range(4)]
        await gate.reached()
        settings.deadline_seconds = 1000
        late = [asyncio.create_task(together.ask(each)) for each in range(4, 7)]
        made = await asyncio.gather(*early, return_exceptions=True)
        assert [type(each) for each in made[1:]] == [DeadlineExceeded] * 3
        gate.open.set()
        assert await asyncio.gather(*late) == [None] * 3
        await together.settled()

    asyncio.run(main())
    together.close()


def test_places_in_the_queue_are_one_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = Together(tmp_path, queue_depth=10)

    async def main() -> None:
        await together.warm()
        together.kept = together.service.memory.used
        gate = Gate(monkeypatch)
        running = [asyncio.create_task(together.ask(each)) for each in range(5)]
        await gate.reached()
        waiting = [asyncio.create_task(together.ask(each)) for each in range(5, 20)]
        await until(lambda: together.service.pool.waiting == 10 and sum(task.done() for task in waiting) >= 5)
        full = [type(task.exception()) for task in waiting if task.done()]
        assert full == [QueueFull] * 5  # of 15, for which there are 10 places while a batch runs
        together.service.drain()
        gate.open.set()  # those that are admitted are done all the same
        assert await asyncio.gather(*running, *(each for each in waiting if not each.done())) == [None] * 15
        await together.settled()
        together.service.close()
        with pytest.raises(Draining):
            await together.ask(99)

    asyncio.run(main())
    together.close()


def test_a_refusal_is_of_one_alone(together: Together, monkeypatch: pytest.MonkeyPatch) -> None:
    class Poor(MemoryShare):
        """Cannot hold any more."""

        def buffer(self, size: int) -> memoryview:
            raise MemoryExhausted(size, 0)

    async def main() -> None:
        await together.warm()
        together.kept = together.service.memory.used
        poor = Poor(together.service.memory)
        asked = [together.ask(each, 1, None, poor if each == 3 else None) for each in range(7)]
        made = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in made if each is not None] == [MemoryExhausted]
        assert isinstance(made[3], MemoryExhausted)
        await together.settled()

    asyncio.run(main())
    assert [each.requests for each in together.executed if each.requests > 1] == [5]


def test_who_is_short_of_memory_for_a_moment_is_served_and_charged_once(together: Together) -> None:
    class Short(MemoryShare):
        """Cannot hold one of its buffers, the first of which is number 0."""

        def __init__(self, missing: int | None) -> None:
            super().__init__(together.service.memory)
            self.missing = missing
            self.held_before: list[int] = []

        def buffer(self, size: int) -> memoryview:
            self.held_before.append(self.held)
            if len(self.held_before) - 1 == self.missing:
                raise MemoryExhausted(size, 0)
            return super().buffer(size)

    async def main() -> None:
        await together.warm()
        together.kept = together.service.memory.used
        alone, short = Short(None), Short(1)
        await together.ask(9, 1, None, alone)
        await asyncio.gather(*(together.ask(each, 1, None, short if each == 3 else None) for each in range(7)))
        assert short.held_before[1] > short.held_before[0], "the first buffer was held"
        assert short.held_before[2:] == alone.held_before
        await together.settled()

    asyncio.run(main())
    assert [each.requests for each in together.executed if each.requests > 1] == [5]


def test_data_of_the_wrong_length_are_refused_before_they_wait(together: Together) -> None:
    """Or all that they are run with would have to be run again."""

    async def short() -> None:
        sized = await together.repository.compiled(together.repository.known("rows", None), ((1, 8), (1, 2)))
        data = {"x": memoryview(bytes(28)), "k": memoryview(bytes(16))}
        with together.service.memory.open() as memory:
            await together.batcher.execute(sized.prepared["auto"], data, memory)

    async def main() -> None:
        await together.warm()
        together.kept = together.service.memory.used
        made = await asyncio.gather(*(together.ask(each) for each in range(4)), short(), return_exceptions=True)
        assert [type(each) for each in made] == [type(None)] * 4 + [ContractError]
        await together.settled()

    asyncio.run(main())
    assert [each.requests for each in together.executed if each.requests > 1] == [3]


def test_a_delay_is_waited_for_unless_there_are_enough(tmp_path: Path) -> None:
    """Even by the first one, which would be run by itself otherwise."""
    together = Together(tmp_path, max_delay_us=50_000)

    async def asked(count: int) -> list[int]:
        together.executed.clear()
        await asyncio.gather(*(together.ask(each) for each in range(count)))
        for _ in range(1000):  # requests are answered before they are counted
            if sum(each.requests for each in together.executed) >= count:
                break
            await asyncio.sleep(0.001)
        return [each.requests for each in together.executed]

    async def main() -> None:
        for count in (3, 8):  # until they are compiled they are run one by one
            async for _ in turns():
                if await asked(count) == [count]:
                    break
        (queue,) = together.batcher._queues[together.repository.known("rows", None)].values()
        assert await asked(1) == [1]
        queue._batching = queue._batching._replace(delay_us=1_000_000_000)
        together.outcomes.clear()
        early = [asyncio.create_task(together.ask(each)) for each in range(7)]
        await asyncio.sleep(0.1)
        assert await asked(1) == [8]
        await asyncio.gather(*early)
        waited = [each.queue_seconds for each in together.outcomes]
        assert max(waited) > min(waited) + 0.05, "each one's time is counted from when it came"
        waiting = asyncio.create_task(asked(3))
        await asyncio.sleep(0.1)
        assert together.executed == []
        waiting.cancel()
        queue._batching = queue._batching._replace(delay_us=0)
        assert queue._timer
        queue._timer.cancel()

    asyncio.run(main())
    together.close()


def test_nobody_waits_for_more_where_the_next_one_does_not_fit(tmp_path: Path) -> None:
    together = Together(tmp_path, max_delay_us=10_000_000)

    async def main() -> None:
        await together.repository.compiled(together.repository.known("rows", None), ((5, 8), (5, 2)))
        first, second = (asyncio.create_task(together.ask(each, 5)) for each in range(2))
        await asyncio.wait_for(first, 8)
        assert not second.done()
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        (queue,) = together.batcher._queues[together.repository.known("rows", None)].values()
        assert queue._timer
        queue._timer.cancel()

    asyncio.run(main())
    together.close()


@pytest.mark.parametrize(
    ("failure", "level"),
    [(MemoryExhausted(1, 0), None), (LimitExceeded("most", "what", 2, 1), "WARNING"), (ZeroDivisionError(), "ERROR")],
)
def test_what_could_not_be_compiled_is_tried_again_after_a_while_if_ever(
    together: Together,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
    level: str | None,
) -> None:
    tried = 0

    def fail(*_: object) -> None:
        nonlocal tried
        tried += 1
        raise failure

    async def main() -> None:
        for turn in range(3):
            for _ in range(3):
                await asyncio.gather(*(together.ask(each) for each in range(3)))
                (queue,) = together.batcher._queues[together.repository.known("rows", None)].values()
                await until(lambda queue=queue: queue.is_idle)  # type: ignore[misc]
            assert tried == (1 if level else 1 + turn)
            for rows in queue._not_before:
                queue._not_before[rows] -= 1500  # seconds, as if they had passed

    monkeypatch.setattr(batcher, "_AGAIN_SECONDS", 1000)
    monkeypatch.setattr(SizedModel, "rows_are_apart", fail)
    asyncio.run(main())
    assert [each.levelname for each in caplog.records if each.levelno >= logging.WARNING] == ([level] if level else [])


def test_a_computed_condition_mixes_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = model(
        "m (float[batch,8] x) => (float[batch,8] y) { s = ReduceSum<keepdims=0>(x) c = Equal(s, k) y = If<"
        "then_branch = a () => (float[batch,8] u) { u = Neg(x) },"
        "else_branch = b () => (float[batch,8] v) { v = Abs(x) }>(c) }",
        k=np.array(-24, np.float32),
    )
    together = Together(tmp_path, made)

    async def main() -> None:
        async for _ in turns():
            data = [np.full((1, 8), number, np.float32) for number in (-1, -2, -3)]
            answers = await asyncio.gather(*(together.made({"x": each}) for each in data))
            assert [each["y"].view(np.float32)[0] for each in answers] == [1, 2, 3]
            if "may depend on one another" in caplog.text:
                break
        assert all(each.requests == 1 for each in together.executed)

    asyncio.run(main())
    assert "rows may depend on one another" in caplog.text
    together.close()


def test_those_that_are_a_batch_by_themselves_wait_for_none(together: Together) -> None:
    """They are counted as what is none to be run with others."""

    async def main() -> None:
        for rows in (7, 8):
            await together.ask(rows, rows)

    asyncio.run(main())
    assert [(each.rows, each.requests) for each in together.executed] == [(7, 1), (0, 1)]


@pytest.mark.parametrize(
    ("failure", "logged"),
    [
        (MemoryExhausted(1, 0), set()),
        (RuntimeError("a kernel that fails"), {"Requests to model rows:1 that were run together failed"}),
    ],
)
def test_what_befalls_a_batch_befalls_no_request(
    together: Together,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
    logged: set[str],
) -> None:
    async def main() -> None:
        await together.warm()
        together.kept = together.service.memory.used
        with monkeypatch.context() as patched:
            gate = Gate(patched, failure)
            await asyncio.gather(*(together.ask(each) for each in range(7)))
            assert gate.entered.is_set()
        assert [each.requests for each in together.executed] == [1] * 7
        await together.settled()

    asyncio.run(main())
    assert {each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING} == logged


MIXED = {
    "a mean of all rows": "{ h = ReduceMean<axes=[0],keepdims=1>(x) y = Sub(x, h) }",
    "a total along the batch": "{ y = CumSum(x, zero) }",
    "a total from behind": "{ y = CumSum<reverse=1>(x, zero) }",
    "rows that change places": "{ h = Transpose(x) s = Shape(x) y = Reshape(h, s) }",
    "a scale of the whole tensor": "{ q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }",
    "an order of rows": "{ s = Shape(x) n = Gather(s, zero) y, i = TopK<axis=0>(x, n1) }",
}


@pytest.mark.parametrize("text", MIXED.values(), ids=MIXED)
def test_models_whose_rows_depend_on_one_another_run_alone(tmp_path: Path, text: str) -> None:
    text = text.replace("n = Gather(s, zero) ", "n1 = Slice(s, at0, at1) ")
    ends = {"zero": np.array(0), "at0": np.array([0]), "at1": np.array([1])}
    together = Together(tmp_path, model(f"m (float[batch,4] x) => (float[batch,4] y) {text}", **ends), threads=2)
    x = np.random.default_rng(3).normal(size=(9, 1, 4)).astype(np.float32)

    async def main() -> None:
        alone = [await together.made({"x": each}) for each in x]
        for _ in range(20):
            made = await asyncio.gather(*(together.made({"x": each}) for each in x))
            for one, other in zip(made, alone, strict=True):
                np.testing.assert_array_equal(one["y"], other["y"])
            await asyncio.sleep(0.02)

    asyncio.run(main())
    assert {each.requests for each in together.executed} == {1}
    together.close()


def test_queues_of_sizes_that_nobody_asks_for_any_more_are_gone(tmp_path: Path) -> None:
    made = model("m (float[batch,width] x) => (float[batch,width] y) { y = Neg(x) }")
    together = Together(tmp_path, made, max_model_graphs=3)
    loaded = together.repository.known("rows", None)

    async def main() -> None:
        for width in (1, 2, 3, 4, 5, 2):
            x = np.ones((1, width), np.float32)
            await asyncio.gather(*(together.made({"x": x}) for _ in range(2)))
            await until(lambda: all(each.is_idle for each in together.batcher._queues[loaded].values()))

    asyncio.run(main())
    assert [queue._sizes for queue in together.batcher._queues[loaded].values()] == [((1, n),) for n in (4, 5, 2)]
    together.close()


def test_queues_are_of_sizes_devices_and_inputs_and_those_in_use_stay(tmp_path: Path) -> None:
    together = Together(tmp_path, max_model_graphs=2)
    model = together.repository.known("rows", None)

    def queue(width: int, device: str = "numpy", names: tuple[str, ...] = ("x",)) -> Any:
        prepared: Any = SimpleNamespace(device=SimpleNamespace(name=device), input_names=names)
        shaped: Any = SimpleNamespace(model=model, sizes=((1, width),))
        made = together.batcher._queue(shaped, prepared)
        assert made
        return made

    first, second = queue(1), queue(1, "cuda:0")
    assert first is not second
    assert queue(1) is first  # and the second one is now that which was used the longest ago
    third = queue(1, "numpy", ("x", "k"))
    assert (queue(1), queue(1, "numpy", ("x", "k"))) == (first, third)
    assert queue(1, "cuda:0") is not second
    assert third.is_idle
    kept = [queue(2)]
    kept[0]._waiting.append(None)
    kept.append(queue(3))
    kept[1]._running = 1
    kept.append(queue(4))
    kept[2]._compiling[2] = None
    assert [*together.batcher._queues[model].values()] == kept
    kept.append(queue(5))
    assert [*together.batcher._queues[model].values()] == kept
    assert [each.is_idle for each in kept] == [False, False, False, True]
    del together.batcher._queues[model]
    together.close()


def test_where_the_setting_comes_from() -> None:
    on = Settings(max_batch=6, max_delay_us=50)
    rows = signature(ROWS)
    assert batching_of("m", rows, {}, Settings()) is None
    made = batching_of("m", rows, {}, on)
    assert made == Batching(6, 50)
    assert made.sizes == [2, 4, 6]
    assert [made.padded(each) for each in (2, 3, 4, 5, 6)] == [2, 4, 4, 6, 6]
    dynamic = parse("max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 7 }")
    assert batching_of("m", rows, dynamic, Settings()) == Batching(16, 7)
    assert batching_of("m", rows, parse("max_batch_size: 4 dynamic_batching { }"), on) == Batching(4, 0)
    assert batching_of("m", rows, parse("max_batch_size: 4"), on) == Batching(4, 50)
    assert batching_of("m", rows, parse("max_batch_size: 0"), on) is None
    assert batching_of("m", rows, parse("max_batch_size: 1 dynamic_batching { }"), on) is None
    assert batching_of("m", rows, parse("max_batch_size: 2 dynamic_batching { }"), on) == Batching(2, 0)
    assert [Batching(most, 0).sizes for most in (2, 3, 4)] == [[2], [2, 3], [2, 4]]
    assert batching_of("m", rows, parse("max_batch_size: 4"), Settings()) is None
    for told in (
        affine(),  # has an output that is of the batch as a whole
        model("m (float[n,3] x) => (float[] y) { y = Relu(x) }"),
        model("m (float[n,3] x, float z) => (float[n,3] y) { y = Add(x, z) }"),
        model("m (float[n,3] x, float[k,3] z) => (float[n,3] y) { y = Add(x, z) }"),
        model("m (float[?,3] x) => (float[?,3] y) { y = Relu(x) }"),
        model("m (float[n,n] x) => (float[n,n] y) { y = Relu(x) }"),
        model("m (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"),
    ):
        assert batching_of("m", signature(told), {}, on) is None
    # A config that has a max_batch_size says that the first dimensions are the batch, whatever they are called.
    for first in ("?", "k"):
        told = model(f"m (float[n,3] x, float[{first},3] z) => (float[n,3] y) {{ y = Add(x, z) }}")
        assert batching_of("m", signature(told), dynamic, on) == Batching(16, 7)
    with pytest.raises(BadConfig, match="has the batch's dimension n in another place"):
        batching_of("m", signature(model("m (float[n,n] x) => (float[n,n] y) { y = Relu(x) }")), dynamic, on)
    with pytest.raises(BadConfig, match="first dimension of sizes is not free"):
        batching_of("m", signature(affine()), dynamic, on)
    for text in (
        "dynamic_batching { }",
        "max_batch_size: 4 dynamic_batching: 1",
        "max_batch_size: 4 dynamic_batching [ ]",
        "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: -1 }",
        "max_batch_size: 1e9 dynamic_batching { }",
    ):
        with pytest.raises(BadConfig):
            batching_of("m", rows, parse(text), on)


CONFIG = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 20000 }"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    put(folder / "rows" / "1" / "model.onnx", ROWS)
    (folder / "rows" / "config.pbtxt").write_text(CONFIG)
    put(folder / "plain.onnx", ROWS)
    flags = ("--models", str(folder), "--warm", "rows=x:1x8,k:1x2", "--threads", "2")
    with running_server(tmp_path_factory.mktemp("log") / "log", *flags) as running:
        yield running


def request(number: int, name: str = "rows") -> tuple[dict[str, Array], dict[str, Any], list[bytes]]:
    random = np.random.default_rng(number)
    data: dict[str, Array] = {
        "x": random.normal(number, 1, (1, 8)).astype(np.float32),
        "k": random.integers(0, 1 << 40, (1, 2)),
    }
    document = {
        "id": str(number),
        "inputs": [wire.behind(each, data[each]) for each in data],
        "outputs": [{"name": each, "parameters": {"binary_data": True}} for each in ("u", "n")],
    }
    return data, document, [each.tobytes() for each in data.values()]


def test_over_http(served: RunningServer) -> None:
    """Many clients, some of which hang up as soon as they have asked; then what is told of it."""

    def ask(number: int) -> None:
        data, document, sent = request(number)
        if number % 7 == 3:
            content, headers = wire.body(document, *sent)
            with socket.create_connection(("127.0.0.1", served.port)) as raw:
                lines = [f"{name}: {value}" for name, value in headers.items()]
                head = ["POST /v2/models/rows/infer HTTP/1.1", "host: x", f"content-length: {len(content)}", *lines]
                raw.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + content)
            return
        answer, made = wire.split(wire.post(client, "/v2/models/rows/infer", document, *sent))
        assert answer["id"] == str(number)
        np.testing.assert_array_equal(np.frombuffer(made[:32], np.float32), np.sqrt(np.abs(data["x"])).ravel())
        np.testing.assert_array_equal(np.frombuffer(made[32:], np.int64), 2 * data["k"].ravel())

    with httpx.Client(base_url=served.url, timeout=60) as client, ThreadPoolExecutor(12) as pool:
        (told,) = client.get("/v2/models/rows/stats").json()["model_stats"]
        assert (told["inference_count"], told["batch_stats"]) == (0, [])  # of what the service asked itself
        for turn in range(4):
            list(pool.map(ask, range(100 * turn, 100 * turn + 60)))
        (told,) = client.get("/v2/models/rows/stats").json()["model_stats"]
        sizes = {each["batch_size"]: each["compute_infer"]["count"] for each in told["batch_stats"]}
        assert max(sizes) == 4
        for part in ("compute_input", "compute_infer", "compute_output"):
            assert all(0 <= each[part]["ns"] < 60e9 for each in told["batch_stats"])
        assert told["execution_count"] == sum(sizes.values()) < told["inference_count"]
        assert told["inference_count"] == sum(size * count for size, count in sizes.items())
        assert 205 <= told["inference_count"] <= 240
        assert f'dmlserve_inference_batches_total{{operator="rows:1",size="4"}} {sizes[4]}.0' in (
            client.get("/metrics").text
        )
        config = client.get("/v2/models/rows/config").json()
        assert (config["max_batch_size"], config["input"][0]["dims"]) == (4, [8])
        assert config["dynamic_batching"] == {"max_queue_delay_microseconds": 20000}
        plain = client.get("/v2/models/plain/config").json()
        assert (plain["max_batch_size"], plain["input"][0]["dims"]) == (0, [-1, 8])
        # Numbers, what is beyond the most rows, rows that differ among inputs, and what is wrong.
        x = np.arange(48, dtype=np.float32).reshape(6, 8)
        inputs = [wire.listed("x", x), wire.listed("k", np.ones((6, 2), np.int64))]
        document = {"inputs": inputs, "outputs": [{"name": "u"}]}
        answer, _ = wire.split(client.post("/v2/models/rows/infer", json=document))
        np.testing.assert_allclose(answer["outputs"][0]["data"], np.sqrt(x).ravel(), rtol=1e-6)
        document["inputs"] = [wire.listed("x", x[:2]), wire.listed("k", np.ones((1, 2), np.int64))]
        answer, _ = wire.split(client.post("/v2/models/rows/infer", json=document))
        np.testing.assert_allclose(answer["outputs"][0]["data"], np.sqrt(x[:2]).ravel(), rtol=1e-6)
        nan = np.full((1, 8), np.nan, np.float32)  # which is run, and has no answer in JSON
        document["inputs"] = [wire.behind("x", nan), wire.listed("k", np.ones((1, 2), np.int64))]
        assert wire.post(client, "/v2/models/rows/infer", document, nan.tobytes()).status_code == 400
        before = told
        (told,) = client.get("/v2/models/rows/stats").json()["model_stats"]
        for each in ("execution_count", "inference_count"):
            assert told[each] == before[each] + 3
        _, document, (first, _) = request(1)
        assert wire.post(client, "/v2/models/rows/infer", document, first).status_code == 400
        idle = [line for line in client.get("/metrics").text.splitlines() if line.startswith("dmlserve_queue_depth ")]
        assert idle == ["dmlserve_queue_depth 0.0"]
