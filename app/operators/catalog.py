"""All operators: the one list that everything else is made from."""

from types import ModuleType
from typing import TYPE_CHECKING, Annotated, TypeAlias, Union

from pydantic import Field

from app.operators import activation, element_wise
from app.operators.operator import PREFIX, Operator


def _operators(module: ModuleType) -> list[type[Operator]]:
    """The operators that `module` defines, in its order."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Operator) and value.__module__ == module.__name__
    ]


OPERATORS: dict[str, type[Operator]] = {
    operator.name(): operator for module in (activation, element_wise) for operator in _operators(module)
}
"""Operator classes by full name."""

if TYPE_CHECKING:
    OperatorDesc: TypeAlias = Operator
else:
    OperatorDesc = Annotated[Union[tuple(OPERATORS.values())], Field(discriminator="Type")]  # noqa: UP007 - made at run time


def find_operator(name: str) -> type[Operator] | None:
    """The operator called `name`, with or without DML_OPERATOR_."""
    return OPERATORS.get(PREFIX + name.removeprefix(PREFIX))
