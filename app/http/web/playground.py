"""The page at /, which tries operators and graphs out: plain files, and two documents that its script reads.

The page asks the API as any client does. It loads nothing from elsewhere, and holds API keys in its memory alone.
"""

import asyncio
from functools import cache
from importlib.resources import files
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from app import __version__
from app.contract.constants import DataType, FeatureLevel
from app.devices.device import Device
from app.engine.capabilities import describe, support_groups
from app.engine.curves import curve
from app.http.core.media_types import JSON
from app.http.web.files import KeptFile
from app.operators.catalog import OPERATORS, find_operator
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


def install(app: FastAPI, device: Device) -> None:
    """Have `app` serve the page and what it is made of. `device` tells which operators have a curve."""
    kept = _static_files()
    described: dict[str, KeptFile] = {}

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return kept[PAGE].answer(request.headers)

    @app.get("/static/{name}", include_in_schema=False)
    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in kept or name == PAGE:
            raise HTTPException(404, f"There is no file {name[:80]}.")
        return kept[name].answer(request.headers)

    @app.get("/operators.json", include_in_schema=False)
    async def operators(request: Request) -> Response:
        return (await asyncio.to_thread(_catalog)).answer(request.headers)

    @app.get("/operators/{name}.json", include_in_schema=False)
    async def operator(request: Request) -> Response:
        found = find_operator(request.path_params["name"])
        if found is None:
            raise HTTPException(404, f"There is no operator {request.path_params['name'][:80]}.")
        name = found.short_name()
        if name not in described:
            described[name] = await asyncio.to_thread(_described, found, device)
        return described[name].answer(request.headers)


@cache
def _static_files() -> dict[str, KeptFile]:
    """By name, read and compressed once in each process."""
    kept = {}
    for path in (files(__package__) / "static").iterdir():
        suffix = path.name[path.name.rindex(".") :]
        kept[path.name] = KeptFile(
            path.read_bytes(),
            MEDIA_TYPES[suffix],
            {"content-security-policy": POLICY, "referrer-policy": "no-referrer"} if path.name == PAGE else None,
        )
    return kept


@cache
def _catalog() -> KeptFile:
    """What the list of operators and the matrix of what they take are made of."""
    document = {
        "version": __version__,
        "levels": list(FeatureLevel),
        "data_types": list(DataType),
        "operators": [_listed(operator) for operator in OPERATORS.values()],
    }
    return _document(document)


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


def _described(operator: type[Operator], device: Device) -> KeptFile:
    """All that a form for `operator` needs: what GET /v1/operators/{Type} answers, the descriptor's JSON Schema, and
    the input that its curve is drawn over and from where to where, if it has one."""
    drawn = curve(operator, device)
    return _document(
        {
            "description": describe(operator),
            "schema": operator.model_json_schema(),
            "curve": {"input": operator.tensor_names(Role.INPUT)[0], "range": drawn.x_range} if drawn else None,
        }
    )


def _document(document: Any) -> KeptFile:
    return KeptFile(orjson.dumps(document), JSON)
