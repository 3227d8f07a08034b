"""An NVIDIA GPU: formulas as CUDA kernels, tensors moved through pinned memory while others are computed."""

import ctypes
import itertools
import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from app.devices.cuda.compiler import CompilationError, KernelCache
from app.devices.cuda.grids import (
    ACCESS_BYTES,
    KERNEL,
    THREADS,
    Layout,
    Step,
    choose_layout,
    elements_of_block,
    is_packed,
    render,
)
from app.devices.cuda.lowering import lower
from app.devices.cuda.pinned import ALIGNMENT, PinnedMemory, Slot, Slots, room
from app.devices.cuda.rows import RowClass, RowLowering, Rows
from app.devices.device import WHOLE_BYTES, Cancelled, DeviceFailed, DeviceInfo, ExecutionRecord, InTurn, Kernel
from app.devices.helpers import run_with
from app.devices.layout import walk
from app.formula.expansions import Ask
from app.formula.structures import Structures
from app.formula.uniform import Evaluate, evaluator, typed
from app.formula.values import Value
from app.memory.buffers import Buffer
from app.programs.dispatchable import Dispatchable

log = logging.getLogger("app.execution")

SLOTS = 8
"""Of a GPU, each served by one thread: so many copies on the host keep the bus as busy as copies can."""

MOST_CHUNK, LEAST_CHUNK = 8 << 20, 1 << 20
"""Bytes of one tensor that are moved at a time."""

STREAMS = 3
"""That take turns where nothing is copied on the host: one in, one computing, one out."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What does not change about a GPU and its software."""

    description: str
    compute_capability: str
    architecture: int
    driver_version: str
    runtime_version: str


class CudaDevice:
    """Implements `Device` on the GPU number `ordinal`, with threads, streams and pinned memory of its own.

    `staging_bytes` is how much pinned memory dispatches are moved through, as much again being taken on the device;
    buffers that lie in `pinned` are moved as they are. Sources of kernels are kept in `structures`.
    Dispatches raise DeviceFailed; once the GPU has failed for good, `out_of_service` says why.
    """

    kind: Literal["cpu", "cuda"] = "cuda"

    def __init__(
        self,
        ordinal: int,
        cache: KernelCache,
        staging_bytes: int,
        pinned: PinnedMemory,
        structures: Structures | None = None,
    ) -> None:
        import cupy  # noqa: PLC0415 - only with a GPU extra

        self._cupy = cupy
        self.ordinal = ordinal
        self.name = f"cuda:{ordinal}"
        self.out_of_service: str | None = None
        self.cache = cache
        self.structures = structures or Structures()
        self.use()
        self.facts = _facts(cupy, ordinal)
        self.pool: Any = cupy.cuda.MemoryPool()
        self.slots = Slots(SLOTS, staging_bytes // SLOTS // ALIGNMENT * ALIGNMENT)
        self.pinned = pinned
        self.copiers = ThreadPoolExecutor(SLOTS, thread_name_prefix=f"dmlserve-{self.name}", initializer=self.use)
        self.load = 0
        """Bytes that dispatches under way read and write."""
        self._functions: dict[str, Any] = {}
        self._lock = threading.Lock()

    def use(self) -> None:
        """Make this the GPU of the calling thread."""
        self._cupy.cuda.runtime.setDevice(self.ordinal)

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

    def close(self) -> None:
        """Stop the threads that copy."""
        self.copiers.shutdown()

    def function(self, source: str) -> int:
        """The handle of the kernel that `source` defines, loaded on this GPU."""
        found = self._functions.get(source)
        if found is None:
            binary = self.cache.binary(source, self.facts.architecture)
            with self._lock:
                found = self._functions.get(source)
                if found is None:
                    module = self._cupy.cuda.function.Module()
                    module.load(binary)
                    found = self._functions[source] = module.get_function(KERNEL)
        handle: int = found.ptr
        return handle

    def launch(self, function: int, blocks: int, stream: int, table: int) -> None:
        """Queue a kernel. `table` is the address of the addresses of its arguments."""
        self._cupy.cuda.driver.launchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, table, 0)

    def to_device(self, target: int, source: int, size: int, stream: Any) -> None:
        """Queue a copy from pinned memory."""
        self._cupy.cuda.runtime.memcpyAsync(target, source, size, 1, stream.ptr)

    def to_host(self, target: int, source: int, size: int, stream: Any) -> None:
        """Queue a copy to pinned memory."""
        self._cupy.cuda.runtime.memcpyAsync(target, source, size, 2, stream.ptr)

    @contextmanager
    def at_work(self, size: int) -> Iterator[None]:
        """Dispatches run in this: it counts their bytes, and tells errors of the GPU as DeviceFailed."""
        if self.out_of_service is not None:
            raise DeviceFailed("lost", f"{self.name} is out of service: {self.out_of_service}")
        with self._lock:
            self.load += size
        try:
            self.use()
            yield
        except self._errors as error:
            raise self._judge(error) from error
        except CompilationError as error:
            log.error("a kernel for %s was refused: %s", self.name, error)
            raise DeviceFailed("error", f"{self.name} has no kernel for this operator") from error
        finally:
            with self._lock:
                self.load -= size

    def free_memory(self) -> None:
        """Give back what no dispatch uses."""
        self.use()
        self.pool.free_all_blocks()

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        cuda = self._cupy.cuda
        return (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError, cuda.memory.OutOfMemoryError)

    def _judge(self, error: Exception) -> DeviceFailed:
        """What became of the GPU. Memory may come back; a context that does not answer any more never does."""
        if isinstance(error, self._cupy.cuda.memory.OutOfMemoryError) or getattr(error, "status", None) == 2:
            return DeviceFailed("memory", f"{self.name} has no memory left for this dispatch")
        try:
            self._cupy.cuda.runtime.deviceSynchronize()
        except self._errors as lost:
            with self._lock:
                first = self.out_of_service is None
                self.out_of_service = self.out_of_service or str(lost)
            if first:
                log.error("%s is taken out of service: %s", self.name, lost)
            return DeviceFailed("lost", f"{self.name} is out of service: {self.out_of_service}")
        log.error("a dispatch on %s failed: %s", self.name, error)
        return DeviceFailed("error", f"{self.name} could not run this dispatch")


