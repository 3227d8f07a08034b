"""What requests have in common that one formula serves, whatever their sizes and numbers."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.formula.structures import Questions
from app.formula.values import FLOAT32, Input, Parameter, compute_type
from app.operators.operator import Operator, Role
from app.operators.parameters import Parameters, bare, fields_of
from app.programs.program import Map, Program


class Structure(NamedTuple):
    """All that a formula may know, but for the answers to what it asks of numbers.

    Of tensors that are there the data types, by name; of attributes those that are no FLOAT; of parts, such as
    ScaleBias, which ones there are.
    """

    operator: type[Operator]
    tensors: tuple[tuple[str, DataType], ...]
    choices: tuple[Hashable, ...]
    parts: tuple[type[BaseModel] | None, ...]
    axes: tuple[int, ...]

    @classmethod
    def of(cls, operator: Operator, tensors: Mapping[str, TensorDesc]) -> "Structure":
        """That of a descriptor with these `tensors`, outputs that it implies among them."""
        fields, values = fields_of(type(operator)), operator.__dict__
        return cls(
            type(operator),
            tuple([(name, desc.DataType) for name, desc in tensors.items()]),
            tuple([_hashable(values[name]) for name in fields.choices]),
            tuple([values[name] and type(values[name]) for name in fields.parts]),
            operator.axes(),
        )

    def program(self, questions: Questions) -> Program:
        """The formula over the inputs and attributes; optional inputs that are left out are None."""
        operator = self._skeleton()
        types = operator.stored_types()
        names = operator.tensor_names(Role.INPUT)
        inputs = [Input(compute_type(types[name]), name, types[name]) if name in types else None for name in names]
        (output,) = operator.tensor_names(Role.OUTPUT)
        parameters = {name: Parameter(FLOAT32, name) for name in self._parameter_names()}
        expression = operator.formula(Parameters(parameters, questions.ask), *inputs)
        stored = {name: types[name] for name in names if name in types}
        return Program(stored, {output: Map(expression, types[output], self.axes)})

    def _skeleton(self) -> Operator:
        """A descriptor without numbers and sizes: whoever looks for them gets an AttributeError."""
        fields = fields_of(self.operator)
        values: dict[str, Any] = dict.fromkeys(fields.tensors)
        values |= {name: _TensorForm(data_type) for name, data_type in self.tensors}
        values |= zip(fields.choices, self.choices, strict=True)
        values |= {name: part and bare(part) for name, part in zip(fields.parts, self.parts, strict=True)}
        return bare(self.operator, values)

    def _parameter_names(self) -> Iterator[str]:
        fields = fields_of(self.operator)
        yield from fields.numbers
        for name, part in zip(fields.parts, self.parts, strict=True):
            if part:
                yield from (f"{name}.{each}" for each in fields_of(part).numbers)


class _TensorForm(NamedTuple):
    """All that a formula sees of a tensor's descriptor."""

    DataType: DataType


def _hashable(choice: Any) -> Hashable:
    return tuple(choice) if isinstance(choice, list) else choice
