"""Kernels of formulas on a GPU: launches over tensors there, and dispatches, in chunks, of tensors that lie alike."""

import ctypes
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from app.devices.cuda.chunks import Chunks, Way
from app.devices.cuda.context import Context
from app.devices.cuda.coordinates import CoordinateLowering
from app.devices.cuda.grids import THREADS, elements_of_block, is_packed, render
from app.devices.cuda.groups import MOST_ELEMENTS, RowClass, Rows
from app.devices.cuda.layouts import ACCESS_BYTES, Access, Layout, choose_layout, tiles_of
from app.devices.cuda.lowering import lower
from app.devices.cuda.pinned import Slot
from app.devices.cuda.places import CoordinateClass, Coordinates
from app.devices.cuda.rows import RowLowering
from app.devices.cuda.splits import SplitLowering, Splits
from app.devices.cuda.transfers import HostTensor
from app.devices.device import DeviceFailed, ExecutionRecord
from app.devices.layout import walk
from app.formula.expansions import Ask
from app.formula.uniform import Evaluate, evaluator, typed
from app.formula.values import Value
from app.memory.buffers import Buffer
from app.programs.dispatchable import Dispatchable
from app.stages import staged

BROUGHT_BYTES = 32
"""Of the host's memory that a GPU reads, what comes at a time."""

FIRST_BYTES = 1 << 20
"""Of all tensors together, of which a first dispatch is taken to be brief."""

BRIEF_SECONDS = 0.0005
"""What a thread that has other things to do may wait for: to hand a dispatch to another one, and its end back, takes
half of that where processors sleep."""


@dataclass(frozen=True, slots=True)
class _Form:
    """A kernel for all sizes and numbers: its source, what a block computes, and the last arguments, each with its
    type."""

    source: str
    per_block: int
    """Elements or groups; 0 where blocks are counted."""
    arguments: tuple[tuple[str, Evaluate], ...]
    is_long: bool = False
    """Whether it computes for longer than tensors are on their way."""
    threads: int = THREADS
    """Of a block."""
    cluster: int = 1
    """Blocks that compute together what is one's otherwise."""

    @classmethod
    def of(cls, source: str, per_block: int, arguments: Sequence[Value], **more: Any) -> "_Form":
        return cls(source, per_block, tuple((each.type, evaluator(each)) for each in arguments), **more)


_Kind: TypeAlias = RowClass | CoordinateClass | Layout
"""What of tensors' layouts chooses code."""


