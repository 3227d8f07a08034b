"""From a parsed document to a Pydantic model, refusals in the contract's own words."""

import json
import math
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError

from app.contract.constants import Constant
from app.contract.kinds import Kind
from app.contract.suggestions import did_you_mean
from app.contract.violations import ContractError, Hresult, Path, Violation

M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], value: object) -> M:
    """`value`, of dicts, lists and scalars, as `model`. Raises ContractError with what does not fit."""
    try:
        made: M = model.__pydantic_validator__.validate_python(value)  # model_validate's own way, without its options
        return made
    except ValidationError as error:
        errors = error.errors(include_url=False)
        hresult = Hresult.E_INVALIDARG if all(map(_is_expressible, errors)) else None
        raise ContractError((_violation(model, value, each) for each in errors), hresult) from None


def abbreviate(value: object, *, inner: bool = False) -> object:
    """`value` as a JSON value that is short enough to repeat to its sender; `inner` where it is part of another."""
    match value:
        case str():
            printable = value[:80].encode("utf-8", "backslashreplace").decode()
            return printable if len(value) <= 80 else f"{printable[:77]}..."
        case bool() | None:
            return value
        case int():
            return value if abs(value) < 1 << 63 else f"an integer of {value.bit_length()} bits"
        case float():
            return value if math.isfinite(value) else str(value)
        case list() | tuple() if inner or len(value) > 8:
            return f"a list of {len(value)}"
        case list() | tuple():
            return [abbreviate(each, inner=True) for each in value]
        case dict() if inner:
            return f"an object of {len(value)}"
        case dict():
            names = ", ".join(str(abbreviate(name)) for name in list(value)[:8])
            return f"an object with {names}" if value else "an empty object"
        case bytes() | bytearray() | memoryview():
            return f"{memoryview(value).nbytes} bytes of binary"
        case object(start=int() as start, stop=int() as stop):  # data that stay where they are in a body
            return f"{stop - start} bytes of data"
    return type(value).__name__


def in_words(value: object) -> object:
    """The same within a sentence, where a name that is empty, or blank at an end, would not be seen."""
    shown = abbreviate(value)
    return f"'{shown}'" if isinstance(shown, str) and (not shown or shown != shown.strip()) else shown


def in_json(value: object) -> str:
    """`value` as JSON has it. Words that stand for it, such as "an empty object", are not quoted as strings are."""
    shown = abbreviate(value)
    return shown if isinstance(shown, str) and not isinstance(value, str) else json.dumps(shown, ensure_ascii=False)


def meant_by(given: object, missing: Sequence[str]) -> str:
    """ " type is not a field here. Did you mean Type?" if one of the names in `given` was probably meant for one that
    is `missing`, without which nothing says what fields there are, and so which are wrong; else nothing."""
    for name in islice(given, 16) if isinstance(given, dict) else ():  # to Pydantic any object may have a Type
        if meant := did_you_mean(name, missing):
            return f" {in_words(name)} is not a field here.{meant}"
    return ""


_INVALID = {"INVALID", "DML_OPERATOR_INVALID", "DML_GRAPH_NODE_TYPE_INVALID"}
"""Constants of DirectML that stand for no operator, and for no kind of node."""

_EDGE_TYPE = "DML_GRAPH_EDGE_TYPE_"
_EDGE_TYPES = {"INVALID", "INPUT", "OUTPUT", "INTERMEDIATE"}


def _is_expressible(error: Any) -> bool:
    """Whether DirectML's own structures could hold what is refused, as a size of 0, nine dimensions or a constant that
    stands for none, so that DirectML refuses it; they hold no negative UINT, and no field that is missing or of another
    type."""
    match error["type"]:
        case "too_short" | "too_long" | "unfusable":
            return True
        case "model_type":  # a null pointer, but for structures that lie within the operator's own, as DML_SIZE_2D
            return error["input"] is None and error["ctx"]["class_name"] == "TensorDesc"
        case "greater_than_equal":
            return bool(error["input"] >= 0)
        case "constant":
            return str(error["input"]).removeprefix(error["ctx"]["prefix"]) == "UNKNOWN"
        case "union_tag_invalid":
            return error["ctx"]["tag"] in _INVALID
        case "literal_error":
            return str(error["input"]).removeprefix(_EDGE_TYPE) in _EDGE_TYPES
    return False


_EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}

_FEW_TAGS = 8
"""So many are named in the words of a refusal: kinds of nodes, but not operators."""


