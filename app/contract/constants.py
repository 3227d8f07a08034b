"""DirectML's enumerations, each constant written with or without its prefix."""

from collections.abc import Mapping
from enum import StrEnum
from functools import cache, cached_property
from typing import Any, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class Constant(StrEnum):
    """Base of the enumerations. A member's value is its short name; `full_name` carries the prefix."""

    __hash__ = str.__hash__  # Enum's is written in Python, and members are in every key

    @classmethod
    def prefix(cls) -> str:
        """What the full names of this enumeration begin with."""
        raise NotImplementedError(cls.__name__)  # each enumeration says; Enum's metaclass leaves none for abc's

    @property
    def full_name(self) -> str:
        return self.prefix() + self.value

    @classmethod
    def spellings(cls) -> list[str]:
        """Every accepted spelling, the short ones first."""
        return [member.value for member in cls] + [member.full_name for member in cls]

    @classmethod
    def names(cls) -> str:
        """The short names within a sentence, for those who get no list of them."""
        *others, last = (member.value for member in cls)
        return f"{', '.join(others)} or {last}" if others else last

    @classmethod
    def parse(cls, text: object) -> Self:
        """The member that `text` names. Case matters, as it does in DirectML's headers."""
        try:
            member: Self = _spelled(cls)[text]
        except (KeyError, TypeError):  # it is another text, or none
            raise PydanticCustomError(
                "constant",
                "must be the name of a DML constant, with or without its prefix {prefix}: {names}",
                {"prefix": cls.prefix(), "names": cls.names(), "allowed": [member.value for member in cls]},
            ) from None
        return member

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse,
            ref=f"{cls.__module__}.{cls.__qualname__}:{id(cls)}",  # a component of its own in JSON schemas
            serialization=core_schema.plain_serializer_function_ser_schema(lambda member: member.value),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        first_line = (cls.__doc__ or "").partition("\n")[0]
        return {"type": "string", "description": first_line, "enum": cls.spellings()}


@cache
def _spelled(kind: type[Constant]) -> Mapping[object, Any]:
    """The members of `kind` by every accepted spelling."""
    return {spelling: member for member in kind for spelling in (member.value, member.full_name)}


