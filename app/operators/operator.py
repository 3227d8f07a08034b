"""What every operator is: a descriptor (a Pydantic model), the rules it is judged by, and a formula."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from app.contract.constants import DataType, FeatureLevel
from app.contract.scalars import Float
from app.contract.support import Row, SupportTable
from app.contract.tensors import TensorDesc
from app.contract.violations import ContractError, Violation
from app.formula.values import Number, Value, is_float, multiply_add, saturate, widen
from app.operators.parameters import Parameters, numbers_in

PREFIX = "DML_OPERATOR_"

_PLAIN = {"DataType", "Sizes"}
"""What a descriptor of a packed tensor states."""


class Role(Enum):
    """What a tensor field is to its operator."""

    __hash__ = object.__hash__  # Enum's is written in Python, and roles are in many keys

    INPUT = "input"
    OUTPUT = "output"


InputTensorDesc = Annotated[TensorDesc, Role.INPUT, Field(description="Read, never written.")]
OptionalInputTensorDesc = Annotated[TensorDesc | None, Role.INPUT, Field(description="Read, never written.")]
OutputTensorDesc = Annotated[
    TensorDesc | None,
    Role.OUTPUT,
    Field(description="Null: packed, with the sizes and the data type that the operator implies."),
]


class ScaleBias(BaseModel):
    """DML_SCALE_BIAS: x * Scale + Bias is applied to the input before the operator's function."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    Scale: Float = Field(description="Factor of the input.")
    Bias: Float = Field(description="Added to the product.")


OptionalScaleBias = Annotated[
    ScaleBias | None, Field(description="Applied to the input before the function. Null: the input as it is.")
]


