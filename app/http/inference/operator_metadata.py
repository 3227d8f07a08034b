"""What clients read of the models that are operators."""

from collections.abc import Iterator
from functools import cache
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from app.contract.constants import NEWEST
from app.contract.tensors import element_name
from app.engine.capabilities import describe
from app.http.inference import documents
from app.http.inference.model import PLATFORM, VERSION
from app.http.inference.tensors import NAMES
from app.operators.operator import Operator, Role


def metadata(operator: type[Operator], name: str) -> documents.ModelMetadata:
    """What a client has to know of the model it calls `name`."""
    return documents.ModelMetadata(
        name=name,
        versions=[VERSION],
        platform=PLATFORM,
        inputs=list(_tensors(operator, Role.INPUT)),
        outputs=list(_tensors(operator, Role.OUTPUT)),
        parameters=documents.ModelMetadataParameters(attributes=_attributes(operator)),
    )


def _tensors(operator: type[Operator], role: Role) -> Iterator[documents.TensorMetadata]:
    row = operator.support.at(NEWEST)
    assert row is not None, "the newest level has every operator"
    for name in operator.tensor_names(role):
        allowed = row.of(name)
        datatypes = [NAMES[each] for each in allowed.data_types if each in NAMES]
        if role is Role.INPUT and "UINT8" in datatypes:
            datatypes.append("BOOL")
        parameters = documents.TensorMetadataParameters(
            optional=not operator.model_fields[name].is_required(),
            datatypes=datatypes,
            dimension_counts=allowed.dimension_counts,
        )
        if name in operator.array_names():
            parameters["array"] = True
        yield documents.TensorMetadata(
            name=element_name(name, 0) if name in operator.array_names() else name,
            datatype=datatypes[0],
            shape=[-1] * (4 if 4 in allowed.ranks else allowed.ranks[0]),
            parameters=parameters,
        )


@cache
def _attributes(operator: type[Operator]) -> list[documents.AttributeMetadata]:
    described = [each for each in describe(operator)["fields"] if each["kind"] == "attribute"]
    return [
        attribute
        for each in described
        for attribute in _dotted(
            documents.AttributeMetadata(
                name=each["name"],
                type=each["type"],
                required=each["required"],
                default=each["default"],
                description=each["description"],
            ),
            operator.model_fields[each["name"]],
        )
    ]


def _dotted(attribute: documents.AttributeMetadata, info: FieldInfo) -> list[documents.AttributeMetadata]:
    """The attribute, or the members of the structure that it is."""
    structure = _structure(info.annotation)
    if structure is None:
        return [attribute]
    members = []
    for name, member in structure.model_fields.items():
        required = attribute["required"] and member.is_required()
        default = None if member.is_required() else TypeAdapter(Any).dump_python(member.default, mode="json")
        members.append(
            documents.AttributeMetadata(
                name=f"{attribute['name']}.{name}",
                type="FLOAT" if member.annotation is float else "UINT",
                required=required,
                default=default,
                description=f"{member.description or ''} {attribute['description']}".strip(),
            )
        )
    return members


def _structure(annotation: Any) -> type[BaseModel] | None:
    """The one structure that a field may be; None for numbers, names, arrays and operators."""
    choices = [each for each in get_args(annotation) or (annotation,) if each is not NoneType]
    (kind, *others) = choices
    is_structure = isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, Operator)
    return kind if is_structure and not others else None
