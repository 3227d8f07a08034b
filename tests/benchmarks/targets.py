"""Cases as checked requests to a server."""

import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import cases
import load
import servers

PATH = "/v1/dispatch"


@dataclass(frozen=True)
class Target:
    """A request whose answer was checked, and the seconds it takes alone."""

    server: servers.Server
    request: load.Request
    seconds_alone: float

    def measure(self, connections: int, seconds: int, threads: int = 1) -> load.Load:
        """A closed loop, and whatever it left behind waited for."""
        try:
            return load.run(self.request, connections, self.long_enough(connections, seconds), threads)
        finally:
            self.server.settle()

    def long_enough(self, connections: int, seconds: int) -> int:
        return load.long_enough(seconds, self.seconds_alone, connections)


@dataclass(frozen=True)
class Targets:
    """Makes targets; their bodies lie in `folder`."""

    folder: Path

    def request(self, server: servers.Server, case: cases.Case, encoding: str) -> load.Request:
        body = self.folder / f"{case.name}.{case.data_type}.{case.input.nbytes}.{case.device}.{encoding}"
        if not body.exists():
            body.write_bytes(case.body(encoding))
        if encoding == "infer":
            json_bytes = len(case.inference()[0])
            return load.Request(f"{server.url}/v2/models/{case.operator.type}/infer", encoding, body, json_bytes)
        if encoding == "npy":
            query = urlencode(case.operator.attributes)
            return load.Request(f"{server.url}/v1/operators/{case.operator.type}/dispatch?{query}", encoding, body)
        return load.Request(server.url + ("/" if encoding == "raw" else PATH), encoding, body)

    def target(self, server: servers.Server, case: cases.Case, encoding: str) -> Target:
        """The case as a request, once the server has answered it rightly; else LoadError or WrongAnswerError."""
        request = self.request(server, case, encoding)
        answer = load.send(request)
        if server.name == "yardstick":
            case.check_echo(answer)
        elif server.name == "floor":
            case.check_data(answer)
        else:
            case.check(encoding, answer)
        start = time.perf_counter()
        load.send(request)
        return Target(server, request, time.perf_counter() - start)

    def forget(self) -> None:
        """Delete the bodies."""
        for body in self.folder.iterdir():
            body.unlink()