class DataType(Constant):
    """DML_TENSOR_DATA_TYPE, in the order of its values (FLOAT32 is 1)."""

    FLOAT32 = "FLOAT32"
    FLOAT16 = "FLOAT16"
    UINT32 = "UINT32"
    UINT16 = "UINT16"
    UINT8 = "UINT8"
    INT32 = "INT32"
    INT16 = "INT16"
    INT8 = "INT8"
    FLOAT64 = "FLOAT64"
    UINT64 = "UINT64"
    INT64 = "INT64"
    UINT4 = "UINT4"
    INT4 = "INT4"

    @classmethod
    def prefix(cls) -> str:
        return "DML_TENSOR_DATA_TYPE_"

    @cached_property
    def bits(self) -> int:
        """Width of an element in bits. UINT4 and INT4 lie two to a byte, the first in the low nibble."""
        return int(self.value.lstrip("FLOATUIN"))

    @cached_property
    def bytes(self) -> int:
        """Width of an element in bytes, at least 1."""
        return max(self.bits // 8, 1)


class TensorFlag(Constant):
    """DML_TENSOR_FLAGS."""

    NONE = "NONE"
    OWNED_BY_DML = "OWNED_BY_DML"

    @classmethod
    def prefix(cls) -> str:
        return "DML_TENSOR_FLAG_"


class RoundingMode(Constant):
    """DML_ROUNDING_MODE: to the nearest, ties to even; truncation; to the nearest, ties away from zero."""

    HALVES_TO_NEAREST_EVEN = "HALVES_TO_NEAREST_EVEN"
    TOWARD_ZERO = "TOWARD_ZERO"
    TOWARD_INFINITY = "TOWARD_INFINITY"

    @classmethod
    def prefix(cls) -> str:
        return "DML_ROUNDING_MODE_"


class IsInfinityMode(Constant):
    """DML_IS_INFINITY_MODE: which infinities are looked for."""

    EITHER = "EITHER"
    POSITIVE = "POSITIVE"
    NEGATIVE = "NEGATIVE"

    @classmethod
    def prefix(cls) -> str:
        return "DML_IS_INFINITY_MODE_"


class MatrixTransform(Constant):
    """DML_MATRIX_TRANSFORM: a matrix as it is, or transposed."""

    NONE = "NONE"
    TRANSPOSE = "TRANSPOSE"

    @classmethod
    def prefix(cls) -> str:
        return "DML_MATRIX_TRANSFORM_"


class ReduceFunction(Constant):
    """DML_REDUCE_FUNCTION: what the elements along the axes are reduced to."""

    ARGMAX = "ARGMAX"
    ARGMIN = "ARGMIN"
    AVERAGE = "AVERAGE"
    L1 = "L1"
    L2 = "L2"
    LOG_SUM = "LOG_SUM"
    LOG_SUM_EXP = "LOG_SUM_EXP"
    MAX = "MAX"
    MIN = "MIN"
    MULTIPLY = "MULTIPLY"
    SUM = "SUM"
    SUM_SQUARE = "SUM_SQUARE"

    @classmethod
    def prefix(cls) -> str:
        return "DML_REDUCE_FUNCTION_"


class ConvolutionMode(Constant):
    """DML_CONVOLUTION_MODE: the filter mirrored, or as it is."""

    CONVOLUTION = "CONVOLUTION"
    CROSS_CORRELATION = "CROSS_CORRELATION"

    @classmethod
    def prefix(cls) -> str:
        return "DML_CONVOLUTION_MODE_"


class ConvolutionDirection(Constant):
    """DML_CONVOLUTION_DIRECTION: forward, or backward (also called transposed)."""

    FORWARD = "FORWARD"
    BACKWARD = "BACKWARD"

    @classmethod
    def prefix(cls) -> str:
        return "DML_CONVOLUTION_DIRECTION_"


class PaddingMode(Constant):
    """DML_PADDING_MODE: what is put around a tensor."""

    CONSTANT = "CONSTANT"
    EDGE = "EDGE"
    REFLECTION = "REFLECTION"
    SYMMETRIC = "SYMMETRIC"
    WRAP = "WRAP"

    @classmethod
    def prefix(cls) -> str:
        return "DML_PADDING_MODE_"


class InterpolationMode(Constant):
    """DML_INTERPOLATION_MODE: how elements are made between those that there are."""

    NEAREST_NEIGHBOR = "NEAREST_NEIGHBOR"
    LINEAR = "LINEAR"

    @classmethod
    def prefix(cls) -> str:
        return "DML_INTERPOLATION_MODE_"


class RecurrentNetworkDirection(Constant):
    """DML_RECURRENT_NETWORK_DIRECTION: which way a sequence is gone through."""

    FORWARD = "FORWARD"
    BACKWARD = "BACKWARD"
    BIDIRECTIONAL = "BIDIRECTIONAL"

    @classmethod
    def prefix(cls) -> str:
        return "DML_RECURRENT_NETWORK_DIRECTION_"


class AxisDirection(Constant):
    """DML_AXIS_DIRECTION: which way an axis is gone along, or which of equals comes first."""

    INCREASING = "INCREASING"
    DECREASING = "DECREASING"

    @classmethod
    def prefix(cls) -> str:
        return "DML_AXIS_DIRECTION_"


class DepthSpaceOrder(Constant):
    """DML_DEPTH_SPACE_ORDER: how a depth is made of blocks."""

    DEPTH_COLUMN_ROW = "DEPTH_COLUMN_ROW"
    COLUMN_ROW_DEPTH = "COLUMN_ROW_DEPTH"

    @classmethod
    def prefix(cls) -> str:
        return "DML_DEPTH_SPACE_ORDER_"


class RandomGeneratorType(Constant):
    """DML_RANDOM_GENERATOR_TYPE: the generator."""

    PHILOX_4X32_10 = "PHILOX_4X32_10"

    @classmethod
    def prefix(cls) -> str:
        return "DML_RANDOM_GENERATOR_TYPE_"


class MultiheadAttentionMaskType(Constant):
    """DML_MULTIHEAD_ATTENTION_MASK_TYPE: what the mask tensor holds."""

    NONE = "NONE"
    KEY_SEQUENCE_LENGTH = "KEY_SEQUENCE_LENGTH"
    KEY_SEQUENCE_END_START = "KEY_SEQUENCE_END_START"
    KEY_QUERY_SEQUENCE_LENGTH_START_END = "KEY_QUERY_SEQUENCE_LENGTH_START_END"
    BOOLEAN = "BOOLEAN"

    @classmethod
    def prefix(cls) -> str:
        return "DML_MULTIHEAD_ATTENTION_MASK_TYPE_"


class QuantizationType(Constant):
    """DML_QUANTIZATION_TYPE: which quantization tensors there are."""

    NONE = "NONE"
    SCALE = "SCALE"
    SCALE_ZERO_POINT = "SCALE_ZERO_POINT"

    @classmethod
    def prefix(cls) -> str:
        return "DML_QUANTIZATION_TYPE_"


class FeatureLevel(Constant):
    """DML_FEATURE_LEVEL, each a strict superset of the lower ones.

    Levels compare as their names do, since each part of a name is a single digit.
    """

    V1_0 = "1_0"
    V2_0 = "2_0"
    V2_1 = "2_1"
    V3_0 = "3_0"
    V3_1 = "3_1"
    V4_0 = "4_0"
    V4_1 = "4_1"
    V5_0 = "5_0"
    V5_1 = "5_1"
    V5_2 = "5_2"
    V6_0 = "6_0"
    V6_1 = "6_1"
    V6_2 = "6_2"
    V6_3 = "6_3"
    V6_4 = "6_4"

    @classmethod
    def prefix(cls) -> str:
        return "DML_FEATURE_LEVEL_"


NEWEST = max(FeatureLevel)
