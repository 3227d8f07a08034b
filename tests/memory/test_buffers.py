"""The pool of buffers: bounded, and no buffer in two hands."""

import ctypes
import errno
import gc
import mmap
import os
import sys
import threading
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import app.memory.buffers
from app.memory.buffers import SMALLEST, Buffer, BufferPool, beginning, fresh
from tests.forked import forked

MIB = 1 << 20


def address(buffer: Buffer) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


@given(st.integers(0, 5 * MIB))
def test_has_the_size_asked_for_and_little_more(size: int) -> None:
    pool = BufferPool(1 << 30)
    buffer = pool.take(size)
    assert (buffer.nbytes, buffer.format, buffer.readonly, buffer.c_contiguous) == (size, "B", False, True)
    buffer[:] = bytes([7]) * size
    del buffer
    kept = pool.idle_bytes
    assert kept == 0 if size < SMALLEST else size <= kept <= max(1.125 * size, size + 4096)


def test_sizes_are_eight_for_each_power_of_two() -> None:
    """So that what one request had fits others, too."""
    pool, kept = BufferPool(1 << 30), set()
    for size in range(MIB + 1, 2 * MIB + 1, 5000):
        pool.take(size)
        kept.add(pool.idle_bytes)
        pool.room = 0
        pool.settle()
        pool.room = 1 << 30
    assert kept == {MIB + number * MIB // 8 for number in range(1, 9)}


def test_comes_back_with_its_last_view() -> None:
    pool = BufferPool(1 << 30)
    buffer = pool.take(MIB)
    place = address(buffer)
    array: Any = np.frombuffer(buffer, np.float32)[5:10]
    view = buffer[7:9]
    others = []
    for name in ("buffer", "array", "view"):
        assert pool.idle_bytes == 0
        others.append(pool.take(MIB))
        assert address(others[-1]) != place
        gc.collect()
        if name == "buffer":
            del buffer
        elif name == "array":
            del array
        else:
            del view
    assert pool.idle_bytes == MIB
    assert address(pool.take(MIB - 100)) == place


@pytest.mark.parametrize("offset", [0, 1, 63, 64, 65, 1000])
def test_what_is_received_has_its_data_aligned(offset: int) -> None:
    assert (beginning(offset) + offset) % 64 == 0
    assert 2048 - 64 < beginning(offset) <= 2048


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_what_one_process_writes_no_other_one_sees() -> None:
    memory = fresh(SMALLEST)
    os.waitpid(forked(lambda: memory.__setitem__(0, 1)), 0)
    assert memory[0] == 0


def test_large_ones_begin_at_a_page() -> None:
    assert address(BufferPool(0).take(SMALLEST)) % 4096 == 0


@pytest.mark.parametrize("room", [3 * MIB, 100 * MIB])
def test_is_bounded(room: int) -> None:
    pool = BufferPool(3 * MIB)
    pool.room = room
    buffers = [pool.take(size * MIB) for size in (1, 1, 1, 1, 4)]
    assert pool.idle_bytes == 0
    while buffers:
        buffers.pop()
        assert pool.idle_bytes <= 3 * MIB
    assert pool.idle_bytes == 3 * MIB


def test_those_used_last_are_kept() -> None:
    pool = BufferPool(3 * MIB)
    for size in (1, 2, 3):
        pool.take(size * MIB)
    assert pool.idle_bytes == 3 * MIB
    kept = pool.take(3 * MIB)
    assert pool.idle_bytes == 0
    del kept


def test_the_one_used_last_is_used_first() -> None:
    """What is in caches of it, and in tables of pages, may still be there."""
    pool = BufferPool(100 * MIB)
    buffers = [pool.take(MIB) for _ in range(3)]
    places = [address(each) for each in buffers]
    for each in (1, 2, 0):
        buffers[each] = memoryview(b"")
        assert pool.idle_bytes
    assert [address(each) for each in [pool.take(MIB) for _ in range(3)]] == [places[0], places[2], places[1]]


@pytest.mark.parametrize("sizes", [(20, 16, 18, 14), (14, 18, 16, 20)])
def test_the_one_that_fits_best_is_used(sizes: tuple[int, ...]) -> None:
    """But none of more than a quarter too much."""
    pool = BufferPool(100 * MIB)
    places = {}
    buffers = [pool.take(size * MIB) for size in sizes]
    while buffers:
        buffer = buffers.pop()
        places[buffer.nbytes // MIB] = address(buffer)
        del buffer
    taken = [pool.take(16 * MIB) for _ in range(4)]
    assert [address(buffer) for buffer in taken[:3]] == [places[16], places[18], places[20]]
    assert address(taken[3]) != places[14]
    assert pool.idle_bytes == 14 * MIB
    del taken
    assert pool.idle_bytes == (20 + 16 + 18 + 16 + 14) * MIB
    assert address(pool.take(11 * MIB)) not in places.values()


def test_nothing_is_kept_with_a_bound_of_0() -> None:
    pool = BufferPool(0)
    pool.take(MIB)
    assert pool.idle_bytes == 0


def test_one_owner_at_a_time() -> None:
    """Threads that write their number all over their buffers find nobody else's."""
    pool = BufferPool(8 * MIB)
    wrong = []

    def use(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(200):
            array = np.frombuffer(pool.take(int(rng.integers(SMALLEST, MIB))), np.uint8)
            array[:] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert pool.idle_bytes <= 8 * MIB


@pytest.mark.parametrize("size", [SMALLEST, MIB, 9 * MIB])
def test_returned_by_the_garbage_collector_while_one_is_taken(size: int) -> None:
    """The lock is the same thread's then."""
    pool = BufferPool(100 * MIB)
    circle: list[Any] = [pool.take(size)]
    circle.append(circle)
    del circle
    with pool._lock:
        gc.collect()
    assert pool.idle_bytes >= size


def test_returned_in_the_middle_of_a_search() -> None:
    """With every step of the search being one at which the garbage collector may run."""
    pool = BufferPool(4 * MIB)
    random = Random(0)
    sizes = [MIB, 2 * MIB, 3 * MIB, MIB + 200_000]
    returning: list[Any] = []

    def return_one(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == app.memory.buffers.__file__:
            if returning and random.random() < 0.1:
                returning.pop()
            return return_one
        return None

    for turn in range(200):
        returning[:] = [pool.take(size) for size in sizes]
        sys.settrace(return_one)
        try:
            taken = [pool.take(sizes[(turn + number) % len(sizes)]) for number in range(len(sizes))]
        finally:
            sys.settrace(None)
        for number, buffer in enumerate(taken):
            assert buffer.nbytes == sizes[(turn + number) % len(sizes)]
        assert len({address(buffer) for buffer in taken}) == len(taken)
        assert pool.idle_bytes <= 4 * MIB
        del taken, buffer


@pytest.mark.parametrize("failing", [False, True], ids=["madvise", "memset"])
def test_memory_is_touched_piece_by_piece(monkeypatch: pytest.MonkeyPatch, *, failing: bool) -> None:
    """Whoever wants other memory waits for a call to end, with the interpreter's lock in its hands."""
    libc = ctypes.CDLL(None)
    lengths: list[int] = []
    written: list[int] = []

    def madvise(start: ctypes.c_void_p, length: ctypes.c_size_t, advice: int) -> int:
        lengths.append(length.value)
        return -1 if failing else int(libc.madvise(start, length, advice))

    def memset(start: ctypes.c_void_p, value: int, length: ctypes.c_size_t) -> None:
        written.append(length.value)
        libc.memset(start, value, length)

    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(madvise=madvise, memset=memset))
    app.memory.buffers._touch(memoryview(fresh(30 * MIB))[:-100])
    assert sum(lengths) == 30 * MIB - 100
    assert max(lengths) == 4 * MIB
    assert written == (lengths if failing else [])


def test_what_is_kept_for_later_goes_where_the_system_has_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BufferPool(1 << 30)
    pool.take(MIB)
    fails, held = [errno.ENOMEM], [pool.take(8 * MIB)]

    class Made(app.memory.buffers.Memory):
        def __new__(cls, *given: int) -> "Made":
            held.clear()  # it comes back in this moment
            if fails:
                raise OSError(fails.pop(), "It is not there")
            return super().__new__(cls, *given)

    monkeypatch.setattr(app.memory.buffers, "Memory", Made)
    assert pool.take(2 * MIB).nbytes == 2 * MIB
    assert pool.idle_bytes == 2 * MIB, "the others were given back"
    fails[:] = [errno.ENOMEM] * 2
    with pytest.raises(MemoryError, match=f"{4 * MIB} bytes"):
        pool.take(4 * MIB)
    assert (pool.idle_bytes, fails) == (0, [])
    fails[:] = [errno.EAGAIN]
    with pytest.raises(OSError, match="It is not there"):
        pool.take(4 * MIB)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no huge pages")
def test_large_ones_may_have_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of which is touched once where 512 others are."""
    advised: list[tuple[int, int]] = []
    monkeypatch.setattr(
        app.memory.buffers.Memory,
        "madvise",
        lambda memory, advice: advised.append((len(memory), advice)),
        raising=False,
    )
    pool = BufferPool(0)
    for size in (SMALLEST, 2 * MIB - 1, 2 * MIB, 30 * MIB):
        pool.take(size)
    assert advised == [(size * MIB, mmap.MADV_HUGEPAGE) for size in (2, 2, 30)]


def test_a_system_may_be_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    def madvise(memory: mmap.mmap, advice: int) -> None:
        raise OSError(errno.EINVAL, "It has none")

    monkeypatch.setattr(app.memory.buffers.Memory, "madvise", madvise, raising=False)
    assert BufferPool(0).take(2 * MIB).nbytes == 2 * MIB


def test_touched_memory_is_there() -> None:
    pool = BufferPool(100 * MIB)
    before = resident_bytes()
    buffer = pool.take_touched(30 * MIB)
    assert resident_bytes() - before > 29 * MIB
    assert bytes(buffer[-10:]) == bytes(10)
    buffer[:3] = b"abc"
    place = address(buffer)
    del buffer
    again = pool.take_touched(30 * MIB)
    assert (address(again), bytes(again[:3])) == (place, b"abc")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
