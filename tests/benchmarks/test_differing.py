"""The benchmark of requests that differ: they do, wrong answers are found, and a run of it ends with its table."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from threading import Thread

import cases
import differing
import load
import msgpack
import numpy as np
import pytest
import servers
from variety import ATTRIBUTES, ROWS, Message, wanted

from tests.conftest import RunningServer

ENCODINGS = ["msgpack", "json", "infer"]
WITH_WRK = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")


def key(message: Message) -> str:
    return repr(message.structure)


@pytest.mark.parametrize(
    ("name", "kinds"), [("same", 1), ("header", 1), ("operators", 132), ("attributes", 512), ("sizes", 512)]
)
def test_a_row_has_as_many_structures_as_it_says_and_all_of_them_warm(name: str, kinds: int) -> None:
    warm, messages = ROWS[name].messages(1000)
    assert len({key(each) for each in warm}) == len(warm) == kinds
    assert {key(each) for each in messages} == {key(each) for each in warm}


def test_nothing_comes_twice_where_all_differ() -> None:
    warm, messages = ROWS["all"].messages(5000)
    together = warm + messages
    assert len({key(each) for each in together}) == len(together)
    assert len({each.traceparent for each in together}) == len(together)
    assert {each.structure.type for each in warm} == ATTRIBUTES.keys()
    assert len(ATTRIBUTES) == 33


@pytest.mark.parametrize("name", ROWS)
def test_every_tensor_is_another_unless_the_request_is_the_same(name: str) -> None:
    _, messages = ROWS[name].messages(200)
    tensors = {each.input.tobytes() for each in messages}
    assert len(tensors) == len(messages) == (1 if name == "same" else 200)


def test_each_request_of_the_rows_with_headers_has_one_of_its_own() -> None:
    for name, row in ROWS.items():
        heads = {each.http("msgpack").partition(b"\r\n\r\n")[0] for each in row.messages(200)[1]}
        named = {line for head in heads for line in head.split(b"\r\n") if line.startswith(b"traceparent: 00-")}
        assert len(named) == (200 if name in ("header", "all") else 0)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_kind_of_request_is_answered_rightly(server: RunningServer, encoding: str) -> None:
    messages = [each for row in ROWS.values() for each in islice(row.messages(33)[1], 33)]
    answers = differing.send(servers.Server("service", server.url), [each.http(encoding) for each in messages])
    assert len(answers) == len(messages)
    for message, answer in zip(messages, answers, strict=True):
        assert len(message.check(encoding, answer)) == message.input.nbytes


def test_a_wrong_answer_is_found() -> None:
    message, other = ROWS["header"].messages(2)[1]
    data = np.clip(0.2 * other.input + 0.5, 0, 1).astype("<f4")
    assert message.check("msgpack", answer(np.clip(0.2 * message.input + 0.5, 0, 1).astype("<f4")))
    for wrong in (answer(data), answer(data[:-1]), b"", msgpack.packb({"outputs": {}})):
        with pytest.raises(cases.WrongAnswerError):
            message.check("msgpack", wrong)


def answer(data: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> bytes:
    return bytes(msgpack.packb({"outputs": {"OutputTensor": {"data": data.tobytes()}}}))


def test_a_refusal_is_no_answer(server: RunningServer) -> None:
    request = ROWS["same"].messages(1)[1][0].http("msgpack").replace(b"HARD_SIGMOID", b"HARD_SIGMOIX")
    with pytest.raises(load.LoadError, match="status 422"):
        differing.send(servers.Server("service", server.url), [request])


def test_what_is_wanted() -> None:
    assert [wanted(row, "msgpack") for row in ROWS.values()] == [0.65, 0.6, 0.55, 0.3, 0.3, 0.25]
    assert [wanted(row, "json") for row in ROWS.values()] == [0.52, 0.48, 0.44, 0.24, 0.24, 0.2]
    assert {wanted(row, "infer") for row in ROWS.values()} == {None}


@contextmanager
def answering(answer: Callable[[bytes], bytes]) -> Iterator[servers.Server]:
    """A server that answers each request's body with what `answer` makes of it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            made = answer(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", str(len(made)))
            self.end_headers()
            self.wfile.write(made)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield servers.Server("other", f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()


@pytest.mark.parametrize("ulps", [0, 1])
def test_other_bits_than_those_of_another_service_are_found(server: RunningServer, ulps: int) -> None:
    service = servers.Server("service", server.url)
    messages = ROWS["all"].messages(33)[1]

    def others(body: bytes) -> bytes:
        request = next(each.http("msgpack") for each in messages if each.http("msgpack").endswith(body))
        document = msgpack.unpackb(differing.send(service, [request])[0])
        output = document["outputs"]["OutputTensor"]
        bits = np.frombuffer(output["data"], "<u4").copy()
        bits[-1] += ulps
        return bytes(msgpack.packb(document | {"outputs": {"OutputTensor": output | {"data": bits.tobytes()}}}))

    with answering(others) as other, answering(lambda body: body) as echo:
        if ulps:
            with pytest.raises(cases.WrongAnswerError, match="another result than that of the other"):
                differing.check("msgpack", messages, service, [other], echo)
        else:
            differing.check("msgpack", messages, service, [other], echo)
            with pytest.raises(cases.WrongAnswerError, match="echo"):
                differing.check("msgpack", messages, service, [], service)


@WITH_WRK
def test_prepared_requests_are_sent_in_turn_from_the_first_one_on_and_round_again(tmp_path: Path) -> None:
    head = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n\r\n"
    load.prepare((f"{head}{number:04}".encode() for number in range(50)), tmp_path / "requests")
    seen: list[int] = []

    def note(body: bytes) -> bytes:
        seen.append(int(body))
        return b""

    with answering(note) as server:
        result = load.run_each(tmp_path / "requests", 40, server.url, 1, 1)
    assert result.requests > 50
    assert seen[0] in (40, 41)  # wrk asks for one of them to see whether it is a request
    assert seen == [(seen[0] + number) % 50 for number in range(len(seen))]


@WITH_WRK
def test_a_quick_run_ends_with_its_table(tmp_path: Path) -> None:
    script, output = Path(differing.__file__), tmp_path / "result.md"
    command = [sys.executable, str(script), "--quick", "--rows", "same", "--encodings", "msgpack,infer"]
    command += ["--requests", "100", "--old", str(script.parents[2]), "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split(" | ") for line in output.read_text().splitlines() if line.startswith(("| msgpack", "| infer"))]
    assert [(line[0], line[1]) for line in lines] == [("| msgpack", "same"), ("| infer", "same")]
    assert all(len(line) == len(differing.HEAD) + len(differing.OLD_HEAD) for line in lines)
