"""Numbers as the fields of DirectML's structures hold them: UINT, INT, BOOL, FLOAT, DML_SIZE_2D, DML_SCALAR_UNION."""

import math
import struct
import sys
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    SkipValidation,
    Tag,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from app.contract.constants import DataType
from app.contract.members import Document

UINT_MAX = 2**32 - 1
FLOAT_MAX = 3.4028234663852886e38
DOUBLE_MAX = sys.float_info.max

_FLOAT = struct.Struct("<f")
INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}
"""What JSON has no number for, as strings."""


def to_float(value: float) -> float:
    """`value` rounded to a finite float32, to nearest even. Raises PydanticCustomError if there is none."""
    rounded: float
    try:
        (rounded,) = _FLOAT.unpack(_FLOAT.pack(float(value)))
    except OverflowError:
        rounded = math.inf
    if not -FLOAT_MAX <= rounded <= FLOAT_MAX:  # nor NaN, which compares with nothing
        raise PydanticCustomError(
            "float_finite",
            "must be a finite number within the range of FLOAT (float32)",
            {"allowed": f"-{FLOAT_MAX} to {FLOAT_MAX}"},
        )
    return rounded


Float = Annotated[
    float,
    AfterValidator(to_float),
    Field(json_schema_extra={"format": "float", "minimum": -FLOAT_MAX, "maximum": FLOAT_MAX}),
]


def _not_nan(value: float) -> float:
    if value != value:  # of an integer, too, which may be beyond double precision
        raise PydanticCustomError("float_nan", "must be a number, which NaN is not", {"allowed": "a number"})
    return value


def _float_or_infinity(value: float) -> float:
    if value in INFINITIES.values():
        return value
    _not_nan(value)
    try:
        return to_float(value)
    except PydanticCustomError as error:
        message = "must be a number within the range of FLOAT (float32), or an infinity"
        raise PydanticCustomError("float_or_infinity", message, error.context) from None


def _in_float_range(value: float) -> float:
    _float_or_infinity(value)
    return value


def _infinity(value: object) -> object:
    """The infinity that a string spells, as in tensor data; what is no string as it is. Raises PydanticCustomError."""
    if not isinstance(value, str):
        return value
    if value not in INFINITIES:
        allowed = 'a number, "Infinity" or "-Infinity"'
        raise PydanticCustomError("float_or_infinity", "must be {allowed}", {"allowed": allowed})
    return INFINITIES[value]


def _spelled(value: float) -> float | str:
    return next((name for name, infinity in INFINITIES.items() if value == infinity), value)


# Generators make no class of "a number or one of two strings", so the document asks for a number.
_READ = BeforeValidator(_infinity, json_schema_input_type=float)
_WRITTEN = PlainSerializer(_spelled)
_Spelled: TypeAlias = Annotated[float, _READ, _WRITTEN]

FloatOrInfinity = Annotated[
    _Spelled,
    AfterValidator(_float_or_infinity),
    Field(json_schema_extra={"format": "float", "minimum": -FLOAT_MAX, "maximum": FLOAT_MAX}),
]
"""A FLOAT that is taken as elements are: a maximum is padded with an infinity, and what is masked has one for a score.
JSON has these as strings."""
Bound = Annotated[
    _Spelled,
    AfterValidator(_in_float_range),
    Field(json_schema_extra={"format": "double", "minimum": -FLOAT_MAX, "maximum": FLOAT_MAX}),
]
"""A FLOAT that becomes a number of the tensor's type: of an integer type without being rounded to float32 before, so
that whole numbers of up to 53 bits are taken as they are given. An infinity is no bound: WebNN's `clamp` has both where
nobody gives one."""
Uint = Annotated[int, Field(ge=0, le=UINT_MAX)]
Uint64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
Int = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]


def _bool(value: object) -> object:
    """BOOL is an integer in C, of which clients write 0 and 1 as they write false and true."""
    return bool(value) if isinstance(value, int) and value in (0, 1) else value


# Generators make no class of "true, false, 0 or 1", so the document asks for the first two.
Bool = Annotated[bool, BeforeValidator(_bool, json_schema_input_type=bool)]


class Size2D(Document):
    """DML_SIZE_2D. Neither size is 0."""

    Width: Annotated[Uint, Field(ge=1)] = Field(description="Along the last dimension.")
    Height: Annotated[Uint, Field(ge=1)] = Field(description="Along the last but one.")

    def __str__(self) -> str:
        return f"Width {self.Width} and Height {self.Height}"


