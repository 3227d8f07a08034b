"""What kernels keep of constants a second time, packed as loops read it: once for all that read the same memory, as
those of a model for inputs of other sizes do."""

import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from app.memory.addresses import address_of
from app.memory.arrays import Array
from app.memory.buffers import Buffer

PackKey: TypeAlias = tuple[tuple[int, ...], Hashable]
"""Where the constants are, for as long as somebody holds them, and how they are packed."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How a kernel packs those of its inputs that have the names `of`: to no more than so many bytes."""

    of: Sequence[str]
    layout: Hashable
    """Of which all that is packed follows, beside the inputs' bytes."""
    nbytes: int

    def key(self, known: Mapping[str, Buffer]) -> PackKey:
        """Where these inputs are `known` before."""
        return tuple([address_of(known[name]) for name in self.of]), self.layout

    def made(self, known: Mapping[str, Buffer], make: Callable[[], Array]) -> Array:
        """What `make` made of this memory for whoever has it still, or makes."""
        return _PACKS.made(self.key(known), [known[name] for name in self.of], make)


class _Packs:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._kept: dict[PackKey, tuple[weakref.ref[Array], Sequence[Buffer]]] = {}
        """With what it was made of: while it is kept, nothing else comes to lie there."""
        self._lock = threading.Lock()

    def made(self, key: PackKey, of: Sequence[Buffer], make: Callable[[], Array]) -> Array:
        known = self._known(key)
        if known is not None:
            return known
        made = make()
        with self._lock:  # another thread may have made it meanwhile
            known = self._known(key)
            if known is None:
                # Called by the garbage collector, too, at any moment: so without the lock.
                self._kept[key] = weakref.ref(made, lambda gone: self._drop(key, gone)), of
        return made if known is None else known

    def _known(self, key: PackKey) -> Array | None:
        kept = self._kept.get(key)
        return kept[0]() if kept else None

    def _drop(self, key: PackKey, gone: "weakref.ref[Array]") -> None:
        kept = self._kept.get(key)
        if kept and kept[0] is gone:
            self._kept.pop(key, None)


_PACKS = _Packs()
