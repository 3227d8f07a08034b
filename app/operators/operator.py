"""What every operator is: a descriptor (a Pydantic model), the rules it is judged by, and a formula."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, get_args, get_origin

from pydantic import ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from app.contract.constants import DataType, FeatureLevel
from app.contract.kinds import Kind
from app.contract.members import Document, Lenient
from app.contract.scalars import Float, Uint
from app.contract.support import SupportTable
from app.contract.tensors import MAX_TENSORS, TensorDesc, element_name, members
from app.contract.violations import Violation
from app.formula.values import Number, Value, is_float, multiply_add, saturate, widen
from app.operators.accuracy import Accuracy
from app.operators.parameters import Parameters, numbers_in

PREFIX = "DML_OPERATOR_"


class Role(Enum):
    """What a tensor field is to its operator."""

    __hash__ = object.__hash__  # Enum's is written in Python, and roles are in many keys

    INPUT = "input"
    OUTPUT = "output"


class Null(Enum):
    """What a null output is, if not implied."""

    NOT_COMPUTED = "not computed"


READ_ONLY = "Read, never written."
"""What is said of each input in schemas."""

InputTensorDesc = Annotated[TensorDesc, Role.INPUT, Field(description=READ_ONLY)]
OptionalInputTensorDesc = Annotated[TensorDesc | None, Role.INPUT, Field(description=READ_ONLY)]
InputTensorDescs = Annotated[
    list[TensorDesc],
    Role.INPUT,
    Field(min_length=1, max_length=MAX_TENSORS, description=f"{READ_ONLY} Their data are a list as well."),
]
OutputTensorDesc = Annotated[
    TensorDesc | None,
    Role.OUTPUT,
    Field(description="Null: packed, with the sizes and the data type that the operator implies."),
]
StatedOutputTensorDesc = Annotated[
    TensorDesc, Role.OUTPUT, Field(description="Required: nothing else says of what sizes and data type it is.")
]
OptionalOutputTensorDesc = Annotated[
    TensorDesc | None, Role.OUTPUT, Null.NOT_COMPUTED, Field(description="Null: not computed.")
]
OutputTensorDescs = Annotated[
    list[TensorDesc],
    Role.OUTPUT,
    Field(min_length=1, max_length=MAX_TENSORS, description="All are computed, and answered as a list."),
]
Count = Annotated[Uint | None, Field(description="If given, the length of the arrays that it counts.")]


class ScaleBias(Document):
    """DML_SCALE_BIAS: x * Scale + Bias is applied to the input before the operator's function."""

    Scale: Float = Field(description="Factor of the input.")
    Bias: Float = Field(description="Added to the product.")


OptionalScaleBias = Annotated[
    ScaleBias | None, Field(description="Applied to the input before the function. Null: the input as it is.")
]


