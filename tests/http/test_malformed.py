"""Bodies that are no documents, and documents that are no requests: each is refused clearly, none with a 500."""

import base64
import copy
import gzip
import json
import struct
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest

from app.contract.constants import DataType, ReduceFunction
from tests.http.refusals import error_at, refusal_of
from tests.messages import CELU, CONSTANT_POW, PARAMETERIZED_RELU, as_json, output_of, post_json, post_msgpack, request

JSON = "application/json"
MSGPACK = "application/msgpack"

X = np.array([1, 2], np.float32)
VALID = request(CELU, {"InputTensor": X}, {"Alpha": 2.0})
VALID_JSON = json.dumps(as_json(VALID)).encode()
VALID_MSGPACK: bytes = msgpack.packb(VALID)
LONG = "A" * 90_000  # long enough that the body is not parsed whole


def post(client: httpx.Client, kind: str, body: str | bytes) -> httpx.Response:
    return client.post("/v1/dispatch", content=body, headers={"content-type": kind})


def test_the_documents_that_are_spoilt_below_are_valid(client: httpx.Client) -> None:
    output_of(post(client, JSON, VALID_JSON))
    output_of(post(client, MSGPACK, VALID_MSGPACK))


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (JSON, VALID_MSGPACK, "MessagePack"),
        (MSGPACK, VALID_JSON, "JSON"),
        (JSON, gzip.compress(VALID_JSON), "gzip, which Content-Encoding has to say"),
        (MSGPACK, b"\x28\xb5\x2f\xfd" + bytes(9), "zstd, which Content-Encoding has to say"),
        (JSON, b"\x93NUMPY\1\0", "an npy file"),
        (JSON, b"PK\3\4" + bytes(40), "an npz file"),
    ],
)
def test_what_is_sent_as_something_else_is_recognized(client: httpx.Client, kind: str, body: bytes, said: str) -> None:
    assert refusal_of(post(client, kind, body), 400)["detail"].endswith(f" it may be {said}.")


def test_what_is_only_spoilt_is_told_as_that(client: httpx.Client) -> None:
    for kind, body in ((JSON, VALID_JSON[:-1]), (MSGPACK, VALID_MSGPACK[:-1])):
        assert "may be" not in refusal_of(post(client, kind, body), 400)["detail"]


