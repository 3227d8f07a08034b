"""Fused activations as functions that LLVM's code calls."""

import struct
from dataclasses import dataclass
from functools import lru_cache

from app.contract.constants import DataType
from app.devices.cpu.llvm.kernels import FORMS
from app.devices.cpu.llvm.lowering import Element, lower, lower_part
from app.formula.structures import Questions
from app.formula.uniform import evaluator
from app.formula.values import FLOAT32, INT64, Input, Parameter
from app.operators.fusion import Fused
from app.operators.parameters import Parameters, numbers_in


@dataclass(frozen=True, eq=False, slots=True)
class LoweredActivation:
    """One of float32, which reduces nothing."""

    element: Element
    attributes: tuple[int, ...]
    """What a frame has of it, 8 bytes each."""


def lowered_activation(fused: Fused, name: str = "activation") -> LoweredActivation | None:
    """The function, called `name`; None where NumPy is to compute it."""
    return _lowered(type(fused), fused.model_dump_json(), name)


@lru_cache(1024)
def _lowered(kind: type[Fused], text: str, name: str) -> LoweredActivation | None:
    fused = kind.model_validate_json(text)
    numbers = numbers_in(fused)
    parameters = {
        each: Parameter(FLOAT32 if isinstance(number, float) else INT64, each) for each, number in numbers.items()
    }
    ask = Questions(numbers).ask
    formula = fused.formula(Parameters(parameters, ask), Input(FLOAT32, "x", DataType.FLOAT32))
    try:
        element = lower_part(ask, formula, DataType.FLOAT32, name)
        whole = lower(ask, formula, DataType.FLOAT32)
    except LookupError:
        return None
    if not whole.kept:  # the same as that of the activation by itself
        element = Element(name, whole.declarations, whole.body, whole.inputs, whole.output, whole.parameters)
    form = struct.Struct("<" + "".join(FORMS[each.type] for each in element.parameters))
    packed = form.pack(*[evaluator(each)(numbers) for each in element.parameters])
    return LoweredActivation(element, struct.unpack(f"<{len(packed) // 8}q", packed))
