"""Threads that do a task together without Python in between: it goes to them in less than a microsecond while they are
awake, and in what the system takes to wake them while they are not.

A helper is a thread that waits in compiled code. It watches its mail for a while after a task, if that came soon after
the one before, or if it was woken too late for a task, and else sleeps at once (`waiting.py`): nothing is burnt but in
a burst of dispatches.

What is shared with it, in 64-bit words:

- mail: 0 if it is free, the address of a task that it is offered, WORKING, or DONE until the task's owner has seen it.
  Its owner takes the offer back if all is done before the helper has come.
- A task: TASK_WORDS, and what its function makes of those that follow. That is called by all who come, and returns when
  there is no more to do: blocks of one loop (`jobs.py`), or the steps of a graph (`tables.py`).
"""

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from app.devices.cpu.llvm.compiler import Compiler, Function
from app.devices.cpu.llvm.team_source import (
    HELPER_WORDS,
    HELPERS,
    LOT,
    PROCESSOR_WORDS,
    PROCESSORS,
    TEAM,
    THREAD,
    WAKES,
    WANTED,
    team_source,
)
from app.devices.cpu.llvm.waiting import lot
from app.memory.addresses import address_of

MOST = 64
"""Threads that share a task: a bit stands for each."""


class Words(Protocol):
    """Of a task, or more."""

    def __setitem__(self, word: int, number: int, /) -> None: ...


class Team:
    """The calling thread and up to `most` - 1 helpers, which are started when there is first something to share.

    Safe to use from several threads: they have the helpers that are free, and those in compiled code are together not
    more than `most`, but for callers.
    """

    def __init__(self, compiler: Compiler, most: int) -> None:
        self.compiler = compiler
        self.most = min(most, MOST)
        self._starting = threading.Lock()
        self._of_process = 0
        self._run: Any = None
        self._address = 0

    def sharing(self, function: Function, words: Words, wanted: int, *, wakes: bool) -> Function:
        """What does the task that has these words, once it is called with their address: its `function`, with up to
        `wanted` helpers; those that sleep are only woken in a burst, or if it `wakes`. None of them is in it any more
        when that returns."""
        if wanted == 0:
            return function
        if self._of_process != os.getpid():
            self._start()
        words[TEAM], words[WANTED], words[WAKES] = self._address, wanted, wakes
        run: Function = self._run
        return run

    @property
    def is_started(self) -> bool:
        """Whether there are its helpers, which takes some 30 ms, once."""
        return self._of_process == os.getpid()

    def _start(self) -> None:
        with self._starting:
            if self.is_started:
                return
            number, address = ctypes.c_int64, ctypes.c_void_p
            help_, stop, run = self.compiler.functions(
                team_source(),
                {
                    "help": ctypes.CFUNCTYPE(None, address, number),
                    "stop": ctypes.CFUNCTYPE(None, address, number),
                    "run": ctypes.CFUNCTYPE(None, address),
                },
            )
            helpers = self.most - 1
            memory = mmap.mmap(-1, 8 * HELPER_WORDS * (helpers + 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            at = address_of(memoryview(memory))
            words = memoryview(memory).cast("Q")
            for processor in os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ():
                if processor < 64 * PROCESSOR_WORDS:
                    words[PROCESSORS + processor // 64] |= 1 << processor % 64
            for helper in range(helpers):
                its = HELPER_WORDS * (helper + 1)
                lot(self.compiler, at + 8 * (its + LOT))

                def wait(helper: int = helper, its: int = its, words: memoryview = words) -> None:
                    words[its + THREAD] = threading.get_native_id()
                    help_(at, helper)

                try:
                    threading.Thread(target=wait, daemon=True, name=f"{__name__.rpartition('.')[2]}-{helper}").start()
                except RuntimeError:  # the system has no more threads for this process: those that there are will do
                    break
                words[HELPERS] = helper + 1
            if words[HELPERS]:
                weakref.finalize(self, _end, stop, memory, words[HELPERS], os.getpid())
            self._memory = memory
            self._address, self._run, self._of_process = at, run, os.getpid()


def _end(stop: Callable[[int, int], None], memory: mmap.mmap, helpers: int, process: int) -> None:
    """`memory` stays where it is until the last helper has been woken. A forked process has none of them."""
    if process == os.getpid():
        stop(address_of(memoryview(memory)), helpers)
