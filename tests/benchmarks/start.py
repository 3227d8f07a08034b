"""Measure how long the service takes from its process's start to its first 200 on /health/ready, on NumPy.

Beside it a process that imports the packages that the service is made of, and does nothing more; and of each model that
is given, how long it takes with that warmed, when nothing is in its folder of compiled code, and when all is there that
the start before compiled. Exits with 1 if the service took 1.5 seconds or more in every round, which is what it is
promised to stay below without a model.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def service(*arguments: str) -> float:
    """Seconds until the service is ready."""
    started = time.monotonic()
    with servers.service(["--gpus", "none", *arguments]):
        return time.monotonic() - started


def warmed(given: str) -> dict[str, float]:
    """The same of one with a model, `given` with its sizes, when none of its code is there, and when all is."""
    file, _, sizes = given.partition("=")
    with tempfile.TemporaryDirectory() as models, tempfile.TemporaryDirectory() as kept:
        shutil.copy(file, Path(models) / "model.onnx")
        start = ["--models", models, "--warm", f"model={sizes}", "--kernel-cache", kept]
        return {f"{Path(file).name}, {how}": service(*start) for how in ("not compiled", "compiled before")}


def main() -> int:
    arguments = options.rounds_and_output(__doc__, models="ONNX files to start with")
    loadavg = os.getloadavg()[0]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as compiled:
        os.environ["PYTHONPYCACHEPREFIX"] = compiled
        service()  # from here on modules are compiled, as pip leaves them, and files in memory
        rounds = []
        for _ in range(arguments.rounds):
            rounds.append({"imports": imports(), "service": service()})
            for each in arguments.models:
                rounds[-1] |= warmed(each)
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
