"""Operator descriptors as DxDispatch has them in JSON, brought to ours: the operator's class judges the rest.

DxDispatch fills a C structure, so that more must be there than a dispatch needs: outputs, counts of arrays, and every
attribute but ScaleBias and FusedActivation. What a structure does not have is ignored.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel

from app.contract.scalars import FLOAT_MAX, INFINITIES, ScalarUnion, Size2D
from app.contract.suggestions import did_you_mean
from app.contract.tensors import TensorDesc
from app.contract.validation import abbreviate, in_words, validate
from app.contract.violations import ContractError, Path, Violation, refused
from app.models.dxdispatch.values import truncated
from app.operators.catalog import OPERATORS, find_operator
from app.operators.fusion import Fused
from app.operators.operator import PREFIX, Operator, Role, ScaleBias

OPTIONAL = ("ScaleBias", "FusedActivation")
"""Attributes that a descriptor may do without."""

_BUFFER = ("BUFFER", "DML_TENSOR_TYPE_BUFFER")
_HALF = ("FLOAT16", "DML_TENSOR_DATA_TYPE_FLOAT16")


class Described(NamedTuple):
    """An operator, and where in the model its descriptor's parts are that stand elsewhere than in ours."""

    operator: Operator
    path: Path
    moved: Mapping[Path, Path]

    def located(self, error: ContractError) -> ContractError:
        """`error`, whose paths start at the operator, as seen from the model's root."""
        return _located(error, self.path, self.moved)


def described(value: Mapping[str, Any], type_: str, path: Path) -> Described:
    """The operator `type_` of the dispatchable `value`, which is at `path`. Raises ContractError."""
    kind = find_operator(type_)
    if kind is None:
        raise refused(
            (*path, "type"),
            f"There is no operator {in_words(type_)}, nor another dispatchable of that type."
            f"{did_you_mean(type_.removeprefix(PREFIX), (name.removeprefix(PREFIX) for name in OPERATORS))}",
            abbreviate(type_),
            "an operator's name, onnx or dmlSerializedGraph",
        )
    field = next((name for name in ("Desc", "desc") if name in value), None)
    desc = value if field is None else value[field]
    path = path if field is None else (*path, field)
    if not isinstance(desc, dict):
        raise refused(path, f"{field} must be an object.", abbreviate(desc), "an object")
    reading = _Reading()
    document = _with_halves(kind, reading.fields(kind, desc, ())) | {"Type": kind.name()}
    if reading.violations:
        raise _located(ContractError(reading.violations, hresult=None), path, reading.moved)
    try:
        return Described(validate(kind, document), path, reading.moved)
    except ContractError as error:
        raise _located(error, path, reading.moved) from None


def _with_halves(kind: type[Operator], document: dict[str, Any]) -> dict[str, Any]:
    """`document` with bare numbers of FLOAT16 as the parser makes them: truncated, as in resources."""
    types = [value for name, value in document.items() if name.endswith("DataType")]
    if not any(each in _HALF for each in types):
        return document
    return {
        name: float(truncated(value)) if ScalarUnion in _models(kind, name) and _is_in_range(value) else value
        for name, value in document.items()
    }


