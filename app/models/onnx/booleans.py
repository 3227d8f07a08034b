"""Which tensors are ONNX's bool, of which DirectML has none: they are UINT8 with elements of 0 and 1.

Functions and casts mean other things of bool than of uint8, so that it is not to be forgotten which is which.
"""

from collections.abc import Sequence
from typing import Any

from app.graphs.graph import Constant
from app.models.onnx.builder import Builder
from app.models.onnx.mapping import Value
from app.models.onnx.schemas import Formal, formal
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
    known = formal(schema)
    for place, value in enumerate(made):
        name = known.outputs[min(place, len(known.outputs) - 1)]
        if name == _BOOLS or (not name.startswith("tensor(") and _is_bool(build, known, name, inputs, attributes)):
            mark(build, value)


def _is_bool(
    build: Builder, known: Formal, parameter: str, inputs: Sequence[Value | None], attributes: dict[str, Any]
) -> bool:
    """Whether the type that the schema calls `parameter` is: it allows none but that, as for what a comparison makes,
    inputs that are called so have it, or an attribute says it."""
    if parameter in known.bools:
        return True
    last = len(known.inputs) - 1
    same = [each for place, each in enumerate(inputs) if known.inputs[min(place, last)] == parameter]
    if any(each is not None for each in same):
        return any(build.is_boolean(each) for each in same if each is not None)
    return _BOOL in (attributes.get("to"), attributes.get("dtype"))
