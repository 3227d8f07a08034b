"""What kernels keep packed of constants, once for all that read the same memory."""

import gc
import weakref
from typing import Any

import numpy as np

from app.devices.cpu import packs
from app.devices.cpu.packs import Packing
from app.memory.arrays import Array

PANELS = Packing(("BTensor",), ("panels", 16), 64)


def made() -> Array:
    return np.zeros(16, np.float32)


def of(data: Any) -> dict[str, memoryview]:
    return {"BTensor": data.data.cast("B"), "ATensor": np.zeros(3).data.cast("B")}


def test_the_same_memory_is_packed_once_for_each_layout() -> None:
    constant, alike = np.ones(16, np.float32), np.ones(16, np.float32)
    first = PANELS.made(of(constant), made)
    assert PANELS.made(of(constant), made) is first
    assert Packing(("BTensor",), ("panels", 8), 64).made(of(constant), made) is not first
    assert PANELS.made(of(alike), made) is not first, "which may change"
    both = Packing(("BTensor", "ATensor"), ("panels", 16), 64)
    assert both.made(of(constant), made) is not first


def test_what_nobody_has_is_let_go_and_what_it_was_made_of_is_not_before() -> None:
    """Or something else would come to lie where it was, and be taken for it."""
    before = len(packs._PACKS._kept)
    constant = np.ones(1 << 16, np.float32)
    memory = weakref.ref(constant)
    packed = PANELS.made(of(constant), made)
    del constant
    gc.collect()
    assert memory() is not None
    assert len(packs._PACKS._kept) == before + 1
    del packed
    gc.collect()
    assert memory() is None
    assert len(packs._PACKS._kept) == before


def test_what_another_thread_has_packed_meanwhile_is_taken() -> None:
    constant = np.ones(16, np.float32)
    others: list[Array] = []

    def slowly() -> Array:
        others.append(PANELS.made(of(constant), made))
        return made()

    assert PANELS.made(of(constant), slowly) is others[0]
