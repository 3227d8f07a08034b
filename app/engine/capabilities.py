"""What is known of operators and levels, as clients read it. Everything here follows from the operator classes."""

import math
import re
import struct
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args, get_origin

import orjson
from pydantic import Field, RootModel, TypeAdapter
from pydantic.fields import FieldInfo
from typing_extensions import TypedDict

from app.contract import constants
from app.contract.constants import NEWEST, Constant, DataType, FeatureLevel
from app.contract.members import Document
from app.contract.scalars import ScalarUnion, Size2D, Uint
from app.contract.tensors import element_name, path_of
from app.contract.validation import validate
from app.contract.violations import ContractError, Hresult, refused
from app.devices.device import DeviceInfo
from app.engine.dispatch import Capability, TensorCapability
from app.engine.tensor_meanings import meaning
from app.operators.catalog import OPERATORS
from app.operators.fusion import Fused
from app.operators.operator import READ_ONLY, Operator, Role, ScaleBias

if TYPE_CHECKING:
    Family: TypeAlias = str
else:
    Family = Literal[tuple(sorted({operator.family() for operator in OPERATORS.values()}))]

_FEATURE = "What is asked, with or without DML_FEATURE_."


class TensorDataTypeSupportQuery(Document):
    """DML_FEATURE_QUERY_TENSOR_DATA_TYPE_SUPPORT: can this type be used in tensor descriptors at all?"""

    Feature: Literal["DML_FEATURE_TENSOR_DATA_TYPE_SUPPORT", "TENSOR_DATA_TYPE_SUPPORT"] = Field(description=_FEATURE)
    DataType: Annotated[constants.DataType, Field(description="The type in question.")]


class FeatureLevelsQuery(Document):
    """DML_FEATURE_QUERY_FEATURE_LEVELS: which of these levels is the highest that is supported?"""

    Feature: Literal["DML_FEATURE_FEATURE_LEVELS", "FEATURE_LEVELS"] = Field(description=_FEATURE)
    RequestedFeatureLevels: list[FeatureLevel] = Field(
        min_length=1, max_length=64, description="Levels to choose from."
    )
    RequestedFeatureLevelCount: Uint | None = Field(None, description="If given, the length of RequestedFeatureLevels.")


class FeatureSupportQuery(
    RootModel[Annotated[TensorDataTypeSupportQuery | FeatureLevelsQuery, Field(discriminator="Feature")]]
):
    """A query of IDMLDevice::CheckFeatureSupport."""


class OperatorFilter(Document):
    """Which operators are meant. A field that is left out asks for nothing."""

    family: Family | None = Field(None, description="Operators of this family.")
    data_type: DataType | None = Field(None, description="Operators that have a tensor which may be of this type.")
    feature_level: FeatureLevel = Field(
        NEWEST, description="Operators that exist at this level, with the types that they take there."
    )


class TensorDataTypeSupport(TypedDict):
    """DML_FEATURE_DATA_TENSOR_DATA_TYPE_SUPPORT."""

    IsSupported: bool


class MaxSupportedFeatureLevel(TypedDict):
    """DML_FEATURE_DATA_FEATURE_LEVELS."""

    MaxSupportedFeatureLevel: str


class Capabilities(TypedDict):
    """What this service is and can do. `limits` are those in force: sizes in bytes, times in seconds. `device_troubles`
    say why dispatches run on NumPy that might run on a GPU."""

    version: str
    state: str
    devices: list[DeviceInfo]
    device_troubles: list[str]
    feature_levels: list[str]
    operators: list[str]
    limits: dict[str, float]


class FieldDescription(TypedDict):
    """A field of an operator's descriptor. `default` is null where there is none."""

    name: str
    kind: Literal["input_tensor", "output_tensor", "attribute"]
    type: str
    required: bool
    default: Any
    description: str


class SupportRow(TypedDict):
    """What holds from `feature_level` on, until the next row's level."""

    feature_level: str
    tensors: dict[str, TensorCapability]


