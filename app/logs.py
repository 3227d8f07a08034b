"""Logging to standard error: one JSON object a line, or lines for people. Whatever writes a line gets its form here."""

import logging.config
from datetime import UTC, datetime
from functools import lru_cache
from time import time_ns
from typing import Any

import orjson
from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.orjson import OrjsonFormatter

from app.settings import Settings

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_NAMES = {"asctime": "time", "levelname": "level", "name": "logger", "message": "message"}
"""What each line has, by its name in `logging`: the names in JSON."""


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


def configure(settings: Settings) -> None:
    """For the whole process, uvicorn's loggers included."""
    formats: dict[str, dict[str, Any]] = {"json": {"()": JsonFormatter}, "text": {"format": _TEXT}}
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"chosen": formats[settings.log_format]},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "chosen"}},
            "root": {"handlers": ["stderr"], "level": settings.log_level.upper()},
        }
    )


def json_line(logger: str, milliseconds: int, message: str, facts: dict[str, Any]) -> bytes:
    """A line of level INFO, made without `logging`, which takes longer than a small dispatch."""
    named = {"time": _utc(milliseconds), "level": "INFO", "logger": logger, "message": message}
    return orjson.dumps(named | facts, option=orjson.OPT_APPEND_NEWLINE)


def text_line(logger: str, milliseconds: int, message: str, facts: dict[str, Any]) -> bytes:
    """The same for people, who get no facts."""
    told = {"asctime": _local(milliseconds), "levelname": "INFO", "name": logger, "message": message}
    return (_TEXT % told + "\n").encode()


def milliseconds() -> int:
    """Now, since 1970."""
    return time_ns() // 1_000_000


def _utc(milliseconds: int) -> str:
    return f"{_utc_second(milliseconds // 1000)}.{milliseconds % 1000:03d}+00:00"


@lru_cache(1)  # to write a time takes longer than all else in a line, and many requests share it
def _utc_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@lru_cache(1)
def _local(milliseconds: int) -> str:
    time = datetime.fromtimestamp(milliseconds / 1000)
    return time.isoformat(" ", "milliseconds").replace(".", ",")  # as `logging` writes it
