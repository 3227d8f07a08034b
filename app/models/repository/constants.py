"""A model's constants, and what its graphs compute and pack of these alone: once for inputs of all sizes."""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock

from app.engine.graphs import CompiledGraph
from app.graphs.graph import Constant
from app.graphs.identity import digest
from app.memory.accounts import MemoryShare
from app.memory.addresses import address_of
from app.memory.buffers import Buffer
from app.models.onnx.builder import Array

LEAST = 1 << 12
"""Bytes of a constant that the importer made, which are worth to be looked for."""

NODE_BYTES = 6 << 10
"""What Python's objects take for each node of a graph and its kernel, about."""


@dataclass(slots=True)
class _Shared:
    nbytes: int
    data: Buffer | None
    """None of what is packed, which kernels have."""
    users: int = 0


class ModelConstants:
    """Implements `Known`. What graphs share is charged to `memory`, as the model's `arrays` are. For any thread."""

    def __init__(self, arrays: Iterable[Array], memory: MemoryShare) -> None:
        self._memory = memory
        self._weights = {each.ctypes.data: each.nbytes for each in arrays}
        self._digests: dict[int, str] = {}
        """Of weights, by their addresses."""
        self._shared: dict[Hashable, _Shared] = {}
        """By digests of constants, ids of what is computed of them, and keys of what is packed."""
        self.is_closed = False
        self._lock = Lock()

    def digest(self, data: Buffer) -> str:
        address = address_of(data) if data else 0
        if self._weights.get(address) != data.nbytes:
            return digest(data)
        known = self._digests.get(address)
        if known is None:
            known = self._digests[address] = digest(data)
        return known

    def computed(self, id_: str) -> Buffer | None:
        known = self._shared.get(id_)
        return known.data if known else None

    def made(self, constants: Mapping[int, Buffer]) -> dict[int, str]:
        """The digests of those `constants` of a graph, by node, that the importer made, and that are large."""
        return {
            index: digest(data)
            for index, data in constants.items()
            if data.nbytes >= LEAST and self._weights.get(address_of(data)) != data.nbytes
        }

    def use(self, graph: CompiledGraph, made: Mapping[int, str], memory: MemoryShare) -> Collection[Hashable]:
        """Have other graphs share what `graph` has of constants, `made` ones included, and leave in `memory` what it
        keeps for itself. Tells what it shares, for `leave`. Raises MemoryExhausted, and RequestOver if the model is
        closed."""
        kept = dict(zip(graph.runnable.schedule.kept, graph.runnable.kept, strict=True))
        tensors = dict(graph.computed)
        tensors |= {id_: data for index, id_ in made.items() if (data := kept.get(Constant(index)))}
        lasting = self._weights.keys() | {address_of(data) for data in tensors.values()}
        shared: dict[Hashable, _Shared] = {key: _Shared(data.nbytes, data) for key, data in tensors.items()}
        shared |= {key: _Shared(size, None) for key, size in graph.packed.items() if lasting.issuperset(key[0])}
        own = NODE_BYTES * graph.subject.nodes
        own += sum(data.nbytes for data in kept.values() if data and address_of(data) not in lasting)
        own += sum(size for key, size in graph.packed.items() if key not in shared)
        with self._lock:
            added = sum(each.nbytes for key, each in shared.items() if key not in self._shared)
            memory.hold(own + added)  # in place of all that compiling took
            memory.pass_on(added, self._memory)
            for key, each in shared.items():
                self._shared.setdefault(key, each).users += 1
        return shared.keys()

    def leave(self, keys: Collection[Hashable]) -> None:
        """A graph is not kept any more. What no other one uses is not shared any more."""
        with self._lock:
            for key in keys if not self.is_closed else ():
                shared = self._shared[key]
                shared.users -= 1
                if not shared.users:
                    del self._shared[key]
                    self._memory.give(shared.nbytes)

    def close(self) -> None:
        """Nobody compiles the model any more."""
        with self._lock:
            self.is_closed = True
            self._memory.close()
