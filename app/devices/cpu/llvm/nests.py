"""Loop nests around the functions of `lowering.py`, over all elements of some strided arrays.

A nest is a module with a function `kernel`, whose argument is a list of 64-bit numbers, its frame: the sizes of the
dimensions; for each array, the output last, its address and its strides in bytes; then what the kind of nest adds; then
the attributes, each in the lowest bytes of its number. Arrays need not be aligned; the output may be one of the inputs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.nest import (
    ACCUMULATING,
    GROUP,
    GUESSING,
    OUTPUT,
    PARALLEL,
    PIECE,
    SIDE_BY_SIDE,
    Access,
    Nest,
    Place,
)
from app.devices.cpu.llvm.types import bytes_of, literal
from app.formula.stages import POSITION, SUMS, FormulaStage
from app.formula.values import FLOAT64

WHOLE = 1 << 7
"""Elements of which long formulas are computed a multiple: as many as LLVM takes at a time, at most."""

APART = 10
"""Instructions of an element from which what is spaced is copied, a piece at a time, so that vectors are computed: LLVM
would take elements one by one. Halves are always: one is converted in as long as many."""

STREAMED_PIECE = 1 << 7
"""Elements that go past the cache together: few enough that a processor does some of it while it computes the next."""

GUESSED = 1 << 7
"""Elements that are computed again if one of them was computed too quickly."""

PAIRED = 1 << 5
"""Of pairs there are a multiple of this: as many as are added at a time. What is left is added one by one."""

NOWHERE, _NOWHERE_NEAR = (1 << 63) - 1, (1 << 31) - 1
"""After all positions, and after those among so many elements."""


def elements(
    element: Element, inputs: Sequence[str], dimensions: int, layout: Sequence[Access], streams: bool = False
) -> str:
    """The nest that computes each element by itself. Its arrays are those of `inputs`.

    If it `streams`, the output, which is packed, goes past the cache.
    """
    nest = Nest(element.every, inputs, dimensions, layout)
    nest.load_attributes()
    kept = {each.name: nest.local(each.output) for each in element.kept}
    is_copy = element.body == (f"ret {element.output} %x0",)
    is_of_halves = "half" in (element.output, *element.inputs.values())
    is_apart = not is_copy and (is_of_halves or sum(each.instructions for each in element.every) >= APART)
    spaced = [name for name, step in zip([*inputs, OUTPUT], layout, strict=True) if step == "strided" and is_apart]
    copies = {name: nest.local(nest.type_of(name)) for name in spaced if name != OUTPUT}
    made = nest.local(element.output) if streams or element.quick or OUTPUT in spaced else None
    ends: dict[str, Place] = {}
    if nest.is_long and not kept and not made and "strided" not in layout:
        ends = nest.local_ends(WHOLE)

    def write(row: "_Row") -> None:
        if is_copy and layout[0] == "strided" and not made:
            row.each_other(element, inputs[0])
        elif kept or element.quick or spaced:
            row.in_pieces(element, kept, made)
        elif ends:
            row.in_wholes(element, ends)
        else:
            row.each({OUTPUT: element}, {})

    def innermost(size: str, places: dict[str, Place]) -> None:
        row = _Row(nest, size, places, copies=copies)
        if streams and made:
            row.streamed(element, kept, {}, made, inputs, lambda: write(row))
        else:
            write(row)

    nest.around(innermost)
    return nest.module(streams=streams)


def rows(
    stages: Sequence[FormulaStage[Element]],
    final: Element,
    inputs: Sequence[str],
    dimensions: int,
    layout: Sequence[Access],
    streams: bool = False,
) -> str:
    """The nest that takes each group, which lies along the innermost dimension, through all `stages` and then `final`.
    It streams as `elements` does.

    Its arrays are those of `inputs`. Its frame has besides the address of memory for those of one group, for each stage
    that keeps its elements.
    """
    every = [*(stage.program for stage in stages), final]
    nest = Nest(every, inputs, dimensions, layout)
    kept = {stage.elements: nest.scratch(stage.program.output) for stage in stages if stage.elements}
    nest.load_attributes()
    made = nest.local(final.output) if streams else None

    def group(row: "_Row") -> None:
        row.places |= kept
        known = row.through(stages)
        if made:
            row.streamed(final, {}, known, made, (), lambda: row.each({OUTPUT: final}, known))
        else:
            row.each({OUTPUT: final}, known)

    nest.around(lambda size, places: group(_Row(nest, size, places)))
    return nest.module(streams=streams)


def gathered(
    stages: Sequence[FormulaStage[Element]],
    final: Element,
    inputs: Sequence[str],
    dimensions: int,
    along: int,
    layout: Sequence[Access],
) -> str:
    """The same of groups whose elements are anywhere along the last `along` dimensions: they are copied first, so that
    they lie one after the other, and what is made of them is copied to where it belongs. The layout is that along the
    innermost dimension, where "same" are those inputs that have one element for all of a group.

    Its frame has besides the addresses of memory for one group, for each input, for the output, and for each stage that
    keeps its elements.
    """
    nest = Nest([*(stage.program for stage in stages), final], inputs, dimensions, layout, along)
    copies = {name: nest.scratch(nest.type_of(name)) for name in [*inputs, OUTPUT]}
    kept = {stage.elements: nest.scratch(stage.program.output) for stage in stages if stage.elements}
    nest.load_attributes()
    width = nest.size_of_last(along)

    def copy(places: dict[str, Place], *, back: bool = False) -> None:
        def row(before: str, there: dict[str, Place], size: str) -> None:
            for name, place in there.items():
                own = replace(copies[name], base=nest.at(copies[name], before))
                nest.move_bits(*(own, place) if back else (place, own), size)

        nest.rows_inside(along, places, row)

    def group(_: str, places: dict[str, Place]) -> None:
        apart = {name: place for name, place in places.items() if name != OUTPUT and place.step != "same"}
        if apart:
            copy(apart)
        own = {name: copies[name] for name in [*apart, OUTPUT]}
        row = _Row(nest, width, places | own | kept)
        row.each({OUTPUT: final}, row.through(stages))
        copy({OUTPUT: places[OUTPUT]}, back=True)

    nest.around(group)
    return nest.module()


def together(stages: Sequence[FormulaStage[Element]]) -> list[list[FormulaStage[Element]]]:
    """In their order, but sums of which none needs another one's results are made by one loop."""
    groups: list[list[FormulaStage[Element]]] = []
    for stage in stages:
        last = groups[-1] if groups else []
        made = {name for each in last for name in (each.result, each.elements)}
        if last and {each.reduction for each in (stage, *last)} <= SUMS and made.isdisjoint(stage.program.inputs):
            last.append(stage)
        else:
            groups.append([stage])
    return groups


