"""Work that keeps a server busy for as long as a test needs, and the gauges that tell."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgpack

from tests.http.wire import Connection, header, length
from tests.messages import CONSTANT_POW

SECONDS = 60.0
"""How long to wait for what must happen, on a machine however slow."""

NOT_BRIEF = 1 << 22
"""Elements of which a CELU is handed to a worker each time."""

ENDLESS_SETTINGS = (
    *("--threads", "1"),
    "--no-llvm",
    *("--max-tensor-bytes", str(1 << 33)),
    *("--max-memory-bytes", str(1 << 40)),  # the output's memory is not touched before it is computed
    *("--deadline-seconds", "1000"),
)
"""With these, `ENDLESS` computes for most of a minute, or until its client hangs up."""


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def slow_dispatch(elements: int) -> dict[str, Any]:
    """A request of a few bytes whose answer has 4 bytes for each of `elements`, at some 20 ns each in NumPy's calls."""
    desc = {"DataType": "FLOAT32", "Sizes": [elements], "Strides": [0]}
    operator = {
        "Type": CONSTANT_POW,
        "InputTensor": desc,
        "Exponent": 2.5,
        "ScaleBias": {"Scale": 1.5, "Bias": 0.5},
    }
    return {"operator": operator, "inputs": {"InputTensor": b"\0\0\x80\x3f"}}


ENDLESS = slow_dispatch(1 << 31)


def start(connection: Connection, message: dict[str, Any]) -> None:
    """Send a dispatch and do not wait for its answer."""
    body = msgpack.packb(message)
    connection.send(
        header(b"Content-Type: application/msgpack", b"Accept: application/msgpack", length(len(body))), body
    )


def series(client: httpx.Client) -> dict[str, float]:
    """All metrics, by name and labels as they are shown."""
    lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name.removeprefix("dmlserve_"): float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def resident(process: int) -> int:
    """Bytes of memory that the process has."""
    told = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(told.split("VmRSS:")[1].split()[0]) << 10


def metric(client: httpx.Client, name: str, **labels: str) -> float:
    """The value of a series; 0 if there is none."""
    shown = "{" + ",".join(f'{label}="{value}"' for label, value in sorted(labels.items())) + "}" if labels else ""
    return series(client).get(name + shown, 0.0)


def admitted(client: httpx.Client) -> float:
    """Dispatches that wait, run or are done."""
    current = series(client)
    done = sum(value for name, value in current.items() if name.startswith("dispatches_total"))
    return current["queue_depth"] + current["running_dispatches"] + done


def wait_for(client: httpx.Client, name: str, value: float) -> None:
    """Wait until the gauge has this value."""
    wait_until(lambda: metric(client, name) == value)