class Operator(Lenient):
    """Base of the operator descriptors.

    A subclass states its fields as DirectML names them (tensors in the structure's order, `Annotated` with their
    `Role`), its support table, which inputs its output may alias, the formula as the documentation prints it, how exact
    it is, and `formula` itself. Optional attributes have their default in the field. `forms.py` has the usual sets of
    fields.

    DirectML's structures have no defaults. An attribute has one here if its page, or DirectMLX, names a usual value,
    and is required if not.
    """

    # Defaults are validated since they are to be FLOAT as well: 0.2 left out and 0.2 given are one number.
    model_config = ConfigDict(validate_default=True)

    formula_text: ClassVar[str]
    accuracy: ClassVar[Accuracy]
    support: ClassVar[SupportTable]
    in_place: ClassVar[tuple[str, ...]] = ()
    same_types: ClassVar[tuple[tuple[str, ...], ...] | None] = None
    """Groups of tensors whose data types are equal; None: all tensors are one."""
    same_sizes: ClassVar[tuple[tuple[str, ...], ...] | None] = None
    """Groups of tensors whose sizes are equal; None: those of all tensors are, but for `one_element`. Outputs in no
    group have `implied_sizes`. In groups the name of an array means all its tensors."""
    same_ranks: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Groups of tensors that have equally many dimensions."""
    one_element: ClassVar[tuple[str, ...]] = ()
    """Where the sizes of all others are equal: tensors of one element, with as many dimensions as the first one."""
    sizes_from: ClassVar[tuple[str, ...]] = ()
    """Tensors and attributes that imply the outputs' sizes, for refusals; by default the first input alone."""
    counts: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Attributes that are the length of arrays, which are never left out: one is told by the other."""
    example: ClassVar[Mapping[str, Any]] = {}
    """Members of the descriptor in the example request where the usual ones will not do: `{"Sizes": ...}` of a tensor,
    or a list of these, an attribute, or None for what is left out."""
    example_data: ClassVar[Mapping[str, Sequence[float]]] = {}
    """Elements of tensors in the example request, by name, where not any will do. Repeated as often as needed."""
    notes: ClassVar[tuple[str, ...]] = ()  # choices made where the documentation is silent, shown to users
    Type: str

    formula: ClassVar[Callable[..., Any]]
    """Method `formula(p, x, ...)`: the output's element, from the attributes as `Parameters` and one value for each
    input tensor in the structure's order, of an array a list. Where there are several outputs, a dict of their elements
    by name; those that are not there are not looked at. It is called on a descriptor without FLOAT attributes and
    without sizes."""

    by_coordinates: ClassVar[bool] = False
    """The formula goes by coordinates (`formula/coordinates.py`): it is called with `TensorParameters` and one
    `Operand` for each input field, a list of them for an array, None for one that is left out. It gives the output's
    element, or where there may be several outputs a dict of their elements by name; those that are not there are not
    looked at. Integer attributes are parameters too, unless they are marked STRUCTURAL. Outputs made of `Operand.here`
    alone go by position, as those of other operators do, so that their groups are reduced once for all elements."""

    call: ClassVar[Callable[..., Mapping[str, Any]] | None] = None
    """In the place of a formula, method `call(xp, inputs)` for what no formula of one element says: the outputs, packed
    and by name, made of the inputs, which are strided arrays in the types they are stored in and are not written. `xp`
    is numpy or cupy. Attributes and sizes are those of the descriptor."""

    working_bytes: ClassVar[int] = 8
    """How much memory `call` takes at most, with NumPy, for each element of all its tensors, beside these and some
    40 MiB."""

    makes_in: ClassVar[bool] = False
    """Whether `call` takes arrays for the outputs, too, by name: `call(xp, inputs, into)`. They are as the outputs lie,
    none shares memory with an input, and what it makes in them need not be copied."""

    only_queues: ClassVar[bool] = False
    """Whether `call`, with CuPy, neither waits for results nor brings data from the host, so that what it queues can be
    queued again, on what the inputs hold then, without calling it."""

    def most_working_bytes(self, elements: int) -> int:
        """That of all its tensors, which have so many elements."""
        return self.working_bytes * elements

    def multiplications(self) -> int:
        """How many there are, about, whose results `call` adds up: what products of matrices, convolutions and their
        like mostly do."""
        return 0

    def batch_axes(self) -> Iterator[Mapping[str, int]]:
        """Where it goes by `call`, axes along which a batch may lie, of tensors by name: an item of outputs is made of
        the same item of these inputs and of others as a whole, whichever item it is. Formulas tell it by themselves."""
        yield from ()

    def axes(self) -> tuple[int, ...]:
        """Dimensions that the formula's reductions go over."""
        return ()

    def is_bitwise(self) -> bool:
        """Whether the formula works on the raw bits of elements, which it is given as unsigned integers."""
        return False

    def implied_sizes(self, name: str) -> list[int] | None:
        """Sizes of the output `name`, from all the rest of the descriptor, whose `rules` hold. None where the rest does
        not determine them: then they are for `rules` to judge."""
        first = self._first_input()
        assert first is not None, "an operator without inputs says what sizes are implied"
        return first.Sizes

    def _first_input(self) -> TensorDesc | None:
        """The first one that is there, if any is."""
        values = self.__dict__
        for name in _tensor_names(type(self), Role.INPUT):
            if values[name] is not None:
                first: TensorDesc = values[name][0] if name in _array_names(type(self)) else values[name]
                return first
        return None

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        """The data type of the output `name` where the request leaves it out.

        That of the first input which has to have the same, or the only one there is, or that of the first input.
        """
        return self.type_like({each: desc.DataType for each, desc in self.tensors(Role.INPUT).items()}, name, level)

    @classmethod
    def type_like(cls, inputs: Mapping[str, DataType], name: str, level: FeatureLevel) -> DataType:
        """The same, from the inputs' data types alone."""
        source = _type_source(cls, name, level, tuple(inputs))
        return source if isinstance(source, DataType) else inputs[source]

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
    def family(cls) -> str:
        """ACTIVATION, ELEMENT_WISE and so on: the package that the class lies in."""
        return cls.__module__.split(".")[-2].upper()

    @classmethod
    def summary(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "")

    @classmethod
    def tensor_names(cls, role: Role | None = None) -> list[str]:
        """Tensor fields in the structure's order, which is the order of the bind points."""
        return list(_tensor_names(cls, role))

    @classmethod
    def array_names(cls) -> frozenset[str]:
        """The tensor fields that are arrays."""
        return _array_names(cls)

    @classmethod
    def optional_outputs(cls) -> frozenset[str]:
        """The outputs that are not computed where they are null."""
        return _optional_outputs(cls)

    @classmethod
    def attribute_names(cls) -> list[str]:
        return list(_attribute_names(cls))

    def tensors(self, role: Role | None = None) -> dict[str, TensorDesc]:
        """The tensor descriptors that are there, by name, which in an array is InputTensors[0] and so on."""
        names, arrays = _tensor_names(type(self), role), _array_names(type(self))
        values = self.__dict__
        if not arrays:
            return {name: desc for name in names if (desc := values[name]) is not None}
        return {
            each: desc
            for name in names
            for each, desc in (
                [(element_name(name, place), desc) for place, desc in enumerate(values[name])]
                if name in arrays
                else [(name, values[name])]
            )
            if desc is not None
        }

    def output_names(self) -> list[str]:
        """The outputs that are computed, by name: all but optional ones that are null."""
        return self.computed(self.tensors(Role.OUTPUT))

    @classmethod
    def computed(cls, stated: Collection[str]) -> list[str]:
        """The same where these tensors are stated."""
        arrays, optional = _array_names(cls), _optional_outputs(cls)
        return [
            each
            for name in cls.tensor_names(Role.OUTPUT)
            for each in (members((name,), stated) if name in arrays or name in optional else [name])
        ]

    def implied(self, name: str, level: FeatureLevel, data_type: DataType | None = None) -> TensorDesc:
        """The descriptor of the output `name`, packed, that follows from the rest, of this `data_type` if that is known
        already. Raises LookupError if none does."""
        sizes, data_type = self.implied_sizes(name), data_type or self.implied_type(name, level)
        if sizes is None:
            raise LookupError(name)
        return TensorDesc(DataType=data_type, Sizes=sizes)

    @classmethod
    def missing(cls, level: FeatureLevel) -> Violation:
        """That devices of `level`, which is below the one that introduced it, do not have the operator."""
        introduced = cls.support.introduced
        return Violation(
            ("Type",),
            f"{cls.name()} does not exist at feature level {level}; it was introduced at {introduced}.",
            level.full_name,
            f">= {introduced.full_name}",
            Kind.FEATURE_LEVEL,
        )

    def stored_types(self) -> dict[str, DataType]:
        """How kernels read and write the elements of each tensor: raw bits as unsigned integers of their width."""
        types = {name: desc.DataType for name, desc in self.tensors().items()}
        if not self.is_bitwise():
            return types
        return {name: DataType(f"UINT{data_type.bits}") for name, data_type in types.items()}

    def numbers(self) -> dict[str, Number]:
        """The attributes that are numbers by the names of their `Parameters`; of a descriptor that has been judged."""
        return numbers_in(self)


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


@lru_cache(4096)
def _type_source(operator: type[Operator], name: str, level: FeatureLevel, inputs: tuple[str, ...]) -> DataType | str:
    """What the data type of an output is where it follows from that of `inputs`, or which of them has the same."""
    for group in operator.same_types or ():
        if name in group:
            alike = members(group, inputs)
            if alike:
                return alike[0]
    row = operator.support.at(level)
    only = row.of(name).data_types if row else ()
    return only[0] if len(only) == 1 else inputs[0]


@cache
def _array_names(operator: type[Operator]) -> frozenset[str]:
    names = _tensor_names(operator, None)
    return frozenset(name for name in names if get_origin(operator.model_fields[name].annotation) is list)


@cache
def _optional_outputs(operator: type[Operator]) -> frozenset[str]:
    names = _tensor_names(operator, Role.OUTPUT)
    return frozenset(name for name in names if Null.NOT_COMPUTED in operator.model_fields[name].metadata)


@cache
def _attribute_names(operator: type[Operator]) -> tuple[str, ...]:
    tensors = _tensor_names(operator, None)
    return tuple(name for name in operator.model_fields if name != "Type" and name not in tensors)


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
