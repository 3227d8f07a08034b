"""What refusals tell of the names that there are, of which there may be thousands."""

from collections.abc import Collection
from itertools import islice

from app.contract.suggestions import did_you_mean
from app.contract.validation import abbreviate

_SHOWN, _COMPARED = 16, 256
"""So many names are told, and so many are compared with one that nobody has."""


def listed(values: Collection[object]) -> str:
    """The first few of `values`, for a message. It takes no longer for more of them."""
    shown = ", ".join(str(abbreviate(value)) for value in islice(values, _SHOWN))
    return f"{shown} and {len(values) - _SHOWN} more" if len(values) > _SHOWN else shown


def meant(name: str, names: Collection[str]) -> str:
    """Which of `names` was probably meant. Of more than can be compared soon, nothing is said."""
    return did_you_mean(name, names) if len(names) <= _COMPARED else ""


def one_of(names: Collection[str]) -> object:
    """What is allowed, where that is one of `names`: all of them, if they are few."""
    return [abbreviate(name) for name in names] if len(names) <= _SHOWN else f"one of {len(names)} names"
