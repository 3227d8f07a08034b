"""What a representation of documents is to the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from app.contract.violations import Path
from app.execution.device import Buffer
from app.limits import MemoryShare


@dataclass(frozen=True, slots=True)
class Span:
    """Tensor data in the wire's form: `body[start:stop]`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Hole:
    """A place in an encoded document for a value that is known later."""

    name: str


Body: TypeAlias = bytes | bytearray
"""A document as it came."""

Piece: TypeAlias = bytes | Buffer
"""Part of an encoded document, to be sent as it is."""


class Codec(Protocol):
    """A representation of documents that may hold tensor data. `memory` is charged for every copy of those."""

    media_type: str

    def decode(self, body: Body, max_structure_bytes: int, max_depth: int, memory: MemoryShare) -> Any:
        """The document in `body`; tensor data, which are in the object `inputs` at its root, as spans.

        Data that are shorter than a few bytes, or escaped, may be there as text. Raises Unreadable, or LimitExceeded
        for what is not tensor data.
        """

    def binary(self, body: Body, value: object, path: Path, memory: MemoryShare) -> Buffer:
        """Tensor data out of a decoded document. Raises ContractError if `value` is not the wire's form of it."""

    def encode(self, document: Any) -> list[Piece | Hole]:
        """`document`, of dicts, lists, scalars and holes, in pieces."""

    def encode_value(self, value: float | Buffer, memory: MemoryShare) -> Sequence[Piece]:
        """What goes into a hole, in pieces: a number or tensor data."""