class TestJson:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b" ",
            b"nonsense",
            b"{",
            b"{}}",
            b"{} {}",
            b'{"operator": {},}',
            b"{'operator': {}}",
            b"{operator: {}}",
            b'{"operator": {} /* comment */}',
            b'{"operator" {}}',
            b'{"device": "a\nb"}',
            b'{"device": "a\x00b"}',
            b'{"device": "\\x41"}',
            b'{"device": "\\u12"}',
            b'{"device": "open',
            b'{"device": 01}',
            b'{"device": .5}',
            b'{"device": 0x10}',
            b'{"device": True}',
            b"\x00",
            b"\xff\xfe",
            b"\xef\xbb\xbf" + VALID_JSON,
            VALID_JSON.decode().encode("utf-16"),
            VALID_JSON.decode().encode("utf-16-be"),
            VALID_JSON + b"\x00",
            VALID_JSON + VALID_JSON,
            VALID_JSON[:-1],
            VALID_MSGPACK,
        ],
        ids=lambda body: ascii(body[:24]) + f"+{len(body)}",
    )
    @pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
    def test_not_json(self, client: httpx.Client, body: bytes, long: bool) -> None:
        if long:
            body = f'{{"a": "{LONG}", "b": '.encode() + body + b"}"
        refusal_of(post(client, JSON, body), 400)

    def test_truncated_anywhere(self, client: httpx.Client) -> None:
        for end in range(len(VALID_JSON)):
            refusal_of(post(client, JSON, VALID_JSON[:end]), 400)

    def test_a_byte_order_mark_is_told(self, client: httpx.Client) -> None:
        assert "byte order mark" in refusal_of(post(client, JSON, b"\xef\xbb\xbf" + VALID_JSON), 400)["detail"]

    @pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80"])
    def test_not_utf_8(self, client: httpx.Client, bad: bytes) -> None:
        assert "UTF-8" in refusal_of(post(client, JSON, b'{"device": "' + bad + b'"}'), 400)["detail"]

    @pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
    def test_what_is_no_number(self, client: httpx.Client, token: str) -> None:
        problem = refusal_of(post(client, JSON, VALID_JSON.replace(b"2.0", token.encode())), 400)
        assert token in problem["detail"]

    @pytest.mark.parametrize("number", ["1e400", "-1e400", "3.5e38", "1" + "0" * 39, "1" * 4000])
    def test_numbers_beyond_float(self, client: httpx.Client, number: str) -> None:
        error_at("/operator/Alpha", post(client, JSON, VALID_JSON.replace(b"2.0", number.encode())))

    @pytest.mark.parametrize("number", ["4294967296", "1e400", "1.0", "-1", "1" * 4000])
    def test_numbers_beyond_uint(self, client: httpx.Client, number: str) -> None:
        body = VALID_JSON.replace(b'"Sizes": [2]', b'"Sizes": [%b]' % number.encode())
        error_at("/operator/InputTensor/Sizes/0", post(client, JSON, body))

    def test_an_integer_too_long_to_be_one(self, client: httpx.Client) -> None:
        problem = refusal_of(post(client, JSON, VALID_JSON.replace(b"2.0", b"1" * 20_000)), 400)
        assert "digits" in problem["detail"]
        assert "sys." not in problem["detail"]

    @pytest.mark.parametrize(
        "body",
        [
            '{"operator": {}, "operator": {}}',
            '{"operator": {"Type": "ACTIVATION_CELU", "Type": "ACTIVATION_CELU"}}',
            '{"operator": {"InputTensor": {"Sizes": [1], "Sizes": [1]}}}',
            '{"inputs": {"InputTensor": "", "InputTensor": ""}}',
            '{"inputs": {"InputTensor": "", "\\u0049nputTensor": ""}}',
            '{"a": [[{"": 1, "": 1}]]}',
            f'{{"a": "{LONG}", "a": 1}}',
        ],
    )
    def test_a_name_twice(self, client: httpx.Client, body: str) -> None:
        assert "twice" in refusal_of(post(client, JSON, body), 400)["detail"]

    @pytest.mark.parametrize(
        "body",
        [
            r'{"device": "\ud800"}',
            r'{"device": "\udc00\ud800"}',
            r'{"\udfff": 1}',
            r'{"operator": {"Type": "\ud800"}}',
            r'{"inputs": {"InputTensor": "AAAA\ud800"}}',
            rf'{{"device": "{LONG}\ud800"}}',
            rf'{{"inputs": {{"InputTensor": "{LONG}\ud800"}}}}',
            rf'{{"a": "{LONG}", "device": "\ud800"}}',
        ],
        ids=lambda body: body[:24] + f"+{len(body)}",
    )
    def test_half_a_surrogate_pair(self, client: httpx.Client, body: str) -> None:
        assert "surrogate" in refusal_of(post(client, JSON, body), 400)["detail"]

    @pytest.mark.parametrize("escape", [r"\q", r"\u12", r"\u12x4", "\\\n"])
    def test_a_bad_escape_in_a_long_string(self, client: httpx.Client, escape: str) -> None:
        refusal_of(post(client, JSON, f'{{"inputs": {{"InputTensor": "{LONG}{escape}"}}}}'), 400)

    @pytest.mark.parametrize(
        "text",
        [
            "AACAPwAAAEA",  # without padding
            "AACAPwAAAEA==",
            "AACAPwAAAEA=\n",
            " AACAPwAAAEA=",
            "AACA PwAAAEA=",
            "AACAPwAA\r\nAEA=",
            "AACAPwAAAEB=",  # bits that are not used are not 0
            "AACAPwAAAE-_",  # the alphabet of URLs
            "AACAPwAAAE+/AA==AA==",
            "AACAPwAA====",
            "data:;base64,AACAPwAAAEA=",
            "AACAPwAAAEÄ=",
            "=",
            "\u0000",
        ],
        ids=ascii,
    )
    @pytest.mark.parametrize("long", ["", LONG], ids=["short", "long"])
    def test_not_canonical_base64(self, client: httpx.Client, text: str, long: str) -> None:
        message = as_json(VALID) | {"inputs": {"InputTensor": long + text}}
        for ensure_ascii in (False, True):
            body = json.dumps(message, ensure_ascii=ensure_ascii)
            error = error_at("/inputs/InputTensor", post(client, JSON, body))
            assert "base64" in error["message"]


