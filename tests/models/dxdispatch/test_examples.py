"""Microsoft's own examples, unmodified: what they print, by the command and over HTTP, is what it must be."""

import base64
import io
import re
import zipfile
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.cli.command import dmlserve, printed
from tests.models.dxdispatch.models import EXAMPLES, EXPECTED, NAMES, TOLERANCE, post

every_example = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def folder_zip() -> bytes:
    """All of the folder, from which the query names a model."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(EXAMPLES.rglob("*")):
            archive.write(path, path.relative_to(EXAMPLES.parent))
    return made.getvalue()


def test_there_are_all_examples_that_use_operators() -> None:
    assert len(NAMES) == 22
    assert "dmlSerializedGraph_matmul_add" in NAMES


@every_example
def test_the_command_prints_what_is_expected(name: str, tmp_path: Path) -> None:
    """To the six digits that there are."""
    output = printed(dmlserve("run", EXAMPLES / f"{name}.json", "--output-folder", tmp_path))
    shown = re.findall(r"^Resource '(\w+)': (.*)$", output, re.MULTILINE)
    wanted = [each for each in EXPECTED[name] if each["command"] in _prints(name)]
    assert [resource for resource, _ in shown] == [each["resource"] for each in wanted]
    for (_, text), each in zip(shown, wanted, strict=True):
        numbers = [float(number) for number in text.split(", ")]
        np.testing.assert_allclose(numbers, each["values"], rtol=1e-5)


def _prints(name: str) -> range:
    """The commands among the expected ones that print; the other two write."""
    return range(1, 2) if name == "dml_element_wise_add_npy" else range(1, 9)


@every_example
def test_the_service_computes_what_is_expected(name: str, client: httpx.Client, folder_zip: bytes) -> None:
    answer = post(client, folder_zip, model=f"examples/{name}.json").raise_for_status().json()
    wanted = {each["command"]: each for each in EXPECTED[name]}
    assert [each["command"] for each in answer["printed"]] == [each for each in wanted if each in _prints(name)]
    for each in answer["printed"]:
        expected = wanted[each["command"]]
        assert (each["resource"], each["DataType"]) == (expected["resource"], expected["DataType"])
        made = np.frombuffer(base64.b64decode(each["data"]), each["DataType"].lower())
        values = np.array(expected["values"], made.dtype)
        if name in TOLERANCE:
            np.testing.assert_allclose(made, values, rtol=TOLERANCE[name])
        else:
            np.testing.assert_array_max_ulp(made, values, 4)


def test_files_are_read_beside_the_model_and_written_to_the_output_folder(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "here"
    output = printed(dmlserve("run", EXAMPLES / "dml_element_wise_add_npy.json", "--output-folder", folder))
    assert output.splitlines()[1:] == [
        f"Resource 'Out' written to 'dml_element_wise_add_output.{suffix}'" for suffix in ("npy", "dat")
    ]
    _, as_npy, as_dat = EXPECTED["dml_element_wise_add_npy"]
    loaded = np.load(folder / "dml_element_wise_add_output.npy")
    assert loaded.dtype == np.float32
    np.testing.assert_array_equal(loaded, as_npy["values"])
    raw = (folder / "dml_element_wise_add_output.dat").read_bytes()
    np.testing.assert_array_equal(np.frombuffer(raw, np.float32), as_dat["values"])


def test_an_image_becomes_gray(tmp_path: Path) -> None:
    printed(dmlserve("run", EXAMPLES / "image_io.json", "--output-folder", tmp_path))
    made = np.asarray(Image.open(tmp_path / "output.png")).astype(float)
    assert made.shape == (512, 512)
    with Image.open(EXAMPLES / "chihuahua.jpg") as image:
        scaled = np.asarray(image.convert("RGB").resize((512, 512), Image.Resampling.LANCZOS)).astype(float)
    assert abs(made - scaled @ [0.2989, 0.587, 0.114]).mean() < 2
