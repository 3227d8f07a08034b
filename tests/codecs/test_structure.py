"""What holds in every representation."""

import pytest

from app.codecs.structure import Unreadable, object_of


class Name(str):
    """A string that counts how often it is compared."""

    __slots__ = ()
    __hash__ = str.__hash__
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Name.comparisons += 1
        return str.__eq__(self, other)


def test_a_name_twice_is_found_without_comparing_each_with_each() -> None:
    names = [Name(number) for number in range(10_000)]
    with pytest.raises(Unreadable, match="'9999' stands twice"):
        object_of([(name, None) for name in [*names, Name(9999)]])
    assert Name.comparisons < 100_000


def test_a_long_name_is_not_repeated_at_length() -> None:
    with pytest.raises(Unreadable) as refusal:
        object_of([("n" * 100_000, 1), ("n" * 100_000, 2)])
    assert len(str(refusal.value)) < 200
