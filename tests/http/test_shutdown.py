"""SIGTERM: no new dispatches, what runs is answered, exit status 0."""

import signal
import time

import httpx
import numpy as np
import pytest

from tests.conftest import RunningServer, ServerFactory
from tests.http.load import ENDLESS, ENDLESS_SETTINGS, NOT_BRIEF, admitted, slow_dispatch, start, wait_for, wait_until
from tests.http.refusals import refusal_of
from tests.http.wire import JSON, connection, header, length
from tests.messages import CELU, output_of, post_json, request

SMALL = request(CELU, {"InputTensor": np.array([1, 2, 3], np.float32)})
QUEUED = slow_dispatch(NOT_BRIEF)
"""Just large enough to be handed to a worker, and sent in a moment."""
SECONDS = 60.0


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_exits_with_0(start_server: ServerFactory, signal_number: signal.Signals) -> None:
    running = start_server()
    with httpx.Client(base_url=running.url) as client:
        output_of(post_json(client, SMALL))  # and keeps the connection open
        running.process.send_signal(signal_number)
        assert running.process.wait(SECONDS) == 0
    assert "Traceback" not in running.log.read_text()


def test_what_runs_and_what_waits_is_answered(start_server: ServerFactory) -> None:
    running = start_server("--threads", "1", "--no-llvm")
    elements = 8 << 20
    with (
        httpx.Client(base_url=running.url) as client,
        connection(running) as first,
        connection(running) as second,
    ):
        start(first, slow_dispatch(elements))
        wait_until(lambda: admitted(client) == 1)
        start(second, QUEUED)
        wait_until(lambda: admitted(client) == 2)
        running.process.send_signal(signal.SIGTERM)
        assert output_of(first.receive()).size == elements
        assert output_of(second.receive()).size == NOT_BRIEF
        assert first.is_closed()
    assert running.process.wait(SECONDS) == 0


def drain(running: RunningServer, client: httpx.Client) -> None:
    """Send SIGTERM and wait until it is noticed."""
    running.process.send_signal(signal.SIGTERM)
    wait_until(lambda: bool(client.get("/health/ready").status_code == 503))


def test_while_draining_the_rest_is_answered(start_server: ServerFactory) -> None:
    """Load balancers see that the service is not ready; new dispatches are sent elsewhere."""
    running = start_server(*ENDLESS_SETTINGS, "--drain-seconds", "1000")
    with (
        httpx.Client(base_url=running.url, timeout=SECONDS) as client,
        connection(running) as busy,
        connection(running) as slow,
    ):
        assert client.get("/health/ready").json()["status"] == "ready"
        body = post_json(client, SMALL).request.content
        slow.send(header(JSON, length(len(body))), body[:-1])
        start(busy, ENDLESS)
        wait_for(client, "running_dispatches", 1)
        drain(running, client)

        ready = client.get("/health/ready")
        assert ready.json()["status"] == "draining"
        assert int(ready.headers["retry-after"]) > 0
        refused = post_json(client, SMALL)
        assert "shutting down" in refusal_of(refused, 503)["detail"]
        assert int(refused.headers["retry-after"]) > 0

        refusal_of(slow.ask(body[-1:]), 503)  # although it began before

        assert client.get("/health/live").json()["status"] == "draining"
        assert client.get("/v1/capabilities").json()["state"] == "draining"
        assert client.get("/v1/operators").status_code == 200
        assert "\ndmlserve_ready 0.0\n" in client.get("/metrics").text

        running.process.send_signal(signal.SIGTERM)  # the second one does not wait
        assert running.process.wait(SECONDS) == 0


def test_the_drain_ends(start_server: ServerFactory) -> None:
    running = start_server("--drain-seconds", "0.5")
    began = time.monotonic()
    assert running.stop(SECONDS) == 0
    assert time.monotonic() - began >= 0.5


def test_what_does_not_end_in_time_is_dropped(start_server: ServerFactory) -> None:
    running = start_server(*ENDLESS_SETTINGS, "--shutdown-seconds", "1")
    with httpx.Client(base_url=running.url) as client, connection(running) as busy:
        start(busy, ENDLESS)
        wait_for(client, "running_dispatches", 1)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(SECONDS) == 0