class Launch:
    """A kernel with its arguments laid out, to be queued again and again. One thread uses it at a time."""

    def __init__(self, device: Context, form: _Form, tensors: int, arguments: Sequence[object]) -> None:
        self._device = device
        self._is_long = form.is_long
        self._threads, self._cluster = form.threads, form.cluster
        self._function = device.function(form.source)
        self.per_block = form.per_block
        self._pointers = (ctypes.c_uint64 * tensors)()
        self._count = ctypes.c_uint64()
        self._kept = [np.asarray(argument) for argument in arguments]
        start = ctypes.addressof(self._pointers)
        places = [start + 8 * n for n in range(tensors)] + [ctypes.addressof(self._count)]
        places += [array.ctypes.data for array in self._kept]
        self._table = (ctypes.c_void_p * len(places))(*places)
        self._address = ctypes.addressof(self._table)
        self._blocks = self._shared = 0

    def bind(self, pointers: Sequence[int], count: int, *, on_host: bool = False) -> "Launch":
        """Set the tensors' addresses on the device, or in pinned memory on the host, and how many elements, or blocks,
        are computed.

        Of the host's memory few blocks at a time read and write: if all that the GPU has room for begin with their
        loads, nothing is written until these are done, and the way is used in one direction at a time.
        """
        self._shared = self._device.shared_of_few if on_host and not self._is_long else 0
        for number, pointer in enumerate(pointers):
            self._pointers[number] = pointer
        self._count.value = count
        self._blocks = -(-count // max(self.per_block, 1)) * self._cluster
        return self

    def __call__(self, stream: Any) -> None:
        """Queue it on `stream`, CuPy's."""
        self._device.launch(self._function, self._blocks, self._threads, stream, self._address, self._shared)


class Launches:
    """Kernels one after the other, with memory that they alone use."""

    def __init__(self, launches: Sequence[Launch], memory: Any) -> None:
        self._launches = launches
        self._memory = memory

    def __call__(self, stream: Any) -> None:
        """Queue them on `stream`, CuPy's."""
        for launch in self._launches:
            launch(stream)


class CudaKernel:
    """One output's kernel. Lowered when it is first wanted, and compiled in the thread that dispatches.

    Implements `Kernel` for an output that `is_chunked`.
    """

    def __init__(self, compiled: Dispatchable, output: str, device: Context) -> None:
        self._device = device
        self._took: float | None = None
        """Seconds, the last dispatch."""
        self._map, made = compiled.program.maps[output], compiled.outputs[output]
        self._inputs = list(compiled.program.inputs.items())
        self._numbers = compiled.numbers
        self._bytes = [data_type.bytes for data_type in compiled.element_types(output)]
        self._reach = [desc.data_bytes for desc in (*compiled.inputs.values(), made)]
        self._size = sum(self._reach)
        self._count = made.elements
        self._rows = Rows.of(compiled, output) if self._map.axes else None
        self._coordinates = Coordinates.of(compiled, output, device.structures) if self._map.by_coordinates else None
        self._splits = Splits.of(compiled, output, self._coordinates) if self._coordinates else None
        self._kinds: dict[bool, _Kind] = {}
        """Of tensors that are aligned, and of those that are not."""
        self._sought: dict[_Kind, _Form] = {}
        self._launches: dict[int, Launch] = {}  # by the slot's address: one thread at a time has the slot
        self._chunks: dict[tuple[Way, ...], Chunks] = {}
        self.is_chunked = False
        """Whether tensors lie alike, so that parts of them can be computed by themselves."""
        if self._coordinates is None:
            self._sizes, self._strides = walk(compiled, output)
            self._aligned = choose_layout(self._sizes, self._strides, self._bytes, aligned=True)
            steps = self._aligned.steps
            alike = len(self._sizes) == 1 and Access.ANY not in steps and steps[-1] is Access.UNIT
            self.is_chunked = self._rows is None and alike

    @property
    def runs_inline(self) -> bool:
        """While nothing runs on the GPU that it would wait for, if the last dispatch did not take long; a first one, if
        it is small."""
        return self._is_brief and not self._device.long_dispatches

    @property
    def _is_brief(self) -> bool:
        if self._took is None:
            return self._size <= FIRST_BYTES and self.is_loaded
        return self._took < BRIEF_SECONDS

    @property
    def suits_host(self) -> bool:
        """Whether it is at home in the host's memory too: it reads each element once, and of what the bus brings at a
        time more than one."""
        if self._coordinates is not None:
            return False
        apart = (each[-1] * size for each, size in zip(self._strides, self._bytes, strict=True))
        return bool(self._aligned.tile) or all(step < BROUGHT_BYTES for step in apart)

    def launch(self, *, aligned: bool = True) -> Launch:
        """The kernel for device-resident tensors: to be bound to their addresses, the output's last.

        Raises DeviceFailed if it would keep the GPU busy for long, or has a group of too many elements to count.
        """
        kind = self._kind(aligned)
        form = self._form_of(kind)
        self._check(shared=form.per_block not in (0, THREADS))
        return self._launch(form, self._shape(kind))

    def _form_of(self, kind: _Kind) -> _Form:
        made = self._sought.get(kind)
        if made is None:
            made = self._sought[kind] = self._device.structures.find(
                ("cuda", self._map, kind), self._numbers, lambda questions: self._form(questions.ask, kind)
            )
        return made

    def _known_form(self, kind: _Kind) -> _Form | None:
        """If one was made, for this kernel or another like it."""
        made = self._sought.get(kind)
        if made is None:
            made = self._device.structures.known(("cuda", self._map, kind), self._numbers)
            if made is not None:
                self._sought[kind] = made
        return made

    def sources(self) -> list[str]:
        """Those of what the GPU runs, of tensors that are aligned."""
        forms = self._forms_of(self._splits) if self._splits else [self._form_of(self._kind(aligned=True))]
        return [form.source for form in forms]

    def _check(self, *, shared: bool) -> None:
        places, rows = self._coordinates, self._rows
        if rows and rows.elements >= MOST_ELEMENTS:
            raise DeviceFailed("error", f"{self._device.name} does not count {rows.elements} elements of a group")
        if places and places.is_too_much(shared=shared):
            work = f"{places.elements} elements of {places.terms} terms"
            raise DeviceFailed("error", f"{self._device.name} cannot be stopped once it computes {work}")

    @property
    def values(self) -> int:
        """How many are computed, those that are added up among them."""
        return self._coordinates.elements * self._coordinates.terms if self._coordinates else self._count

    @property
    def is_loaded(self) -> bool:
        """Whether the GPU has the kernel, for tensors that are aligned."""
        if self._splits:
            forms = self._device.structures.known(("cuda splits", self._map, self._splits.kind), self._numbers)
            return forms is not None and all(self._device.has_function(form.source) for form in forms)
        form = self._known_form(self._kind(aligned=True))  # which those who ask will want
        return form is not None and self._device.has_function(form.source)

    def _kind(self, aligned: bool) -> _Kind:
        """What of the tensors' layouts chooses code."""
        known = self._kinds.get(aligned)
        if known is None:
            known = self._kinds[aligned] = self._kind_of(aligned)
        return known

    def _kind_of(self, aligned: bool) -> _Kind:
        if self._rows:
            return self._rows.kind(aligned=aligned, clustered=self._device.clustered)
        if self._coordinates:
            return self._coordinates.kind if aligned else replace(self._coordinates.kind, packed=())
        return self._layout(aligned)

    def _layout(self, aligned: bool) -> Layout:
        return self._aligned if aligned else choose_layout(self._sizes, self._strides, self._bytes, aligned=False)

    def _shape(self, kind: _Kind) -> list[object]:
        """What tells the kernel sizes and strides."""
        if self._rows:
            return [self._rows.shape]
        if self._coordinates:
            return [self._coordinates.shape]
        assert isinstance(kind, Layout)
        return [] if is_packed(kind) else [np.array([*self._sizes, *itertools.chain(*self._strides)], np.uint32)]

    def _form(self, ask: Ask, kind: _Kind) -> _Form:
        expression, stored = self._map.expression, self._map.stored
        if isinstance(kind, RowClass):
            source, arguments = RowLowering(ask, expression, self._inputs, stored).source(kind)
            threads, cluster = kind.threads_of_block, kind.blocks_of_group
            return _Form.of(source, kind.groups_of_block, arguments, threads=threads, cluster=cluster)
        if isinstance(kind, CoordinateClass):
            return _Form.of(*CoordinateLowering(ask, expression, self._inputs, stored).source(kind))
        arithmetic = lower(ask, expression, self._inputs, stored)
        source, per_block = render(arithmetic, kind), elements_of_block(arithmetic, kind)
        return _Form.of(source, per_block, arithmetic.arguments, is_long=arithmetic.is_long)

    def _launch(self, form: _Form, shape: Sequence[object], tensors: int = 0) -> Launch:
        arguments = [typed(type_, evaluate(self._numbers)) for type_, evaluate in form.arguments]
        return Launch(self._device, form, tensors or len(self._bytes), [*shape, *arguments])

    def bind(self, pointers: Sequence[int], pool: Any = None) -> Launch | Launches:
        """The kernel over tensors on the device at these addresses, ready to be queued. What it needs besides is taken
        from `pool`, the device's if there is none."""
        aligned = _are_aligned(pointers)
        if self._splits:
            return self._bind_splits(self._splits.on(aligned=aligned), pointers, pool or self._device.pool)
        return self._bind(self.launch(aligned=aligned), pointers, aligned=aligned)

    def bind_again(self) -> Callable[[Sequence[int]], Launch]:
        """What binds the same launch, for one thread, to other tensors again and again. Of a formula by position."""
        launches: dict[bool, Launch] = {}

        def bind(pointers: Sequence[int]) -> Launch:
            aligned = _are_aligned(pointers)
            if aligned not in launches:
                launches[aligned] = self.launch(aligned=aligned)
            return self._bind(launches[aligned], pointers, aligned=aligned)

        return bind

    def _bind(self, launch: Launch, pointers: Sequence[int], *, aligned: bool) -> Launch:
        places = self._coordinates
        if places and (launch.per_block == 0 or places.kind.width > 1):
            return launch.bind(pointers, places.pieces)
        if launch.per_block == 0:
            return launch.bind(pointers, tiles_of(self._sizes, self._layout(aligned)))
        return launch.bind(pointers, self._rows.groups if self._rows else self._count)

    def _bind_splits(self, splits: Splits, pointers: Sequence[int], pool: Any) -> Launches:
        forms = self._forms_of(splits)
        self._check(shared=True)
        memory = pool.malloc(splits.scratch_bytes)
        launches = [self._launch(form, [splits.shape], len(self._bytes) + 1) for form in forms]
        for launch in launches:
            launch.bind([*pointers, memory.ptr], splits.elements if launch.per_block else splits.blocks)
        return Launches(launches, memory)

    def _forms_of(self, splits: Splits) -> tuple[_Form, ...]:
        made: tuple[_Form, ...] = self._device.structures.find(
            ("cuda splits", self._map, splits.kind), self._numbers, lambda questions: self._forms(questions.ask, splits)
        )
        return made

    def _forms(self, ask: Ask, splits: Splits) -> tuple[_Form, ...]:
        """The kernels, in their order."""
        expression, stored, kind, made = self._map.expression, self._map.stored, splits.kind, []
        for number in range(splits.stages):
            first, second = (SplitLowering(ask, expression, self._inputs, stored) for _ in range(2))
            source, arguments = first.partial(kind, number)
            made.append(_Form.of(source, 0, arguments))
            source, arguments = second.joined(kind, number)
            made.append(_Form.of(source, 1 if kind.joined_by_blocks else THREADS, arguments))
        return tuple(made)

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        device = self._device
        hosts = [
            HostTensor(buffer, size, device.pinned)
            for buffer, size in zip([*inputs, *outputs], self._reach, strict=True)
        ]
        with device.at_work(self._size, is_brief=self._is_brief):
            started = perf_counter()
            chunks = self._chunks_of(hosts)
            if not self._launches:
                device.compile_ahead(self.sources())  # who holds a slot meanwhile keeps others waiting
            staged("kernel", chunks.dispatch, hosts, self._launch_of, cancelled)  # while others are on their way
            self._took = perf_counter() - started
        return device.ran

    def _chunks_of(self, hosts: Sequence[HostTensor]) -> Chunks:
        out, sizes = hosts[-1], self._bytes
        ways = tuple(Way.of(host, size, out, sizes[-1], self._device) for host, size in zip(hosts, sizes, strict=True))
        chunks = self._chunks.get(ways)
        if chunks is None:
            are_one = [step is Access.NONE for step in self._aligned.steps]
            chunks = Chunks(self._device, ways, self._size, sizes, are_one, self._count)
            self._chunks[ways] = chunks
        return chunks

    def _launch_of(self, slot: Slot) -> Launch:
        """That of aligned tensors: one thread at a time has the slot."""
        launch = self._launches.get(slot.address)
        if launch is None:
            launch = self._launches[slot.address] = self.launch()
        return launch


def _are_aligned(pointers: Sequence[int]) -> bool:
    """To what a thread loads at once."""
    return all(pointer % ACCESS_BYTES == 0 for pointer in pointers)
