"""Cross-origin requests from web pages."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from app.http.core.at_once import Prompt, Reply, Request
from app.http.core.headers import JSON_LENGTH, REQUEST_ID
from app.http.core.problems import Problem


class Cors(CORSMiddleware):
    """Lets pages of `origins` call the service. A refused preflight is a problem, like every other error."""

    def __init__(self, app: Prompt, origins: Sequence[str]) -> None:
        self._app = app
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", JSON_LENGTH, REQUEST_ID],
            expose_headers=[JSON_LENGTH, REQUEST_ID, "Retry-After"],
        )

    def at_once(self, request: Request) -> Reply | None:
        return None if b"origin" in request.headers else self._app.at_once(request)

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        headers = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
        return Problem(response.status_code, f"{bytes(response.body).decode()}.", headers=headers)
