"""RESAMPLE_GRAD on the CPU, by loops that LLVM compiled: sums whose weights are products of one for each dimension.

What the formula says of a dimension, which elements there are and what they weigh, is computed once, by NumPy, and put
into tables without those that weigh nothing. So each element of the output is as many products as it has terms.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from app.contract.constants import DataType
from app.contract.tensors import packed_strides
from app.devices.cpu.alone import MOST_OF_A_CALL, CallsKernel, portions
from app.devices.cpu.calls import Call, Calls, Of, Pointer
from app.devices.cpu.llvm import weighted_sums
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.lowering import lower_part
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.numpy.coordinates import CoordinateCalls
from app.devices.cpu.window_sums import MOST_MEETINGS, Numbers, ask_nothing
from app.formula.coordinates import Coordinate, Element, Index, Total
from app.formula.expansions import Ask
from app.formula.structures import Structures
from app.formula.uniform import Numbers as Given
from app.formula.values import FLOAT32, INT64, Constant, Input, Operation, Value, parts, replaced, widen
from app.memory.arrays import Array
from app.operators.compiled import CompiledOperator
from app.operators.resampling.gradient import ResamplingGradient

WORK = 8
"""Of a term, as much as of an element besides."""


def weighted_sums_kernel(compiled: CompiledOperator, team: Team, structures: Structures) -> CallsKernel | None:
    """For the operator, if it is the one, of packed tensors."""
    operator = compiled.operator
    if not isinstance(operator, ResamplingGradient):
        return None
    (x,), (made,) = compiled.inputs.values(), compiled.outputs.values()
    if not x.is_packed or not made.is_packed:
        return None
    (formula,) = compiled.program.maps.values()
    along = structures.find(
        (formula, "weights"), compiled.numbers, lambda questions: _along(questions.ask, formula.expression)
    )
    first = min(along, default=made.rank)
    if first == made.rank or max(made.Sizes[first:]) > MOST_MEETINGS:
        return None
    made_of = []
    for axis in range(first, made.rank):
        found = (
            along[axis].terms(compiled.numbers, made.Sizes[axis], x.Sizes[axis])
            if axis in along
            else _Terms.same(made.Sizes[axis])
        )
        if found is None:
            return None
        made_of.append(found)
    return _kernel(compiled, made_of, first, x.DataType, team)


@dataclass(frozen=True, slots=True)
class _Terms:
    """Along a dimension, what each element of the output is made of: how many terms, then of all of them the
    coordinates in the source and the weights."""

    counts: Numbers
    places: Numbers
    weights: Numbers

    @classmethod
    def same(cls, size: int) -> "_Terms":
        """Of a dimension along which nothing goes on."""
        return cls(np.ones(size, np.int64), np.arange(size), np.ones(size))


class _Along:
    """What a formula says of a dimension, for the numbers of any request."""

    def __init__(self, ask: Ask, axis: int, index: Index, count: Value, place: Value, weight: Value) -> None:
        known: dict[Value, Value] = {index: Coordinate(INT64, 1)}
        self._count, self._place, self._weight = (
            CoordinateCalls(ask, _moved(each, axis, known)) for each in (count, place, weight)
        )

    def terms(self, numbers: Given, size: int, source: int) -> _Terms | None:
        """Of an output of that `size` and of a source; None if there are too many to look at."""
        counts = np.empty(size, np.int64)
        self._run(self._count, numbers, [range(size)], counts)
        most = max(int(counts.max()), 1)
        if size * most > MOST_MEETINGS:
            return None
        block = [range(size), range(most)]
        places, weights = np.empty((size, most), np.int64), np.empty((size, most))
        self._run(self._place, numbers, block, places)
        self._run(self._weight, numbers, block, weights)
        there = (np.arange(most) < counts[:, None]) & (weights > 0)
        return _Terms(there.sum(1), places.clip(0, source - 1)[there], weights[there])

    @staticmethod
    def _run(calls: CoordinateCalls, numbers: Given, block: Sequence[range], made: Array) -> None:
        calls.run(calls.arguments(numbers), {}, block, made, lambda: None)


def _moved(root: Value, axis: int, known: Mapping[Value, Value]) -> Value:
    """A formula with other coordinates in the place of that along `axis`, the first, and of what is `known`."""
    along: dict[Value, Value] = {
        each: Coordinate(INT64, 0) for each in parts(root) if isinstance(each, Coordinate) and each.axis == axis
    }
    return replaced(root, along | dict(known))


def _along(ask: Ask, root: Value) -> dict[int, _Along]:
    """Of a formula that is such a sum, by dimensions that it goes along; nothing of others."""
    match root:
        case Operation(
            name="cast",
            type="float32",
            arguments=(
                Total(
                    name="sum",
                    argument=Operation(
                        name="where",
                        arguments=(
                            Operation(name="greater", arguments=(weight, Constant(value=0))),
                            Operation(
                                name="multiply",
                                arguments=(same, Operation(name="cast", arguments=(Element() as element,))),
                            ),
                            Constant(value=0),
                        ),
                    ),
                ) as total,
            ),
        ) if weight is same:
            pass
        case _:
            return {}
    weights: list[Value] = []
    for _ in total.indices[1:]:
        if not (isinstance(weight, Operation) and weight.name == "multiply"):
            return {}
        weight, last = weight.arguments
        weights.insert(0, last)
    weights.insert(0, weight)
    found: dict[int, _Along] = {}
    for axis, at in enumerate(element.at):
        if isinstance(at, Coordinate):
            continue
        number = len(found)  # indices are of dimensions in their order
        if number == len(weights):
            return {}
        index, count, own = total.indices[number], total.counts[number], weights[number]
        if not all(_is_along(each, axis, index) for each in (at, count, own)):
            return {}
        found[axis] = _Along(ask, axis, index, count, at, own)
    return found if len(found) == len(weights) else {}


def _is_along(node: Value, axis: int, index: Index) -> bool:
    """Whether it depends on nothing but one coordinate and one index."""
    return not any(
        isinstance(each, Element | Total)
        or (isinstance(each, Coordinate) and each.axis != axis)
        or (isinstance(each, Index) and each is not index)
        for each in parts(node)
    )


def _kernel(
    compiled: CompiledOperator,
    along: Sequence[_Terms],
    first: int,
    stored: DataType,
    team: Team,
) -> CallsKernel | None:
    (x,), (made,) = compiled.inputs.values(), compiled.outputs.values()
    *outer, inner = along
    size, steps = stored.bits // 8, [step * stored.bits // 8 for step in packed_strides(x.Sizes)]
    rows: _Terms | None = _Terms(np.ones(1, np.int64), np.zeros(1, np.int64), np.ones(1))
    for each, step in zip(outer, steps[first:], strict=False):
        rows = _together(rows, each, step) if rows else None
    if rows is None:
        return None
    tables = [
        _starts(rows.counts),
        rows.places,
        rows.weights,
        _starts(inner.counts),
        inner.places * size,
        inner.weights,
    ]
    count, planes = len(rows.counts), math.prod(made.Sizes[:first])
    work = WORK * (len(rows.places) * len(inner.places) // count + made.Sizes[-1])
    if work > MOST_OF_A_CALL:
        return None
    code = Code(team.compiler, _source(stored))
    numbers = [count, made.Sizes[-1], math.prod(x.Sizes[first:]) * size]
    pointers = [Pointer(0, Of.INPUT), Pointer(1, Of.OUTPUT)]
    calls = [
        Call(
            code,
            array("q", [0, 0, *(each.ctypes.data for each in tables), part.start, part.stop, *numbers]),
            pointers,
            work * len(part),
        )
        for part in portions(range(planes * count), work, team.most)
    ]
    return CallsKernel(compiled, Calls([calls]), team, tables)


def _together(rows: _Terms, along: _Terms, step: int) -> _Terms | None:
    """Of each combination the combined terms: those of `rows` one after the other, each with all of `along`, whose
    coordinates are `step` bytes apart. None if they are too many."""
    total = int(rows.counts.sum()) * int(along.counts.sum())
    if max(total, len(rows.counts) * len(along.counts)) > MOST_MEETINGS:
        return None
    counts = np.outer(rows.counts, along.counts).reshape(-1)
    row, other = np.divmod(np.repeat(np.arange(len(counts)), counts), len(along.counts))
    number = np.arange(total) - np.repeat(_starts(counts)[:-1], counts)
    of_row, of_other = np.divmod(number, along.counts[other])
    left, right = _starts(rows.counts)[row] + of_row, _starts(along.counts)[other] + of_other
    return _Terms(counts, rows.places[left] + along.places[right] * step, rows.weights[left] * along.weights[right])


def _starts(counts: Numbers) -> Numbers:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@lru_cache(4)
def _source(stored: DataType) -> str:
    load = lower_part(ask_nothing, widen(Input(FLOAT32, "X", stored)), DataType.FLOAT64, "load")
    store = lower_part(ask_nothing, Input(FLOAT32, "X", DataType.FLOAT32), stored, "store")
    return weighted_sums.source(load, store)
