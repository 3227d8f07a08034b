"""Logging to standard error: one JSON object a line, or lines for people."""

import logging.config
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS

from app.settings import Settings


def configure(settings: Settings) -> None:
    """For the whole process, uvicorn's loggers included."""
    formats: dict[str, dict[str, Any]] = {
        "json": {
            "()": "pythonjsonlogger.orjson.OrjsonFormatter",
            "fmt": "%(asctime)s %(levelname)s %(name)s %(message)s",
            "rename_fields": {"asctime": "time", "levelname": "level", "name": "logger"},
            "datefmt": "%Y-%m-%dT%H:%M:%S%z",
            "reserved_attrs": [*RESERVED_ATTRS, "color_message"],  # uvicorn's, for terminals
        },
        "text": {"format": "%(asctime)s %(levelname)-7s %(name)s: %(message)s"},
    }
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"chosen": formats[settings.log_format]},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "chosen"}},
            "root": {"handlers": ["stderr"], "level": settings.log_level.upper()},
        }
    )
