"""Names that were probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache

_LONGEST = 80
_SHORT = 8
"""Letters of a word that one of them wrong makes less like itself than a long name."""


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """ " Did you mean ELEMENT_WISE_ADD?" where one of the `known` names has `given`, whatever its case, as one or more
    of its parts, or is like it, else nothing."""
    return _suggestion(given, tuple(known)) if isinstance(given, str) and 0 < len(given) <= _LONGEST else ""


@lru_cache(256)
def _suggestion(given: str, known: tuple[str, ...]) -> str:
    if given in known:
        return ""
    having = [name for name in known if f"_{given.lower()}_" in f"_{name.lower()}_"]
    if having:
        return f" Did you mean {min(having, key=len)}?"
    lower = {name.lower(): name for name in reversed(known)}
    likeness = 0.6 if given.isalpha() and len(given) <= _SHORT else 0.75
    found = get_close_matches(given.lower(), lower, 1, likeness)
    return f" Did you mean {lower[found[0]]}?" if found else ""
