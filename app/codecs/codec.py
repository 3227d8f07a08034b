"""What a representation of documents is to the rest."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from app.contract.tensors import TensorDesc
from app.contract.violations import Path
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer

BASE64 = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
}
"""JSON schema of tensor data in JSON."""


@dataclass(slots=True)
class Span:
    """Tensor data in the wire's form: `body[start:stop]`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Hole:
    """A place in an encoded document for a value that is known later."""

    name: str


Body: TypeAlias = bytes | Buffer
"""A document as it came. If it is a buffer, it is the request's own: a result may take the place of tensor data."""

Piece: TypeAlias = bytes | Buffer
"""Part of an encoded document, to be sent as it is."""


@dataclass(slots=True)
class Encoded:
    """A document to be sent, of `length` bytes, in pieces, of which large ones may be made as they are asked for."""

    length: int
    pieces: Iterable[Piece]


class Decoder(Protocol):
    """A representation of documents that may hold tensor data, as it is read.

    `memory` is charged for every copy, and what takes long ends with RequestOver when its request is.
    """

    media_type: str
    numbers: bool
    """Whether tensor data may be numbers."""
    key: str
    """Tells apart those that make different documents of equal bodies."""
    expands: bool
    """Whether a short body may hold much."""
    views: bool
    """Whether tensor data are taken as they lie in the body, so that more of them take no longer to read."""

    def data_start(self, beginning: bytes, length: int) -> int:
        """Where, in a body of `length` bytes that begins like this, its first large tensor data probably begin; else 0.

        Data that begin elsewhere are read all the same, only slower.
        """

    def decode(self, body: Body, max_structure_bytes: int, max_depth: int, memory: MemoryShare) -> Any:
        """The document in `body`; tensor data, in the object `inputs` at its root and in lists there, or called `data`
        in objects there, and in `Data` of the nodes of `graph`, as spans, and those that are numbers as `Numbers`.

        Data that are shorter than a few bytes, or escaped, may be there in another form that `binary` takes. Raises
        Unreadable, or LimitExceeded for what is not tensor data, before that is copied.
        """

    def binary(
        self, body: Body, value: object, path: Path, memory: MemoryShare, desc: TensorDesc | None = None
    ) -> Buffer:
        """Tensor data out of a decoded document. Raises ContractError if `value` is not the wire's form of it: of
        numbers, which are no data by themselves, if they are not those of a tensor like `desc`.

        They may come to lie in `body`, where their wire's form was.
        """

    def put_back(self, body: Body, value: object, data: Buffer) -> None:
        """Undo `binary`, which gave `data`: `body` is as it came, and may be decoded again."""


class Codec(Decoder, Protocol):
    """The same as it is read and written."""

    def encode(self, document: Any) -> list[Piece | Hole]:
        """`document`, of dicts, lists, scalars and holes, in pieces."""

    def encode_value(self, value: Any) -> bytes:
        """The same of a document without holes."""

    def encode_data(self, data: Buffer) -> Encoded:
        """Tensor data, for a hole. Raises ContractError if the representation has no data that are so long."""

    def encode_numbers(self, data: Buffer, desc: TensorDesc, memory: MemoryShare) -> Encoded:
        """The same in the form of numbers, where the representation has one that is meant for people."""

    def encode_number(self, number: float) -> bytes:
        """A number, for a hole."""
