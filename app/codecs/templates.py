"""Bodies that differ from an earlier one in nothing but their tensor data.

Clients send the same descriptor again and again. What was made of its bytes once, all judgement included, holds for
every body that has the same bytes around its tensor data.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

from app.codecs.codec import Body, Codec, Span

T = TypeVar("T")

_OF_ONE_LENGTH = 8
"""Bodies of one length that may differ in a digit of an attribute."""


class Template(Generic[T]):
    """`made` of a document of `length` bytes, all of which are in `pieces`, by offset, but for its spans."""

    def __init__(self, body: Body, spans: Sequence[Span], made: T) -> None:
        self.made = made
        starts = [0, *(span.stop for span in spans)]
        stops = [*(span.start for span in spans), len(body)]
        self._pieces = [(start, stop, bytes(body[start:stop])) for start, stop in zip(starts, stops, strict=True)]

    def matches(self, body: Body) -> bool:
        """Whether `body`, of the same length, is the same but for tensor data."""
        for start, stop, piece in self._pieces:  # noqa: SIM110 - all() takes twice as long
            if bytes(body[start:stop]) != piece:  # a view by itself is compared one byte at a time
                return False
        return True

    @property
    def size(self) -> int:
        """Bytes kept."""
        return sum(len(piece) for *_, piece in self._pieces)


class Templates(Generic[T]):
    """The templates last used, for at most `most` lengths of body, each of at most `most_bytes` without tensor data."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._by_length: OrderedDict[tuple[str, int], list[Template[T]]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, codec: Codec, body: Body) -> T | None:
        """What was made of a body like this one."""
        key = codec.media_type, len(body)
        with self._lock:
            for template in self._by_length.get(key, ()):
                if template.matches(body):
                    self._by_length.move_to_end(key)
                    return template.made
        return None

    def add(self, codec: Codec, body: Body, spans: Sequence[Span], made: T) -> None:
        """Remember `made`."""
        template = Template(body, sorted(spans, key=lambda span: span.start), made)
        if template.size > self._most_bytes:
            return
        with self._lock:
            templates = self._by_length.setdefault((codec.media_type, len(body)), [])
            templates.insert(0, template)
            del templates[_OF_ONE_LENGTH:]
            if len(self._by_length) > self._most:
                self._by_length.popitem(last=False)
