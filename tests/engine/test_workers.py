"""Workers with a bounded queue in front of them."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

import pytest

from app.devices.device import Cancelled
from app.engine.workers import QueueFull, Ticket, WorkerPool

SECONDS = 30
"""Longer than anything here takes."""


@contextmanager
def pool_of(threads: int, queue_depth: int) -> Iterator[WorkerPool]:
    pool = WorkerPool(threads, queue_depth)
    try:
        yield pool
    finally:
        pool.close()


class Gate:
    """Jobs that run until they are let go."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def job(self, result: Any = None) -> Callable[[Ticket[Any]], Any]:
        def run(ticket: Ticket[Any]) -> Any:
            self.entered.release()
            assert self.open.wait(SECONDS)
            return result

        return run

    def await_entry(self, jobs: int = 1) -> None:
        for _ in range(jobs):
            assert self.entered.acquire(timeout=SECONDS)


def noting(notes: list[Any], note: Any) -> Callable[[Ticket[Any]], Any]:
    """A job that appends `note` to `notes` and returns it."""

    def run(ticket: Ticket[Any]) -> Any:
        notes.append(note)
        return note

    return run


def until(condition: Callable[[], bool]) -> None:
    """A ticket's result can be seen a moment before its place is free."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_result_and_times() -> None:
    with pool_of(1, 0) as pool:
        ticket = pool.submit(lambda ticket: "result")
        assert ticket.future.result(SECONDS) == "result"
        assert 0 <= ticket.queue_seconds < SECONDS


def test_a_job_is_given_its_ticket() -> None:
    with pool_of(1, 0) as pool:
        ticket: Ticket[Any] = pool.submit(lambda ticket: ticket)
        assert ticket.future.result(SECONDS) is ticket


def test_waiting_counts_as_queue_time() -> None:
    gate = Gate()
    with pool_of(1, 1) as pool:
        pool.submit(gate.job())
        second = pool.submit(lambda ticket: None)
        time.sleep(0.03)
        gate.open.set()
        second.future.result(SECONDS)
        assert second.queue_seconds >= 0.03


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError(), Cancelled(), KeyboardInterrupt()])
def test_exceptions_reach_who_waits_and_free_the_place(error: BaseException) -> None:
    def fail(ticket: Ticket[None]) -> None:
        raise error

    with pool_of(1, 0) as pool:
        ticket = pool.submit(fail)
        with pytest.raises(type(error)):
            ticket.future.result(SECONDS)
        until(lambda: pool.waiting == pool.running == 0)
        assert pool.submit(lambda ticket: 1).future.result(SECONDS) == 1


def test_stop_iteration_reaches_who_awaits_it() -> None:
    """As an error that a coroutine can raise."""

    def fail(ticket: Ticket[None]) -> None:
        next(iter(()))

    async def awaited() -> None:
        with pool_of(1, 0) as pool:
            await asyncio.wait_for(asyncio.wrap_future(pool.submit(fail).future), SECONDS)

    with pytest.raises(RuntimeError, match="StopIteration") as raised:
        asyncio.run(awaited())
    assert isinstance(raised.value.__cause__, StopIteration)


@pytest.mark.parametrize(("threads", "depth"), [(1, 0), (1, 3), (2, 2), (4, 0)])
def test_queue_is_bounded(threads: int, depth: int) -> None:
    gate = Gate()
    with pool_of(threads, depth) as pool:
        tickets = [pool.submit(gate.job(number)) for number in range(threads + depth)]
        gate.await_entry(threads)
        until(lambda: (pool.running, pool.waiting) == (threads, depth))
        for _ in range(3):
            start = time.perf_counter()
            with pytest.raises(QueueFull, match=f"{depth} dispatches wait already"):
                pool.submit(gate.job())
            assert time.perf_counter() - start < SECONDS / 2
        gate.open.set()
        assert [ticket.future.result(SECONDS) for ticket in tickets] == list(range(threads + depth))
        until(lambda: pool.running == pool.waiting == 0)
        assert pool.submit(gate.job("again")).future.result(SECONDS) == "again"


def test_a_place_is_reserved_until_a_job_takes_it() -> None:
    gate = Gate()
    with pool_of(1, 2) as pool:
        pool.submit(gate.job())
        gate.await_entry()
        first, second = pool.reserve(), pool.reserve()
        assert pool.waiting == 2
        with pytest.raises(QueueFull):
            pool.reserve()
        time.sleep(0.03)
        taken = pool.submit(lambda ticket: "taken", first)
        pool.release(first)  # is the job's now
        assert pool.waiting == 2
        with pytest.raises(QueueFull):
            pool.submit(lambda ticket: None)
        for _ in range(2):
            pool.release(second)
            assert pool.waiting == 1
        third = pool.reserve()
        with pytest.raises(QueueFull):
            pool.submit(lambda ticket: None, second)  # which is no place any more
        third.cancel()
        pool.release(third)
        assert pool.waiting == 1
        gate.open.set()
        assert taken.future.result(SECONDS) == "taken"
        assert taken.queue_seconds >= 0.03, "it counts from when the place was reserved"
        until(lambda: pool.waiting == pool.running == 0)


def test_jobs_run_in_the_order_they_came() -> None:
    gate, order = Gate(), list[int]()
    with pool_of(1, 20) as pool:
        pool.submit(gate.job())
        tickets = [pool.submit(noting(order, number)) for number in range(20)]
        gate.open.set()
        for ticket in tickets:
            ticket.future.result(SECONDS)
    assert order == list(range(20))


def test_a_cancelled_job_leaves_the_queue_at_once() -> None:
    gate, ran = Gate(), list[str]()
    with pool_of(1, 1) as pool:
        first = pool.submit(gate.job())
        gate.await_entry()
        waiting = pool.submit(noting(ran, "cancelled"))
        with pytest.raises(QueueFull):
            pool.submit(gate.job())
        waiting.cancel()
        assert pool.waiting == 0
        third = pool.submit(noting(ran, "third"))  # in the place that is free now
        assert waiting.cancelled()
        with pytest.raises(CancelledError):
            waiting.future.result(SECONDS)
        gate.open.set()
        first.future.result(SECONDS)
        third.future.result(SECONDS)
    assert ran == ["third"]


def test_a_cancelled_job_keeps_no_data() -> None:
    """Though the executor holds its ticket until a worker comes to it."""

    class Data:
        pass

    gate, data = Gate(), Data()
    held = weakref.ref(data)
    with pool_of(1, 1) as pool:
        pool.submit(gate.job())
        gate.await_entry()
        waiting = pool.submit(gate.job(data))
        del data
        assert held() is not None
        waiting.cancel()
        gc.collect()
        assert held() is None
        gate.open.set()


def test_a_running_job_is_told_that_it_is_cancelled() -> None:
    started = threading.Event()

    def run(ticket: Ticket[None]) -> None:
        started.set()
        end = time.monotonic() + SECONDS
        while not ticket.cancelled():
            assert time.monotonic() < end
            time.sleep(0.001)
        raise Cancelled

    with pool_of(1, 0) as pool:
        ticket = pool.submit(run)
        assert started.wait(SECONDS)
        ticket.cancel()
        with pytest.raises(Cancelled):
            ticket.future.result(SECONDS)
        until(lambda: pool.running == pool.waiting == 0)


def test_a_cancelled_job_has_its_place_as_long_as_it_runs() -> None:
    gate = Gate()
    with pool_of(1, 0) as pool:
        running = pool.submit(gate.job("finished"))
        gate.await_entry()
        running.cancel()
        with pytest.raises(QueueFull):
            pool.submit(gate.job())
        gate.open.set()
        assert running.future.result(SECONDS) == "finished"


def test_a_job_that_is_cancelled_as_it_begins_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, ran = Gate(), list[str]()
    with pool_of(1, 1) as pool:
        pool.submit(gate.job())
        late = pool.submit(noting(ran, "cancelled"))
        begin = late.future.set_running_or_notify_cancel

        def begin_and_cancel() -> bool:
            begun = begin()
            late.cancel()
            return begun

        monkeypatch.setattr(late.future, "set_running_or_notify_cancel", begin_and_cancel)
        gate.open.set()
        with pytest.raises(Cancelled):
            late.future.result(SECONDS)
    assert ran == []


def test_cancelling_twice_or_too_late_changes_nothing() -> None:
    with pool_of(1, 1) as pool:
        done = pool.submit(lambda ticket: 1)
        assert done.future.result(SECONDS) == 1
        done.cancel()
        done.cancel()
        assert done.future.result(SECONDS) == 1
        until(lambda: pool.running == pool.waiting == 0)
    nobodys: Ticket[None] = Ticket()
    nobodys.cancel()
    assert nobodys.cancelled()


def test_close_waits_for_what_runs_and_drops_what_waits() -> None:
    gate, ran = Gate(), list[str]()
    pool = WorkerPool(1, 1)
    running = pool.submit(gate.job("finished"))
    gate.await_entry()
    pool.submit(noting(ran, "never"))
    threading.Timer(0.02, gate.open.set).start()
    pool.close()
    assert running.future.done()
    assert running.future.result() == "finished"
    assert ran == []


def test_many_jobs_from_many_threads_with_cancellations() -> None:
    admitted = 8
    outcomes: list[object] = []
    with pool_of(2, admitted - 2) as pool:

        def client(number: int) -> None:
            for turn in range(100):
                try:
                    ticket = pool.submit(noting([], turn))
                except QueueFull:
                    outcomes.append(QueueFull)
                    continue
                if (number + turn) % 3 == 0:
                    ticket.cancel()
                try:
                    assert ticket.future.result(SECONDS) == turn
                    outcomes.append(int)
                except (CancelledError, Cancelled):
                    outcomes.append(Cancelled)

        clients = [threading.Thread(target=client, args=(number,)) for number in range(12)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join(SECONDS)
        until(lambda: pool.running == pool.waiting == 0)
        assert len(outcomes) == 1200
        # The places are all there again.
        gate = Gate()
        tickets = [pool.submit(gate.job()) for _ in range(admitted)]
        with pytest.raises(QueueFull):
            pool.submit(gate.job())
        gate.open.set()
        for ticket in tickets:
            ticket.future.result(SECONDS)


class Data(bytearray):
    """What a job works on, of which one can tell whether it is still there."""


class Failure(Exception):
    """One of which one can tell the same."""


def test_nothing_of_a_job_outlives_it() -> None:
    """Neither what it worked on when it failed nor what it made: they are not left to the garbage collector."""
    gc.disable()
    try:
        with pool_of(1, 0) as pool:
            kept: list[weakref.ref[Data]] = []

            def fail(ticket: Ticket[Data]) -> Data:
                data = Data(1)
                kept.append(weakref.ref(data))
                raise Failure(len(data))

            def make(ticket: Ticket[Data]) -> Data:
                data = Data(1)
                kept.append(weakref.ref(data))
                return data

            ticket = pool.submit(fail)
            error = ticket.future.exception(SECONDS)
            assert isinstance(error, Failure)
            assert error.__traceback__  # it still tells where
            assert kept.pop()() is None
            gone = weakref.ref(error)
            del ticket, error
            until(lambda: gone() is None)

            ticket = pool.submit(make)
            assert ticket.future.result(SECONDS) == Data(1)
            del ticket
            until(lambda: kept[0]() is None)
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [None, Failure()])
def test_a_job_is_gone_when_its_result_is_told(error: Exception | None) -> None:
    """Whoever waits for that may go on before the worker does."""
    may_end, gone = threading.Event(), list[bool]()

    class Job:
        def __call__(self, ticket: Ticket[None]) -> None:
            assert may_end.wait(SECONDS)
            if error:
                raise error

    with pool_of(1, 0) as pool:
        job = Job()
        held = weakref.ref(job)
        ticket = pool.submit(job)
        del job
        ticket.future.add_done_callback(lambda _: gone.append(held() is None))
        may_end.set()
    assert gone == [True]


def test_workers_are_there_before_their_first_job() -> None:
    pool = WorkerPool(3, 1)
    before = set(threading.enumerate())
    pool.open()
    assert len(set(threading.enumerate()) - before) == 3  # others, of tests before, may end meanwhile
    pool.close()
