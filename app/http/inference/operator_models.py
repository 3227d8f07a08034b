"""Models that are operators: attributes are parameters."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from app.contract.suggestions import did_you_mean
from app.contract.tensors import element_name, in_fields, members, packed_strides, path_of
from app.contract.validation import in_words, validate
from app.contract.violations import refused
from app.engine.dispatch import DispatchRequest
from app.engine.inference_counts import Took
from app.engine.service import Service
from app.http.inference.documents import InferInput, InferRequest, InferRequestedOutput, ModelMetadata
from app.http.inference.model import BINARY_OUTPUT, VERSION, JudgedInference, is_binary
from app.http.inference.operator_metadata import metadata
from app.http.inference.tensors import DATATYPES
from app.http.telemetry.inferences import InferenceCounts
from app.operators.operator import Operator, Role
from app.steps import in_step

_SETTINGS = ("feature_level", "in_place", "device")
_OUTPUT_MEMBERS = ("DataType", "Sizes")
_MOST_DOTS = 4

N = TypeVar("N", InferInput, InferRequestedOutput)
T = TypeVar("T")


class OperatorModel:
    """Implements `Model`."""

    version = VERSION

    def __init__(self, service: Service, operator: type[Operator]) -> None:
        self._service = service
        self._operator = operator
        self._name = operator.name()

    async def judge(self, request: InferRequest, *, only_light: bool) -> JudgedInference:
        """As a dispatch with the same descriptor is judged."""
        operator = self._operator
        inputs = _by_name("inputs", request.inputs, Role.INPUT, operator)
        wanted = _by_name("outputs", request.outputs or [], Role.OUTPUT, operator)
        parameters = _Parameters(operator, request.parameters)
        spread = _broadcast(operator, {name: each.shape for name, each in inputs.items()}, parameters.outputs)
        tensors = _arrays_whole(
            {
                name: {"DataType": DATATYPES[each.datatype].value} | spread.get(name, {"Sizes": each.shape})
                for name, each in inputs.items()
            }
        )
        descriptor = {"Type": operator.name()} | tensors | parameters.attributes
        document = {"inputs": {}, **parameters.settings}
        stated: dict[str, dict[str, Any]] = {name: {} for name in wanted if name in operator.optional_outputs()}
        stated |= parameters.outputs
        of_arrays = {name: stated.pop(name) for name in [*stated] if path_of(name) != (name,)}
        descriptor |= _arrays_whole(of_arrays)
        # What is implied of the others is asked of a descriptor, which has these.
        descriptor |= {name: stated.pop(name) for name in [*stated] if operator.model_fields[name].is_required()}
        for name, said in stated.items():
            implied: Mapping[str, object] = {}
            if len(said) < len(_OUTPUT_MEMBERS):
                plain = self._service.compiled(validate(DispatchRequest, document | {"operator": descriptor}))
                with contextlib.suppress(LookupError):  # then it is missing, which is refused
                    desc = plain.operator.implied(name, plain.level)
                    implied = {member: getattr(desc, member) for member in _OUTPUT_MEMBERS}
            descriptor = descriptor | {name: {**implied, **said}}
        await in_step()
        prepared = await self._service.prepare(validate(DispatchRequest, document | {"operator": descriptor}))
        return JudgedInference(prepared, parameters.binary_data_output)

    def metadata(self, name: str) -> ModelMetadata:
        return metadata(self._operator, name)

    def observe(self, counts: InferenceCounts, ns: int, took: Took | None) -> None:
        counts.observe(self._name, ns, took)


def _broadcast(
    operator: type[Operator], shapes: Mapping[str, list[int]], outputs: Mapping[str, Mapping[str, object]]
) -> dict[str, dict[str, list[int]]]:
    """Sizes and strides of inputs that are repeated so that all are of equal sizes which have to be, by NumPy's rules.

    The protocol has no strides, by which clients of the native API say so themselves. `outputs` are what parameters
    state, which is compared here, where it is known what was sent. Raises ContractError.
    """
    alike: Sequence[Sequence[str]] = operator.same_sizes or ()
    if operator.same_sizes is None:
        alike = [[name for name in operator.tensor_names() if name not in operator.one_element]]
    found: dict[str, dict[str, list[int]]] = {}
    for group in alike:
        there = members(tuple(group), shapes)
        if len({tuple(shapes[name]) for name in there}) < 2:
            continue
        told = " and ".join(f"{name} {in_words(shapes[name])}" for name in there)
        try:
            whole = list(np.broadcast_shapes(*(tuple(shapes[name]) for name in there)))
        except ValueError:
            raise refused(
                ("inputs",), f"Shapes of {told} cannot be broadcast to one shape by NumPy's rules.", told
            ) from None
        for name in group:
            sizes = outputs.get(name, {}).get("Sizes")
            if sizes not in (None, whole):
                parameter = f"{name}.Sizes"
                message = f"{parameter} is {in_words(sizes)} but {told} are broadcast to {whole}; they must be equal."
                raise refused(("parameters", parameter), message, sizes, whole)
        for name in there:
            shape = shapes[name]
            if shape != whole:
                aligned = [1] * (len(whole) - len(shape)) + shape
                strides = zip(aligned, packed_strides(aligned), strict=True)
                found[name] = {"Sizes": whole, "Strides": [0 if size == 1 else stride for size, stride in strides]}
    return found


class _Parameters:
    """A request's parameters, sorted: attributes by name, members of outputs by name, the service's own."""

    def __init__(self, operator: type[Operator], given: Mapping[str, Any]) -> None:
        self.attributes: dict[str, Any] = {}
        self.outputs: dict[str, dict[str, Any]] = {}
        self.settings: dict[str, Any] = {}
        self.binary_data_output: bool | None = None
        attributes, outputs = operator.attribute_names(), operator.tensor_names(Role.OUTPUT)
        for name, value in given.items():
            first, *rest = name.split(".", _MOST_DOTS)
            if name in _SETTINGS:
                self.settings[name] = value
            elif name == BINARY_OUTPUT:
                self.binary_data_output = is_binary(value)
            elif first in attributes:
                _put(self.attributes, name, [first, *rest], value)
            elif _is_tensor(operator, first, outputs) and len(rest) == 1 and rest[0] in _OUTPUT_MEMBERS:
                is_type = rest == ["DataType"] and isinstance(value, str)
                _put(self.outputs, name, [first, *rest], DATATYPES.get(value, value) if is_type else value)
            else:
                called = [element_name(each, 0) if each in operator.array_names() else each for each in outputs]
                members = [f"{output}.{member}" for output in called for member in _OUTPUT_MEMBERS]
                known = [*attributes, *members, *_SETTINGS, BINARY_OUTPUT]
                raise refused(
                    ("parameters", name),
                    f"{in_words(name)} is no parameter of {operator.name()}; known are {', '.join(known)}."
                    f"{did_you_mean(name, known)}",
                    name,
                    known,
                )


def _put(into: dict[str, Any], name: str, path: list[str], value: object) -> None:
    """Set a member of nested objects. Raises ContractError if something is there already."""
    *parents, last = path
    for parent in parents:
        into = into.setdefault(parent, {})
        if not isinstance(into, dict):
            break
    if not isinstance(into, dict) or last in into:
        raise refused(("parameters", name), f"{in_words(name)} is given twice, dotted and not.", name)
    into[last] = value


def _is_tensor(operator: type[Operator], name: str, fields: Sequence[str]) -> bool:
    """Whether `name` is that of a tensor in one of the `fields`, which in an array is InputTensors[0] and so on."""
    field, *place = path_of(name)
    if field not in fields:
        return False
    return name == element_name(str(field), int(place[0])) if place else name not in operator.array_names()


def _arrays_whole(tensors: Mapping[str, T]) -> dict[str, T | list[T]]:
    """`tensors` by field, those of arrays in lists. Raises ContractError where one of an array is missing."""
    ordered = sorted(tensors, key=lambda name: path_of(name)[1:])
    result = in_fields({name: tensors[name] for name in ordered})
    for field, made in result.items():
        for place in range(len(made) if isinstance(made, list) and field not in tensors else 0):
            if element_name(field, place) not in tensors:
                name = element_name(field, place)
                raise refused((name,), f"{name} is missing; the tensors of an array are given from 0 on.", None, name)
    return result


def _by_name(what: str, given: Sequence[N], role: Role, operator: type[Operator]) -> dict[str, N]:
    result = {each.name: each for each in given}
    fields = operator.tensor_names(role)
    known = [element_name(name, 0) if name in operator.array_names() else name for name in fields]
    for name in result:
        if not _is_tensor(operator, name, fields):
            raise refused(
                (what,),
                f"{operator.name()} has no {what[:-1]} {in_words(name)}; {what} are {', '.join(known)}."
                f"{did_you_mean(name, known)}",
                name,
                list(known),
            )
    return result
