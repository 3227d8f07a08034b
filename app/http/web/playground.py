"""The page at /, which tries operators and graphs out: plain files, and two documents that its script reads.

The page asks the API as any client does. It loads nothing from elsewhere, and holds API keys in its memory alone.
"""

import asyncio
from functools import cache, partial
from importlib.resources import files
from pathlib import PurePath
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from app import __version__
from app.contract.constants import DataType, FeatureLevel
from app.devices.device import Device
from app.engine.capabilities import describe, support_groups
from app.engine.curves import curve
from app.http.core.exchange import Reply, Request
from app.http.core.media_types import JSON
from app.http.core.routes import Given, pages
from app.http.web.files import HTML, answer_file
from app.operators.catalog import OPERATORS, find_operator, no_operator
from app.operators.operator import Operator, Role

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""By the suffixes that the files have."""

PAGE = "index.html"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "require-trusted-types-for 'script'; trusted-types 'none'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""What the page may do: run its own scripts and ask the service that it comes from. Nothing makes HTML out of text."""


def routes(device: Device) -> list[BaseRoute]:
    """Those of the page and what it is made of. `device` tells which operators have a curve."""
    static_files = {each.name: each.read_bytes() for each in (files(__package__) / "static").iterdir()}
    described = cache(partial(_described, device=device))
    found = pages()

    @found.get("/")
    async def page(_: Request, __: Given) -> Reply:
        return answer_file(static_files[PAGE], HTML, POLICY, **{"referrer-policy": "no-referrer"})

    @found.get("/static/{name}")
    async def static(_: Request, path: Given) -> Reply:
        name = path["name"]
        if name not in static_files or name == PAGE:
            raise HTTPException(404, f"There is no file {name[:80]}.")
        return answer_file(static_files[name], MEDIA_TYPES[PurePath(name).suffix])

    @found.get("/operators.json")
    async def operators(_: Request, __: Given) -> Reply:
        return answer_file(await asyncio.to_thread(_catalog), JSON)

    @found.get("/operators/{name}.json")
    async def operator(_: Request, path: Given) -> Reply:
        asked = find_operator(path["name"])
        if asked is None:
            raise HTTPException(404, no_operator(path["name"]))
        return answer_file(await asyncio.to_thread(described, asked), JSON)

    return found.routes


@cache
def _catalog() -> bytes:
    """What the list of operators and the matrix of what they take are made of."""
    made = {
        "version": __version__,
        "levels": list(FeatureLevel),
        "data_types": list(DataType),
        "operators": [_listed(operator) for operator in OPERATORS.values()],
    }
    return orjson.dumps(made)


def _listed(operator: type[Operator]) -> dict[str, Any]:
    described = describe(operator)
    support = [
        {"level": row["feature_level"].removeprefix(FeatureLevel.prefix()), "groups": support_groups(row)}
        for row in reversed(described["support"])  # the oldest first
    ]
    return {
        "name": operator.short_name(),
        "family": described["family"],
        "summary": described["summary"],
        "formula": described["formula"],
        "support": support,
    }


def _described(operator: type[Operator], device: Device) -> bytes:
    """All that a form for `operator` needs: what GET /v1/operators/{Type} answers, the descriptor's JSON Schema, and
    the input that its curve is drawn over and from where to where, if it has one."""
    drawn = curve(operator, device)
    return orjson.dumps(
        {
            "description": describe(operator),
            "schema": operator.model_json_schema(),
            "curve": {"input": operator.tensor_names(Role.INPUT)[0], "range": drawn.x_range} if drawn else None,
        }
    )
