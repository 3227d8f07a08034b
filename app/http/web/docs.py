"""/docs without the Internet: Swagger UI from the package fastapi-offline, served by us."""

import asyncio
from functools import cache
from importlib.resources import files
from mimetypes import guess_type

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from app.http.core.exchange import Reply, Request
from app.http.core.routes import Given, pages
from app.http.web.files import HTML, answer_file

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Swagger UI puts styles on its elements."""


def routes() -> list[BaseRoute]:
    """Those of the page and what it is made of; its script is among the playground's files."""
    assets = {each.name: each for each in (files("fastapi_offline") / "static").iterdir() if each.is_file()}
    page = (files(__package__) / "pages" / "docs.html").read_bytes()
    reading = asyncio.Lock()
    read = cache(lambda name: assets[name].read_bytes())
    found = pages()

    @found.get("/docs/assets/{name}")
    async def asset(_: Request, path: Given) -> Reply:
        name = path["name"]
        if name not in assets:
            raise HTTPException(404, f"There is no file {name[:80]}.")
        async with reading:  # else each request would have a file of its own, more than a MiB that nothing counts
            content = await asyncio.to_thread(read, name)
        return answer_file(content, guess_type(name)[0] or "application/octet-stream")

    @found.get("/docs")
    async def docs(_: Request, __: Given) -> Reply:
        return answer_file(page, HTML, POLICY)

    return found.routes
