"""Bodies of the protocol's requests but for inference."""

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel

from app.contract.validation import validate
from app.http.core.asgi import request_of
from app.http.core.bodies import read_judged
from app.http.core.documents import CODECS
from app.http.core.media_types import JSON

M = TypeVar("M", bound=BaseModel)


async def read_json(request: Request, kind: type[M], default: M | None = None) -> M:
    """The body, which is JSON whatever its Content-Type says; `default` where there is none."""
    asked = request_of(request.scope, request.receive)
    headers = asked.headers
    if default and headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers:
        return default

    def judge(document: object) -> M:
        # Generated clients say null for a body that was left out.
        return default if default and document is None else validate(kind, document)

    return await read_judged(request.app.state.service, asked, CODECS[JSON], judge)
