"""KServe's own client against a running server: it uses the service unchanged.

The package brings half a cluster's software along, so it gets an environment of its own, kept in pytest's cache. That
one is made anew only with `pytest --cache-clear`.
"""

import fcntl
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import RunningServer, running_server
from tests.models.documents import model
from tests.readme import code

VERSION = "kserve>=0.15,<1"

pytestmark = pytest.mark.timeout(600)

PROGRAM = """
import asyncio, json, sys
import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

url, model = sys.argv[1], "activation_parameterized_relu"
x = np.array([[-4, -2, 0], [1, 2, 4]], np.float32)


def tensors(dtype, name, binary):
    made = [InferInput(each, [2, 3], name) for each in ("InputTensor", "SlopeTensor")]
    for each in made:
        each.set_data_from_numpy(x.astype(dtype), binary_data=binary)
    return made


async def main():
    found = {}
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        found["live"] = await client.is_server_live(url)
        found["ready"] = await client.is_server_ready(url)
        found["model"] = await client.is_model_ready(url, model)
        found["none"] = await client.is_model_ready(url, "none")
        for dtype, name in ((np.float32, "FP32"), (np.float16, "FP16"), (np.int8, "INT8")):
            for binary in (True, False) if name != "FP16" else (True,):
                for asked in (None, True, False) if name != "FP16" else (None, True):
                    outputs = [RequestedOutput("OutputTensor", {"binary_data": asked})] if asked is not None else None
                    request = InferRequest(model, tensors(dtype, name, binary), request_outputs=outputs)
                    answer = await client.infer(url, request, model_name=model)
                    assert answer.id == request.id or request.id is None, (answer.id, request.id)
                    found[f"{name} {binary} {asked}"] = answer.outputs[0].as_numpy().tolist()
        try:
            request = InferRequest(model, tensors(np.float32, "FP32", True), parameters={"Alpha": 1.0})
            await client.infer(url, request, model_name=model)
        except httpx.HTTPStatusError as error:
            found["error"] = str(error)
    print(json.dumps(found))


asyncio.run(main())
"""


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest) -> Path:
    """An interpreter that has the package."""
    cache = request.config.cache
    assert cache is not None
    kept = cache.mkdir("kserve")
    folder = kept / f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreter, complete = folder / "bin/python", folder / "complete"
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other tests of this run want it, too, in another process
        if not (complete.exists() and interpreter.exists()):
            uv = [sys.executable, "-m", "uv"]  # pip takes a minute longer
            subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
            install = [*uv, "pip", "install", "--quiet", "--python", str(interpreter), VERSION]
            done = subprocess.run(install, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            complete.touch()
    return interpreter


def run(python: Path, *arguments: str) -> str:
    done = subprocess.run([python, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_form(python: Path, server: RunningServer) -> None:
    found = json.loads(run(python, "-c", PROGRAM, server.url))
    told = {name: found.pop(name) for name in ("live", "ready", "model", "none")}
    assert told == {"live": True, "ready": True, "model": True, "none": False}
    assert "Alpha is no parameter of DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU" in found.pop("error")
    assert len(found) == 14
    for form, numbers in found.items():
        assert numbers == [[16, 4, 0], [1, 2, 4]], form


def test_the_lines_of_the_readme_run(python: Path, server: RunningServer) -> None:
    printed = run(python, "-c", code("python", "from kserve", server.url))
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", printed)]
    assert numbers == pytest.approx([-1.729, -1.264, 0, 1, 2, 4], abs=1e-3)


def test_the_lines_about_a_model_run(python: Path, tmp_path: Path) -> None:
    text = "{ mean = GlobalAveragePool(image) flat = Flatten(mean) share = Softmax(flat) }"
    made = model(f"m (float[batch,3,height,width] image) => (float[batch,3] share) {text}")
    (tmp_path / "colours.onnx").write_bytes(made.SerializeToString())
    np.save(tmp_path / "cat.npy", np.zeros((1, 3, 64, 64), np.float32))
    with running_server(tmp_path / "log", "--models", str(tmp_path)) as server:
        lines = code("python", "import kserve", server.url).replace("cat.npy", str(tmp_path / "cat.npy"))
        printed = run(python, "-c", lines)
    assert [float(each) for each in re.findall(r"[\d.]+", printed)] == pytest.approx([1 / 3] * 3)