class TestMsgpack:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\xc1",
            VALID_MSGPACK + b"\x00",
            VALID_MSGPACK + VALID_MSGPACK,
            VALID_JSON,
            b'"text"',
        ],
    )
    def test_not_msgpack(self, client: httpx.Client, body: bytes) -> None:
        refusal_of(post(client, MSGPACK, body), 400)

    def test_truncated_anywhere(self, client: httpx.Client) -> None:
        for end in range(len(VALID_MSGPACK)):
            refusal_of(post(client, MSGPACK, VALID_MSGPACK[:end]), 400)

    @pytest.mark.parametrize(
        "body",
        [
            b"\xc4\x05ab",  # bin
            b"\xc5\xff\xffab",
            b"\xc6\xff\xff\xff\xffab",
            b"\xa5ab",  # str
            b"\xd9\xffab",
            b"\xdb\xff\xff\xff\xffab",
            b"\x9f\x01",  # array
            b"\xdc\xff\xff\x01",
            b"\xdd\xff\xff\xff\xff\x01",
            b"\x8f\xa1a\x01",  # map
            b"\xde\xff\xff\xa1a\x01",
            b"\xdf\xff\xff\xff\xff\xa1a\x01",
            b"\x91" * 20 + b"\xdd\xff\xff\xff\xff",
            b"\xcd\x01",  # numbers
            b"\xcb\x01",
            b"\xd9",
        ],
        ids=bytes.hex,
    )
    def test_lengths_that_lie(self, client: httpx.Client, body: bytes) -> None:
        for sent in (body, b"\x81\xa6device" + body):
            assert "ends after" in refusal_of(post(client, MSGPACK, sent), 400)["detail"]

    @pytest.mark.parametrize(
        "extension",
        [
            msgpack.ExtType(1, b"a"),
            msgpack.ExtType(5, b"abc"),
            msgpack.ExtType(7, b"a" * 16),
            msgpack.ExtType(7, b"a" * 300),
            msgpack.ExtType(7, b"a" * 70_000),
            msgpack.Timestamp(1),
            msgpack.Timestamp(-1, 5),
        ],
        ids=lambda extension: type(extension).__name__,
    )
    def test_extension_types(self, client: httpx.Client, extension: object) -> None:
        for message in (extension, {"device": extension}, {"inputs": {"InputTensor": extension}}):
            assert "extension" in refusal_of(post(client, MSGPACK, msgpack.packb(message)), 400)["detail"]

    @pytest.mark.parametrize("key", [1, -1, None, True, 1.5, b"operator", (), (1, 2)], ids=repr)
    def test_keys_that_are_no_strings(self, client: httpx.Client, key: object) -> None:
        for message in ({key: 1}, {"operator": {key: 1}}, {"operator": {"Type": CELU, "InputTensor": {key: 1}}}):
            assert "string" in refusal_of(post(client, MSGPACK, msgpack.packb(message)), 400)["detail"]

    @pytest.mark.parametrize("before", [b"", b"\x81\xa8operator", b"\x81\xa6inputs", b"\x81\xa1a\x91"])
    def test_a_name_twice(self, client: httpx.Client, before: bytes) -> None:
        twice = b"\x82\xa4Type\x01\xd9\x04Type\x01"
        assert "twice" in refusal_of(post(client, MSGPACK, before + twice), 400)["detail"]

    @pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xed\xa0\x80"])
    def test_not_utf_8(self, client: httpx.Client, bad: bytes) -> None:
        text = bytes([0xA0 + len(bad)]) + bad
        for body in (text, b"\x81" + text + b"\x01", b"\x81\xa6device" + text):
            assert "UTF-8" in refusal_of(post(client, MSGPACK, body), 400)["detail"]

    @pytest.mark.parametrize(
        "number", [float("nan"), float("inf"), -float("inf"), 1e300, 2**64 - 1, -(2**63)], ids=repr
    )
    def test_numbers_beyond_what_a_field_takes(self, client: httpx.Client, number: float) -> None:
        message = copy.deepcopy(VALID)
        message["operator"]["InputTensor"]["Sizes"] = [number]
        error_at("/operator/InputTensor/Sizes/0", post(client, MSGPACK, msgpack.packb(message)))
        if isinstance(number, float):
            message = copy.deepcopy(VALID)
            message["operator"]["Alpha"] = number
            error_at("/operator/Alpha", post(client, MSGPACK, msgpack.packb(message)))

    def test_float32_numbers_are_numbers(self, client: httpx.Client) -> None:
        body = VALID_MSGPACK.replace(b"\xcb" + struct.pack(">d", 2.0), b"\xca" + struct.pack(">f", 2.0))
        assert len(body) == len(VALID_MSGPACK) - 4
        output_of(post(client, MSGPACK, body))

    def test_data_must_be_binary(self, client: httpx.Client) -> None:
        message = VALID | {"inputs": {"InputTensor": base64.b64encode(X.tobytes()).decode()}}
        error = error_at("/inputs/InputTensor", post(client, MSGPACK, msgpack.packb(message)))
        assert error["allowed"] == ["bin"]

    def test_data_without_names(self, client: httpx.Client) -> None:
        """What was given is told as what it is, not as what stands for it in here."""
        error = error_at("/inputs", post(client, MSGPACK, msgpack.packb(VALID | {"inputs": [X.tobytes()]})))
        assert error["given"] == [f"{X.nbytes} bytes of data"]
        error = error_at("/inputs", post(client, JSON, json.dumps(VALID | {"inputs": ["AAAA"]}).encode()))
        assert "Span" not in json.dumps(error)


