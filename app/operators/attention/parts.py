"""Query, key and value of an attention."""

from collections.abc import Mapping
from typing import Any

from app.contract.constants import DataType
from app.operators.arrays import stored
from app.operators.attention import sizes as shapes


def with_bias(inputs: Mapping[str, Any], sizes: shapes.Sizes) -> list[Any]:
    """Query, key and value, { batch, heads, items, size }: as they are stored, or in float32 with what is added."""
    bias = inputs["BiasTensor"].reshape(-1).astype("float32") if "BiasTensor" in inputs else None
    made, begin = [], 0
    for part, heads in (("query", sizes.heads), ("key", sizes.key_heads), ("value", sizes.key_heads)):
        x = _heads_of(inputs, part, heads)
        size = x.shape[-1]
        if bias is not None:
            x = stored(x, DataType.FLOAT32) + bias[begin : begin + heads * size].reshape(heads, 1, size)
        begin += heads * size
        made.append(x)
    return made


def _heads_of(inputs: Mapping[str, Any], part: str, heads: int) -> Any:
    name = shapes.source(part, inputs)
    x = inputs[name]
    if name == shapes.PASTS.get(part):
        return x.reshape(x.shape[-4:])[:, :, :0]
    stacked = shapes.PLACES.get(name)
    x = x[:, :, :, stacked.index(part)] if stacked else x.reshape(*x.shape[-3:-1], heads, -1)
    return x.transpose(0, 2, 1, 3)
