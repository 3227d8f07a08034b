"""Bodies of the protocol's requests but for inference."""

from typing import TypeVar

from pydantic import BaseModel

from app.contract.validation import validate
from app.engine.service import Service
from app.http.core.bodies import read_judged
from app.http.core.documents import CODECS
from app.http.core.exchange import Request
from app.http.core.media_types import JSON

M = TypeVar("M", bound=BaseModel)


async def read_json(service: Service, request: Request, kind: type[M], default: M | None = None) -> M:
    """The body, which is JSON whatever its Content-Type says; `default` where there is none."""
    headers = request.headers
    if default and headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers:
        return default

    def judge(document: object) -> M:
        # Generated clients say null for a body that was left out.
        return default if default and document is None else validate(kind, document)

    return await read_judged(service, request, CODECS[JSON], judge)
