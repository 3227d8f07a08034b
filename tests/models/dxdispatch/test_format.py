"""What the format permits is taken as DxDispatch takes it: JSON, initial values, files, prints, bindings."""

import base64
import io
import json
import os
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import numpy as np
import pytest
from PIL import Image

from app.contract.constants import DataType
from app.memory.accounts import MemoryAccount, MemoryShare
from app.memory.buffers import Buffer
from app.models.dxdispatch import arrays, images
from app.models.dxdispatch import values as dxdispatch_values
from app.models.dxdispatch.files import FolderFiles, Missing, NotWritten
from app.settings import MIB
from tests.cli.command import dmlserve, printed, refusal
from tests.models.dxdispatch.models import (
    Json,
    add,
    changed,
    floats,
    lines,
    npy,
    post,
    problem,
    shown,
    tensor,
    unary,
    zipped,
)

DESC = "/dispatchables/add/desc"


def test_comments_trailing_commas_unknown_fields_and_what_follows(client: httpx.Client) -> None:
    text = """// a model
    {"$schema": "x", "resources": {"A": {"initialValuesDataType": "FLOAT32", /* two, */
      "initialValues": [1, // one
        0.5,], "format": null,}, }, "dispatchables": {}, "more": "// no comment, ]",
     "commands": [{"type": "PRINT", "resource": "A", "unknown": [1, ], }, ],  /*/ , ] */ }  and more } of it"""
    assert lines(client, text) == ["Resource 'A': 1, 0.5"]


def values(client: httpx.Client, resource: Json, verbose: bool = False) -> str:
    model = shown(x=resource)
    model["commands"][0]["verbose"] = verbose
    (line,) = lines(client, model)
    return line.removeprefix("Resource 'x':")


@pytest.mark.parametrize(
    ("data_type", "given", "text"),
    [
        ("FLOAT32", [1, 0.1, 1e6, 123456, 1234567, 1e-5, "NaN", "INF", "-Inf", 1e300], None),
        ("DML_TENSOR_DATA_TYPE_FLOAT64", [1 / 3, 2**53, 1e300], "0.333333, 9.0072e+15, 1e+300"),
        ("FLOAT16", [0.1, 65519, 65535.9, 65536, -0.1, 1e-8], "0.0999756, 65504, 65504, inf, -0.0999756, 0"),
        ("INT64", [-(2**63), 2**63 - 1], "-9223372036854775808, 9223372036854775807"),
        ("UINT64", [2**64 - 1], "18446744073709551615"),
        ("UINT8", [72, 105], "H, i"),
        ("INT8", [72, -1], "H, \xff"),
        ("INT16", [-5, 7], "-5, 7"),
        ("UINT32", {"value": 7, "valueCount": 3}, "7, 7, 7"),
        ("FLOAT32", {"value": "nan", "valueCount": 2}, "nan, nan"),
        ("INT16", {"valueStart": 32766, "valueDelta": 1, "valueCount": 4}, "32766, 32767, -32768, -32767"),
        ("UINT8", {"valueStart": 65, "valueDelta": 255, "valueCount": 2}, "A, @"),
        ("FLOAT16", {"valueStart": 2048, "valueDelta": 1, "valueCount": 4}, "2048, 2048, 2048, 2048"),
        ("FLOAT16", {"valueStart": 1, "valueDelta": 0.25, "valueCount": 3}, "1, 1.25, 1.5"),
        ("UINT8", {"valueStart": 65, "valueDelta": 1, "valueCount": 2, "sourcePath": "none.dat"}, "A, B"),
    ],
)
def test_initial_values(client: httpx.Client, data_type: str, given: Any, text: str | None) -> None:
    wanted = text or "1, 0.1, 1e+06, 123456, 1.23457e+06, 1e-05, nan, inf, -inf, inf"
    assert values(client, {"initialValuesDataType": data_type, "initialValues": given}) == f" {wanted}"


