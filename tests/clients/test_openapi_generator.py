"""Clients in several languages, made by openapi-generator from the document with the README's lines, built and used."""

import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from app.operators.catalog import OPERATORS
from tests.conftest import RunningServer
from tests.readme import code

SOURCES = Path(__file__).with_name("generated")
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java's quick compiler: programs end here before what its other one makes, with twice the work, would pay."""

pytestmark = [
    pytest.mark.skipif(not shutil.which("java"), reason="openapi-generator needs Java, which is not installed"),
    pytest.mark.timeout(600),
]

PYTHON = """
import base64, struct, sys
from dmlserve_generated import (
    ActivationCelu, AnyDispatchRequest, AnyOperator, ApiClient, ApiException, Configuration, DispatchRequest,
    DispatchRequestInputsValue, InferenceApi, InferRequest, NativeApi, TensorDesc,
)

with ApiClient(Configuration(sys.argv[1])) as client:
    native, inference = NativeApi(client), InferenceApi(client)
    desc = TensorDesc(data_type="FLOAT32", sizes=[2, 3], flags=["OWNED_BY_DML"])
    celu = AnyOperator(ActivationCelu(type="ACTIVATION_CELU", input_tensor=desc, alpha=2))
    x = DispatchRequestInputsValue("AACAwAAAAMAAAAAAAACAPwAAAEAAAIBA")
    request = AnyDispatchRequest(DispatchRequest(operator=celu, inputs={"InputTensor": x}))
    print(native.dispatch(request).outputs["OutputTensor"].actual_instance.data.actual_instance)
    print(native.get_capabilities().devices[0].kind)
    print(inference.get_model_metadata("activation_celu").inputs[0].parameters.datatypes)
    print(inference.get_model_statistics("activation_celu").model_stats[0].inference_stats.success.count)
    print(len(inference.get_repository_index()))
    try:
        inference.model_infer("activation_celu", InferRequest(inputs=[]))
    except ApiException as error:
        print(error.status, error.body)
"""
"""What the sources of the other languages do as well."""


def run(folder: Path, *command: str, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PATH": PATH, "JAVA_TOOL_OPTIONS": JAVA} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def generate(folder: Path, language: str, url: str) -> None:
    """Run the README's line. All that the generator may find fault with is that the document is as new as it is."""
    sources = SOURCES / language.partition("-")[0]
    if sources.exists():
        shutil.copytree(sources, folder, dirs_exist_ok=True)
    printed = run(folder, "bash", "-euc", code("sh", f"-g {language} ", url) + " 2>&1")
    warnings = [line for line in printed.splitlines() if "WARN" in line or "ERROR" in line]
    known = (
        "OpenAPI 3.1 support is still in beta",
        "schema name: null",
        "complex example",
        "reserved word",
        "oneOf example value",
        "default of type java.util.ArrayList",
        "to typing.Any",
    )
    assert [line for line in warnings if not any(part in line for part in known)] == []


def check_example(printed: str) -> None:
    """What the README's example prints."""
    numbers = printed.partition("[")[2].partition("]")[0].replace(",", " ").split()
    assert [float(number) for number in numbers] == pytest.approx([-1.7293, -1.2642, 0, 1, 2, 4], abs=1e-4)


def check_rest(printed: str) -> None:
    """What the other program prints."""
    data, kind, datatypes, count, models, refusal = printed.splitlines()
    assert data == "q1rdv6fSob8AAAAAAACAPwAAAEAAAIBA"
    assert kind in ("cpu", "cuda")
    assert "FP32" in datatypes
    assert "FP16" in datatypes
    assert int(count) > 0
    assert int(models) >= len(OPERATORS)  # graphs that other tests keep are models, too
    assert refusal.startswith("400 ")
    assert "inputs is missing" in refusal or "InputTensor is missing; it is required here." in refusal


def test_python(server: RunningServer, tmp_path: Path) -> None:
    generate(tmp_path, "python", server.url)
    (tmp_path / "example.py").write_text(code("python", "import ApiClient", server.url))
    (tmp_path / "main.py").write_text(PYTHON)
    made = str(tmp_path / "generated-python")
    check_example(run(tmp_path, sys.executable, "example.py", PYTHONPATH=made))
    check_rest(run(tmp_path, sys.executable, "main.py", server.url, PYTHONPATH=made))


@pytest.mark.skipif(not shutil.which("javac"), reason="the Java compiler is not installed")
def test_java(server: RunningServer, tmp_path: Path) -> None:
    generate(tmp_path, "java", server.url)
    (tmp_path / "Example.java").write_text(code("java", "class Example", server.url))
    # Maven would fetch Jackson; the generator has it in its own archive.
    (archive,) = [str(each) for each in files("openapi_generator_cli").iterdir() if each.name.endswith(".jar")]
    sources = [str(each) for each in tmp_path.rglob("*.java") if "src/test" not in str(each)]
    run(tmp_path, "javac", "-nowarn", "-proc:none", "-cp", archive, "-d", "built", *sources)
    classes = os.pathsep.join(["built", archive])
    check_example(run(tmp_path, "java", "-cp", classes, "Example"))
    check_rest(run(tmp_path, "java", "-cp", classes, "Main", server.url))


@pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="Node.js and npm are not installed")
def test_typescript(server: RunningServer, node_modules: Path, tmp_path: Path) -> None:
    generate(tmp_path, "typescript-fetch", server.url)
    (tmp_path / "example.ts").write_text(code("ts", "new InferenceApi", server.url))
    (tmp_path / "node_modules").symlink_to(node_modules)
    run(tmp_path, str(node_modules / ".bin/tsc"), "-p", ".")
    check_example(run(tmp_path, "node", "built/example.js"))
    check_rest(run(tmp_path, "node", "built/main.js", server.url))


