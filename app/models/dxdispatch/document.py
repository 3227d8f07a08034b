"""The parts of a model file, as they are stated: what is known, which type it has, what is there if it is left out.

Unknown fields are ignored, as DxDispatch ignores them, and a field that is there has a value of its type, which null
never is.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError, PydanticKnownError

from app.contract.constants import Constant, DataType
from app.contract.scalars import Uint, Uint64
from app.contract.suggestions import did_you_mean
from app.contract.validation import abbreviate, in_words, validate
from app.contract.violations import ContractError, Path, Violation, refused

P = TypeVar("P", bound=BaseModel)


class ExecutionFlag(Constant):
    """DML_EXECUTION_FLAGS. None of them changes a result here."""

    NONE = "NONE"
    ALLOW_HALF_PRECISION_COMPUTATION = "ALLOW_HALF_PRECISION_COMPUTATION"
    DISABLE_META_COMMANDS = "DISABLE_META_COMMANDS"
    DESCRIPTORS_VOLATILE = "DESCRIPTORS_VOLATILE"

    @classmethod
    def prefix(cls) -> str:
        return "DML_EXECUTION_FLAG_"


_UNKNOWN = ("UNKNOWN", f"{DataType.prefix()}UNKNOWN")
_OFFERED = [each for each in DataType if each.bits >= 8]


def data_type_of(value: object) -> DataType | None:
    """Of elements in a resource; None is UNKNOWN. Raises PydanticCustomError."""
    if value in _UNKNOWN:
        return None
    made = DataType.parse(value)
    if made not in _OFFERED:
        raise PydanticCustomError(
            "offered", "must be a type of at least 8 bits: resources have no others", {"allowed": list(_OFFERED)}
        )
    return made


def _given(value: object) -> object:
    if value is None:
        raise PydanticCustomError("given", "must not be null; leave the field out")
    return value


def _object(value: object) -> dict[str, Any]:
    """`value`, whose names are strings, as its parser makes them. Pydantic's own would make another one of them all, in
    one call, during which no other thread runs. Raises PydanticKnownError."""
    if not isinstance(value, dict):
        raise PydanticKnownError("dict_type")
    return value


def _three(value: list[int]) -> list[int]:
    if len(value) != 3:
        raise PydanticCustomError("three", "must have 3 entries, along x, y and z", {"allowed": 3})
    return value


_Object = Annotated[dict[str, Any], PlainValidator(_object, json_schema_input_type=dict[str, Any])]
_DataType = Annotated[DataType | None, PlainValidator(data_type_of)]
_Flags = Annotated[list[ExecutionFlag], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class ModelFile(_Part):
    """A model of Microsoft's DxDispatch, as its guide describes it. Comments and trailing commas are allowed."""

    resources: _Object = Field(description="Buffers by name, with their initial values.")
    dispatchables: _Object = Field(description="Operators and graphs by name.")
    commands: list[Any] = Field(description="dispatch, print and writeFile, in their order.")


class Resource(_Part):
    """A buffer and what is in it before the first command."""

    initialValues: Any
    initialValuesDataType: _DataType = None
    sizeInBytes: Annotated[Uint64 | None, BeforeValidator(_given)] = None
    initialValuesOffsetInBytes: Uint64 = 0
    resampleSize: list[Uint] = Field(default_factory=list)
    resampleMode: str = "scale"


class OperatorDispatchable(_Part):
    """A DirectML operator. Its descriptor is read by itself."""

    dmlCompileType: Literal["DmlCompileOp", "DmlCompileGraph"] = "DmlCompileOp"
    executionFlags: _Flags = Field(default_factory=list)
    bindings: Any = None


class OnnxDispatchable(_Part):
    """An ONNX model."""

    sourcePath: str
    freeDimensionNameOverrides: dict[str, Uint] = Field(default_factory=dict)
    freeDimensionDenotationOverrides: dict[str, Uint] = Field(default_factory=dict)
    sessionOptionsConfigEntries: dict[str, str] = Field(default_factory=dict)
    graphOptimizationLevel: Uint = 99
    loggingLevel: Uint = 2


class SerializedGraphDispatchable(_Part):
    """A graph in a flatbuffer file, with constants beside it."""

    sourcePath: str
    executionFlags: _Flags = Field(default_factory=list)
    bindings: Any = None


class Source(_Part):
    """A resource, or what begins somewhere in it, for a bind point."""

    name: str
    elementCount: Uint64 = 0
    elementSizeInBytes: Uint64 = 0
    elementOffset: Uint64 = 0
    format: Annotated[str | None, BeforeValidator(_given)] = None
    counter: Annotated[str | None, BeforeValidator(_given)] = None
    counterOffsetBytes: Annotated[Uint64 | None, BeforeValidator(_given)] = None
    shape: list[Annotated[int, Field(ge=-(2**63), lt=2**63)]] = Field(default_factory=list)


