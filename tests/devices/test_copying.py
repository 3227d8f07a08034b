"""Memory copied by several threads, and tensors on the host computed in chunks."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.copying import WAKING, WORTH, Copying
from app.devices.cpu.llvm.team import Team
from app.devices.cuda import chunks
from app.devices.cuda.chunks import Chunks, Way
from app.devices.cuda.transfers import HostTensor, move
from app.devices.device import Cancelled
from app.memory.arrays import Array
from tests.devices.cuda_device_on_cpu import CHUNK, CudaDeviceOnCpu
from tests.devices.cuda_on_cpu import BuiltKernels

GUARD = 64


def never() -> bool:
    return False


@pytest.fixture(scope="module", params=[None, 1, 4])
def copying(request: pytest.FixtureRequest) -> Copying:
    return Copying(Team(Compiler(), request.param) if request.param else None)


@pytest.mark.parametrize("size", [1, 4095, 4097, WORTH - 1, WORTH, 3 * WORTH + 5, WAKING + 1, 5 * WAKING - 3])
def test_all_bytes_are_copied_and_no_others(copying: Copying, size: int) -> None:
    source = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    target = np.full(size + 2 * GUARD, 7, np.uint8)
    copying.copy(target.ctypes.data + GUARD, source.ctypes.data, size, size)
    assert np.array_equal(target[GUARD : GUARD + size], source)
    assert (target[:GUARD] == 7).all()
    assert (target[GUARD + size :] == 7).all()


def test_threads_that_copy_at_once_do_not_meet() -> None:
    copying, wrong = Copying(Team(Compiler(), 3)), []

    def work(number: int) -> None:
        source = np.full(2 * WAKING, number, np.uint8)
        for _ in range(30):
            target = np.zeros(2 * WAKING, np.uint8)
            copying.copy(target.ctypes.data, source.ctypes.data, target.nbytes, target.nbytes)
            if not np.array_equal(target, source):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Halves:
    """A kernel, of a sum of the inputs, which notes the addresses that it was bound to."""

    def __init__(self, are_one: Sequence[bool]) -> None:
        self._are_one = are_one
        self.bound: list[list[int]] = []
        self.on_host: set[bool] = set()

    def bind(self, pointers: Sequence[int], count: int, *, on_host: bool) -> Callable[[object], None]:
        self.bound.append([*pointers])
        self.on_host.add(on_host)

        def run(_: object) -> None:
            sizes = [1 if is_one else count for is_one in self._are_one]
            held: list[Any] = [
                (ctypes.c_float * size).from_address(at) for at, size in zip(pointers, sizes, strict=True)
            ]
            *inputs, output = (np.frombuffer(each, np.float32) for each in held)
            output[:] = sum(inputs)

        return run


def room(count: int, offset: int = 0) -> Array:
    """Float32 that begin `offset` bytes after a multiple of 16."""
    memory = np.zeros(4 * count + 32, np.uint8)
    start = -memory.ctypes.data % 16 + offset
    return memory[start : start + 4 * count].view(np.float32)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> CudaDeviceOnCpu:
    return CudaDeviceOnCpu(BuiltKernels(tmp_path_factory.mktemp("kernels")))


@pytest.mark.parametrize("why_not", ["", "large", "other addresses"])
@pytest.mark.parametrize("offset", [0, 4])
@pytest.mark.parametrize("pinned", ["", "i", "o", "io"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_kernel_has_what_is_pinned_and_aligned_where_it_is(
    gpu: CudaDeviceOnCpu,
    pinned: str,
    offset: int,
    in_place: bool,
    why_not: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunks, "ON_HOST", {False: 0, True: 0} if why_not == "large" else chunks.ON_HOST)
    monkeypatch.setattr(gpu, "uses_host_addresses", why_not != "other addresses")
    count = 5000
    x, one = room(count, offset), room(1)
    x[:], one[0] = np.random.default_rng(0).standard_normal(count), 3
    y = x if in_place else room(count, offset)
    expected, given = x + 3, (x.ctypes.data, y.ctypes.data)
    known = [each.ctypes.data for each, kind in ((x, "i"), (y, "o")) if kind in pinned]
    holder: Any = SimpleNamespace(holds=lambda address, _: address in known)
    hosts = [HostTensor(each.data.cast("B"), each.nbytes, holder) for each in (x, one, y)]
    are_one = [False, True, False]
    kernel = Halves(are_one)
    ways = [Way.of(each, 4, hosts[-1], 4, gpu) for each in hosts]
    Chunks(gpu, ways, sum(each.size for each in hosts), [4, 4, 4], are_one, count).dispatch(
        hosts, lambda _: kernel, never
    )
    assert np.array_equal(y, expected)
    slot = gpu.slots._slot
    held_on_device = range(slot.address, slot.address + CHUNK)
    assert kernel.on_host == {not all(each in held_on_device for each in kernel.bound[0])}
    if pinned in ("io", "i" * in_place, "o" * in_place) and pinned and offset == 0 and not why_not:
        assert len(kernel.bound) == 1, "nothing is to be cut where nothing is copied"
    for (first, _, last), direct in zip([kernel.bound[0]], [not why_not and offset == 0], strict=True):
        assert (first == given[0]) == (given[0] in known and direct)
        assert (last == given[1]) == (given[1] in known and direct)
    for bound in kernel.bound:
        assert slot.address <= bound[1] < slot.address + CHUNK, "what all threads read is on the device"
        for address in bound:
            held = [(slot.address, CHUNK), (slot.host_address, CHUNK), *((each, 4 * count) for each in given)]
            assert any(start <= address < start + size for start, size in held)


def test_a_kernel_that_was_cancelled_leaves_nothing_under_way(gpu: CudaDeviceOnCpu) -> None:
    x, y = room(5000), room(5000)
    hosts = [HostTensor(each.data.cast("B"), each.nbytes, gpu.pinned) for each in (x, y)]
    kernel = Halves([False, False])
    gpu.log.clear()
    with pytest.raises(Cancelled):
        Chunks(gpu, [Way.SLOT] * 2, 40_000, [4, 4], [False, False], 5000).dispatch(
            hosts, lambda _: kernel, lambda: len(kernel.bound) == 3
        )
    assert len(kernel.bound) == 3
    assert gpu.log.count("synchronized") == 3
    assert gpu.slots.taken == 0


@pytest.mark.parametrize("is_pinned", [False, True])
def test_tensors_are_moved_in_parts(gpu: CudaDeviceOnCpu, is_pinned: bool) -> None:
    rng = np.random.default_rng(1)
    sources = [rng.integers(0, 256, size, np.uint8) for size in (1, CHUNK, 2 * CHUNK + 3)]
    holder: Any = SimpleNamespace(holds=lambda *_: is_pinned)
    memory = [np.full(len(each), 9, np.uint8) for each in sources]
    back = [np.zeros(len(each), np.uint8) for each in sources]
    for hosts, inward in ((sources, True), (back, False)):
        pairs = [
            (HostTensor(host.data, len(host), holder), there.ctypes.data)
            for host, there in zip(hosts, memory, strict=True)
        ]
        move(gpu, pairs, never, inward=inward)
    for source, there, came in zip(sources, memory, back, strict=True):
        assert np.array_equal(there, source)
        assert np.array_equal(came, source)
