"""Requests with graphs, over HTTP, in either representation."""

import base64
from copy import deepcopy
from typing import Any

import httpx
import msgpack
import numpy as np

from tests.graphs.documents import OWNED, Document, add, between, graph, into, out, relu, tensor
from tests.messages import Array, answer_of, array_of

MSGPACK = {"content-type": "application/msgpack", "accept": "application/msgpack"}
JSON = {"accept": "application/json"}

X = np.array([[-4, -2, 0], [1, 2, 4]], np.float32)
BIAS = np.array([1, 2, 3], np.float32)
Y = np.maximum(X + BIAS, 0)
ROW = tensor(Strides=[0, 1])
"""Three elements, the same for each row."""


def biased(data: Array = BIAS) -> Document:
    """relu(x + a constant), by names."""
    return graph(
        [add("add", b=ROW), {"Type": "CONSTANT", "Name": "bias", "Data": data.tobytes()}, relu("relu")],
        [into("x", "add", "ATensor")],
        [out("relu", "y", "OutputTensor")],
        [between("bias", "add", "BTensor", "Data"), between("add", "relu", "InputTensor", "OutputTensor")],
    )


def weighted(sizes: tuple[int, ...] = (2, 3)) -> Document:
    """x + relu(w), where w is OWNED_BY_DML, by indices: x is the graph's input 0 and w its input 1."""
    owned, x = OWNED | {"Sizes": list(sizes)}, tensor(sizes=sizes)
    return graph([add(a=x, b=x), relu(desc=owned)], [into(0, 0), into(1, 1)], [out(0)], [between(1, 0, 1)])


def as_text(message: Document) -> Document:
    """`message` with tensor data as base64."""
    made = deepcopy(message)
    nodes = made.get("graph", {}).get("Nodes", [])
    for holder in [made.get("inputs", {}), *(node for node in nodes if isinstance(node, dict))]:
        for name, value in holder.items():
            if isinstance(value, bytes):
                holder[name] = base64.b64encode(value).decode()
    return made


def post(client: httpx.Client, path: str, message: Document, binary: bool = True) -> httpx.Response:
    if binary:
        return client.post(path, content=msgpack.packb(message), headers=MSGPACK)
    return client.post(path, json=as_text(message), headers=JSON)


def keep(client: httpx.Client, described: Document, binary: bool = True, **members: Any) -> Document:
    """What is told of a graph that is kept now."""
    response = post(client, "/v1/graphs", {"graph": described} | members, binary)
    assert response.status_code in (200, 201), response.text
    told: Document = msgpack.unpackb(response.content) if binary else response.json()
    return told


def dispatch(client: httpx.Client, id_: str, binary: bool = True, **inputs: Array) -> httpx.Response:
    """Of a graph that is kept; inputs by index are called _0 and so on."""
    data = {name.removeprefix("_"): array.tobytes() for name, array in inputs.items()}
    return post(client, f"/v1/graphs/{id_}/dispatch", {"inputs": data}, binary)


def result(response: httpx.Response, name: str = "y") -> Array:
    """An output of a successful answer."""
    assert response.status_code == 200, response.text
    return array_of(answer_of(response)["outputs"][name])
