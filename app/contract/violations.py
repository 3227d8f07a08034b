"""How the contract says no: which field, what was given, what is allowed and why."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import TypeAlias

from app.contract.kinds import Kind, kind_at

Path: TypeAlias = tuple[str | int, ...]

MAX_VIOLATIONS = 32
"""More in one refusal help nobody, while a small request can have ten thousands."""


_ROOTS: tuple[Path, ...] = (("operator",), ("graph",))
"""What goes without saying."""

_LISTS: tuple[Path, ...] = (("inputs",), ("outputs",), ("parameters",))
"""What is wrong with what these hold by name says what it is."""


class Hresult(StrEnum):
    """The HRESULT that DirectML answers in the same situation."""

    E_INVALIDARG = "0x80070057"
    E_OUTOFMEMORY = "0x8007000E"
    DXGI_ERROR_DEVICE_REMOVED = "0x887A0005"
    DXGI_ERROR_UNSUPPORTED = "0x887A0004"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule.

    `path` leads to the field from the root of what was judged; `message` is one sentence that a user can act on;
    `given` and `allowed` are JSON values; `stated_kind` is what it is of, where its path does not tell.
    """

    path: Path
    message: str
    given: object = None
    allowed: object = None
    stated_kind: Kind | None = None

    @property
    def kind(self) -> Kind:
        return self.stated_kind or kind_at(self.path)

    @property
    def options(self) -> list[object]:
        """What is allowed, one by one: values, or in words. Where a list was given, a list is one of them, unless they
        are names."""
        allowed = self.allowed
        if allowed is None:
            return []
        if not isinstance(allowed, list | tuple):
            return [allowed]
        is_one = (
            isinstance(self.given, list | tuple)
            and not any(isinstance(each, list | tuple) for each in allowed)
            and self.stated_kind not in (Kind.NAME, Kind.FIELD_UNKNOWN)
        )
        return [list(allowed)] if is_one else list(allowed)

    @property
    def pointer(self) -> str:
        """`path` as an RFC 6901 JSON pointer."""
        return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in self.path)

    @property
    def placed_message(self) -> str:
        """`message` for those who get no pointer: behind what its field is in, unless it says so itself."""
        path = self.path[1:] if self.path[:1] in _ROOTS else self.path
        field = max((place for place, part in enumerate(path) if isinstance(part, str)), default=0)
        around = path[:field]
        if not around or around in _LISTS or not self.message.startswith(str(path[field])):
            return self.message
        names = [part for part in around if isinstance(part, str)]
        if names and names[-1] in self.message:
            return self.message
        dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in around)
        return f"{dotted.removeprefix('.')}: {self.message}"

    def below(self, *parents: str | int) -> "Violation":
        """The same violation seen from further up."""
        return replace(self, path=(*parents, *self.path))


class ContractError(Exception):
    """What was asked breaks the contract; nothing was computed."""

    def __init__(self, violations: Iterable[Violation], hresult: Hresult | None = Hresult.E_INVALIDARG) -> None:
        self.violations = tuple(islice(violations, MAX_VIOLATIONS))
        self.hresult = hresult
        super().__init__(" ".join(violation.message for violation in self.violations))

    def below(self, *parents: str | int) -> "ContractError":
        """The same error seen from further up."""
        return ContractError([violation.below(*parents) for violation in self.violations], self.hresult)


def refused(
    path: Path,
    message: str,
    given: object = None,
    allowed: object = None,
    hresult: Hresult | None = None,
    kind: Kind | None = None,
) -> ContractError:
    """The error of a single violation, by default of something that DirectML has no HRESULT for."""
    return ContractError([Violation(path, message, given, allowed, kind)], hresult)