class OperatorSummary(TypedDict):
    """An operator in a list."""

    Type: str
    family: Family
    summary: str
    formula: str
    introduced: str
    in_place: list[str]


class OperatorDescription(OperatorSummary):
    """Everything known of an operator. `notes` are choices made where DirectML's documentation is silent, and how exact
    results are."""

    struct: str
    fields: list[FieldDescription]
    support: list[SupportRow]
    notes: list[str]
    example: dict[str, Any]


@cache
def capability(operator: type[Operator], level: FeatureLevel) -> Capability:
    """What `operator`, which exists at `level`, is capable of there."""
    return Capability(
        operator=operator.name(),
        feature_level=level.full_name,
        introduced=operator.support.introduced.full_name,
        in_place=list(operator.in_place),
        tensors=_tensors(operator, level),
    )


def summarize(operator: type[Operator]) -> OperatorSummary:
    return OperatorSummary(
        Type=operator.name(),
        family=operator.family(),
        summary=operator.summary(),
        formula=operator.formula_text,
        introduced=operator.support.introduced.full_name,
        in_place=list(operator.in_place),
    )


def select(wanted: OperatorFilter) -> list[type[Operator]]:
    """The operators that `wanted` means, in the order of the catalog."""
    return [
        operator
        for operator in OPERATORS.values()
        if (row := operator.support.at(wanted.feature_level))
        and wanted.family in (None, operator.family())
        and (
            wanted.data_type is None
            or any(wanted.data_type in row.of(tensor).data_types for tensor in operator.tensor_names())
        )
    ]


def describe(operator: type[Operator]) -> OperatorDescription:
    return OperatorDescription(
        **summarize(operator),
        struct=f"DML_{operator.short_name()}_OPERATOR_DESC",
        fields=list(_fields(operator)),
        support=[
            SupportRow(feature_level=row.level.full_name, tensors=_tensors(operator, row.level))
            for row in reversed(operator.support.rows)
        ],
        notes=[*operator.notes, str(operator.accuracy)],
        example=example(operator),
    )


def example(operator: type[Operator]) -> dict[str, Any]:
    """A small dispatch request in JSON that works when pasted, its data as programs send them."""
    return _example(operator, _base64)


def example_for_people(operator: type[Operator]) -> dict[str, Any]:
    """The same with its data as numbers, in one list for each tensor."""
    return _example(operator, lambda _, elements: elements)


def _example(operator: type[Operator], write: Callable[[DataType, list[float]], Any]) -> dict[str, Any]:
    described = example_descriptor(operator)
    inputs = operator.tensor_names(Role.INPUT)
    data: dict[str, Any] = {}
    for name in inputs:
        given = described.get(name)
        if isinstance(given, list):
            data[name] = [
                write(*_example_data(operator, desc, element_name(name, i), inputs)) for i, desc in enumerate(given)
            ]
        elif given is not None:
            data[name] = write(*_example_data(operator, given, name, inputs))
    return {"operator": described, "inputs": data}


def example_descriptor(operator: type[Operator]) -> dict[str, Any]:
    """The descriptor in the example: inputs of 2 times 3 elements and the attributes' examples, where the operator does
    not state others; outputs where it states them."""
    row = operator.support.rows[0]  # the types that it is for in the first place: integers where these are bits
    stated = operator.example
    members: dict[str, Any] = {"Type": operator.name()}
    for name in operator.tensor_names():
        usual = {
            "DataType": _example_type(row.of(name).data_types),
            "Sizes": [1, 1, 1, 1] if name in operator.one_element else [1, 1, 2, 3],
        }
        given = stated.get(name, {} if name in operator.tensor_names(Role.INPUT) else None)
        if given is not None:
            members[name] = [usual | each for each in given] if isinstance(given, list) else usual | given
    for name in operator.attribute_names():
        info = operator.model_fields[name]
        value = stated.get(name, info.examples[0] if info.is_required() and info.examples else info.default)
        if value is not None:
            members[name] = value
    return members


def _example_type(data_types: tuple[DataType, ...]) -> DataType:
    return next((each for each in (DataType.FLOAT32, DataType.UINT8) if each in data_types), data_types[0])


