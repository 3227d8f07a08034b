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
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
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


def test_haproxy_notices_in_time_and_not_too_soon() -> None:
    """A replica that drains is left before it closes; one that gets no processor for some seconds is kept."""
    text = (ROOT / "docker" / "haproxy" / "haproxy.cfg").read_text()

    def seconds(name: str) -> float:
        (found,) = re.findall(rf"(?<!\w){name} (\d+)(ms|s)", text)
        return int(found[0]) / {"ms": 1000, "s": 1}[found[1]]

    (fall,) = re.findall(r" fall (\d+) ", text)
    noticed = seconds("inter") + (int(fall) - 1) * seconds("fastinter")
    assert noticed < float(SERVICES["dmlserve-replica"]["environment"]["DMLSERVE_DRAIN_SECONDS"]) / 2
    assert int(fall) * seconds("timeout check") > 5 * seconds("inter")


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


def test_every_metric_has_its_panel() -> None:
    """Those of the table, which another test compares with what the service shows."""
    table = (ROOT / "app" / "http" / "telemetry" / "metrics.md").read_text()
    metrics = re.findall(r"^\| `(dmlserve_\w+)` \| (\w+) ", table, re.MULTILINE)
    assert len(metrics) > 40
    shown = {name for panel in DASHBOARD["panels"] for each in panel["targets"] for name, _ in selectors(each["expr"])}
    for name, kind in metrics:
        assert any(each.startswith(name) for each in shown) if kind == "histogram" else name in shown, name
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in DASHBOARD["panels"]]
    assert len({*places}) == len(places) == len({each["id"] for each in DASHBOARD["panels"]})


def test_grafana_knows_all_that_the_dashboard_says() -> None:
    """By Grafana's own schema: what it has no field for is not there any more when the dashboard was read."""
    register_default_plugins()
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))
    assert [*lost(DASHBOARD, read)] == []
    (panel, *_) = DASHBOARD["panels"]
    odd = DASHBOARD | {"panels": [panel | {"tilte": "x"}]}
    assert [*lost(odd, json.loads(JSONEncoder().encode(Dashboard.from_json(odd))))] == ["/panels/0/tilte"]


def lost(given: Any, read: Any, where: str = "") -> Iterator[str]:
    """What is in `given` and not in `read`, or otherwise."""
    if isinstance(given, dict | list) and isinstance(read, type(given)):
        for name, each in given.items() if isinstance(given, dict) else enumerate(given):
            is_there = name in read if isinstance(read, dict) else len(read) == len(given)
            yield from lost(each, read[name], f"{where}/{name}") if is_there else [f"{where}/{name}"]
    elif given != read:
        yield where


def test_what_a_query_names_is_found() -> None:
    query = 'topk(10, sum by (a, le) (rate(x_total{b="c, d=e", f!~"g"}[5m]))) / sum(y) > 0.5 * z{i="j"}'
    assert [*selectors(query)] == [("x_total", {"a", "le", "b", "f"}), ("y", {"a", "le"}), ("z", {"a", "le", "i"})]


needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def promtool(folder: Path, *arguments: str, text: str = "") -> str:
    done = subprocess.run(["promtool", *arguments], check=False, cwd=folder, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_promtool
def test_metrics_have_names_by_prometheus_rules(client: httpx.Client, tmp_path: Path) -> None:
    """Units are suffixes, counters end in _total, and all have a help text."""
    assert promtool(tmp_path, "check", "metrics", text=client.get("/metrics").text) == ""


@needs_promtool
def test_prometheus_reads_its_configuration_and_every_query(tmp_path: Path) -> None:
    """The dashboard's queries are read as rules; what Grafana puts in place of $__rate_interval is a duration."""
    checked = promtool(OBSERVE, "check", "config", "--syntax-only", "prometheus.yaml")
    assert "prometheus.yaml is valid" in checked
    shown = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "1m")}
        for number, query in enumerate(queries())
    ]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": shown}]}))
    assert f"{len(shown)} rules found" in promtool(tmp_path, "check", "rules", "queries.yaml")


