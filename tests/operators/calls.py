"""Operators run on the NumPy device as requests run them: strided inputs, guarded outputs."""

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, TypeAlias, cast

from app.contract.constants import NEWEST, FeatureLevel
from app.contract.validation import validate
from app.devices.cpu.device import NumpyDevice
from app.memory.arrays import Array
from app.operators.catalog import find_operator
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.operator import Operator
from tests.operators import arrays
from tests.operators.arrays import desc_of

NUMPY = DEVICE = NumpyDevice(cast(Executor, None), 1)  # one thread needs no others


def compiled(document: dict[str, Any], level: FeatureLevel = NEWEST) -> CompiledOperator:
    kind = find_operator(str(document["Type"]))
    assert kind
    return compile_operator(validate(kind, document), level)


Given: TypeAlias = Array | list[Array] | None


def run(
    document: dict[str, Any],
    given: Mapping[str, Given] | None = None,
    judge: type[Operator] | None = None,
    **named: Given,
) -> dict[str, Array]:
    """The outputs of the operator that `document` states, but for what its inputs, `given` and `named`, say of
    themselves. Nothing beside the outputs' elements is written, and the inputs stay as they are. `judge` is a class to
    take for the operator's, always by NumPy's calls, for which nothing is compiled."""
    inputs = {**(given or {}), **named}
    tensors: dict[str, Array] = {}
    for name, data in inputs.items():
        if isinstance(data, list):
            document = document | {name: [desc_of(each) for each in data]}
            tensors |= {f"{name}[{place}]": each for place, each in enumerate(data)}
        elif data is not None:
            document = document | {name: desc_of(data)}
            tensors[name] = data
    if judge:
        return arrays.run(NUMPY, compile_operator(validate(judge, document), NEWEST), tensors)
    return arrays.run(DEVICE, compiled(document), tensors)
