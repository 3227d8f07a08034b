"""Requests and answers as the tests put them: NumPy arrays in, NumPy arrays out."""

import base64
import math
from typing import Any

import httpx
import msgpack
import numpy as np

from app.operators.operator import PREFIX

Array = np.ndarray[Any, np.dtype[Any]]

HARD_SIGMOID = PREFIX + "ACTIVATION_HARD_SIGMOID"
CELU = PREFIX + "ACTIVATION_CELU"
PARAMETERIZED_RELU = PREFIX + "ACTIVATION_PARAMETERIZED_RELU"
CONSTANT_POW = PREFIX + "ELEMENT_WISE_CONSTANT_POW"


def desc(array: Array, **members: Any) -> dict[str, Any]:
    """The descriptor of a packed array; `members` are added or override."""
    return {"DataType": array.dtype.name.upper(), "Sizes": list(array.shape)} | members


def request(
    kind: str, inputs: dict[str, Array], operator: dict[str, Any] | None = None, **members: Any
) -> dict[str, Any]:
    """A dispatch with data as bytes; `operator` and `members` are added to the descriptor and to the request."""
    descs = {name: desc(array) for name, array in inputs.items()}
    data = {name: np.ascontiguousarray(array).tobytes() for name, array in inputs.items()}
    return {"operator": {"Type": kind} | descs | (operator or {}), "inputs": data} | members


def as_json(message: dict[str, Any]) -> dict[str, Any]:
    """The same with data as base64, for json=."""
    if message["inputs"] is None:
        return message
    inputs = message["inputs"].items()
    return message | {
        "inputs": {name: None if data is None else base64.b64encode(data).decode() for name, data in inputs}
    }


def post_json(client: httpx.Client, message: dict[str, Any]) -> httpx.Response:
    return client.post("/v1/dispatch", json=as_json(message), headers={"accept": "application/json"})


def post_msgpack(client: httpx.Client, message: dict[str, Any]) -> httpx.Response:
    media_type = "application/msgpack"
    headers = {"content-type": media_type, "accept": media_type}
    return client.post("/v1/dispatch", content=msgpack.packb(message), headers=headers)


def answer_of(response: httpx.Response) -> dict[str, Any]:
    """The decoded answer of either type, its data as bytes."""
    if response.headers["content-type"] == "application/msgpack":
        return msgpack.unpackb(response.content)  # type: ignore[no-any-return]
    return decoded(response.json())


def decoded(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer in JSON, its data as bytes."""
    for output in answer.get("outputs", {}).values():
        for each in output if isinstance(output, list) else [output]:
            each["data"] = base64.b64decode(each["data"], validate=True)
    return answer


def output_of(response: httpx.Response, name: str = "OutputTensor") -> Array:
    """An output of a successful answer, seen through its strides."""
    assert response.status_code == 200, response.text
    return array_of(answer_of(response)["outputs"][name])


def array_of(output: dict[str, Any]) -> Array:
    """An output as it was answered. UINT4 and INT4, two to a byte, become UINT8 and INT8."""
    if output["DataType"].endswith("INT4"):
        both = np.frombuffer(output["data"], np.uint8)
        apart = np.stack([both & 15, both >> 4], -1).reshape(-1)[: math.prod(output["Sizes"])].reshape(output["Sizes"])
        return apart if output["DataType"] == "UINT4" else (apart ^ 8).astype(np.int8) - np.int8(8)
    flat = np.frombuffer(output["data"], np.dtype(output["DataType"].lower()))
    if output["Strides"] is None:
        return flat.reshape(output["Sizes"])
    strides = [stride * flat.itemsize for stride in output["Strides"]]
    return np.lib.stride_tricks.as_strided(flat, output["Sizes"], strides, writeable=False)


def problem_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The problem of an answer that must be one."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    return problem
