"""Load on one URL: single checked requests through http.client, timed ones through wrk."""

import http.client
import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).parent
MAX_SECONDS = 60
MIN_REQUESTS_PER_CONNECTION = 3
CONTENT_TYPES = {
    "json": "application/json",
    "msgpack": "application/msgpack",
    "raw": "application/octet-stream",
    "infer": "application/octet-stream",
    "npy": "application/x-npy",
}
NO_WRK = """wrk, the load generator, is not installed or not on PATH.
  Debian, Ubuntu:  apt-get update && apt-get install -y wrk
  elsewhere:       https://github.com/wg/wrk (build with `make`, put `wrk` on PATH)"""


class LoadError(Exception):
    """A request was refused, answered wrongly or never; the text says which."""


@dataclass(frozen=True)
class Request:
    """A POST whose body lies in a file; `encoding` names its content type and that of the answer.

    Of an inference's body the first `json_bytes` are JSON.
    """

    url: str
    encoding: str
    body: Path
    json_bytes: int | None = None


@dataclass(frozen=True)
class Load:
    """What wrk saw: whole requests in `seconds`, latencies in milliseconds."""

    connections: int
    requests: int
    seconds: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float

    @property
    def rate(self) -> float:
        """Requests/s.

        Few requests in the window would round down to whole ones, so there the rate is that of the closed loop,
        connections / mean latency, kept between counting none and all of the requests still under way at the end.
        """
        counted = self.requests / self.seconds
        if self.requests >= 50 * self.connections:
            return counted
        most = (self.requests + self.connections) / self.seconds
        return min(max(counted, 1000 * self.connections / self.mean_ms), most)


def require_wrk() -> str:
    """The version of wrk; exits with the way to install it where it is absent."""
    if shutil.which("wrk") is None:
        raise SystemExit(NO_WRK)
    lines = subprocess.run(["wrk", "-v"], capture_output=True, text=True, check=False).stdout.splitlines()
    return " ".join(lines[0].split()[:2]) if lines else "wrk"


def send(request: Request, timeout: float = 120) -> bytes:
    """The body of one answer; LoadError unless its status is 200 and its content type the one asked for."""
    content_type = CONTENT_TYPES[request.encoding]
    url = urlsplit(request.url)
    connection = http.client.HTTPConnection(url.hostname or "127.0.0.1", url.port or 80, timeout=timeout)
    try:
        headers = {"Content-Type": content_type, "Accept": content_type}
        if request.json_bytes is not None:
            headers["Inference-Header-Content-Length"] = str(request.json_bytes)
        connection.request("POST", f"{url.path}?{url.query}", request.body.read_bytes(), headers)
        response = connection.getresponse()
        answer = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise LoadError(f"no answer: {error!r}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise LoadError(f"status {response.status}: {answer[:300]!r}")
    if not (response.getheader("Content-Type") or "").startswith(content_type):
        raise LoadError(f"asked for {content_type}, answered {response.getheader('Content-Type')}")
    return answer


def long_enough(seconds: int, seconds_alone: float, connections: int) -> int:
    """Seconds, stretched until each connection can finish some requests even if the server takes one at a time."""
    needed = math.ceil(MIN_REQUESTS_PER_CONNECTION * connections * seconds_alone)
    return min(max(seconds, needed), MAX_SECONDS)


def run(request: Request, connections: int, seconds: int, threads: int = 1) -> Load:
    """Closed loop of `connections` for `seconds`, with so many of wrk's threads; LoadError if any answer failed or none
    came."""
    environment = {"BODY_FILE": str(request.body), "CONTENT_TYPE": CONTENT_TYPES[request.encoding]}
    if request.json_bytes is not None:
        environment["JSON_BYTES"] = str(request.json_bytes)
    return _wrk("post.lua", environment, request.url, connections, seconds, threads)


def run_each(requests: Path, first: int, url: str, connections: int, seconds: int) -> Load:
    """The same with whole requests of a file (`prepare`), each in its turn from number `first` on and round again."""
    environment = {"REQUESTS_FILE": str(requests), "FIRST": str(first)}
    return _wrk("each.lua", environment, url, connections, seconds)


def prepare(requests: Iterable[bytes], path: Path) -> None:
    """Write whole requests, head and body, as `run_each` reads them."""
    with path.open("wb") as file:
        for request in requests:
            file.write(b"%d\n" % len(request))
            file.write(request)


def _wrk(
    script: str, environment: Mapping[str, str], url: str, connections: int, seconds: int, threads: int = 1
) -> Load:
    # wrk reserves 8 bytes for each microsecond of its timeout, hence not simply a huge one.
    timeout = min(max(10, 2 * seconds), MAX_SECONDS)
    command = ["wrk", "--threads", str(threads), "--connections", str(connections), "--duration", f"{seconds}s"]
    command += ["--timeout", f"{timeout}s", "--script", str(HERE / script), url]
    environment = os.environ | environment | {"LUA_PATH": f"{HERE}/?.lua"}
    try:
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=seconds + 60
        )
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"wrk did not end within {seconds + 60} s") from error
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    if result.returncode != 0 or not lines:
        raise LoadError(f"wrk failed with {result.returncode}: {(result.stdout + result.stderr)[-500:]}")
    summary = json.loads(lines[-1])
    errors = [f"{count} {kind}" for kind, count in summary["errors"].items() if count]
    if errors:
        raise LoadError(f"{', '.join(errors)} errors, {summary['requests']} requests")
    if summary["requests"] == 0:
        raise LoadError(f"no request finished within {seconds} s")
    return Load(
        connections=connections,
        requests=summary["requests"],
        seconds=summary["duration"] / 1e6,
        mean_ms=summary["mean"] / 1e3,
        p50_ms=summary["p50"] / 1e3,
        p99_ms=summary["p99"] / 1e3,
        max_ms=summary["max"] / 1e3,
    )
