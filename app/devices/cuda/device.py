"""An NVIDIA GPU: formulas as CUDA kernels and calls of CuPy, tensors moved through pinned memory while others are
computed."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakValueDictionary

from app.contract.constants import DataType
from app.devices.cuda.context import Context
from app.devices.cuda.kernels import CudaKernel
from app.devices.cuda.resident import Resident
from app.devices.cuda.schedules import CudaScheduleKernel, KeptTensor, KeptTensors
from app.devices.cuda.shared import ResidentKernel
from app.devices.cuda.small import Passage, SmallKernel
from app.devices.cuda.times import step_seconds
from app.devices.device import DeviceInfo, InTurn, Kernel
from app.devices.schedules import OneByOne, schedule_kernel
from app.graphs.schedule import InitializedGraph, alone
from app.memory.addresses import address_of
from app.operators import written
from app.programs.dispatchable import Dispatchable


class CudaDevice(Context):
    """Implements `Device`."""

    kind: Literal["cpu", "cuda"] = "cuda"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """The arguments are those of Context."""
        super().__init__(*arguments, **named)
        self._kept: WeakKeyDictionary[InitializedGraph, KeptTensors] = WeakKeyDictionary()
        self._tensors: WeakValueDictionary[tuple[int, int], KeptTensor] = WeakValueDictionary()
        """By their addresses and bytes on the host."""
        self._uploading = threading.Lock()
        written.FORMULA_LOADERS[self.ordinal] = self._over_arrays

    def info(self) -> DeviceInfo:
        total = available = None
        if self.out_of_service is None:
            try:
                self.use()
                available, total = self._cupy.cuda.runtime.memGetInfo()
            except self.errors as error:
                self._judge(error)
        return DeviceInfo(
            name=self.name,
            kind=self.kind,
            description=self.facts.description,
            memory_total_bytes=total,
            memory_available_bytes=available,
            data_types=list(DataType),
            compute_capability=self.facts.compute_capability,
            driver_version=self.facts.driver_version,
            runtime_version=self.facts.runtime_version,
            kernels_cached=len(self._functions),
            out_of_service=self.out_of_service,
        )

    def prepare(self, work: Dispatchable | InitializedGraph) -> Kernel:
        return self._graph(work) if isinstance(work, InitializedGraph) else self._kernel(work)

    def _graph(self, graph: InitializedGraph) -> Kernel:
        if len(graph.schedule.steps) == 1 and not graph.schedule.kept:
            # which moves tensors while it computes others
            return schedule_kernel(graph, lambda work, _: self._kernel(work), OneByOne)
        return self.whole(graph)

    def _tensors_of(self, graph: InitializedGraph) -> KeptTensors:
        known = self._kept.get(graph)
        if known is None:
            tensors = [
                self._tensors.setdefault((address_of(each), each.nbytes), KeptTensor(each)) for each in graph.kept
            ]
            with self._lock:
                known = self._kept.setdefault(graph, KeptTensors(tensors, self, self._uploading))
        return known

    def step_seconds(self, graph: InitializedGraph, cancelled: Callable[[], bool]) -> list[float]:
        """Seconds of each of the graph's steps, over zeros. Raises Cancelled and DeviceFailed."""
        return step_seconds(self.whole(graph), cancelled)

    def _kernel(self, compiled: Dispatchable) -> Kernel:
        resident = Resident(compiled, self)
        passage, kernels = Passage.of(compiled), resident.kernels
        alike = len(kernels) == 1 and kernels[0].is_chunked
        if kernels and passage.is_small(self, alike=alike):
            return SmallKernel(resident, passage, self)
        if kernels and all(kernel.is_chunked for kernel in kernels):
            return kernels[0] if len(kernels) == 1 else InTurn(kernels)
        return self.whole(alone(compiled))

    def whole(self, graph: InitializedGraph) -> CudaScheduleKernel:
        """What computes it over whole tensors."""
        return CudaScheduleKernel(graph, self._tensors_of(graph), self)

    def resident(self, work: Dispatchable | InitializedGraph) -> ResidentKernel:
        """The same for tensors that lie on this GPU."""
        graph = work if isinstance(work, InitializedGraph) else alone(work)
        writes = [desc.data_bytes for desc in graph.schedule.outputs.values()]
        return ResidentKernel(self.whole(graph), [*graph.schedule.read_bytes.values()], writes)

    def _over_arrays(self, compiled: Dispatchable) -> written.OverArrays:
        (output,) = compiled.outputs
        bind = CudaKernel(compiled, output, self).bind_again()

        def queue(arrays: Sequence[Any]) -> None:
            bind([each.data.ptr for each in arrays])(self._cupy.cuda.get_current_stream())

        return queue

    def kernels(self, compiled: Dispatchable) -> "list[CudaKernel]":
        """One for each output; none of a call."""
        return Resident(compiled, self).kernels
