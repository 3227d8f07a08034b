"""The GPUs of this machine, for tests marked `gpu`: they are skipped where there is none."""

from functools import cache

import pytest

from app.devices.cuda.device import CudaDevice
from app.devices.cuda.pinned import PinnedMemory
from app.devices.placement import find_gpus
from app.settings import MIB, Settings


@cache
def found() -> tuple[list[CudaDevice], list[str]]:
    """Devices, with little staging memory so that chunks are small, and why there are no others."""
    return find_gpus(Settings(kernel_cache="none", staging_bytes=16 * MIB), PinnedMemory(64 * MIB))


def first_gpu() -> CudaDevice:
    """The first GPU, or the test is skipped."""
    gpus, problems = found()
    if not gpus:
        pytest.skip("; ".join(problems))
    return gpus[0]
