"""What documents of every representation have to obey."""

from collections import Counter

from app.limits import LimitExceeded


class Unreadable(Exception):
    """The body is not a document of its media type."""


def object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A dict of `pairs`. Raises Unreadable if a name comes twice: a client might mean the other one."""
    result = dict(pairs)
    if len(result) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise Unreadable(f"The name {twice[:80]!a} stands twice in one object; give it once.")
    return result


def too_deep(max_depth: int) -> LimitExceeded:
    return LimitExceeded("max_depth", "Nesting of arrays and objects in the body", None, max_depth)


def too_long(max_structure_bytes: int) -> LimitExceeded:
    return LimitExceeded("max_structure_bytes", "Bytes of the body that are not tensor data", None, max_structure_bytes)