_STRUCT_FORMATS = {"F": " efd", "I": "bhiq", "U": "BHIQ"}
"""By the first letter of a data type and the logarithm of its bytes."""


def _example_data(
    operator: type[Operator], desc: dict[str, Any], name: str, inputs: list[str]
) -> tuple[DataType, list[float]]:
    """The type and the elements of the input `name`, those that the operator states or the usual ones.

    The first input has -4, -2, 0, 1, 2, 4 or, unsigned, 8, 6, 0, 1, 2, 4; a scale halves, a zero point ones, and others
    2, 1, 3 again and again.
    """
    data_type, count = DataType.parse(desc["DataType"]), math.prod(desc["Sizes"])
    values: Sequence[float]
    if name in operator.example_data:
        values = operator.example_data[name]
    elif path_of(name)[0] == inputs[0]:
        values = [8, 6, 0, 1, 2, 4] if data_type.value.startswith("U") else [-4, -2, 0, 1, 2, 4]
    else:
        values = [0.5] if "Scale" in name else [1] if "ZeroPoint" in name else [2, 1, 3]
    return data_type, [values[i % len(values)] for i in range(count)]


def _base64(data_type: DataType, elements: list[float]) -> str:
    count = len(elements)
    if data_type.bits == 4:
        halves = [int(each) & 0xF for each in [*elements, 0][: count + count % 2]]
        packed = bytes(low | high << 4 for low, high in zip(halves[::2], halves[1::2], strict=True))
        return str(b64encode(packed), "ascii")
    form = _STRUCT_FORMATS[data_type.value[0]][data_type.bytes.bit_length() - 1]
    return str(b64encode(struct.pack(f"<{count}{form}", *elements)), "ascii")


def paste(request: Any) -> str:
    """A request as JSON to read and to paste, lists of numbers on one line each."""
    text = orjson.dumps(request, option=orjson.OPT_INDENT_2).decode()
    return re.sub(r"\[[-\d.,\s]+\]", lambda numbers: str(orjson.loads(numbers[0])), text)


def support_groups(row: SupportRow) -> list[tuple[str, list[DataType], list[int]]]:
    """Names of tensors that may be the same, or "all", with the data types and the dimension counts they may have."""
    groups: dict[tuple[tuple[DataType, ...], tuple[int, ...]], list[str]] = {}
    for tensor, can in row["tensors"].items():
        groups.setdefault((tuple(can["data_types"]), tuple(can["dimension_counts"])), []).append(tensor)
    return [
        ("all" if len(groups) == 1 else ", ".join(tensors), list(types), list(counts))
        for (types, counts), tensors in groups.items()
    ]


def field_kind(field: FieldDescription) -> str:
    """What a field is, for people: an attribute's type, or which sort of tensor; with [] where it is a list."""
    if field["kind"] == "attribute":
        return field["type"]
    return field["kind"].replace("_", " ") + ("[]" if field["type"].endswith("[]") else "")


def span(counts: Sequence[int]) -> str:
    """Dimension counts in words: the least to the most."""
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def feature_query(document: object) -> FeatureSupportQuery:
    """What is asked. Raises ContractError, which has DirectML's answer to a feature that it does not know."""
    try:
        return validate(FeatureSupportQuery, document)
    except ContractError as error:
        (first, *_) = error.violations
        if first.path == ("Feature",) and first.given is not None:
            raise ContractError(error.violations, Hresult.DXGI_ERROR_UNSUPPORTED) from None
        raise


def check_feature_support(query: FeatureSupportQuery) -> TensorDataTypeSupport | MaxSupportedFeatureLevel:
    """What IDMLDevice::CheckFeatureSupport answers. Raises ContractError."""
    asked = query.root
    if isinstance(asked, TensorDataTypeSupportQuery):
        return TensorDataTypeSupport(IsSupported=asked.DataType in data_types(NEWEST))
    levels, count = asked.RequestedFeatureLevels, asked.RequestedFeatureLevelCount
    if count not in (None, len(levels)):
        raise refused(
            ("RequestedFeatureLevelCount",),
            f"RequestedFeatureLevelCount is {count} but {len(levels)} levels are given; they must agree.",
            count,
            len(levels),
            Hresult.E_INVALIDARG,
        )
    return MaxSupportedFeatureLevel(MaxSupportedFeatureLevel=max(levels).full_name)


