"""API keys: which there are, what each may ask for, and how much of it.

A file of keys has one on each line, and after it, separated by blanks, what is known of it:

    KEY  name=team-a  requests-per-second=50  bytes-in-flight=268435456  routes=/v1/dispatch,GET:/v1/*

Each is optional, and so a line may be a key and nothing else. No message, log line or metric holds a key.
"""

import hmac
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from time import monotonic
from typing import Any

from app.settings import Unusable

log = logging.getLogger("app")

UNNAMED = "unnamed"
"""What keys without a name are called together."""

_MOST_CHARACTERS = 1 << 22
"""Of a file of keys: some 50,000 of them."""

_BLANKS = " \t\r\n"
_KEY = re.compile(r"[!-~]+")
"""Visible ASCII: what fits into a header as it is."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ROUTE = re.compile(r"(?:([A-Z]+):)?(/[!-~]*)")


class Usage:
    """How much of its limits a key has used. For one event loop, and the same after its line is read again."""

    __slots__ = ("_requests", "_since", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._requests = math.inf  # that it may send at once; the first request finds what the limit allows
        self._since = 0.0

    def request(self, per_second: float) -> float:
        """Seconds until the key may send one more request, of `per_second`; 0 if it may now, which then counts."""
        if per_second == math.inf:
            return 0.0
        now = monotonic()
        most = max(per_second, 1.0)
        self._requests = min(self._requests + (now - self._since) * per_second, most)
        self._since = now
        if self._requests < 1.0:
            return (1.0 - self._requests) / per_second
        self._requests -= 1.0
        return 0.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What a key's line says of it."""

    name: str = UNNAMED
    requests_per_second: float = math.inf
    """As many may come at once, or one."""
    bytes_in_flight: float = math.inf
    """Of bodies whose requests are not answered, and of answers that are not sent."""
    routes: tuple[tuple[str, re.Pattern[str]], ...] = ()
    """Methods, or none for any, and the paths that the key may ask for; all if there is no route."""


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """One that is in force."""

    digest: bytes
    terms: Terms
    usage: Usage = field(default_factory=Usage)

    def allows(self, method: str, path: str) -> bool:
        """Whether the key may ask for this at all. Who may GET may ask for the header alone."""
        routes, methods = self.terms.routes, ("", method, "GET" if method == "HEAD" else method)
        return not routes or any(wanted in methods and paths.fullmatch(path) for wanted, paths in routes)


class Keys:
    """The API keys in force: `given`, separated by commas, and those in `file`, one a line. Empty ones are not there.

    What is there must hold keys, and nothing but keys. The constructor raises Unusable; no message holds a key.
    """

    def __init__(self, given: str, file: str) -> None:
        self.file = file
        self._given = _keys_given(given) if given else []
        self._keys = self._read({})

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key: str) -> Key | None:
        """Compares with every key, each in the same time whatever it is: digests have one length."""
        digest = sha256(key.encode()).digest()
        found = None
        for each in self._keys:
            if hmac.compare_digest(digest, each.digest):
                found = each
        return found

    def reload(self) -> None:
        """Read the file again, in any thread. If it cannot be used, the keys stay and the log says why."""
        if not self.file:
            return
        try:
            if os.path.exists(self.file) and not os.path.isfile(self.file):  # to read a pipe again could take for ever
                raise Unusable(f"{self.file} is no regular file, and was read to its end.")
            keys = self._read({key.digest: key.usage for key in self._keys})
        except Unusable as error:
            log.error("The API keys stay as they were: %s", error)
        else:
            self._keys = keys  # at once: requests are judged by the old keys or by the new
            log.info("The API keys were read again: %d", len(keys))

    def _read(self, usages: Mapping[bytes, Usage]) -> tuple[Key, ...]:
        known: dict[bytes, Terms] = {}
        for key, terms, where in [*self._given, *(_keys_in(self.file) if self.file else ())]:
            digest = sha256(key.encode()).digest()
            if known.setdefault(digest, terms) != terms:
                raise Unusable(
                    f"{where} is there before, and otherwise; a key may have one name and one set of limits."
                )
        return tuple(Key(digest, terms, usages.get(digest) or Usage()) for digest, terms in known.items())


