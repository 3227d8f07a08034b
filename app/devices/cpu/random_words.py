"""RANDOM_GENERATOR on the CPU, by loops that LLVM compiled."""

from array import array

from app.devices.cpu.alone import CallsKernel, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.llvm import random_words
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.random_words import AT_ONCE
from app.devices.cpu.llvm.team import Team
from app.operators.compiled import CompiledOperator
from app.operators.random_numbers.generators import RandomGenerator

WORK = 1 << 4
"""Of a word."""


def random_kernel(compiled: CompiledOperator, team: Team) -> CallsKernel | None:
    """For the operator, if it is the one, of packed tensors."""
    operator = compiled.operator
    tensors = [*compiled.inputs.values(), *compiled.outputs.values()]
    if not isinstance(operator, RandomGenerator) or not all(each.is_packed for each in tensors):
        return None
    elements = compiled.outputs["OutputTensor"].elements
    code = Code(team.compiler, random_words.words())
    calls = []
    for part in portions(range(-(-elements // AT_ONCE)), WORK * AT_ONCE, team.most):
        first = part.start * AT_ONCE
        count = min(part.stop * AT_ONCE, elements) - first
        pointers = [Pointer(0, Of.INPUT), Pointer(1, Of.OUTPUT, 0, 4 * first)]
        calls.append(Call(code, array("q", [0, 0, first // 4, count]), pointers, WORK * count))
    if len(compiled.outputs) > 1:
        pointers = [Pointer(0, Of.INPUT), Pointer(1, Of.OUTPUT, 1)]
        calls.append(
            Call(Code(team.compiler, random_words.after()), array("q", [0, 0, -(-elements // 4)]), pointers, WORK)
        )
    return CallsKernel(compiled, Calls([calls]), team)
