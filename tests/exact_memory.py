"""A plugin of pytest's: tensors of dispatches on GPUs lie in memory of exactly their sizes, and so does scratch.

    compute-sanitizer --tool memcheck --target-processes all --destroy-on-device-error kernel \
        python -m pytest -p tests.exact_memory -m gpu -n 15 tests/operators tests/devices tests/graphs

With it NVIDIA's sanitizer sees each byte that a kernel reads or writes beside a tensor, which else is another one's.
Tensors are on the GPU already, as clients' are by CUDA shared memory, and nothing is recorded as a CUDA graph. Tests
that limit the GPU's memory, or want to see a dispatch fail, fail.
"""

from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np

import tests.gpu
from app.devices.cuda import arenas
from app.devices.cuda.device import CudaDevice
from app.devices.device import ExecutionRecord, Kernel, OnDevice
from app.graphs.schedule import InitializedGraph
from app.memory.buffers import Buffer
from app.programs.dispatchable import Dispatchable

NEVER = 1 << 30


class ExactPool(cupy.cuda.MemoryPool):  # type: ignore[misc]
    """Keeps nothing."""

    def malloc(self, size: int) -> Any:
        return cupy.cuda.MemoryPointer(cupy.cuda.Memory(size), 0)


class ExactKernel:
    """Implements `Kernel`, over tensors of which each has memory of its own."""

    def __init__(self, device: CudaDevice, work: Dispatchable | InitializedGraph) -> None:
        self._plain = prepare(device, work)
        self._device = device
        self._resident = device.resident(work)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        self._device.use()
        placed: dict[tuple[int, int], OnDevice] = {}

        def on_device(buffer: Buffer, size: int) -> OnDevice:
            host = np.frombuffer(buffer, np.uint8)
            size = min(size, host.nbytes)
            key = host.ctypes.data, size  # an output may be an input
            if key not in placed:
                memory = cupy.cuda.Memory(size)
                cupy.cuda.runtime.memcpy(memory.ptr, host.ctypes.data, size, cupy.cuda.runtime.memcpyHostToDevice)
                placed[key] = OnDevice(memory.ptr, size, memory)
            return placed[key]

        read = [on_device(*each) for each in zip(inputs, self._resident._reads, strict=True)]
        made = outputs[: len(self._resident._writes)]  # without the scratch that the CPU is given
        written = [on_device(*each) for each in zip(made, self._resident._writes, strict=True)]
        ran = self._resident.dispatch(read, written, cancelled)
        for buffer, there in zip(made, written, strict=True):
            host = np.frombuffer(buffer, np.uint8).ctypes.data
            cupy.cuda.runtime.memcpy(host, there.address, there.nbytes, cupy.cuda.runtime.memcpyDeviceToHost)
        return ran


def exact(device: CudaDevice, work: Dispatchable | InitializedGraph) -> Kernel:
    return ExactKernel(device, work)


prepare = CudaDevice.prepare
cupy.cuda.MemoryPool = ExactPool
CudaDevice.prepare = exact  # type: ignore[assignment,method-assign]
arenas.UNRECORDED = NEVER
tests.gpu.assert_recorded = lambda *_: None
