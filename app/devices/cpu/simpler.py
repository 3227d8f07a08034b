"""Operators that are others of fewer dimensions, or of elements by themselves, for which loops are longer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from app.contract.constants import NEWEST, DataType, ReduceFunction
from app.contract.tensors import TensorDesc, packed_strides
from app.devices.cpu.arrays import LARGE_TOTAL
from app.devices.cpu.split_totals import is_split
from app.formula.coordinates import Coordinate
from app.formula.structures import Questions, Structures
from app.formula.values import Value, parts, replaced
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.normalization.batch_training import BatchNormalizationTraining, Gradient
from app.operators.operator import Operator
from app.operators.pooling.averages import AveragePooling, AveragePooling1
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
    if issubclass(kind, (AveragePooling, AveragePooling1, MaxPooling, MaxPooling1, MaxPooling2)):
        return _of_whole_window
    if issubclass(kind, (BatchNormalizationTraining, Gradient)):
        return _of_few_groups
    return by_elements if issubclass(kind, (Quantize, Dequantize)) else None


def _of_few_groups(
    compiled: CompiledOperator, operator: BatchNormalizationTraining | Gradient, structures: Structures
) -> CompiledOperator:
    """A normalization of packed tensors, with neighbouring dimensions that groups extend along, or do not, made one."""
    tensors = {**compiled.inputs, **compiled.outputs}
    whole, of = tensors["InputTensor"], tensors["ScaleTensor"]
    if whole.elements < LARGE_TOTAL or not all(each.is_packed for each in tensors.values()):
        return compiled
    if isinstance(operator, BatchNormalizationTraining) and operator.FusedActivation:
        return compiled
    sizes, is_of_group = _merged(whole.Sizes, [size == 1 for size in of.Sizes])
    if not sizes or len(sizes) == whole.rank:
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
    operator: AveragePooling | AveragePooling1 | MaxPooling | MaxPooling1 | MaxPooling2,
    structures: Structures,
) -> CompiledOperator:
    """A pooling of floats with one window that is all of the tensor, as a reduction."""
    given, (made, *others) = operator.InputTensor, compiled.outputs.values()
    is_whole = given.Sizes[2:] == operator.WindowSize and math.prod(made.Sizes[2:]) == 1
    is_plain = not any([*operator.StartPadding, *operator.EndPadding]) and set(operator.dilations) == {1}
    if not is_whole or not is_plain or given.DataType not in (DataType.FLOAT32, DataType.FLOAT16) or others:
        return compiled
    is_average = isinstance(operator, AveragePooling | AveragePooling1)
    function = ReduceFunction.AVERAGE if is_average else ReduceFunction.MAX
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
    """A large reduction of packed tensors, with neighbouring dimensions that are reduced, or are not, made one; where
    rows are short, with the one before them as the last one."""
    given, made = operator.InputTensor, compiled.outputs["OutputTensor"]
    if given.elements < LARGE_TOTAL or not given.is_packed or not made.is_packed:
        return compiled
    sizes, are_reduced = _merged(given.Sizes, [axis in operator.Axes for axis in range(given.rank)])
    if not any(are_reduced):
        return compiled
    left = [1 if is_reduced else size for size, is_reduced in zip(sizes, are_reduced, strict=True)]
    is_position = isinstance(operator, Argmin | Argmax) or operator.is_index
    order = list(range(len(sizes))) if is_position else _longest_last(sizes, are_reduced)
    if len(sizes) == given.rank and order == sorted(order):
        return compiled

    def ordered(desc: TensorDesc, of: list[int]) -> TensorDesc:
        """The tensor of these sizes, which is packed, in that order."""
        steps = packed_strides(of)
        return TensorDesc(
            DataType=desc.DataType, Sizes=[of[axis] for axis in order], Strides=[steps[axis] for axis in order]
        )

    merged = operator.model_copy(
        update={
            "InputTensor": ordered(given, sizes),
            "OutputTensor": ordered(made, left),
            "AxisCount": None,
            "Axes": [place for place, axis in enumerate(order) if are_reduced[axis]],
        }
    )
    return compile_operator(merged, NEWEST, structures)


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
    desc = TensorDesc(
        DataType=made.DataType,
        Sizes=[made.Sizes[axis] for axis in order],
        Strides=[made.strides[axis] for axis in order],
    )
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