def nested(depth: int, kind: str) -> bytes:
    """A document of arrays and objects in turn, `depth` deep."""
    pairs, odd = divmod(depth, 2)
    if kind == MSGPACK:
        return b"\x91\x81\xa1a" * pairs + b"\x91" * odd + b"\x01"
    return b'[{"a":' * pairs + b"[" * odd + b"1" + b"]" * odd + b"}]" * pairs


@pytest.mark.parametrize("kind", [JSON, MSGPACK])
class TestDepth:
    def test_up_to_the_limit(self, client: httpx.Client, kind: str) -> None:
        error_at("", post(client, kind, nested(32, kind)))

    @pytest.mark.parametrize("depth", [33, 34, 300, 1000, 10_000, 30_000])
    def test_beyond(self, client: httpx.Client, kind: str, depth: int) -> None:
        detail = refusal_of(post(client, kind, nested(depth, kind)), 413)["detail"]
        assert "max_depth" in detail
        assert "32" in detail

    def test_in_tensor_data(self, client: httpx.Client, kind: str) -> None:
        start = b'{"inputs": ' if kind == JSON else b"\x81\xa6inputs"
        refusal_of(post(client, kind, start + nested(300, kind) + (b"}" if kind == JSON else b"")), 413)


ALL_FIELDS = {
    "operator": {
        "Type": CONSTANT_POW,
        "InputTensor": {
            "DataType": "FLOAT32",
            "Sizes": [2],
            "Strides": [1],
            "Flags": ["NONE"],
            "DimensionCount": 1,
            "TotalTensorSizeInBytes": 8,
            "GuaranteedBaseOffsetAlignment": 4,
        },
        "OutputTensor": {"DataType": "FLOAT32", "Sizes": [2]},
        "ScaleBias": {"Scale": 1.0, "Bias": 0.5},
        "Exponent": 2.0,
    },
    "inputs": {"InputTensor": X.tobytes()},
    "feature_level": "6_4",
    "in_place": "InputTensor",
    "device": "auto",
}

