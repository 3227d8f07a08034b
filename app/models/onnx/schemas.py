"""ONNX's schemas of operators, and what is asked of them for each node."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from onnx import AttributeProto

_BOOLS = ["tensor(bool)"]


class Formal(NamedTuple):
    """What a schema calls the types of its inputs and outputs, the last of which may stand for several, and which of
    these names stand for bool alone."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    bools: frozenset[str]


def schema_of(domain: str, type_: str, opset: int) -> Any:
    """ONNX's schema of an operator; None if it has none."""
    return next((each for each in _schemas().get((domain, type_), ()) if each.since_version <= opset), None)


@cache
def defaults(schema: Any) -> "Mapping[str, AttributeProto]":
    """Of those attributes that have one."""
    return {name: value for name, each in schema.attributes.items() if (value := each.default_value).type}


@cache
def formal(schema: Any) -> Formal:
    return Formal(
        [each.type_str for each in schema.inputs],
        [each.type_str for each in schema.outputs],
        frozenset(each.type_param_str for each in schema.type_constraints if each.allowed_type_strs == _BOOLS),
    )


@cache
def _schemas() -> Mapping[tuple[str, str], Sequence[Any]]:
    """Of each operator, by domain and name, the newest one first. To ask the `onnx` package for one makes another
    object each time."""
    from onnx import defs  # noqa: PLC0415 - an extra

    found: dict[tuple[str, str], list[Any]] = {}
    for each in sorted(defs.get_all_schemas_with_history(), key=lambda each: -each.since_version):
        found.setdefault((each.domain, each.name), []).append(each)
    return found
