"""What a process and its descendants use, read from Linux's /proc: memory in MiB, CPU time in clock ticks."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SAMPLE_SECONDS = 0.005
QUIET_SECONDS = 0.25
QUIET_TICKS = 2


@dataclass(frozen=True)
class Memory:
    """MiB of a process tree: proportional set size at rest, and what the work added at its highest."""

    idle: float
    above: float


def read(pid: int, name: str) -> str:
    """A file of /proc/PID, or nothing when the process has gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


def tree(pid: int) -> list[int]:
    """The process and all its descendants."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in read(parent, f"task/{task.name}/children").split()]
    return found


def field_mib(pid: int, name: str, key: str) -> float:
    """A field that /proc/PID/name gives in kB."""
    for line in read(pid, name).splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    return 0.0


def pss_mib(pid: int) -> float:
    """Proportional set size of the tree."""
    return sum(field_mib(process, "smaps_rollup", "Pss") for process in tree(pid))


def cpu_ticks(pid: int) -> int:
    """User and system time of the tree."""
    ticks = 0
    for process in tree(pid):
        fields = read(process, "stat").rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:13]))
    return ticks


def clock(pid: int) -> int:
    """The clock of the processor time that all threads of a process use, for `time.clock_gettime`."""
    return ~pid << 3 | 2  # as clock_getcpuclockid makes it


def settle(pid: int, seconds: float = 30) -> None:
    """Wait until the tree is at rest: wrk leaves requests behind that would disturb the next measurement."""
    deadline = time.monotonic() + seconds
    before = cpu_ticks(pid)
    while time.monotonic() < deadline:
        time.sleep(QUIET_SECONDS)
        now = cpu_ticks(pid)
        if now - before < QUIET_TICKS:
            return
        before = now


def memory_during(pid: int, work: Callable[[], None]) -> Memory:
    """Memory of the tree at rest now, and at its highest during `work`.

    Sampling may miss a short peak, so the kernel's high-water mark of a single process counts where it is higher.
    """
    resident = {}
    for process in tree(pid):
        with contextlib.suppress(OSError):
            Path(f"/proc/{process}/clear_refs").write_text("5")  # lowers the high-water mark to what is resident now
        resident[process] = field_mib(process, "status", "VmRSS")
    idle = highest = pss_mib(pid)
    done = threading.Event()

    def sample() -> None:
        nonlocal highest
        while not done.wait(SAMPLE_SECONDS):
            highest = max(highest, pss_mib(pid))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        work()
    finally:
        done.set()
        sampler.join()
    marks = [field_mib(process, "status", "VmHWM") - resident.get(process, 0) for process in tree(pid)]
    return Memory(idle, max(highest - idle, *marks))