@cache
def data_types(level: FeatureLevel) -> frozenset[DataType]:
    """Types that some tensor of some operator may have at `level`."""
    rows = [row for operator in OPERATORS.values() if (row := operator.support.at(level))]
    return frozenset(
        data_type for row in rows for types in (row.data_types, *row.tensors.values()) for data_type in types
    )


def _tensors(operator: type[Operator], level: FeatureLevel) -> dict[str, TensorCapability]:
    row = operator.support.at(level)
    assert row is not None, "the operator does not exist at this level"
    return {
        name: TensorCapability(data_types=list(row.of(name).data_types), dimension_counts=row.of(name).dimension_counts)
        for name in operator.tensor_names()
    }


def _fields(operator: type[Operator]) -> Iterator[FieldDescription]:
    inputs, outputs = operator.tensor_names(Role.INPUT), operator.tensor_names(Role.OUTPUT)
    for name, info in operator.model_fields.items():
        if name == "Type":
            continue
        tensor = name in inputs or name in outputs
        assert info.description, "every field says what it means"
        yield FieldDescription(
            name=name,
            kind="input_tensor" if name in inputs else "output_tensor" if name in outputs else "attribute",
            type=(
                f"DML_TENSOR_DESC{'[]' if name in operator.array_names() else ''}" if tensor else _attribute_type(info)
            ),
            required=info.is_required(),
            default=None if info.is_required() else TypeAdapter(Any).dump_python(info.default, mode="json"),
            description=_purpose(operator, name, info.description) if tensor else _meaning(info.description, info),
        )


def _purpose(operator: type[Operator], name: str, description: str) -> str:
    """What a tensor is for, and what else is to be said of it: of inputs not what all of them are."""
    return f"{meaning(operator, name)} {description.removeprefix(READ_ONLY).strip()}".strip()


def _meaning(description: str, info: FieldInfo) -> str:
    """The description of an attribute, with the constants that it may be where it does not tell them apart itself."""
    for kind in _classes(info.annotation):
        if issubclass(kind, Constant) and kind is not DataType:
            *others, last = (member.value for member in kind)
            if len({*others, last}.intersection(re.findall(r"\w+", description))) < 2:
                return f"{description} It is {' or '.join([', '.join(others), last] if others else [last])}."
    return description


def _attribute_type(info: FieldInfo) -> str:
    """The C type of an attribute, from its annotation."""
    kinds = [each for each in _classes(info.annotation) if each is not type(None)]
    array = "[]" if get_origin(info.annotation) is list else ""
    if all(issubclass(kind, Fused) for kind in kinds):
        return f"DML_OPERATOR_DESC{array}"
    if ScalarUnion in kinds:
        return "DML_SCALAR_UNION"
    (kind,) = kinds
    if issubclass(kind, Constant):
        return str(kind.prefix()).removesuffix("_")
    if kind is int:
        return f"{'INT' if any(getattr(each, 'ge', 0) < 0 for each in _metadata(info)) else 'UINT'}{array}"
    return {float: "FLOAT", bool: "BOOL", ScaleBias: "DML_SCALE_BIAS", Size2D: "DML_SIZE_2D"}[kind] + array


def _metadata(part: Any) -> Iterator[Any]:
    """What is said of an annotation and of its parts."""
    if isinstance(part, FieldInfo):
        yield from part.metadata
        yield from _metadata(part.annotation)
    for each in get_args(part):
        yield from _metadata(each)


def _classes(annotation: Any) -> list[Any]:
    """Classes that an annotation mentions."""
    if isinstance(annotation, type) and not get_args(annotation):
        return [annotation]
    return [each for argument in get_args(annotation) for each in _classes(argument)]