class Operator(BaseModel):
    """Base of the operator descriptors.

    A subclass states its fields as DirectML names them (tensors in the structure's order, `Annotated` with their
    `Role`), its support table, which inputs its output may alias, the formula as the documentation prints it, and
    `formula` itself. Optional attributes have their default in the field. `forms.py` has the usual sets of fields.
    """

    # Defaults are validated since they are to be FLOAT as well: 0.2 left out and 0.2 given are one number.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    formula_text: ClassVar[str]
    support: ClassVar[SupportTable]
    in_place: ClassVar[tuple[str, ...]] = ()
    same_types: ClassVar[tuple[tuple[str, ...], ...] | None] = None
    """Groups of tensors whose data types are equal; None: all tensors are one."""
    one_element: ClassVar[tuple[str, ...]] = ()
    """Tensors of one element each, where the others have equal sizes."""
    notes: ClassVar[tuple[str, ...]] = ()  # choices made where the documentation is silent, shown to users
    Type: str

    formula: ClassVar[Callable[..., Any]]
    """Method `formula(p, x, ...)`: the output's element, from the attributes as `Parameters` and one value for each
    input tensor in the structure's order. It is called on a descriptor without FLOAT attributes and without sizes."""

    by_coordinates: ClassVar[bool] = False
    """The formula goes by coordinates (`formula/coordinates.py`): it is called with `TensorParameters` and one
    `Operand` for each input field, a list of them for an array, None for one that is left out. It gives the output's
    element, or where there may be several outputs a dict of their elements by name; those that are not there are not
    looked at. Integer attributes are parameters too, unless they are marked STRUCTURAL."""

    call: ClassVar[Callable[..., Mapping[str, Any]] | None] = None
    """In the place of a formula, method `call(xp, inputs)` for what no formula of one element says: the outputs, packed
    and by name, made of the inputs, which are strided arrays in the types they are stored in and are not written. `xp`
    is numpy or cupy. Attributes and sizes are those of the descriptor."""

    def axes(self) -> tuple[int, ...]:
        """Dimensions that the formula's reductions go over."""
        return ()

    def is_bitwise(self) -> bool:
        """Whether the formula works on the raw bits of elements, which it is given as unsigned integers."""
        return False

    def implied_type(self, level: FeatureLevel) -> DataType:
        """The output's data type where the request leaves it out."""
        return next(iter(self.tensors(Role.INPUT).values())).DataType

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        """Constraints of this operator alone, beyond support table, sizes and data types."""
        yield from ()

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler(schema)
        kind = handler.resolve_ref_schema(made)["properties"]["Type"]
        kind["description"] = f"Which operator this is, with or without {PREFIX}."
        kind["default"] = cls.name()  # it is required all the same; generated clients need not spell it out
        return made

    @classmethod
    def name(cls) -> str:
        """DML_OPERATOR_..."""
        return _name(cls)

    @classmethod
    def short_name(cls) -> str:
        """The name without DML_OPERATOR_."""
        return cls.name().removeprefix(PREFIX)

    @classmethod
    def family(cls) -> Literal["ACTIVATION", "ELEMENT_WISE"]:
        """ACTIVATION or ELEMENT_WISE."""
        return "ACTIVATION" if cls.short_name().startswith("ACTIVATION_") else "ELEMENT_WISE"

    @classmethod
    def summary(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "")

    @classmethod
    def tensor_names(cls, role: Role | None = None) -> list[str]:
        """Tensor fields in the structure's order, which is the order of the bind points."""
        return list(_tensor_names(cls, role))

    @classmethod
    def attribute_names(cls) -> list[str]:
        return list(_attribute_names(cls))

    def tensors(self, role: Role | None = None) -> dict[str, TensorDesc]:
        """The tensor descriptors that are there, by field name."""
        return {name: desc for name in _tensor_names(type(self), role) if (desc := getattr(self, name)) is not None}

    def outputs(self, level: FeatureLevel) -> dict[str, TensorDesc]:
        """Every output's descriptor. Those that are left out are packed, of the sizes of the first input."""
        outputs: dict[str, TensorDesc | None] = {
            name: getattr(self, name) for name in _tensor_names(type(self), Role.OUTPUT)
        }
        if None not in outputs.values():
            return {name: desc for name, desc in outputs.items() if desc}
        first = next(iter(self.tensors(Role.INPUT).values()))
        data_type = self.implied_type(level)
        if data_type == first.DataType and first.model_fields_set <= _PLAIN:
            implied = first  # it says no more than that
        else:
            implied = TensorDesc(DataType=data_type, Sizes=first.Sizes)
        return {name: desc or implied for name, desc in outputs.items()}

    @classmethod
    def missing(cls, level: FeatureLevel) -> Violation:
        """That devices of `level`, which is below the one that introduced it, do not have the operator."""
        introduced = cls.support.introduced
        return Violation(
            ("Type",),
            f"{cls.name()} does not exist at feature level {level}; it was introduced at {introduced}.",
            level.full_name,
            f">= {introduced.full_name}",
        )

    def judge(self, level: FeatureLevel) -> None:
        """Raise ContractError with every rule that this descriptor breaks on a device of `level`."""
        tensors = self.tensors()
        kinds = _judge_kinds(type(self), level, tuple([(name, d.DataType, d.rank) for name, d in tensors.items()]))
        outputs = _tensor_names(type(self), Role.OUTPUT)
        violations: list[Violation] = []
        for of_kind, (name, desc) in zip(kinds.each, tensors.items(), strict=True):
            violations += of_kind
            violations += [violation.below(name) for violation in desc.violations(output=name in outputs)]
        violations += self._size_violations(tensors)
        violations += kinds.together
        violations += self.rules(level)
        if violations:
            raise ContractError(violations)

    def _size_violations(self, tensors: Mapping[str, TensorDesc]) -> Iterator[Violation]:
        """Element-wise operators broadcast nothing: sizes are equal."""
        (first_name, first), *_ = tensors.items()
        for name, desc in tensors.items():
            if name in self.one_element:
                yield from self._one_element_violations(name, desc, first_name, first)
            elif desc.Sizes != first.Sizes:
                yield Violation(
                    (name, "Sizes"),
                    f"{name} has Sizes {desc.Sizes} but {first_name} has {first.Sizes}; they must be equal, and "
                    "to broadcast is to give the full Sizes and stride 0 for the repeated dimensions.",
                    desc.Sizes,
                    first.Sizes,
                )

    @staticmethod
    def _one_element_violations(name: str, desc: TensorDesc, first_name: str, first: TensorDesc) -> Iterator[Violation]:
        if desc.elements != 1 or desc.rank != first.rank:
            ones = [1] * first.rank
            yield Violation(
                (name, "Sizes"),
                f"{name} has Sizes {desc.Sizes}; it must have one element and as many dimensions as {first_name}, "
                f"which is {ones}.",
                desc.Sizes,
                ones,
            )

    def stored_types(self) -> dict[str, DataType]:
        """How kernels read and write the elements of each tensor: raw bits as unsigned integers of their width."""
        types = {name: desc.DataType for name, desc in self.tensors().items()}
        if not self.is_bitwise():
            return types
        return {name: DataType(f"UINT{data_type.bits}") for name, data_type in types.items()}

    def numbers(self) -> dict[str, Number]:
        """The attributes that are numbers by the names of their `Parameters`; of a descriptor that has been judged."""
        return dict(numbers_in(self))


