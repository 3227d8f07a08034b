"""Query parameters in."""

from collections import Counter
from typing import TypeVar

from pydantic import BaseModel
from starlette.datastructures import QueryParams

from app.contract.kinds import Kind
from app.contract.validation import in_words, validate
from app.contract.violations import ContractError, Violation

M = TypeVar("M", bound=BaseModel)


def read_query(query: bytes, model: type[M], empty_is_absent: bool = False) -> M:
    """`query` as `model`, whose fields are single texts. Raises ContractError."""
    pairs = [pair for pair in QueryParams(query).multi_items() if pair[1] or not empty_is_absent]
    violations = [
        Violation((name,), f"{in_words(name)} is given {count} times; give it once.", count, 1)
        for name, count in Counter(name for name, _ in pairs).items()
        if count > 1
    ]
    if violations:
        raise ContractError(violations, hresult=None)
    return validate(model, dict(pairs))


def refuse_query(query: bytes, why: str = "this path has none") -> None:
    """Raises ContractError where there is something in `query`, which has no fields here."""
    violations = [
        Violation(
            (name,), f"{in_words(name)} is not a field of the query; {why}.", text, stated_kind=Kind.FIELD_UNKNOWN
        )
        for name, text in QueryParams(query).items()
    ]
    if violations:
        raise ContractError(violations, hresult=None)
