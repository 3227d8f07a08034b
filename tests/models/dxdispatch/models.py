"""DxDispatch models for the tests: Microsoft's examples, and small ones of our own."""

import copy
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np

Json = dict[str, Any]

EXAMPLES = Path(__file__).parent / "examples"
EXPECTED: dict[str, list[Json]] = json.loads((EXAMPLES / "expected.json").read_text())
NAMES = sorted(EXPECTED.keys() & {path.stem for path in EXAMPLES.glob("*.json")})
TOLERANCE = {"dml_rnn": 1e-5}
"""Relative; else a few units in the last place."""


def tensor(*sizes: int, **more: Any) -> Json:
    return {"DataType": "FLOAT32", "Sizes": list(sizes)} | more


def floats(*values: Any, **more: Any) -> Json:
    return {"initialValuesDataType": "FLOAT32", "initialValues": list(values)} | more


def add() -> Json:
    """A model that adds two resources of three elements, and prints the sum."""
    made: Json = {
        "resources": {"A": floats(1, 2, 3), "B": floats(5, 8, -5), "Out": floats(0, 0, 0)},
        "dispatchables": {
            "add": {
                "type": "DML_OPERATOR_ELEMENT_WISE_ADD",
                "desc": {"ATensor": tensor(3), "BTensor": tensor(3), "OutputTensor": tensor(3)},
            }
        },
        "commands": [
            {
                "type": "dispatch",
                "dispatchable": "add",
                "bindings": {"ATensor": "A", "BTensor": "B", "OutputTensor": "Out"},
            },
            {"type": "print", "resource": "Out"},
        ],
    }
    return copy.deepcopy(made)


def unary(operator: str, data_type: str, *values: Any, **fields: Any) -> Json:
    """A model that applies an operator to some elements."""
    desc = {"DataType": data_type, "Sizes": [len(values)]}
    resource = {"initialValuesDataType": data_type, "initialValues": list(values)}
    return {
        "resources": {"In": resource, "Out": resource},
        "dispatchables": {"op": {"type": operator, "desc": {"InputTensor": desc, "OutputTensor": desc} | fields}},
        "commands": [
            {"type": "dispatch", "dispatchable": "op", "bindings": {"InputTensor": "In", "OutputTensor": "Out"}},
            {"type": "print", "resource": "Out"},
        ],
    }


def shown(**resources: Json) -> Json:
    """A model that prints resources as they are."""
    commands = [{"type": "print", "resource": name} for name in resources]
    return {"resources": resources, "dispatchables": {}, "commands": commands}


def changed(model: Json, pointer: str, value: Any = ...) -> Json:
    """`model` with `value` at a JSON pointer, or without what is there."""
    *way, last = pointer.split("/")[1:]
    place: Any = model
    for part in way:
        place = place[int(part)] if isinstance(place, list) else place[part]
    key: Any = int(last) if isinstance(place, list) else last
    if value is ...:
        del place[key]
    else:
        place[key] = value
    return model


def zipped(files: Mapping[str, bytes | str]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def post(client: httpx.Client, sent: Json | str | bytes, /, **query: str) -> httpx.Response:
    """A model that is JSON, or a zip if it is bytes."""
    kind = "application/zip" if isinstance(sent, bytes) else "application/json"
    content = json.dumps(sent) if isinstance(sent, dict) else sent
    return client.post("/v1/dxdispatch", content=content, headers={"content-type": kind}, params=query)


def lines(client: httpx.Client, model: Json | str | bytes) -> list[str]:
    response = post(client, model)
    assert response.status_code == 200, response.text
    return list(response.json()["lines"])


def problem(client: httpx.Client, sent: Json | str | bytes, /, status: int = 422, **query: str) -> dict[str, str]:
    """What is wrong with a model, by pointer."""
    response = post(client, sent, **query)
    assert response.status_code == status, response.text
    answer = response.json()
    return {each["pointer"]: each["message"] for each in answer["errors"]} or {"": answer["detail"]}


def npy(array: "np.ndarray[Any, Any]") -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
