"""/docs without the Internet: Swagger UI from the package fastapi-offline, served by us."""

from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

_ASSETS = "/docs/assets"


def install(app: FastAPI) -> None:
    """Have `app` serve the page and what it is made of."""
    app.mount(_ASSETS, StaticFiles(directory=str(files("fastapi_offline") / "static")))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title=f"{app.title} API",
            swagger_js_url=f"{_ASSETS[1:]}/swagger-ui-bundle.js",
            swagger_css_url=f"{_ASSETS[1:]}/swagger-ui.css",
            swagger_favicon_url=f"{_ASSETS[1:]}/favicon.png",
        )
