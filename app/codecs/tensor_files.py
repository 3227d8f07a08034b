"""Files of tensors as dispatches: what is in the file are the inputs, all else of the request is known beforehand."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from app.codecs.codec import Body, Encoded, Span
from app.codecs.structure import Unreadable
from app.contract.constants import DataType
from app.contract.tensors import TensorDesc, element_name, path_of
from app.contract.violations import Path, refused
from app.memory.accounts import LimitExceeded, MemoryShare
from app.memory.buffers import Buffer


class Packed(Protocol):
    """Tensor data that are compressed."""

    @property
    def size(self) -> int:
        """Bytes once they are not."""

    def unpacked(self, body: Body, memory: MemoryShare) -> Buffer:
        """The data. Raises Unreadable, LimitExceeded, MemoryExhausted, RequestOver."""


class FileTensor(NamedTuple):
    """A tensor in a file, with what the file says of it. `strides` are None where it is packed."""

    data_type: DataType | None
    sizes: list[int] | None
    strides: list[int] | None
    data: Span | Packed

    @property
    def document(self) -> dict[str, Any]:
        """As an input in a document."""
        said = {"DataType": self.data_type and self.data_type.value, "Sizes": self.sizes, "Strides": self.strides}
        return {name: value for name, value in said.items() if value is not None} | {"data": self.data}


class FileLimits(NamedTuple):
    """Bytes of a file that are not tensor data, and of all tensor data once they are unpacked."""

    max_structure_bytes: int
    max_bytes: int


class TensorFormat(Protocol):
    """A format of files that hold tensors."""

    media_type: str
    expands: bool
    """Whether a short file may hold much."""

    def data_start(self, beginning: bytes, length: int) -> int:
        """As of `Codec`."""

    def read(
        self, body: Body, file: Span, first: str, limits: FileLimits, memory: MemoryShare
    ) -> Mapping[str, FileTensor]:
        """The tensors in the part `file` of `body`, by name; one without a name is `first`. Their data are spans of
        `body`. Raises ContractError, Unreadable, LimitExceeded, MemoryExhausted, RequestOver."""

    def write(self, tensors: Mapping[str, tuple[TensorDesc, Buffer]]) -> Encoded:
        """A file of packed tensors. Raises ContractError for those that the format cannot hold."""


class FileCodec:
    """Implements `Decoder` of files in a format. `key` tells those apart that have different documents."""

    views = True
    numbers = False

    def __init__(self, kind: TensorFormat, key: str, document: Mapping[str, Any], first: str, max_bytes: int) -> None:
        """Of files of a `kind`. `document` is the dispatch but for its inputs, of which `first` is the first."""
        self.media_type = kind.media_type
        self.key = key
        self.expands = kind.expands
        self.data_start = kind.data_start
        self._format = kind
        self._document = document
        self._first = first
        self._max_bytes = max_bytes

    def decode(self, body: Body, max_structure_bytes: int, max_depth: int, memory: MemoryShare) -> Any:
        limits = FileLimits(max_structure_bytes, self._max_bytes)
        tensors = self._format.read(body, Span(0, len(body)), self._first, limits, memory)
        return {**self._document, "inputs": _by_field({name: each.document for name, each in tensors.items()})}

    def binary(
        self, body: Body, value: object, path: Path, memory: MemoryShare, desc: TensorDesc | None = None
    ) -> Buffer:
        if isinstance(value, Span):
            return memoryview(body)[value.start : value.stop]
        return cast(Packed, value).unpacked(body, memory)  # what else is data of a `FileTensor`

    def put_back(self, body: Body, value: object, data: Buffer) -> None:
        """They are where they were."""


class EmbeddedFile(NamedTuple):
    """A file that is part of a body. Its tensor without a name is `name`."""

    format: TensorFormat
    file: Span
    name: str


class Parcel:
    """Implements `TensorFormat` of several files one behind the other, for who put them there: it writes none."""

    media_type = "multipart/mixed"
    expands = True

    def __init__(self, parts: Sequence[EmbeddedFile]) -> None:
        self.parts = parts

    def data_start(self, beginning: bytes, length: int) -> int:
        return 0

    def read(
        self, body: Body, file: Span, first: str, limits: FileLimits, memory: MemoryShare
    ) -> Mapping[str, FileTensor]:
        found: dict[str, FileTensor] = {}
        for each in self.parts:
            for name, tensor in each.format.read(body, each.file, each.name, limits, memory).items():
                if name in found:
                    raise refused(("inputs", name), f"{name} is in two files; give it once.", name)
                found[name] = tensor
        return found

    def write(self, tensors: Mapping[str, tuple[TensorDesc, Buffer]]) -> Encoded:
        raise NotImplementedError("a parcel is made by who sends it")


def check_held(tensors: Mapping[str, FileTensor], limits: FileLimits) -> None:
    """Raise LimitExceeded if tensors are more, unpacked, than they may be."""
    size = sum(each.data.size for each in tensors.values() if not isinstance(each.data, Span))
    if size > limits.max_bytes:
        raise LimitExceeded("max_body_bytes", "Bytes of the file, unpacked", size, limits.max_bytes)


def whole_type(name: str, desc: TensorDesc, form: str) -> DataType:
    """The data type of an output. Raises ContractError for one whose elements have no bytes of their own."""
    if desc.DataType.bits < 8:
        raise refused(
            ("Accept",),
            f"{name} is {desc.DataType}, which {form} has no type for; ask for application/json.",
            desc.DataType,
        )
    return desc.DataType


def _by_field(inputs: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """`inputs`, those of arrays in lists. Raises ContractError where one of an array is missing."""
    made: dict[str, Any] = {}
    for name, _ in sorted(inputs.items(), key=lambda item: path_of(item[0])[1:]):
        field, *place = path_of(name)
        if not place:
            made[name] = inputs[name]
            continue
        array = made.setdefault(str(field), [])
        missing = element_name(str(field), len(array) if isinstance(array, list) else 0)
        if not isinstance(array, list) or missing != name:
            raise refused(
                ("inputs", str(field)), f"{missing} is missing; tensors of an array are given from 0 on.", name, missing
            )
        array.append(inputs[name])
    return made


def cut_short(what: str) -> Unreadable:
    return Unreadable(f"The file ends within {what}.")
