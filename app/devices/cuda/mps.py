"""NVIDIA's Multi-Process Service, by which several processes use a GPU at the same time.

Without it they take turns: each has the whole GPU for a slice of time, also where its kernels are small and it waits
for a client meanwhile. A process is a client of a service from CUDA's start on if the environment names the folder of
its control daemon, or the daemon is at the place that CUDA looks at by default. One that was there before is
the administrator's, and is left alone. Clients have address spaces of their own; a kernel that faults ends CUDA for
all of them.

Facts: the manual page nvidia-cuda-mps-control(1).
"""

import ctypes
import logging
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from app.apart import done_apart

log = logging.getLogger("app.execution")

PROGRAM = "nvidia-cuda-mps-control"
_FOLDER = "CUDA_MPS_PIPE_DIRECTORY"
_LOGS = "CUDA_MPS_LOG_DIRECTORY"
_BY_DEFAULT = Path("/tmp/nvidia-mps/control")  # noqa: S108 - CUDA's own
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SECONDS = 10.0


class MultiProcessService:
    """One that was started here. The processes that are forked from this one are its clients."""

    def __init__(self, program: str, environment: Mapping[str, str]) -> None:
        self._command = program
        self._environment = environment

    def end(self, *, seconds: float = _SECONDS) -> None:
        """End it when its clients have ended, which is waited for."""
        try:
            subprocess.run(  # noqa: S603 - the driver's
                [self._command],
                env=self._environment,
                input=b"quit\n",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=seconds,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("NVIDIA's Multi-Process Service does not end: %s", error)
        for name in (_FOLDER, _LOGS):
            os.environ.pop(name, None)


def is_there() -> bool:
    """Whether several processes can use a GPU at the same time."""
    return _is_given() or shutil.which(PROGRAM) is not None


def start(folder: Path, gpus: Sequence[int] | None) -> MultiProcessService | None:
    """A service whose pipes and logs are in `folder`, for the processes that will be forked from this one, which use
    these `gpus`, or all. None where there is one already, or none that works; the log says which.

    CUDA must not have been started in this process. It takes as long as CUDA's start.
    """
    if _is_given():
        log.info("Processes share GPUs by the Multi-Process Service that is there, if CUDA finds it")
        return None
    program = shutil.which(PROGRAM)
    if program is None:
        log.info("Processes take turns at GPUs: %s, by which they would share them, is not in PATH", PROGRAM)
        return None
    folder.mkdir(mode=0o700)
    ours = {_FOLDER: str(folder), _LOGS: str(folder)}
    # Of the service's GPUs each client chooses its own, by the same variable.
    environment = {name: value for name, value in os.environ.items() if name != _VISIBLE} | ours
    service = MultiProcessService(program, environment)
    try:
        starting = [program, "-d"]
        subprocess.run(starting, env=environment, capture_output=True, timeout=_SECONDS, check=True)  # noqa: S603
        os.environ.update(ours)
        problem = done_apart(partial(_trouble, gpus), _SECONDS)
    except subprocess.CalledProcessError as error:
        problem = (error.stderr or error.stdout).decode(errors="replace").strip() or str(error)
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem == "":
        log.info("Processes share GPUs by NVIDIA's Multi-Process Service")
        return service
    log.warning(
        "Processes take turns at GPUs, since the Multi-Process Service does not work: %s", problem or "see above"
    )
    service.end()
    return None


def _is_given() -> bool:
    return _FOLDER in os.environ or _BY_DEFAULT.exists()


def _trouble(gpus: Sequence[int] | None) -> str:
    """What keeps CUDA from being started as a client, with these GPUs, or all; nothing if nothing does."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    if status := cuda.cuInit(0):
        return f"cuInit answers {status}"
    if status := cuda.cuDeviceGetCount(ctypes.byref(count)):
        return f"cuDeviceGetCount answers {status}"
    if not count.value:
        return "there is no GPU"
    for ordinal in range(count.value) if gpus is None else gpus:
        if status := cuda.cuDeviceGet(ctypes.byref(device), ordinal):
            return f"cuDeviceGet answers {status} for GPU {ordinal}"
        if status := cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            return f"cuDevicePrimaryCtxRetain answers {status} for GPU {ordinal}"
    return ""