def _keys_given(text: str) -> list[tuple[str, Terms, str]]:
    keys = [key for each in text.split(",") if (key := each.strip(_BLANKS))]
    if not keys:
        raise Unusable("api_keys holds no key; give one, or leave it out to let every client in.")
    places = [f"Key {number} of api_keys" for number in range(1, len(keys) + 1)]
    return [(_checked(key, where), Terms(), where) for key, where in zip(keys, places, strict=True)]


def _keys_in(file: str) -> list[tuple[str, Terms, str]]:
    keys = []
    try:
        with open(file, encoding="utf-8-sig") as opened:
            whole = opened.read(_MOST_CHARACTERS + 1)  # a device may have no end
    except OSError as error:
        raise Unusable(f"The API keys' file {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise Unusable(f"The API keys' file {file} cannot be read: it is not UTF-8.") from None
    if len(whole) > _MOST_CHARACTERS:
        raise Unusable(f"The API keys' file {file} has more than {_MOST_CHARACTERS} characters, which is the most.")
    for number, line in enumerate(whole.split("\n"), 1):
        text = line.strip(_BLANKS)
        if text and not text.startswith("#"):
            where = f"Line {number} of the API keys' file {file}"
            key, *said = re.split(f"[{_BLANKS}]+", text)
            keys.append((_checked(key, where), _terms(said, where), where))
    if not keys:
        raise Unusable(
            f"The API keys' file {file} holds no key; write one into it, or name no file to let every client in."
        )
    return keys


def _checked(key: str, where: str) -> str:
    if not _KEY.fullmatch(key):
        raise Unusable(f"{where} is not a key: keys are made of visible ASCII characters, without blanks.")
    return key


def _terms(said: Iterable[str], where: str) -> Terms:
    terms: dict[str, Any] = {}
    for each in said:
        word, _, value = each.partition("=")
        known = _WORDS.get(word)
        if known is None or word in terms:  # what stands there may be a key, so it is not repeated
            words = ", ".join(f"{name}=" for name in _WORDS)
            raise Unusable(
                f"{where} is not a key: after one there may be, each once, {words}, and blanks between them."
            )
        read, allowed = known
        try:
            terms[word] = read(value)
        except ValueError:
            raise Unusable(f"{where} has a {word} that is none; it is {allowed}.") from None
    return Terms(**{word.replace("-", "_"): value for word, value in terms.items()})


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError
    return text


def _rate(text: str) -> float:
    rate = float(text)
    if not 0.001 <= rate <= 1e9:  # NaN, too
        raise ValueError
    return rate


def _bytes(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise ValueError
    return int(text)


def _routes(text: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(map(_route, text.split(",")))


def _route(text: str) -> tuple[str, re.Pattern[str]]:
    found = _ROUTE.fullmatch(text)
    if not found:
        raise ValueError
    method, path = found.groups(default="")
    first, *others = map(re.escape, path.split("*"))
    if not others:
        return method, re.compile(first)
    *middle, last = others
    # Each * takes the least that it can and never another try: the time is linear in the path, which clients choose.
    return method, re.compile(f"{first}{''.join(f'(?>.*?{each})' for each in middle)}.*{last}", re.DOTALL)


_WORDS: dict[str, tuple[Callable[[str], Any], str]] = {
    "name": (_name, "1 to 64 letters, digits, dots, dashes and underscores"),
    "requests-per-second": (_rate, "a number from 0.001 to 1e9"),
    "bytes-in-flight": (_bytes, "a whole number of bytes, from 1 on"),
    "routes": (
        _routes,
        "paths separated by commas, in which * stands for anything, with or without METHOD: before them",
    ),
}
"""What a line may say of its key, how it is read, and what it may be."""
