"""Logging: one JSON object a line, or lines for people. Whatever writes a line gets its form here, and its sink."""

import io
import logging.config
import os
import sys
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson
from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.orjson import OrjsonFormatter

from app.settings import Settings, Unusable
from app.sink import STANDARD_ERROR, Cells, Sink, TextSink

log = logging.getLogger("app")

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_NAMES = {"asctime": "time", "levelname": "level", "name": "logger", "message": "message"}
"""What each line has, by its name in `logging`: the names in JSON."""

_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {ord("\n"): "\n    "}
"""What stands in text for characters that tell a terminal something, since clients may have sent them. A message of
several lines, as uvicorn's of a start that failed, goes on further right than any begins."""


class JsonFormatter(OrjsonFormatter):
    """Of `logging`'s records, their time in UTC with milliseconds."""

    def __init__(self) -> None:
        super().__init__(
            " ".join(f"%({name})s" for name in _NAMES),
            rename_fields=_NAMES,
            reserved_attrs=[*RESERVED_ATTRS, "color_message"],  # uvicorn's, for terminals
        )

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        return _utc(int(record.created * 1000))


class TextFormatter(logging.Formatter):
    """Of the same as lines for people."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return super().formatMessage(record).translate(_ESCAPED)


class _Handler(logging.Handler):
    """Hands `logging`'s records to the sink."""

    def __init__(self, file: str, has_several: bool) -> None:
        self.sink = Sink(file, has_several, self._line)  # first: `logging` knows no handler that has none
        super().__init__()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.sink.write(self._encoded(record))
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """`logging.shutdown` calls it, at the end of the process."""
        self.sink.flush()

    def _line(self, level: int, message: str) -> bytes:
        if not log.isEnabledFor(level):
            return b""
        return self._encoded(log.makeRecord(log.name, level, __file__, 0, message, (), None))

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return (self.format(record) + "\n").encode(errors="backslashreplace")


_sink: Sink


def is_json(settings: Settings) -> bool:
    """Whether lines are JSON objects. With `auto` they are, unless somebody looks at them on a terminal."""
    if settings.log_format == "auto":
        return bool(settings.log_file) or not os.isatty(STANDARD_ERROR)
    return settings.log_format == "json"


def configure(settings: Settings) -> None:
    """For the whole process and those forked from it, uvicorn's loggers included. Raises Unusable."""
    global _sink  # noqa: PLW0603 - there is one, as there is one `logging`
    try:
        handler = _Handler(settings.log_file, has_several=settings.workers > 1)
    except OSError as error:
        raise Unusable(f"The log file {settings.log_file} cannot be opened: {error.strerror}.") from None
    handler.setFormatter(JsonFormatter() if is_json(settings) else TextFormatter())
    logging.basicConfig(handlers=[handler], level=settings.log_level.upper(), force=True)
    logging.captureWarnings(True)
    _sink = handler.sink
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(TextSink(_sink)), "utf-8", "backslashreplace", line_buffering=True)


def write(lines: bytes) -> None:
    """Log whole lines in their final form. Never waits: what nobody takes is dropped and counted."""
    _sink.write(lines)


def reopen() -> None:
    """Have this process open the log file again, if there is one, since its name may mean another one now.

    Never waits, and may be called by a signal's handler. Each process is to be told.
    """
    _sink.reopen()


def count_dropped_in(dropped: Cells) -> None:
    """From now on count the lines that this process drops in the one number of `dropped`."""
    _sink.count_in(dropped)


def json_line(logger: str, milliseconds: int, message: str, facts: dict[str, Any]) -> bytes:
    """A line of level INFO, `milliseconds` after 1970 began, made without `logging`, which takes longer than a small
    dispatch."""
    named = {"time": _utc(milliseconds), "level": "INFO", "logger": logger, "message": message, **facts}
    return orjson.dumps(named, option=orjson.OPT_APPEND_NEWLINE)


def text_line(logger: str, milliseconds: int, message: str) -> bytes:
    """The same for people, who get the facts as the message tells them."""
    told = {"asctime": _local(milliseconds), "levelname": "INFO", "name": logger, "message": message}
    return (_TEXT % told + "\n").encode()


@lru_cache(1)  # many requests share it
def _utc(milliseconds: int) -> str:
    return f"{_utc_second(milliseconds // 1000)}.{milliseconds % 1000:03d}+00:00"


@lru_cache(1)  # to write a time takes longer than all else in a line
def _utc_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@lru_cache(1)
def _local(milliseconds: int) -> str:
    time = datetime.fromtimestamp(milliseconds / 1000)
    return time.isoformat(" ", "milliseconds").replace(".", ",")  # as `logging` writes it
