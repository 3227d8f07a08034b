"""docker/kubernetes/ against the published schemas, and what it promises: no cluster is needed."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from app.settings import Settings

FOLDER = Path(__file__).parents[2] / "docker" / "kubernetes"
KUBERNETES = "1.33"
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}

Resource = dict[str, Any]


def resources(*files: Path) -> list[Resource]:
    return [each for file in files for each in yaml.safe_load_all(file.read_text())]


BASE = {each["kind"]: each for each in resources(*sorted((FOLDER / "base").glob("*.yaml")))}
ALL = [each for folder in ("base", "gpu", "kserve") for each in sorted((FOLDER / folder).glob("*.yaml"))]
POD: Resource = BASE["Deployment"]["spec"]["template"]["spec"]
RUNTIME: Resource = yaml.safe_load((FOLDER / "kserve" / "runtime.yaml").read_text())["spec"]
both = pytest.mark.parametrize("pod", [POD, RUNTIME], ids=["deployment", "runtime"])


def rendered(overlay: str) -> list[Resource]:
    """All that `kubectl apply -k` would send."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    command = ["kubectl", "kustomize", str(FOLDER / overlay)]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (made.returncode, made.stderr) == (0, "")
    return [*yaml.safe_load_all(made.stdout)]


def of_kind(made: list[Resource], kind: str) -> Resource:
    (found,) = [each for each in made if each["kind"] == kind]
    return found


def env(container: Resource) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


def size(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(\w\w)", quantity).groups()  # type: ignore[union-attr]
    return int(number) * UNITS[unit]


def nested(value: object, key: str) -> Iterator[Any]:
    """What is called `key`, however deep."""
    for name, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if name == key:
            yield each
        yield from nested(each, key)


@pytest.mark.parametrize("kind", sorted(BASE.keys() - {"Kustomization"}))
def test_the_base_is_valid(kind: str) -> None:
    kubernetes_validate.validate(BASE[kind], KUBERNETES, strict=True)


@pytest.mark.parametrize("overlay", ["base", "gpu"])
def test_what_kustomize_makes_is_valid(overlay: str) -> None:
    made = rendered(overlay)
    assert {each["kind"] for each in made} == BASE.keys() - {"Kustomization"}
    for each in made:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
        if each["kind"] != "Namespace":
            assert each["metadata"]["namespace"] == of_kind(made, "Namespace")["metadata"]["name"]


def test_the_kustomization_names_all_files() -> None:
    files = {each.name for each in (FOLDER / "base").glob("*.yaml")}
    assert {*BASE["Kustomization"]["resources"], "kustomization.yaml"} == files


@both
def test_containers_are_locked_down(pod: Resource) -> None:
    (container,) = pod["containers"]
    security = pod.get("securityContext", {}) | container["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == security["runAsGroup"] == 10001
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")} == {"/tmp"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "privileged", "hostPath"} & set(pod) | {*nested(pod, "hostPath")}


@both
def test_the_service_is_told_what_it_is_granted(pod: Resource) -> None:
    (container,) = pod["containers"]
    limits = container["resources"]["limits"]
    settings = env(container)
    assert settings["DMLSERVE_THREADS"] == limits["cpu"]
    assert int(settings["DMLSERVE_MAX_MEMORY_BYTES"]) <= size(limits["memory"]) / 2
    for name in settings:
        assert name.removeprefix("DMLSERVE_").lower() in Settings.model_fields
    assert {each["httpGet"]["port"] for each in nested(container, "readinessProbe")} <= {"http", 8000}


def test_variables_of_services_are_not_taken_for_settings() -> None:
    """For a Service called dmlserve Kubernetes has DMLSERVE_PORT and others, in all pods beside it that allow it."""
    (service,) = resources(FOLDER / "kserve" / "service.yaml")
    assert POD["enableServiceLinks"] is service["spec"]["predictor"]["enableServiceLinks"] is False
    (container,) = RUNTIME["containers"]  # which other services use, too
    assert env(container)["DMLSERVE_PORT"] == str(container["ports"][0]["containerPort"])


def test_a_pod_ends_later_than_the_service() -> None:
    (container,) = POD["containers"]
    drain = float(env(container)["DMLSERVE_DRAIN_SECONDS"])
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    (service,) = resources(FOLDER / "kserve" / "service.yaml")
    for grace in (POD["terminationGracePeriodSeconds"], service["spec"]["predictor"]["timeout"]):
        assert grace > sleep + drain + Settings.model_fields["shutdown_seconds"].default
    ready = container["readinessProbe"]
    assert drain > ready["periodSeconds"] * ready["failureThreshold"], "or clients are sent to a closed port"
    assert RUNTIME["containers"][0]["lifecycle"] == container["lifecycle"]
    assert env(RUNTIME["containers"][0])["DMLSERVE_DRAIN_SECONDS"] == env(container)["DMLSERVE_DRAIN_SECONDS"]


def test_selectors_meet_the_pods() -> None:
    labels = BASE["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    selectors = [each for kind in BASE for each in nested(BASE[kind], "matchLabels")]
    selectors.append(BASE["Service"]["spec"]["selector"])
    assert len(selectors) == 5
    assert all(each.items() <= labels for each in selectors)
    target = BASE["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", BASE["Deployment"]["metadata"]["name"])
    assert "replicas" not in BASE["Deployment"]["spec"], "each apply would undo what the autoscaler did"


def test_the_gpu_overlay_adds_a_gpu_and_keeps_the_rest() -> None:
    plain, gpu = [of_kind(rendered(each), "Deployment")["spec"]["template"]["spec"] for each in ("base", "gpu")]
    (container,) = gpu["containers"]
    limits = container["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"
    assert int(env(container)["DMLSERVE_MAX_MEMORY_BYTES"]) <= size(limits["memory"]) / 2
    assert env(container).keys() == env(plain["containers"][0]).keys()
    for spec in (plain, gpu):
        assert spec["containers"][0]["securityContext"] == POD["containers"][0]["securityContext"]
        assert spec["securityContext"] == POD["securityContext"]


def test_the_inference_service_names_the_runtime() -> None:
    runtime, service = resources(FOLDER / "kserve" / "runtime.yaml", FOLDER / "kserve" / "service.yaml")
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"] == ["v2"]
    assert model["modelFormat"]["name"] in [each["name"] for each in runtime["spec"]["supportedModelFormats"]]
    # The runtime's container is a pod's, with the same name that KServe looks for.
    pod = {name: RUNTIME[name] for name in ("containers", "volumes")}
    assert [each["name"] for each in pod["containers"]] == ["kserve-container"]
    kubernetes_validate.validate(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}, KUBERNETES, strict=True
    )