def _violation(model: type[BaseModel], value: object, error: Any) -> Violation:
    path = _path(value, error["loc"])
    given, context, kind = abbreviate(error["input"]), error.get("ctx", {}), error["type"]
    shown = in_json(error["input"])
    name = path[-1] if path else "The document"
    if isinstance(name, int):
        name = f"{path[-2]}[{name}]"
    match kind:
        case "missing":
            constant = _constant(model, value, path)
            said = f"{name} is missing; it is required here"
            if constant is None:
                return Violation(path, f"{said}.", None, "a value", Kind.FIELD_MISSING)
            members = [member.value for member in constant]
            return Violation(path, f"{said}: {constant.names()}.", None, members, Kind.FIELD_MISSING)
        case "extra_forbidden":
            known = _known_fields(model, value, path)
            message = f"{in_words(name)} is not a field here; known are {', '.join(known)}.{did_you_mean(name, known)}"
            return Violation(path, message, given, known, Kind.FIELD_UNKNOWN)
        case "union_tag_not_found":
            tag_name = context["discriminator"].strip("'")
            message = f"{tag_name} is missing; it says what this is."
            message += meant_by(error["input"], [tag_name])
            return Violation((*path, tag_name), message, None, "a value", Kind.FIELD_MISSING)
        case "union_tag_invalid":
            tags = [tag.strip("'") for tag in context["expected_tags"].split(", ")]
            known = [tag for tag in tags if tag.startswith("DML_")]  # each stands there without its prefix as well
            tag_name = context["discriminator"].strip("'")
            tagged = error["input"][tag_name]
            tag = abbreviate(tagged)
            is_full = str(tag).startswith("DML_")
            meant = did_you_mean(tag, [each for each in tags if each.startswith("DML_") == is_full])
            told = in_words(tagged) if isinstance(tagged, str) else in_json(tagged)
            few = [tag for tag in tags if not tag.startswith("DML_")] if len(known) <= _FEW_TAGS else []
            listed = f"; known are {', '.join(few)}" if few else ""
            message = f"{tag_name} {told} is not known here{listed}.{meant}"
            return Violation((*path, tag_name), message, tag, known, Kind.NAME)
        case "literal_error":
            expected = context["expected"].replace("'", "")
            names = re.split(", | or ", expected)
            message = f"{name} is {shown}; it must be {expected}.{did_you_mean(given, names)}"
            return Violation(path, message, given, names, Kind.NAME)
        case "greater_than_equal" | "less_than_equal" | "greater_than" | "less_than":
            ((relation, bound),) = context.items()
            symbol = {"ge": ">=", "le": "<=", "gt": ">", "lt": "<"}[relation]
            return Violation(path, f"{name} is {given}; it must be {symbol} {bound}.", given, f"{symbol} {bound}")
        case "too_short" | "too_long":
            bound = context.get("min_length", context.get("max_length"))
            symbol = ">=" if kind == "too_short" else "<="
            count = context["actual_length"]
            return Violation(
                path, f"{name} has {count} entries; allowed are {symbol} {bound}.", count, f"{symbol} {bound}"
            )
        case "string_too_long":
            bound, count = context["max_length"], len(error["input"])
            message = f"{name} has {count} characters; allowed are <= {bound}."
            return Violation(path, message, count, f"<= {bound}")
    if kind in _EXPECTED:
        message = f"{name} is {shown}; it must be {_EXPECTED[kind]}."
        return Violation(path, message, given, _EXPECTED[kind], Kind.FIELD_TYPE)
    allowed = context.get("allowed")
    message = f"{name} is {shown}; it {error['msg'][:1].lower()}{error['msg'][1:]}."
    if kind == "constant":
        message += did_you_mean(given, allowed)
        return Violation(path, message, given, allowed, Kind.NAME)
    return Violation(path, message, given, allowed)


def _path(value: Any, loc: Path) -> Path:
    """`loc` without what is not in the document: Pydantic names the chosen member of a union in between."""
    path: list[str | int] = []
    for position, part in enumerate(loc):
        if (isinstance(value, dict) and part in value) or (isinstance(value, list) and isinstance(part, int)):
            path.append(part)
            value = value[part]  # type: ignore[index]  # an index into a list, by the test above
        elif isinstance(value, dict) and position == len(loc) - 1:
            path.append(part)  # it is missing
    return tuple(path)


def _known_fields(model: type[BaseModel], value: Any, path: Path) -> list[str]:
    """The fields that may stand where the last part of `path` does."""
    return sorted({name for each in _holders(model, value, path) for name in each.model_fields})


def _constant(model: type[BaseModel], value: Any, path: Path) -> type[Constant] | None:
    """The enumeration of which the field at `path` is, if it is of one."""
    for holder in _holders(model, value, path):
        field = holder.model_fields.get(str(path[-1]))
        if field and isinstance(field.annotation, type) and issubclass(field.annotation, Constant):
            return field.annotation
    return None


def _holders(model: type[BaseModel], value: Any, path: Path) -> list[type[BaseModel]]:
    """The models that may hold the last part of `path`."""
    models = _models(model.model_fields["root"].annotation) if issubclass(model, RootModel) else [model]
    for part in path[:-1]:
        value = value[part]
        if isinstance(part, str):
            holders = [holder for holder in models if part in holder.model_fields]
            models = [each for holder in holders for each in _models(holder.model_fields[part].annotation)]
        if isinstance(value, dict):
            models = [each for each in models if _is_meant(each, value)]
    return [each for each in models if _is_meant(each, value)]


def _is_meant(model: type[BaseModel], value: dict[str, Any]) -> bool:
    """Whether the fields of `model` that only take certain names, such as Type, hold one of them in `value`."""
    return all(
        value.get(name) in get_args(info.annotation)
        for name, info in model.model_fields.items()
        if get_origin(info.annotation) is Literal
    )


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Model classes that an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [each for argument in get_args(annotation) for each in _models(argument)]
