"""Routes to endpoints that take tensors."""

from collections.abc import Callable
from typing import Any

from fastapi.routing import APIRoute
from starlette.types import ASGIApp


class DirectRoute(APIRoute):
    """A route for POST to an ASGI application, documented as FastAPI's are. `documented` has the description."""

    def __init__(
        self, path: str, app: ASGIApp, documented: Callable[[], None], tag: str, described: dict[str, Any]
    ) -> None:
        super().__init__(path, documented, methods=["POST"], tags=[tag], **described)
        self.app = app
