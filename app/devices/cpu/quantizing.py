"""DYNAMIC_QUANTIZE_LINEAR on the CPU, by loops that LLVM compiled."""

from array import array

from app.contract.constants import DataType
from app.devices.cpu.alone import CallsKernel, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.llvm import quantizing
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.llvm.types import bytes_of
from app.memory.addresses import LINE
from app.operators.compiled import CompiledOperator
from app.operators.quantization.elements import DynamicQuantizeLinear

WORK = 4, 16
"""Of an element, to find bounds and to quantize it."""

LONGEST = 1 << 30
"""Elements that are counted with 32 bits."""


def quantizing_kernel(compiled: CompiledOperator, team: Team) -> CallsKernel | None:
    """For the operator, if it is the one, of packed tensors."""
    operator = compiled.operator
    if not isinstance(operator, DynamicQuantizeLinear):
        return None
    x, made = operator.InputTensor, compiled.outputs["OutputTensor"]
    if not x.is_packed or not made.is_packed or x.elements > LONGEST:
        return None
    stored: quantizing.Stored = "half" if x.DataType is DataType.FLOAT16 else "float"
    item = bytes_of(stored)
    width, least = team.compiler.vector_floats, 0 if made.DataType is DataType.UINT8 else -128
    pair = 2 * 4 * width
    whole = range(x.elements)
    first = Code(team.compiler, quantizing.bounds(width, stored))
    second = Code(team.compiler, quantizing.scales(width, least))
    third = Code(team.compiler, quantizing.elements(width, least, stored))
    bounds = [
        Call(
            first,
            array("q", [0, 0, len(part)]),
            [Pointer(0, Of.INPUT, offset=item * part.start), Pointer(1, Of.OWN, offset=LINE + pair * number)],
            WORK[0] * len(part),
        )
        for number, part in enumerate(portions(whole, WORK[0], team.most))
    ]
    own = LINE + pair * len(bounds)
    places = [list(compiled.outputs).index(name) for name in ("OutputScaleTensor", "OutputZeroPointTensor")]
    pointers = [
        Pointer(0, Of.OWN, offset=LINE),
        *(Pointer(place, Of.OUTPUT, number) for place, number in enumerate(places, 1)),
        Pointer(3, Of.OWN),
    ]
    scales = [Call(second, array("q", [0, 0, 0, 0, len(bounds)]), pointers, own)]
    elements = [
        Call(
            third,
            array("q", [0, 0, 0, len(part)]),
            [
                Pointer(0, Of.INPUT, offset=item * part.start),
                Pointer(1, Of.OUTPUT, list(compiled.outputs).index("OutputTensor"), part.start),
                Pointer(2, Of.OWN),
            ],
            WORK[1] * len(part),
        )
        for part in portions(whole, WORK[1], team.most)
    ]
    return CallsKernel(compiled, Calls([bounds, scales, elements], own), team)