# Values of every kind, and of which kinds each field takes some.
VALUES = {
    "null": None,
    "bool": True,
    "negative": -1,
    "huge": 2**64 - 1,
    "fraction": 1.5,
    "text": "text",
    "array": [],
    "nested": [[1]],
    "object": {},
    "unknown": {"unknown": 1},
}
FIELDS: dict[str, set[str]] = {
    "": set(),
    "/operator": set(),
    "/operator/Type": set(),
    "/operator/InputTensor": set(),
    "/operator/InputTensor/DataType": set(),
    "/operator/InputTensor/Sizes": set(),
    "/operator/InputTensor/Sizes/0": set(),
    "/operator/InputTensor/Strides": {"null"},
    "/operator/InputTensor/Strides/0": set(),
    "/operator/InputTensor/Flags": {"array", "null"},
    "/operator/InputTensor/Flags/0": set(),
    "/operator/InputTensor/DimensionCount": {"null"},
    "/operator/InputTensor/TotalTensorSizeInBytes": {"null", "huge"},
    "/operator/InputTensor/GuaranteedBaseOffsetAlignment": {"null"},
    "/operator/OutputTensor": {"null"},
    "/operator/ScaleBias": {"null"},
    "/operator/ScaleBias/Scale": {"negative", "fraction", "huge"},
    "/operator/ScaleBias/Bias": {"negative", "fraction", "huge"},
    "/operator/Exponent": {"negative", "fraction", "huge"},
    "/inputs": set(),
    "/inputs/InputTensor": set(),
    "/feature_level": {"null"},
    "/in_place": {"null"},
    "/device": {"null"},
}


def with_value(document: Any, pointer: str, value: object) -> Any:
    """A copy of `document` with `value` at `pointer`."""
    if not pointer:
        return value
    result = copy.deepcopy(document)
    *parents, last = [int(part) if part.isdigit() else part for part in pointer.split("/")[1:]]
    holder = result
    for parent in parents:
        holder = holder[parent]
    holder[last] = value
    return result


def test_a_request_with_all_fields(client: httpx.Client) -> None:
    assert output_of(post_msgpack(client, ALL_FIELDS)).tolist() == [2.25, 6.25]
    assert output_of(post_json(client, ALL_FIELDS)).tolist() == [2.25, 6.25]


@pytest.mark.parametrize("kind", [JSON, MSGPACK])
@pytest.mark.parametrize(("pointer", "taken"), FIELDS.items(), ids=lambda each: each if isinstance(each, str) else "")
def test_values_of_the_wrong_kind(client: httpx.Client, kind: str, pointer: str, taken: set[str]) -> None:
    message = ALL_FIELDS if kind == MSGPACK else as_json(ALL_FIELDS)
    values = VALUES if kind == JSON else VALUES | {"binary": b"12"}
    for name in values.keys() - taken:
        if (pointer, name) == ("/inputs/InputTensor", "binary"):
            continue
        wrong = with_value(message, pointer, values[name])
        body = msgpack.packb(wrong) if kind == MSGPACK else json.dumps(wrong)
        response = post(client, kind, body)
        errors = refusal_of(response, 422)["errors"]
        assert any(error["pointer"].startswith(pointer) for error in errors), (name, errors)


