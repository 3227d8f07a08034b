"""/docs without the Internet: Swagger UI from the package fastapi-offline, served by us."""

from importlib.resources import files

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from app.http.web.files import KeptFile

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Swagger UI puts styles on its elements."""


def install(app: FastAPI) -> None:
    """Have `app` serve the page and what it is made of; its script is among the playground's files."""
    app.mount("/docs/assets", StaticFiles(directory=str(files("fastapi_offline") / "static")))
    content = (files(__package__) / "pages" / "docs.html").read_bytes()
    page = KeptFile(content, "text/html; charset=utf-8", {"content-security-policy": POLICY})

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return page.answer(request.headers)
