"""An exception where none is expected: answered 500, logged and counted, once."""

import sys
from pathlib import Path

import httpx
import msgpack
import numpy as np

from tests.conftest import running_server
from tests.http.load import metric
from tests.http.wire import connection, header, length
from tests.messages import CELU, output_of, problem_of, request

FAULTY = (sys.executable, Path(__file__).parents[1] / "faulty_service.py")
MSGPACK = b"Content-Type: application/msgpack", b"Accept: application/msgpack"


def whole(value: float) -> bytes:
    body: bytes = msgpack.packb(request(CELU, {"InputTensor": np.array([value, 2, 3], np.float32)}))
    return header(*MSGPACK, b"X-Request-ID: the-id", length(len(body))) + body


def test_a_fault_is_a_500_and_happens_once(tmp_path: Path) -> None:
    """Where a task answers, where the event loop does, and where it knows the header as well."""
    with running_server(tmp_path / "log", command=FAULTY) as server, httpx.Client(base_url=server.url) as observer:
        with connection(server) as client:
            problem_of(client.ask(whole(13)), 500)
        for well_before in range(4):
            with connection(server) as client:
                for _ in range(well_before):
                    output_of(client.ask(whole(1)))
                answer = client.ask(whole(13))
                problem_of(answer, 500)
                assert answer.headers["x-request-id"] == "the-id"
        tried = 5
        assert metric(observer, "http_requests_total", method="POST", route="/v1/dispatch", status="500") == tried
        assert metric(observer, "memory_bytes") == 0
        assert server.stop() == 0
        log = server.log.read_text()
    assert log.count('"computing a 13"') == tried
    assert log.count("RuntimeError: a fault in a kernel") == tried
