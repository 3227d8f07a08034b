"""Logging to standard error: one JSON object a line, or lines for people. Whatever writes a line gets its form here."""

import logging.config
from datetime import UTC, datetime
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
        return _json_time(datetime.fromtimestamp(record.created, UTC))


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


def json_line(logger: str, message: str, facts: dict[str, Any]) -> bytes:
    """A line of level INFO, made without `logging`, which takes longer than a small dispatch."""
    told = _json_time(datetime.now(UTC)), "INFO", logger, message
    return orjson.dumps(dict(zip(_NAMES.values(), told, strict=True)) | facts, option=orjson.OPT_APPEND_NEWLINE)


def text_line(logger: str, message: str, facts: dict[str, Any]) -> bytes:
    """The same for people, who get no facts."""
    time = datetime.now().isoformat(" ", "milliseconds").replace(".", ",")  # as `logging` writes it
    told = time, "INFO", logger, message
    return (_TEXT % dict(zip(_NAMES, told, strict=True)) + "\n").encode()


def _json_time(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds")
