"""Measure how long the service takes from its process's start to its first 200 on /health/ready, on NumPy.

Beside it a process that imports the packages that the service is made of, and does nothing more. Exits with 1 if the
service took 1.5 seconds or more in every round, which is what it is promised to stay below.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

import options
import report
import servers

PROMISED = 1.5


PACKAGES = "import fastapi, jinja2, msgpack, numpy, orjson, prometheus_client, pydantic_settings, rich, uvicorn, uvloop"


def imports() -> float:
    """Seconds that the packages take by themselves."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", PACKAGES], check=True)
    return time.monotonic() - started


def service() -> float:
    """Seconds until the service is ready."""
    started = time.monotonic()
    with servers.service(["--gpus", "none"]):
        return time.monotonic() - started


def main() -> int:
    arguments = options.rounds_and_output(__doc__)
    loadavg = os.getloadavg()[0]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as compiled:
        os.environ["PYTHONPYCACHEPREFIX"] = compiled
        service()  # from here on modules are compiled, as pip leaves them, and files in memory
        rounds = [{"imports": imports(), "service": service()} for _ in range(arguments.rounds)]
    rows = [
        [
            name,
            report.number(statistics.median(each[name] for each in rounds)),
            report.number(min(each[name] for each in rounds)),
            report.number(max(each[name] for each in rounds)),
            report.number(statistics.median(each[name] / each["imports"] for each in rounds)),
        ]
        for name in rounds[0]
    ]
    head = ["what", "median, s", "least, s", "most, s", "over imports"]
    report.publish(
        f"# From start to readiness\n\n{report.facts(loadavg)}\n{report.table(head, rows, texts=1)}", arguments.output
    )
    return int(min(each["service"] for each in rounds) >= PROMISED)


if __name__ == "__main__":
    sys.exit(main())
