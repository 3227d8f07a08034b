"""What shells complete: names of operators, families, types and feature levels, by click's `shell_complete`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from click import Context, Parameter
from click.shell_completion import CompletionItem

from app.contract.constants import DataType, FeatureLevel
from app.operators.catalog import OPERATORS

Complete = Callable[[Context, Parameter, str], list[CompletionItem]]

FILTERS: Mapping[str, Sequence[str]] = {
    "family": sorted({operator.family() for operator in OPERATORS.values()}),
    "data_type": list(DataType),
    "feature_level": list(FeatureLevel),
}
"""What each field of OperatorFilter may be."""


def names(known: Sequence[str]) -> Complete:
    """Completes one of the names `known`, in the case in which it was begun."""

    def complete(context: Context, parameter: Parameter, begun: str) -> list[CompletionItem]:
        found = [name for name in known if name.lower().startswith(begun.lower())]
        return [CompletionItem(name.lower() if begun.islower() else name) for name in found]

    return complete


def files(kind: str) -> Complete:
    """Has the shell complete the name of a `kind`, which is file or dir."""
    return lambda context, parameter, begun: [CompletionItem(begun, type=kind)]


operator_names = names([name for operator in OPERATORS.values() for name in (operator.short_name(), operator.name())])


def operators_and_files(context: Context, parameter: Parameter, begun: str) -> list[CompletionItem]:
    """Operators where one may stand, which is first, and otherwise files."""
    given: Any = context.params.get(parameter.name or "")
    found = [] if given or not begun else operator_names(context, parameter, begun)
    return found or files("file")(context, parameter, begun)
