"""Command-line options that both benchmarks share, and how their values are read."""

import argparse
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import load
import servers

T = TypeVar("T")

# A JSON body of 64 MiB of tensor takes 85 MiB of text, held several times over in wrk's Lua, which has 2 GiB at most.
MAX_SIZE = 64 << 20
UNITS = {"K": 1 << 10, "M": 1 << 20}


def parse_size(text: str) -> int:
    """Bytes, from `4096`, `4K` or `64M`."""
    unit = UNITS.get(text[-1:].upper(), 1)
    try:
        size = int(text[:-1] if unit > 1 else text) * unit
    except ValueError:
        size = 0
    if not 0 < size <= MAX_SIZE or size % 4:
        raise argparse.ArgumentTypeError(f"{text!r}: a multiple of 4 bytes up to 64M, such as 4K, 256K or 4M")
    return size


def format_size(size: int) -> str:
    for unit, factor in reversed(UNITS.items()):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def bounded(most: int) -> Callable[[str], int]:
    """A reader of whole numbers from 1 to `most`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 to {most}")
        return int(text)

    return parse


def listed(parse: Callable[[str], T]) -> Callable[[str], list[T]]:
    return lambda text: [parse(part.strip()) for part in text.split(",")]


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r}: one of {', '.join(choices)}")
        return text

    return parse


def local_url(text: str) -> str:
    """The base of a URL on this machine: load goes nowhere else."""
    url = urlsplit(text)
    if url.scheme != "http" or url.hostname not in ("127.0.0.1", "localhost"):
        raise argparse.ArgumentTypeError(f"{text!r}: http://127.0.0.1:PORT, since only this machine is put under load")
    return text.rstrip("/")


def parser(description: str | None, *encodings: str) -> argparse.ArgumentParser:
    """A parser with the options that say which service is measured, how long, and where the result goes.

    `encodings` may be asked for beside the usual ones.
    """
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--url", type=local_url, help="measure this running server instead of starting one")
    result.add_argument("--serve-args", default="", metavar="ARGS", help='for `dmlserve serve`, e.g. "--workers 2"')
    result.add_argument(
        "--encodings",
        type=listed(one_of("json", "msgpack", "infer", *encodings)),
        default=["json", "msgpack", "infer"],
        help="infer is the Open Inference Protocol with binary data; default: json,msgpack,infer"
        + "".join(f"; also {each}" for each in encodings),
    )
    result.add_argument("--rounds", type=bounded(20), help="default 3; medians are taken over rounds")
    result.add_argument("--seconds", type=bounded(load.MAX_SECONDS), help="for each measurement")
    result.add_argument("--quick", action="store_true", help="see that it works: one round of one second, fewer cells")
    result.add_argument("--output", type=Path, metavar="FILE.md", help="write the report there as well")
    return result


def rounds_and_output(description: str | None, *, models: str | None = None) -> argparse.Namespace:
    """The options of a benchmark that says how often and where to, read; signals end it from now on. What it does with
    `models`, the help says."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--rounds", type=bounded(100), default=10, help="default 10")
    result.add_argument("--output", type=Path, metavar="FILE.md", help="write the report there as well")
    if models is not None:
        result.add_argument("models", nargs="*", metavar="FILE=SIZES", help=f"{models}; sizes are as --warm has them")
    arguments = result.parse_args()
    end_on_signals()
    return arguments


def service(arguments: argparse.Namespace) -> AbstractContextManager[servers.Server]:
    """The service that the options name."""
    if arguments.url is not None:
        return nullcontext(servers.Server("service", arguments.url))
    return servers.service(shlex.split(arguments.serve_args))


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def end_on_signals() -> None:
    """Let SIGTERM unwind like Ctrl-C, so that started servers are stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
