"""What the service asks of a model before it says that this is ready: inferences on zeros, in the words of clients.

What was read once, its readers know (`requests.py`): so they know the first request of such a client, too.
"""

import json
import math
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import orjson

from app.http.core.headers import JSON_LENGTH
from app.http.inference.file_models import datatype_of
from app.http.inference.model import BINARY_OUTPUT
from app.models.onnx.reading import Port, Signature
from app.models.repository.model import SizesOfAll

MOST_NUMBERS = 1 << 16
"""Elements of all inputs, from which on they are not sent as numbers: to read more of them is no other work."""

_DIGITS = 18
"""Behind a float's point, as clients write one: what is read takes as much memory as theirs will."""

_MARK = secrets.token_hex(16)  # stands for numbers; no model knows it

TIMES = 3
"""How often each is read. The first one in a process takes 0.6 ms, the second 0.1, and is remembered."""

MOST_REHEARSED = 1 << 20
"""Bytes of a request up to which it is sent to the service, too, before this listens. Larger ones take their time."""

Document: TypeAlias = Mapping[str, object]


class Rehearsal(NamedTuple):
    """A request as clients write it: JSON, and behind it so many bytes, which are zeros."""

    text: bytes
    zeros: int


def rehearsals(ports: Signature, sizes: SizesOfAll, max_numbers: int) -> Iterator[Rehearsal]:
    """Those of a model for inputs of these sizes, two at least: a GPU puts kernels together in the second dispatch.
    `max_numbers` is the setting."""
    inputs: list[dict[str, Any]] = [
        {"name": name, "shape": list(own), "datatype": datatype_of(port)}
        for (name, port), own in zip(ports.inputs.items(), sizes, strict=True)
    ]
    counts = [math.prod(own) for own in sizes]
    lengths = [count * port.data_type.bytes for count, port in zip(counts, ports.inputs.values(), strict=True)]
    behind = [each | {"parameters": {"binary_data_size": length}} for each, length in zip(inputs, lengths, strict=True)]
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in ports.outputs]
    in_binary: Document = {"parameters": {BINARY_OUTPUT: True}}
    of_tritonclient: list[Document] = [{"inputs": behind, **in_binary}, {"inputs": behind, "outputs": outputs}]
    for document in of_tritonclient:
        yield Rehearsal(orjson.dumps(document), sum(lengths))
    if sum(counts) > min(MOST_NUMBERS, max_numbers) or any(each["datatype"] == "FP16" for each in inputs):
        return
    listed = [each | {"data": _MARK} for each in inputs]
    zeros = [[_zero(port)] * count for port, count in zip(ports.inputs.values(), counts, strict=True)]
    for document in ({"inputs": listed}, {"inputs": listed, **in_binary}):
        for written, comma in ((orjson.dumps(document), ","), (json.dumps(document).encode(), ", ")):
            first, *rest = written.split(f'"{_MARK}"'.encode())
            filled = [f"[{comma.join(each)}]".encode() + piece for each, piece in zip(zeros, rest, strict=True)]
            yield Rehearsal(first + b"".join(filled), 0)


def request_of(rehearsal: Rehearsal, path: str) -> bytes:
    """The same in HTTP, to this path."""
    text, zeros = rehearsal
    fields = [f"POST {path} HTTP/1.1", "Host: rehearsal"]
    fields += [f"Content-Length: {len(text) + zeros}", *([f"{JSON_LENGTH}: {len(text)}"] if zeros else [])]
    return b"".join(("\r\n".join([*fields, "", ""]).encode(), text, bytes(zeros)))


def _zero(port: Port) -> str:
    if port.type == "bool":
        return "false"
    return "0." + "0" * _DIGITS if port.type.startswith("float") else "0"
