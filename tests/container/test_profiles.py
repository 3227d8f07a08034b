"""The profiles `scaled` and `observe` of the compose file, and docker/observe/: no container engine is needed."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app.http.telemetry import tracing
from app.settings import Settings
from tests.cluster.test_haproxy import Front, front, needs_haproxy
from tests.container.test_container_files import compose
from tests.graphs.requests import X, biased, dispatch, keep
from tests.readme import README, code

__all__ = ["front"]

ROOT = Path(__file__).parents[2]
OBSERVE = ROOT / "docker" / "observe"
CONFIG = compose("--profile", "scaled", "--profile", "observe")
SERVICES: dict[str, Any] = CONFIG["services"]
ADDED = ["dmlserve-replica", "grafana", "haproxy", "otel-collector", "prometheus", "tempo"]
DASHBOARD = json.loads((OBSERVE / "grafana" / "dashboards" / "dmlserve.json").read_text())

_WORDS = {
    *("by", "without", "on", "ignoring", "and", "or", "unless", "bool", "offset", "group_left", "group_right"),
    *("sum", "max", "min", "avg", "count", "topk", "inf", "nan"),
}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((OBSERVE / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> list[str]:
    shown = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return shown + [rule["expr"] for rule in rules()]


def selectors(query: str) -> Iterator[tuple[str, set[str]]]:
    """The metrics that a query names, and the labels that it asks each for."""
    grouped = {
        label.strip() for each in re.findall(r"\b(?:by|without) \(([^)]*)\)", query) for label in each.split(",")
    }
    text = re.sub(r"\b(?:by|without) \([^)]*\)|\[[^\]]*\]", " ", query)
    for name, labels in re.findall(r"([a-zA-Z_:][\w:]*)\b(?!\s*\()(?:\{([^}]*)\})?", re.sub(r'"[^"]*"', '""', text)):
        if name not in _WORDS:
            yield name, {each.strip() for each in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels)} | grouped


@cache
def exposed(text: str) -> dict[str, set[str] | None]:
    """Series by name, and their labels, as far as there is one that has them."""
    found: dict[str, set[str] | None] = {}
    for family in text_string_to_metric_families(text):
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        found |= {family.name + end: None for end in ends}
        for sample in family.samples:
            found[sample.name] = {*sample.labels} | (found.get(sample.name) or set())
    return found


def test_nothing_is_added_without_its_profile() -> None:
    assert list(compose()["services"]) == ["dmlserve"]
    assert sorted(SERVICES) == sorted(["dmlserve", *ADDED])


def test_what_the_readme_starts_is_there() -> None:
    commands = [line.partition("#")[0].split() for line in code("sh", "serve run docker", "").splitlines()]
    for tool, *words in [*commands, ["docker", "compose", "--profile", "observe", "up"]]:
        assert " ".join([tool, *words]) in README
        if tool == "docker":
            started = compose(*words[1:3])["services"]
            assert {*words[4:]} - {"--build"} <= started.keys() > {"dmlserve"}
        else:
            assert list((ROOT / words[-1]).rglob("*.yaml")) or (ROOT / words[-1]).is_file()


@pytest.mark.parametrize("name", ADDED)
def test_a_service_is_locked_down_and_bounded(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["pids_limit"] > 0
    assert int(service["mem_limit"]) > 0
    assert service["logging"] == {"driver": "local"}
    assert not {"privileged", "cap_add", "network_mode", "pid"} & set(service)
    assert {port["host_ip"] for port in service.get("ports", [])} <= {"127.0.0.1"}
    binds = [each for each in service.get("volumes", []) if each["type"] == "bind"]
    assert all(each["read_only"] and Path(each["source"]).exists() for each in binds)


def test_images_have_a_version() -> None:
    for name in ADDED:
        if image := SERVICES[name].get("image"):
            assert re.fullmatch(r"[\w/-]+:v?\d+(\.\d+)+", image)


def test_replicas_are_those_that_haproxy_looks_for() -> None:
    replica = SERVICES["dmlserve-replica"]
    more = compose("--profile", "scaled", DMLSERVE_REPLICAS="4")["services"]["dmlserve-replica"]
    assert [each["deploy"]["replicas"] for each in (replica, more)] == [2, 4]
    assert "ports" not in replica
    assert replica["build"] == SERVICES["dmlserve"]["build"]
    assert SERVICES["dmlserve"]["environment"].items() <= replica["environment"].items()
    text = (ROOT / "docker" / "haproxy" / "haproxy.cfg").read_text()
    assert set(re.findall(r"server-template replica 1-16 (\S+)", text)) == {"dmlserve-replica:8000"}
    (port,) = SERVICES["haproxy"]["ports"]
    assert f"bind :{port['target']}\n" in text


def test_prometheus_reads_what_there_is() -> None:
    jobs = {
        job["job_name"]: [(name, each["port"]) for each in job["dns_sd_configs"] for name in each["names"]]
        for job in yaml.safe_load((OBSERVE / "prometheus.yaml").read_text())["scrape_configs"]
    }
    services = compose("--profile", "*")["services"]
    assert {name for job in jobs.values() for name, _ in job} <= services.keys()
    assert [name for name, _ in jobs["dmlserve"]] == [name for name in services if name.startswith("dmlserve")]
    text = (ROOT / "docker" / "haproxy" / "haproxy.cfg").read_text()
    assert [f"bind :{port}\n" in text for _, port in jobs["haproxy"]] == [True]


def test_the_service_sends_traces_where_it_is_told_to() -> None:
    """By default nowhere: without the profile there is nobody to take them."""
    given = {name.lower().removeprefix("dmlserve_"): value for name, value in environment().items()}
    settings = Settings.model_validate(given)
    assert (settings.otlp_endpoint, settings.trace_ratio) == ("", Settings().trace_ratio)
    (url,) = re.findall(r"DMLSERVE_OTLP_ENDPOINT=(\S+) docker compose --profile observe up", README)
    assert f"DMLSERVE_OTLP_ENDPOINT={url} docker compose --profile observe up" in (ROOT / "compose.yaml").read_text()
    assert environment(DMLSERVE_OTLP_ENDPOINT=url)["DMLSERVE_OTLP_ENDPOINT"] == url
    tracing.check(Settings(otlp_endpoint=url))
    collector = yaml.safe_load((OBSERVE / "collector.yaml").read_text())
    port = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]
    assert url == f"http://otel-collector:{port}"
    assert "otel-collector" in SERVICES


def environment(**given: str) -> dict[str, str]:
    """What both services are told."""
    services = compose("--profile", "scaled", **given)["services"]
    told = [services[name]["environment"] for name in ("dmlserve", "dmlserve-replica")]
    return {name: value for name, value in told[0].items() if told[1][name] == value}


def test_traces_reach_their_store() -> None:
    collector, tempo = [yaml.safe_load((OBSERVE / each).read_text()) for each in ("collector.yaml", "tempo.yaml")]
    (pipeline,) = collector["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert pipeline[kind] == list(collector[kind])
    (exporter,) = collector["exporters"].values()
    host, _, port = exporter["endpoint"].partition(":")
    assert host in SERVICES
    assert tempo["distributor"]["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].endswith(f":{port}")
    sources = yaml.safe_load((OBSERVE / "grafana" / "datasources" / "sources.yaml").read_text())["datasources"]
    assert {httpx.URL(each["url"]).host for each in sources} == {"prometheus", "tempo"} <= SERVICES.keys()
    asked = {target["datasource"]["uid"] for panel in DASHBOARD["panels"] for target in panel["targets"]}
    assert asked == {"prometheus"} <= {each["uid"] for each in sources}
    assert str(tempo["server"]["http_listen_port"]) == sources[1]["url"].rpartition(":")[2]


@needs_haproxy
def test_every_query_names_metrics_that_there_are(front: Front) -> None:
    for replica in front.replicas:
        with httpx.Client(base_url=replica.url, timeout=30) as client:
            told = keep(client, biased())
            dispatch(client, told["id"], x=X)
            text = client.get("/metrics").text
            client.delete(f"/v1/graphs/{told['id']}")
    known: dict[str, set[str] | None] = {"up": set()}
    known |= exposed(text) | exposed(httpx.get(f"{front.haproxy.numbers}/metrics").text)
    asked = [each for query in queries() for each in selectors(query)]
    assert len({name for name, _ in asked}) > 20
    for name, labels in asked:
        assert name in known, name
        has = known[name]
        if has is not None:
            assert labels - {"instance", "job"} <= has, name


def test_what_a_query_names_is_found() -> None:
    query = 'topk(10, sum by (a, le) (rate(x_total{b="c, d=e", f!~"g"}[5m]))) / sum(y) > 0.5 * z{i="j"}'
    assert [*selectors(query)] == [("x_total", {"a", "le", "b", "f"}), ("y", {"a", "le"}), ("z", {"a", "le", "i"})]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_rules_alert(tmp_path: Path) -> None:
    def series(name: str, values: str) -> dict[str, str]:
        return {"series": name, "values": values}

    alerts = {
        "DmlserveDown": [series('up{job="dmlserve", instance="a"}', "0x40")],
        "DmlserveNotReady": [series('dmlserve_ready{instance="a"}', "0x40")],
        "DmlserveFails": [
            series('dmlserve_http_requests_total{instance="a", status="200"}', "0+90x40"),
            series('dmlserve_http_requests_total{instance="a", status="500"}', "0+2x40"),
        ],
        "DmlserveRefuses": [
            series('dmlserve_http_requests_total{instance="a", status="200"}', "0+90x40"),
            series('dmlserve_http_requests_total{instance="a", status="503"}', "0+10x40"),
        ],
        "DmlserveQueueIsLong": [series('dmlserve_queue_depth{instance="a"}', "60x40")],
        "DmlserveRestarts": [series('dmlserve_start_time_seconds{instance="a"}', "1+1x40")],
        "HaproxyHasNoReplica": [series('haproxy_backend_active_servers{proxy="replicas", instance="a"}', "0x40")],
    }
    test = {
        "rule_files": [str(OBSERVE / "alerts.yaml")],
        "tests": [
            {
                "interval": "1m",
                "input_series": given,
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": "30m",
                        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}],
                    }
                ],
            }
            for name, given in alerts.items()
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    command = ["promtool", "test", "rules", "test.yaml"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
