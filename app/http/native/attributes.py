"""A dispatch of one operator as names and texts: a query's, a command line's."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from app.codecs.number_text import integer
from app.contract.kinds import Kind
from app.contract.suggestions import did_you_mean
from app.contract.tensors import element_name, path_of
from app.contract.validation import in_words
from app.contract.violations import ContractError, Violation, refused
from app.operators.operator import Operator, Role

SETTINGS = ("feature_level", "device", "in_place")
"""What is said of the dispatch, by names that no attribute has."""

_NUMBER = re.compile(r"-?(0|[1-9]\d{0,99})(\.\d{1,99})?([eE][+-]?\d{1,5})?")
_WORDS = {"true": True, "false": False, "null": None}
_TENSOR_MEMBERS = ("DataType", "Sizes", "Strides", "Flags", "TotalTensorSizeInBytes")


def first_input(operator: type[Operator]) -> str:
    """The tensor that a file with one tensor is. Raises ContractError if the operator has no inputs."""
    names = operator.tensor_names(Role.INPUT)
    if not names:
        raise refused(
            ("Type",),
            f"{operator.name()} has no input, which a file would be; a request to POST /v1/dispatch executes it.",
            operator.name(),
        )
    return element_name(names[0], 0) if names[0] in operator.array_names() else names[0]


def read_attributes(operator: type[Operator], pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """A dispatch of `operator`, but for its inputs, of `pairs` of names and texts.

    Members of structures have dotted names: ScaleBias.Scale. Lists have commas; those of structures have places, from 0
    on: OutputTensors[0].Sizes. DataType, Sizes and other members of descriptors are the first input's unless they are
    attributes. Texts become what the descriptor has in their place; what does not fit is for the descriptor to refuse.
    Raises ContractError for a name that is there twice, and for a place that is missing.
    """
    made: dict[Any, Any] = {"operator": {"Type": operator.name()}}
    for name, text in pairs:
        parts: list[str | int] = [*name.split(".")]
        into: dict[str | int, Any]
        if name in SETTINGS:
            into, kind = made, str
        else:
            into = made["operator"]
            place = path_of(str(parts[0]))
            if place[0] in operator.model_fields:
                parts[:1] = place
            elif parts[0] in _TENSOR_MEMBERS:
                parts = [*map(str, path_of(first_input(operator))[:1]), *parts]
                if parts[0] in operator.array_names():
                    raise refused((name,), f"{name} is of no single tensor here; send a file that has it.", name)
            kind = _annotation(operator, [part for part in parts if isinstance(part, str)])
        *parents, last = parts
        for parent in parents:
            into = into.setdefault(parent, {})
            if not isinstance(into, dict):
                raise _twice(operator, name)
        if last in into:
            raise _twice(operator, name)
        into[last] = _typed(kind, text)
    members = made["operator"]
    for field in [field for field, each in members.items() if isinstance(each, dict)]:
        if any(isinstance(place, int) for place in members[field]):
            members[field] = _in_order(field, members[field])
    return made


def _in_order(field: str, by_place: dict[object, Any]) -> list[Any]:
    """The list of what was given by its places. Raises ContractError where one is missing."""
    for place in range(len(by_place)):
        if place not in by_place:
            name = element_name(field, place)
            raise refused((name,), f"{name} is missing; what is in a list is given from 0 on.", None, name)
    return [by_place[place] for place in range(len(by_place))]


def in_query(operator: type[Operator], error: ContractError) -> ContractError:
    """`error` with the paths of fields as `read_attributes` takes them."""
    violations = [_in_query(operator, each) if each.path[:1] == ("operator",) else each for each in error.violations]
    return ContractError(violations, error.hresult)


def _in_query(operator: type[Operator], violation: Violation) -> Violation:
    """A field's of the descriptor. Of one that is not known the others are told that stand beside the descriptor's."""
    made = replace(violation, path=violation.path[1:], stated_kind=violation.kind)
    if made.kind is Kind.FIELD_MISSING and len(made.path) == 2 and _is_both(operator, made.path[1]):
        tensor, member = made.path
        why = f"{member} by itself is an attribute of {operator.name()}"
        return replace(made, message=f"{tensor}.{member} is missing; it is required here, and {why}.")
    if made.kind is not Kind.FIELD_UNKNOWN or len(made.path) > 1:
        return made
    (name,) = made.path
    known = [*map(str, made.options), *_TENSOR_MEMBERS, *SETTINGS]
    message = f"{in_words(name)} is not a field here; known are {', '.join(known)}.{did_you_mean(name, known)}"
    return replace(made, message=message, allowed=known)


def _twice(operator: type[Operator], name: str) -> ContractError:
    other = f", and the tensor's as {first_input(operator)}.{name}" if _is_both(operator, name) else ""
    return refused((name,), f"{in_words(name)} is given twice; give it once{other}.", name)


def _is_both(operator: type[Operator], name: object) -> bool:
    """Whether `name` by itself is an attribute, though tensors have such members too, as Sizes of SLICE."""
    return name in _TENSOR_MEMBERS and name in operator.model_fields


def _annotation(model: type[BaseModel], parts: list[str]) -> Any:
    """The annotation of the field that `parts` lead to. That of a text where there is none."""
    models, found = [model], None
    for part in parts:
        found = next((each.model_fields[part].annotation for each in models if part in each.model_fields), str)
        models = [each for each in _classes(found) if isinstance(each, type) and issubclass(each, BaseModel)]
    return found


def _classes(annotation: Any) -> Iterator[Any]:
    """What an annotation is made of."""
    yield annotation
    for each in get_args(annotation):
        yield from _classes(each)


def _typed(annotation: Any, text: str) -> Any:
    parts = list(_classes(annotation))
    if text == "null" or (bool in parts and text in _WORDS):
        return _WORDS[text]
    lists = [each for each in parts if get_origin(each) is list]
    if lists:
        inner = text.removeprefix("[").removesuffix("]")
        return [_typed(get_args(lists[0])[0], each.strip()) for each in inner.split(",")] if inner.strip() else []
    if not {int, float, bool}.isdisjoint(parts) and _NUMBER.fullmatch(text):
        return json.loads(text, parse_int=integer)
    return text
