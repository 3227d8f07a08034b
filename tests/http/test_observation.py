"""What is noted of each request: its id, a line in the log, metrics."""

import json
import re
from datetime import datetime
from typing import Any

import httpx
import numpy as np
import pytest

from tests.conftest import RunningServer, ServerFactory, ours_only
from tests.http.load import metric, series, wait_until
from tests.http.refusals import refusal_of
from tests.http.wire import CHUNKED, connection, header
from tests.messages import CELU, output_of, post_json, post_msgpack, request

SMALL = request(CELU, {"InputTensor": np.array([1, 2, 3], np.float32)})
ID = "X-Request-ID"
OPENMETRICS = "application/openmetrics-text"


class TestRequestId:
    def test_is_made(self, client: httpx.Client) -> None:
        ids = {client.get("/health/live").headers[ID] for _ in range(10)}
        assert len(ids) == 10
        assert all(re.fullmatch(r"[0-9a-f]{32}", each) for each in ids)

    @pytest.mark.parametrize("given", ["a", "0b5f-42", "~!@#$%^&*(){}", "x" * 128])
    def test_is_taken(self, client: httpx.Client, given: str) -> None:
        assert client.get("/health/live", headers={ID: given}).headers[ID] == given

    @pytest.mark.parametrize("given", [b"", b"two words", b"x" * 129, b"\xe4", b"tab\there", b"\x80\xff"])
    def test_is_made_where_the_given_one_will_not_do(self, client: httpx.Client, given: bytes) -> None:
        answered = client.get("/health/live", headers=[(ID.encode(), given)]).headers[ID]
        assert re.fullmatch(r"[0-9a-f]{32}", answered)

    def test_is_made_where_two_are_given(self, client: httpx.Client) -> None:
        answered = client.get("/health/live", headers=[(ID, "a"), (ID, "b")]).headers[ID]
        assert re.fullmatch(r"[0-9a-f]{32}", answered)

    @pytest.mark.parametrize(
        ("method", "path", "headers", "status"),
        [
            ("GET", "/nowhere", {}, 404),
            ("PUT", "/v1/dispatch", {}, 405),
            ("POST", "/v1/dispatch", {"accept": "text/html"}, 406),
            ("POST", "/v1/dispatch", {}, 415),
            ("POST", "/v1/dispatch", {"content-type": "application/json"}, 400),
            ("GET", "/docs", {}, 200),
            ("GET", "/openapi.json", {}, 200),
            ("GET", "/metrics", {}, 200),
            ("GET", "/v1/operators/", {}, 404),
        ],
    )
    def test_is_on_every_answer(
        self, client: httpx.Client, method: str, path: str, headers: dict[str, str], status: int
    ) -> None:
        response = client.request(method, path, headers=headers | {ID: "mine"})
        assert response.status_code == status
        assert response.headers.get_list(ID) == ["mine"]


def lines_of(server: RunningServer) -> list[dict[str, Any]]:
    *lines, _ = server.log.read_text().split("\n")  # what follows the last end of line is still being written
    return [json.loads(line) for line in lines]


def line_about(server: RunningServer, request_id: str) -> dict[str, Any]:
    """The line of a request, which comes right after its answer."""
    wait_until(lambda: f'"{request_id}"' in server.log.read_text().rpartition("\n")[0])
    (line,) = [line for line in lines_of(server) if line.get("request_id") == request_id]
    return line


