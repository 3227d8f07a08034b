"""What a descriptor's fields are to its formula, and its FLOAT attributes as symbolic values."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel

from app.contract.tensors import TensorDesc
from app.formula.expansions import Ask
from app.formula.values import Number, Parameter

M = TypeVar("M", bound=BaseModel)


class Parameters:
    """An operator's FLOAT attributes as symbolic values: `p.Alpha`, or `p["ScaleBias.Scale"]` inside a structure."""

    def __init__(self, values: Mapping[str, Parameter], ask: Ask) -> None:
        self._values = values
        self.ask = ask
        """Whether `test` holds of some of them: `p.ask(lambda alpha: alpha <= 2, p.Alpha)`. It has one formula for each
        answer."""

    def __getattr__(self, name: str) -> Parameter:
        return self._values[name]

    __getitem__ = __getattr__

    def below(self, prefix: str) -> "Parameters":
        """Those inside the structure whose names begin with `prefix`, by what follows it."""
        return Parameters({name.removeprefix(prefix): each for name, each in self._values.items()}, self.ask)


class Fields(NamedTuple):
    """The names of a model's fields, but for Type, by what they are to a formula."""

    tensors: tuple[str, ...]
    numbers: tuple[str, ...]
    parts: tuple[str, ...]
    choices: tuple[str, ...]


@cache
def fields_of(model: type[BaseModel]) -> Fields:
    """Told by their annotations: numbers are what may be a float, parts are structures, choices all else."""
    kinds: dict[str, list[str]] = {"tensors": [], "numbers": [], "parts": [], "choices": []}
    for name, info in model.model_fields.items():
        classes = list(_classes(info.annotation))
        if TensorDesc in classes:
            kinds["tensors"].append(name)
        elif float in classes:
            kinds["numbers"].append(name)
        elif any(issubclass(each, BaseModel) for each in classes):
            kinds["parts"].append(name)
        elif name != "Type":
            kinds["choices"].append(name)
    return Fields(**{kind: tuple(names) for kind, names in kinds.items()})


def _classes(annotation: Any) -> Iterator[type]:
    """Classes that an annotation mentions."""
    if get_args(annotation):
        for each in get_args(annotation):
            yield from _classes(each)
    elif isinstance(annotation, type):
        yield annotation


def numbers_in(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, Number]]:
    """The FLOAT attributes of `model` by the names of their parameters, and those of the structures in it."""
    fields, values = fields_of(type(model)), model.__dict__
    for name in fields.numbers:
        yield prefix + name, values[name]
    for name in fields.parts:
        if values[name] is not None:
            yield from numbers_in(values[name], f"{prefix}{name}.")


def bare(model: type[M], values: Mapping[str, Any] | None = None) -> M:
    """A `model` with these fields and no others, not even their defaults."""
    made = model.__new__(model)
    object.__setattr__(made, "__dict__", dict(values or {}))
    object.__setattr__(made, "__pydantic_fields_set__", set())
    object.__setattr__(made, "__pydantic_extra__", None)
    object.__setattr__(made, "__pydantic_private__", None)
    return made
