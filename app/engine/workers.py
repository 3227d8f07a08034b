"""The workers: threads that read and run dispatches off the event loop, with a bounded queue in front of them.

No reference leads from a job's result or error back to itself: the memory in either would else be gone only when the
garbage collector comes.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from traceback import clear_frames
from typing import Generic, TypeVar

from app.devices.device import Cancelled

T = TypeVar("T")


class QueueFull(Exception):
    """As many dispatches wait as may."""

    def __init__(self, depth: int) -> None:
        super().__init__(f"the queue is full: {depth} dispatches wait already")


@dataclass(eq=False)
class Ticket(Generic[T]):
    """A job that was admitted. Times are seconds."""

    future: "Future[T]" = field(default_factory=Future)
    submitted: float = field(default_factory=perf_counter)
    queue_seconds: float = 0.0
    job: "Callable[[Ticket[T]], T] | None" = None
    leave: "Callable[[Ticket[T]], None] | None" = None
    _is_cancelled: bool = False

    def cancel(self) -> None:
        """Take the job out of the queue, or have it stop soon if it runs already."""
        self._is_cancelled = True
        if self.future.cancel() and self.leave:
            self.leave(self)

    def cancelled(self) -> bool:
        return self._is_cancelled


class WorkerPool:
    """`threads` workers and room for `queue_depth` jobs to wait. What does not fit is refused at once."""

    def __init__(self, threads: int, queue_depth: int) -> None:
        self.threads = threads
        self.queue_depth = queue_depth
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="dmlserve-worker")
        self._lock = threading.Lock()
        self._admitted = 0
        self._running = 0

    def open(self) -> None:
        """Start the workers. Each is otherwise started by the job that first needs it, which waits 0.3 ms for that."""
        together = threading.Barrier(self.threads + 1)
        for _ in range(self.threads):
            self.executor.submit(together.wait)
        together.wait()

    @property
    def running(self) -> int:
        """Jobs in the workers' hands."""
        return self._running

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return max(self._admitted - self._running, 0)

    def submit(self, job: Callable[[Ticket[T]], T], place: "Ticket[None] | None" = None) -> Ticket[T]:
        """Queue `job`, which is given its own ticket, in the `place` that was reserved for it, if any was.

        Raises QueueFull unless there is such a place.
        """
        ticket = Ticket(job=job, leave=self.release)
        with self._lock:
            if place is None or place.job is None:
                self.check_room()
                self._admitted += 1
            else:
                place.job = None
        if place is not None:
            ticket.submitted = place.submitted
        self.executor.submit(self._work, [ticket])
        return ticket

    def reserve(self) -> Ticket[None]:
        """A place in the queue, for who waits there for others. Raises QueueFull.

        It is given free by cancelling it, by `release`, or by a job that is submitted in its place.
        """
        with self._lock:
            self.check_room()
            self._admitted += 1
        return Ticket(job=_nothing, leave=self.release)

    def release(self, ticket: Ticket[T]) -> None:
        """Give its place free, if it is not yet."""
        with self._lock:
            if ticket.job is not None:
                self._admitted -= 1
                ticket.job = None  # the executor keeps a cancelled job's ticket until its turn; the data go at once

    def check_room(self) -> None:
        """Raise QueueFull unless one more job may be submitted now."""
        if self._admitted >= self.threads + self.queue_depth:
            raise QueueFull(self.queue_depth)

    def close(self) -> None:
        """Wait for what runs, drop what waits."""
        self.executor.shutdown(cancel_futures=True)

    def _work(self, queued: list[Ticket[T]]) -> None:
        # Frames live as long as an error that has passed them or a frame above, and the executor keeps the list.
        ticket = queued.pop()
        future, job = ticket.future, ticket.job
        if job is None or not future.set_running_or_notify_cancel():
            return
        started = perf_counter()
        ticket.queue_seconds = started - ticket.submitted
        with self._lock:
            self._running += 1
        try:
            if ticket.cancelled():
                raise Cancelled
            result = job(ticket)
        except BaseException as error:
            clear_frames(error.__traceback__)
            self._stop(ticket)
            del ticket, job  # whoever waits may go on before this thread does
            future.set_exception(_awaitable(error))
        else:
            self._stop(ticket)
            del ticket, job
            future.set_result(result)
        del future

    def _stop(self, ticket: Ticket[T]) -> None:
        with self._lock:
            self._running -= 1
        self.release(ticket)


def _awaitable(error: BaseException) -> BaseException:
    """`error`, but for StopIteration: asyncio's futures before Python 3.12 do not take it, and who awaits the job would
    wait on."""
    if not isinstance(error, StopIteration):
        return error
    raised = RuntimeError("a job raised StopIteration")
    raised.__cause__ = error
    return raised


def _nothing(_: Ticket[None]) -> None:
    """What has been reserved for: whoever reserved it says so when he submits it."""