@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
def test_sequences_round_each_time(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(dxdispatch_values, "_ADDED", at_once)
    sequence = {"valueStart": 0, "valueDelta": 0.1, "valueCount": 1000}
    wanted, value = [], np.float32(0)
    for _ in range(1000):
        wanted.append(value)
        value += np.float32(0.1)
    with MemoryAccount(MIB).open() as memory:
        made = dxdispatch_values.Elements(("x",), MIB, memory).sequence(sequence, DataType.FLOAT32)
        np.testing.assert_array_equal(np.frombuffer(made, np.float32), np.array(wanted))


def test_sequences_end_with_their_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads have their turn after so many elements."""
    monkeypatch.setattr(dxdispatch_values, "_ADDED", 10)
    with MemoryAccount(1 << 20).open() as memory, mock.patch.object(MemoryShare, "ensure_open") as asked:
        made = dxdispatch_values.Elements((), 1 << 20, memory)
        made.sequence({"valueStart": 0, "valueDelta": 1, "valueCount": 100}, DataType.INT32)
    assert asked.call_count == 10


@pytest.mark.parametrize(
    ("start", "delta", "wanted"),
    [("inf", "-inf", [np.inf, np.nan]), (1, "inf", [1, np.inf]), (2047, 1, [2047, 2048])],
)
def test_halves_are_added_up_until_they_stay(
    monkeypatch: pytest.MonkeyPatch, start: object, delta: object, wanted: list[float]
) -> None:
    """Else each of a million took as long as some thousands of any other type."""
    added = mock.Mock(wraps=dxdispatch_values.truncated)
    with MemoryAccount(MIB).open() as memory:
        elements = dxdispatch_values.Elements(("x",), MIB, memory)
        monkeypatch.setattr(dxdispatch_values, "truncated", added)
        count = 1000
        made = elements.sequence({"valueStart": start, "valueDelta": delta, "valueCount": count}, DataType.FLOAT16)
    np.testing.assert_array_equal(np.frombuffer(made, np.float16), wanted + [wanted[-1]] * (count - 2))
    assert added.call_count < 6


def test_verbose(client: httpx.Client) -> None:
    ten = values(client, floats(*range(9), -1), verbose=True).splitlines()
    assert (ten[0], ten[1], ten[10]) == ("", "[ 0] 0 (0x       0)", "[ 9] -1 (0xBF800000)")
    assert values(client, {"initialValuesDataType": "UINT8", "initialValues": [65]}, True) == "\n[0] A (0x41)\n"


def test_a_typed_list_is_packed(client: httpx.Client) -> None:
    mixed = [
        {"type": "UINT8", "value": 1, "name": "n"},
        {"type": "FLOAT32", "value": 2},
        {"type": "INT16", "value": -1},
    ]
    model = shown(x={"initialValues": mixed})
    model["commands"] = [{"type": "writeFile", "resource": "x", "targetPath": "a/b.bin"}]
    (file,) = post(client, model).json()["files"]
    assert file["path"] == "a/b.bin"
    assert base64.b64decode(file["data"]) == struct.pack("<Bfhx", 1, 2, -1)


def test_sizes_and_offsets(client: httpx.Client) -> None:
    """An offset makes room, and the values are at the beginning all the same; what is printed are the values."""
    model = shown(x=floats(1, 2, sizeInBytes=20, initialValuesOffsetInBytes=12))
    model["commands"].append({"type": "writeFile", "resource": "x", "targetPath": "x.dat"})
    answer = post(client, model).json()
    assert answer["lines"] == ["Resource 'x': 1, 2", "Resource 'x' written to 'x.dat'"]
    assert base64.b64decode(answer["files"][0]["data"]) == struct.pack("<5f", 1, 2, 0, 0, 0)


ARRAY = np.arange(6, dtype=np.int16).reshape(2, 3)


@pytest.mark.parametrize(
    ("file", "data_type", "text"),
    [
        (npy(ARRAY), None, "0, 1, 2, 3, 4, 5"),
        (npy(ARRAY.astype(">i2")), "INT16", "0, 1, 2, 3, 4, 5"),
        (npy(np.array([True, False])), None, "\x01, \x00"),
        (npy(ARRAY) + b"more", None, "0, 1, 2, 3, 4, 5"),
        (npy(ARRAY).replace(b"NUMPY\x01\x00v\x00", b"NUMPY\x02\x00t\x00\x00\x00").replace(b"  \n", b"\n"), None, None),
        (
            npy(ARRAY).replace(b"NUMPY\x01\x00v\x00", b"NUMPY\x04\x00t\x00\x00\x00").replace(b"  \n", b"\n"),
            None,
            "/initialValues/sourcePath",
        ),
        (npy(ARRAY.astype(">i2")), "INT32", "/initialValuesDataType"),
        (npy(np.asfortranarray(ARRAY)), None, "/initialValues/sourcePath"),
        (npy(ARRAY)[:-1], None, "/initialValues/sourcePath"),
        (npy(ARRAY)[:9], None, "/initialValues/sourcePath"),
        (npy(np.array(["x"])), None, "/initialValues/sourcePath"),
        (npy(np.zeros(0, np.int8)), None, "/initialValues/sourcePath"),
        (npy(ARRAY).replace(b"(2, 3)", b"(9**9)"), None, "/initialValues/sourcePath"),
        (npy(ARRAY).replace(b"(2, 3)", b"(-2,3)"), None, "/initialValues/sourcePath"),
        (npy(ARRAY).replace(b"(2, 3)", b"(-1, )"), None, "/initialValues/sourcePath"),
        (npy(ARRAY.astype(">i2")).replace(b"(2, 3)", b"(-2,3)"), None, "/initialValues/sourcePath"),
    ],
)
def test_npy(client: httpx.Client, file: bytes, data_type: str | None, text: str | None) -> None:
    resource: Json = {"initialValues": {"sourcePath": "in/x.NPY"}}
    if data_type:
        resource["initialValuesDataType"] = data_type
    sent = zipped({"model.json": json.dumps(shown(x=resource)), "in/x.NPY": file})
    if text and text.startswith("/"):
        told = problem(client, sent)
        assert list(told) == [f"/resources/x{text}"]
        assert " at 0x" not in str(told)
    else:
        assert lines(client, sent) == [f"Resource 'x': {text or '0, 1, 2, 3, 4, 5'}"]


def test_what_has_no_type_is_not_printed(client: httpx.Client) -> None:
    """What else it would say is that nothing was bound to it."""
    told = problem(client, shown(y={"initialValues": [{"type": "INT8", "value": 1}]}))
    assert told == {"/commands/0/resource": "Resource y cannot be printed: it has no initialValuesDataType."}


def test_npy_written(client: httpx.Client) -> None:
    model = shown(
        x=floats(1, 2, 3, initialValuesDataType="FLOAT16"), y={"initialValues": [{"type": "INT8", "value": 1}]}
    )
    write = {"type": "writeFile", "resource": "x", "targetPath": "x.npy"}
    model["commands"] = [write, write | {"dimensions": [1, 3]}, write | {"dimensions": [5]}, write | {"resource": "y"}]
    answer = post(client, model).json()
    assert [line.partition(":")[0] for line in answer["lines"]] == [
        *["Resource 'x' written to 'x.npy'"] * 2,
        *["Failed to write resource to file 'x.npy'"] * 2,
    ]
    (file,) = answer["files"]
    made = np.load(io.BytesIO(base64.b64decode(file["data"])))
    assert made.dtype == np.float16
    np.testing.assert_array_equal(made, [[1, 2, 3]])


def image(mode: str, kind: str, size: tuple[int, int] = (4, 2)) -> bytes:
    made = io.BytesIO()
    Image.new(mode, size, (255, 0, 51, 102)[: len(mode)]).save(made, kind)
    return made.getvalue()


@pytest.mark.parametrize(
    ("file", "fields", "values"),
    [
        (image("RGB", "PNG"), {}, [1] * 8 + [0] * 8 + [0.2] * 8),
        (image("RGBA", "PNG"), {"resampleSize": []}, [1] * 8 + [0] * 8 + [0.2] * 8 + [0.4] * 8),
        (image("RGBA", "PNG"), {"resampleSize": [1, 3, 1, 2]}, [1, 1, 0, 0, 0.2, 0.2]),
        (image("RGB", "PNG"), {"resampleSize": [1, 4, 1, 1], "initialValuesDataType": "FLOAT16"}, [1, 0, 0.2, 1]),
        (image("RGB", "PNG"), {"resampleSize": [1, 3, 1]}, "/resampleSize"),
        (image("RGB", "PNG"), {"resampleSize": [1, 2, 1, 1]}, "/initialValues/sourcePath"),
        (image("RGB", "PNG"), {"resampleMode": "crop"}, "/resampleMode"),
        (image("RGB", "PNG"), {"initialValuesDataType": "UINT8"}, "/initialValues/sourcePath"),
        (image("RGB", "PNG")[:45], {}, "/initialValues/sourcePath"),
        (image("RGB", "GIF"), {}, "/initialValues/sourcePath"),
    ],
)
def test_images(client: httpx.Client, file: bytes, fields: Json, values: Any) -> None:
    resource = floats() | {"initialValues": {"sourcePath": "x.png"}} | fields
    sent = zipped({"model.json": json.dumps(shown(x=resource)), "x.png": file})
    if isinstance(values, str):
        told = problem(client, sent)
        assert list(told) == [f"/resources/x{values}"]
        assert " at 0x" not in str(told)
        return
    (each,) = post(client, sent).raise_for_status().json()["printed"]
    made = np.frombuffer(base64.b64decode(each["data"]), each["DataType"].lower())
    np.testing.assert_allclose(made, values, rtol=1e-3)


def test_an_image_of_more_than_a_tensor_may_have_is_not_decoded(client: httpx.Client) -> None:
    resource = floats() | {"initialValues": {"sourcePath": "x.png"}}
    file = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(file, "PNG")
    sent = zipped({"model.json": json.dumps(shown(x=resource)), "x.png": file.getvalue()})
    assert post(client, sent).status_code == 413


@pytest.mark.parametrize(("channels", "suffix"), [(1, "png"), (3, "JPG"), (4, "png"), (4, "jpg")])
def test_images_written(client: httpx.Client, channels: int, suffix: str) -> None:
    """Clamped to 0 to 1, times 255, truncated."""
    rows = [value for number in range(channels) for value in [-1, 0.999, 2, "nan"][number : number + 1] * 64]
    model = shown(x=floats(*rows))
    command = {"type": "writeFile", "resource": "x", "targetPath": f"x.{suffix}", "dimensions": [1, channels, 8, 8]}
    model["commands"] = [command, command | {"targetPath": "y.png", "dimensions": [1, 2, 8, 8]}]
    answer = post(client, model).json()
    assert answer["lines"][1] == "Failed to write resource to file 'y.png': Unsupported channel count 2 for image file"
    with Image.open(io.BytesIO(base64.b64decode(answer["files"][0]["data"]))) as made:
        pixel = np.atleast_1d(np.asarray(made)[3, 3])
    wanted = [0, 254, 255, 255][:channels]
    np.testing.assert_allclose(pixel, wanted[: len(pixel)], atol=2 if "g" in suffix[2:].lower() else 0)


def test_what_becomes_no_image(client: httpx.Client) -> None:
    write = {"type": "writeFile", "resource": "x", "targetPath": "x.png", "dimensions": [1, 1, 1, 1]}
    model = shown(x=floats(1, initialValuesDataType="INT32")) | {"commands": [write]}
    failed = "Failed to write resource to file 'x.png': "
    assert lines(client, model) == [f"{failed}only FLOAT32 and FLOAT16 elements become an image, not INT32"]
    model["resources"] = {"x": floats(1)}
    wide: Json = {"resources": {"x": floats() | {"initialValues": {"value": 1, "valueCount": 70_000}}}}
    wide["commands"] = [write | {"targetPath": "x.jpg", "dimensions": [1, 1, 1, 70_000]}]
    (line,) = lines(client, model | wide)
    assert line.startswith("Failed to write resource to file 'x.jpg': ")
    for dimensions in ([1, 1, 1, 2], [1, 1, 0, 1]):
        model["commands"] = [write | {"dimensions": dimensions}]
        (line,) = lines(client, model)
        assert line.startswith(f"{failed}dimensions {dimensions} are")
    model["commands"] = [{name: value for name, value in write.items() if name != "dimensions"}]
    assert lines(client, model) == [f"{failed}an image needs dimensions, [1, channels, height, width]"]


@pytest.mark.parametrize("dimensions", [[1], [1, 1], [1, 1, 1]])
def test_dimensions_of_images_that_are_left_out_are_1(client: httpx.Client, dimensions: list[int]) -> None:
    write = {"type": "writeFile", "resource": "x", "targetPath": "x.png", "dimensions": dimensions}
    assert lines(client, shown(x=floats(1)) | {"commands": [write]}) == ["Resource 'x' written to 'x.png'"]


def test_without_pillow_images_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    file = image("RGB", "PNG")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with MemoryAccount(MIB).open() as memory, pytest.raises(arrays.Unusable, match=r"install dmlserve\[images\]"):
        images.load(memoryview(file), DataType.FLOAT32, [], MIB, memory)


def test_what_is_deferred_and_not_there_yet_is_not_written(client: httpx.Client) -> None:
    write = {"type": "writeFile", "resource": "x", "targetPath": "x.dat"}
    model = shown(x={"initialValues": "deferred"}) | {"commands": [write]}
    answer = post(client, model).json()
    assert answer["lines"] == ["Failed to write resource to file 'x.dat': Could not find deferred resource x"]
    assert answer["files"] == []


def test_a_file_that_becomes_shorter_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.dat"
    file.write_bytes(bytes(64))
    files, take = FolderFiles(tmp_path, tmp_path), MemoryShare.buffer
    with MemoryAccount(MIB).open() as memory:
        assert files.read("x.dat", 64, "max_tensor_bytes", memory) == bytes(64)

    def cutting(share: MemoryShare, size: int) -> Buffer:
        os.truncate(file, 8)
        return take(share, size)

    monkeypatch.setattr(MemoryShare, "buffer", cutting)
    with MemoryAccount(MIB).open() as memory, pytest.raises(Missing, match=r"x\.dat became shorter"):
        files.read("x.dat", 64, "max_tensor_bytes", memory)


def test_outputs_with_gaps_keep_what_is_between(client: httpx.Client) -> None:
    model = changed(add(), f"{DESC}/OutputTensor", tensor(3, Strides=[2], TotalTensorSizeInBytes=20))
    model = changed(model, "/resources/Out", floats(9, 9, 9, 9, 9))
    assert lines(client, model) == ["Resource 'Out': 6, 9, 10, 9, -2"]


@pytest.mark.parametrize("data_type", ["UINT4", "INT4"])
def test_outputs_of_four_bits_keep_what_is_between(client: httpx.Client, data_type: str) -> None:
    desc = {
        "InputTensor": tensor(2, 2),
        "QuantizationType": "SCALE",
        "QuantizationTensorCount": 1,
        "QuantizationTensors": [tensor(1, 1)],
        "OutputTensor": tensor(2, 2, DataType=data_type, Strides=[3, 1]),
    }
    bindings = {"InputTensor": "A", "QuantizationTensors": "S", "OutputTensor": "Out"}
    nines = {"initialValuesDataType": "UINT8", "initialValues": [0x99] * 4}
    model = {
        "resources": {"A": floats(1, 2, 3, 4), "S": floats(1), "Out": nines},
        "dispatchables": {"op": {"type": "QUANTIZE", "desc": desc}},
        "commands": [
            {"type": "dispatch", "dispatchable": "op", "bindings": bindings},
            {"type": "print", "resource": "Out"},
        ],
    }
    (made,) = post(client, model).json()["printed"]
    assert base64.b64decode(made["data"]).hex() == "21399499"


def test_resources_keep_their_contents_and_views_overlap(client: httpx.Client) -> None:
    model = add()
    model["commands"] = [model["commands"][0], changed(add(), "/commands/0/bindings/ATensor", "Out")["commands"][0]]
    model["commands"] += [{"type": "Print", "resource": "Out"}] * 2
    in_place = changed(
        model, "/commands/1/bindings", {"ATensor": "Out", "BTensor": ["B"], "OutputTensor": "Out", "X": "A"}
    )
    assert lines(client, in_place) == ["Resource 'Out': 11, 18, -7"] * 2
    both = changed(add(), "/commands/0/bindings/BTensor", {"name": "A", "elementOffset": 2, "elementSizeInBytes": 8})
    both["resources"]["A"] = floats(*range(7))
    assert lines(client, both) == ["Resource 'Out': 4, 6, 8"]


def test_forms_of_descriptors(client: httpx.Client) -> None:
    """Inline, in Desc, with tensors as BUFFER, names without prefixes, an operator within another in both forms."""
    desc: Json = {"ATensor": tensor(3, Unknown=1), "BTensor": tensor(3, Strides=[]), "OutputTensor": tensor(3)}
    inline = changed(add(), "/dispatchables/add", {"type": "ELEMENT_WISE_ADD1", "executionFlags": [], **desc})
    assert lines(client, inline) == ["Resource 'Out': 6, 10, -2"]
    desc |= {"ATensor": {"Type": "DML_TENSOR_TYPE_BUFFER", "Desc": tensor(3)}, "Unknown": None}
    for activation in (
        {"Type": "ACTIVATION_RELU", "InputTensor": 1},
        {"Type": "DML_OPERATOR_ACTIVATION_RELU", "Desc": {}},
    ):
        dispatchable: Json = {"type": "ELEMENT_WISE_ADD1", "Desc": desc | {"FusedActivation": activation}}
        for compile_type in ("DmlCompileOp", "DmlCompileGraph"):
            dispatchable |= {"dmlCompileType": compile_type, "executionFlags": "DISABLE_META_COMMANDS", "bindings": 3}
            assert lines(client, changed(add(), "/dispatchables/add", dispatchable)) == ["Resource 'Out': 6, 10, 0"]
    dispatchable["Type"] = dispatchable.pop("type")
    assert lines(client, changed(add(), "/dispatchables/add", dispatchable)) == ["Resource 'Out': 6, 10, 0"]


@pytest.mark.parametrize("data_type", ["FLOAT16", "DML_TENSOR_DATA_TYPE_FLOAT16"])
def test_bare_numbers_of_float16_are_truncated_as_in_resources(client: httpx.Client, data_type: str) -> None:
    for least, text in ((0.3, "0.299805"), (-0.3, "0"), ({"UInt16": 0x34CD}, "0.300049"), (65535.9, "65504")):
        model = unary("ELEMENT_WISE_CLIP1", "FLOAT16", 0, MinMaxDataType=data_type, Min=least, Max=1)
        assert lines(client, model) == [f"Resource 'Out': {text}"]
    model = unary("ELEMENT_WISE_CLIP1", "FLOAT32", 0, MinMaxDataType="FLOAT32", Min=0.3, Max=1)
    assert lines(client, model) == ["Resource 'Out': 0.3"]


def test_members_that_structures_have_not_are_not_looked_at(client: httpx.Client) -> None:
    assert lines(client, changed(add(), "/commands/0/threadGroupCount", [1, 2, 3])) == ["Resource 'Out': 6, 10, -2"]
    line = {"Scale": 2, "Bias": 1, "comment": None}
    assert lines(client, unary("ELEMENT_WISE_IDENTITY", "FLOAT32", 1, 2, ScaleBias=line)) == ["Resource 'Out': 3, 5"]
    model = unary("UPSAMPLE_2D", "FLOAT32", 1, 2)
    desc = model["dispatchables"]["op"]["desc"]
    desc["InputTensor"], desc["OutputTensor"] = tensor(1, 1, 1, 1), tensor(1, 1, 1, 2)
    desc |= {"ScaleSize": {"Width": 2, "Height": 1, "Depth": 1}, "InterpolationMode": "NEAREST_NEIGHBOR"}
    assert lines(client, model) == ["Resource 'Out': 1, 1"]


def test_a_graph_of_an_operator_with_a_hole_and_with_an_array(client: httpx.Client) -> None:
    """Where DxDispatch's own indices would be wrong."""
    desc = {"Axis": 0, "InputCount": 2, "InputTensors": [tensor(1), tensor(2)], "OutputTensor": tensor(3)}
    join = {"type": "JOIN", "desc": desc, "dmlCompileType": "DmlCompileGraph"}
    model = changed(add(), "/dispatchables/add", join)
    model = changed(model, "/commands/0/bindings", {"InputTensors": ["A", "B"], "OutputTensor": "Out"})
    assert lines(client, model) == ["Resource 'Out': 1, 5, 8"]


def test_initialization_takes_what_was_there_before_the_commands(client: httpx.Client) -> None:
    model = changed(add(), f"{DESC}/BTensor/Flags", "OWNED_BY_DML")
    model["dispatchables"]["add"]["bindings"] = {"BTensor": "B", "OutputTensor": "Out"}
    model["commands"][0]["bindings"] = {"ATensor": "A", "OutputTensor": "Out"}
    double = {"type": "ELEMENT_WISE_IDENTITY", "desc": {"InputTensor": tensor(3), "OutputTensor": tensor(3)}}
    model["dispatchables"]["copy"] = double
    copy = {"type": "dispatch", "dispatchable": "copy", "bindings": {"InputTensor": "A", "OutputTensor": "B"}}
    add_ = model["commands"][0]
    model["commands"] = [copy, add_, {"type": "print", "resource": "Out"}, {"type": "print", "resource": "B"}]
    for compile_type in ("DmlCompileOp", "DmlCompileGraph"):
        model["dispatchables"]["add"]["dmlCompileType"] = compile_type
        assert lines(client, model) == ["Resource 'Out': 6, 10, -2", "Resource 'B': 1, 2, 3"]


PATHS = ["../x", "/etc/passwd", "a/../../x", "C:\\x", "..\\x", "", ".", "a\0b"]


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leaves_the_folder(client: httpx.Client, path: str, tmp_path: Path) -> None:
    model = shown(x=floats(1))
    model["commands"] = [{"type": "writeFile", "resource": "x", "targetPath": path}]
    answer = post(client, model).json()
    assert answer["files"] == []
    assert answer["lines"][0].startswith(f"Failed to write resource to file '{path}'")
    file = tmp_path / "in" / "model.json"
    file.parent.mkdir()
    file.write_text(json.dumps(model))
    target = tmp_path / "in" / "out"
    assert printed(dmlserve("run", file, "--output-folder", target)).startswith("Failed to write")
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["in", "model.json"]
    read = shown(x=floats() | {"initialValues": {"sourcePath": path}})
    assert list(problem(client, read)) == ["/resources/x/initialValues/sourcePath"]


def test_no_link_leads_out_of_the_output_folder(tmp_path: Path) -> None:
    model = shown(x=floats(1))
    model["commands"] = [{"type": "writeFile", "resource": "x", "targetPath": "link/x.dat"}]
    (tmp_path / "model.json").write_text(json.dumps(model))
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "link").symlink_to(tmp_path / "elsewhere")
    text = printed(dmlserve("run", tmp_path / "model.json", "--output-folder", tmp_path / "out"))
    assert text.startswith("Failed to write")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_what_no_file_can_be_called(tmp_path: Path, name: str) -> None:
    files = FolderFiles(tmp_path, tmp_path)
    with MemoryAccount(MIB).open() as memory, pytest.raises(Missing, match="There is no file"):
        files.read(name, 64, "max_tensor_bytes", memory)
    with pytest.raises(NotWritten):
        files.write(name, memoryview(b"some"))
    assert not list(tmp_path.iterdir())


