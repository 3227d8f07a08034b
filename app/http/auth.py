"""API keys: `Authorization: Bearer KEY` (RFC 6750)."""

import hmac
from collections.abc import Sequence
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from app.http.at_once import Prompt, Reply, Request
from app.http.problems import Problem

OPEN = ("/health/", "/v2/health/", "/docs", "/operators", "/openapi.json")
"""Paths, and beginnings of paths, that need no key: they tell nothing of anyone, and probes and browsers send none."""


class Authentication:
    """ASGI middleware that answers 401 to requests without a valid key, before their body is read."""

    def __init__(self, app: Prompt, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(OPEN):
            await self._app(scope, receive, send)
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        if not key:
            problem = self._refusal("An API key is required; send it as 'Authorization: Bearer KEY'.", "")
        elif scheme.lower() != "bearer":
            problem = self._refusal(f"Authorization scheme {scheme[:40]} is not known; use Bearer.", "")
        elif not self._is_valid(key.strip()):
            problem = self._refusal("The API key is not valid.", ', error="invalid_token"')
        else:
            await self._app(scope, receive, send)
            return
        await problem(scope, receive, send)

    def at_once(self, request: Request) -> Reply | None:
        scheme, _, key = request.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        return self._app.at_once(request) if scheme.lower() == "bearer" and self._is_valid(key.strip()) else None

    def _is_valid(self, key: str) -> bool:
        """Compares with every key, each in the same time whatever it is: digests have one length."""
        digest = sha256(key.encode()).digest()
        return sum(hmac.compare_digest(digest, each) for each in self._digests) > 0

    @staticmethod
    def _refusal(detail: str, parameters: str) -> Problem:
        return Problem(401, detail, headers={"WWW-Authenticate": f'Bearer realm="dmlserve"{parameters}'})
