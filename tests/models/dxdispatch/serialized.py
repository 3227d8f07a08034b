"""Serialized graphs, written by the package flatbuffers in the layout of DmlGraphDesc_generated.h."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers

UINT, UINT64, INT, FLOAT, UINTS, INTS, FLOATS, SCALE_BIAS, SIZE, SCALAR, BOOL = 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13


@dataclass
class Node:
    """An operator, or a constant if it has no type: then `data` are its bytes, or its name."""

    type: str = ""
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    sizes: Sequence[Sequence[int]] = ()
    """Of inputs and then of outputs that are named."""
    attributes: Sequence[tuple[int, Any]] = ()
    data: bytes | str = b""
    more: dict[str, Any] = field(default_factory=dict)


class Writer:
    """Writes one graph."""

    def __init__(self) -> None:
        self.builder: Any = flatbuffers.Builder(1024)

    def table(self, *fields: tuple[str, Any] | None) -> int:
        """A table of fields in the order of their slots, each by the kind of value: byte, uint64 or offset."""
        self.builder.StartObject(len(fields))
        for slot, each in enumerate(fields):
            if each is not None:
                kind, value = each
                prepend: Callable[..., None] = {
                    "byte": self.builder.PrependUint8Slot,
                    "uint64": self.builder.PrependUint64Slot,
                    "offset": self.builder.PrependUOffsetTRelativeSlot,
                }[kind]
                prepend(slot, value, 0)
        return int(self.builder.EndObject())

    def offsets(self, offsets: Sequence[int]) -> tuple[str, int]:
        self.builder.StartVector(4, len(offsets), 4)
        for each in reversed(offsets):
            self.builder.PrependUOffsetTRelative(each)
        return "offset", self.builder.EndVector()

    def texts(self, texts: Sequence[str]) -> tuple[str, int]:
        return self.offsets([self.builder.CreateString(each) for each in texts])

    def text(self, text: str) -> tuple[str, int]:
        return "offset", self.builder.CreateString(text)

    def numbers(self, values: Sequence[Any], kind: str = "Uint32") -> tuple[str, int]:
        self.builder.StartVector(4, len(values), 4)
        for each in reversed(values):
            getattr(self.builder, f"Prepend{kind}")(each)
        return "offset", self.builder.EndVector()

    def struct(self, kind: str, size: int, *values: Any) -> tuple[str, int]:
        self.builder.Prep(size, size * len(values))
        for each in reversed(values):
            getattr(self.builder, f"Prepend{kind}")(each)
        return "offset", self.builder.Offset()

    def raw(self, data: bytes) -> tuple[str, int]:
        return "offset", self.builder.CreateByteVector(data)

    def attribute(self, tag: int, value: Any) -> int:
        if value is None:
            return self.table(None, ("byte", tag), None)
        match tag:
            case 1:
                made = ("offset", self.activation(*value))
            case 2:
                made = ("offset", self.table(self.offsets([self.activation(*each) for each in value])))
            case 3 | 4 | 5 | 6 | 13:
                kind, size = {3: ("Uint32", 4), 4: ("Uint64", 8), 5: ("Int32", 4), 6: ("Float32", 4), 13: ("Bool", 1)}[
                    tag
                ]
                made = self.struct(kind, size, value)
            case 7 | 8 | 9:
                made = ("offset", self.table(self.numbers(value, {7: "Uint32", 8: "Int32", 9: "Float32"}[tag])))
            case 10:
                made = self.struct("Float32", 4, *value)
            case 11:
                made = self.struct("Uint32", 4, *value)
            case _:
                made = ("offset", self.scalar(value))
        return self.table(None, ("byte", tag), made)

    def scalar(self, value: Any) -> int:
        if value == ():
            return self.table(("byte", 10), None)
        if isinstance(value, bytes):
            inner = ("offset", self.table(self.raw(value)))
            return self.table(("byte", 1), inner)
        return self.table(("byte", 10), self.struct("Float32", 4, value))

    def activation(self, type_: str, *attributes: tuple[int, Any]) -> int:
        listed = self.offsets([self.attribute(*each) for each in attributes])
        return self.table(self.text(type_), listed)

    def tensor(self, sizes: Sequence[int], data_type: str, strides: Sequence[int] | None, total: int) -> int:
        return self.table(
            self.text(f"DML_TENSOR_DATA_TYPE_{data_type}"),
            self.numbers(sizes),
            None if strides is None else self.numbers(strides),
            ("uint64", total),
        )

    def node(self, number: int, node: Node) -> int:
        if node.type:
            named = [bool(name) for name in (*node.inputs, *node.outputs)]
            tensors = iter(node.sizes)
            made = [
                self.tensor(next(tensors), node.more.get("type", "FLOAT32"), node.more.get("strides"), 0)
                if there
                else 0
                for there in named
            ]
            inputs = [each for each in made[: len(node.inputs)] if each]
            outputs = [each for each in made[len(node.inputs) :] if each]
            attributes = [self.attribute(*each) for each in node.attributes]
            desc = self.table(
                self.text(f"DML_OPERATOR_{node.type}"),
                self.offsets(inputs),
                self.offsets(outputs),
                self.offsets(attributes),
            )
        elif isinstance(node.data, str):
            desc = self.table(("byte", 1), ("offset", self.table(self.text(node.data))))
        else:
            desc = self.table(("byte", 2), ("offset", self.table(self.raw(node.data))))
        return self.table(
            ("byte", 1 if node.type else 2),
            ("offset", desc),
            self.text(f"node {number}"),
            self.texts(node.inputs),
            self.texts(node.outputs),
        )


def graph(nodes: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """The file."""
    writer = Writer()
    made = writer.offsets([writer.node(number, each) for number, each in enumerate(nodes)])
    writer.builder.Finish(writer.table(made, writer.texts(inputs), writer.texts(outputs)))
    return bytes(writer.builder.Output())
