"""Documents out of bodies, in any representation."""

import re
from collections.abc import Callable
from typing import Literal, TypeVar

from app.codecs.codec import Body, Codec, Decoder
from app.codecs.json import JsonCodec
from app.codecs.msgpack import MsgpackCodec
from app.codecs.structure import Unreadable, too_long
from app.memory.accounts import LimitExceeded, MemoryShare
from app.settings import Settings
from app.stages import staged

T = TypeVar("T")

CODECS: dict[str, Codec] = {codec.media_type: codec for codec in (JsonCodec(), MsgpackCodec())}
"""By media type, the default first."""

_BEGINNINGS = (
    ("application/json", re.compile(rb"\s{0,8}\{\s{0,80}[\"}]"), "JSON"),
    ("application/msgpack", re.compile(rb"([\x81-\x8f]|\xde..|\xdf.{4})[\xa0-\xbf\xd9]", re.DOTALL), "MessagePack"),
    ("application/x-npy", re.compile(rb"\x93NUMPY"), "an npy file"),
    ("application/x-npz", re.compile(rb"PK\x03\x04"), "an npz file"),
    (None, re.compile(rb"\x1f\x8b"), "gzip, which Content-Encoding has to say"),
    (None, re.compile(rb"\x28\xb5\x2f\xfd"), "zstd, which Content-Encoding has to say"),
)
"""Media types, how bodies of them begin, and what they are called; what is compressed has none. Objects count only with
their first name: a safetensors file begins with the length of its header, which may be any byte."""

LIGHT = 1 << 13
"""Bytes of structure that are read and judged in so little time, whatever they are, that an event loop may do it."""


class TooHeavy(Exception):
    """A document is for a worker to read: its structure is of more than LIGHT bytes, or it has a graph."""


def read_document(
    codec: Decoder,
    body: Body,
    settings: Settings,
    memory: MemoryShare,
    judge: Callable[[object], T],
    *,
    only_light: bool = False,
    limit: Literal["max_structure_bytes", "max_graph_structure_bytes"] = "max_structure_bytes",
) -> T:
    """What `judge` makes of the document in `body`, for as long as which memory is taken for it. `limit` is the setting
    that bounds its structure.

    Raises Unreadable, LimitExceeded, what `judge` does, and TooHeavy for what is not light if it should be.
    """
    most: int = getattr(settings, limit)
    held = memory.held
    try:
        longest = LIGHT if only_light and most > LIGHT else most
        document = staged("decode", codec.decode, body, longest, settings.max_depth, memory)
        return staged("judge", judge, document)
    except Unreadable as error:
        raise Unreadable(f"{error}{_probably(codec, body)}") from None
    except LimitExceeded as error:
        if error.limit != "max_structure_bytes":
            raise
        if only_light and most > LIGHT:
            raise TooHeavy from None
        raise too_long(most, limit) from None
    finally:
        memory.give(memory.held - held)


def _probably(codec: Decoder, body: Body) -> str:
    """What an unreadable `body` probably is, if that is something else than `codec` reads; else nothing."""
    for kind, beginning, called in _BEGINNINGS:
        if kind != codec.media_type and beginning.match(body):
            return f" By its first bytes it may be {called}."
    return ""
