"""Loop nests around the functions of `lowering.py`, over all elements of some strided arrays.

A nest is a module with a function `kernel`, whose argument is a list of 64-bit numbers, its frame: the sizes of the
dimensions; for each array, the output last, its address and its strides in bytes; then what the kind of nest adds; then
the attributes, each in the lowest bytes of its number. Arrays need not be aligned; the output may be one of the inputs.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, TypeAlias

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.types import bytes_of, intrinsic, literal, llvm_type
from app.formula.stages import POSITION, Stage
from app.formula.values import FLOAT64

Step: TypeAlias = Literal["packed", "same", "strided"]
"""How an array's elements lie along the innermost dimension: one after the other, one for all, or evenly spaced."""

OUTPUT = "(output)"
"""What the output is called among the arrays."""

PIECE = 1 << 10
"""Elements of which something is kept: few enough that it stays in the cache next to the processor."""

LINE = 64
"""Bytes that processors fetch and own at a time, on most."""

_NOWHERE = (1 << 63) - 1
"""After all positions."""

_GROUP = ", !llvm.access.group !4"
_PARALLEL, _ACCUMULATING = ", !llvm.loop !0", ", !llvm.loop !1"
_METADATA = [
    "!0 = distinct !{!0, !2}",
    "!1 = distinct !{!1, !2, !3}",
    '!2 = !{!"llvm.loop.parallel_accesses", !4}',
    '!3 = !{!"llvm.loop.vectorize.width", i32 16}',
    "!4 = distinct !{}",
    "!5 = !{i32 1}",
]
"""Says of loops that what one iteration stores, no other one loads; of accumulating ones also that they take 16
elements at a time, since for an accumulator of 64 bits LLVM would take fewer, of the elements of 32 bits too."""


def elements(
    element: Element, inputs: Sequence[str], dimensions: int, layout: Sequence[Step], streams: bool = False
) -> str:
    """The nest that computes each element by itself. Its arrays are those of `inputs`.

    If it `streams`, the output, which is packed, goes past the cache.
    """
    nest = _Nest([*element.kept, element], inputs, dimensions, layout)
    nest.load_attributes()
    kept = {each.name: nest.local(each.output) for each in element.kept}
    made = nest.local(element.output) if streams else None
    nest.around(lambda row: row.in_pieces(element, kept, {}, made) if kept or made else row.each({OUTPUT: element}, {}))
    return nest.module(streams=streams)


def rows(
    stages: Sequence[Stage[Element]],
    final: Element,
    inputs: Sequence[str],
    dimensions: int,
    layout: Sequence[Step],
    streams: bool = False,
) -> str:
    """The nest that takes each group, which lies along the innermost dimension, through all `stages` and then `final`.
    It streams as `elements` does.

    Its arrays are those of `inputs`. Its frame has besides: by how much positions go up; for each stage that keeps its
    elements the address of memory for those of one group.
    """
    every = [*(stage.program for stage in stages), final]
    nest = _Nest(every, inputs, dimensions, layout)
    nest.load_positions()
    kept = {stage.elements: nest.scratch(stage.program.output) for stage in stages if stage.elements}
    nest.load_attributes()
    made = nest.local(final.output) if streams else None

    def group(row: "_Row") -> None:
        row.places |= kept
        known: dict[str, str] = {}
        for together in _together(stages):
            if together[0].reduction == "sum":
                known |= row.added(together, known)
            else:
                known[together[0].result] = row.reduced(together[0], known)
        if made:
            row.in_pieces(final, {}, known, made)
        else:
            row.each({OUTPUT: final}, known)

    nest.around(group)
    return nest.module(streams=streams)


def _together(stages: Sequence[Stage[Element]]) -> list[list[Stage[Element]]]:
    """In their order, but sums of which none needs another one's results are made by one loop."""
    groups: list[list[Stage[Element]]] = []
    for stage in stages:
        last = groups[-1] if groups else []
        made = {name for each in last for name in (each.result, each.elements)}
        if last and {each.reduction for each in (stage, *last)} == {"sum"} and made.isdisjoint(stage.program.inputs):
            last.append(stage)
        else:
            groups.append([stage])
    return groups


