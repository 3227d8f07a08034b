"""What was made of requests before, for those that differ from an earlier one in nothing but their tensor data.

Clients send the same descriptor again and again. What was made of its bytes once, all judgement included, holds for
every body that has the same bytes around its tensor data.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Generic, TypeAlias, TypeVar

from app.codecs.codec import Body, Decoder, Span

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

MOST = 1024
"""Requests that are remembered, each with all that was prepared for it."""

MOST_BYTES = 1 << 26
"""Bytes of all that is remembered: of what was made of requests, and of structures, which these are found by."""

LONGEST = 1 << 14
"""Bytes of one of them. A request that has more is judged each time."""

_LAYOUTS = 8
"""Of bodies of one length. Each costs a look-up."""

_Layout: TypeAlias = tuple[tuple[int, int], ...]
"""Where in a body its structure is, which is all but tensor data: where each piece begins and ends."""


class LastUsed(Generic[K, T]):
    """The values last used, at most `most` of them whose sizes come to at most `most_bytes`. For any thread.

    `hits` and `misses` count the searches, `bytes` is the size of what is kept.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self.hits = self.misses = self.bytes = 0
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[K, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """How many values are kept."""
        return len(self._kept)

    def find(self, keys: Iterable[K]) -> T | None:
        """The value of the first of `keys` that has one."""
        with self._lock:
            for key in keys:
                found = self._kept.get(key)
                if found is not None:
                    self._kept.move_to_end(key)
                    self.hits += 1
                    return found[0]
            self.misses += 1
        return None

    def add(self, key: K, value: T, size: int) -> None:
        """Remember `value`, of `size` bytes, for which others are forgotten, unless that is more than there may be."""
        with self._lock:
            known = self._kept.pop(key, None)
            self.bytes -= known[1] if known else 0
            if size > self._most_bytes:
                return
            self.bytes += size
            self._kept[key] = value, size
            while len(self._kept) > self._most or self.bytes > self._most_bytes:
                _, (_, forgotten) = self._kept.popitem(last=False)
                self.bytes -= forgotten


class Doorkeeper:
    """Admits to a cache of `most` values what comes the second time. For any thread.

    What comes only once would take the place of what comes again, and keep its memory while that is still in the
    processor's cache.
    """

    def __init__(self, most: int) -> None:
        self._most = 4 * most
        self._seen: set[int] = set()

    def admits(self, key: Hashable) -> bool:
        """Whether it was asked before, not too long ago."""
        mark = hash(key)
        if mark in self._seen:
            return True
        if len(self._seen) >= self._most:
            self._seen.clear()
        self._seen.add(mark)
        return False


class RequestCache(Generic[T]):
    """What was made of the bodies last used, found by their structures."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES, longest: int = LONGEST) -> None:
        self.made: LastUsed[tuple[str, _Layout, bytes], T] = LastUsed(most, most_bytes)
        self._longest = longest
        self._doorkeeper = Doorkeeper(most)
        self._lock = threading.Lock()
        # Of as many lengths as there are values. Each value's length was used since it was: none is out of reach.
        self._layouts: OrderedDict[tuple[str, int], tuple[_Layout, ...]] = OrderedDict()
        self._most = most

    def find(self, codec: Decoder, body: Body) -> T | None:
        """What was made of a body like this one."""
        key = codec.key
        length = key, len(body)
        layouts = self._layouts.get(length, ())
        if layouts:
            try:  # noqa: SIM105 - `suppress` takes three times as long, for each dispatch
                self._layouts.move_to_end(length)
            except KeyError:  # another thread has just forgotten it
                pass
        return self.made.find([(key, layout, _structure(body, layout)) for layout in layouts])

    def add(self, codec: Decoder, body: Body, spans: Sequence[Span], made: T, made_bytes: int = 0) -> None:
        """Remember what was `made` of `body`, whose tensor data are at `spans`, unless its structure is too long. For
        it there are `made_bytes` of memory that go with it."""
        start, size, pieces = 0, len(body), []
        for span in spans if len(spans) < 2 else sorted(spans, key=_begin):
            pieces.append((start, span.start))
            start = span.stop
            size -= start - span.start
        if size > self._longest:
            return
        pieces.append((start, len(body)))
        layout = tuple(pieces)
        structure = _structure(body, layout)
        if not self._doorkeeper.admits(structure):
            return
        length = codec.key, len(body)
        with self._lock:
            layouts = self._layouts.get(length, ())
            if layout not in layouts:
                self._layouts[length] = (layout, *layouts[: _LAYOUTS - 1])
            if len(self._layouts) > self._most:
                self._layouts.popitem(last=False)
        self.made.add((codec.key, layout, structure), made, size + made_bytes)


_begin = attrgetter("start")


def _structure(body: Body, layout: _Layout) -> bytes:
    return b"".join([body[start:stop] for start, stop in layout])
