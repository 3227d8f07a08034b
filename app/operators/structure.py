"""What requests have in common that one formula serves, whatever their sizes and numbers."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc, in_fields, path_of
from app.formula.coordinates import Operand, TensorForm, size_name
from app.formula.structures import Questions
from app.formula.values import INT64, Input, Number, Parameter, Value, compute_type, parts
from app.operators.operator import Operator, Role
from app.operators.parameters import (
    Form,
    Parameters,
    TensorParameters,
    bare,
    fields_of,
    form_of,
    parameters_of,
)
from app.programs.program import ArrayCall, Map, Program


class Structure(NamedTuple):
    """All that a formula may know, but for the answers to what it asks of numbers.

    Of tensors that are there the data types, by name, and where it goes by coordinates the ranks; of attributes those
    that are no numbers, and which numbers there are; of parts, such as ScaleBias, which ones there are.
    """

    operator: type[Operator]
    tensors: tuple[tuple[str, DataType], ...]
    ranks: tuple[int, ...] = ()
    numbers: Form = ()
    choices: tuple[Hashable, ...] = ()
    parts: "tuple[_Part | None, ...]" = ()
    axes: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        operator: Operator,
        tensors: Mapping[str, TensorDesc],
        types: tuple[tuple[str, DataType], ...] | None = None,
    ) -> "Structure":
        """That of a descriptor with these `tensors`, outputs that it implies among them, whose data types somebody may
        have found out."""
        kind, values = type(operator), operator.__dict__
        types = types or tuple([(name, desc.DataType) for name, desc in tensors.items()])
        if kind.call:
            return cls(kind, types)  # which reads the descriptor itself
        fields = fields_of(kind)
        return cls(
            kind,
            types,
            tuple([desc.rank for desc in tensors.values()]) if kind.by_coordinates else (),
            form_of(operator) if fields.numbers else (),
            tuple([_hashable(values[name]) for name in fields.choices]) if fields.choices else (),
            tuple([values[name] and _Part.of(values[name]) for name in fields.parts]) if fields.parts else (),
            operator.axes(),
        )

    def program(self, questions: Questions) -> Program:
        """The formula over the inputs and attributes; optional inputs that are left out are None."""
        if self.operator.call:
            inputs = self._of_role(Role.INPUT)
            types = dict(self.tensors)
            outputs = {name: types[name] for name in self._of_role(Role.OUTPUT)}
            return Program({name: types[name] for name in inputs}, {}, ArrayCall(outputs))
        return self._by_coordinates(questions) if self.operator.by_coordinates else self._by_position(questions)

    def element(self, p: Parameters, x: Value) -> Value:
        """What the formula makes of `x`, where that is its one input."""
        made: Value = self._skeleton().formula(p, x)
        return made

    def _by_position(self, questions: Questions) -> Program:
        operator = self._skeleton()
        types = operator.stored_types()
        names = self._of_role(Role.INPUT)
        inputs = in_fields({name: Input(compute_type(types[name]), name, types[name]) for name in names})
        fields = operator.tensor_names(Role.INPUT)
        parameters = {each.name: each for each in self._parameters()}
        made = operator.formula(Parameters(parameters, questions.ask), *map(inputs.get, fields))
        outputs = self._of_role(Role.OUTPUT)
        expressions = made if isinstance(made, dict) else dict(zip(outputs, [made], strict=True))
        maps = {name: Map(expressions[name], types[name], self.axes) for name in outputs}
        return Program({name: types[name] for name in names}, maps)

    def _by_coordinates(self, questions: Questions) -> Program:
        operator = self._skeleton()
        stored = operator.stored_types()
        forms = {
            name: Operand(name, data_type, _sizes(name, rank), stored[name])
            for (name, data_type), rank in zip(self.tensors, self.ranks, strict=True)
        }
        inputs, outputs = (self._of_role(role) for role in (Role.INPUT, Role.OUTPUT))
        parameters = {each.name: each for each in self._parameters()}
        arrays = {
            name: form
            for name, form in zip(fields_of(self.operator).numbers, self.numbers, strict=True)
            if form is not True
        }
        made_of = TensorParameters(
            parameters,
            questions.ask,
            {name: TensorForm(name, forms[name].data_type, forms[name].sizes) for name in outputs},
            arrays,
        )
        operands = in_fields({name: forms[name] for name in inputs})
        made = operator.formula(made_of, *map(operands.get, operator.tensor_names(Role.INPUT)))
        expressions = made if isinstance(made, dict) else dict(zip(outputs, [made], strict=True))
        maps = {name: self._map(expressions[name], stored[name]) for name in outputs}
        return Program({name: stored[name] for name in inputs}, maps)

    def _map(self, expression: Value, stored: DataType) -> Map:
        """By coordinates, unless the formula takes the elements of inputs at the output's own (`Operand.here`)."""
        if any(isinstance(node, Input) for node in parts(expression)):
            return Map(expression, stored, self.axes)
        return Map(expression, stored, by_coordinates=True)

    def _of_role(self, role: Role) -> list[str]:
        """The tensors that are there, each of an array by itself."""
        fields = set(self.operator.tensor_names(role))
        return [name for name, _ in self.tensors if path_of(name)[0] in fields]

    def _skeleton(self) -> Operator:
        """A descriptor without numbers and sizes: whoever looks for them gets an AttributeError."""
        fields = fields_of(self.operator)
        values: dict[str, Any] = dict.fromkeys(fields.tensors)
        ranks: Iterable[int | None] = self.ranks or [None] * len(self.tensors)
        values |= in_fields(
            {
                name: _Typed(data_type) if rank is None else _Ranked(data_type, rank)
                for (name, data_type), rank in zip(self.tensors, ranks, strict=True)
            }
        )
        values |= zip(fields.choices, self.choices, strict=True)
        values |= {name: part and bare(part.model) for name, part in zip(fields.parts, self.parts, strict=True)}
        return bare(self.operator, values)

    def _parameters(self) -> Iterator[Parameter]:
        yield from parameters_of(self.operator, self.numbers)
        for name, part in zip(fields_of(self.operator).parts, self.parts, strict=True):
            if part:
                yield from parameters_of(part.model, part.numbers, f"{name}.")


class _Part(NamedTuple):
    """A structure inside a descriptor, and which numbers it has."""

    model: type[BaseModel]
    numbers: Form

    @classmethod
    def of(cls, part: BaseModel) -> "_Part":
        return cls(type(part), form_of(part))


class _Typed(NamedTuple):
    """All that a formula sees of a tensor's descriptor."""

    DataType: DataType


class _Ranked(NamedTuple):
    """The same where it goes by coordinates."""

    DataType: DataType
    rank: int


def sizes_of(tensors: Mapping[str, TensorDesc]) -> Iterator[tuple[str, Number]]:
    """The sizes of tensors by the names of their parameters."""
    for name, desc in tensors.items():
        for axis, size in enumerate(desc.Sizes):
            yield size_name(name, axis), size


def _sizes(name: str, rank: int) -> list[Parameter]:
    return [Parameter(INT64, size_name(name, axis)) for axis in range(rank)]


def _hashable(choice: Any) -> Hashable:
    return tuple(choice) if isinstance(choice, list) else choice
