"""What a representation of documents is to the rest."""

from collections.abc import Sequence
from typing import Any, Protocol

from app.contract.violations import Path
from app.execution.device import Buffer
from app.limits import MemoryShare


class Codec(Protocol):
    """A representation of documents that may hold tensor data. `memory` is charged for every copy of those."""

    media_type: str

    def decode(self, body: bytearray, max_structure_bytes: int, max_depth: int, memory: MemoryShare) -> object:
        """The document in `body`. Raises Unreadable, or LimitExceeded for what is not tensor data."""

    def binary(self, value: object, path: Path, memory: MemoryShare) -> Buffer:
        """Tensor data out of a decoded document. Raises ContractError if `value` is not the wire's form of it."""

    def encode(self, document: Any, memory: MemoryShare) -> Sequence[bytes | Buffer]:
        """`document`, of dicts, lists, scalars and buffers, as pieces to send one after another."""
