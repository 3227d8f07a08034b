"""QUANTIZED_LINEAR_AVERAGE_POOLING and LOCAL_RESPONSE_NORMALIZATION within channels on the CPU: the sums of windows, as
the loops of pools make them or those of a reduction, into memory of the kernel's own, and then by the formula what
becomes of them."""

import math
from dataclasses import replace

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.calls import Calls, chained
from app.devices.cpu.convolution_loops import Space
from app.devices.cpu.coordinates import CoordinateKernel
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.pools import FARTHEST, LEAST_ROW, PoolKernel, space_of
from app.devices.cpu.threads import Threads
from app.formula.coordinates import Element, Total, coordinates, sum_over
from app.formula.structures import Questions, Structures
from app.formula.values import INT64, Parameter, cast, parts, replaced
from app.operators.compiled import CompiledOperator
from app.operators.convolution.windows import Windows
from app.operators.normalization.local_response import LocalResponseNormalization
from app.operators.pooling.averages import QuantizedLinearAveragePooling
from app.programs.dispatchable import Dispatchable
from app.programs.program import Map, Program

SUMS, TERMS = "(sums)", "(terms)"

MOST = 1 << 23
"""Elements of a window, whose sum has 32 bits."""


MOST_ALONG = 1 << 4
"""Elements along a side of a region: all of a channel is made by one call, that nobody ends."""


def ended_windows_kernel(
    compiled: CompiledOperator, team: Team, threads: Threads, structures: Structures
) -> CallsKernel | None:
    """For the operator, if it is one of these, of a packed tensor, and has some windows in a row, or one that is all of
    the tensor."""
    operator, stored = compiled.operator, DataType.INT32
    if isinstance(operator, QuantizedLinearAveragePooling) and math.prod(operator.WindowSize) <= MOST:
        first = _sums(compiled, operator, compiled.outputs["OutputTensor"], team, threads, structures)
    elif isinstance(operator, LocalResponseNormalization) and not operator.CrossChannel:
        first, stored = _squares(compiled, operator, team), DataType.FLOAT64
    else:
        return None
    whole, output = compiled.program.maps["OutputTensor"], compiled.outputs["OutputTensor"]
    totals = [each for each in parts(whole.expression) if isinstance(each, Total)]
    if first is None or len(totals) != 1:
        return None
    sums = TensorDesc(DataType=stored, Sizes=output.Sizes)
    inputs = {**compiled.inputs, SUMS: sums}

    def program(_: Questions) -> Program:
        summed = Element(totals[0].type, SUMS, stored, tuple(coordinates(output.rank)))
        ended = replace(whole, expression=replaced(whole.expression, {totals[0]: summed}))
        return Program({name: desc.DataType for name, desc in inputs.items()}, {"OutputTensor": ended})

    ending = structures.find((whole, "of sums"), {}, program)
    second = CoordinateKernel(
        Dispatchable(inputs, compiled.outputs, ending, compiled.numbers), "OutputTensor", threads, structures, team, 1
    ).calls()
    if second is None:
        return None
    return CallsKernel(compiled, chained(first, second, len(compiled.inputs), sums.data_bytes), team)


def _squares(compiled: CompiledOperator, operator: LocalResponseNormalization, team: Team) -> Calls | None:
    """Sums of squares around each element."""
    x, along = operator.InputTensor, operator.LocalSize
    if not x.is_packed or along > MOST_ALONG or x.Sizes[3] < LEAST_ROW:
        return None
    sizes, two = x.Sizes[2:], range(2)
    space = Space.of(
        Windows(sizes, sizes, [along for _ in two], [1 for _ in two], [1 for _ in two], [(along - 1) // 2 for _ in two])
    )
    if space.farthest >= FARTHEST or space.elements >= FARTHEST:
        return None
    sums = TensorDesc(DataType=DataType.FLOAT64, Sizes=x.Sizes)
    of = replace(compiled, inputs={"InputTensor": x}, outputs={"OutputTensor": sums})
    return PoolKernel(of, space, math.prod(x.Sizes[:2]), "squares", None, team).calls()


def _sums(
    compiled: CompiledOperator,
    operator: QuantizedLinearAveragePooling,
    output: TensorDesc,
    team: Team,
    threads: Threads,
    structures: Structures,
) -> Calls | None:
    """Those of all windows, as the output."""
    x, space = operator.InputTensor, space_of(operator, output)
    outer = math.prod(x.Sizes[:2])
    if not x.is_packed:
        return None
    inputs = {"InputTensor": x}
    if space:
        sums = TensorDesc(DataType=DataType.INT32, Sizes=output.Sizes)
        of = replace(compiled, inputs=inputs, outputs={"OutputTensor": sums})
        return PoolKernel(of, space, outer, "whole", None, team).calls()
    is_plain = not any([*operator.StartPadding, *operator.EndPadding]) and set(operator.Dilations) == {1}
    if x.Sizes[2:] != operator.WindowSize or math.prod(output.Sizes[2:]) > 1 or not is_plain:
        return None

    def program(_: Questions) -> Program:
        row, _last = coordinates(2)
        total = sum_over(
            [Parameter(INT64, TERMS)],
            lambda index: cast(Element(x.DataType.value.lower(), "InputTensor", x.DataType, (row, index)), INT64),
        )
        return Program(
            {"InputTensor": x.DataType}, {SUMS: Map(cast(total, "int32"), DataType.INT32, by_coordinates=True)}
        )

    terms = math.prod(operator.WindowSize)
    of_rows = Dispatchable(
        {"InputTensor": TensorDesc(DataType=x.DataType, Sizes=[outer, terms])},
        {SUMS: TensorDesc(DataType=DataType.INT32, Sizes=[outer, 1])},
        structures.find(("sums of rows", x.DataType), {}, program),
        {TERMS: terms},
    )
    return CoordinateKernel(of_rows, SUMS, threads, structures, team, 1).calls()
