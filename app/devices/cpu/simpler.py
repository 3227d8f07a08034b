"""Operators that are others of fewer dimensions, or of elements by themselves, for which loops are longer."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from app.contract.constants import NEWEST, DataType, ReduceFunction
from app.contract.tensors import TensorDesc
from app.devices.cpu.arrays import LARGE_TOTAL
from app.devices.cpu.split_totals import is_split
from app.formula.coordinates import Coordinate
from app.formula.structures import Questions, Structures
from app.formula.values import Value, parts, replaced
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.normalization.batch_training import BatchNormalizationTraining, Gradient
from app.operators.operator import Operator
from app.operators.pooling.averages import AveragePooling, AveragePooling1, LpPooling, LpPooling1
from app.operators.pooling.maxima import MaxPooling, MaxPooling1, MaxPooling2
from app.operators.pooling.regions import RoiAlign, RoiAlign1, RoiPooling
from app.operators.quantization.blocks import by_elements
from app.operators.quantization.elements import Dequantize, Quantize
from app.operators.reduction.reductions import Argmax, Argmin, Reduce
from app.programs.dispatchable import Dispatchable
from app.programs.program import Program

SHORT = 16
"""Elements of a row that is reduced to which a loop comes sooner along another dimension."""

FEW_COLUMNS = 8
"""The same of a row of totals, which vectors have some use of."""

FEW_CHANNELS = 8
"""Of an image with regions; for fewer a loop over them is mostly its beginning."""


def simpler(compiled: Dispatchable, structures: Structures) -> Dispatchable:
    """The same as another operator, if there is one that is simpler: of the same elements, by the same formula."""
    if not isinstance(compiled, CompiledOperator):
        return compiled
    way = _way_of(type(compiled.operator))
    return way(compiled, compiled.operator, structures) if way else compiled


@cache
def _way_of(kind: type[Operator]) -> Callable[[CompiledOperator, Any, Structures], CompiledOperator] | None:
    """How operators of this `kind` may be others."""
    if issubclass(kind, (Reduce, Argmin, Argmax)):
        return _of_few_dimensions
    if issubclass(kind, (AveragePooling, AveragePooling1, LpPooling, LpPooling1, MaxPooling, MaxPooling1, MaxPooling2)):
        return _of_whole_window
    if issubclass(kind, (BatchNormalizationTraining, Gradient)):
        return _of_few_groups
    return by_elements if issubclass(kind, (Quantize, Dequantize)) else None


def _of_few_groups(
    compiled: CompiledOperator, operator: BatchNormalizationTraining | Gradient, structures: Structures
) -> CompiledOperator:
    """A normalization of tensors without gaps, in the order in which elements lie, with neighbouring dimensions that
    groups extend along, or do not, made one."""
    tensors = {**compiled.inputs, **compiled.outputs}
    whole, of = tensors["InputTensor"], tensors["ScaleTensor"]
    lies = _order_of(whole)
    if whole.elements < LARGE_TOTAL or not lies or not all(_moved(each, lies).is_packed for each in tensors.values()):
        return compiled
    if isinstance(operator, BatchNormalizationTraining) and operator.FusedActivation:
        return compiled
    sizes, is_of_group = _merged([whole.Sizes[axis] for axis in lies], [of.Sizes[axis] == 1 for axis in lies])
    if not sizes or (len(sizes) == whole.rank and _is_rising(lies)):
        return compiled
    one = [1 if is_inside else size for size, is_inside in zip(sizes, is_of_group, strict=True)]
    merged = operator.model_copy(
        update={
            name: TensorDesc(DataType=desc.DataType, Sizes=sizes if desc.Sizes == whole.Sizes else one)
            for name, desc in tensors.items()
        }
    )
    return compile_operator(merged, NEWEST, structures)


def _merged(sizes: Sequence[int], marks: Sequence[bool]) -> tuple[list[int], list[bool]]:
    """Sizes with neighbouring dimensions of one mark made one, and their marks; those of size 1 are left out."""
    made: list[int] = []
    kept: list[bool] = []
    for size, mark in zip(sizes, marks, strict=True):
        if size > 1 and kept and kept[-1] is mark:
            made[-1] *= size
        elif size > 1:
            made.append(size)
            kept.append(mark)
    return made, kept


def _of_whole_window(
    compiled: CompiledOperator,
    operator: AveragePooling | AveragePooling1 | LpPooling | LpPooling1 | MaxPooling | MaxPooling1 | MaxPooling2,
    structures: Structures,
) -> CompiledOperator:
    """A pooling of floats with one window that is all of the tensor, as a reduction."""
    given, (made, *others) = operator.InputTensor, compiled.outputs.values()
    is_whole = given.Sizes[2:] == operator.WindowSize and math.prod(made.Sizes[2:]) == 1
    is_plain = not any([*operator.StartPadding, *operator.EndPadding]) and set(operator.dilations) == {1}
    if not is_whole or not is_plain or given.DataType not in (DataType.FLOAT32, DataType.FLOAT16) or others:
        return compiled
    function: ReduceFunction | None = ReduceFunction.MAX
    if isinstance(operator, AveragePooling | AveragePooling1):
        function = ReduceFunction.AVERAGE
    elif isinstance(operator, LpPooling | LpPooling1):
        function = {1: ReduceFunction.L1, 2: ReduceFunction.L2}.get(operator.P)
    if function is None:
        return compiled
    reduction = Reduce(
        Type="REDUCE",
        Function=function,
        InputTensor=given,
        OutputTensor=made,
        Axes=list(range(2, given.rank)),
    )
    made_of_it = compile_operator(reduction, NEWEST, structures)
    return _of_few_dimensions(made_of_it, reduction, structures)


def _of_few_dimensions(
    compiled: CompiledOperator, operator: Reduce | Argmin | Argmax, structures: Structures
) -> CompiledOperator:
    """A large reduction of a tensor without gaps, in the order in which its elements lie, with neighbouring dimensions
    that are reduced, or are not, made one; where rows are short, with the one before them as the last one."""
    given, made, axes = operator.InputTensor, compiled.outputs["OutputTensor"], operator.Axes
    lies = _order_of(given)
    if given.elements < LARGE_TOTAL or not lies:
        return compiled
    is_position = isinstance(operator, Argmin | Argmax) or operator.is_index
    if is_position and not _is_rising([axis for axis in lies if axis in axes and given.Sizes[axis] > 1]):
        return compiled
    given, made, are_reduced = _moved(given, lies), _moved(made, lies), [axis in axes for axis in lies]
    order = list(range(given.rank))
    if made.is_packed:
        sizes, are_reduced = _merged(given.Sizes, are_reduced)
        left = [1 if is_reduced else size for size, is_reduced in zip(sizes, are_reduced, strict=True)]
        given, made = (TensorDesc(DataType=desc.DataType, Sizes=of) for desc, of in ((given, sizes), (made, left)))
        order = list(range(len(sizes))) if is_position else _longest_last(sizes, are_reduced)
    if not any(are_reduced) or (given.rank == len(lies) and _is_rising(lies) and _is_rising(order)):
        return compiled
    merged = operator.model_copy(
        update={
            "InputTensor": _moved(given, order),
            "OutputTensor": _moved(made, order),
            "AxisCount": None,
            "Axes": [place for place, axis in enumerate(order) if are_reduced[axis]],
        }
    )
    return compile_operator(merged, NEWEST, structures)


def _order_of(desc: TensorDesc) -> list[int] | None:
    """A tensor's dimensions in the order in which its elements lie; None if there are gaps, or some are repeated."""
    if desc.is_packed:
        return list(range(desc.rank))
    order = sorted(range(desc.rank), key=lambda axis: (desc.Sizes[axis] > 1, -desc.strides[axis]))
    return order if _moved(desc, order).is_packed else None


