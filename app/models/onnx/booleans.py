"""Which tensors are ONNX's bool, of which DirectML has none: they are UINT8 with elements of 0 and 1.

Functions and casts mean other things of bool than of uint8, so that it is not to be forgotten which is which.
"""

from collections.abc import Sequence
from typing import Any

from app.graphs.graph import Constant
from app.models.onnx.builder import Builder
from app.models.onnx.mapping import Value
from app.models.onnx.tensors import View

_BOOL = 9
"""onnx.TensorProto.BOOL"""

_BOOLS = "tensor(bool)"


def mark(build: Builder, value: object) -> None:
    """`value` is bool. Of constants the builder knows it: what a mapping makes of uint8 may be there for both types."""
    if isinstance(value, View) and not isinstance(value.source, Constant):
        build.booleans.add(value.source)


def mark_outputs(
    build: Builder, schema: Any, inputs: Sequence[Value | None], attributes: dict[str, Any], made: Sequence[object]
) -> None:
    """Mark those of a node's outputs `made` that are bool by the `schema` of its operator."""
    for place, value in enumerate(made):
        formal = schema.outputs[min(place, len(schema.outputs) - 1)].type_str
        is_parameter = not formal.startswith("tensor(")
        if formal == _BOOLS or (is_parameter and _is_bool(build, schema, formal, inputs, attributes)):
            mark(build, value)


def _is_bool(
    build: Builder, schema: Any, parameter: str, inputs: Sequence[Value | None], attributes: dict[str, Any]
) -> bool:
    """Whether the type that the schema calls `parameter` is: it allows none but that, as for what a comparison makes,
    inputs that are called so have it, or an attribute says it."""
    if any(each.type_param_str == parameter and each.allowed_type_strs == [_BOOLS] for each in schema.type_constraints):
        return True
    last = len(schema.inputs) - 1
    same = [each for place, each in enumerate(inputs) if schema.inputs[min(place, last)].type_str == parameter]
    if any(each is not None for each in same):
        return any(build.is_boolean(each) for each in same if each is not None)
    return _BOOL in (attributes.get("to"), attributes.get("dtype"))
