"""`dmlserve run FILE`: requests executed without a server."""

import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from tests.cli.command import dmlserve, printed, refusal
from tests.messages import CELU, CONSTANT_POW, HARD_SIGMOID, PARAMETERIZED_RELU, array_of, as_json, decoded, request

X = np.array([[[[-4, -2, 0], [1, 2, 4]]]], np.float32)
SQUARES = request(CONSTANT_POW, {"InputTensor": X}, {"Exponent": 2})


def save(message: dict[str, Any], file: Path) -> Path:
    """`message` in the form that the file's name asks for."""
    file.write_bytes(msgpack.packb(message) if file.suffix == ".msgpack" else json.dumps(as_json(message)).encode())
    return file


@pytest.mark.parametrize("asked", ["request.json", "request.msgpack", "request"])
@pytest.mark.parametrize("saved", ["answer.json", "answer.msgpack", "answer"])
def test_request_and_answer_have_the_forms_that_their_files_names_tell(asked: str, saved: str, tmp_path: Path) -> None:
    output = tmp_path / saved
    assert printed(dmlserve("run", save(SQUARES, tmp_path / asked), "--output", output)) == ""
    data = output.read_bytes()
    answer = msgpack.unpackb(data) if output.suffix == ".msgpack" else decoded(json.loads(data))
    assert set(answer) == {"outputs", "execution", "capability"}
    np.testing.assert_array_equal(array_of(answer["outputs"]["OutputTensor"]), X * X)


def test_json_is_the_answer_of_the_service(tmp_path: Path) -> None:
    file, output = save(SQUARES, tmp_path / "request.msgpack"), tmp_path / "answer.msgpack"
    answer = decoded(json.loads(printed(dmlserve("run", file, "--json", "-o", output))))
    assert answer == msgpack.unpackb(output.read_bytes())
    assert answer["capability"]["operator"] == CONSTANT_POW
    assert answer["execution"]["device"] == "numpy"


def test_answer_for_people(tmp_path: Path) -> None:
    text = printed(dmlserve("run", save(SQUARES, tmp_path / "request.json"), columns=80))
    header, _, row, _, execution = text.splitlines()
    assert header.split() == ["output", "type", "sizes", "strides", "data"]
    assert " ".join(row.split()) == "OutputTensor FLOAT32 [1, 1, 2, 3] packed 16 4 0 1 4 16"
    assert execution.startswith("ELEMENT_WISE_CONSTANT_POW on numpy: ")


def test_answer_for_people_shows_integers_whole_and_long_data_in_part(tmp_path: Path) -> None:
    x = np.full(9, 123_456_789, np.int32)
    message = request(
        PARAMETERIZED_RELU,
        {"InputTensor": x, "SlopeTensor": x},
        {"OutputTensor": {"DataType": "INT32", "Sizes": [9], "Strides": [1]}},
        in_place="InputTensor",
    )
    text = printed(dmlserve("run", save(message, tmp_path / "request.json")))
    assert " ".join(["[1]", *["123456789"] * 8, "..."]) in " ".join(text.split())
    assert "in place" in text


def test_every_violation_has_a_line(tmp_path: Path) -> None:
    message = request(CELU, {"InputTensor": X.astype(np.int8)}, {"Alpha": 0})
    lines = refusal(dmlserve("run", save(message, tmp_path / "request.json")))
    assert [line.partition(": ")[0] for line in lines] == ["/operator/InputTensor/DataType", "/operator/Alpha"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("request.json", b"", "The body is not JSON: "),
        ("request.json", b'{"operator": ', "The body is not JSON: "),
        ("request.json", msgpack.packb(SQUARES), "The body is not "),
        ("request.msgpack", b"", "The body ends after 0 bytes"),
        ("request.msgpack", msgpack.packb(SQUARES)[:-1], "The body ends after "),
        ("request.json", b"[]", ": The document is "),
    ],
)
def test_unreadable_request(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    (line,) = refusal(dmlserve("run", tmp_path / name))
    assert line.startswith(message)


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_no_such_file(name: str, tmp_path: Path) -> None:
    result = dmlserve("run", tmp_path / name)
    assert result.exit_code == 2
    assert str(tmp_path) in result.stderr


def test_answer_that_cannot_be_saved(tmp_path: Path) -> None:
    output = tmp_path / "missing" / "answer.json"
    (line,) = refusal(dmlserve("run", save(SQUARES, tmp_path / "request.json"), "-o", output))
    assert line == f"{output} cannot be written: No such file or directory."


def test_limits_hold_here_too(tmp_path: Path) -> None:
    x = np.full(1 << 20, 1.5, np.float32)
    file = save(request(CONSTANT_POW, {"InputTensor": x}, {"Exponent": 2.5}), tmp_path / "request.msgpack")
    for limit, value in (("max_body_bytes", "1024"), ("max_tensor_bytes", "1024"), ("deadline_seconds", "1e-6")):
        (line,) = refusal(dmlserve("run", file, env={f"DMLSERVE_{limit.upper()}": value}))
        assert limit in line


def test_bad_setting(tmp_path: Path) -> None:
    file = save(request(HARD_SIGMOID, {"InputTensor": X}), tmp_path / "request.json")
    assert "DMLSERVE_THREADS" in refusal(dmlserve("run", file, env={"DMLSERVE_THREADS": "0"}), status=2)[0]
