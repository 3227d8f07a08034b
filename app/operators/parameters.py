"""What a descriptor's fields are to its formula, and its attributes that are numbers as symbolic values."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, get_args

from pydantic import BaseModel

from app.contract.tensors import TensorDesc
from app.formula.coordinates import TensorForm
from app.formula.expansions import Ask
from app.formula.values import FLOAT32, INT64, Number, Parameter

M = TypeVar("M", bound=BaseModel)


class Structural:
    """Marks an integer attribute, in its annotation, of which formulas that go by coordinates see the value itself."""


STRUCTURAL: Final = Structural()
"""`Axis: Annotated[Uint, STRUCTURAL]`: there is one formula for each of its values, so these must be few."""


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
        inside = {name.removeprefix(prefix): each for name, each in self._values.items() if name.startswith(prefix)}
        return Parameters(inside, self.ask)


def parameters_for(numbers: Mapping[str, Number], ask: Ask) -> Parameters:
    """One for each of the numbers, by its name."""
    types = {name: FLOAT32 if isinstance(number, float) else INT64 for name, number in numbers.items()}
    return Parameters({name: Parameter(type_, name) for name, type_ in types.items()}, ask)


class TensorParameters(Parameters):
    """What formulas that go by coordinates get: also the integer attributes, and the outputs' sizes.

    `p.Offsets`, an array, is a list of parameters, `p.BlockSize` an int64 parameter, and what is left out None.
    """

    def __init__(
        self,
        values: Mapping[str, Parameter],
        ask: Ask,
        outputs: Mapping[str, TensorForm],
        arrays: Mapping[str, int | None],
    ) -> None:
        """`arrays` has the lengths of the array attributes, and None for each attribute that is left out."""
        super().__init__(values, ask)
        self._outputs = outputs
        self._arrays = arrays

    def __getattr__(self, name: str) -> Any:
        if name not in self._arrays:
            return self._values[name]
        length = self._arrays[name]
        return None if length is None else [self._values[f"{name}[{place}]"] for place in range(length)]

    __getitem__ = __getattr__

    def out(self, name: str) -> TensorForm:
        """The output tensor of this name, such as "OutputTensor" or "OutputTensors[1]"; KeyError if it is not there."""
        return self._outputs[name]

    def has(self, name: str) -> bool:
        """Whether there is an output of this name."""
        return name in self._outputs


class Fields(NamedTuple):
    """The names of a model's fields, but for Type, by what they are to a formula."""

    tensors: tuple[str, ...]
    numbers: tuple[str, ...]
    parts: tuple[str, ...]
    choices: tuple[str, ...]


@cache
def fields_of(model: type[BaseModel]) -> Fields:
    """Told by their annotations: numbers are what may be a float, parts are structures, choices all else.

    Of operators that go by coordinates, and of parts, integers that are not STRUCTURAL are numbers as well.
    """
    integers = getattr(model, "by_coordinates", True)
    kinds: dict[str, list[str]] = {"tensors": [], "numbers": [], "parts": [], "choices": []}
    for name, info in model.model_fields.items():
        classes = list(_classes(info.annotation))
        if TensorDesc in classes:
            kinds["tensors"].append(name)
        elif float in classes or (integers and int in classes and STRUCTURAL not in info.metadata):
            kinds["numbers"].append(name)
        elif any(issubclass(each, BaseModel) for each in classes):
            kinds["parts"].append(name)
        elif name != "Type":
            kinds["choices"].append(name)
    return Fields(**{kind: tuple(names) for kind, names in kinds.items()})


@cache
def parameter_type(model: type[BaseModel], field: str) -> str:
    """The type of the parameters that a field of numbers is."""
    return FLOAT32 if float in _classes(model.model_fields[field].annotation) else INT64


def _classes(annotation: Any) -> Iterator[type]:
    """Classes that an annotation mentions."""
    if get_args(annotation):
        for each in get_args(annotation):
            yield from _classes(each)
    elif isinstance(annotation, type):
        yield annotation


def numbers_in(model: BaseModel, prefix: str = "") -> dict[str, Number]:
    """The numbers of `model` by the names of their parameters, and those of the structures in it."""
    values, found = model.__dict__, {}
    numbers, parts = _names_below(type(model), prefix)
    for name, parameter in numbers:
        value = values[name]
        if isinstance(value, list):
            for place, each in enumerate(value):
                found[f"{parameter}[{place}]"] = each
        elif value is not None:
            found[parameter] = value
    for name, below in parts:
        if values[name] is not None:
            found |= numbers_in(values[name], below)
    return found


@cache
def _names_below(model: type[BaseModel], prefix: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """The fields of numbers with the names of their parameters, and those of structures with what the names of theirs
    begin with."""
    fields = fields_of(model)
    numbers = tuple((name, prefix + name) for name in fields.numbers)
    return numbers, tuple((name, f"{prefix}{name}.") for name in fields.parts)


Form = tuple[bool | int | None, ...]


def form_of(model: BaseModel) -> Form:
    """For each field of numbers: True, the length of an array, or None if it is left out."""
    values = model.__dict__
    return tuple(
        [
            len(value) if isinstance(value := values[name], list) else None if value is None else True
            for name in fields_of(type(model)).numbers
        ]
    )


def parameters_of(model: type[BaseModel], form: Form, prefix: str = "") -> Iterator[Parameter]:
    """The parameters of a model's fields of numbers."""
    for name, there in zip(fields_of(model).numbers, form, strict=True):
        type_ = parameter_type(model, name)
        if there is True:
            yield Parameter(type_, prefix + name)
        elif there is not None:
            yield from (Parameter(type_, f"{prefix}{name}[{place}]") for place in range(there))


def bare(model: type[M], values: Mapping[str, Any] | None = None) -> M:
    """A `model` with these fields and no others, not even their defaults."""
    made = model.__new__(model)
    object.__setattr__(made, "__dict__", dict(values or {}))
    object.__setattr__(made, "__pydantic_fields_set__", set(values or ()))
    object.__setattr__(made, "__pydantic_extra__", None)
    object.__setattr__(made, "__pydantic_private__", None)
    return made