def test_where_the_command_reads_and_writes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the model, or in the folder that is named in its place, else in the working directory."""
    here, beside, named = folders = [tmp_path / name for name in ("here", "beside", "named")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / "x.dat").write_bytes(np.float32(number).tobytes())
    monkeypatch.chdir(here)
    model = shown(x=floats() | {"initialValues": {"sourcePath": "x.dat"}})
    model["commands"].append({"type": "writeFile", "resource": "x", "targetPath": "y.dat"})
    file = beside / "model.json"
    file.write_text(json.dumps(model))

    def read(*flags: object) -> str:
        return printed(dmlserve("run", file, *flags)).splitlines()[0]

    assert read("--input-folder", named, "--output-folder", tmp_path) == "Resource 'x': 2"
    assert (tmp_path / "y.dat").read_bytes() == (named / "x.dat").read_bytes()
    assert read() == "Resource 'x': 1"
    assert (here / "y.dat").read_bytes() == (beside / "x.dat").read_bytes()
    for folder in (named, beside):
        (folder / "x.dat").unlink()
    assert read("--input-folder", named) == read() == "Resource 'x': 0"


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    for pointer, wrong, told in (
        ("/commands/1/resource", "outt", "There is no resource outt; there is {resources}. Did you mean Out?"),
        ("/commands/0/dispatchable", "ad", "There is no dispatchable ad; there is {dispatchables}. Did you mean add?"),
        (
            "/commands/1/type",
            "prin",
            "Unrecognized command prin; give dispatch or print or writeFile. Did you mean print?",
        ),
        (
            "/dispatchables/add/type",
            "DML_OPERATOR_ELEMENT_WISE_AD",
            "There is no operator DML_OPERATOR_ELEMENT_WISE_AD, nor another dispatchable of that type. Did you mean "
            "ELEMENT_WISE_ADD?",
        ),
    ):
        file.write_text(json.dumps(changed(add(), pointer, wrong)))
        there = {field: ", ".join(add()[field]) for field in ("resources", "dispatchables")}
        assert refusal(dmlserve("run", file)) == [f"{pointer}: {told.format(**there)}"]
    file.write_text('{"dispatchables": ')
    assert refusal(dmlserve("run", file))[0].startswith("The model is not JSON")
    assert "No such option" in dmlserve("run", file, "--json").stderr
    file.write_text("{}")
    assert "nothing can be added to" in dmlserve("run", file, "--output-folder", tmp_path).stderr


def test_files_are_beside_the_model_in_the_zip(client: httpx.Client) -> None:
    read = json.dumps(shown(x=floats() | {"initialValues": {"sourcePath": "x.dat"}}))
    sent = zipped({"a/model.json": read, "a/x.dat": struct.pack("<f", 1), "x.dat": struct.pack("<f", 2)})
    assert lines(client, sent) == ["Resource 'x': 1"]
    assert lines(client, zipped({"a/model.json": read, "x.dat": struct.pack("<f", 2)})) == ["Resource 'x': 2"]


def test_zips_that_are_made_to_harm(client: httpx.Client) -> None:
    model = json.dumps(shown(x=floats() | {"initialValues": {"sourcePath": "x.dat"}}))

    def sent(data: bytes, compression: int = zipfile.ZIP_DEFLATED) -> bytearray:
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", compression) as archive:
            archive.writestr("model.json", model)
            archive.writestr("x.dat", data)
        return bytearray(made.getvalue())

    assert post(client, bytes(sent(bytes(300 << 20)))).status_code == 413
    assert post(client, bytes(sent(b"1234" * 8, zipfile.ZIP_BZIP2))).status_code == 400
    longer = sent(b"1234" * 8)
    place = longer.rindex(b"PK\x01\x02") + 24
    for size in (16, 64):  # than the zip says, and shorter
        longer[place : place + 4] = struct.pack("<I", size)
        assert post(client, bytes(longer)).status_code == 400
    encrypted = sent(b"1234" * 8)
    encrypted[encrypted.rindex(b"PK\x01\x02") + 8] |= 1
    assert post(client, bytes(encrypted)).status_code == 400
    assert post(client, zipped({"model.json": model, "../x.dat": b"1234"})).status_code == 400
    assert post(client, zipped({"model.json": model, "x.dat": b"1234", "./x.dat": b"1234"})).status_code == 400
    assert post(client, zipped({str(number): b"" for number in range(4097)})).status_code == 400
    assert post(client, zipped({})).status_code == 422
    assert post(client, b"no zip").status_code == 400


def test_answers_in_messagepack_and_counted(client: httpx.Client) -> None:
    import msgpack

    headers = {"accept": "application/msgpack", "content-type": "application/json"}
    name = 'dmlserve_dispatches_total{device="numpy",operator="DML_OPERATOR_ELEMENT_WISE_ADD"}'

    def count() -> float:
        found = [
            line for line in client.get("/metrics").text.splitlines() if line.startswith("dmlserve_dispatches_total")
        ]
        return sum(float(line.split()[-1]) for line in found if "ELEMENT_WISE_ADD" in line)

    before = count()
    answer = msgpack.unpackb(client.post("/v1/dxdispatch", content=json.dumps(add()), headers=headers).content)
    assert answer["printed"][0]["data"] == struct.pack("<3f", 6, 10, -2)
    assert count() == before + 1, name
