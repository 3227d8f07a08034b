"""Whether bytes of one client can reach another: clients of all kinds at a time, whose data are all different.

What is sent depends on the seed alone; what of it meets on the service, on time. For minutes of it:
`pytest tests/fuzz --fuzz-seconds 300 --fuzz-seed 7`, with STOCK_PROTOCOL=1 on uvicorn's own HTTP protocol.
"""

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.conftest import ASYNCIO_LOOP, LENT_SOCKETS, SERVER, STOCK, RunningServer, running_server
from tests.fuzz.behaviours import BEHAVIOURS, REPEATED
from tests.fuzz.clients import Client, Tally
from tests.fuzz.connection import Answer, Connection
from tests.fuzz.exchanges import OTHERS, Exchange, Exchanges
from tests.fuzz.forms import FORMS
from tests.fuzz.payload import Payloads
from tests.fuzz.sizes import THRESHOLDS
from tests.http.load import metric, wait_for, wait_until

COMMANDS = {
    "uvloop": SERVER,
    "asyncio": (sys.executable, ASYNCIO_LOOP, SERVER[-1]),
    "uvloop, lent": (sys.executable, LENT_SOCKETS, SERVER[-1]),
    "asyncio, lent": (sys.executable, ASYNCIO_LOOP, LENT_SOCKETS, SERVER[-1]),
}
"""What serves, by event loop, and whether threads have large bodies."""

MORE_SECONDS = 60.0
"""How long at most the clients go on until there is enough of everything."""

MOST_FAILURES = 5
"""After which there is no need for more."""

LEAST = 4
"""How often each kind of request, and each behaviour, has to be answered right for a test to say anything."""


def least(exchanges: Exchanges) -> dict[str, int]:
    """How often each label has to be counted."""
    kinds = [form.name for form in FORMS] + list(OTHERS) + exchanges.framings
    return (
        dict.fromkeys([*kinds, *BEHAVIOURS], LEAST)
        | {f"size {threshold}": 1 for threshold in THRESHOLDS}
        | {f"again, {aim}": 6 for aim in REPEATED}  # a whole episode
        | {"aborted, whole": LEAST, "aborted, part": LEAST}
        | {"close": 1}
    )


@pytest.mark.parametrize(
    ("loop", "workers"), [("uvloop", 3), ("asyncio", 1), ("uvloop, lent", 1), ("asyncio, lent", 3)]
)
def test_each_answer_is_to_its_own_request(
    loop: str, workers: int, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    options = pytestconfig.option
    seed = f"{options.fuzz_seed} {workers} {loop}"
    flags = ("--no-access-log", "--workers", str(workers))
    with running_server(tmp_path / "log", *flags, command=COMMANDS[loop]) as server:
        with httpx.Client(base_url=server.url) as observer:
            wait_until(lambda: metric(observer, "workers") == workers)
        assert {uses_uvloop(process) for process in processes(server)} == {loop.startswith("uvloop")}
        tally, needed = fuzz(server, seed, options.fuzz_seconds)
        print(f"--fuzz-seed {options.fuzz_seed}, answered right: {dict(sorted(tally.counted.items()))}")
        if tally.failures:
            pytest.fail("\n".join(tally.failures[:MOST_FAILURES]), pytrace=False)
        assert not tally.missing(needed), "too few were answered"
        with httpx.Client(base_url=server.url) as observer:
            wait_for(observer, "memory_bytes", 0)
        assert server.stop() == 0
        found = list(complaints(server.log))
        # uvicorn's own protocol tells only the newest request of a pipeline that its client has gone.
        if found and SERVER is not STOCK:
            pytest.fail(
                f"{len(found)} errors in the log, the first ones:\n{''.join(found[:MOST_FAILURES])}", pytrace=False
            )


def fuzz(server: RunningServer, seed: str, seconds: float) -> tuple[Tally, dict[str, int]]:
    """What came of all clients, and what had to."""
    exchanges = Exchanges(Payloads(), is_strict=SERVER is not STOCK)
    with closing(Connection(server.port)) as first:

        def ask(exchange: Exchange) -> Answer:
            first.send(exchange.message)
            return first.receive()

        exchanges.learn(ask)
    tally, needed = Tally(), least(exchanges)
    end = time.monotonic() + seconds

    def is_over() -> bool:
        late = time.monotonic() - end
        return late > MORE_SECONDS or len(tally.failures) >= MOST_FAILURES or (late > 0 and not tally.missing(needed))

    clients = [
        (Client(name, number, count, seed, server.port, exchanges, tally), act)
        for name, (act, count) in BEHAVIOURS.items()
        for number in range(count)
    ]
    with ThreadPoolExecutor(len(clients)) as pool:
        for done in [pool.submit(client.run, act, is_over) for client, act in clients]:
            done.result()
    return tally, needed


def processes(server: RunningServer) -> list[int]:
    """Those that answer."""
    process = server.process.pid
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in children] or [process]


def uses_uvloop(process: int) -> bool:
    return "/uvloop/" in Path(f"/proc/{process}/maps").read_text()


def complaints(log: Path) -> Iterator[str]:
    """Lines that tell of an error, or are none of the log's."""
    with log.open("rb") as lines:
        for line in lines:
            if not line.startswith(b"{") or json.loads(line)["level"] in ("ERROR", "CRITICAL"):
                yield line.decode(errors="replace")