class TestLog:
    def test_of_a_dispatch(self, server: RunningServer, client: httpx.Client) -> None:
        response = post_msgpack(client, SMALL)
        line = line_about(server, response.headers[ID])
        assert datetime.fromisoformat(line.pop("time")).tzinfo
        assert 0 < line.pop("seconds") < 60
        assert line == {
            "level": "INFO",
            "logger": "app.request",
            "message": "POST /v1/dispatch 200",
            "request_id": response.headers[ID],
            "client": "127.0.0.1",
            "key": None,
            "method": "POST",
            "path": "/v1/dispatch",
            "status": 200,
            "request_bytes": len(response.request.content),
            "response_bytes": len(response.content),
            "operator": CELU,
            "device": "numpy",
        }

    def test_of_a_refusal(self, server: RunningServer, client: httpx.Client) -> None:
        response = client.get("/nowhere", headers={ID: "refusal-1"})
        line = line_about(server, "refusal-1")
        assert (line["status"], line["operator"], line["device"]) == (404, None, None)
        assert line["response_bytes"] == len(response.content)

    def test_of_what_has_no_body(self, server: RunningServer, client: httpx.Client) -> None:
        length = client.head("/v2", headers={ID: "head-1"}).headers["content-length"]
        assert (int(length) > 0, line_about(server, "head-1")["response_bytes"]) == (True, 0)

    def test_is_one_object_a_line_whatever_is_asked(self, server: RunningServer, client: httpx.Client) -> None:
        for number, path in enumerate(("/a%0a%22%7d", "/%ff%fe", "/%e2%80%a8", "/%1b[31m")):
            client.get(path, headers={ID: f"forged-{number}"})
            assert line_about(server, f"forged-{number}")["message"] == f"GET {path} 404"

    def test_all_lines_have_one_form(self, server: RunningServer, client: httpx.Client) -> None:
        client.get("/nowhere", headers={ID: "form-1"})
        line_about(server, "form-1")
        lines = lines_of(server)
        assert {"app", "app.request", "uvicorn.error"} <= {line["logger"] for line in lines}
        for line in lines:
            assert list(line)[:4] == ["time", "level", "logger", "message"]
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"])

    @ours_only
    def test_of_a_request_that_breaks_http(self, server: RunningServer) -> None:
        def refusals() -> int:
            return sum(line["level"] == "WARNING" and "400" in line["message"] for line in lines_of(server))

        before = refusals()
        with connection(server) as broken:
            assert broken.ask(b"NONSENSE\r\n\r\n").status_code == 400
        wait_until(lambda: refusals() > before)  # lines are written by a thread of their own, after the answer

    @ours_only
    @pytest.mark.parametrize(
        ("sent", "status", "method", "path"),
        [
            (b"NONSENSE\r\n\r\n", 400, "-", "-"),
            (b"GET /a%20b?secret=1 HTTP/1.1\r\n\r\n", 400, "GET", "/a%20b"),
            (header(b"Host: another", path=b"/v2/a"), 400, "POST", "/v2/a"),
            (header(b"X: " + b"x" * (1 << 16), path=b"/b"), 431, "POST", "/b"),
            (header(CHUNKED, path=b"/v1/dispatch") + b"x\r\n", 400, "POST", "/v1/dispatch"),
        ],
    )
    def test_is_of_what_is_no_request_too(
        self, server: RunningServer, sent: bytes, status: int, method: str, path: str
    ) -> None:
        with connection(server) as broken:
            answer = broken.ask(sent)
        assert answer.status_code == status
        line = line_about(server, answer.headers[ID])
        assert (line["status"], line["method"], line["path"], line["client"]) == (status, method, path, "127.0.0.1")
        assert line["response_bytes"] == len(answer.content)

    def test_as_text(self, start_server: ServerFactory) -> None:
        running = start_server("--log-format", "text", DMLSERVE_DEADLINE_SECOND="5", dmlserve_api_key="not-to-be-told")
        with httpx.Client(base_url=running.url) as client:
            client.get("/a%0aforged", headers={ID: "text-1"})
            client.headers[ID] = "text-2"
            post_json(client, SMALL)
        wait_until(lambda: "text-2" in running.log.read_text())
        told = [line.partition("app.request: ")[2] for line in running.log.read_text().splitlines()]
        assert re.fullmatch(r"GET /a%0aforged 404 in \d+\.\d\d ms, id text-1", told[-2])
        assert re.fullmatch(r"POST /v1/dispatch 200 in \d+\.\d\d ms, ACTIVATION_CELU on numpy, id text-2", told[-1])
        strange = [line for line in running.log.read_text().splitlines() if "no setting's" in line]
        assert [line.partition("WARNING app: ")[2] for line in strange] == [
            "The variable DMLSERVE_DEADLINE_SECOND is no setting's. Did you mean DMLSERVE_DEADLINE_SECONDS?",
            "The variable dmlserve_api_key is no setting's. Did you mean DMLSERVE_API_KEYS?",
        ]
        assert "not-to-be-told" not in running.log.read_text()
        form = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO   |WARNING) [\w.]+: .+")
        for line in running.log.read_text().splitlines():
            assert form.fullmatch(line), line

    @ours_only
    def test_as_text_is_for_no_terminal_to_obey(self, start_server: ServerFactory) -> None:
        """What a client sends begins no line, and tells nothing to who looks at the log."""
        running = start_server("--log-format", "text")
        with connection(running) as broken:
            assert broken.ask(b"GET / HTTP/1.1\r\nHost: a\x85\x9b2J\r\n\r\n").status_code == 400
        wait_until(lambda: "Host is" in running.log.read_text())
        assert "Refused a request: 400 Host is a\\x85\\x9b2J; send" in running.log.read_text()

    def test_without_requests(self, start_server: ServerFactory) -> None:
        running = start_server("--no-access-log")
        with httpx.Client(base_url=running.url) as client:
            output_of(post_json(client, SMALL))
            assert metric(client, "dispatches_total", operator=CELU, device="numpy") == 1
        assert running.stop() == 0
        assert "/v1/dispatch" not in running.log.read_text()

    def test_of_the_start(self, server: RunningServer) -> None:
        (line,) = [line for line in lines_of(server) if "ready on" in line["message"]]
        assert "NumPy" in line["message"]


