"""How many processes suit this machine, where nobody says."""

import os
from pathlib import Path

from app.settings import GIB, Settings, processors

PROCESSORS = 4
"""For each process. One moves large bodies and computes with several; what further ones add are event loops, of which
each answers some ten thousand small requests a second."""

MOST = 4
"""Clients need processors, too."""

MOST_IN_TURNS = 2
"""Where each process has the GPU for itself in its turn, and the others wait."""

_CGROUP = Path("/sys/fs/cgroup")


def suited(settings: Settings, *, gpus_are_shared: bool) -> tuple[int, str]:
    """How many, and why, for the log. `gpus_are_shared`: processes need not take turns at one."""
    if settings.shared_memory:
        return 1, "regions of shared memory are registered with one process"
    if settings.max_batch > 1:
        return 1, "requests that are run together have to meet in one process"
    cpus, memory = processors(), memory_bytes()
    most = {
        f"one for {PROCESSORS} processors, of which there are {cpus}": cpus // PROCESSORS,
        f"each may hold max_memory_bytes, of {memory / GIB:.1f} GiB half": memory // 2 // settings.max_memory_bytes,
        f"no more than {MOST} unless they are asked for": MOST,
    }
    if settings.gpus != "none" and has_gpu() and not gpus_are_shared:
        most[f"no more than {MOST_IN_TURNS} take turns at a GPU unless they are asked for"] = MOST_IN_TURNS
    why = min(most, key=lambda each: most[each])
    return max(most[why], 1), why


def overcommitted(settings: Settings) -> str:
    """What to tell if requests may hold more than there is, as in a container with little; else nothing."""
    held, memory = settings.workers * settings.max_memory_bytes, memory_bytes()
    if held <= memory:
        return ""
    each = f", in each of {settings.workers} processes" if settings.workers > 1 else ""
    return (
        f"Requests may hold {held / GIB:.2f} GiB (max_memory_bytes{each}), and there are {memory / GIB:.2f} GiB: the "
        "system ends what takes more. With half of what there is, requests get 503 instead"
    )


def memory_bytes() -> int:
    """Bytes that this machine has, or this container may have."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(there, int((_CGROUP / "memory.max").read_text()))
    except (OSError, ValueError):  # there is no such limit
        return there


def has_gpu() -> bool:
    """Whether there seems to be one. CUDA, which knows, does not survive a fork."""
    return any(Path("/dev").glob("nvidia[0-9]*"))