class Dispatch(_Part):
    """The command `dispatch`."""

    dispatchable: str
    bindings: _Object
    threadGroupCount: Annotated[list[Uint], AfterValidator(_three)] = Field(
        default_factory=lambda: [1, 1, 1], json_schema_extra={"minItems": 3, "maxItems": 3}
    )


class Print(_Part):
    """The command `print`."""

    resource: str
    verbose: bool = False


class WriteFile(_Part):
    """The command `writeFile`."""

    resource: str
    targetPath: str
    dimensions: list[Uint] = Field(default_factory=list)


Command: TypeAlias = Dispatch | Print | WriteFile
_COMMANDS: dict[str, type[Command]] = {"dispatch": Dispatch, "print": Print, "writefile": WriteFile}


class Point(NamedTuple):
    """What is bound to a point, and where that is said."""

    path: Path
    sources: list[Source]


Bindings: TypeAlias = dict[str, Point]


def called(path: Path) -> str:
    """What refusals call what is at `path`."""
    return f"{path[-2]}[{path[-1]}]" if isinstance(path[-1], int) else path[-1]


def part(kind: type[P], value: object, path: Path) -> P:
    """`value`, which is at `path`, as `kind`. Raises ContractError."""
    if not isinstance(value, dict):
        given = abbreviate(value)
        raise refused(path, f"{called(path)} must be an object.", given, "an object")
    try:
        return validate(kind, value)
    except ContractError as error:  # by DxDispatch's parser, before DirectML is asked
        raise ContractError(error.below(*path).violations, hresult=None) from None


def dispatchable_type(value: object, path: Path) -> str:
    """What kind a dispatchable is: its field `type`, or Type in its place. Raises ContractError."""
    return _type_of(value, path, "type", "Type")


def _type_of(value: object, path: Path, *fields: str) -> str:
    if not isinstance(value, dict):
        raise refused(path, f"{called(path)} must be an object.", abbreviate(value), "an object")
    field = next((name for name in fields if name in value), None)
    if field is None:
        raise refused((*path, "type"), "type is missing; it says what this is.", None, "a string")
    told = value[field]
    if not isinstance(told, str):
        raise refused((*path, field), f"{field} must be a string.", abbreviate(told), "a string")
    return told


def command_of(value: object, path: Path) -> Command:
    """The command `value`. Raises ContractError."""
    told = _type_of(value, path, "type")
    kind = _COMMANDS.get(told.lower())
    if kind is None:
        allowed = ["dispatch", "print", "writeFile"]
        message = f"Unrecognized command {in_words(told)}; give {' or '.join(allowed)}.{did_you_mean(told, allowed)}"
        raise refused((*path, "type"), message, abbreviate(told), allowed)
    return part(kind, value, path)


def bindings_of(value: object, path: Path, resources: "dict[str, Any]") -> Bindings:
    """The bindings at `path`; their resources are among `resources`. Raises ContractError.

    What is no object binds nothing, as in DxDispatch; where an object must be, that has been seen to.
    """
    if not isinstance(value, dict):
        return {}
    made: Bindings = {}
    violations: list[Violation] = []
    for point, sources in value.items():
        at = (*path, point)
        made[point] = Point(at, [])
        listed = enumerate(sources) if isinstance(sources, list) else [(None, sources)]
        for place, each in listed:
            here = at if place is None else (*at, place)
            try:
                made[point].sources.append(_source(each, here, resources))
            except ContractError as error:
                violations += error.violations
    if violations:
        raise ContractError(violations, hresult=None)
    return made


def _source(value: object, path: Path, resources: "dict[str, Any]") -> Source:
    if isinstance(value, str):
        source = Source(name=value)
    elif isinstance(value, dict):
        source = part(Source, value, path)
        path = (*path, "name")
    else:
        raise refused(path, "A binding must be the name of a resource, or an object with one.", abbreviate(value))
    if source.name not in resources:
        raise ContractError([unknown_resource(source.name, path, resources)], hresult=None)
    if source.counter is not None:
        at = path[:-1]
        if source.counter not in resources:
            raise ContractError([unknown_resource(source.counter, (*at, "counter"), resources)], hresult=None)
        if source.counterOffsetBytes is None:
            raise refused((*at, "counterOffsetBytes"), "counterOffsetBytes is missing; a counter has it.")
    return source


def unknown_resource(name: str, path: Path, resources: "dict[str, Any]") -> Violation:
    """That there is no resource `name`."""
    return unknown("resource", name, path, resources)


def unknown(what: str, name: str, path: Path, there: Iterable[str]) -> Violation:
    """That there is no `what` that is called `name`, of which some are `there`."""
    known = [abbreviate(each) for each in islice(there, 8)]
    told = f"; there is {', '.join(map(str, known))}" if known else ""
    message = f"There is no {what} {in_words(name)}{told}.{did_you_mean(name, map(str, known))}"
    return Violation(path, message, abbreviate(name), known)