@pytest.mark.parametrize(
    ("pointer", "known"),
    [
        ("/Unknown", "operator"),
        ("/operator/Unknown", "Exponent"),
        ("/operator/exponent", "Exponent"),
        ("/operator/InputTensor/Unknown", "Sizes"),
        ("/operator/OutputTensor/~0~1", "Sizes"),
        ("/operator/ScaleBias/Unknown", "Scale"),
    ],
)
def test_unknown_fields_are_told_with_the_known_ones(client: httpx.Client, pointer: str, known: str) -> None:
    parent, _, name = pointer.rpartition("/")
    real_name = name.replace("~1", "/").replace("~0", "~")
    message = with_value(ALL_FIELDS, parent + "/" + "placeholder", 1)
    holder = message
    for part in parent.split("/")[1:]:
        holder = holder[part]
    holder[real_name] = holder.pop("placeholder")
    error = error_at(pointer, post_json(client, message))
    assert error["given"] == 1
    assert known in error["allowed"]


@pytest.mark.parametrize(
    "pointer",
    [
        "/operator",
        "/inputs",
        "/operator/Type",
        "/operator/InputTensor",
        "/operator/InputTensor/Sizes",
        "/operator/Exponent",
    ],
)
def test_missing_fields(client: httpx.Client, pointer: str) -> None:
    message: Any = copy.deepcopy(ALL_FIELDS)
    holder = message
    *parents, last = pointer.split("/")[1:]
    for parent in parents:
        holder = holder[parent]
    del holder[last]
    body = msgpack.packb(message)
    error = error_at(pointer, post(client, MSGPACK, body))
    assert error["given"] is None
    assert "missing" in error["message"]


def test_data_without_a_descriptor(client: httpx.Client) -> None:
    inputs = {"ATensor": "AACAPw==", "BTensor": None}
    refusal = refusal_of(
        client.post("/v1/dispatch", json={"operator": {"Type": "ELEMENT_WISE_ADD"}, "inputs": inputs}), 422
    )
    assert [(each["pointer"], each["message"], each["allowed"]) for each in refusal["errors"]] == [
        (
            "/operator/ATensor",
            "ATensor is missing in the operator; its data alone do not tell its DataType and Sizes.",
            ["an object with DataType and Sizes"],
        ),
        ("/operator/BTensor", "BTensor is missing; it is required here.", ["a value"]),
    ]


def test_without_an_operator_a_graph_is_told_of_too(client: httpx.Client) -> None:
    messages: dict[str, dict[str, Any]] = {
        "": {"inputs": {}},
        " Graph is not a field here. Did you mean graph?": {"Graph": {}, "inputs": {}},
    }
    for meant, message in messages.items():
        error = error_at("/operator", post_json(client, message))
        assert error["message"] == f"operator is missing, and so is graph; one of them says what to execute.{meant}"
        assert error["allowed"] == ["operator", "graph"]


@pytest.mark.parametrize(
    ("path", "message", "pointer"),
    [
        ("/v1/dispatch", {"operator": {"Alpha": 1, "type": "ACTIVATION_ELU"}, "inputs": {}}, "/operator/Type"),
        ("/v1/dispatch", {"graph": {"Nodes": [{"type": "OPERATOR"}], "OutputEdges": []}}, "/graph/Nodes/0/Type"),
        ("/v1/feature-support", {"feature": "FEATURE_LEVELS"}, "/Feature"),
    ],
)
def test_a_type_in_other_letters_is_told_with_its_name(
    client: httpx.Client, path: str, message: dict[str, Any], pointer: str
) -> None:
    name = pointer.rpartition("/")[2]
    error = error_at(pointer, client.post(path, json=message))
    assert error["message"] == (
        f"{name} is missing; it says what this is. {name.lower()} is not a field here. Did you mean {name}?"
    )