def _moved(desc: TensorDesc, order: Sequence[int]) -> TensorDesc:
    """The tensor with its dimensions in that order."""
    return TensorDesc(
        DataType=desc.DataType,
        Sizes=[desc.Sizes[axis] for axis in order],
        Strides=[desc.strides[axis] for axis in order],
    )


def _is_rising(numbers: Sequence[int]) -> bool:
    return all(one < other for one, other in itertools.pairwise(numbers))


def _longest_last(sizes: Sequence[int], are_reduced: Sequence[bool]) -> list[int]:
    """The dimensions in the order in which loops take them: to begin with each of many short rows takes longer than to
    read what lies apart, unless that is far apart."""
    *outer, last = order = list(range(len(sizes)))
    across = [axis for axis in outer if not are_reduced[axis]]
    short = SHORT if are_reduced[last] else FEW_COLUMNS
    if not across or sizes[last] >= short or sizes[across[-1]] <= sizes[last]:
        return order
    if not are_reduced[last] and is_split(sizes[last - 1], sizes[last]):
        return order
    longest = across[-1]
    return [*(axis for axis in outer if axis != longest), last, longest]


def with_channels_last(compiled: CompiledOperator, structures: Structures) -> Dispatchable:
    """An alignment of regions, at each place for all channels: what is read and by which weights is the same for them,
    and takes longer to find than to use."""
    if not isinstance(compiled.operator, RoiAlign | RoiAlign1 | RoiPooling):
        return compiled
    (name,) = compiled.outputs
    made = compiled.outputs[name]
    if made.Sizes[1] < FEW_CHANNELS:
        return compiled
    order = [0, 2, 3, 1]
    desc = _moved(made, order)
    whole = compiled.program.maps[name]

    def moved(_: Questions) -> Program:
        known: dict[Value, Value] = {
            each: Coordinate(each.type, order.index(each.axis))
            for each in parts(whole.expression)
            if isinstance(each, Coordinate)
        }
        in_order = replace(whole, expression=replaced(whole.expression, known))
        return Program(compiled.program.inputs, {name: in_order})

    program = structures.find((whole, "channels last"), {}, moved)
    return Dispatchable(compiled.inputs, {name: desc}, program, compiled.numbers)
