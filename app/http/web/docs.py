"""/docs without the Internet: Swagger UI from the package fastapi-offline, served by us."""

from importlib.resources import files

from fastapi import FastAPI
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles


def install(app: FastAPI) -> None:
    """Have `app` serve the page and what it is made of."""
    app.mount("/docs/assets", StaticFiles(directory=str(files("fastapi_offline") / "static")))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(str(files(__package__) / "pages" / "docs.html"))
