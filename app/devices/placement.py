"""Which device runs a dispatch, and what happens when a GPU is not there or fails."""

import asyncio
import ctypes
import importlib.util
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from time import monotonic
from typing import Literal
from weakref import WeakKeyDictionary

from app.contract.constants import NEWEST
from app.devices.binaries import Binaries, cache_folder
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.team import Team
from app.devices.cuda.compiler import KernelCache, nvrtc_version
from app.devices.cuda.device import CudaDevice
from app.devices.cuda.pinned import PinnedMemory
from app.devices.cuda.small import SmallKernel
from app.devices.device import Device, DeviceFailed, DeviceInfo, ExecutionRecord, Kernel, own_bytes
from app.devices.estimates import Pace, Work, gelu, hard_sigmoid, measure, sample, square_product
from app.formula.structures import Structures
from app.graphs.schedule import InitializedGraph
from app.memory.accounts import MemoryAccount
from app.memory.addresses import address_of
from app.memory.buffers import Buffer, BufferPool
from app.memory.neighbours import Neighbour
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator
from app.operators.operator import Role
from app.programs.dispatchable import Dispatchable
from app.settings import MIB, Settings, Unusable
from app.stages import staged

log = logging.getLogger("app.execution")

AHEAD = (
    "DML_OPERATOR_ACTIVATION_HARD_SIGMOID",
    "DML_OPERATOR_ACTIVATION_CELU",
    "DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU",
    "DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW",
)
"""Operators whose kernels are compiled when the service starts: packed, in every data type."""

NEIGHBOURS_SECONDS = 2.0
"""How long a dispatch that finds no memory on a GPU waits for what other processes keep there. They look for that twice
a second."""

SHORT_SECONDS = 10.0
"""How long nothing is dispatched in an event loop, where all others would wait for what is done about that, after a GPU
had no memory."""


class Placement:
    """The devices there are, by name, and the choice among them.

    `auto` is the GPU with the least work in hand where one is done first, by an estimate, and NumPy where it is done
    before a GPU has the data. A dispatch that a GPU does not manage is run by NumPy, or with `auto` by another GPU that
    may have what that one lacks.
    """

    def __init__(
        self,
        settings: Settings,
        numpy_device: NumpyDevice,
        structures: Structures | None = None,
        neighbour: Neighbour | None = None,
    ) -> None:
        """`neighbour` is this process among those that share the GPUs, if there are several. Raises Unusable."""
        self._settings = settings
        self._numpy = numpy_device
        self.pinned = PinnedMemory(settings.pinned_bytes)
        self.gpus, self.problems = find_gpus(settings, self.pinned, structures, numpy_device.team)
        check_gpus(settings, self.gpus, self.problems)
        self.devices: dict[str, Device] = {numpy_device.name: numpy_device}
        self._neighbour = neighbour
        self.devices |= {gpu.name: FallbackDevice([gpu], numpy_device, neighbour) for gpu in self.gpus}
        self._auto = FallbackDevice(self.gpus, numpy_device, neighbour)
        self.pace: Pace | None = None
        """Of NumPy and the first GPU that works, once that is measured."""
        self._works: WeakKeyDictionary[InitializedGraph, Work] = WeakKeyDictionary()
        if not self.gpus:
            self.pinned.limit = 0
        effect = "Not all GPUs are used" if self.gpus else "NumPy runs all dispatches"
        for problem in self.problems:
            log.info("%s: %s", effect, problem)

    def charge(self, memory: MemoryAccount) -> None:
        """From now on what NumPy takes in a GPU's place is held there."""
        for each in (self._auto, *self.devices.values()):
            if isinstance(each, FallbackDevice):
                each.memory = memory

    def open(self) -> None:
        """Compile what will be wanted first, and measure the pace. Takes a second or two with a GPU."""
        if self.gpus and self._settings.compile_ahead:
            with _telling():
                compile_ahead(self.gpus)
        for gpu in () if self._settings.crossover_elements else self.gpus:
            with _telling():
                self.pace = measure(self._numpy, gpu, BufferPool(0, self.pinned))
                break
        if self.pace:
            firsts = [self.pace.least(of) or "no" for of in (hard_sigmoid, gelu, square_product)]
            log.info("auto takes a GPU from %s elements of a HARD_SIGMOID, %s of a GELU, %s rows of a GEMM on", *firsts)

    def choose(self, name: str, work: Dispatchable | InitializedGraph) -> Device | None:
        """The device for a dispatch; None if there is none of this name."""
        if name == "auto":
            return self._auto if self.gpus and self._suits_gpu(work) else self._numpy
        return self.devices.get(name)

    def _suits_gpu(self, work: Dispatchable | InitializedGraph) -> bool:
        least = self._settings.crossover_elements
        if least:
            return work.elements >= least
        return self.pace is not None and self.pace.favours_gpu(self._work_of(work))

    def _work_of(self, work: Dispatchable | InitializedGraph) -> Work:
        if isinstance(work, Dispatchable):
            return Work.of(work)
        known = self._works.get(work)
        if known is None:  # which takes a while for thousands of kernels
            known = self._works[work] = Work.of(work)
        return known

    def gpu(self, name: str) -> CudaDevice | None:
        """The GPU of this name, if there is one."""
        return next((gpu for gpu in self.gpus if gpu.name == name), None)

    def tend(self) -> None:
        """Give other processes the GPUs' memory that nobody uses here, if they have asked for it. To be called now and
        then, by a thread that may wait."""
        if self._neighbour is not None:
            for gpu in self.gpus:
                self._neighbour.answer(gpu.ordinal, gpu.free_memory if gpu.out_of_service is None else nothing)

    def step_seconds(
        self, name: str, graph: InitializedGraph, take: Callable[[int], Buffer], cancelled: Callable[[], bool]
    ) -> tuple[ExecutionRecord, list[float]]:
        """Where the device called `name` dispatches the graph, and the seconds that each of its steps takes there, over
        zeros; on the CPU in memory that `take` gives. Raises Cancelled."""
        chosen = self.choose(name, graph)
        failure = None
        if isinstance(chosen, FallbackDevice):
            gpu = chosen.least_loaded()
            try:
                return gpu.ran, gpu.step_seconds(graph, cancelled)
            except DeviceFailed as error:
                failure = error.reason
        ran = ExecutionRecord(self._numpy.name, "cpu", failure)
        return ran, self._numpy.step_seconds(graph, take, cancelled)

    def troubles(self) -> list[str]:
        """Why dispatches run on NumPy that might run on a GPU."""
        lost = [f"{gpu.name} is out of service: {gpu.out_of_service}" for gpu in self.gpus if gpu.out_of_service]
        return [*self.problems, *lost]


