"""Inputs as they are in a document: tensor data, or an object with a descriptor and `data`, as outputs are answered."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from app.contract.tensors import TensorDesc
from app.contract.validation import validate
from app.contract.violations import ContractError, Path, refused

_DATA = "data"
_LAYOUT = ("DataType", "Sizes", "Strides", "TotalTensorSizeInBytes")


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
    """Raise ContractError unless what an input says of itself is what `desc` says of it. It may leave members out."""
    if not stated:
        return
    try:
        given = validate(TensorDesc, {member: getattr(desc, member) for member in _LAYOUT} | dict(stated))
    except ContractError as error:
        raise error.below(*path) from None
    shown, allowed = (f"{each.DataType} {list(each.Sizes)}" for each in (given, desc))
    if shown == allowed:
        if wrong := list(given.violations()):
            raise ContractError(wrong).below(*path)
        if given.same_layout(desc):
            return
        shown, allowed = (f"of {each.total_bytes} bytes with strides {list(each.strides)}" for each in (given, desc))
    raise refused(path, f"{path[-1]} is {shown}; it must be {allowed}.", shown, allowed)


def given_inputs(
    inputs: Mapping[str, object], descs: Mapping[str, TensorDesc], is_idle: Callable[[str], bool]
) -> Iterator[Given]:
    """The data of the inputs of a graph, which are like `descs`, without null for those to which nothing is bound:
    these are idle. Raises ContractError where they say otherwise."""
    for name, value in inputs.items():
        path = ("inputs", name)
        stated, data = apart(value, path)
        if name in descs:
            check_stated(stated, descs[name], path)
        if data is not None or not is_idle(name):
            yield Given(name, path, data)
