"""`dmlserve run FILE`: requests executed without a server."""

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest
import safetensors.numpy
from rich.progress import Progress

from app.cli import files
from app.memory.accounts import LimitExceeded
from tests.cli.command import dmlserve, printed, refusal
from tests.conftest import COMMAND
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
    header, row, _, execution = text.splitlines()
    assert header.split() == ["output", "type", "sizes", "strides", "data"]
    assert " ".join(row.split()) == "OutputTensor FLOAT32 [1, 1, 2, 3] packed 16 4 0 1 4 16"
    assert execution.startswith("ELEMENT_WISE_CONSTANT_POW on numpy: ")
    assert execution.endswith(" ms")
    assert 0 < float(execution.split()[-2]) < 60_000


@pytest.mark.parametrize(("data_type", "shown"), [(np.int8, "-1 3"), (np.uint8, "255 3")])
def test_answer_for_people_shows_bytes_as_the_numbers_that_they_are(tmp_path: Path, data_type: Any, shown: str) -> None:
    message = request("DML_OPERATOR_ELEMENT_WISE_IDENTITY", {"InputTensor": np.array([255, 3], "u1").view(data_type)})
    _, row, *_ = printed(dmlserve("run", save(message, tmp_path / "request.json"))).splitlines()
    assert " ".join(row.split()).endswith(f"[2] packed {shown}")


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
        assert (f"DMLSERVE_{limit.upper()} allows more." in line) == (limit != "deadline_seconds")


def test_bad_setting(tmp_path: Path) -> None:
    file = save(request(HARD_SIGMOID, {"InputTensor": X}), tmp_path / "request.json")
    assert "DMLSERVE_THREADS" in refusal(dmlserve("run", file, env={"DMLSERVE_THREADS": "0"}), status=2)[0]