ALERTS = {
    "DmlserveDown": {'up{job="dmlserve", instance="a"}': "0x40"},
    "DmlserveIsGone": {},
    "DmlserveNotReady": {'dmlserve_ready{instance="a"}': "0x40"},
    "DmlserveFails": {
        'dmlserve_http_requests_total{instance="a", status="200"}': "0+90x40",
        'dmlserve_http_requests_total{instance="a", status="500"}': "0+2x40",
    },
    "DmlserveRefuses": {
        'dmlserve_http_requests_total{instance="a", status="200"}': "0+90x40",
        'dmlserve_http_requests_total{instance="a", status="503"}': "0+10x40",
    },
    "DmlserveSlow": {
        'dmlserve_dispatch_queue_seconds_bucket{instance="a", device="cpu", le="1.0"}': "0+98x40",
        'dmlserve_dispatch_queue_seconds_bucket{instance="a", device="cpu", le="+Inf"}': "0+100x40",
        'dmlserve_dispatch_queue_seconds_bucket{instance="a", device="cpu", le="2.5"}': "0+100x40",
    },
    "DmlserveQueueIsLong": {'dmlserve_queue_depth{instance="a"}': "60x40"},
    "DmlserveMemoryIsShort": {'dmlserve_memory_bytes{instance="a"}': "2000000000x40"},
    "DmlserveMissesDeadlines": {
        'dmlserve_http_requests_total{instance="a", status="200"}': "0+900x40",
        'dmlserve_rejections_total{instance="a", reason="deadline"}': "0+1x40",
    },
    "DmlserveKeepsCompiling": {'dmlserve_kernels_compiled_total{instance="a", compiler="llvm"}': "0+15x40"},
    "DmlserveGpuFailed": {'dmlserve_gpu_in_service{instance="a", device="cuda:0"}': "0x40"},
    "DmlserveFallsBack": {'dmlserve_fallbacks_total{instance="a", device="cuda:0", cause="memory"}': "0+1x40"},
    "DmlserveRestarts": {'dmlserve_start_time_seconds{instance="a"}': "1+1x40"},
    "DmlserveRefusesConnections": {'dmlserve_connections_refused_total{instance="a"}': "0+1x40"},
    "DmlserveDropsLogLines": {'dmlserve_log_lines_dropped_total{instance="a"}': "0+1x40"},
    "HaproxyHasNoReplica": {'haproxy_backend_active_servers{proxy="replicas", instance="a"}': "0x40"},
    "HaproxyAsksAgain": {'haproxy_backend_redispatch_warnings_total{proxy="replicas", instance="a"}': "0+120x40"},
}
"""Of each alert what sets it off, a value a minute, beside a service that is up."""

QUIET = {
    'up{job="dmlserve", instance="a"}': "1x40",
    'dmlserve_ready{instance="a"}': "1x40",
    'dmlserve_http_requests_total{instance="a", status="200"}': "0+1000x40",
    'dmlserve_http_requests_total{instance="a", status="422"}': "0+900x40",
    'dmlserve_http_requests_total{instance="a", status="500"}': "0+1x40",
    'dmlserve_http_requests_total{instance="a", status="503"}': "0+40x40",
    'dmlserve_dispatch_queue_seconds_bucket{instance="a", device="cpu", le="1.0"}': "0+100x40",
    'dmlserve_dispatch_queue_seconds_bucket{instance="a", device="cpu", le="+Inf"}': "0+100x40",
    'dmlserve_queue_depth{instance="a"}': "40x40",
    'dmlserve_memory_bytes{instance="a"}': "1900000000x40",
    'dmlserve_rejections_total{instance="a", reason="deadline"}': "0+1x40",
    'dmlserve_kernels_compiled_total{instance="a", compiler="llvm"}': "0+10x40",
    'dmlserve_gpu_in_service{instance="a", device="cuda:0"}': "1x40",
    'dmlserve_fallbacks_total{instance="a", device="cuda:0", cause="memory"}': "7x40",
    'dmlserve_start_time_seconds{instance="a"}': "1x20 2x20",
    'dmlserve_connections_refused_total{instance="a"}': "7x40",
    'dmlserve_log_lines_dropped_total{instance="a"}': "7x40",
    'haproxy_backend_active_servers{proxy="replicas", instance="a"}': "1x40",
    'haproxy_backend_redispatch_warnings_total{proxy="replicas", instance="a"}': "0+30x40",
}
"""What sets off none: much is refused that clients got wrong, little for want of room, and a replica was replaced."""


@needs_promtool
def test_each_alert_is_set_off_and_quiet_else(tmp_path: Path) -> None:
    assert ALERTS.keys() == {rule["alert"] for rule in rules()}

    def tried(given: dict[str, str], *names: str) -> dict[str, Any]:
        expected = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names]
        firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
        return {
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in given.items()],
            "promql_expr_test": [{"expr": firing, "eval_time": "30m", "exp_samples": expected}],
        }

    is_up = {'up{job="dmlserve", instance="b"}': "1x40"}
    tests = [tried(given | is_up if given else {}, name) for name, given in ALERTS.items()]
    test = {"rule_files": [str(OBSERVE / "alerts.yaml")], "tests": [*tests, tried(QUIET)]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    promtool(tmp_path, "test", "rules", "test.yaml")
