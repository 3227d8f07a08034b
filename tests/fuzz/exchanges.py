"""Requests, and what has to be answered to each."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.connection import Answer
from tests.fuzz.forms import DISPATCH, FORMS, JSON, MSGPACK, Form, Written, document, media_types
from tests.fuzz.payload import OPERATORS, PERIOD, Payloads, Wrong
from tests.fuzz.sizes import HEAVY, MEASURES, NEAR, THRESHOLDS

PROBE = 70 * PERIOD
"""Bytes of data of which it is measured how much longer requests and answers are."""

FRAMINGS = {
    "plain": (8, ()),
    "chunked": (2, ("Transfer-Encoding: chunked",)),
    "expect": (1, ("Expect: 100-continue",)),
    "upgrade": (
        1,
        ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"),
    ),
    "close": (0, ("Connection: close",)),
}
"""How often each is chosen among others, and its header fields."""

CHUNKS = (1, 7, 100, 5000, 1 << 16, 300_000)
"""Bytes of a chunk."""
MOST_CHUNKS = 100
"""The last one is the rest."""

SHOWN = ("ACTIVATION_CELU", "ACTIVATION_RELU", "ELEMENT_WISE_SIGN", "ELEMENT_WISE_TAN")
"""Operators that are asked for."""


@dataclass(frozen=True)
class Aim:
    """What is to be how long, in bytes."""

    measure: str
    threshold: int
    delta: int = 0

    def __str__(self) -> str:
        return f"{self.measure} of {self.threshold}{self.delta:+d}"


@dataclass(frozen=True)
class Exchange:
    """A request and what has to be answered."""

    owner: str
    """Whose it is, for people."""
    about: str
    """What it is, for people."""
    labels: tuple[str, ...]
    """What it is counted as when it was answered right."""
    head: bytes
    body: bytes
    check: Callable[[Answer], None]
    """Of an answer with this status. Raises anything."""
    status: int = 200
    request_id: bytes = b""
    """If the request has one."""
    framing: str = "plain"

    @property
    def message(self) -> bytes:
        return self.head + self.body

    def verify(self, answer: Answer) -> None:
        """Raises Wrong."""
        try:
            if answer.status != self.status:
                raise Wrong(f"status {answer.status} instead of {self.status}: {answer.body[:300]!r}")
            got = answer.fields.get(b"x-request-id")
            if self.request_id and got != self.request_id:
                raise Wrong(f"the answer is to request {got!r} instead of {self.request_id!r}")
            self.check(answer)
        except Wrong as wrong:
            raise Wrong(f"{self}, answer of {answer.size} bytes: {wrong}") from None
        except Exception as error:
            seen = f"{error!r} in {answer.fields} {answer.body[:200]!r}"
            raise Wrong(f"{self}, answer of {answer.size} bytes: {seen}") from error

    def __str__(self) -> str:
        return f"{self.owner}: {self.about}, header of {len(self.head)} and body of {len(self.body)} bytes"


class Exchanges:
    """Makes them. If the service `is_strict`, it has our HTTP protocol, of which more can be asked."""

    def __init__(self, payloads: Payloads, is_strict: bool) -> None:
        self._payloads = payloads
        self.framings = [each for each in FRAMINGS if is_strict or each != "upgrade"]
        self.endings = [self._close, _without_host] if is_strict else [self._close]
        self._more = {(form.name, "data"): 0 for form in FORMS}
        """How many bytes more than its tensor data something has, or than its text for them."""
        for form in FORMS:
            probe = self.dispatch(random.Random(0), "probe", form, PROBE)
            self._more[form.name, "body"] = len(probe.body) - round(form.given * PROBE)
            self._more[form.name, "message"] = len(probe.message) - round(form.given * PROBE)

    def learn(self, ask: Callable[[Exchange], Answer]) -> None:
        """How long answers are, from one of each form."""
        for form in FORMS:
            probe = self.dispatch(random.Random(form.name), "probe", form, PROBE)
            answer = ask(probe)
            probe.verify(answer)
            self._more[form.name, "answer"] = answer.size - round(form.wanted * PROBE)

    def size(self, form: Form, aim: Aim) -> int:
        """Bytes of data with which `aim` is met, where the form permits it."""
        ratio = {"data": 1.0, "answer": form.wanted}.get(aim.measure, form.given)
        size = aim.threshold + aim.delta
        if ratio:
            size = round((size - self._more[form.name, aim.measure]) / ratio)
        return max(size // form.step, 1) * form.step

    def some(self, rng: random.Random, owner: str) -> Exchange:
        """Any exchange."""
        if rng.random() < 0.15:
            return OTHERS[rng.choice(list(OTHERS))](rng, owner)
        framing = rng.choices(self.framings, [FRAMINGS[each][0] for each in self.framings])[0]
        form = rng.choice(FORMS)
        if rng.random() < 0.3:
            return self.dispatch(rng, owner, form, rng.randint(1, 3000) * form.step, framing=framing)
        return self.aimed(rng, owner, form, THRESHOLDS, framing)

    def aimed(
        self, rng: random.Random, owner: str, form: Form, thresholds: tuple[int, ...], framing: str = "plain"
    ) -> Exchange:
        """A dispatch whose size is near one of these."""
        possible = [each for each in thresholds if each <= form.most]
        (threshold,) = rng.choices(possible, [0.2 if each >= HEAVY else 1.0 for each in possible])
        aim = Aim(rng.choice(MEASURES), threshold, rng.randint(-NEAR, NEAR))
        return self.dispatch(rng, owner, form, self.size(form, aim), aim, framing)

    def dispatch(
        self,
        rng: random.Random,
        owner: str,
        form: Form,
        size: int,
        aim: Aim | None = None,
        framing: str = "plain",
        operator: str | None = None,
    ) -> Exchange:
        """`size` bytes of data. If the operator is given, the header is always the same one."""
        number = f"{rng.getrandbits(128):032x}"  # as long as those that the service makes up
        payload = self._payloads.make(rng, owner, size, operator or rng.choice(list(OPERATORS)))
        written = form.write(payload, number)
        request_id = b"" if operator or rng.random() < 0.3 else number.encode()

        def check(answer: Answer) -> None:
            self._payloads.compare(form.read(answer.fields, answer.body, number), payload)

        about = f"{form.name}, {framing}, {payload.operator} of {size} bytes" + (f" for a {aim}" if aim else "")
        labels = form.name, framing, *([f"size {aim.threshold}"] if aim else [])
        head, body = _framed(rng, written, framing, request_id)
        return Exchange(owner, about, labels, head, body, check, 200, request_id, framing)

    def ending(self, rng: random.Random, owner: str) -> Exchange:
        """One behind which the service closes the connection."""
        return rng.choice(self.endings)(rng, owner)

    def _close(self, rng: random.Random, owner: str) -> Exchange:
        return self.aimed(rng, owner, rng.choice(FORMS), THRESHOLDS, "close")


def _framed(rng: random.Random, written: Written, framing: str, request_id: bytes) -> tuple[bytes, bytes]:
    """Header and body as they are sent."""
    fields = ["Host: test", *written.fields, *FRAMINGS[framing][1]]
    if request_id:
        fields.append(f"X-Request-ID: {request_id.decode()}")
    body = written.body
    if framing == "chunked":
        body = _chunked(rng, body)
    elif body:
        fields.append(f"Content-Length: {len(body)}")
    return "\r\n".join([f"{written.method} {written.path} HTTP/1.1", *fields, "", ""]).encode(), body


def _chunked(rng: random.Random, body: bytes) -> bytes:
    pieces: list[bytes] = []
    start = 0
    while start < len(body):
        size = rng.choice(CHUNKS) if len(pieces) < MOST_CHUNKS else len(body)
        chunk = body[start : start + size]
        pieces.append(b"%x%b\r\n%b\r\n" % (len(chunk), rng.choice([b"", b";name=value"]), chunk))
        start += size
    return b"".join([*pieces, b"0\r\n", rng.choice([b"", b"X-Trailer: value\r\n"]), b"\r\n"])


# What is no dispatch, or refused


def _other(
    rng: random.Random, owner: str, name: str, written: Written, status: int, holds: Callable[[Answer], bool]
) -> Exchange:
    request_id = f"{rng.getrandbits(32):08x}".encode()

    def check(answer: Answer) -> None:
        if not holds(answer):
            raise Wrong(f"it is {answer.body[:300]!r}")

    head, body = _framed(rng, written, "plain", request_id)
    return Exchange(owner, name, (name,), head, body, check, status, request_id)


def _live(rng: random.Random, owner: str) -> Exchange:
    written = Written("/health/live", (), b"", "GET")
    return _other(rng, owner, "live", written, 200, lambda answer: json.loads(answer.body)["status"] == "ready")


def _operator(rng: random.Random, owner: str) -> Exchange:
    name = rng.choice(SHOWN)
    written = Written(f"/v1/operators/{name}", (), b"", "GET")
    return _other(rng, owner, "operator", written, 200, lambda answer: name in json.loads(answer.body)["Type"])


def _model(rng: random.Random, owner: str) -> Exchange:
    name = rng.choice(SHOWN).lower()
    written = Written(f"/v2/models/{name}", (), b"", "GET")
    return _other(rng, owner, "model", written, 200, lambda answer: json.loads(answer.body)["name"] == name)


def _no_model(rng: random.Random, owner: str) -> Exchange:
    name = f"none_{rng.getrandbits(32):08x}"
    written = Written(f"/v2/models/{name}/infer", (f"Content-Type: {JSON}",), b"{}")
    return _other(rng, owner, "no model", written, 404, lambda answer: name in json.loads(answer.body)["error"])


def _nowhere(rng: random.Random, owner: str) -> Exchange:
    written = Written(f"/nowhere/{rng.getrandbits(32):08x}", (), rng.randbytes(64) * rng.choice([1, 1000, 10_000]))
    return _other(rng, owner, "nowhere", written, 404, lambda answer: json.loads(answer.body)["status"] == 404)


def _unreadable(rng: random.Random, owner: str) -> Exchange:
    body = b"\xc1" * (rng.choice(THRESHOLDS[:-2]) + rng.randint(-NEAR, NEAR))
    written = Written(DISPATCH, media_types(MSGPACK, MSGPACK), body)
    return _other(rng, owner, "unreadable", written, 400, lambda answer: json.loads(answer.body)["status"] == 400)


def _against_contract(rng: random.Random, owner: str) -> Exchange:
    """The answer quotes what only this request has."""
    media_type = rng.choice([MSGPACK, JSON])
    name = f"none_{rng.getrandbits(32):08x}"
    desc = {"DataType": name, "Sizes": [1]}
    data = rng.randbytes(1) * rng.choice([1, 1000, 400_000])
    body = document(media_type, {"Type": "ELEMENT_WISE_IDENTITY", "InputTensor": desc}, data)
    written = Written(DISPATCH, media_types(media_type, media_type), body)
    return _other(rng, owner, "against contract", written, 422, lambda answer: name.encode() in answer.body)


OTHERS: dict[str, Callable[[random.Random, str], Exchange]] = {
    "live": _live,
    "operator": _operator,
    "model": _model,
    "no model": _no_model,
    "nowhere": _nowhere,
    "unreadable": _unreadable,
    "against contract": _against_contract,
}
"""By what they are counted as."""


def _without_host(rng: random.Random, owner: str) -> Exchange:
    """Refused by the HTTP protocol, which then closes the connection."""

    def check(answer: Answer) -> None:
        if answer.fields.get(b"connection") != b"close":
            raise Wrong(f"the connection is not closed: {answer.fields}")

    return Exchange(
        owner, "without host", ("without host",), b"GET /health/live HTTP/1.1\r\n\r\n", b"", check, 400, framing="close"
    )