@pytest.mark.skipif(not shutil.which("go", path=PATH), reason="Go is not installed")
def test_go(server: RunningServer, tmp_path: Path) -> None:
    generate(tmp_path, "go", server.url)
    flags = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
    (tmp_path / "example").mkdir()
    (tmp_path / "example/main.go").write_text(code("go", "package main", server.url))
    shutil.rmtree(tmp_path / "generated-go/test")  # wants a module for assertions
    run(tmp_path, "go", "build", "-o", "built/", ".", "./example", **flags)
    check_example(run(tmp_path, "built/example"))
    check_rest(run(tmp_path, "built/main", server.url))


NEWTONSOFT = next(Path("/usr/lib/mono/gac/Newtonsoft.Json").glob("*/Newtonsoft.Json.dll"), None)


@pytest.mark.skipif(not (shutil.which("mcs") and NEWTONSOFT), reason="Mono and its Newtonsoft.Json are not installed")
def test_csharp(server: RunningServer, tmp_path: Path) -> None:
    generate(tmp_path, "csharp", server.url)
    (tmp_path / "Example.cs").write_text(code("cs", "class Example", server.url))
    sources = sorted((tmp_path / "generated-csharp/src/Org.OpenAPITools").rglob("*.cs"))
    # Debian's Newtonsoft.Json is older than naming strategies; all models' members state their names.
    for source in sources:
        source.write_text(re.sub(r"NamingStrategy = new CamelCaseNamingStrategy\s*\{[^}]*\}", "", source.read_text()))
    (tmp_path / "sources").write_text("\n".join(map(str, sources)))
    libraries = (
        "System.Net.Http",
        "System.ComponentModel.DataAnnotations",
        "System.Runtime.Serialization",
        "System.Web",
    )
    compiler = ["mcs", "-langversion:latest", f"-r:{NEWTONSOFT}", *(f"-r:{library}" for library in libraries)]
    run(tmp_path, *compiler, "-target:library", "-out:client.dll", "JsonSubTypes.cs", "@sources")
    for name in ("Example", "Main"):
        run(tmp_path, *compiler, "-r:client.dll", f"{name}.cs")
    check_example(run(tmp_path, "mono", "Example.exe"))
    check_rest(run(tmp_path, "mono", "Main.exe", server.url))


def has(*command: str) -> bool:
    return bool(shutil.which(command[0])) and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has("ruby", "-rtyphoeus", "-e", ""), reason="Ruby and Typhoeus are not installed")
def test_ruby(server: RunningServer, tmp_path: Path) -> None:
    generate(tmp_path, "ruby", server.url)
    (tmp_path / "example.rb").write_text(code("ruby", "InferenceApi", server.url))
    check_example(run(tmp_path, "ruby", "-Igenerated-ruby/lib", "example.rb"))
    check_rest(run(tmp_path, "ruby", "-Igenerated-ruby/lib", "main.rb", server.url))


@pytest.mark.skipif(
    not has("php", "-r", "require 'GuzzleHttp/autoload.php';"), reason="PHP and Guzzle are not installed"
)
def test_php(server: RunningServer, tmp_path: Path) -> None:
    generate(tmp_path, "php", server.url)
    (tmp_path / "generated-php/vendor").mkdir()
    shutil.move(tmp_path / "autoload.php", tmp_path / "generated-php/vendor")
    (tmp_path / "example.php").write_text(code("php", "InferenceApi", server.url))
    check_example(run(tmp_path, "php", "example.php"))
    check_rest(run(tmp_path, "php", "main.php", server.url))
