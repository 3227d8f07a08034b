"""API keys: `Authorization: Bearer KEY` (RFC 6750)."""

import hmac
import logging
import os
import re
from collections.abc import Iterable
from hashlib import sha256

from app.http.core.exchange import Handler, Reply, Request
from app.http.core.problems import Problem
from app.settings import Unusable

log = logging.getLogger("app")

PAGE = "/"
OPEN = ("/health/", "/v2/health/", "/docs", "/operators", "/errors", "/openapi.json", "/static/")
"""Paths, and beginnings of paths, that need no key beside PAGE: they tell nothing of anyone, and probes and browsers
send none."""

_BLANKS = " \t\r\n"
_KEY = re.compile(r"[!-~]+")
"""Visible ASCII: what fits into a header as it is."""


class Keys:
    """The API keys in force: `given`, separated by commas, and those in `file`, one a line. Empty ones are not there.

    What is there must hold keys, and nothing but keys. The constructor raises Unusable; no message holds a key.
    """

    def __init__(self, given: str, file: str) -> None:
        self._given = _keys_given(given) if given else []
        self._file = file
        self._digests = _digests(self._given + (_keys_in(file) if file else []))

    def __len__(self) -> int:
        return len(self._digests)

    def admit(self, key: str) -> bool:
        """Compares with every key, each in the same time whatever it is: digests have one length."""
        digest = sha256(key.encode()).digest()
        return sum(hmac.compare_digest(digest, each) for each in self._digests) > 0

    def reload(self) -> None:
        """Read the file again, in any thread. If it cannot be used, the keys stay and the log says why."""
        if not self._file:
            return
        try:
            if os.path.exists(self._file) and not os.path.isfile(
                self._file
            ):  # to read a pipe again could take for ever
                raise Unusable(f"{self._file} is no regular file, and was read to its end.")
            digests = _digests(self._given + _keys_in(self._file))
        except Unusable as error:
            log.error("The API keys stay as they were: %s", error)
        else:
            self._digests = digests  # at once: requests are judged by the old keys or by the new
            log.info("The API keys were read again: %d", len(digests))


def _keys_given(text: str) -> list[str]:
    keys = [key for each in text.split(",") if (key := each.strip(_BLANKS))]
    if not keys:
        raise Unusable("api_keys holds no key; give one, or leave it out to let every client in.")
    for number, key in enumerate(keys, 1):
        _check(key, f"Key {number} of api_keys")
    return keys


def _keys_in(file: str) -> list[str]:
    keys = []
    try:
        with open(file, encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                key = line.strip(_BLANKS)
                if key and not key.startswith("#"):
                    _check(key, f"Line {number} of the API keys' file {file}")
                    keys.append(key)
    except OSError as error:
        raise Unusable(f"The API keys' file {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise Unusable(f"The API keys' file {file} cannot be read: it is not UTF-8.") from None
    if not keys:
        raise Unusable(
            f"The API keys' file {file} holds no key; write one into it, or name no file to let every client in."
        )
    return keys


def _check(key: str, where: str) -> None:
    if not _KEY.fullmatch(key):
        raise Unusable(f"{where} is not a key: keys are made of visible ASCII characters, without blanks.")


def _digests(keys: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(sha256(key.encode()).digest() for key in keys)


def authenticating(handler: Handler, keys: Keys) -> Handler:
    """Middleware that answers 401 to requests without a valid key, before their body is read."""

    async def handle(request: Request) -> Reply:
        if request.path == PAGE or request.path.startswith(OPEN):
            return await handler(request)
        scheme, _, key = request.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if not key:
            problem = _refusal("An API key is required; send it as 'Authorization: Bearer KEY'.", "")
        elif scheme.lower() != "bearer":
            problem = _refusal(f"Authorization scheme {scheme[:40]} is not known; use Bearer.", "")
        elif not keys.admit(key.strip()):
            problem = _refusal("The API key is not valid.", ', error="invalid_token"')
        else:
            return await handler(request)
        return Reply.of(problem.at(request.path))

    return handle


def _refusal(detail: str, parameters: str) -> Problem:
    return Problem(401, detail, headers={"WWW-Authenticate": f'Bearer realm="dmlserve"{parameters}'})
