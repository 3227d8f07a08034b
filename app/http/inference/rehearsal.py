"""What the service asks of a model before it says that this is ready: inferences on zeros, in the words of clients.

What was read once, its readers know (`requests.py`): so they know the first request of such a client, too.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import orjson

from app.http.inference.file_models import datatype_of
from app.http.inference.model import BINARY_OUTPUT
from app.models.onnx.reading import Signature
from app.models.repository.model import SizesOfAll

MOST_NUMBERS = 1 << 14
"""Elements of all inputs, from which on they are not sent as numbers: to read more of them is no other work."""

TIMES = 3
"""How often each is read. The first one in a process takes 0.6 ms, the second 0.1, and is remembered."""

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
    of_tritonclient: list[Document] = [
        {"inputs": behind, "parameters": {BINARY_OUTPUT: True}},
        {"inputs": behind, "outputs": outputs},
    ]
    for document in of_tritonclient:
        yield Rehearsal(orjson.dumps(document), sum(lengths))
    if sum(counts) > min(MOST_NUMBERS, max_numbers) or any(each["datatype"] == "FP16" for each in inputs):
        return
    listed: Document = {
        "inputs": [
            each | {"data": [False if each["datatype"] == "BOOL" else 0] * count}
            for each, count in zip(inputs, counts, strict=True)
        ]
    }
    for written in (orjson.dumps(listed), json.dumps(listed).encode()):
        yield Rehearsal(written, 0)
