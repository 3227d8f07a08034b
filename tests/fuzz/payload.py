"""Tensor data that no two requests share, and whose are those that turn up where they do not belong."""

import base64
import contextlib
import random
from collections import deque
from dataclasses import dataclass

PERIOD = 1021
"""Bytes after which data repeat: a prime, so that data at a wrong place are wrong data."""

SAMPLE = 24
"""Bytes by which data are recognized."""

OPERATORS = {"ELEMENT_WISE_IDENTITY": bytes(range(256)), "ELEMENT_WISE_BIT_NOT": bytes(range(255, -1, -1))}
"""Operators on bytes, and what becomes of each byte."""


class Wrong(Exception):
    """What was answered is not what was asked."""


@dataclass(frozen=True)
class Payload:
    """The data of one request: `block` again and again."""

    owner: str
    """The request, for people."""
    block: bytes
    size: int
    operator: str

    @property
    def data(self) -> bytes:
        return _repeated(self.block, self.size)

    @property
    def result(self) -> bytes:
        return _repeated(self.block.translate(OPERATORS[self.operator]), self.size)


def _repeated(block: bytes, size: int) -> bytes:
    return (block * (size // len(block) + 1))[:size]


class Payloads:
    """Makes them, for any thread, and remembers the last ones of all."""

    def __init__(self) -> None:
        self._last: deque[Payload] = deque(maxlen=10_000)

    def make(self, rng: random.Random, owner: str, size: int, operator: str) -> Payload:
        payload = Payload(owner, rng.randbytes(PERIOD), size, operator)
        self._last.append(payload)
        return payload

    def compare(self, got: bytes, payload: Payload) -> None:
        """Raises Wrong if `got` is not the result of `payload`; it tells where, and whose it is instead."""
        expected = payload.result
        if got == expected:
            return
        if len(got) != len(expected):
            raise Wrong(f"{len(got)} bytes of data instead of {len(expected)}")
        differing = [place for place in range(len(got)) if got[place] != expected[place]]
        first, last = differing[0], differing[-1]
        strange = got[first : first + SAMPLE]
        raise Wrong(
            f"{len(differing)} of {len(got)} bytes of data are wrong, from {first} to {last}; there is "
            f"{strange.hex(' ')} instead of {expected[first : first + SAMPLE].hex(' ')}: {self._whose(strange)}"
        )

    def _whose(self, strange: bytes) -> str:
        """Where these bytes come from, as they are or as base64."""
        decoded = []
        for start in range(4):
            with contextlib.suppress(ValueError):
                decoded.append(
                    base64.b64decode(strange[start : len(strange) - (len(strange) - start) % 4], validate=True)
                )
        for payload in list(self._last):
            result = payload.block.translate(OPERATORS[payload.operator])
            for what, block in ("data", payload.block), ("the result", result):
                around = block + block[:SAMPLE]
                if strange in around:
                    return f"{what} of {payload.owner}"
                if any(each in around for each in decoded):
                    return f"{what} of {payload.owner} as base64"
        return "nobody's data"
