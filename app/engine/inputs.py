"""Inputs as they are in a document: tensor data, or an object with a descriptor and `data`, as outputs are answered."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from app.contract.tensors import TensorDesc
from app.contract.validation import validate
from app.contract.violations import Path, refused

_DATA = "data"


class Given(NamedTuple):
    """A tensor's data as they are in a document, and where in it."""

    name: str
    path: Path
    value: object


def apart(value: Any, path: Path) -> tuple[dict[str, Any], Any]:
    """An input's descriptor, empty where it has none, and its data. Raises ContractError."""
    if not isinstance(value, dict):
        return {}, value
    if _DATA not in value:
        raise refused((*path, _DATA), f"{path[-1]} has no {_DATA}, which stand beside its descriptor.", None, "data")
    return {name: each for name, each in value.items() if name != _DATA}, value[_DATA]


def check_stated(stated: Mapping[str, Any], desc: TensorDesc, path: Path) -> None:
    """Raise ContractError unless what an input says of itself is what `desc` says of it."""
    if not stated:
        return
    given = validate(TensorDesc, dict(stated))
    if given.DataType != desc.DataType or not given.same_layout(desc):
        shown, allowed = (f"{each.DataType} {list(each.Sizes)}" for each in (given, desc))
        if shown == allowed:
            shown, allowed = f"with strides {given.Strides}", f"with strides {desc.Strides}"
        raise refused(path, f"{path[-1]} is {shown}; it must be {allowed}.", shown, allowed)


def given_inputs(inputs: Mapping[str, object], descs: Mapping[str, TensorDesc]) -> Iterator[Given]:
    """The data of the inputs of a graph, which are like `descs`. Raises ContractError where they say otherwise."""
    for name, value in inputs.items():
        path = ("inputs", name)
        stated, data = apart(value, path)
        if name in descs:
            check_stated(stated, descs[name], path)
        yield Given(name, path, data)
