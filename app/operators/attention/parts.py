"""Query, key and value of an attention: heads before items, what is added to them, and what they follow."""

from collections.abc import Iterable, Mapping
from typing import Any

from app.operators.arrays import for_blas
from app.operators.attention import sizes as shapes
from app.operators.attention.tiles import is_of_vectors

_PRESENTS = ("OutputPresentKeyTensor", "OutputPresentValueTensor")


def with_bias(xp: Any, inputs: Mapping[str, Any], sizes: shapes.Sizes) -> list[Any]:
    """Query, key and value, { batch, heads, items, size }. They are float32, but on a GPU, whose kernels read float16,
    as they are stored where nothing is added."""
    bias = inputs["BiasTensor"].reshape(-1).astype("float32") if "BiasTensor" in inputs else None
    made, begin = [], 0
    for part, heads in (("query", sizes.heads), ("key", sizes.key_heads), ("value", sizes.key_heads)):
        x = _heads_of(inputs, part, heads)
        size = x.shape[-1]
        if bias is not None or xp.__name__ != "cupy":
            x = x.astype("float32", copy=False)
        if bias is not None:
            x = x + bias[begin : begin + heads * size].reshape(heads, 1, size)
        begin += heads * size
        made.append(x if xp.__name__ == "cupy" else for_blas(xp, x))
    return made


def _heads_of(inputs: Mapping[str, Any], part: str, heads: int) -> Any:
    name = next(each for each in shapes.SOURCES[part] if each in inputs)
    x = inputs[name]
    stacked = shapes.PLACES.get(name)
    x = x[:, :, :, stacked.index(part)] if stacked else x.reshape(*x.shape[-3:-1], heads, -1)
    return x.transpose(0, 2, 1, 3)


def made_in_place(inputs: Mapping[str, Any], into: Mapping[str, Any], key: Any) -> dict[str, Any]:
    """Those present outputs of `into` that `with_past` can fill, for heads like `key`."""
    if "PastSequenceLengthsTensor" in inputs:
        return {}
    presents = {name: into[name] for name in _PRESENTS if name in into}
    return {name: x for name, x in presents.items() if x.flags.c_contiguous and x.dtype == key.dtype}


def with_past(
    xp: Any, inputs: Mapping[str, Any], key: Any, value: Any, into: Mapping[str, Any]
) -> tuple[Any, Any, Any]:
    """Keys and values behind those of the past, and, { batch, keys }, which positions hold none; None if all do.
    Present outputs that are in `into` are filled, and what is given for them lies there."""
    made = []
    for part, present, new in (("Key", _PRESENTS[0], key), ("Value", _PRESENTS[1], value)):
        past, whole = inputs.get(f"Past{part}Tensor"), into.get(present)
        if past is None and whole is None:
            made.append(new)
            continue
        items = [new] if past is None else [past.reshape(past.shape[-4:]).astype(new.dtype, copy=False), new]
        sizes = (*new.shape[:2], sum(each.shape[2] for each in items), new.shape[3])
        made.append(xp.empty(sizes, new.dtype) if whole is None else whole.reshape(sizes))
        _put_together(xp, items, made[-1])
    if "PastSequenceLengthsTensor" not in inputs:
        return made[0], made[1], None
    capacity, new = inputs["PastKeyTensor"].shape[-2], key.shape[2]
    lengths = inputs["PastSequenceLengthsTensor"].reshape(-1, 1).astype("float32")
    lengths = xp.where(lengths > 0, xp.minimum(lengths, capacity), 0).astype("int64")
    places = xp.arange(capacity + new).reshape(1, -1)
    beyond = places >= lengths + new
    # What is new follows the past that there is; all that is left follows what is new.
    taken = xp.where(places < lengths, places, xp.minimum(places - lengths + capacity, capacity + new - 1))
    for place, each in enumerate(made):
        along = xp.broadcast_to(taken[:, None, :, None], each.shape)
        made[place] = xp.where(beyond[:, None, :, None], xp.zeros((), each.dtype), xp.take_along_axis(each, along, 2))
    return made[0], made[1], beyond


def _put_together(xp: Any, parts: Iterable[Any], whole: Any) -> None:
    """Items one behind the other, { batch, heads, items, size }."""
    begin = 0
    for part in parts:
        place = whole[:, :, begin : begin + part.shape[2]]
        begin += part.shape[2]
        if xp.__name__ == "cupy" and is_of_vectors(part) and is_of_vectors(place):
            place.view("complex128")[...] = part.view("complex128")  # CuPy copies element by element
        else:
            place[...] = part
