"""Reductions of long rows, or to few columns, in parts: several threads have some of the terms each, and of columns so
many neighbouring rows are taken for one that there is something for vectors.

A part is totals of its own, of floats in float64, which what is left of the terms is joined to in the end. How a row is
parted does not depend on how many there are: a model's rows are the same to the last bit, alone and with others.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.calls import chained
from app.devices.cpu.coordinates import CoordinateKernel
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.threads import Threads
from app.formula.coordinates import Element, Total, accumulated_type, coordinates
from app.formula.structures import Structures
from app.formula.values import INT64, Parameter, Value, cast, parts, replaced, where
from app.memory.arrays import numpy_type
from app.operators.compiled import CompiledOperator
from app.operators.reduction.reductions import Reduce
from app.programs.dispatchable import Dispatchable
from app.programs.program import Map, Program

WIDTH = 1 << 9
"""Elements of a row of a part's totals, about: a loop begins with each as late as it can."""

OWN = 1 << 4
"""So many terms there are, at least, for each of these: in FLOAT32 they take an eighth of the memory."""

NARROW = 1 << 4
"""Terms for each column that are worth the joining of what neighbouring rows have."""

LEAST = 1 << 10
"""Elements of such a total."""

PART = 1 << 16
"""Elements of a part, at least, and about as many where parts are few enough."""

MOST_PARTS = 1 << 6

PARTIAL = "PartialTensor"
TERMS, ROWS, LEFT = "(terms)", "(rows of a part)", "(terms that are left)"
WIDE, MADE = "(columns of a row)", "(rows of totals)"
"""Numbers of the formulas."""


def is_split(terms: int, columns: int) -> bool:
    """Whether totals of so many terms, of each of several columns, are made in parts."""
    return columns <= WIDTH // 2 and terms >= NARROW * columns and terms * columns >= LEAST


def split_total_kernel(
    compiled: CompiledOperator, team: Team, threads: Threads, structures: Structures
) -> CallsKernel | None:
    """For a reduction of packed tensors along one dimension, where that is quicker in parts."""
    operator, split = compiled.operator, None
    if isinstance(operator, Reduce):
        split = _Split.of(operator, compiled.outputs["OutputTensor"])
    made = compiled.program.maps.get("OutputTensor")
    if not split or not made:
        return None
    programs = structures.find(
        (made, "parts", split.columns > 1), {}, lambda _: _programs(made, compiled.program, of_rows=split.columns == 1)
    )
    if not programs:
        return None
    stored = programs.first.stored[PARTIAL]
    own_bytes = split.outer * split.parts * split.numbers[WIDE] * numpy_type(stored).itemsize
    (given, x), result = next(iter(compiled.inputs.items())), compiled.outputs["OutputTensor"]

    def desc(like: DataType, *sizes: int) -> TensorDesc:
        return TensorDesc(DataType=like, Sizes=list(sizes))

    numbers = {**compiled.numbers, **split.numbers}
    outer, columns, width, rows = split.outer, split.columns, split.numbers[WIDE], split.numbers[MADE]
    first = Dispatchable(
        {given: desc(x.DataType, outer, split.terms * columns)},
        {PARTIAL: desc(stored, outer, split.parts, width)},
        programs.first,
        numbers,
    )
    second = Dispatchable(
        {
            given: desc(x.DataType, outer, split.terms, columns),
            PARTIAL: desc(stored, outer, rows, columns),
        },
        {"OutputTensor": desc(result.DataType, outer, columns, 1)},
        programs.second,
        numbers,
    )
    of_parts = CoordinateKernel(first, PARTIAL, threads, structures, team, 1).calls()
    of_all = CoordinateKernel(second, "OutputTensor", threads, structures, team, 1).calls()
    if of_parts is None or of_all is None:
        return None
    return CallsKernel(compiled, chained(of_parts, of_all, 1, own_bytes), team)


@dataclass(frozen=True, slots=True)
class _Split:
    """A tensor of `outer` times `terms` times `columns` elements: of each outer one there are so many `parts`, and so
    many rows `together` are taken for one."""

    outer: int
    terms: int
    columns: int
    together: int
    parts: int

    @classmethod
    def of(cls, operator: Reduce, made: TensorDesc) -> "_Split | None":
        """None if the rows that there are do as well."""
        x = operator.InputTensor
        if len(operator.Axes) > 1 or not x.is_packed or not made.is_packed or x.DataType.bits < 8:
            return None
        (axis,) = operator.Axes
        outer, terms, columns = math.prod(x.Sizes[:axis]), x.Sizes[axis], math.prod(x.Sizes[axis + 1 :])
        together = 1 if columns == 1 else min(WIDTH, terms * columns // OWN) // columns
        parts = min(terms * columns // PART, MOST_PARTS) or 1
        is_worth_it = is_split(terms, columns) if columns > 1 else parts > 1
        if not is_worth_it:
            return None
        return cls(outer, terms, columns, together, parts)

    @property
    def numbers(self) -> Mapping[str, int]:
        made = self.parts * self.together
        rows = self.terms // made
        return {
            TERMS: self.terms,
            ROWS: rows,
            LEFT: self.terms - rows * made,
            WIDE: self.together * self.columns,
            MADE: made,
        }


@dataclass(frozen=True, slots=True)
class _Programs:
    """What makes the totals of parts, and what joins them."""

    first: Program
    second: Program


def _programs(made: Map, program: Program, *, of_rows: bool) -> _Programs | None:
    """Of rows, along which a part's terms are, or of columns. None of a formula that is not made of one total."""
    totals = [each for each in parts(made.expression) if isinstance(each, Total)]
    if len(totals) != 1 or totals[0].name not in ("sum", "product", "maximum", "minimum") or len(program.inputs) != 1:
        return None
    (total,), ((name, stored),) = totals, program.inputs.items()
    exact = accumulated_type(total)
    terms, rows, left, width, made_rows = (Parameter(INT64, each) for each in (TERMS, ROWS, LEFT, WIDE, MADE))

    def term(*place: Value) -> Value:
        """The total's argument, of the element at that place."""
        found: dict[Value, Value] = {
            each: Element(each.type, each.name, each.stored, place)
            for each in parts(total.argument)
            if isinstance(each, Element)
        }
        return cast(replaced(total.argument, found), exact)

    (index,) = total.indices
    partial = DataType(exact.upper())
    outer, part, column = coordinates(3)
    row = rows * part + index
    argument = term(outer, row if of_rows else row * width + column)
    of_part = Map(Total(exact, total.name, total.indices, (rows,), argument), partial, by_coordinates=True)
    outer, column, _ = coordinates(3)
    of_element = Element(exact, PARTIAL, partial, (outer, index, column))
    argument = where(index < made_rows, of_element, term(outer, terms - left + index - made_rows, column))
    whole = Total(total.type, total.name, total.indices, (made_rows + left,), argument)
    joined = Map(replaced(made.expression, {total: whole}), made.stored, by_coordinates=True)
    return _Programs(
        Program({name: stored}, {PARTIAL: of_part}),
        Program({name: stored, PARTIAL: partial}, {"OutputTensor": joined}),
    )
