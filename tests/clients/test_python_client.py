"""The document gives a Python client without a warning, and the client works."""

import base64
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import msgpack
import numpy as np
import pytest

from app.operators.catalog import OPERATORS
from tests.clients.trials import TRIALS, Trial
from tests.conftest import RunningServer
from tests.messages import Array
from tests.readme import code

PACKAGE = "dmlserve_client"
X = np.array([-4, -2, 0, 1, 2, 4], np.float32)


@pytest.fixture(scope="module")
def folder(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the generated package lies, made by the README's lines and ready to be imported."""
    made = tmp_path_factory.mktemp("python")
    command = code("sh", "openapi-python-client generate", server.url).rstrip() + " --fail-on-warning"
    scripts = sysconfig.get_path("scripts")  # the generator is there, and ruff, which it formats with
    environment = os.environ | {"PATH": os.pathsep.join([scripts, os.environ["PATH"]])}
    done = subprocess.run(
        ["bash", "-euc", command], cwd=made, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(made))
    yield made
    sys.path.remove(str(made))
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


class Generated:
    """The generated package, whose modules no type checker knows."""

    def __init__(self, url: str) -> None:
        self.models: Any = self.module("models")
        self.types: Any = self.module("types")
        self.http: Any = self.module("client").Client(base_url=url, raise_on_unexpected_status=True)

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"{PACKAGE}.{name}")

    def call(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """What an operation, given with its tag, answers."""
        return self.module(f"api.{operation}").sync(*arguments, client=self.http, **named)

    def request(self, operator: Any, **inputs: Array) -> Any:
        data = {name: base64.b64encode(array.tobytes()).decode() for name, array in inputs.items()}
        return self.models.DispatchRequest(operator, self.models.DispatchRequestInputs.from_dict(data))


@pytest.fixture(scope="module")
def generated(folder: Path, server: RunningServer) -> Iterator[Generated]:
    made = Generated(server.url)
    with made.http:
        yield made


EXAMPLES = {"DispatchRequest(celu": [-1.729, -1.264, 0, 1, 2, 4], "keep_graph": [0, 0, 3, 2, 4, 7]}
"""What the README's examples have, and what they print."""


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_lines_of_the_readme_run(folder: Path, server: RunningServer, text: str) -> None:
    script = folder / "example.py"
    script.write_text(code("python", text, server.url))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", done.stdout)]
    assert numbers == pytest.approx(EXAMPLES[text], abs=1e-3)


def test_the_lines_of_the_readme_have_the_right_types(folder: Path, server: RunningServer) -> None:
    scripts = [folder / f"typed{number}.py" for number in range(len(EXAMPLES))]
    for script, text in zip(scripts, EXAMPLES, strict=True):
        script.write_text(code("python", text, server.url))
    flags = ["--strict", "--follow-imports=silent", f"--cache-dir={os.devnull}"]  # the generated modules are not strict
    names = [script.name for script in scripts]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *flags, *names], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_can_be_imported(folder: Path) -> None:
    package = importlib.import_module(PACKAGE)
    names = [module.name for module in pkgutil.walk_packages(package.__path__, f"{PACKAGE}.")]
    assert f"{PACKAGE}.api.native.dispatch" in names
    for name in names:
        importlib.import_module(name)


def test_every_operator_is_dispatched(generated: Generated) -> None:
    models = generated.models
    desc = models.TensorDesc("FLOAT32", [1, 1, 2, 3], flags=["OWNED_BY_DML"])
    slope = np.full(6, 0.5, np.float32)
    scale_bias = models.ScaleBias(scale=2, bias=1)
    for operator, more, expected in (
        (models.ActivationHardSigmoid(desc, alpha=0.25), {}, np.clip(0.25 * X + 0.5, 0, 1)),
        (models.ActivationCelu(desc), {}, np.where(X > 0, X, np.expm1(X))),
        (models.ActivationParameterizedRelu(desc, desc), {"SlopeTensor": slope}, np.where(X >= 0, X, X / 2)),
        (models.ElementWiseConstantPow(desc, exponent=2, scale_bias=scale_bias), {}, (2 * X + 1) ** 2),
    ):
        body = generated.request(operator, InputTensor=X, **more)
        assert models.DispatchRequest.from_dict(body.to_dict()) == body  # the operator reads back as the same class
        answer = generated.call("native.dispatch", body=body)
        assert isinstance(answer, models.DispatchResponse), answer
        assert answer.capability.operator == operator.type_
        assert answer.execution.kind in ("cpu", "cuda")
        output = answer.outputs["OutputTensor"]
        assert (output.data_type, output.sizes, output.strides) == ("FLOAT32", [1, 1, 2, 3], None)
        np.testing.assert_allclose(np.frombuffer(base64.b64decode(output.data), np.float32), expected, rtol=1e-6)


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_kinds_of_operators(generated: Generated, trial: Trial) -> None:
    """The descriptor read by its class has nothing but typed values, of which its constructor makes the same."""
    models = generated.models
    kind = getattr(models, OPERATORS[trial.name].__name__)
    read = kind.from_dict(trial.operator)
    values = {field.name: getattr(read, field.name) for field in attrs.fields(kind)}
    assert sum(value is not generated.types.UNSET for value in values.values()) == len(trial.operator)
    assert not [name for name, value in values.items() if isinstance(value, dict)]
    operator = kind(**values)
    assert operator.to_dict() == trial.operator
    body = models.DispatchRequest(operator, models.DispatchRequestInputs.from_dict(trial.data))
    assert models.DispatchRequest.from_dict(body.to_dict()) == body
    answer = generated.call("native.dispatch", body=body)
    assert isinstance(answer, models.DispatchResponse), answer
    output = answer.outputs["OutputTensor"]
    assert (output.data_type, output.sizes) == (trial.data_type, list(trial.expected.shape))
    trial.check(base64.b64decode(output.data))