def test_a_missing_constant_is_told_with_its_names(client: httpx.Client) -> None:
    reduce = {"Type": "REDUCE", "InputTensor": {"Sizes": [2]}, "Axes": [0]}
    for subject, at in (
        ({"operator": reduce}, "/operator"),
        ({"graph": {"Nodes": [{"Type": "OPERATOR", "Desc": reduce}], "OutputEdges": []}}, "/graph/Nodes/0/Desc"),
    ):
        refusal = refusal_of(post_json(client, subject | {"inputs": {}}), 422)
        found = {error["pointer"]: error for error in refusal["errors"]}
        for pointer, kind in ((f"{at}/Function", ReduceFunction), (f"{at}/InputTensor/DataType", DataType)):
            assert found[pointer]["allowed"] == [member.value for member in kind]
            assert found[pointer]["message"].endswith(f" is missing; it is required here: {kind.names()}.")


class TestLongNames:
    """Whatever is long is not repeated at length."""

    @pytest.mark.parametrize("size", [5_000, 20_000])
    @pytest.mark.parametrize(
        "pointer", ["/device", "/in_place", "/feature_level", "/operator/Type", "/operator/InputTensor/DataType"]
    )
    def test_as_a_value(self, client: httpx.Client, pointer: str, size: int) -> None:
        for character in ("x", "é", '"', "\u0001", "\U0001f600"):
            wrong = with_value(as_json(ALL_FIELDS), pointer, character * size)
            for ensure_ascii in (True, False):
                response = post(client, JSON, json.dumps(wrong, ensure_ascii=ensure_ascii))
                allowed = json.dumps(error_at(pointer, response)["allowed"])  # such as the names of all operators
                assert len(response.content) < 2048 + 3 * len(allowed)  # short ones are in the sentence, too

    def test_as_a_value_in_msgpack(self, client: httpx.Client) -> None:
        for value in ("x" * 90_000, b"x" * 90_000):
            response = post(client, MSGPACK, msgpack.packb(with_value(ALL_FIELDS, "/device", value)))
            error_at("/device", response)
            assert len(response.content) < 4096

    @pytest.mark.parametrize("pointer", ["/operator", "/operator/InputTensor", "/inputs"])
    def test_as_a_field(self, client: httpx.Client, pointer: str) -> None:
        name = "n" * 5_000
        response = post_msgpack(client, with_value(ALL_FIELDS, f"{pointer}/{name}", b""))
        assert len(error_at(f"{pointer}/{name}", response)["message"]) < 500

    def test_as_a_field_of_a_large_json_body(self, client: httpx.Client) -> None:
        name = "n" * 30_000
        response = post(client, JSON, json.dumps(as_json(ALL_FIELDS) | {name: 1}))
        assert len(error_at(f"/{name}", response)["message"]) < 500


class TestManyErrors:
    """A small request cannot ask for an answer of megabytes."""

    @pytest.mark.parametrize("pointer", ["", "/operator", "/operator/InputTensor", "/inputs"])
    def test_unknown_names(self, client: httpx.Client, pointer: str) -> None:
        message: Any = as_json(request(PARAMETERIZED_RELU, {"InputTensor": X, "SlopeTensor": X}))
        holder = message
        for part in pointer.split("/")[1:]:
            holder = holder[part]
        holder |= {f"{number:x}": "" for number in range(20_000)}
        errors = refusal_of(post(client, JSON, json.dumps(message)), 422)["errors"]
        assert 1 < len(errors) <= 100

    def test_list_entries(self, client: httpx.Client) -> None:
        for field in ("Sizes", "Strides", "Flags"):
            body = msgpack.packb(with_value(ALL_FIELDS, f"/operator/InputTensor/{field}", [True] * 200_000))
            assert len(refusal_of(post(client, MSGPACK, body), 422)["errors"]) <= 100
