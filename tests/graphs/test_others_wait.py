"""Who changes what other processes know may wait for these: requests beside it do not, and its client is told."""

import asyncio
from collections.abc import Iterator
from threading import Event, get_ident
from types import SimpleNamespace
from typing import Any

import httpx
import msgpack
import pytest

from app import main
from app.engine.cluster_entries import KeeperSilent
from app.engine.graph_entries import LocalEntries
from app.engine.service import DeadlineExceeded, Service
from app.http.core.asgi import Application
from app.http.core.keys import Keys
from app.http.server.limit import ConnectionLimit
from app.settings import Settings
from tests.graphs.requests import biased

SECONDS = 30.0


class WaitingEntries(LocalEntries):
    """To remove one waits for others."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = Event()

    def remove(self, id_: str) -> bool:
        assert self.go_on.wait(SECONDS), "nothing else went on"
        return super().remove(id_)


@pytest.fixture
def entries() -> WaitingEntries:
    return WaitingEntries()


@pytest.fixture
def service(entries: WaitingEntries) -> Iterator[Service]:
    made = Service(Settings(threads=1, gpus="none"), entries)
    made.open()
    yield made
    made.close()


def client(service: Service) -> httpx.AsyncClient:
    app = main.create_app(service.settings, service, ConnectionLimit())
    application: Any = Application(main.handler_of(app, service.settings, Keys("", "")), app)
    return httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://service")


async def keep(asking: httpx.AsyncClient) -> httpx.Response:
    content = msgpack.packb({"graph": biased(), "name": "biased"})
    return await asking.post("/v1/graphs", content=content, headers={"Content-Type": "application/msgpack"})


def test_others_are_answered_while_one_is_dropped(service: Service, entries: WaitingEntries) -> None:
    async def ask() -> None:
        async with client(service) as asking:
            id_ = (await keep(asking)).json()["id"]
            dropping = asyncio.create_task(asking.delete(f"/v1/graphs/{id_}"))
            await asyncio.sleep(0.05)
            assert (await asking.get("/health/live")).status_code == 200
            assert not dropping.done()
            entries.go_on.set()
            assert (await dropping).status_code == 204

    asyncio.run(ask())


def test_others_are_answered_while_idle_ones_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_TENDED_SECONDS", 0)
    by: list[int] = []

    async def tend() -> None:
        tended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def note() -> None:
            by.append(get_ident())
            loop.call_soon_threadsafe(tended.set)

        service: Any = SimpleNamespace(graphs=SimpleNamespace(tend=note), placement=SimpleNamespace(tend=note))
        tending = asyncio.create_task(main._tend(service))
        await asyncio.wait_for(tended.wait(), SECONDS)
        tending.cancel()

    asyncio.run(tend())
    assert get_ident() not in by


@pytest.mark.parametrize(
    ("tended", "error", "logged"),
    [
        ("graphs", KeeperSilent(), []),
        ("graphs", ZeroDivisionError(), ["The kept graphs cannot be looked after"]),
        ("placement", ZeroDivisionError(), ["The memory of GPUs cannot be looked after"]),
    ],
)
def test_what_fails_is_looked_after_another_time(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tended: str,
    error: Exception,
    logged: list[str],
) -> None:
    """That the keeper of a cluster is silent has been told by who asks it all the time."""
    monkeypatch.setattr(main, "_TENDED_SECONDS", 0)

    async def tend() -> None:
        loop, left, again = asyncio.get_running_loop(), [error], asyncio.Event()

        def fails_first() -> None:
            if left:
                raise left.pop()
            loop.call_soon_threadsafe(again.set)

        monkeypatch.setattr(getattr(service, tended), "tend", fails_first)
        tending = asyncio.create_task(main._tend(service))
        await asyncio.wait_for(again.wait(), SECONDS)
        tending.cancel()

    asyncio.run(tend())
    assert caplog.messages == logged


@pytest.mark.parametrize("error", [KeeperSilent(), DeadlineExceeded()])
def test_who_cannot_know_whether_it_is_kept_is_told_so(
    service: Service, monkeypatch: pytest.MonkeyPatch, error: DeadlineExceeded
) -> None:
    """And to send it again is safe."""
    add = LocalEntries.add

    def add_and_fail(*given: Any) -> None:
        add(*given)
        raise error

    async def ask() -> None:
        async with client(service) as asking:
            with monkeypatch.context() as patched:
                patched.setattr(LocalEntries, "add", add_and_fail)
                response = await keep(asking)
            assert response.status_code == 504
            problem = response.json()
            assert problem["type"] == "/errors#deadline"
            assert problem["detail"] == f"{error} The graph may be kept by now; to send it again does no harm."
            (kept,) = (await asking.get("/v1/graphs")).json()
            again = await keep(asking)
            assert (again.status_code, again.json()["id"]) == (200, kept["id"])

    asyncio.run(ask())


def test_a_keeper_that_is_silent_is_told_of(
    service: Service, entries: WaitingEntries, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_silent(_: str) -> bool:
        raise KeeperSilent

    async def ask() -> None:
        async with client(service) as asking:
            id_ = (await keep(asking)).json()["id"]
            monkeypatch.setattr(entries, "remove", is_silent)
            response = await asking.delete(f"/v1/graphs/{id_}")
            assert response.status_code == 504
            assert response.json()["detail"] == str(KeeperSilent())

    asyncio.run(ask())
