"""Inference requests as the tests put them on the wire."""

import json
from typing import Any

import httpx
import numpy as np

from tests.messages import Array

LENGTH = "Inference-Header-Content-Length"
CELU = "/v2/models/activation_celu/infer"
RELU = "/v2/models/activation_parameterized_relu/infer"

DATATYPES = {"float": "FP", "int": "INT", "uint": "UINT"}

X = np.array([[-4, -2, 0], [1, 2, 4]], np.float32)


def datatype(array: Array) -> str:
    """The protocol's name of an array's type."""
    kind = array.dtype.name.rstrip("0123456789")
    return "BOOL" if kind == "bool" else DATATYPES[kind] + array.dtype.name.removeprefix(kind)


def tensor(name: str, array: Array, **members: Any) -> dict[str, Any]:
    """An input without data; `members` are added."""
    return {"name": name, "shape": list(array.shape), "datatype": datatype(array)} | members


def listed(name: str, array: Array, nested: bool = False) -> dict[str, Any]:
    """An input with numbers."""
    return tensor(name, array, data=(array if nested else array.reshape(-1)).tolist())


def behind(name: str, array: Array) -> dict[str, Any]:
    """An input whose data come behind the JSON."""
    return tensor(name, array, parameters={"binary_data_size": array.nbytes})


def body(document: dict[str, Any], *data: bytes) -> tuple[bytes, dict[str, str]]:
    """A body with binary data, and its header field."""
    text = json.dumps(document).encode()
    return text + b"".join(data), {LENGTH: str(len(text))}


def post(client: httpx.Client, path: str, document: dict[str, Any], *data: bytes) -> httpx.Response:
    content, headers = body(document, *data)
    return client.post(path, content=content, headers=headers if data else {})


def split(response: httpx.Response) -> tuple[dict[str, Any], bytes]:
    """The JSON of a successful answer, and what is behind it."""
    assert response.status_code == 200, response.text
    size = int(response.headers.get(LENGTH, len(response.content)))
    assert (LENGTH in response.headers) == (size < len(response.content))
    kind = "application/octet-stream" if LENGTH in response.headers else "application/json"
    assert response.headers["content-type"] == kind
    return json.loads(response.content[:size]), response.content[size:]


def error_of(response: httpx.Response, status: int = 400) -> str:
    """The text of an answer that must be an error."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (said,) = response.json().items()
    assert said[0] == "error"
    return str(said[1])
