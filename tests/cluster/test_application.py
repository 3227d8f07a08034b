"""What the application for Ray Serve does before there is a cluster."""

import asyncio
import importlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from app.engine.graph_entries import LocalEntries
from app.engine.service import State
from app.settings import Settings, Unusable


@pytest.fixture(scope="module")
def cluster() -> Any:
    """Imported by who runs these tests, and not by each of pytest's processes that collects them: Ray Serve takes two
    seconds."""
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install '.[ray]'")
    return importlib.import_module("app.cluster")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"max_body_byte": 1 << 20}, "no setting max_body_byte"),
        ({"workers": 2}, "workers means nothing to a replica"),
        ({"port": 8001}, "port means nothing to a replica"),
        ({"threads": 0}, "threads"),
    ],
)
def test_settings_that_cannot_be_are_refused_where_it_is_deployed(
    cluster: Any, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises((Unusable, ValueError), match=says):
        cluster.application(arguments)


def test_settings_of_a_replica_are_those_that_a_replica_has(cluster: Any) -> None:
    """What the server of `dmlserve serve` does, its process and its log, Ray Serve does in its own way."""
    refused = set()
    for name, field in Settings.model_fields.items():
        try:
            cluster.application({name: field.get_default(call_default_factory=True)})
        except Unusable:
            refused.add(name)
    assert refused == {
        *("host", "port", "workers", "shared_memory", "access_log", "log_level", "log_format", "log_file"),
        *("max_connections", "max_header_bytes", "keep_alive_seconds", "header_seconds", "send_seconds"),
        *("drain_seconds", "shutdown_seconds"),
    }


@pytest.mark.parametrize(
    ("granted", "given", "threads", "gpus"),
    [
        ({"CPU": 3.0}, {}, 3, "none"),
        ({"CPU": 0.5}, {}, 1, "none"),
        ({}, {}, 1, "none"),
        ({"CPU": 3.0, "GPU": 1.0}, {}, 3, "all"),
        ({"CPU": 3.0}, {"threads": 2, "gpus": "all"}, 2, "all"),
    ],
)
def test_a_replica_computes_on_what_it_was_granted(
    cluster: Any,
    monkeypatch: pytest.MonkeyPatch,
    granted: dict[str, float],
    given: dict[str, Any],
    threads: int,
    gpus: str,
) -> None:
    """If its settings say nothing else, nor the environment."""
    context = SimpleNamespace(
        get_assigned_resources=lambda: granted, get_accelerator_ids=lambda: {"GPU": ["0"] * int(granted.get("GPU", 0))}
    )
    made: list[Settings] = []

    class Made(Exception):
        pass

    def service(settings: Settings, _: object) -> None:
        made.append(settings)
        raise Made

    monkeypatch.setattr("app.cluster.ray.get_runtime_context", lambda: context)
    monkeypatch.setattr("app.cluster.serve.get_replica_context", lambda: SimpleNamespace(app_name="one"))
    monkeypatch.setattr("app.cluster.ClusterEntries", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr("app.cluster.Service", service)
    with pytest.raises(Made):
        cluster.Replica(given)
    monkeypatch.setenv("DMLSERVE_THREADS", "7")
    with pytest.raises(Made):
        cluster.Replica(given)
    assert [each.threads for each in made] == [threads, given.get("threads", 7)]
    assert [(each.gpus, each.access_log) for each in made] == [(gpus, False)] * 2


def test_a_replica_reads_its_keys_again_when_their_file_changes(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A key that is taken back lets nobody in, though no replica is replaced."""
    context = SimpleNamespace(get_assigned_resources=lambda: {"CPU": 1.0}, get_accelerator_ids=dict)
    entries = LocalEntries()
    monkeypatch.setattr(entries, "close", lambda: None, raising=False)
    monkeypatch.setattr("app.cluster.ray.get_runtime_context", lambda: context)
    monkeypatch.setattr("app.cluster.serve.get_replica_context", lambda: SimpleNamespace(app_name="one"))
    monkeypatch.setattr("app.cluster.ClusterEntries", lambda *_: entries)
    file = tmp_path / "keys"
    file.write_text("key-one\n")
    application = cluster.Replica({"api_keys_file": str(file)}).__serve_build_asgi_app__()

    async def statuses() -> list[int]:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://replica") as client:
            headers = [{"authorization": f"Bearer {key}"} for key in ("key-one", "key-two")]
            return [(await client.get("/v1/operators/ACTIVATION_CELU", headers=each)).status_code for each in headers]

    assert asyncio.run(statuses()) == [200, 401]
    file.write_text("key-two name=second\n")
    end = time.monotonic() + 60
    while asyncio.run(statuses()) != [401, 200]:
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("state", State)
def test_a_replica_is_healthy_when_it_is_ready(cluster: Any, state: State) -> None:
    replica = cluster.Replica.__new__(cluster.Replica)
    replica._service = SimpleNamespace(state=state)
    if state is State.READY:
        replica.check_health()
    else:
        with pytest.raises(RuntimeError, match=state):
            replica.check_health()
