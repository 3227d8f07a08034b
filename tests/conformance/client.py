"""A client for the runner of the conformance cases: it states each case to a running dmlserve over HTTP."""

import base64
import json
from collections.abc import Callable
from typing import Any, Literal

import httpx
import msgpack

from tests.messages import Array, answer_of, array_of

Case = dict[str, Any]
Answer = tuple[int, dict[str, Array | list[Array]] | None, Any]

NOT_OF_THE_DESCRIPTOR = {"name", "data_b64", "index", "compare"}


class HttpClient:
    """Options: `url`, where the service answers, and `encoding` of requests and answers, json or msgpack."""

    def __init__(self, url: str, encoding: Literal["json", "msgpack"] = "json") -> None:
        if encoding not in ("json", "msgpack"):
            raise ValueError(f"encoding is {encoding}; it must be json or msgpack")
        self.encoding = encoding
        self.http = httpx.Client(base_url=url, timeout=60)

    def execute(self, case: Case) -> Answer:
        """Status, outputs by name (None on refusal), and what was answered beside the data.

        The output of a tensor array is a list of arrays.
        """
        encoding, body = self._encoded(case)
        headers = {"content-type": f"application/{encoding}", "accept": f"application/{self.encoding}"}
        response = self.http.post("/v1/dispatch", content=body, headers=headers)
        if response.status_code != 200:
            return response.status_code, None, response.text
        answer = answer_of(response)
        outputs = answer.pop("outputs")
        return 200, {name: each(array_of, output) for name, output in outputs.items()}, answer

    def operators(self) -> list[str]:
        """What the service lists, without DML_OPERATOR_."""
        listed = self.http.get("/v1/operators").raise_for_status().json()
        return [operator["Type"].removeprefix("DML_OPERATOR_") for operator in listed]

    def _encoded(self, case: Case) -> tuple[str, bytes]:
        if self.encoding == "json":
            try:
                return "json", json.dumps(message(case, data_of(case, str)), allow_nan=False).encode()
            except ValueError:
                pass  # JSON has no NaN and no infinity, so this case travels as MessagePack
        return "msgpack", msgpack.packb(message(case, data_of(case, base64.b64decode)))


def message(case: Case, data: dict[str, Any]) -> dict[str, Any]:
    """The dispatch request that states `case`, with `data` of its tensors in the wire's form.

    Everything in the case is passed on as it stands, so that a case that must be refused is judged by the service.
    """
    tensors = {name: each(descriptor, tensor) for name, tensor in case["tensors"].items()}
    # DML_RANDOM_GENERATOR_OPERATOR_DESC has a Type too, which is GeneratorType beside that of the operator.
    attributes = {"GeneratorType" if name == "Type" else name: value for name, value in case["attributes"].items()}
    operator = {"Type": case["operator"]} | tensors | attributes
    if isinstance(axes := operator.get("Axes"), list):
        operator.setdefault("AxisCount", len(axes))
    for output in case.get("outputs") or filter(None, [case.get("output")]):
        if "index" in output:
            operator.setdefault(output["name"], []).append(descriptor(output))
        else:
            operator[output["name"]] = descriptor(output)
    stated: dict[str, Any] = {"operator": operator, "inputs": data}
    if case["feature_level"] is not None:
        stated["feature_level"] = case["feature_level"]
    return stated


def data_of(case: Case, form: Callable[[str], Any]) -> dict[str, Any]:
    """The data of all tensors that have some, `form` made of each one's base64; a list for a tensor array."""
    return {
        name: each(lambda one: form(one["data_b64"]), tensor)
        for name, tensor in case["tensors"].items()
        if all(one and "data_b64" in one for one in (tensor if isinstance(tensor, list) else [tensor]))
    }


def each(of: Callable[[dict[str, Any]], Any], tensor: dict[str, Any] | list[dict[str, Any]]) -> Any:
    """`of` a tensor, or the list of it for those of a tensor array."""
    return [of(one) for one in tensor] if isinstance(tensor, list) else of(tensor)


def descriptor(tensor: dict[str, Any] | None) -> dict[str, Any] | None:
    """What of a tensor is its descriptor; null stays null, for the service to judge."""
    return tensor and {name: value for name, value in tensor.items() if name not in NOT_OF_THE_DESCRIPTOR}
