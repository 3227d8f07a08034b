"""Documents for the codecs: how to read them in a test, and strategies that make them."""

import base64
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st

from app.codecs.codec import Codec, Hole, Span
from app.codecs.structure import Unreadable
from app.memory.accounts import LimitExceeded, MemoryAccount, MemoryShare

MAX_STRUCTURE_BYTES = 1 << 18
MAX_DEPTH = 32
PLENTY = 1 << 40


def share() -> MemoryShare:
    """An account that nobody else draws on."""
    return MemoryAccount(PLENTY).open()


def decode(
    codec: Codec, body: bytes, max_structure_bytes: int = MAX_STRUCTURE_BYTES, max_depth: int = MAX_DEPTH
) -> Any:
    """What `body` says, with spans as the text or the bytes that they are."""
    document = codec.decode(body, max_structure_bytes, max_depth, share())
    is_text = codec.media_type == "application/json"

    def shown(span: Span) -> str | bytes:
        data = body[span.start : span.stop]
        return data.decode() if is_text else data

    return replaced(document, Span, shown)


def outcome(read: Callable[[], Any]) -> Any:
    """What `read` returns, or the class of the refusal that it raises; any other exception passes."""
    try:
        return read()
    except (Unreadable, LimitExceeded) as refusal:
        return type(refusal)


def encoded(codec: Codec, document: Any) -> bytes:
    """`document` with its bytes as tensor data."""
    data: dict[str, bytes] = {}

    def hole(value: bytes) -> Hole:
        name = str(len(data))
        data[name] = value
        return Hole(name)

    pieces: list[Any] = []
    for piece in codec.encode(replaced(document, bytes, hole)):
        if isinstance(piece, Hole):
            value = codec.encode_data(memoryview(data[piece.name]))
            made = list(value.pieces)
            assert sum(map(len, made)) == value.length
            pieces += made
        else:
            pieces.append(piece)
    return b"".join(pieces)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
integers = st.integers(-(2**63), 2**64 - 1)
finite_floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | integers | finite_floats | texts


def documents(leaves: st.SearchStrategy[Any] = scalars) -> st.SearchStrategy[Any]:
    """Documents of dicts, lists and `leaves`."""
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=20
    )


def replaced(value: Any, kind: type, replacement: Callable[[Any], Any]) -> Any:
    """`value` with each leaf of a kind replaced."""
    if isinstance(value, dict):
        return {name: replaced(each, kind, replacement) for name, each in value.items()}
    if isinstance(value, list):
        return [replaced(each, kind, replacement) for each in value]
    return replacement(value) if isinstance(value, kind) else value


def base64_in_place_of_bytes(value: Any) -> Any:
    """`value` as JSON shows it."""
    return replaced(value, bytes, lambda data: base64.b64encode(data).decode())


@st.composite
def mutations(draw: st.DrawFn, originals: st.SearchStrategy[bytes]) -> bytes:
    """One of `originals` after a few pieces of it were deleted, replaced, inserted or doubled."""
    body = draw(originals)
    for _ in range(draw(st.integers(1, 4))):
        # Near the ends, where the structure of a large body is, as often as anywhere.
        start = draw(st.integers(0, len(body)) | st.integers(0, min(200, len(body))))
        start = draw(st.sampled_from([start, len(body) - start]))
        end = min(len(body), start + draw(st.integers(0, 12)))
        piece = draw(
            st.binary(max_size=8)
            | st.sampled_from(
                [body[start:end] * 2, b'"', b"\\", b'\\"', b"{", b"]", b"\xff", b"\xc6\xff\xff\xff\xff", b"NaN"]
            )
        )
        body = body[:start] + piece + body[end:]
    return body