def test_a_refusal_is_a_typed_problem(generated: Generated) -> None:
    models, dispatch = generated.models, generated.module("api.native.dispatch")
    body = generated.request(models.ActivationCelu(models.TensorDesc("FLOAT32", [6])))
    answer = dispatch.sync_detailed(client=generated.http, body=body, x_request_id="of-the-test")
    assert answer.status_code == 422
    assert answer.headers["x-request-id"] == "of-the-test"
    assert isinstance(answer.parsed, models.ProblemDetails)
    assert answer.parsed.status == 422
    assert answer.parsed.errors[0].pointer == "/inputs/InputTensor"


def test_a_dispatch_in_messagepack(generated: Generated) -> None:
    models, dispatch = generated.models, generated.module("api.native.dispatch")
    celu = models.ActivationCelu(models.TensorDesc("FLOAT32", [6]))
    packed = msgpack.packb({"operator": celu.to_dict(), "inputs": {"InputTensor": X.tobytes()}})
    expected = np.where(X > 0, X, np.expm1(X))

    answer = generated.call("native.dispatch", body=generated.types.File(BytesIO(packed)))
    data = base64.b64decode(answer.outputs["OutputTensor"].data)
    np.testing.assert_allclose(np.frombuffer(data, np.float32), expected, rtol=1e-6)

    # The generated functions read JSON only; an answer in MessagePack is there for the client's own httpx.
    arguments = dispatch._get_kwargs(body=generated.types.File(packed))
    arguments["headers"]["Accept"] = "application/msgpack"
    response = generated.http.get_httpx_client().request(**arguments)
    data = msgpack.unpackb(response.raise_for_status().content)["outputs"]["OutputTensor"]["data"]
    np.testing.assert_allclose(np.frombuffer(data, np.float32), expected, rtol=1e-6)


def test_what_the_service_tells_of_itself(generated: Generated) -> None:
    models = generated.models
    capabilities = generated.call("native.get_capabilities")
    assert capabilities.devices[0].kind in ("cpu", "cuda")
    assert capabilities.limits["max_dimension_count"] == 8

    summaries = generated.call("native.list_operators")
    assert [each.type_ for each in summaries] == capabilities.operators
    with_int8 = generated.call("native.list_operators", family="ACTIVATION", data_type="INT8", feature_level="5_1")
    assert "DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU" in [each.type_ for each in with_int8]
    assert len(with_int8) < len(summaries)
    assert isinstance(generated.call("native.list_operators", data_type="FLOAT8"), models.ProblemDetails)
    described = generated.call("native.get_operator", "ACTIVATION_CELU")
    assert {field.name for field in described.fields} == {"InputTensor", "OutputTensor", "Alpha"}
    assert described.support[0].tensors["InputTensor"].data_types == ["FLOAT32", "FLOAT16"]
    example = models.DispatchRequest.from_dict(described.example.to_dict())
    assert isinstance(generated.call("native.dispatch", body=example), models.DispatchResponse)
    assert isinstance(generated.call("native.get_operator", "ACTIVATION_NOTHING"), models.ProblemDetails)


def test_feature_support(generated: Generated) -> None:
    models = generated.models
    levels = models.FeatureLevelsQuery("FEATURE_LEVELS", ["1_0", "DML_FEATURE_LEVEL_5_0", "3_1"])
    answer = generated.call("native.check_feature_support", body=levels)
    assert answer == models.MaxSupportedFeatureLevel("DML_FEATURE_LEVEL_5_0")
    for data_type in ("FLOAT16", "UINT4"):
        query = models.TensorDataTypeSupportQuery("DML_FEATURE_TENSOR_DATA_TYPE_SUPPORT", data_type)
        answer = generated.call("native.check_feature_support", body=query)
        assert answer == models.TensorDataTypeSupport(True)


def test_health_and_metrics(generated: Generated) -> None:
    assert generated.call("operations.live").status == "ready"
    assert generated.call("operations.ready").status == "ready"
    assert "dmlserve_ready 1.0\n" in generated.call("operations.get_metrics")