class TestMetrics:
    def test_format(self, client: httpx.Client) -> None:
        response = client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=")
        text = response.text
        for name, kind in {
            "http_requests_total": "counter",
            "http_request_duration_seconds": "histogram",
            "http_request_size_bytes": "histogram",
            "http_response_size_bytes": "histogram",
            "dispatches_total": "counter",
            "log_lines_dropped_total": "counter",
            "dispatch_queue_seconds": "histogram",
            "dispatch_compute_seconds": "histogram",
            "queue_depth": "gauge",
            "running_dispatches": "gauge",
            "memory_bytes": "gauge",
            "ready": "gauge",
            "start_time_seconds": "gauge",
        }.items():
            assert f"# TYPE dmlserve_{name} {kind}\n" in text

    @pytest.mark.parametrize(
        ("accept", "kind"),
        [
            # Prometheus' own, by default and where a scrape config prefers its text format.
            ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", OPENMETRICS),
            ("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;version=1.0.0;q=0.3,*/*;q=0.1", "text/plain"),
            ("application/openmetrics-text;q=0, */*", "text/plain"),
            ("application/openmetrics-text", OPENMETRICS),
            ("application/json", "text/plain"),
        ],
    )
    def test_are_in_the_format_that_is_liked_best(self, client: httpx.Client, accept: str, kind: str) -> None:
        response = client.get("/metrics", headers={"accept": accept})
        assert response.headers["content-type"].startswith(f"{kind}; ")
        assert response.text.endswith("# EOF\n") is (kind == OPENMETRICS)

    def test_count_what_happens(self, client: httpx.Client) -> None:
        def requests(route: str, method: str, status: int) -> str:
            return f'http_requests_total{{method="{method}",route="{route}",status="{status}"}}'

        on_numpy = f'{{device="numpy",operator="{CELU}"}}'
        before = series(client)
        for _ in range(3):
            response = post_msgpack(client, SMALL)
            output_of(response)
        for _ in range(2):
            refusal_of(client.post("/v1/dispatch"), 415)
        client.get("/v1/operators/ACTIVATION_CELU")
        client.get("/v1/operators/ACTIVATION_HARD_SIGMOID")

        def grown(name: str) -> float:
            return series(client).get(name, 0) - before.get(name, 0)

        wait_until(lambda: grown(requests("/v1/operators/{Type}", "GET", 200)) == 2)
        assert grown(requests("/v1/dispatch", "POST", 200)) == 3
        assert grown(requests("/v1/dispatch", "POST", 415)) == 2
        assert grown(f"dispatches_total{on_numpy}") == 3
        assert grown(f"dispatch_compute_seconds_count{on_numpy}") == 3
        assert grown(f"dispatch_compute_seconds_sum{on_numpy}") > 0
        assert grown('dispatch_queue_seconds_count{device="numpy"}') == 3
        assert grown('http_request_duration_seconds_count{route="/v1/dispatch"}') == 5
        received = grown('http_request_size_bytes_sum{route="/v1/dispatch"}')
        assert received == 3 * len(response.request.content)
        assert grown('http_response_size_bytes_sum{route="/v1/dispatch"}') > 3 * len(response.content)
        assert 0 < grown("cpu_seconds_total") < series(client)["cpu_seconds_total"] < 3600
        assert metric(client, "ready") == 1

    @ours_only
    def test_count_what_is_no_request(self, start_server: ServerFactory) -> None:
        """Once each, also one whose body goes wrong when it is being read."""
        server = start_server("--header-seconds", "3")
        requests = 'http_requests_total{{method="{}",route="{}",status="{}"}}'
        begun = header(CHUNKED, b"Content-Type: application/json", b"Expect: 100-continue")
        with httpx.Client(base_url=server.url) as client:
            for sent in ([b"?"], [b"GET /a HTTP/1.1\r\n"], [header(CHUNKED) + b"x\r\n"], [begun, b"x\r\n"]):
                with connection(server) as broken:
                    for piece in sent:
                        broken.send(piece)
                        if piece is begun:  # its handler waits for the body
                            assert broken.received.readline() == b"HTTP/1.1 100 Continue\r\n"
                            assert broken.received.readline() == b"\r\n"
                    answer = broken.receive()
                    assert answer.headers[ID]
                    assert broken.is_closed()
                refusal_of(answer, 408 if b"/a" in sent[0] else 400)
            wait_until(lambda: series(client).get(requests.format("POST", "/v1/dispatch", 400), 0) == 1)
            counted = series(client)
            assert counted[requests.format("other", "none", 400)] == 1
            assert counted[requests.format("GET", "none", 408)] == 1
            assert counted[requests.format("POST", "none", 400)] == 1
            assert counted['rejections_total{reason="http"}'] == 4
            assert counted['rejections_total{reason="abandoned"}'] == 0
            for length in (CHUNKED, b"Content-Length: 100"):  # and of whose body only the beginning comes
                with connection(server) as gone:
                    gone.send(header(length, b"Content-Type: application/json") + b"1\r\n{\r\n")
            wait_until(lambda: series(client)['rejections_total{reason="abandoned"}'] == 2)
            assert series(client)['rejections_total{reason="http"}'] == 4

    def test_caches(self, start_server: ServerFactory) -> None:
        server = start_server()
        with httpx.Client(base_url=server.url) as client:
            for elements in (3, 1 << 18):  # of which a worker reads the document
                for alpha in (1.1, 1.2, 1.3, 1.3, 1.3):
                    x = np.ones(elements, np.float32)
                    output_of(post_msgpack(client, request(CELU, {"InputTensor": x}, {"Alpha": alpha})))
            found = {
                name: {cache: metric(client, f"cache_{name}", cache=cache) for cache in ("requests", "structures")}
                for name in ("hits_total", "misses_total", "entries")
            }
        # What comes the second time is remembered, and what both alphas have in common is built once.
        assert found["hits_total"]["requests"] == 2
        assert found["misses_total"]["requests"] == 8
        assert found["entries"]["requests"] == 2
        assert found["hits_total"]["structures"] > found["misses_total"]["structures"] > 0
        assert 0 < found["entries"]["structures"] < 20

    def test_clients_cannot_make_up_series(self, server: RunningServer, client: httpx.Client) -> None:
        def ask_for(number: int) -> None:
            for path in (
                f"/unknown/{number}",
                f"/v1/operators/NONE{number}",
                f"/docs/assets/{number}",
                f"/v1/{number}/",
            ):
                client.get(path)
                client.post(path)
            for method in (f"M{number}", "PROPFIND", "TRACE", "PURGE"):
                with connection(server) as raw:  # not all of them are methods to every parser
                    assert raw.ask(header(method=method.encode())).status_code >= 400
            made_up = request(f"MADE_UP_{number}", {"InputTensor": np.array([1], np.float32)}, device=f"{number}")
            refusal_of(post_json(client, made_up), 422)

        ask_for(0)
        client.get("/metrics")
        wait_until(lambda: metric(client, "http_requests_total", route="/metrics", method="GET", status="200") > 0)
        known = series(client).keys()
        for number in range(1, 5):
            ask_for(number)
        assert series(client).keys() == known
        assert not any("unknown" in name or "NONE" in name or "MADE_UP" in name for name in known)
        assert any('method="other"' in name for name in known)