class ScalarUnion(Document):
    """DML_SCALAR_UNION: a number in the member of its type, all others absent. FLOAT16 is UInt16, by its bits.

    Infinities are numbers here: they are what a maximum is padded with, and no bound. JSON spells them "Infinity" and
    "-Infinity".
    """

    Float64: Annotated[_Spelled, AfterValidator(_not_nan)] | None = Field(None, description="Of FLOAT64.")
    Float32: Annotated[_Spelled, AfterValidator(_float_or_infinity)] | None = Field(None, description="Of FLOAT32.")
    Int64: int | None = Field(None, ge=-(2**63), le=2**63 - 1, description="Of INT64.")
    Int32: int | None = Field(None, ge=-(2**31), le=2**31 - 1, description="Of INT32.")
    Int16: int | None = Field(None, ge=-(2**15), le=2**15 - 1, description="Of INT16.")
    Int8: int | None = Field(None, ge=-(2**7), le=2**7 - 1, description="Of INT8.")
    UInt64: int | None = Field(None, ge=0, le=2**64 - 1, description="Of UINT64.")
    UInt32: int | None = Field(None, ge=0, le=2**32 - 1, description="Of UINT32.")
    UInt16: int | None = Field(None, ge=0, le=2**16 - 1, description="Of UINT16, or the bits of a FLOAT16.")
    UInt8: int | None = Field(None, ge=0, le=2**8 - 1, description="Of UINT8.")

    def value(self, data_type: DataType) -> int | float:
        """The number, as `data_type` reads it. Raises ValueError unless its member, and no other, is given."""
        member = _MEMBERS.get(data_type)
        given = [name for name, value in self if value is not None]
        if given != [member]:
            told = " and ".join(given) or "no member"
            raise ValueError(f"has {told}; a number of {data_type} is given as {member} alone")
        value: int | float = getattr(self, given[0])
        return float(struct.unpack("<e", struct.pack("<H", value))[0]) if data_type is DataType.FLOAT16 else value


_MEMBERS = {
    DataType.FLOAT64: "Float64",
    DataType.FLOAT32: "Float32",
    DataType.FLOAT16: "UInt16",
    DataType.INT64: "Int64",
    DataType.INT32: "Int32",
    DataType.INT16: "Int16",
    DataType.INT8: "Int8",
    DataType.UINT64: "UInt64",
    DataType.UINT32: "UInt32",
    DataType.UINT16: "UInt16",
    DataType.UINT8: "UInt8",
}


def _form(value: Any) -> Literal["number", "union"] | None:
    if isinstance(value, dict | ScalarUnion):
        return "union"
    is_number = isinstance(value, int | float | str) and not isinstance(value, bool)  # a string may spell an infinity
    return "number" if is_number else None


Scalar: TypeAlias = Annotated[
    Annotated[SkipValidation[int | float], _READ, _WRITTEN, Tag("number"), WithJsonSchema({"type": "number"})]
    | Annotated[ScalarUnion, Tag("union")],
    Discriminator(
        _form,
        custom_error_type="scalar",
        custom_error_message="must be a number, or an object with the one member of DML_SCALAR_UNION that it is in",
        custom_error_context={"allowed": "a number"},
    ),
]
"""A number of a type that another field tells: bare, or in its member of DML_SCALAR_UNION. Generators make no class of
"a number or one of two words", so the document asks for the first."""


def scalar_value(scalar: int | float | ScalarUnion, data_type: DataType) -> int | float:
    """`scalar` as a number of `data_type`. Raises ValueError with what is wrong, to follow the field's name.

    One of FLOAT16 is as it was given: it is rounded as it becomes an element, and not to float32 before.
    """
    value = scalar.value(data_type) if isinstance(scalar, ScalarUnion) else scalar
    if data_type is DataType.FLOAT64:
        if not (-DOUBLE_MAX <= value <= DOUBLE_MAX or value in INFINITIES.values()):
            raise ValueError("must be a number within the range of FLOAT64")
        return float(value)
    if data_type.value.startswith("FLOAT"):
        try:
            real = _float_or_infinity(value)
        except PydanticCustomError as error:
            raise ValueError(error.message()) from None
        return float(value) if data_type is DataType.FLOAT16 else real
    signed = data_type.value.startswith("I")
    least, most = (
        (-(1 << (data_type.bits - 1)), (1 << (data_type.bits - 1)) - 1) if signed else (0, (1 << data_type.bits) - 1)
    )
    if isinstance(value, float) or not least <= value <= most:
        raise ValueError(f"must be an integer from {least} to {most}, since it is {data_type}")
    return value