def _is_count(element: Element) -> bool:
    """Whether its values are conditions, as 0 and 1, so that their sum counts."""
    return any("= uitofp i1 " in line for line in element.body[-2:-1])


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the part of an array is in the present iteration of the outer loops: its elements' type in LLVM, how they
    lie, and if they are spaced, how far apart."""

    type: str
    step: Step
    base: str
    stride: str = ""


class _Nest:
    """Writes the instructions of a module's `kernel`, which calls `elements`, the last of which is the output's."""

    def __init__(
        self, elements: Sequence[Element], inputs: Sequence[str], dimensions: int, layout: Sequence[Step]
    ) -> None:
        types = {name: kind for element in elements for name, kind in element.inputs.items()}
        types[OUTPUT] = elements[-1].output
        self._elements = elements
        self.attributes: dict[str, list[str]] = {}
        """By the element's name, each with its type."""
        self.position_step = ""
        self._declarations: set[str] = set()
        self.block = "entry"
        """The one that instructions go to."""
        self._names = count()
        self._numbers = count()
        self._lines: list[str] = []
        self._sizes = [self._number() for _ in range(dimensions)]
        self._places: dict[str, _Place] = {}
        self._strides: dict[str, list[str]] = {}
        for name, step in zip([*inputs, OUTPUT], layout, strict=True):
            base = self._address()
            self._strides[name] = [self._number() for _ in range(dimensions)]
            self._places[name] = _Place(types[name], step, base, self._strides[name][-1])

    def load_positions(self) -> None:
        """The frame has by how much they go up."""
        self.position_step = self._number()

    def scratch(self, type_: str) -> _Place:
        """The frame has the address of memory for a group of elements."""
        return _Place(type_, "packed", self._address())

    def local(self, type_: str) -> _Place:
        """Memory of the function for PIECE elements."""
        return _Place(type_, "packed", self.emit(f"alloca {type_}, i64 {PIECE}, align 64"))

    def load_attributes(self) -> None:
        """The frame has those of each of `elements` in turn."""
        for element in self._elements:
            types = [llvm_type(value.type) for value in element.parameters]
            self.attributes[element.name] = [f"{type_} {self._from_frame(type_)}" for type_ in types]

    def around(self, write: "Callable[[_Row], None]") -> None:
        """Loops over the outer dimensions; `write` writes what happens along the innermost one."""
        self._around(0, self._places, write)

    def module(self, *, streams: bool = False) -> str:
        """All of it."""
        if streams:
            self._lines.append("fence seq_cst")  # what went past the cache is there for other threads, too
        declarations = self._declarations.union(*(element.declarations for element in self._elements))
        definitions = [line for element in self._elements for line in element.definition]
        head = ["define void @kernel(ptr noalias readonly %frame) {", "entry:"]
        return "\n".join(
            [*sorted(declarations), *definitions, *head, *self._lines, "ret void", "}", *_METADATA],
        )

    def loop(
        self,
        size: str,
        body: Callable[[str, Sequence[str]], Sequence[str]],
        starts: Sequence[tuple[str, str]] = (),
        note: str = "",
    ) -> Sequence[str]:
        """A loop over 0 to `size` - 1, which is at least once, that accumulates from `starts`, each a type and a value.

        `body` writes what is in it, given the index and what is accumulated before, and gives what is then.
        """
        number = next(self._names)
        before, self.block, done, index = self.block, f"loop{number}", f"done{number}", f"%i{number}"
        label = self.block
        accumulated = [f"%a{number}.{place}" for place in range(len(starts))]
        self._lines += [f"br label %{label}", f"{label}:"]
        at = len(self._lines)
        results = body(index, accumulated)
        following = self.emit(f"add nuw nsw i64 {index}, 1")
        end = self.emit(f"icmp eq i64 {following}, {size}")
        self._lines += [f"br i1 {end}, label %{done}, label %{label}{note}", f"{done}:"]
        self._lines[at:at] = [f"{index} = phi i64 [0, %{before}], [{following}, %{self.block}]"] + [
            f"{name} = phi {type_} [{start}, %{before}], [{result}, %{self.block}]"
            for name, (type_, start), result in zip(accumulated, starts, results, strict=True)
        ]
        self.block = done
        return results

    def emit(self, expression: str) -> str:
        """The name of what the instruction `expression` gives."""
        name = f"%n{next(self._names)}"
        self._lines.append(f"{name} = {expression}")
        return name

    def call(self, name: str, type_: str, *arguments: str) -> str:
        """The name of what an intrinsic function gives, whose arguments and result are of one type."""
        declaration, expression = intrinsic(name, type_, arguments)
        self._declarations.add(declaration)
        return self.emit(expression)

    def store(self, value: str, place: _Place, index: str) -> None:
        """`value`, as the array's element there."""
        self._lines.append(f"store {place.type} {value}, ptr {self.at(place, index)}, align 1{_GROUP}")

    def stream(self, source: _Place, target: _Place, size: str) -> None:
        """Copy elements past the cache, whole lines of it; others, at the ends, the ordinary way."""
        size = self.emit(f"mul i64 {size}, {bytes_of(source.type)}")
        address = self.emit(f"ptrtoint ptr {target.base} to i64")
        before = self.emit(f"and i64 {self.emit(f'sub i64 0, {address}')}, {LINE - 1}")
        head = self.call("umin.i64", "i64", before, size)
        lines = self.emit(f"lshr i64 {self.emit(f'sub i64 {size}, {head}')}, {LINE.bit_length() - 1}")
        rest = self.emit(f"add i64 {head}, {self.emit(f'mul i64 {lines}, {LINE}')}")
        self._copy(source, target, "0", head)

        def line(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            offset = self.emit(f"add i64 {head}, {self.emit(f'mul i64 {index}, {LINE}')}")
            given, taken = (self.emit(f"getelementptr i8, ptr {each.base}, i64 {offset}") for each in (source, target))
            value = self.emit(f"load <{LINE // 4} x i32>, ptr {given}, align 1")
            self._lines.append(f"store <{LINE // 4} x i32> {value}, ptr {taken}, align {LINE}, !nontemporal !5")
            return ()

        some, number = self.emit(f"icmp ne i64 {lines}, 0"), next(self._names)
        self._lines += [f"br i1 {some}, label %some{number}, label %none{number}", f"some{number}:"]
        self.block = f"some{number}"
        self.loop(lines, line)
        self._lines += [f"br label %none{number}", f"none{number}:"]
        self.block = f"none{number}"
        self._copy(source, target, rest, self.emit(f"sub i64 {size}, {rest}"))

    def _copy(self, source: _Place, target: _Place, start: str, size: str) -> None:
        """So many bytes from `start` on, which may be none."""
        self._declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        given, taken = (self.emit(f"getelementptr i8, ptr {each.base}, i64 {start}") for each in (source, target))
        self._lines.append(f"call void @llvm.memcpy.p0.p0.i64(ptr {taken}, ptr {given}, i64 {size}, i1 false)")

    def at(self, place: _Place, index: str) -> str:
        """The address of an array's element."""
        if place.step == "packed":
            return self.emit(f"getelementptr {place.type}, ptr {place.base}, i64 {index}")
        return self._moved(place.base, index, place.stride)

    def _around(self, dimension: int, places: dict[str, _Place], write: "Callable[[_Row], None]") -> None:
        if dimension == len(self._sizes) - 1:
            write(_Row(self, self._sizes[dimension], places))
            return

        def body(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            inner = {
                name: replace(place, base=self._moved(place.base, index, self._strides[name][dimension]))
                for name, place in places.items()
            }
            self._around(dimension + 1, inner, write)
            return ()

        self.loop(self._sizes[dimension], body)

    def _moved(self, base: str, index: str, stride: str) -> str:
        return self.emit(f"getelementptr i8, ptr {base}, i64 {self.emit(f'mul i64 {index}, {stride}')}")

    def _number(self) -> str:
        return self._from_frame("i64")

    def _address(self) -> str:
        return self.emit(f"inttoptr i64 {self._number()} to ptr")

    def _from_frame(self, type_: str) -> str:
        place = self.emit(f"getelementptr i64, ptr %frame, i64 {next(self._numbers)}")
        return self.emit(f"load {type_}, ptr {place}")


class _Row:
    """Writes what happens to `size` elements along the innermost dimension. `known` are values that are one for all."""

    def __init__(self, nest: _Nest, size: str, places: dict[str, _Place]) -> None:
        self.places = places
        self._nest = nest
        self._size = size

    def each(self, elements: Mapping[str, Element], known: Mapping[str, str]) -> None:
        """The loop that stores all of each of `elements` in the array that it is named by."""
        held = {name: self._held(element, known) for name, element in elements.items()}

        def body(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            for name, element in elements.items():
                self._nest.store(self._value(element, held[name], index), self.places[name], index)
            return ()

        self._nest.loop(self._size, body, note=_PARALLEL)

    def in_pieces(
        self, element: Element, kept: dict[str, _Place], known: Mapping[str, str], made: _Place | None
    ) -> None:
        """The same for `element` as the output, PIECE at a time, after what it wants `kept` there. What is first `made`
        somewhere else goes from there past the cache."""
        nest = self._nest
        pieces = nest.emit(f"udiv i64 {nest.emit(f'add i64 {self._size}, {PIECE - 1}')}, {PIECE}")

        def body(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            start = nest.emit(f"mul i64 {index}, {PIECE}")
            size = nest.call("umin.i64", "i64", nest.emit(f"sub i64 {self._size}, {start}"), str(PIECE))
            places = {
                name: place if place.step == "same" else replace(place, base=nest.at(place, start))
                for name, place in self.places.items()
            }
            row = _Row(nest, size, places | kept)
            if kept:
                row.each({each.name: each for each in element.kept}, {})
            if made is None:
                row.each({OUTPUT: element}, known)
            else:
                row.places[OUTPUT] = made
                row.each({OUTPUT: element}, known)
                nest.stream(made, places[OUTPUT], size)
            return ()

        nest.loop(pieces, body)

    def added(self, stages: Sequence[Stage[Element]], known: Mapping[str, str]) -> dict[str, str]:
        """The names of the group's sums."""
        held = [self._held(stage.program, known) for stage in stages]

        def body(index: str, totals: Sequence[str]) -> Sequence[str]:
            made = []
            for stage, own, total in zip(stages, held, totals, strict=True):
                value = self._value(stage.program, own, index)
                if stage.elements:
                    self._nest.store(value, self.places[stage.elements], index)
                add = self._count if _is_count(stage.program) else self._add
                made.append(add(total, value, stage.program.output))
            return made

        starts = [("i64", "0") if _is_count(each.program) else ("double", literal(FLOAT64, 0)) for each in stages]
        totals = self._nest.loop(self._size, body, starts, _ACCUMULATING)
        return {
            stage.result: self._nest.emit(f"sitofp i64 {total} to double") if _is_count(stage.program) else total
            for stage, total in zip(stages, totals, strict=True)
        }

    def reduced(self, stage: Stage[Element], known: Mapping[str, str]) -> str:
        """The name of the group's value, if that is no sum."""
        element = stage.program
        held = self._held(element, known)
        match stage.reduction:
            case None:
                return self._value(element, held, "0")
            case "maximum":
                return self._largest(stage, held)
            case "first_maximum":
                largest = self._largest(stage, held)
                return self._accumulated(
                    replace(stage, elements=None), held, "i64", str(_NOWHERE), functools.partial(self._first, largest)
                )
        raise ValueError(f"{stage.reduction} is no reduction")

    def _largest(self, stage: Stage[Element], held: Mapping[str, str]) -> str:
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
        largest, unordered = nest.loop(self._size, body, starts, _ACCUMULATING)
        return nest.emit(f"select i1 {unordered}, {type_} {literal(FLOAT64, math.nan)}, {type_} {largest}")

    def _accumulated(
        self,
        stage: Stage[Element],
        held: Mapping[str, str],
        type_: str,
        start: str,
        step: Callable[[str, str, str, str], str],
    ) -> str:
        """The loop that takes each element's value with what is accumulated, and keeps the values if it is to."""

        def body(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            value = self._value(stage.program, held, index)
            if stage.elements:
                self._nest.store(value, self.places[stage.elements], index)
            return (step(accumulated[0], value, stage.program.output, index),)

        return self._nest.loop(self._size, body, [(type_, start)], _ACCUMULATING)[0]

    def _add(self, total: str, value: str, type_: str) -> str:
        """In float64, in any order."""
        wide = self._nest.emit(f"fpext float {value} to double") if type_ == "float" else value
        return self._nest.emit(f"fadd reassoc double {total}, {wide}")

    def _count(self, total: str, value: str, type_: str) -> str:
        """Of what is 0 or 1; LLVM adds the conditions themselves."""
        return self._nest.emit(f"add i64 {total}, {self._nest.emit(f'fptoui {type_} {value} to i64')}")

    def _first(self, largest: str, first: str, value: str, type_: str, index: str) -> str:
        """The position, if this is one of the largest and the first one. A NaN is the largest if there is one."""
        equal = self._nest.emit(f"fcmp oeq {type_} {value}, {largest}")
        nan = self._nest.emit(f"fcmp uno {type_} {value}, {value}")
        found = self._nest.emit(f"or i1 {equal}, {nan}")
        position = self._nest.emit(f"select i1 {found}, i64 {self._position(index)}, i64 {_NOWHERE}")
        return self._nest.call("smin.i64", "i64", first, position)

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
        return self._nest.emit(f"load {type_}, ptr {self._nest.at(self.places[name], index)}, align 1{_GROUP}")

    def _position(self, index: str) -> str:
        return self._nest.emit(f"mul i64 {index}, {self._nest.position_step}")
