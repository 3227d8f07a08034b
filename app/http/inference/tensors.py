"""Data types by the protocol's names, and tensor data as it writes them in JSON."""

from app.codecs.number_text import Elements
from app.contract.constants import DataType
from app.contract.suggestions import did_you_mean

DATATYPES = {"BOOL": DataType.UINT8} | {
    str(data_type).replace("FLOAT", "FP"): data_type for data_type in DataType if data_type.bits >= 8
}
"""Data types by the protocol's names, which has none for elements of four bits."""

NAMES = {data_type: name for name, data_type in DATATYPES.items()}
"""The protocol's names by data type."""


def meant_datatype(given: str) -> str:
    """ " Did you mean FP32?" for FLOAT32, fp32, FP31 and float."""
    name = given[:80].upper().replace("FLOAT", "FP")
    if name in DATATYPES:
        return f" Did you mean {name}?"
    return did_you_mean(given, map(str, NAMES)).replace("FLOAT", "FP") or did_you_mean(name, DATATYPES)


def elements_of(name: str, datatype: str) -> Elements:
    """What the numbers of the input `name` become."""
    is_bool = datatype == "BOOL"
    return Elements(name, ("inputs", name, "data"), DATATYPES[datatype], datatype, has_booleans=is_bool)
