"""The ways to put a tensor of bytes into a request, and to find the result in its answer."""

import base64
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack

from tests.fuzz.payload import PERIOD, Payload, Wrong
from tests.fuzz.sizes import TEXT

MSGPACK, JSON, BINARY = "application/msgpack", "application/json", "application/octet-stream"
DISPATCH = "/v1/dispatch"

JSON_LENGTH = b"inference-header-content-length"


@dataclass(frozen=True)
class Written:
    """What there is to send of a request."""

    path: str
    fields: tuple[str, ...]
    body: bytes
    method: str = "POST"


@dataclass(frozen=True)
class Form:
    """A way. `read` raises anything if the answer is not of the form."""

    name: str
    write: Callable[[Payload, str], Written]
    """Of some data, with the request's id if the protocol has ids."""
    read: Callable[[dict[bytes, bytes], bytes, str], bytes]
    """The result, from the header fields and the body of the answer to the request with this id."""
    given: float = 1.0
    """Bytes of the request's body for each byte of data; 0 if that is not known."""
    wanted: float = 1.0
    """Bytes of the answer's body for each byte of data; 0 if that is not known."""
    step: int = 1
    """Of how many bytes the data are a multiple."""
    most: int = 1 << 40
    """The largest threshold that it is tried at."""


BASE64 = 4 / 3
NUMBERS = (10 * 2 + 90 * 3 + 156 * 4) / 256  # of all bytes with the comma behind them


def native(given: str, wanted: str) -> Form:
    """A dispatch from one media type to another."""

    def write(payload: Payload, number: str) -> Written:
        operator = {"Type": payload.operator, "InputTensor": {"DataType": "UINT8", "Sizes": [payload.size]}}
        return Written(DISPATCH, media_types(given, wanted), document(given, operator, payload.data))

    def read(fields: dict[bytes, bytes], body: bytes, number: str) -> bytes:
        return data_of(wanted, fields, body)

    short = {MSGPACK: "msgpack", JSON: "json"}
    ratio = {MSGPACK: 1.0, JSON: BASE64}
    return Form(f"{short[given]} to {short[wanted]}", write, read, ratio[given], ratio[wanted])


def media_types(given: str, wanted: str) -> tuple[str, ...]:
    return f"Content-Type: {given}", f"Accept: {wanted}"


def document(media_type: str, operator: dict[str, Any], data: bytes) -> bytes:
    """The body of a dispatch."""
    if media_type == MSGPACK:
        packed: bytes = msgpack.packb({"operator": operator, "inputs": {"InputTensor": data}})
        return packed
    head = json.dumps({"operator": operator, "inputs": {"InputTensor": ""}})
    return head[:-3].encode() + base64.b64encode(data) + b'"}}'


def data_of(media_type: str, fields: dict[bytes, bytes], body: bytes) -> bytes:
    """The data that a dispatch is answered with."""
    if fields[b"content-type"] != media_type.encode():
        raise Wrong(f"the answer is {fields[b'content-type']!r}")
    answer = msgpack.unpackb(body) if media_type == MSGPACK else json.loads(body)
    data = answer["outputs"]["OutputTensor"]["data"]
    return data if media_type == MSGPACK else base64.b64decode(data, validate=True)


def _write_spread(payload: Payload, number: str) -> Written:
    """A large answer to a small request: rows that share their data."""
    desc = {"DataType": "UINT8", "Sizes": [payload.size // PERIOD, PERIOD], "Strides": [0, 1]}
    operator = {"Type": payload.operator, "InputTensor": desc}
    return Written(DISPATCH, media_types(MSGPACK, MSGPACK), document(MSGPACK, operator, payload.block))


def _read_spread(fields: dict[bytes, bytes], body: bytes, number: str) -> bytes:
    return data_of(MSGPACK, fields, body)


def _path(payload: Payload) -> str:
    return f"/v2/models/{payload.operator.lower()}/infer"


def _tensor(payload: Payload) -> dict[str, Any]:
    return {"name": "InputTensor", "datatype": "UINT8", "shape": [payload.size]}


def _write_binary(payload: Payload, number: str) -> Written:
    tensor = _tensor(payload) | {"parameters": {"binary_data_size": payload.size}}
    head = json.dumps({"id": number, "inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    fields = f"Content-Type: {BINARY}", f"Inference-Header-Content-Length: {len(head)}"
    return Written(_path(payload), fields, head + payload.data)


def _read_binary(fields: dict[bytes, bytes], body: bytes, number: str) -> bytes:
    size = int(fields[JSON_LENGTH])
    _check_id(json.loads(body[:size]), number)
    return body[size:]


def _write_numbers(payload: Payload, number: str) -> Written:
    tensor = _tensor(payload) | {"data": list(payload.data)}
    body = json.dumps({"id": number, "inputs": [tensor]}, separators=(",", ":")).encode()
    return Written(_path(payload), (f"Content-Type: {JSON}",), body)


def _read_numbers(fields: dict[bytes, bytes], body: bytes, number: str) -> bytes:
    answer = json.loads(body)
    _check_id(answer, number)
    return bytes(answer["outputs"][0]["data"])


def _check_id(answer: dict[str, Any], number: str) -> None:
    if answer["id"] != number:
        raise Wrong(f"the answer is to {answer['id']} instead of {number}")


def compressed(coding: str, bits: int, level: int) -> Form:
    """Binary data in this coding both ways. At level 0 they are as long as without it."""

    def write(payload: Payload, number: str) -> Written:
        plain = _write_binary(payload, number)
        engine = zlib.compressobj(level, wbits=bits)
        fields = *plain.fields, f"Content-Encoding: {coding}", f"Accept-Encoding: {coding}"
        return Written(plain.path, fields, engine.compress(plain.body) + engine.flush())

    def read(fields: dict[bytes, bytes], body: bytes, number: str) -> bytes:
        if fields[b"content-encoding"] != coding.encode():
            raise Wrong(f"the answer is {fields[b'content-encoding']!r}")
        return _read_binary(fields, zlib.decompress(body, bits), number)

    return Form(coding, write, read, 0.0 if level else 1.0, 0.0)


NATIVE = [native(given, wanted) for given in (MSGPACK, JSON) for wanted in (MSGPACK, JSON)]
SPREAD = Form("spread", _write_spread, _read_spread, given=0.0, step=PERIOD)
BINARY_DATA = Form("binary", _write_binary, _read_binary)
FORMS = [
    *NATIVE,
    SPREAD,
    BINARY_DATA,
    Form("numbers", _write_numbers, _read_numbers, NUMBERS, NUMBERS, most=TEXT),
    compressed("gzip", 16 + zlib.MAX_WBITS, 0),
    compressed("deflate", zlib.MAX_WBITS, 1),
]
