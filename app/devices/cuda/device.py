"""An NVIDIA GPU: formulas as CUDA kernels, tensors moved through pinned memory while others are computed."""

from typing import Literal

from app.devices.cuda.context import Context
from app.devices.cuda.kernels import CudaKernel
from app.devices.device import WHOLE_BYTES, DeviceInfo, InTurn, Kernel
from app.programs.dispatchable import Dispatchable


class CudaDevice(Context):
    """Implements `Device`."""

    kind: Literal["cpu", "cuda"] = "cuda"

    def info(self) -> DeviceInfo:
        total = available = None
        if self.out_of_service is None:
            try:
                self.use()
                available, total = self._cupy.cuda.runtime.memGetInfo()
            except self._errors as error:
                self._judge(error)
        return DeviceInfo(
            name=self.name,
            kind=self.kind,
            description=self.facts.description,
            memory_total_bytes=total,
            memory_available_bytes=available,
            data_types=WHOLE_BYTES,
            compute_capability=self.facts.compute_capability,
            driver_version=self.facts.driver_version,
            runtime_version=self.facts.runtime_version,
            kernels_cached=len(self._functions),
            out_of_service=self.out_of_service,
        )

    def prepare(self, compiled: Dispatchable) -> Kernel:
        kernels = self.kernels(compiled)
        return kernels[0] if len(kernels) == 1 else InTurn(kernels)

    def kernels(self, compiled: Dispatchable) -> "list[CudaKernel]":
        """One for each output."""
        return [CudaKernel(compiled, output, self) for output in compiled.program.maps]
