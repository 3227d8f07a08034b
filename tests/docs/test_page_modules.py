"""The scripts of the page at / without a browser, by Node.js: what they compute and what they give to paste."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import playwright
import pytest

from app.memory.arrays import Array
from app.operators.catalog import OPERATORS
from tests.conftest import RunningServer

HERE = Path(__file__).parent
STATIC = HERE.parents[1] / "app" / "http" / "web" / "static"
TESTS = sorted(path.name for path in (HERE / "javascript").glob("*.test.js"))
NODE = shutil.which("node") or str(Path(playwright.__file__).parent / "driver" / "node")
"""The system's, or the one that Playwright brings."""


def node(*arguments: str | Path, folder: Path, **environment: str) -> str:
    """Standard output of Node.js."""
    done = subprocess.run(
        [NODE, *arguments], cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts and tests where Node.js takes both for modules, and the files that these read."""
    made = tmp_path_factory.mktemp("modules")
    shutil.copytree(STATIC, made / "static")
    shutil.copytree(HERE / "javascript", made / "tests")
    (made / "package.json").write_text('{"type": "module"}')
    formulas = {operator.short_name(): operator.formula_text for operator in OPERATORS.values()}
    (made / "formulas.json").write_text(json.dumps(formulas))
    write_files(made / "files")
    return made


def write_files(folder: Path) -> None:
    """Tensors as NumPy and safetensors write them, with what is to be read of them."""
    folder.mkdir()
    tensors: dict[str, tuple[str, Array]] = {
        "a": ("FLOAT32", np.array([[1, -2.5, np.float32(0.1)], [0, 3e38, -0.5]], np.float32)),
        "b": ("INT64", np.array([1, -(2**52)], np.int64)),
        "c": ("FLOAT16", np.asfortranarray(np.arange(24, dtype=np.float16).reshape(2, 3, 4))),
        "d": ("UINT16", np.array([[1, 258]], ">u2")),
        "e": ("UINT8", np.array([True, False])),
        "f": ("FLOAT64", np.array(1.5)),
    }
    expected = {}

    def told(name: str) -> dict[str, object]:
        data_type, array = tensors[name]
        return {"type": data_type, "sizes": [*array.shape] or [1], "values": array.astype(np.float64).ravel().tolist()}

    for name, (_, array) in tensors.items():
        np.save(folder / f"{name}.npy", array)
        expected[f"{name}.npy"] = {name: told(name)}
    arrays: dict[str, Any] = {name: array for name, (_, array) in tensors.items()}
    np.savez(folder / "several.npz", **arrays)
    expected["several.npz"] = {name: told(name) for name in tensors}
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "I64", "shape": [2], "data_offsets": [24, 40]},
    }
    text = json.dumps(header).encode()
    data = b"".join(tensors[name][1].tobytes() for name in ("a", "b"))
    (folder / "some.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    expected["some.safetensors"] = {name: told(name) for name in ("a", "b")}
    (folder / "expected.json").write_text(json.dumps(expected))

    np.savez_compressed(folder / "refused.npz", a=np.zeros(99))
    np.save(folder / "refused_complex.npy", np.zeros(2, np.complex64))
    np.save(folder / "refused_text.npy", np.array(["a"]))
    np.save(folder / "refused_fields.npy", np.zeros(2, [("x", np.float32)]))
    np.save(folder / "refused_objects.npy", np.array([{}], object), allow_pickle=True)
    wrong = json.dumps({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    (folder / "refused.safetensors").write_bytes(len(wrong).to_bytes(8, "little") + wrong + b"\0\0")


@pytest.mark.parametrize("name", TESTS)
def test_modules(folder: Path, name: str) -> None:
    told = node(
        "--test",
        f"tests/{name}",
        folder=folder,
        FILES=str(folder / "files"),
        FORMULAS=str(folder / "formulas.json"),
    )
    assert "fail 0" in told
    assert "pass 0" not in told
    if name == "files.test.js":
        assert np.load(folder / "files" / "written_FLOAT16.npy").tolist() == [[1, -0.5], [np.inf, 0]]
        assert np.load(folder / "files" / "written_INT64.npy").tolist() == [1, -1, 2**62]
        assert np.load(folder / "files" / "written_UINT8.npy").shape == (1, 1, 1)


SNIPPETS = """
import { writeFileSync } from "node:fs";
import { curl, python, tritonclient, typescript } from "./static/snippets.js";
import { dispatchBody } from "./static/requests.js";
const x = { DataType: "FLOAT32", Sizes: [2, 3] };
const special = { Type: "ELEMENT_WISE_IDENTITY", InputTensor: { ...x, Sizes: [4] } };
const whole = { Type: "ELEMENT_WISE_IDENTITY", InputTensor: { DataType: "INT64", Sizes: [2] } };
const two = { "InputTensors[0]": "1 2 3 4 5 6", "InputTensors[1]": "7 8 9 10 11 12" };
const made = {
  celu: [
    { Type: "ACTIVATION_CELU", InputTensor: x, Alpha: 2 }, { InputTensor: "-4 -2 0 1 2 4" }, ["InputTensor"],
  ],
  special: [special, { InputTensor: "nan inf -inf -0" }, ["InputTensor"]],
  whole: [whole, { InputTensor: "9223372036854775807 -9007199254740993" }, ["InputTensor"]],
  join: [{ Type: "JOIN", InputTensors: [x, x], Axis: 1 }, two, ["InputTensors"]],
};
for (const [name, [operator, texts, inputs]] of Object.entries(made)) {
  const data = Object.fromEntries(Object.entries(texts).map(([each, text]) => [each, { kind: "text", text }]));
  const body = dispatchBody({ operator, data, level: "6_4", device: "auto" }, inputs);
  for (const [ending, write] of Object.entries({ sh: curl, py: python, triton: tritonclient, ts: typescript }))
    writeFileSync(`${name}.${ending}`, write(process.argv[2], body, ending === "py"));
}
"""


def test_requests_to_copy_run(server: RunningServer, folder: Path) -> None:
    (folder / "snippets.js").write_text(SNIPPETS)
    node("snippets.js", server.url, folder=folder)
    expected: dict[str, Array] = {
        "celu": np.array([-1.7293295, -1.2642411, 0, 1, 2, 4], np.float32),
        "special": np.array([np.nan, np.inf, -np.inf, -0.0], np.float32),
        "whole": np.array([2**63 - 1, -(2**53) - 1], np.int64),
        "join": np.array([1, 2, 3, 7, 8, 9, 4, 5, 6, 10, 11, 12], np.float32),
    }

    def numbers(printed: str, dtype: np.dtype[Any]) -> bytes:
        """The elements that are printed behind the sizes."""
        words: list[str] = re.findall(r"-?(?:\d[\d.e+-]*|Infinity|inf|NaN|nan)", printed.split("]", 1)[1])
        return np.array([dtype.type(each.removesuffix(".")) for each in words], dtype).tobytes()

    for name, values in expected.items():
        told = json.loads(subprocess.run(["bash", f"{name}.sh"], cwd=folder, capture_output=True, check=True).stdout)
        data = np.array(told["outputs"]["OutputTensor"]["data"], values.dtype)  # numbers, as they were sent
        assert data.ravel().tobytes() == values.tobytes()
        for ending in ("py", "triton"):
            environment = os.environ | {"DMLSERVE_KEY": "none"}
            done = subprocess.run(
                [sys.executable, f"{name}.{ending}"],
                cwd=folder,
                capture_output=True,
                text=True,
                env=environment,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert numbers(done.stdout, values.dtype) == values.tobytes(), done.stdout
        script = (folder / f"{name}.ts").read_text()
        for annotation in ("<any>", ": Record<string, any>", ": ArrayBufferView"):
            script = script.replace(annotation, "")
        (folder / f"{name}_ts.js").write_text(script)
        printed = node(f"{name}_ts.js", folder=folder)
        assert numbers(re.sub(r"\w+Array\(\d+\)", "", printed), values.dtype) == values.tobytes(), printed