@contextmanager
def _telling() -> Iterator[None]:
    """What a GPU fails at in this, when the service starts, the log tells."""
    try:
        yield
    except DeviceFailed as error:
        log.error("at the start: %s", error.reason)


def nothing() -> None:
    """A GPU that is lost keeps nothing."""


class FallbackDevice:
    """Implements `Device`: the least loaded of some GPUs, with the others and NumPy behind it."""

    kind: Literal["cpu", "cuda"] = "cuda"

    def __init__(self, gpus: Sequence[CudaDevice], fallback: NumpyDevice, neighbour: Neighbour | None = None) -> None:
        self.name = gpus[0].name if len(gpus) == 1 else "auto"
        self.gpus = gpus
        self.fallback = fallback
        self.neighbour = neighbour
        self.memory: MemoryAccount | None = None
        """Where NumPy's memory is held, which nobody knew of before: a GPU was to have its own."""

    def info(self) -> DeviceInfo:
        return self.gpus[0].info()

    def prepare(self, work: Dispatchable | InitializedGraph) -> "FallbackKernel":
        return FallbackKernel(work, self)

    def least_loaded(self) -> CudaDevice:
        """The GPU with the least work in hand, as far as this process knows. Of several with as little, processes that
        share them take different ones."""
        if len(self.gpus) == 1:
            return self.gpus[0]
        choice = [gpu for gpu in self.gpus if gpu.out_of_service is None] or self.gpus
        first = self.neighbour.number % len(choice) if self.neighbour else 0
        return min((*choice[first:], *choice[:first]), key=lambda each: each.load)


