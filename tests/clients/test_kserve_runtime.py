"""The runtime and the service for KServe (docker/kubernetes/kserve/) against KServe's own models of its resources.

The package has these models, made of KServe's types, and none of the CRDs (seen in 0.15 and 0.21).
"""

import json
from pathlib import Path

import pytest
import yaml

from tests.clients.test_kserve_client import python as kserve_python
from tests.clients.test_kserve_client import run

__all__ = ["kserve_python"]

FOLDER = Path(__file__).parents[2] / "docker" / "kubernetes" / "kserve"

PROGRAM = """
import json, re, sys
import kserve, kserve.models
from kubernetes.client import models

KINDS = {
    "ClusterServingRuntime": "V1alpha1ClusterServingRuntime",
    "InferenceService": "V1beta1InferenceService",
}
PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object}


def made(kind, value, path):
    "The model, of which all that is required is there; nothing may be there that it does not know."
    if found := re.fullmatch(r"list\\[(.*)\\]", kind):
        assert isinstance(value, list), path
        return [made(found[1], each, f"{path}[{place}]") for place, each in enumerate(value)]
    if found := re.fullmatch(r"dict\\((\\w+), (.*)\\)", kind):
        assert isinstance(value, dict), path
        return {key: made(found[2], each, f"{path}.{key}") for key, each in value.items()}
    if kind in PLAIN:
        assert isinstance(value, PLAIN[kind]) and (kind == "bool" or not isinstance(value, bool)), path
        return value
    model = getattr(kserve, kind, None) or getattr(kserve.models, kind, None) or getattr(models, kind, None)
    if model is None:  # a quantity, or a number or a string
        return value
    names = {outside: inside for inside, outside in model.attribute_map.items()}
    assert isinstance(value, dict) and value.keys() <= names.keys(), f"{path}: {sorted(value.keys() - names.keys())}"
    types = model.openapi_types
    return model(**{names[name]: made(types[names[name]], each, f"{path}.{name}") for name, each in value.items()})


for resource in json.load(sys.stdin):
    made(KINDS[resource["kind"]], resource, resource["kind"])
print("valid")
"""

pytestmark = pytest.mark.timeout(600)


def check(python: Path, *resources: object) -> str:
    return run(python, "-c", PROGRAM.replace("sys.stdin", f"__import__('io').StringIO({json.dumps(resources)!r})"))


def test_they_are_what_kserve_knows(kserve_python: Path) -> None:
    resources = [yaml.safe_load((FOLDER / name).read_text()) for name in ("runtime.yaml", "service.yaml")]
    assert check(kserve_python, *resources) == "valid\n"
    (container,) = resources[0]["spec"]["containers"]
    container["imagePullPolice"] = "Always"
    with pytest.raises(AssertionError, match=r"containers\[0\].*imagePullPolice"):
        check(kserve_python, resources[0])
    del resources[1]["spec"]["predictor"]["model"]["modelFormat"]
    with pytest.raises(AssertionError, match="model_format"):
        check(kserve_python, resources[1])
