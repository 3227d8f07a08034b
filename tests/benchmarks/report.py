"""Markdown: tables, numbers with three digits that count, and the facts of the machine."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import load

HERE = Path(__file__).parent
PACKAGES = ("uvicorn", "uvloop", "httptools", "fastapi", "starlette", "pydantic", "numpy", "msgpack", "pybase64")


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:#.3g}".rstrip(".") if value >= 0.001 else f"{value:.4f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    """A table whose first `texts` columns are text and whose others are numbers."""
    rule = ["---"] * texts + ["---:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows]) + "\n"


def field(path: str, key: str) -> str:
    """The first value of a `key : value` line in a file of /proc."""
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def git(*arguments: str) -> str:
    command = ["git", "-C", str(HERE), *arguments]
    if shutil.which("git") is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def commit() -> str:
    name = git("rev-parse", "--short=12", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return (name + (" with local changes" if changed else "")) if name else "unknown"


def versions() -> str:
    """Of this interpreter's environment, which is the service's too unless it was measured by --url."""
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def facts(loadavg: float) -> str:
    """The machine, the versions and the command; `loadavg` is the load before the first measurement."""
    memory = int(field("/proc/meminfo", "MemTotal").split()[0]) / (1 << 20)
    lines = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "machine": f"{field('/proc/cpuinfo', 'model name')}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}",
        "load before": f"{loadavg:.2f} (1-minute average)",
        "versions": f"Python {platform.python_version()}, {versions()}"
        + (f", {load.require_wrk()}" if shutil.which("wrk") else ""),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    return "".join(f"- {name}: {value}\n" for name, value in lines.items())


def failures(texts: Sequence[str]) -> str:
    """A section that lists what failed, or nothing."""
    return "\n## Failures\n\n" + "".join(f"- {text}\n" for text in texts) if texts else ""


def publish(text: str, output: Path | None) -> None:
    """Print the report, and write it to `output` if one is given."""
    print(text)
    if output is not None:
        output.write_text(text)