def is_count(element: Element) -> bool:
    """Whether its values are conditions, as 0 and 1, so that their sum counts."""
    return any("= uitofp i1 " in line for line in element.body[-2:-1])


class _Row:
    """Writes what happens to `size` elements along the innermost dimension, from `start` on in their group. `known` are
    values that are one for all. Of inputs that are spaced there may be room for `copies` of a piece."""

    def __init__(
        self,
        nest: Nest,
        size: str,
        places: dict[str, Place],
        start: str = "0",
        copies: Mapping[str, Place] | None = None,
    ) -> None:
        self.places = places
        self._copies = copies or {}
        self._nest = nest
        self._size = size
        self._start = start

    def each(self, elements: Mapping[str, Element], known: Mapping[str, str]) -> None:
        """The loop that stores all of each of `elements` in the array that it is named by."""
        held = {name: self._held(element, known) for name, element in elements.items()}

        def body(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            for name, element in elements.items():
                self._nest.store(self._value(element, held[name], index), self.places[name], index)
            return ()

        self._nest.loop(self._size, body, note=PARALLEL)

    def each_other(self, element: Element, name: str) -> None:
        """The same for `element` as the output, of an input that is spaced: by vectors, if it is every other one."""
        nest, place = self._nest, self.places[name]
        size = bytes_of(place.type)
        is_other = nest.emit(f"icmp eq i64 {place.stride}, {2 * size}")
        known = _Row(nest, self._size, self.places | {name: replace(place, stride=str(2 * size))}, self._start)
        nest.if_(is_other, lambda: known.lower_parts(name) if size < 4 else known.each({OUTPUT: element}, {}))
        nest.if_(nest.emit(f"xor i1 {is_other}, true"), lambda: self.each({OUTPUT: element}, {}))

    def lower_parts(self, name: str) -> None:
        """Every other one of small elements, which LLVM would take one by one: each but the last, behind which may be
        nothing, with the one behind it as a number of twice as many bits, of which it is the lower half."""
        nest, place, output = self._nest, self.places[name], self.places[OUTPUT]
        half, both = (f"i{bits * bytes_of(place.type)}" for bits in (8, 16))
        last = nest.emit(f"sub i64 {self._size}, 1")
        pairs = replace(place, type=both, step="packed")
        parts, made = replace(place, type=half), replace(output, type=half)

        def body(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            pair = nest.emit(f"load {both}, ptr {nest.at(pairs, index)}, align 1{GROUP}")
            nest.store(nest.emit(f"trunc {both} {pair} to {half}"), made, index)
            return ()

        nest.loop_if_any(last, body, (), PARALLEL)
        nest.store(nest.emit(f"load {half}, ptr {nest.at(parts, last)}, align 1{GROUP}"), made, last)

    def streamed(
        self,
        element: Element,
        kept: Mapping[str, Place],
        known: Mapping[str, str],
        made: Place,
        fetched: Sequence[str],
        write_short: Callable[[], None],
    ) -> None:
        """The same for `element` as the output, past the cache: so many at a time are first `made` somewhere else,
        after what it wants `kept` there. Those inputs are `fetched` that no cache has yet. What is shorter is written
        the ordinary way.

        All pieces but the first and the last one begin where a line of the output does. The last one, and the one
        behind the first, begin within the one before, so that none is shorter: what has a known size is computed in
        registers, without a look at its ends."""
        nest, piece = self._nest, STREAMED_PIECE

        def write() -> None:
            held = self._held_of(element, known)
            first = nest.before_line(self.places[OUTPUT])
            lacking = nest.emit(f"and i64 {nest.emit(f'sub i64 0, {first}')}, {piece - 1}")
            last = nest.emit(f"sub i64 {self._size}, {piece}")
            pieces = nest.emit(f"add i64 {nest.emit(f'add i64 {self._size}, {lacking}')}, {piece - 1}")
            pieces = nest.emit(f"udiv i64 {pieces}, {piece}")

            def body(index: str, accumulated: Sequence[str]) -> Sequence[str]:
                start = nest.call("usub.sat.i64", "i64", nest.emit(f"mul i64 {index}, {piece}"), lacking)
                start = nest.call("umin.i64", "i64", start, last)
                for place in (self.places[name] for name in fetched):
                    if place.step == "packed":
                        nest.fetch(place, start, piece)
                nest.stream(made, self._piece(element, kept, known, made, held, start, str(piece)), piece)
                return ()

            nest.loop(pieces, body)

        is_short = nest.emit(f"icmp ult i64 {self._size}, {piece}")
        nest.if_(is_short, write_short)
        nest.if_(nest.emit(f"xor i1 {is_short}, true"), write)

    def in_pieces(self, element: Element, kept: Mapping[str, Place], made: Place | None) -> None:
        """The same for `element` as the output, a piece at a time, after what it wants `kept` there. What is quick is
        first `made` somewhere else."""
        nest, piece = self._nest, GUESSED if element.quick else PIECE
        held = self._held_of(element, {})
        pieces = nest.emit(f"udiv i64 {nest.emit(f'add i64 {self._size}, {piece - 1}')}, {piece}")

        def body(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            start = nest.emit(f"mul i64 {index}, {piece}")
            size = nest.call("umin.i64", "i64", nest.emit(f"sub i64 {self._size}, {start}"), str(piece))
            target = self._piece(element, kept, {}, made, held, start, size)
            if made and target.step == "packed":
                is_whole = nest.emit(f"icmp eq i64 {size}, {piece}")
                nest.if_(is_whole, lambda: nest.move_all(made, target, piece))
                nest.if_(nest.emit(f"xor i1 {is_whole}, true"), lambda: nest.move(made, target, size))
            elif made:
                nest.move_bits(made, target, size)
            return ()

        nest.loop(pieces, body)

    def _piece(
        self,
        element: Element,
        kept: Mapping[str, Place],
        known: Mapping[str, str],
        made: Place | None,
        held: Sequence[Mapping[str, str]],
        start: str,
        size: str,
    ) -> Place:
        """Compute so many elements from `start` on, where they are `made` first if that is somewhere else. Gives where
        they belong."""
        nest = self._nest
        places = {
            name: place if place.step == "same" else replace(place, base=nest.at(place, start))
            for name, place in self.places.items()
        }
        for name, copy in self._copies.items():
            nest.move_bits(places[name], copy, size)
        row = _Row(nest, size, {**places, **self._copies, **kept} | ({OUTPUT: made} if made else {}), start)
        if kept:
            row.each({each.name: each for each in element.kept}, {})
        if element.quick:
            row.guessed(element, element.quick, held)
        else:
            row.each({OUTPUT: element}, known)
        return places[OUTPUT]

    def _held_of(self, element: Element, known: Mapping[str, str]) -> list[dict[str, str]]:
        """What a quick one holds for all pieces, loaded before anything is stored, of which the compiler knows no other
        place."""
        return [self._held(each, known) for each in (*element.quick, element)] if element.quick else []

    def in_wholes(self, element: Element, ends: Mapping[str, Place]) -> None:
        """The same for a long `element` as the output, WHOLE at a time, and what is left over in the memory of `ends`:
        LLVM takes as long for a loop for that, and for one for what that leaves, as for the first."""
        nest = self._nest
        wholes = nest.emit(f"lshr i64 {self._size}, {WHOLE.bit_length() - 1}")
        left = nest.emit(f"and i64 {self._size}, {WHOLE - 1}")
        some = nest.emit(f"icmp ne i64 {left}, 0")
        done = nest.emit(f"sub i64 {self._size}, {left}")
        rest = {name: replace(self.places[name], base=nest.at(self.places[name], done)) for name in ends}

        def load() -> None:
            for name, end in ends.items():
                if name != OUTPUT:
                    nest.fill(rest[name], end, left, WHOLE)

        def turn(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            is_last = nest.emit(f"icmp ne i64 {index}, 0")
            places = {
                name: replace(end, base=nest.emit(f"select i1 {is_last}, ptr {end.base}, ptr {self.places[name].base}"))
                for name, end in ends.items()
            }
            count = nest.emit(f"select i1 {is_last}, i64 1, i64 {wholes}")
            size = nest.emit(f"shl nuw nsw i64 {count}, {WHOLE.bit_length() - 1}")
            row = _Row(nest, size, self.places | places)
            nest.if_(nest.emit(f"icmp ne i64 {count}, 0"), lambda: row.each({OUTPUT: element}, {}))
            return ()

        nest.if_(some, load)
        nest.loop(nest.emit(f"add i64 1, {nest.emit(f'zext i1 {some} to i64')}"), turn)
        nest.if_(some, lambda: nest.copy(ends[OUTPUT], rest[OUTPUT], left))

    def guessed(self, element: Element, quick: tuple[Element, Element], held: Sequence[Mapping[str, str]]) -> None:
        """The loop that stores what is `quick`, and, if there is a doubtful one among these, the one of `element`. What
        is `held` for these three is one for all."""
        nest, (value, doubtful) = self._nest, quick

        def body(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            nest.store(self._value(value, held[0], index), self.places[OUTPUT], index)
            # As a bit, of which a processor has many in a register, or at least need not move it.
            doubt = nest.emit(f"icmp ne {doubtful.output} {self._value(doubtful, held[1], index)}, 0")
            return (nest.emit(f"or i1 {accumulated[0]}, {doubt}"),)

        (doubts,) = nest.loop(self._size, body, [("i1", "false")], GUESSING)
        nest.if_(doubts, lambda: self.each({OUTPUT: element}, held[2]))

    def through(self, stages: Sequence[FormulaStage[Element]]) -> dict[str, str]:
        """The names of the stages' results."""
        known: dict[str, str] = {}
        for step in together(stages):
            if step[0].reduction in SUMS:
                known |= self.added(step, known)
            else:
                known[step[0].result] = self.reduced(step[0], known)
        return known

    def added(self, stages: Sequence[FormulaStage[Element]], known: Mapping[str, str]) -> dict[str, str]:
        """The names of the group's sums."""
        nest = self._nest
        held = [self._held(stage.program, known) for stage in stages]
        counts = [is_count(stage.program) for stage in stages]
        starts = [("i32", "0") if is_count else ("double", literal(FLOAT64, 0)) for is_count in counts]

        def values(index: str) -> list[str]:
            made = [self._value(stage.program, own, index) for stage, own in zip(stages, held, strict=True)]
            for stage, value in zip(stages, made, strict=True):
                if stage.elements:
                    nest.store(value, self.places[stage.elements], index)
            return made

        def added(totals: Sequence[str], values: Sequence[str]) -> list[str]:
            made = []
            for stage, is_count, total, value in zip(stages, counts, totals, values, strict=True):
                made.append((self._count if is_count else self._add)(total, value, stage.program.output))
            return made

        def two(index: str, totals: Sequence[str]) -> Sequence[str]:
            pairs = zip(stages, values(index), values(nest.emit(f"add i64 {index}, {half}")), strict=True)
            return added(totals, [nest.emit(f"fadd {stage.program.output} {a}, {b}") for stage, a, b in pairs])

        def one(index: str, totals: Sequence[str]) -> Sequence[str]:
            return added(totals, values(nest.emit(f"add i64 {index}, {done}")))

        done = "0"
        sums = {stage.reduction for stage, is_count in zip(stages, counts, strict=True) if not is_count}
        if sums == {"sum_of_pairs"}:
            half = nest.emit(f"and i64 {nest.emit(f'lshr i64 {self._size}, 1')}, {-PAIRED}")
            done = nest.emit(f"shl i64 {half}, 1")
            totals = nest.loop_if_any(half, two, starts, SIDE_BY_SIDE)
            starts = [(type_, total) for (type_, _), total in zip(starts, totals, strict=True)]
        totals = nest.loop_if_any(nest.emit(f"sub i64 {self._size}, {done}"), one, starts, ACCUMULATING)
        return {
            stage.result: nest.emit(f"sitofp i32 {total} to double") if is_count else total
            for stage, is_count, total in zip(stages, counts, totals, strict=True)
        }

    def reduced(self, stage: FormulaStage[Element], known: Mapping[str, str]) -> str:
        """The name of the group's value, if that is no sum."""
        element = stage.program
        held = self._held(element, known)
        match stage.reduction:
            case None:
                return self._value(element, held, "0")
            case "maximum":
                return self._largest(stage, held)
            case "first_maximum":
                return self._first(stage.program, held, self._largest(stage, held))
        raise ValueError(f"{stage.reduction} is no reduction")

    def _largest(self, stage: FormulaStage[Element], held: Mapping[str, str]) -> str:
        """Of numbers, one instruction for each; beside that it finds whether there is a NaN, which is the largest then.

        With a NaN the comparisons give anything, which nobody looks at.
        """
        nest, type_ = self._nest, stage.program.output

        def body(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            largest, unordered = accumulated
            value = self._value(stage.program, held, index)
            if stage.elements:
                nest.store(value, self.places[stage.elements], index)
            above = nest.emit(f"fcmp nnan nsz ogt {type_} {value}, {largest}")
            nan = nest.emit(f"fcmp uno {type_} {value}, {value}")
            larger = nest.emit(f"select nnan nsz i1 {above}, {type_} {value}, {type_} {largest}")
            return larger, nest.emit(f"or i1 {unordered}, {nan}")

        starts = [(type_, literal(FLOAT64, -math.inf)), ("i1", "false")]
        largest, unordered = nest.loop(self._size, body, starts, ACCUMULATING)
        return nest.emit(f"select i1 {unordered}, {type_} {literal(FLOAT64, math.nan)}, {type_} {largest}")

    def _add(self, total: str, value: str, type_: str) -> str:
        """In float64, in any order."""
        wide = self._nest.emit(f"fpext float {value} to double") if type_ == "float" else value
        return self._nest.emit(f"fadd reassoc double {total}, {wide}")

    def _count(self, total: str, value: str, type_: str) -> str:
        """Of what is 0 or 1; LLVM adds the conditions themselves. A group has less than 2^31 elements."""
        return self._nest.emit(f"add i32 {total}, {self._nest.emit(f'fptoui {type_} {value} to i32')}")

    def _first(self, element: Element, held: Mapping[str, str], largest: str) -> str:
        """The position of the first one that is the largest; a NaN is, if there is one. It is looked for among so many
        elements that 32 bits will do, of which a vector holds twice as many as of positions."""
        nest, type_ = self._nest, element.output
        pieces = nest.emit(f"udiv i64 {nest.emit(f'add i64 {self._size}, {_NOWHERE_NEAR - 1}')}, {_NOWHERE_NEAR}")

        def piece(number: str, before: Sequence[str]) -> Sequence[str]:
            start = nest.emit(f"mul i64 {number}, {_NOWHERE_NEAR}")
            size = nest.call("umin.i64", "i64", nest.emit(f"sub i64 {self._size}, {start}"), str(_NOWHERE_NEAR))

            def body(index: str, accumulated: Sequence[str]) -> Sequence[str]:
                value = self._value(element, held, nest.emit(f"add i64 {start}, {index}"))
                equal = nest.emit(f"fcmp oeq {type_} {value}, {largest}")
                nan = nest.emit(f"fcmp uno {type_} {value}, {value}")
                found = nest.emit(f"or i1 {equal}, {nan}")
                near = nest.emit(f"trunc i64 {index} to i32")
                place = nest.emit(f"select i1 {found}, i32 {near}, i32 {_NOWHERE_NEAR}")
                return (nest.call("smin.i32", "i32", accumulated[0], place),)

            (near,) = nest.loop(size, body, [("i32", str(_NOWHERE_NEAR))], ACCUMULATING)
            none = nest.emit(f"icmp eq i32 {near}, {_NOWHERE_NEAR}")
            position = self._position(nest.emit(f"add i64 {start}, {nest.emit(f'zext i32 {near} to i64')}"))
            found = nest.emit(f"select i1 {none}, i64 {NOWHERE}, i64 {position}")
            return (nest.call("smin.i64", "i64", before[0], found),)

        return nest.loop(pieces, piece, [("i64", str(NOWHERE))])[0]

    def _held(self, element: Element, known: Mapping[str, str]) -> dict[str, str]:
        """The inputs of `element` that are one for all, loaded before the loop."""
        held = {name: known[name] for name in element.inputs if name in known}
        for name in element.inputs:
            if name in self.places and self.places[name].step == "same":
                held[name] = self._nest.emit(f"load {self.places[name].type}, ptr {self.places[name].base}, align 1")
        return held

    def _value(self, element: Element, held: Mapping[str, str], index: str) -> str:
        """`element` at an index."""
        given = [f"{type_} {self._input(name, type_, held, index)}" for name, type_ in element.inputs.items()]
        given += self._nest.attributes[element.name]
        return self._nest.emit(f"call {element.output} @{element.name}({', '.join(given)})")

    def _input(self, name: str, type_: str, held: Mapping[str, str], index: str) -> str:
        if name in held:
            return held[name]
        if name == POSITION and name not in self.places:
            return self._position(index)
        return self._nest.emit(f"load {type_}, ptr {self._nest.at(self.places[name], index)}, align 1{GROUP}")

    def _position(self, index: str) -> str:
        return self._nest.emit(f"add i64 {self._start}, {index}")
