"""The GPUs of this machine, for tests marked `gpu`, and NVRTC: a test is skipped where what it needs is not there."""

from functools import cache

import pytest

from app.devices.cuda.compiler import compile_source, nvrtc_version
from app.devices.cuda.device import CudaDevice
from app.devices.cuda.pinned import PinnedMemory
from app.devices.cuda.schedules import CudaScheduleKernel
from app.devices.device import Kernel
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


def assert_recorded(kernel: Kernel, gpu: CudaDevice) -> None:
    """What it does is a CUDA graph by now."""
    assert isinstance(kernel, CudaScheduleKernel)
    ready = gpu.ready.newest(kernel._number)
    assert ready is not None
    assert ready.work._graphs


_compiled = cache(compile_source)  # types of one size have the same source


def assert_compiles(source: str, *architectures: int) -> None:
    """By NVRTC, for each of `architectures`, or the test is skipped."""
    try:
        nvrtc_version()
    except Exception as error:
        pytest.skip(f"there is no NVRTC: {error}")
    for architecture in architectures:
        assert _compiled(source, architecture).startswith(b"\x7fELF")
