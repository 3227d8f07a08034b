"""docker/kubernetes/kserve/ against the models of KServe's resources, in its own package.

KServe's package has no custom resource definitions: these are made of the same types in Go as its models, and are
otherwise on GitHub only. The models have the name and the type of each field, at every depth, and which must be there.
A field that they do not have is refused here, as by `kubectl apply --validate=strict`. What is Kubernetes' own in them
(containers, volumes) is validated by its schemas. The package is taken without what it requires, which cannot be
installed beside what the project does, and only read.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes_validate
import pytest
import yaml

from tests.container.test_kubernetes import FOLDER, KUBERNETES

PACKAGE = Path(__file__).with_name("kserve.txt")
SCALARS = {"str": str, "int": int, "bool": bool}
CHOICES = {"scaleMetric": ("cpu", "memory", "concurrency", "rps")}
"""Strings of which the models do not know that there are few, as the definitions say."""

RUNTIME, SERVICE = [yaml.safe_load((FOLDER / "kserve" / f"{name}.yaml").read_text()) for name in ("runtime", "service")]


class Model(NamedTuple):
    """Types of a resource's fields by their names in JSON, and which must be there."""

    types: dict[str, str]
    required: set[str]


Models = dict[str, Model]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Of the version that kserve.txt names."""
    folder = tmp_path_factory.mktemp("kserve")
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    done = subprocess.run(
        [*install, "--target", folder, "--requirement", PACKAGE], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    files = sorted((folder / "kserve" / "models").glob("v1*.py"))
    return {name: model for file in files for name, model in read(file.read_text())}


def read(text: str) -> Iterator[tuple[str, Model]]:
    for found in ast.parse(text).body:
        if isinstance(found, ast.ClassDef):
            tables = {
                ast.unparse(each.targets[0]): ast.literal_eval(each.value)
                for each in found.body
                if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) in ("openapi_types", "attribute_map")
            }
            names: dict[str, str] = tables["attribute_map"]
            required = re.findall(r"Invalid value for `(\w+)`, must not be `None`", text)
            types = {names[name]: kind for name, kind in tables["openapi_types"].items()}
            yield found.name, Model(types, {names[each] for each in required})


def check(value: Any, kind: str, models: Models, where: str) -> None:
    """Raises ValueError where `value` is not of this kind."""
    if kind == "V1ObjectMeta":
        pod_with({"metadata": value})
    elif kind in ("list[V1Container]", "list[V1Volume]"):
        return  # the pod's, together
    elif inner := re.fullmatch(r"list\[(\w+)\]", kind):
        expect(isinstance(value, list), where, kind)
        for number, each in enumerate(value):
            check(each, inner[1], models, f"{where}[{number}]")
    elif kind == "dict(str, str)":
        expect(
            isinstance(value, dict) and all(isinstance(each, str) for each in (*value, *value.values())), where, kind
        )
    elif kind in SCALARS:
        expect(type(value) is SCALARS[kind], where, kind)
    else:
        expect(isinstance(value, dict) and kind in models, where, kind)
        model = models[kind]
        for name in value.keys() - model.types.keys():
            raise ValueError(f"{where}.{name}: {kind} has no such field")
        for name in model.required - value.keys():
            raise ValueError(f"{where}.{name} is missing")
        for name, each in value.items():
            expect(name not in CHOICES or each in CHOICES[name], f"{where}.{name}", f"one of {CHOICES.get(name)}")
            check(each, model.types[name], models, f"{where}.{name}")


def expect(is_so: bool, where: str, kind: str) -> None:
    if not is_so:
        raise ValueError(f"{where} is no {kind}")


def pod_with(more: dict[str, Any]) -> None:
    container = {"name": "x", "image": "x"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [container]}}
    kubernetes_validate.validate(pod | more, KUBERNETES, strict=True)


def validate(resource: dict[str, Any], models: Models) -> None:
    version = resource["apiVersion"].removeprefix("serving.kserve.io/")
    check(resource, f"{version.capitalize()}{resource['kind']}", models, resource["kind"])
    spec = resource["spec"]
    if "containers" in spec:
        pod_with({"spec": {name: spec[name] for name in ("containers", "volumes") if name in spec}})


def test_the_resources_are_valid(models: Models) -> None:
    for each in (RUNTIME, SERVICE):
        validate(each, models)


def changed(resource: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    made = deepcopy(resource)
    change(made)
    return made


@pytest.mark.parametrize(
    ("resource", "change", "says"),
    [
        (RUNTIME, lambda it: it.update(extra=1), "no such field"),
        (RUNTIME, lambda it: it["spec"].pop("containers"), "containers is missing"),
        (RUNTIME, lambda it: it["spec"].update(protocolVersion=["v2"]), "no such field"),
        (RUNTIME, lambda it: it["spec"].update(protocolVersions="v2"), "is no list"),
        (RUNTIME, lambda it: it["spec"].update(multiModel="false"), "is no bool"),
        (RUNTIME, lambda it: it["spec"]["annotations"].update(port=8000), "is no dict"),
        (RUNTIME, lambda it: it["spec"]["supportedModelFormats"][0].update(version=1), "is no str"),
        (RUNTIME, lambda it: it["spec"]["containers"][0].update(port=1), "port"),
        (RUNTIME, lambda it: it["metadata"].update(nmae="x"), "nmae"),
        (SERVICE, lambda it: it["spec"].pop("predictor"), "predictor is missing"),
        (SERVICE, lambda it: it["spec"]["predictor"].update(minReplicas="2"), "is no int"),
        (SERVICE, lambda it: it["spec"]["predictor"].update(scaleMetric="gpu"), "is no one of"),
        (SERVICE, lambda it: it["spec"]["predictor"]["model"].pop("modelFormat"), "modelFormat is missing"),
        (SERVICE, lambda it: it["spec"]["predictor"]["model"].update(runtimes="x"), "no such field"),
    ],
)
def test_what_is_wrong_is_seen(
    models: Models, resource: dict[str, Any], change: Callable[[dict[str, Any]], object], says: str
) -> None:
    with pytest.raises((ValueError, kubernetes_validate.ValidationError), match=says):
        validate(changed(resource, change), models)
