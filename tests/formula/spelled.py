"""Parameters that are called as their number is written, so that formulas in tests bring their numbers with them."""

from typing import Any

import numpy as np

from app.formula.structures import Questions
from app.formula.uniform import Numbers
from app.formula.values import FLOAT32, Number, Parameter, Value


class _Spelled(dict[str, Number]):
    def __missing__(self, name: str) -> Number:
        return float(name)


SPELLED: Numbers = _Spelled()


def number(value: Number, type_: str = FLOAT32) -> Parameter:
    """The parameter that is `value`, rounded to its type."""
    return Parameter(type_, repr(np.dtype(type_).type(value).item()))


def ask(test: Any, *subjects: Value) -> Any:
    """Answers from such parameters' names."""
    return Questions(SPELLED).ask(test, *subjects)