class Launch:
    """A kernel with its arguments laid out, to be queued again and again. One thread uses it at a time."""

    def __init__(
        self, device: CudaDevice, source: str, per_block: int, tensors: int, arguments: Sequence[object]
    ) -> None:
        self._device = device
        self._function = device.function(source)
        self._per_block = per_block
        self._pointers = (ctypes.c_uint64 * tensors)()
        self._count = ctypes.c_uint64()
        self._kept = [np.asarray(argument) for argument in arguments]
        start = ctypes.addressof(self._pointers)
        places = [start + 8 * n for n in range(tensors)] + [ctypes.addressof(self._count)]
        places += [array.ctypes.data for array in self._kept]
        self._table = (ctypes.c_void_p * len(places))(*places)
        self._address = ctypes.addressof(self._table)
        self._blocks = 0

    def bind(self, pointers: Sequence[int], count: int) -> "Launch":
        """Set the tensors' addresses on the device and how many elements are computed."""
        for number, pointer in enumerate(pointers):
            self._pointers[number] = pointer
        self._count.value = count
        self._blocks = -(-count // self._per_block)
        return self

    def __call__(self, stream: int) -> None:
        """Queue it on `stream`, a handle."""
        self._device.launch(self._function, self._blocks, stream, self._address)


@dataclass(frozen=True, slots=True)
class _Form:
    """A kernel for all sizes and numbers: its source, elements or groups of a block, and its last arguments, each with
    its type."""

    source: str
    per_block: int
    arguments: tuple[tuple[str, Evaluate], ...]

    @classmethod
    def of(cls, source: str, per_block: int, arguments: Sequence[Value]) -> "_Form":
        return cls(source, per_block, tuple((each.type, evaluator(each)) for each in arguments))


class CudaKernel:
    """Implements `Kernel`. Lowered when it is first wanted, and compiled in the thread that dispatches."""

    runs_inline = False

    def __init__(self, compiled: Dispatchable, output: str, device: CudaDevice) -> None:
        self._device = device
        self._map, made = compiled.program.maps[output], compiled.outputs[output]
        self._inputs = list(compiled.program.inputs.items())
        self._numbers = compiled.numbers
        descs = [*compiled.inputs.values(), made]
        self._sizes, self._strides = walk(compiled, output)
        self._bytes = [data_type.bytes for data_type in compiled.element_types(output)]
        self._reach = [desc.data_bytes for desc in descs]
        self._gapless = made.gapless
        self._count = prod(self._sizes)
        self._steps = choose_layout(self._sizes, self._strides, self._bytes, aligned=True).steps
        self._rows = Rows.of(compiled, output) if self._map.axes else None
        self._chunked = (
            self._rows is None
            and len(self._sizes) == 1
            and Step.ANY not in self._steps
            and self._steps[-1] is Step.UNIT
        )

    def launch(self, *, aligned: bool = True) -> Launch:
        """The kernel for device-resident tensors: to be bound to their addresses, the output's last."""
        if self._rows:
            kind = self._rows.kind
            form = self._find(kind, lambda ask: self._row_form(ask, kind))
            return self._launch(form, [self._rows.shape])
        layout = choose_layout(self._sizes, self._strides, self._bytes, aligned=aligned)
        shape = [] if is_packed(layout) else [np.array([*self._sizes, *itertools.chain(*self._strides)], np.uint32)]
        return self._launch(self._find(layout, lambda ask: self._form(ask, layout)), shape)

    def _find(self, layout: Hashable, build: "Callable[[Ask], _Form]") -> "_Form":
        return self._device.structures.find(
            ("cuda", self._map, layout), self._numbers, lambda questions: build(questions.ask)
        )

    def _form(self, ask: Ask, layout: Layout) -> "_Form":
        arithmetic = lower(ask, self._map.expression, self._inputs, self._map.stored)
        elements = elements_of_block(arithmetic, layout)
        return _Form.of(render(arithmetic, layout), elements, arithmetic.arguments)

    def _row_form(self, ask: Ask, kind: RowClass) -> "_Form":
        lowering = RowLowering(ask, self._map.expression, self._inputs, self._map.stored)
        source, arguments = lowering.source(kind)
        return _Form.of(source, 1, arguments)

    def _launch(self, form: "_Form", shape: Sequence[object]) -> Launch:
        arguments = [typed(type_, evaluate(self._numbers)) for type_, evaluate in form.arguments]
        return Launch(self._device, form.source, form.per_block, len(self._bytes), [*shape, *arguments])

    def bind(self, pointers: Sequence[int]) -> Launch:
        """The kernel over tensors on the device at these addresses, ready to be queued."""
        return self.launch(aligned=all(pointer % ACCESS_BYTES == 0 for pointer in pointers)).bind(
            pointers, self._rows.groups if self._rows else self._count
        )

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        buffers = [
            _Host(buffer, size, self._device.pinned)
            for buffer, size in zip([*inputs, *outputs], self._reach, strict=True)
        ]
        with self._device.at_work(sum(self._reach)):
            if self._chunked:
                self._dispatch_chunks(buffers, cancelled)
            else:
                self._dispatch_whole(buffers, cancelled)
        return ExecutionRecord(self._device.name, self._device.kind)

    # Tensors that lie alike: chunk by chunk, no more memory on the device than the slots have

    def _dispatch_chunks(self, buffers: Sequence["_Host"], cancelled: Callable[[], bool]) -> None:
        fits = room(self._device.slots.size, len(buffers))
        widest = max(self._bytes)
        wanted = min(max(self._count * widest // (2 * SLOTS), LEAST_CHUNK), MOST_CHUNK, fits)
        elements = max(wanted // widest // 16 * 16, 1)
        starts = range(0, self._count, elements)
        if all(buffer.pinned for buffer in buffers):
            self._stream_chunks(buffers, starts, elements, cancelled)
            return

        def prepare(slot: Slot) -> Callable[[int], None]:
            launch = self.launch()

            def work(turn: int) -> None:
                start = starts[turn]
                self._queue_chunk(slot, launch, buffers, start, min(elements, self._count - start), staged=True)

            return work

        self._spread(len(starts), prepare, cancelled)

    def _stream_chunks(
        self, buffers: Sequence["_Host"], starts: Sequence[int], elements: int, cancelled: Callable[[], bool]
    ) -> None:
        """Nothing to copy on the host: one thread keeps several streams busy."""
        slots = self._device.slots
        with ExitStack() as stack:
            taken = [stack.enter_context(slots.take())]
            for _ in range(min(STREAMS, len(starts)) - 1):
                slot = stack.enter_context(slots.take_idle())
                taken += [slot] if slot else []
            launches = [self.launch() for _ in taken]
            try:
                for turn, start in enumerate(starts):
                    if cancelled():
                        raise Cancelled
                    number = turn % len(taken)
                    count = min(elements, self._count - start)
                    self._queue_chunk(taken[number], launches[number], buffers, start, count, staged=False)
            finally:
                for slot in taken:  # the buffers are the GPU's until then
                    slot.stream.synchronize()

    def _queue_chunk(
        self, slot: Slot, launch: Launch, buffers: Sequence["_Host"], start: int, count: int, *, staged: bool
    ) -> None:
        """Copies in, kernel, copy out. If `staged`, through the slot's pinned memory where needed, and waited for."""
        device, space = self._device, room(slot.size, len(buffers))
        places = [slot.address + space * number for number in range(len(buffers))]
        spans = [
            slice(0, size) if step is Step.NONE else slice(start * size, (start + count) * size)
            for size, step in zip(self._bytes, self._steps, strict=True)
        ]
        last = len(buffers) - 1
        for number in range(last):
            device.to_device(
                places[number],
                buffers[number].reading(slot, space * number, spans[number]),
                spans[number].stop - spans[number].start,
                slot.stream,
            )
        launch.bind(places, count)(slot.stream.ptr)
        out, span = buffers[last], spans[last]
        size = span.stop - span.start
        target = out.address + span.start if out.pinned else slot.host_address + space * last
        device.to_host(target, places[last], size, slot.stream)
        if staged:
            slot.stream.synchronize()
            if not out.pinned:
                out.bytes[span] = slot.host[space * last : space * last + size]

    # Any layout: whole tensors on the device

    def _dispatch_whole(self, buffers: Sequence["_Host"], cancelled: Callable[[], bool]) -> None:
        device = self._device
        moved = [*buffers[:-1], *([] if self._gapless else buffers[-1:])]  # what is between elements stays as it is
        memory = [device.pool.malloc(buffer.size) for buffer in buffers]
        try:
            self._move(list(zip(moved, memory, strict=False)), cancelled, inward=True)
            with device.slots.take() as slot:
                self.bind([each.ptr for each in memory])(slot.stream.ptr)
                slot.stream.synchronize()
            self._move([(buffers[-1], memory[-1])], cancelled, inward=False)
        finally:
            del memory

    def _move(self, pairs: Sequence[tuple["_Host", Any]], cancelled: Callable[[], bool], *, inward: bool) -> None:
        device = self._device
        most = min(MOST_CHUNK, device.slots.size)
        parts = [(host, memory.ptr, start) for host, memory in pairs for start in range(0, host.size, most)]

        def prepare(slot: Slot) -> Callable[[int], None]:
            def work(turn: int) -> None:
                host, address, start = parts[turn]
                span = slice(start, min(start + most, host.size))
                size = span.stop - span.start
                if inward:
                    device.to_device(address + start, host.reading(slot, 0, span), size, slot.stream)
                    slot.stream.synchronize()
                    return
                pinned = host.address + start if host.pinned else slot.host_address
                device.to_host(pinned, address + start, size, slot.stream)
                slot.stream.synchronize()
                if not host.pinned:
                    host.bytes[span] = slot.host[:size]

            return work

        self._spread(len(parts), prepare, cancelled)

    def _spread(
        self, count: int, prepare: Callable[[Slot], Callable[[int], None]], cancelled: Callable[[], bool]
    ) -> None:
        """Do `count` pieces of work, on this thread and on as many others as slots are free."""
        turns = itertools.count()  # hands each piece to one thread

        def work() -> None:
            with self._device.slots.take() as slot:
                piece: Callable[[int], None] | None = None
                while (turn := next(turns)) < count:
                    if cancelled():
                        raise Cancelled
                    piece = piece or prepare(slot)
                    piece(turn)

        run_with(self._device.copiers, min(count, self._device.slots.idle()) - 1, work)


class _Host:
    """A tensor's buffer on the host: the `size` bytes that its layout reaches."""

    def __init__(self, buffer: Buffer, size: int, pinned: PinnedMemory) -> None:
        self.size = size
        self.bytes = np.frombuffer(buffer, np.uint8)
        self.address: int = self.bytes.__array_interface__["data"][0]
        self.pinned = pinned.holds(self.address, size)

    def reading(self, slot: Slot, offset: int, span: slice) -> int:
        """An address in pinned memory where the bytes of `span` are, copied there first if they are elsewhere."""
        if self.pinned:
            return self.address + int(span.start)
        size = span.stop - span.start
        slot.host[offset : offset + size] = self.bytes[span]
        return slot.host_address + offset


def _facts(cupy: Any, ordinal: int) -> Facts:
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(ordinal)
    major, minor = properties["major"], properties["minor"]
    name = properties["name"].decode()
    driver, library = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    return Facts(
        description=f"{name}, CuPy {cupy.__version__}",
        compute_capability=f"{major}.{minor}",
        architecture=10 * major + minor,
        driver_version=_dotted(driver),
        runtime_version=_dotted(library),
    )


def _dotted(version: int) -> str:
    """CUDA's numbers: 13000 is 13.0."""
    return f"{version // 1000}.{version % 1000 // 10}"
