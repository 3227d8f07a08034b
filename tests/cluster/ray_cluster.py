"""A cluster of Ray's: nodes on this machine, each with an address and processes of its own, that can be killed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "docker" / "ray" / "serve.yaml"
BIN = Path(sys.executable).parent
URL = "http://127.0.0.1:8000"
SECONDS = 300.0
"""How long to wait for what must happen, on a machine however slow."""

_SYSTEM = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 60_000,
    "health_check_failure_threshold": 3,
}
"""A node that is gone is noticed within seconds, as its port is closed; one that only gets no processor is not gone."""

_PATIENCE = {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    # So long a replica that goes still answers: HAProxy must have heard meanwhile. Ray's own choice is 30.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "6",
    "RAY_memory_monitor_refresh_ms": "0",  # others may fill the machine's memory, which is no reason to end ours
}
"""What Ray takes for broken after seconds may just be slow here."""


class Cluster:
    """Its nodes by address. What runs on them ends with them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        haproxy = folder / "haproxy"
        self._environment = os.environ | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RAY_ADDRESS": "127.0.0.1:6379",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(haproxy / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(haproxy / "admin.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(haproxy),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(haproxy / "state"),
            **_PATIENCE,
        }

    def start(self, address: str, cpus: int) -> None:
        """One more node; the first is the head. Returns when that is there, and before any other one is."""
        arguments = ["--address", "127.0.0.1:6379"]
        if is_head := not self._nodes:
            arguments = ["--head", "--port", "6379", "--include-dashboard", "false"]
            arguments += ["--temp-dir", str(self._folder / "ray"), "--system-config", json.dumps(_SYSTEM)]
        log = self._stack.enter_context((self._folder / f"{address}.log").open("wb"))
        # All of a node's processes die with the first one in their namespace. Ray gives a node up that is not there
        # after 30 seconds, as where others have the processors; then what is left of it ends, and it is tried again.
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        again = ["sh", "-c", 'until "$@"; do :; done', "sh"]
        command = [*apart, *again, *apart, str(BIN / "ray"), "start", "--block", "--disable-usage-stats"]
        command += ["--node-ip-address", address, "--num-cpus", str(cpus)]
        command += ["--object-store-memory", str(100 << 20), *arguments]
        process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, start_new_session=True)
        self._nodes[address] = process
        self._stack.callback(self.kill, address)
        if is_head:
            wait_until(lambda: b"Ray runtime started" in (self._folder / f"{address}.log").read_bytes(), self.logs)

    def kill(self, address: str) -> None:
        """All processes of a node, at once and without a word."""
        process = self._nodes[address]
        process.kill()
        process.wait()

    @property
    def pids(self) -> list[int]:
        """Of the first process of each node."""
        return [process.pid for process in self._nodes.values()]

    def deploy(self, least: int, most: int, **arguments: Any) -> None:
        """What docker/ray/serve.yaml says, with so many replicas and these settings. Returns before it is there.

        Replicas come as soon as they are wanted, each on a node of its own where there are as many, and stay. To have
        had a request in hand at any time Ray looked is work enough for all: how often that is so depends on how quick
        clients are.
        """
        config = yaml.safe_load(CONFIG.read_text())
        (application,) = config["applications"]
        (deployment,) = application["deployments"]
        config["proxy_location"] = "HeadOnly"  # nodes share the address that all listen on
        application["args"] |= arguments
        deployment |= {
            "max_replicas_per_node": -(-most // len(self._nodes)),
            "health_check_period_s": 1,
            "health_check_timeout_s": 30,
        }
        deployment["autoscaling_config"] |= {
            "min_replicas": least,
            "max_replicas": most,
            "target_ongoing_requests": 0.01,
            "upscale_delay_s": 0,
            "downscale_delay_s": 3600,
            "metrics_interval_s": 0.5,
            "look_back_period_s": 1,
        }
        file = self._folder / "serve.json"
        file.write_text(json.dumps(config))
        self.run(str(BIN / "serve"), "run", "--non-blocking", str(file))

    def run(self, *command: str) -> str:
        """What a command prints that speaks to the cluster."""
        done = subprocess.run(
            command, check=False, env=self._environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self._folder.glob("*.log")))


@contextmanager
def ray_cluster(folder: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(folder, stack)


def wait_until(happened: Callable[[], bool], why_not: Callable[[], str] = str) -> None:
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end, f"it did not happen\n{why_not()}"
        time.sleep(0.1)


def replicas() -> set[str]:
    """Those that answer, by when they started: as many connections as it takes to meet each several times."""
    found = set()
    for _ in range(8):
        try:
            text = httpx.get(f"{URL}/metrics", timeout=30).text
        except httpx.TransportError:
            continue
        found |= {line for line in text.splitlines() if line.startswith("dmlserve_start_time_seconds ")}
    return found


def wait_for_replicas(count: int, why_not: Callable[[], str], before: Set[str] = frozenset()) -> set[str]:
    """Those that answer, once there are so many, and none of those `before`: twice, since one may not have been met."""
    found: set[str] = set()

    def are_there() -> bool:
        nonlocal found
        first, found = replicas(), replicas()
        return first == found and len(found) == count and not found & before

    wait_until(are_there, why_not)
    return found
