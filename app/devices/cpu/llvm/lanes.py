"""Groups side by side: loops that take so many neighbours through all stages together, each in a lane of vectors.

They are for groups that do not lie along the innermost dimension, and for those of few elements, which are no work for
a vector of their own. What is read of LANES groups is copied first, so that lanes lie one after the other there however
far apart they are, and all loops are of a known size: lanes without a group compute something that nobody looks at.
An element meets its group's others in their order, whatever the lane.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.nest import GROUP, LANEWISE, OUTPUT, Access, Nest, Place
from app.devices.cpu.llvm.nests import NOWHERE, PAIRED, is_count, together
from app.devices.cpu.llvm.types import bytes_of, literal
from app.formula.stages import POSITION, SUMS, FormulaStage
from app.formula.values import FLOAT64

LANES = 64
"""Groups at a time: four lines of the cache of float32, so that what is far apart is read some lines at a time, and
registers enough that one's sum or maximum is found while another's waits."""


def lanes(
    stages: Sequence[FormulaStage[Element]],
    final: Element,
    inputs: Sequence[str],
    dimensions: int,
    along: int,
    layout: Sequence[Access],
) -> str:
    """The nest that takes groups, whose elements differ in the last `along` dimensions, through all `stages` and then
    `final`, LANES neighbours along the dimension before these at a time. The layout is that along this one.

    Its arrays are those of `inputs`. Its frame has besides the addresses of memory for LANES groups, for each input
    and for each stage that keeps its elements.
    """
    nest = Nest([*(stage.program for stage in stages), final], inputs, dimensions, layout, along + 1)
    copies = {name: nest.scratch(nest.type_of(name)) for name in inputs}
    kept = {stage.elements: nest.scratch(stage.program.output) for stage in stages if stage.elements}
    nest.load_attributes()
    made = _Lanes(nest, along, copies | kept, nest.local(final.output, LANES))
    steps = [made.step(each) for each in together(stages)]

    def piece(size: str, places: dict[str, Place]) -> None:
        pieces = nest.emit(f"udiv i64 {nest.emit(f'add i64 {size}, {LANES - 1}')}, {LANES}")

        def body(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            start = nest.emit(f"mul i64 {index}, {LANES}")
            count = nest.call("umin.i64", "i64", nest.emit(f"sub i64 {size}, {start}"), str(LANES))
            there = {name: replace(place, base=nest.at(place, start)) for name, place in places.items()}
            made.read({name: there[name] for name in inputs}, count)
            for step in steps:
                step()
            made.write(final, there[OUTPUT], count)
            return ()

        nest.loop(pieces, body)

    nest.around(piece)
    return nest.module()


class _Lanes:
    """Writes what happens to LANES groups. Of `copies` each lane has an element after the other lanes' one."""

    def __init__(self, nest: Nest, along: int, copies: Mapping[str, Place], row: Place) -> None:
        self._nest = nest
        self._along = along
        self._copies = copies
        self._row = row
        self._results: dict[str, Place] = {}
        self._size = nest.size_of_last(along)

    def read(self, places: dict[str, Place], count: str) -> None:
        """Copy the inputs, `count` lanes of them."""
        nest = self._nest

        def copy(index: str, there: dict[str, Place]) -> None:
            for name, place in there.items():
                self._in_lanes(count, *self._copied(place, self._at(self._copies[name], index)))

        nest.inside(self._along, places, copy)

    def write(self, final: Element, output: Place, count: str) -> None:
        """Compute and store the output."""
        nest = self._nest

        def elements(index: str, there: dict[str, Place]) -> None:
            self._each(lambda lane: nest.store(self._value(final, index, lane), self._row, lane))
            self._in_lanes(count, lambda lane: self._move(self._row, there[OUTPUT], lane), lambda: None)

        nest.inside(self._along, {OUTPUT: output}, elements)

    def step(self, stages: Sequence[FormulaStage[Element]]) -> Callable[[], None]:
        """What writes these stages, for whose results there is memory then."""
        first, nest = stages[0], self._nest
        if first.reduction in SUMS:
            totals = [nest.local("i32" if is_count(each.program) else "double", LANES) for each in stages]
            results = [
                nest.local("double", LANES) if is_count(each.program) else total
                for each, total in zip(stages, totals, strict=True)
            ]
            self._results |= {each.result: place for each, place in zip(stages, results, strict=True)}
            return lambda: self._add(stages, totals)
        if first.reduction == "first_maximum":
            largest, place = nest.local(first.program.output, LANES), nest.local("i64", LANES)
            self._results[first.result] = place
            return lambda: self._first(first, largest, place)
        result = self._results[first.result] = nest.local(first.program.output, LANES)
        if first.reduction == "maximum":
            return lambda: self._largest(first, result)
        if first.reduction is None:
            return lambda: self._each(lambda lane: nest.store(self._value(first.program, "0", lane), result, lane))
        raise ValueError(f"{first.reduction} is no reduction")

    def _add(self, stages: Sequence[FormulaStage[Element]], totals: Sequence[Place]) -> None:
        """In float64; of pairs in their own type first, the same pairs as in rows."""
        nest = self._nest
        for total in totals:
            self._fill("0" if total.type == "i32" else literal(FLOAT64, 0), total)

        def added(values: Sequence[str], lane: str) -> None:
            for stage, value, total in zip(stages, values, totals, strict=True):
                before, type_ = self._load(total, lane), stage.program.output
                if total.type == "i32":
                    after = nest.emit(f"add i32 {before}, {nest.emit(f'fptoui {type_} {value} to i32')}")
                else:
                    wide = nest.emit(f"fpext float {value} to double") if type_ == "float" else value
                    after = nest.emit(f"fadd double {before}, {wide}")
                nest.store(after, total, lane)

        def values(index: str, lane: str) -> list[str]:
            return [self._kept(stage, index, lane) for stage in stages]

        def two(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            other = nest.emit(f"add i64 {index}, {half}")

            def lane(lane: str) -> None:
                pairs = zip(stages, values(index, lane), values(other, lane), strict=True)
                added([nest.emit(f"fadd {stage.program.output} {a}, {b}") for stage, a, b in pairs], lane)

            self._each(lane)
            return ()

        def one(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            place = nest.emit(f"add i64 {index}, {done}")
            self._each(lambda lane: added(values(place, lane), lane))
            return ()

        done = "0"
        if {stage.reduction for stage, total in zip(stages, totals, strict=True) if total.type != "i32"} == {
            "sum_of_pairs"
        }:
            half = nest.emit(f"and i64 {nest.emit(f'lshr i64 {self._size}, 1')}, {-PAIRED}")
            done = nest.emit(f"shl i64 {half}, 1")
            nest.loop_if_any(half, two, ())
        nest.loop_if_any(nest.emit(f"sub i64 {self._size}, {done}"), one, ())
        for stage, total in zip(stages, totals, strict=True):
            if total.type == "i32":
                self._counted(total, self._results[stage.result])

    def _counted(self, total: Place, result: Place) -> None:
        """The sums that counts are, of all lanes."""
        nest = self._nest
        self._each(lambda lane: nest.store(nest.emit(f"sitofp i32 {self._load(total, lane)} to double"), result, lane))

    def _largest(self, stage: FormulaStage[Element], result: Place) -> None:
        """A NaN is, if there is one."""
        nest, type_ = self._nest, stage.program.output
        self._fill(literal(FLOAT64, -math.inf), result)

        def larger(index: str, lane: str) -> None:
            value, largest = self._kept(stage, index, lane), self._load(result, lane)
            above = nest.emit(f"fcmp ogt {type_} {value}, {largest}")
            nan = nest.emit(f"fcmp uno {type_} {value}, {value}")
            number = nest.emit(f"select i1 {above}, {type_} {value}, {type_} {largest}")
            nest.store(
                nest.emit(f"select i1 {nan}, {type_} {literal(FLOAT64, math.nan)}, {type_} {number}"), result, lane
            )

        self._every(larger)

    def _first(self, stage: FormulaStage[Element], largest: Place, result: Place) -> None:
        """The position of the first one that is the largest."""
        nest, type_ = self._nest, stage.program.output
        self._largest(stage, largest)
        self._fill(str(NOWHERE), result)

        def sooner(index: str, lane: str) -> None:
            value, most = self._value(stage.program, index, lane), self._load(largest, lane)
            equal = nest.emit(f"fcmp oeq {type_} {value}, {most}")
            nan = nest.emit(f"fcmp uno {type_} {value}, {value}")
            found = nest.emit(f"select i1 {nest.emit(f'or i1 {equal}, {nan}')}, i64 {index}, i64 {NOWHERE}")
            nest.store(nest.call("smin.i64", "i64", self._load(result, lane), found), result, lane)

        self._every(sooner)

    def _every(self, write: Callable[[str, str], None]) -> None:
        """What is written for each element of the groups, by its index and its lane."""

        def body(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            self._each(lambda lane: write(index, lane))
            return ()

        self._nest.loop(self._size, body)

    def _fill(self, value: str, place: Place) -> None:
        """The same value for all lanes."""
        self._each(lambda lane: self._nest.store(value, place, lane))

    def _each(self, write: Callable[[str], None]) -> None:
        """The loop over all lanes."""

        def body(lane: str, accumulated: Sequence[str]) -> Sequence[str]:
            write(lane)
            return ()

        self._nest.loop(str(LANES), body, note=LANEWISE)

    def _copied(self, source: Place, target: Place) -> tuple[Callable[[str], None], Callable[[], None]]:
        """What copies a lane's element, and what makes all of them 0: processors take long for what may lie there."""
        zeros = replace(target, type=_bits(target))
        return (
            lambda lane: self._move(source, target, lane),
            lambda: self._fill("0", zeros),
        )

    def _in_lanes(self, count: str, write: Callable[[str], None], before_some: Callable[[], None]) -> None:
        """The loop over so many lanes, which mostly are all; something comes before, if they are not."""
        nest = self._nest

        def within(lane: str) -> None:
            nest.if_(nest.emit(f"icmp ult i64 {lane}, {count}"), lambda: write(lane))

        def some() -> None:
            before_some()
            self._each(within)

        are_all = nest.emit(f"icmp eq i64 {count}, {LANES}")
        nest.if_(are_all, lambda: self._each(write))
        nest.if_(nest.emit(f"xor i1 {are_all}, true"), some)

    def _kept(self, stage: FormulaStage[Element], index: str, lane: str) -> str:
        """A stage's value, which is kept if somebody asks for it later."""
        value = self._value(stage.program, index, lane)
        if stage.elements:
            self._nest.store(value, self._at(self._copies[stage.elements], index), lane)
        return value

    def _value(self, element: Element, index: str, lane: str) -> str:
        given = [f"{type_} {self._input(name, index, lane)}" for name, type_ in element.inputs.items()]
        given += self._nest.attributes[element.name]
        return self._nest.emit(f"call {element.output} @{element.name}({', '.join(given)})")

    def _input(self, name: str, index: str, lane: str) -> str:
        if name == POSITION:
            return index
        result = self._results.get(name)
        return self._load(result or self._at(self._copies[name], index), lane)

    def _move(self, source: Place, target: Place, lane: str) -> None:
        bits = _bits(source)
        self._nest.store(self._load(replace(source, type=bits), lane), replace(target, type=bits), lane)

    def _load(self, place: Place, lane: str) -> str:
        nest = self._nest
        where = place.base if place.step == "same" else nest.at(place, lane)
        return nest.emit(f"load {place.type}, ptr {where}, align 1{GROUP}")

    def _at(self, place: Place, index: str) -> Place:
        """Where all lanes' elements of this index are."""
        return replace(place, base=self._nest.at(place, self._nest.emit(f"mul i64 {index}, {LANES}")))


def _bits(place: Place) -> str:
    """A type of integers of this size: what is only copied need be no number."""
    return f"i{8 * bytes_of(place.type)}"
