"""The README, and what it leads to, is true: its commands run and its answers are what the service answers."""

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from shlex import quote, split
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from app.contract.constants import DataType, FeatureLevel
from app.http.core.keys import Keys
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from tests.conftest import COMMAND, RunningServer, running_server
from tests.operators.facts import takes
from tests.readme import DOCUMENTS, README, TEXT, blocks

ROOT = Path(__file__).parents[2]
ADDRESS = "localhost:8000"


def installed(commands: str) -> str:
    """With the programs that run here in place of those that the README has installed."""
    return commands.replace(".venv/bin/dmlserve", quote(str(COMMAND))).replace(
        ".venv/bin/python", quote(sys.executable)
    )


def block_with(language: str, text: str) -> str:
    (found,) = [block for block in blocks(language) if text in block]
    return found


def run(command: str, server: RunningServer, cwd: Path) -> str:
    """Output of a command of the README that speaks to the service."""
    address = server.url.removeprefix("http://")
    completed = subprocess.run(
        ["bash", "-euc", command.replace(ADDRESS, address)], capture_output=True, text=True, cwd=cwd, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    execution = {name: value for name, value in answer["execution"].items() if not name.endswith("_seconds")}
    return answer | {"execution": execution}


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_first_requests_answer_what_the_readme_says(server: RunningServer, tmp_path: Path) -> None:
    answer = json.loads(run(block_with("sh", "prefer: return=minimal"), server, tmp_path))
    assert without_times(answer) == without_times(json.loads(block_with("json", "[1.0, 2.0, 4.0]]")))
    run(installed(block_with("sh", "@x.npy")), server, tmp_path)
    assert np.load(tmp_path / "y.npy").tolist() == np.array(answer["outputs"]["OutputTensor"]["data"], "f").tolist()


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_request_answers_what_the_readme_says(server: RunningServer, tmp_path: Path) -> None:
    answer = json.loads(run(block_with("sh", "ACTIVATION_HARD_SIGMOID"), server, tmp_path))
    assert without_times(answer) == without_times(json.loads(block_with("json", '"capability"')))


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize(
    ("operator", "sizes", "numbers"), [("GEMM", [2, 1], [0, 17]), ("JOIN", [2, 3], [-4, -2, 0, 1, 2, 4])]
)
def test_other_operators_answer_what_the_readme_says(
    server: RunningServer, tmp_path: Path, operator: str, sizes: list[int], numbers: list[float]
) -> None:
    output = json.loads(run(block_with("sh", f'"{operator}"'), server, tmp_path))["outputs"]["OutputTensor"]
    assert output["Sizes"] == sizes
    assert np.frombuffer(base64.b64decode(output["data"]), np.float32).tolist() == numbers


def test_the_refusal_answers_what_the_readme_says(client: httpx.Client) -> None:
    (body,) = re.findall(r"-d '(.*?)'", block_with("sh", "ACTIVATION_HARD_SIGMOID"), re.DOTALL)
    request = json.loads(body)
    request["feature_level"] = "2_0"
    request["operator"]["InputTensor"]["Sizes"] = [2, 3]
    assert client.post("/v1/dispatch", json=request).json() == json.loads(block_with("json", '"status": 422'))


def test_the_python_example_runs(server: RunningServer, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(block_with("python", "msgpack.packb").replace(f"http://{ADDRESS}", server.url))
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", printed)]
    assert numbers == pytest.approx([-1.729, -1.264, 0, 1, 2, 4], abs=1e-3)


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_graphs_are_what_the_readme_says(server: RunningServer, tmp_path: Path) -> None:
    once, kept = block_with("sh", "graph='"), block_with("sh", "post /v1/graphs")

    def y(answer: str) -> list[float]:
        data = base64.b64decode(json.loads(answer)["outputs"]["y"]["data"])
        return [float(each) for each in np.frombuffer(data, np.float32)]

    assert y(run(once, server, tmp_path)) == [0, 0, 3, 2, 4, 7]
    *prepared, _ = once.splitlines()  # what comes after is asked of the same shell
    commands = ["\n".join([*prepared, command]) for command in kept.splitlines()]
    created, dispatched, timed, described, dropped = [run(command, server, tmp_path) for command in commands]
    assert json.loads(created)["name"] == "biased_relu"
    assert set(re.findall(r"/v1/graphs/(\w+)", kept)) == {json.loads(created)["id"]}
    assert y(dispatched) == [0, 0, 3, 2, 4, 7]
    assert [each["nodes"] for each in json.loads(described)["kernels"]] == [[1, 2]]
    assert [each["nodes"] for each in json.loads(timed)["kernels"]] == [[1, 2]]
    assert json.loads(described)["dispatches"] == 1
    assert dropped == ""


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_model_prints_what_the_readme_says(server: RunningServer, tmp_path: Path) -> None:
    commands = installed(block_with("sh", "/v1/dxdispatch"))
    first, second, answer = run(commands, server, tmp_path).split("\n", 2)
    assert f"Both print `{first}`." in README
    assert second == "Resource 'Out' written to 'out.npy'"
    assert json.loads(answer)["lines"] == [first, second]
    assert np.load(tmp_path / "made" / "out.npy").tolist() == [2.5, 4.5, 6.5]


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_a_model_is_served_and_run_as_the_readme_does(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", block_with("python", "scaled (float")], cwd=tmp_path, check=True)
    _, _, *flags = block_with("sh", "--models").split()
    flags[flags.index("models")] = str(tmp_path / "models")
    with running_server(tmp_path / "log", *flags) as server:
        told, answer, loaded, kept = outputs(block_with("sh", "/v2/models/scaled"), server, tmp_path)
        Image.new("RGB", (80, 70), (255, 0, 0)).save(tmp_path / "cat.jpg")
        subprocess.run([sys.executable, "-c", block_with("python", "colours (float")], cwd=tmp_path, check=True)
        share = json.loads(run(block_with("sh", "cat.npy"), server, tmp_path))["outputs"][0]["data"]
        script = block_with("python", "from tritonclient.http").replace(ADDRESS, server.url.removeprefix("http://"))
        triton = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True
        )
    assert share == pytest.approx([0.576, 0.212, 0.212], abs=0.01)
    assert [float(each) for each in re.findall(r"[\d.]+", triton.stdout)] == pytest.approx(share, abs=1e-6)
    assert json.loads(told)["inputs"][0]["shape"] == [-1, 3]
    assert json.loads(answer)["outputs"][0]["data"] == [0, 0, 0, 1, 4, 12]
    assert loaded == ""
    assert json.loads(kept)["name"] == "scaled_2x3"
    np.save(tmp_path / "x.npy", np.array([[-4, -2, 0], [1, 2, 4]], np.float32))
    run_model, inspect = installed(block_with("sh", "dmlserve inspect")).splitlines()
    subprocess.run(split(run_model), cwd=tmp_path, check=True, capture_output=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), [[0, 0, 0], [1, 4, 12]])
    shown = subprocess.run(split(inspect), cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert "2 ONNX nodes are 2 operators in 1 kernels" in shown


def outputs(block: str, server: RunningServer, cwd: Path) -> list[str]:
    """Of each command of a block, which begin with curl."""
    return [run(f"curl{command}", server, cwd) for command in re.split(r"^curl", block, flags=re.MULTILINE)[1:]]


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_inference_answers_what_the_readme_says(server: RunningServer, tmp_path: Path) -> None:
    answer = json.loads(run(block_with("sh", "curl localhost:8000/v2"), server, tmp_path))
    assert answer == json.loads(block_with("json", '"model_name"'))


def test_the_example_of_tritonclient_runs(server: RunningServer, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(
        block_with("python", "set_data_from_numpy(x)\nclient").replace(ADDRESS, server.url.removeprefix("http://"))
    )
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", printed)]
    assert numbers == pytest.approx([-1.729, -1.264, 0, 1, 2, 4], abs=1e-3)


def test_the_keys_are_as_the_readme_says(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(block_with("", "requests-per-second"))
    keys = Keys("", str(tmp_path / "keys"))
    (team, monitoring) = [keys.find(each) for each in ("dGVhbS1hIGtleQ", "bW9uaXRvcmluZw")]
    assert team is not None
    assert (team.terms.name, team.terms.requests_per_second, team.terms.bytes_in_flight) == ("team-a", 50, 1 << 28)
    assert monitoring is not None
    asked = [("GET", "/metrics"), ("GET", "/v1/graphs"), ("POST", "/v1/graphs")]
    assert [monitoring.allows(*each) for each in asked] == [True, True, False]


def test_the_commands_without_a_server_run(client: httpx.Client, tmp_path: Path) -> None:
    example = client.get("/v1/operators/ACTIVATION_CELU").json()["example"]
    (tmp_path / "request.json").write_text(json.dumps(example))
    commands = [line.partition("#")[0].strip() for line in block_with("sh", "dmlserve capabilities").splitlines()]
    np.save(tmp_path / "x.npy", np.array([[-4, -2, 0], [1, 2, 4]], np.float32))
    assert len(commands) == 6
    for command in commands:
        completed = subprocess.run(
            split(installed(command)),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert completed.returncode == 0, completed.stderr
        assert "CELU" in completed.stdout or "numpy" in completed.stdout or "CONSTANT_POW" in completed.stdout


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_operators_are_chosen_as_the_readme_does(server: RunningServer, tmp_path: Path) -> None:
    asked, listed = block_with("sh", "/v1/operators?").splitlines()
    expected = [name for name in OPERATORS if takes(name, FeatureLevel.V5_1, DataType.INT8)]
    assert [each["Type"] for each in json.loads(run(asked, server, tmp_path))] == expected
    printed = run(installed(listed), server, tmp_path)
    assert [PREFIX + name for name in re.findall(r"^\w+(?= +\d_\d )", printed, re.MULTILINE)] == expected


def test_links_lead_somewhere() -> None:
    """Within a document to one of its headings, else to a file, or to a heading of one that is read here, too."""

    def anchors(text: str) -> set[str]:
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
        return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}

    for name, text in DOCUMENTS.items():
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
            file = (ROOT / name).parent / target if target else ROOT / name
            assert file.exists(), (name, target)
            if anchor:
                assert anchor in anchors(file.read_text()), (name, target, anchor)


def test_every_subject_is_found_at_the_readmes_beginning() -> None:
    beginning, _, _ = README.partition("\n## ")
    for heading in re.findall(r"^## (.+)$", README, re.MULTILINE):
        assert f"(#{re.sub(r'[^a-z -]', '', heading.lower()).replace(' ', '-')})" in beginning, heading
    for name in DOCUMENTS.keys() - {"README.md"}:
        assert f"({name})" in README, name
    assert README.count("\n") < 650, "details are for the documents that it leads to"


def test_the_readme_counts_the_operators() -> None:
    assert re.findall(r"all (\d+) operators", README) == [str(len(OPERATORS))]
    measured = sum(operator.family() in ("ACTIVATION", "ELEMENT_WISE") for operator in OPERATORS.values())
    assert re.findall(r"of\s+the\s+(\d+)\s+activations\s+and\s+element-wise\s+operators", README) == [str(measured)]


def test_the_operators_and_tensors_that_the_readme_names_exist() -> None:
    known = {operator.short_name() for operator in OPERATORS.values()}
    tensors = {name for operator in OPERATORS.values() for name in operator.tensor_names()}
    named = {each for each in re.findall(r"`([A-Z][A-Z_0-9]+)`", TEXT) if "_" in each or each in known}
    assert {"CONVOLUTION", "LSTM", "SPLIT", "MAX_POOLING2"} <= named
    named = {each for each in named if not each.startswith(("DMLSERVE_", "FORWARDED_"))}  # of the environment
    others = {"OWNED_BY_DML", "TENSOR_DATA_TYPE_SUPPORT", "FEATURE_LEVELS", "DML_GRAPH_DESC"}
    assert {name.removeprefix(PREFIX) for name in named - others} <= known
    assert set(re.findall(r"`(\w+Tensors?)`", TEXT)) <= tensors
    assert OPERATORS[f"{PREFIX}JOIN"].array_names() == {"InputTensors"}
    assert OPERATORS[f"{PREFIX}SPLIT"].array_names() == {"OutputTensors"}
    assert OPERATORS[f"{PREFIX}MAX_POOLING2"].model_fields["OutputIndicesTensor"].default is None


def test_every_path_of_the_api_table_exists(client: httpx.Client) -> None:
    rows = "\n".join(line for line in TEXT.splitlines() if line.startswith("| "))
    paths = set(re.findall(r"`(?:GET |POST )?(/[\w/{}.-]+)`", rows)) - {"/v2"}
    known = set(client.get("/openapi.json").json()["paths"]) | {"/docs", "/operators", "/errors", "/openapi.json"}
    assert paths == known - {"/v2"}


@pytest.mark.timeout(600)
def test_the_two_commands_set_everything_up(tmp_path: Path) -> None:
    """On a bare clone: the first installs and serves, the second installs and finds the tests."""
    serve, test = [block.strip() for block in blocks("sh") if "pip install" in block]
    clone = tmp_path / "clone"
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, files.split("\0")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, clone / name)

    # Nothing of the environment that these tests run in may help.
    path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if part != str(COMMAND.parent))
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | {"PATH": path}
    environment["PIP_NO_COMPILE"] = "0"  # which has pip compile nothing: a third of what comes along is imported here
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-euc", f"exec 2>&1; {serve}"],
            cwd=clone,
            stdout=output,
            env=environment | {"DMLSERVE_PORT": "0"},
            start_new_session=True,
        )
    try:
        url = None
        while url is None and process.poll() is None:
            time.sleep(0.2)
            url = re.search(r"running on (http://[\d.]+:\d+)", log.read_text())
        assert url, log.read_text()
        assert httpx.get(f"{url.group(1)}/health/ready").status_code == 200
        assert httpx.get(f"{url.group(1)}/docs/assets/swagger-ui.css").status_code == 200
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)

    # All 35,000 would take half a minute; CI runs them in a clone.
    collected = subprocess.run(
        ["bash", "-euc", test],
        cwd=clone,
        env=environment | {"PYTEST_ADDOPTS": "--collect-only -q tests/docs tests/clients"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert collected.returncode == 0, collected.stdout + collected.stderr
    assert "test_readme.py" in collected.stdout