class FallbackKernel:
    """Implements `Kernel`."""

    def __init__(self, work: Dispatchable | InitializedGraph, device: FallbackDevice) -> None:
        self._work = work
        self._device = device
        self._kernels: dict[str, Kernel] = {}
        self._numpy: Kernel | None = None

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        """As a kernel's. Raises LimitExceeded and MemoryExhausted where NumPy is to compute, too."""
        gpu = self._device.least_loaded()
        try:
            return self._on_gpu(gpu, inputs, outputs, cancelled)
        except DeviceFailed as failure:
            reason, cause = failure.reason, failure.cause
        # Not within that: a failure holds what the GPU worked on.
        others = [] if cause == "error" else [each for each in self._device.gpus if each is not gpu]
        ran = self._elsewhere(others, inputs, outputs, cancelled)
        return ExecutionRecord(ran.device, ran.kind, reason, gpu.name, cause)

    def _elsewhere(
        self,
        gpus: Sequence[CudaDevice],
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        cancelled: Callable[[], bool],
    ) -> ExecutionRecord:
        """By the first of `gpus` that is able to, else by NumPy."""
        for gpu in gpus:
            with suppress(DeviceFailed):
                return self._on_gpu(gpu, inputs, outputs, cancelled)
        if self._numpy is None:
            self._numpy = self._device.fallback.prepare(self._work)
        with self._device.memory.open() if self._device.memory else nullcontext() as share:
            if share:
                share.take(own_bytes(self._numpy))
            return staged("kernel", self._numpy.dispatch, inputs, outputs, cancelled)

    @property
    def runs_inline(self) -> bool:
        gpu = self._device.least_loaded()
        is_sound = gpu.out_of_service is None and monotonic() >= gpu.short_until
        return is_sound and self._kernel(gpu).runs_inline

    def _kernel(self, gpu: CudaDevice) -> Kernel:
        kernel = self._kernels.get(gpu.name)
        if kernel is None:
            kernel = self._kernels[gpu.name] = gpu.prepare(self._work)
        return kernel

    def _on_gpu(
        self, gpu: CudaDevice, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        kernel = self._kernel(gpu)
        targets = outputs
        if not isinstance(kernel, SmallKernel):  # which writes outputs when all is computed
            # In place, a GPU that fails halfway would leave half of the input: it works on a copy, which then replaces
            # it. What may be shared begins at the same place.
            places = {address_of(each) for each in inputs}
            targets = [memoryview(bytearray(each)) if address_of(each) in places else each for each in outputs]
        ran: ExecutionRecord | None = None
        try:
            ran = kernel.dispatch(inputs, targets, cancelled)
        except DeviceFailed as failure:
            if failure.cause != "memory":
                raise
        if ran is None:  # not within that: a failure holds what of the memory it had already
            gpu.short_until = monotonic() + SHORT_SECONDS
            gpu.free_memory()
            if self._device.neighbour is not None:
                seconds = 0.0 if _is_in_event_loop() else NEIGHBOURS_SECONDS
                self._device.neighbour.ask(gpu.ordinal, seconds, cancelled)
            ran = kernel.dispatch(inputs, targets, cancelled)
        for output, target in zip(outputs, targets, strict=True):
            if target is not output:
                output[:] = target
        return ran


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def find_gpus(
    settings: Settings, pinned: PinnedMemory, structures: Structures | None = None, team: Team | None = None
) -> tuple[list[CudaDevice], list[str]]:
    """The GPUs that `settings` permit and that work, for which a `team` copies, and why there are no others."""
    if settings.gpus == "none":
        return [], ["the setting gpus is none"]
    problem = _missing()
    if problem:
        return [], [problem]
    import cupy  # noqa: PLC0415 - only with a GPU extra

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return [], [f"CUDA does not start: {error}"]
    wanted = range(count) if settings.gpu_numbers is None else settings.gpu_numbers
    cache = KernelCache(Binaries(cache_folder(settings.kernel_cache)))
    found, problems = [], [] if count else ["there is no GPU"]
    for ordinal in wanted:
        if ordinal >= count:
            problems.append(f"there is no cuda:{ordinal}, only {count} GPU{'s' * (count != 1)}")
            continue
        try:
            found.append(CudaDevice(ordinal, cache, settings.staging_bytes, pinned, structures, team))
        except Exception as error:
            problems.append(f"cuda:{ordinal} does not start: {error}")
    return found, problems


def try_gpus(settings: Settings) -> None:
    """See whether the GPUs are there that nothing is to start without. Raises Unusable.

    It is for a process that only does this: CUDA, once started, does not survive a fork.
    """
    modest = settings.model_copy(update={"staging_bytes": 4 * MIB})
    check_gpus(settings, *find_gpus(modest, PinnedMemory(0)))


def check_gpus(settings: Settings, gpus: Sequence[CudaDevice], problems: Sequence[str]) -> None:
    """Raises Unusable where `gpus`, those that were found, are not all that `settings` name or require."""
    if settings.names_gpus and problems:
        raise Unusable(f"The setting gpus is {settings.gpus}, but {'; '.join(problems)}.")
    if settings.require_gpu and not gpus:
        raise Unusable(f"A GPU is required, but {'; '.join(problems)}.")


def _missing() -> str | None:
    """What a GPU needs and this machine lacks."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed; the extras cuda12 and cuda13 bring it"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1 cannot be loaded)"
    try:
        importlib.import_module("cupy")
    except Exception as error:
        return f"CuPy cannot be loaded: {_line(error)}"
    try:
        nvrtc_version()
    except Exception as error:
        return f"NVRTC cannot be loaded: {_line(error)}"
    return None


def _line(error: BaseException) -> str:
    """The first line of what it says."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def compile_ahead(gpus: Sequence[CudaDevice]) -> None:
    """Compile and load the packed kernels of AHEAD on all `gpus`. Raises DeviceFailed."""
    wanted = [(gpu, compiled) for compiled in samples() for gpu in gpus]

    def work(each: tuple[CudaDevice, CompiledOperator]) -> None:
        gpu, compiled = each
        with gpu.at_work(0):
            for kernel in gpu.kernels(compiled):
                kernel.launch()

    with ThreadPoolExecutor(4) as compilers:
        list(compilers.map(work, wanted))


def samples() -> list[CompiledOperator]:
    """Each operator of AHEAD with each data type it takes at the newest level."""
    made = []
    for name in AHEAD:
        operator = OPERATORS[name]
        row = operator.support.at(NEWEST)
        assert row is not None
        names = operator.tensor_names(Role.INPUT)
        for data_type in row.of(names[0]).data_types:
            desc = {"DataType": data_type, "Sizes": [1 << 12]}
            made.append(sample(name, dict.fromkeys(names, desc)))
    return made
