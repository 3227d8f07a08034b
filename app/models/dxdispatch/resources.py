"""Resources: buffers, as DirectML has them on a device, and how the first command finds them."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from pydantic_core import PydanticCustomError

from app.contract.constants import DataType
from app.contract.validation import abbreviate, in_words
from app.contract.violations import Path, refused
from app.memory.accounts import LimitExceeded, MemoryShare
from app.memory.addresses import address_of
from app.memory.buffers import ALIGNMENT, Buffer
from app.models.dxdispatch import arrays, images
from app.models.dxdispatch.document import Resource, data_type_of, part
from app.models.dxdispatch.files import Files, Missing
from app.models.dxdispatch.values import Elements
from app.settings import Settings

DEFERRED = "deferred"


@dataclass(slots=True)
class Held:
    """A resource with its contents. `initial_bytes` are those that are shown, of all that there are."""

    name: str
    data_type: DataType | None
    data: Buffer
    initial_bytes: int
    deferred: bool = False
    """An ONNX model's output is to say what it is; until then there is nothing."""
    sizes: tuple[int, ...] = ()
    """Of what a deferred one has become."""

    @property
    def element_bytes(self) -> int:
        """0 where the type is unknown."""
        return self.data_type.bytes if self.data_type else 0


class Resources:
    """Makes resources, each within limits."""

    def __init__(self, settings: Settings, files: Files, memory: MemoryShare) -> None:
        self._most = settings.max_tensor_bytes
        self._files = files
        self._memory = memory

    def make(self, name: str, value: object) -> Held:
        """The resource `name`, which is `value` in the model.

        Raises ContractError, LimitExceeded, MemoryExhausted, RequestOver, Unreadable.
        """
        path: Path = ("resources", name)
        if isinstance(value, dict) and value.get("initialValues") == DEFERRED:
            told = {key: value[key] for key in ("initialValues", "initialValuesDataType") if key in value}
            return Held(name, part(Resource, told, path).initialValuesDataType, memoryview(b""), 0, deferred=True)
        given = part(Resource, value, path)
        values, data_type = self._values(given, (*path, "initialValues"))
        size = len(values) + 3 & ~3 if given.sizeInBytes is None else given.sizeInBytes
        offset = given.initialValuesOffsetInBytes
        if len(values) + offset > size:
            field = "initialValuesOffsetInBytes" if offset else "sizeInBytes"
            raise refused(
                (*path, field),
                f"The buffer size ({size} bytes) is too small for the initialValues ({len(values)} bytes) at offset "
                f"{offset} bytes.",
                offset or size,
                f"sizeInBytes >= {len(values) + offset}",
            )
        if size > self._most:
            raise LimitExceeded("max_tensor_bytes", "Bytes of a resource", size, self._most, path)
        if size == len(values) and not address_of(values) % ALIGNMENT:
            return Held(name, data_type, values, size)
        buffer = self._memory.buffer(size)
        # DxDispatch uploads them to the beginning, whatever the offset is, and so they are here.
        buffer[: len(values)] = values
        np.frombuffer(buffer, np.uint8)[len(values) :] = 0
        self._memory.give(len(values))
        return Held(name, data_type, buffer, len(values))

    def _values(self, given: Resource, path: Path) -> tuple[Buffer, DataType | None]:
        values, data_type = given.initialValues, given.initialValuesDataType
        elements = Elements(path, self._most, self._memory)
        if isinstance(values, list):
            if data_type is None:
                return elements.typed(values), None
            return elements.listed(values, data_type), data_type
        if not isinstance(values, dict):
            raise refused(
                path,
                "initialValues must be an array, an object with value, valueStart or sourcePath, or deferred.",
                abbreviate(values),
                ["an array", "an object", DEFERRED],
            )
        forms = [name for name in ("value", "valueStart", "sourcePath") if name in values]
        if not forms or (forms[0] == "value" and len(forms) > 1):
            raise refused(
                path,
                "initialValues must have one of value, valueStart and sourcePath; they exclude each other.",
                forms,
                ["value", "valueStart", "sourcePath"],
            )
        if forms[0] == "sourcePath":
            return self._loaded(given, values["sourcePath"], (*path, "sourcePath"))
        make = elements.constant if forms[0] == "value" else elements.sequence
        needed = _needed(data_type, path)
        return make(values, needed), needed

    def _loaded(self, given: Resource, source: Any, path: Path) -> tuple[Buffer, DataType]:
        data_type = given.initialValuesDataType
        at = path[:-2]
        if len(given.resampleSize) not in (0, 4):
            raise refused(
                (*at, "resampleSize"),
                "resampleSize must be empty or have four dimensions in N,C,H,W order.",
                given.resampleSize,
                "0 or 4 entries",
            )
        file = read_file(self._files, source, path, self._most, "max_tensor_bytes", self._memory)
        suffix = PurePosixPath(source).suffix.lower()
        try:
            if suffix == ".npy":
                values, found = arrays.load(file, self._memory)
                if data_type not in (None, found):
                    raise refused(
                        (*at, "initialValuesDataType"),
                        f"initialValuesDataType is {data_type} but {in_words(source)} holds {found}.",
                        data_type,
                        found,
                    )
                data_type = found
            elif suffix in images.SUFFIXES:
                if given.resampleMode != "scale":
                    told = abbreviate(given.resampleMode)
                    raise refused((*at, "resampleMode"), "resampleMode must be scale for images.", told, ["scale"])
                data_type = _needed(data_type, path[:-1])
                values = images.load(file, data_type, given.resampleSize, self._most, self._memory)
            else:
                values, data_type = file, _needed(data_type, path[:-1])
        except arrays.Unusable as error:
            raise refused(path, f"{in_words(source)} {error}.", abbreviate(source)) from None
        if not values:
            raise refused(path, f"{in_words(source)} has no elements; initialValues must be non-empty.", 0, ">= 1")
        if values is not file:
            # What of the file's memory is left in use is charged as the values.
            self._memory.give(max(len(file) - len(values), 0) if values.obj is file.obj else len(file))
        return values, data_type


def stated_bytes(value: object, most: int) -> int:
    """What is known to be taken for a resource from its numbers alone; none where they will be refused, as those are of
    more bytes than `most`."""
    told = value if isinstance(value, dict) else {}
    size, values, kind = (told.get(name) for name in ("sizeInBytes", "initialValues", "initialValuesDataType"))
    if type(size) is not int:
        count = values.get("valueCount") if isinstance(values, dict) else None
        try:
            data_type = data_type_of(kind)
        except PydanticCustomError:
            return 0
        size = count * data_type.bytes if type(count) is int and data_type else 0
    return size if 0 <= size <= most else 0


def read_file(files: Files, source: Any, path: Path, most: int, limit: str, memory: MemoryShare) -> Buffer:
    """The file that the model names at `path`. Raises ContractError, LimitExceeded, MemoryExhausted, Unreadable."""
    if not isinstance(source, str):
        raise refused(path, "sourcePath must be a string.", abbreviate(source), "a string")
    try:
        return files.read(source, most, limit, memory)
    except Missing as error:
        raise refused(path, str(error), abbreviate(source)) from None


def _needed(data_type: DataType | None, path: Path) -> DataType:
    if data_type is None:
        raise refused(
            (*path[:-1], "initialValuesDataType"),
            "initialValuesDataType is missing; it is required for constants, sequences, raw files and images.",
            None,
            [each for each in DataType if each.bits >= 8],
        )
    return data_type
