"""`dmlserve run MODEL.onnx` and `dmlserve inspect MODEL.onnx`."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import dmlserve, printed, refusal
from tests.models.documents import Array, affine, affine_of, model, unsupported

X = np.array([[-4, -2, 0], [1, 2, 4]], np.float32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", X)
    made = tmp_path / "affine.onnx"
    made.write_bytes(affine().SerializeToString())
    return made


def test_help_of_run_leads_to_that_of_a_model(file: Path) -> None:
    assert "'dmlserve run MODEL --help'" in printed(dmlserve("run", "--help", columns=80)).replace("\n ", "")
    assert "NAME=FILE" in printed(dmlserve("run", file, "--help"))


def test_outputs_are_saved_or_shown(file: Path) -> None:
    y = file.parent / "out"
    text = printed(dmlserve("run", file, "--input", f"x={file.parent}/x.npy", "--output", f"y={y}"))
    np.testing.assert_array_equal(np.load(y), affine_of(X))
    header, positive, sizes, _, summary = text.splitlines()
    assert header.split() == ["output", "type", "sizes", "data"]
    assert positive.split() == ["positive", "bool", "[2,", "3]", *map(str, (affine_of(X) > 0).reshape(-1))]
    assert sizes.split() == ["sizes", "int64", "[2]", "2", "3"]
    assert summary.startswith("affine on numpy: ")


def test_outputs_for_machines(file: Path) -> None:
    told = json.loads(printed(dmlserve("run", file, "--input", f"x={file.parent}/x.npy", "--json")))
    assert told["outputs"]["y"] == {"type": "float32", "sizes": [2, 3], "data": affine_of(X).reshape(-1).tolist()}


@pytest.mark.parametrize("saved", [X.astype(">f4"), np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2]])
def test_inputs_may_lie_otherwise_in_their_files(file: Path, saved: Array) -> None:
    np.save(file.parent / "saved.npy", saved)
    told = json.loads(printed(dmlserve("run", file, "--input", f"x={file.parent}/saved.npy", "--json")))
    assert told["outputs"]["y"]["data"] == affine_of(X).reshape(-1).tolist()


def test_what_is_wrong_is_said(file: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "doubles.npy", X.astype(np.float64))
    np.savez(tmp_path / "several.npz", x=X)
    (tmp_path / "text.npy").write_text("no numbers")
    np.save(tmp_path / "objects.npy", np.array([{}], object))  # which would run what is in the file
    np.save(tmp_path / "wide.npy", np.ones((1, 4), np.float32))
    for given, why in (
        ([], "Input x is missing"),
        (["--input", f"z={tmp_path}/x.npy", "--input", f"x={tmp_path}/x.npy"], "no input z"),
        (["--input", f"x={tmp_path}/none.npy"], "cannot be read"),
        (["--input", f"x={tmp_path}/doubles.npy"], "holds float64"),
        (["--input", f"x={tmp_path}/several.npz"], "several arrays"),
        (["--input", f"x={tmp_path}/text.npy"], "no .npy file of numbers: the magic string is not correct"),
        (["--input", f"x={tmp_path}/objects.npy"], "no .npy file of numbers: Object arrays cannot be loaded"),
        (["--input", f"x={tmp_path}/wide.npy"], "1x4"),
        (["--input", f"x={tmp_path}/x.npy", "-o", f"w={tmp_path}/w.npy"], "no output w"),
        (["--input", f"x={tmp_path}/x.npy", "-o", f"y={tmp_path}/no/w.npy"], "cannot be written"),
        (["--input", f"x={tmp_path}/x.npy", "--device", "tpu"], "no device tpu"),
    ):
        assert why in refusal(dmlserve("run", file, *given))[0]
    for pair in ("x.npy", "=x.npy", "x="):
        assert refusal(dmlserve("run", file, "--input", pair), 2) == [f"{pair} is no NAME=FILE."]
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    assert "no ONNX model" in refusal(dmlserve("run", broken))[0]


def test_inspect_tells_what_becomes_of_it(file: Path) -> None:
    told = json.loads(printed(dmlserve("inspect", file, "--json")))
    assert told["inputs"] == [{"name": "x", "type": "float32", "sizes": ["batch", 3]}]
    assert {each["operator"]: each["nodes"] for each in told["operators"]} == dict.fromkeys(
        ("Mul", "Add", "Relu", "Greater", "Shape"), 1
    )
    assert (told["compiled"], told["free"], told["weight_bytes"]) == (None, ["x"], 28)
    compiled = json.loads(printed(dmlserve("inspect", file, "--sizes", "2x3", "--json")))["compiled"]
    assert compiled["sizes"] == {"x": [2, 3]}
    assert {"ELEMENT_WISE_MULTIPLY", "ELEMENT_WISE_ADD", "ACTIVATION_RELU"} <= {
        each["operator"] for each in compiled["directml_operators"]
    }
    fused = [kernel["operators"] for kernel in compiled["kernels"]]
    assert any({"ELEMENT_WISE_MULTIPLY", "ELEMENT_WISE_ADD"} <= set(each) for each in fused)
    text = printed(dmlserve("inspect", file, "--sizes", "x:2x3"))
    assert "5 ONNX nodes are" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["Mul", "1"] in lines
    assert ["ELEMENT_WISE_MULTIPLY", "1"] in lines
    assert ["each", "time", "ELEMENT_WISE_MULTIPLY", "ELEMENT_WISE_ADD", "Mul(s)", "to", "Add(t)", "48", "24"] in lines
    assert ["each", "time", "ACTIVATION_RELU", "Relu(y)", "24", "24"] in lines
    each_time = [kernel for kernel in compiled["kernels"] if not kernel["at_initialization"]]
    assert sum(line[:2] == ["each", "time"] for line in lines) == len(each_time)
    assert sum(line[:1] == ["once"] for line in lines) == len(compiled["kernels"]) - len(each_time) > 0
    assert f"in {len(each_time)} kernels" in text
    assert "batchx3" in text
    assert "with --sizes" in printed(dmlserve("inspect", file))
    assert "batchx3" in refusal(dmlserve("inspect", file, "--sizes", "2x4"))[0]
    assert "--sizes" in refusal(dmlserve("inspect", file, "--sizes", "ax3"), 2)[0]


@pytest.mark.parametrize(("count", "shown"), [(8, 8), (9, 8)])
def test_inspect_shows_the_first_operators_of_a_long_kernel(tmp_path: Path, count: int, shown: int) -> None:
    file = tmp_path / "long.onnx"
    nodes = " ".join(f"v{number + 1} = Tanh(v{number})" for number in range(count))
    file.write_bytes(model(f"m (float[2] v0) => (float[2] v{count}) {{ {nodes} }}").SerializeToString())
    lines = [line.split() for line in printed(dmlserve("inspect", file)).splitlines()]
    rest = ["..."] * (count > shown)
    names = ["Tanh(v1)", "to", f"Tanh(v{count})"]
    assert ["each", "time", *["ACTIVATION_TANH"] * shown, *rest, *names, "8", "8"] in lines


def test_inspect_fails_for_what_is_not_supported(tmp_path: Path) -> None:
    file = tmp_path / "other.onnx"
    file.write_bytes(unsupported().SerializeToString())
    result = dmlserve("inspect", file)
    assert result.exit_code == 1
    assert "cannot be executed: what is listed is not supported" in result.stderr
    for shown in ("Det", "NonZero", "DirectML has no operator for it"):
        assert shown in result.stdout
    told = json.loads(dmlserve("inspect", file, "--json").stdout)
    assert [(each["operator"], each["opset"]) for each in told["unsupported"]] == [("Det", 17), ("NonZero", 17)]
    np.save(tmp_path / "x.npy", X)
    lines = refusal(dmlserve("run", file, "--input", f"x={tmp_path}/x.npy"))
    assert ["Det" in each for each in lines] == [True, False]
    assert ["NonZero" in each for each in lines] == [False, True]


def test_an_input_that_nobody_reads_and_sizes_that_have_no_name(tmp_path: Path) -> None:
    file = tmp_path / "unread.onnx"
    file.write_bytes(model("m (float[?] x, float z) => (float[?] y) { y = Abs(x) }").SerializeToString())
    np.save(tmp_path / "x.npy", X[0])
    np.save(tmp_path / "z.npy", X[0, 0])
    given = [f"--input={name}={tmp_path}/{name}.npy" for name in ("x", "z")]
    told = json.loads(printed(dmlserve("run", file, *given, "--json")))
    assert told["outputs"]["y"]["data"] == abs(X[0]).tolist()
    lines = [line.split() for line in printed(dmlserve("inspect", file)).splitlines()]
    assert ["input", "x", "float32", "?"] in lines


def test_a_model_whose_sizes_are_known(tmp_path: Path) -> None:
    file = tmp_path / "fixed.onnx"
    file.write_bytes(model("m (float[2] x) => (float[2] y) { y = Abs(x) }").SerializeToString())
    assert json.loads(printed(dmlserve("inspect", file, "--json")))["compiled"]["constants"] == 0