class TestOperator:
    """On tensors in files."""

    @pytest.fixture
    def x(self, tmp_path: Path) -> Path:
        np.save(tmp_path / "x.npy", X)
        return tmp_path / "x.npy"

    def test_attributes_stand_where_they_are_wanted(self, x: Path) -> None:
        y = x.with_name("y.npy")
        for arguments in (
            ("activation_celu", "--Alpha", "2", x),
            (CELU, x, "--Alpha=2"),
        ):
            assert printed(dmlserve("run", *arguments, "-o", y)) == ""
            np.testing.assert_allclose(np.load(y), np.where(X > 0, X, 2 * np.expm1(X / 2)), rtol=1e-6)
        assert "on numpy" in printed(dmlserve("run", "ACTIVATION_CELU", "--Alpha", "-2", "--feature-level", "5_0", x))

    @pytest.mark.parametrize("suffix", ["npz", "safetensors", "json", "msgpack"])
    def test_several_files_and_forms_of_answers(self, x: Path, suffix: str) -> None:
        other, made = x.with_name("other.npz"), x.with_name(f"made.{suffix}")
        np.savez_compressed(other, BTensor=X)
        for inputs in (("--input", f"ATensor={x}", "--input", f"BTensor={x}"), ("--input", f"ATensor={x}", other)):
            printed(dmlserve("run", "ELEMENT_WISE_ADD", *inputs, "-o", made))
            if suffix == "npz":
                np.testing.assert_array_equal(np.load(made)["OutputTensor"], X + X)
            assert made.stat().st_size > X.nbytes

    def test_a_file_that_is_called_as_an_operator_is_one_where_tensors_are_given(
        self, x: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(x.parent)
        save(SQUARES, x.with_name("ELEMENT_WISE_NEGATE"))
        for given, wanted in (([], X * X), ([x.name], -X), (["--input", f"InputTensor={x.name}"], -X)):
            told = json.loads(printed(dmlserve("run", "ELEMENT_WISE_NEGATE", *given, "--json")))
            assert np.ravel(array_of(decoded(told)["outputs"]["OutputTensor"])).tolist() == np.ravel(wanted).tolist()

    @pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "x"])
    def test_the_form_of_a_file_is_how_it_begins(self, tmp_path: Path, name: str) -> None:
        other, made = tmp_path / name, tmp_path / "made.npy"
        if name == "x.npz":
            np.savez(other, InputTensor=X)
        else:
            other.write_bytes(safetensors.numpy.save({"InputTensor": X}))
        printed(dmlserve("run", "ELEMENT_WISE_NEGATE", other, "-o", made))
        np.testing.assert_array_equal(np.load(made), -X)

    def test_files_without_names_are_the_inputs_that_are_left(self, x: Path) -> None:
        np.save(twice := x.with_name("twice.npy"), 2 * X)
        made = x.with_name("made.npy")
        for inputs in (("--input", f"ATensor={twice}", x), ("--input", f"BTensor={x}", twice)):
            printed(dmlserve("run", "ELEMENT_WISE_SUBTRACT", *inputs, "-o", made))
            np.testing.assert_array_equal(np.load(made), X)

    def test_a_name_that_tells_no_form_is_of_tensors_for_tensors(self, x: Path) -> None:
        made = x.with_name("made")
        printed(dmlserve("run", "ELEMENT_WISE_ABS", x, "-o", made))
        np.testing.assert_array_equal(np.load(made), abs(X))
        printed(dmlserve("run", "TOP_K", "--K", "1", "--Axis", "3", x, "-o", made))
        assert set(np.load(made)) == {"OutputValueTensor", "OutputIndexTensor"}
        printed(dmlserve("run", "ELEMENT_WISE_ABS", x, "-o", x.with_name("made.json")))
        assert json.loads(x.with_name("made.json").read_text())["outputs"].keys() == {"OutputTensor"}

    def test_standard_input_and_output(self, x: Path, tmp_path: Path) -> None:
        def run(*arguments: str, given: bytes) -> bytes:
            command = [str(COMMAND), "run", *arguments]
            return subprocess.run(command, input=given, capture_output=True, check=True).stdout

        made = run("ELEMENT_WISE_ABS", "-", "-o", "-", given=x.read_bytes())
        np.testing.assert_array_equal(np.load(io.BytesIO(made)), abs(X))
        for body in (json.dumps(as_json(SQUARES)).encode(), msgpack.packb(SQUARES)):
            answer = json.loads(run("-", "--json", given=body))
            np.testing.assert_array_equal(array_of(decoded(answer)["outputs"]["OutputTensor"]), X * X)

    @pytest.mark.parametrize("begin", [b"\xde\0", b"\xdf\0\0\0"])
    def test_standard_input_is_messagepack_however_its_map_begins(self, begin: bytes) -> None:
        first, *rest = msgpack.packb(SQUARES)
        answer = json.loads(printed(dmlserve("run", "-", "--json", given=bytes([*begin, first & 0xF, *rest]))))
        np.testing.assert_array_equal(array_of(decoded(answer)["outputs"]["OutputTensor"]), X * X)

    @pytest.mark.parametrize("given", [b"oops", b"", b"\xdd\0\0\0\0", b"\x90"])
    def test_standard_input_that_is_neither(self, given: bytes) -> None:
        (line,) = refusal(dmlserve("run", "-", given=given))
        assert line.startswith("The body is not ")
        assert "JSON" in line

    @pytest.mark.parametrize("arguments", [("ELEMENT_WISE_ABS", "-"), ("-",)])
    def test_standard_input_is_not_read_beyond_its_limit(
        self, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "_BLOCK", 10)
        (line,) = refusal(dmlserve("run", *arguments, given=bytes(5000), env={"DMLSERVE_MAX_BODY_BYTES": "1024"}))
        told = "Bytes of the file: 1030, where max_body_bytes allows 1024. DMLSERVE_MAX_BODY_BYTES allows more."
        assert line == told

    def test_an_operator_without_inputs_is_for_a_request(self) -> None:
        flags = ("--Value", "1", "--ValueDataType", "FLOAT32")
        (line,) = refusal(dmlserve("run", "FILL_VALUE_CONSTANT", *flags))
        assert line.endswith("has no input, which a file would be; a request to POST /v1/dispatch executes it.")

    def test_bare_elements(self, x: Path) -> None:
        bare = x.with_name("x.bin")
        bare.write_bytes(X.tobytes())
        flags = ("--Sizes", "2,3", "--DataType", "FLOAT32")
        assert "[2, 3]" in printed(dmlserve("run", "ELEMENT_WISE_ABS", *flags, bare))

    @pytest.mark.parametrize(
        ("arguments", "status", "message"),
        [
            (("ACTIVATION_CELUU", "{x}"), 2, "Did you mean ACTIVATION_CELU?"),
            (("ACTIVATION_CELU",), 2, "has no file"),
            (("ACTIVATION_CELU", "{x}", "--Alpha"), 2, "--Alpha has no value"),
            (("ACTIVATION_CELU", "--input", "ATensor"), 2, "give NAME=FILE"),
            *(
                (("{x}", *more), 2, "is a request in a file, which nothing can be added to")
                for more in (("{x}",), ("--Alpha", "2"), ("--input", "InputTensor={x}"))
            ),
            (("ACTIVATION_CELU", "{x}", "--Alpa", "2"), 1, "Error: /Alpa: Alpa is not a field here"),
            (
                ("ACTIVATION_CELU", "{junk}"),
                1,
                "Error: /inputs/InputTensor: The file for InputTensor is neither npy nor",
            ),
            (("ELEMENT_WISE_ADD", "{x}", "{x}"), 1, "2 files have no name"),
            (("ACTIVATION_CELU", "missing.npy"), 1, "missing.npy cannot be read"),
            (("ACTIVATION_CELU", "{x}", "{x}"), 1, "2 files have no name"),
            (("ELEMENT_WISE_ADD", "--input", "ATensor={x}"), 1, "/BTensor: BTensor is missing"),
            (("ACTIVATION_CELU", "--input", "InputTensr={x}"), 1, "Did you mean InputTensor?"),
            (("ACTIVATION_CELU", "{x}", "-o", "y.png"), 1, "y.png says no form; have it end with .npy or .npz or"),
            (("TOP_K", "--K", "1", "--Axis", "1", "{x}", "-o", "y.npy"), 1, "give a .npz file"),
        ],
    )
    def test_refusals(self, x: Path, arguments: tuple[str, ...], status: int, message: str) -> None:
        (junk := x.with_name("junk.bin")).write_bytes(X.tobytes())
        result = dmlserve("run", *(each.format(x=x, junk=junk) for each in arguments))
        assert result.exit_code == status
        assert message in result.stderr

    def test_progress_is_for_terminals_and_large_files(self, x: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shown: list[bool] = []

        class Bar(Progress):
            def __init__(self, *columns: Any, **settings: Any) -> None:
                shown.append(not settings["disable"])
                super().__init__(*columns, **settings | {"disable": True})

        monkeypatch.setattr(files, "Progress", Bar)
        monkeypatch.delenv("TERM", raising=False)
        for is_terminal, large in ((True, 1), (False, 1), (True, 1 << 30)):
            monkeypatch.setattr(files, "_is_terminal", lambda is_terminal=is_terminal: is_terminal)
            monkeypatch.setattr(files, "_LARGE", large)
            files.read_file(x, 1 << 20)
        assert shown == [True, False, False]

    @pytest.mark.parametrize(
        ("is_terminal", "term", "shows"),
        [(True, "xterm", True), (True, None, True), (True, "dumb", False), (False, "xterm", False)],
    )
    def test_terminals_that_show_progress(
        self, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, term: str | None, shows: bool
    ) -> None:
        monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: is_terminal))
        monkeypatch.delenv("TERM", raising=False)
        if term:
            monkeypatch.setenv("TERM", term)
        assert files._is_terminal() is shows

    def test_a_file_may_be_as_large_as_the_limit(self, x: Path) -> None:
        size = x.stat().st_size
        assert bytes(files.read_file(x, size)) == x.read_bytes()
        with pytest.raises(LimitExceeded, match=f"Bytes of the file: {size}, where max_body_bytes allows {size - 1}"):
            files.read_file(x, size - 1)
