"""Numbers as the fields of DirectML's structures hold them: UINT, UINT64 and FLOAT."""

import math
import struct
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

UINT_MAX = 2**32 - 1
FLOAT_MAX = 3.4028234663852886e38


def to_float(value: float) -> float:
    """`value` rounded to a finite float32, to nearest even. Raises PydanticCustomError if there is none."""
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        rounded = math.inf
    if not math.isfinite(rounded):
        raise PydanticCustomError(
            "float_finite",
            "must be a finite number within the range of FLOAT (float32)",
            {"allowed": f"-{FLOAT_MAX} to {FLOAT_MAX}"},
        )
    return float(rounded)


Float = Annotated[
    float,
    AfterValidator(to_float),
    Field(json_schema_extra={"format": "float", "minimum": -FLOAT_MAX, "maximum": FLOAT_MAX}),
]
Uint = Annotated[int, Field(ge=0, le=UINT_MAX)]
Uint64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