def _is_in_range(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= FLOAT_MAX


def _located(error: ContractError, path: Path, moved: Mapping[Path, Path]) -> ContractError:
    def place(violation: Violation) -> Violation:
        for length in range(len(violation.path), 0, -1):
            there = moved.get(violation.path[:length])
            if there is not None:
                rest = violation.path[length:]
                return Violation((*path, *there, *rest), violation.message, violation.given, violation.allowed)
        return violation.below(*path)

    return ContractError(map(place, error.violations), error.hresult)


class _Reading:
    """What is found while a descriptor is read."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.moved: dict[Path, Path] = {}
        """Paths in our document by those in the model's."""

    def fields(self, kind: type[BaseModel], desc: Mapping[str, Any], path: Path) -> dict[str, Any]:
        """Those of `desc` that `kind` has. `path` is that in our document."""
        made: dict[str, Any] = {}
        for name in kind.model_fields:
            if name == "Type":
                continue
            at = (*path, name)
            told = "Type" if name == "GeneratorType" else name  # as in DML_RANDOM_GENERATOR_OPERATOR_DESC
            if told != name:
                self.moved[at] = (*path, told)
            if told not in desc:
                if _is_required(kind, name):
                    self._say(at, f"{told} is missing; DxDispatch's descriptors have it.", None, "a value")
            elif desc[told] is None:
                self._say(at, f"{told} must not be null; leave it out.", None, "a value")
            else:
                made[name] = self._value(_models(kind, name), desc[told], at, kind.model_fields[name].annotation)
        return made

    def _value(self, models: tuple[type[BaseModel], ...], value: Any, path: Path, annotation: Any) -> Any:
        if isinstance(value, list):
            return (
                [self._value(models, each, (*path, place), None) for place, each in enumerate(value)]
                if (models and ScalarUnion not in models)
                else value
            )
        if TensorDesc in models:
            return self._tensor(value, path)
        if models and issubclass(models[0], Fused):
            return self._activation(models, value, path)
        if isinstance(value, dict) and (ScaleBias in models or Size2D in models):
            return {name: each for name, each in value.items() if name in models[0].model_fields}
        if annotation is bool and not isinstance(value, bool):
            self._say(path, f"{path[-1]} must be true or false.", abbreviate(value), "true or false")
        members = value if ScalarUnion in models and isinstance(value, dict) else {}
        for at, each in ((path, value), *(((*path, name), each) for name, each in members.items())):
            if isinstance(each, str) and each in INFINITIES:  # numbers, in requests
                told = f"{at[-1]} must be a number; DxDispatch has no strings for it."
                self._say(at, told, abbreviate(each), "a number")
        return value

    def _tensor(self, value: Any, path: Path) -> Any:
        """A descriptor by itself, or as `{"Type": "BUFFER", "Desc": {...}}`."""
        if not isinstance(value, dict):
            return value
        if "Type" in value or "Desc" in value:
            if value.get("Type") not in _BUFFER:
                self._say((*path, "Type"), "Type must be BUFFER.", abbreviate(value.get("Type")), list(_BUFFER))
                return {}
            value = self._inner(value, path)
        known = {name: each for name, each in value.items() if name in TensorDesc.model_fields}
        for name, each in known.items():
            if each is None:
                self._say((*path, name), f"{name} must not be null; leave it out.", None, "a value")
        if known.get("Strides") == []:
            del known["Strides"]
        return known

    def _inner(self, value: dict[str, Any], path: Path) -> dict[str, Any]:
        """The object Desc in `value`."""
        self.moved[path] = (*self.moved.get(path, path), "Desc")
        desc = value.get("Desc")
        if isinstance(desc, dict):
            return desc
        self._say(path, "Desc must be an object.", abbreviate(desc), "an object")
        return {}

    def _activation(self, models: tuple[type[BaseModel], ...], value: Any, path: Path) -> Any:
        """An operator as part of another one: its tensors are not looked at."""
        if not isinstance(value, dict):
            return value
        type_ = value.get("Type")
        desc = value
        if "Desc" in value:
            desc = self._inner(value, path)
            self.moved[(*path, "Type")] = (*path, "Type")
        kind = next((each for each in models if type_ in get_args(each.model_fields["Type"].annotation)), None)
        if kind is None:
            return {"Type": type_}  # which the operator's class refuses, with those that it knows
        return self.fields(kind, desc, path) | {"Type": type_}

    def _say(self, path: Path, message: str, given: object, allowed: object) -> None:
        self.violations.append(Violation(path, message, given, allowed))


@cache
def _is_required(kind: type[BaseModel], name: str) -> bool:
    if issubclass(kind, Operator) and name in kind.tensor_names():
        info = kind.model_fields[name]
        is_output = Role.OUTPUT in info.metadata
        return info.is_required() or (is_output and name not in kind.optional_outputs())
    return name not in OPTIONAL


@cache
def _models(kind: type[BaseModel], name: str) -> tuple[type[BaseModel], ...]:
    """Classes of what a field may be."""
    return tuple(_mentioned(kind.model_fields[name].annotation))


def _mentioned(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _mentioned(each)