@cache
def _name(operator: type[Operator]) -> str:
    names: tuple[str, ...] = get_args(operator.model_fields["Type"].annotation)
    return names[0]


@cache
def _tensor_names(operator: type[Operator], role: Role | None) -> tuple[str, ...]:
    return tuple(
        name
        for name, info in operator.model_fields.items()
        for marker in info.metadata
        if isinstance(marker, Role) and role in (None, marker)
    )


@cache
def _attribute_names(operator: type[Operator]) -> tuple[str, ...]:
    tensors = _tensor_names(operator, None)
    return tuple(name for name in operator.model_fields if name != "Type" and name not in tensors)


class _Kinds(NamedTuple):
    """What is wrong with the data types and ranks of an operator's tensors: with each, and with all together."""

    each: tuple[tuple[Violation, ...], ...]
    together: tuple[Violation, ...]


@lru_cache(1024)
def _judge_kinds(operator: type[Operator], level: FeatureLevel, kinds: tuple[tuple[str, DataType, int], ...]) -> _Kinds:
    """Judge tensors by name, data type and rank, few of which are ever seen. Raises ContractError at levels that do not
    have the operator."""
    row = operator.support.at(level)
    if row is None:
        raise ContractError([operator.missing(level)])
    each = tuple(tuple(_kind_violations(operator, level, row, *kind)) for kind in kinds)
    return _Kinds(each, tuple(_different_types(operator, {name: data_type for name, data_type, _ in kinds})))


def _kind_violations(
    operator: type[Operator], level: FeatureLevel, row: Row, name: str, data_type: DataType, rank: int
) -> Iterator[Violation]:
    """What the support table says against a tensor."""
    allowed = row.of(name)
    if data_type not in allowed.data_types:
        since = operator.support.first_with(name, data_type)
        later = f", and {data_type} from {since} on" if since and since > level else ""
        yield Violation(
            (name, "DataType"),
            f"{name} of {operator.name()} is {data_type}; at feature level {level} its DataType may be "
            f"{' or '.join(allowed.data_types)}{later}.",
            data_type,
            list(allowed.data_types),
        )
    if rank not in allowed.ranks:
        least, most = allowed.ranks[0], allowed.ranks[-1]
        yield Violation(
            (name, "Sizes"),
            f"Sizes of {name} of {operator.name()} has {rank} dimensions; at feature level {level} it may "
            f"have {least if least == most else f'{least} to {most}'}, and leading dimensions of 1 make up for missing "
            "ones.",
            rank,
            allowed.dimension_counts,
        )


def _different_types(operator: type[Operator], types: Mapping[str, DataType]) -> Iterator[Violation]:
    """Data types are equal where the operator says."""
    for group in (tuple(types),) if operator.same_types is None else operator.same_types:
        there = [name for name in group if name in types]
        for name in there[1:]:
            data_type, model = types[name], types[there[0]]
            if data_type != model:
                yield Violation(
                    (name, "DataType"),
                    f"{name} is {data_type} but {there[0]} is {model}; their DataType must be equal.",
                    data_type,
                    model,
                )


def scaled(p: Parameters, x: Value, scale_bias: ScaleBias | None) -> Value:
    """x * Scale + Bias where `scale_bias` is given, else `x`.

    In float64, since the function that follows would magnify a rounding here without bound. Of an integer tensor,
    whose operator has the note SCALED_INTEGERS, back in its type.
    """
    if scale_bias is None:
        return x
    y = multiply_add(widen(x), widen(p["ScaleBias.Scale"]), widen(p["ScaleBias.Bias"]))
    return y if is_float(x.type) else saturate(y, x.type)


SCALED_INTEGERS = (
    "On integer tensors, x * Scale + Bias is computed in float64, truncated toward zero and saturated to the tensor's "
    "type before the function. DirectML's documentation does not say."
)
WRAPPING = "Integer results wrap around (two's complement). DirectML's documentation does not say."
