"""What the loop nests of `nests.py` are written with: their arrays, loops and stores, and the module around them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, TypeAlias

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.types import bytes_of, intrinsic, llvm_type
from app.devices.cpu.llvm.vectors import FOUR_VECTORS, WIDE
from app.memory.addresses import LINE

Access: TypeAlias = Literal["packed", "same", "strided"]
"""How an array's elements lie along the innermost dimension: one after the other, one for all, or evenly spaced."""

OUTPUT = "(output)"
"""What the output is called among the arrays."""

PIECE = 1 << 10
"""Elements of which something is kept: few enough that it stays in the cache next to the processor."""

FETCHED = 1 << 11
"""Bytes from what is computed to what is fetched meanwhile, so that a processor that computes for long waits for none.
Into its first cache some would fetch only by holding up what is loaded: ADD takes a fourth longer on a Zen 4."""

GROUP = ", !llvm.access.group !4"
PARALLEL, ACCUMULATING, SIDE_BY_SIDE = ", !llvm.loop !0", ", !llvm.loop !1", ", !llvm.loop !7"
GUESSING, LANEWISE = ", !llvm.loop !9", ", !llvm.loop !10"
_METADATA = [
    "!0 = distinct !{!0, !2, !6}",
    "!1 = distinct !{!1, !2, !3}",
    '!2 = !{!"llvm.loop.parallel_accesses", !4}',
    '!3 = !{!"llvm.loop.vectorize.width", i32 16}',
    "!4 = distinct !{}",
    "!5 = !{i32 1}",
    "!7 = distinct !{!7, !2, !3, !8}",
    '!8 = !{!"llvm.loop.interleave.count", i32 2}',
    f"!9 = distinct !{{!9, !2, !3{FOUR_VECTORS}}}",
    "!10 = distinct !{!10, !2, !3, !8}",
    '!6 = !{!"llvm.loop.interleave.count", i32 %d}',
]
"""Says of loops that what one iteration stores, no other one loads, and that they take some vectors side by side, since
one long chain of operations leaves a processor waiting; of accumulating ones that they take 16 elements at a time,
since for an accumulator of 64 bits LLVM would take fewer, of the elements of 32 bits too, and of long functions twice
as many; and of those that accumulate nothing but a doubt four vectors, where there are registers for them."""

LONG = 192
"""More instructions for an element than any operator's formula has are a graph's, which are compiled in two thirds of
the time if two vectors are taken side by side, and not four; they take a tenth longer then."""


WIDE_FROM = 12
"""Instructions for a float32 that are worth whole registers, though the clock is slower then: passes over memory take a
tenth longer with these. For FLOAT16, of which LLVM takes as many as for float32 anyway, nothing is."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the part of an array is in the present iteration of the outer loops: its elements' type in LLVM, how they
    lie, and if they are spaced, how far apart."""

    type: str
    step: Access
    base: str
    stride: str = ""


class Nest:
    """Writes the instructions of a module's `kernel`, which calls `elements`, the last of which is the output's."""

    def __init__(
        self,
        elements: Sequence[Element],
        inputs: Sequence[str],
        dimensions: int,
        layout: Sequence[Access],
        inner: int = 1,
    ) -> None:
        """The `layout` is that along the first of so many `inner` dimensions, around which the loops are written."""
        types = {name: kind for element in elements for name, kind in element.inputs.items()}
        types[OUTPUT] = elements[-1].output
        self._elements = elements
        self._inner = inner
        self.is_long = sum(element.instructions for element in elements) > LONG
        self._is_wide = _is_wide(elements)
        self.attributes: dict[str, list[str]] = {}
        """By the element's name, each with its type."""
        self._declarations: set[str] = set()
        self.block = "entry"
        """The one that instructions go to."""
        self._names = count()
        self._numbers = count()
        self._lines: list[str] = []
        self._sizes = [self._number() for _ in range(dimensions)]
        self._places: dict[str, Place] = {}
        self._strides: dict[str, list[str]] = {}
        for name, step in zip([*inputs, OUTPUT], layout, strict=True):
            base = self._address()
            self._strides[name] = [self._number() for _ in range(dimensions)]
            self._places[name] = Place(types[name], step, base, self._strides[name][-inner])

    def scratch(self, type_: str) -> Place:
        """The frame has the address of memory for a group of elements."""
        return Place(type_, "packed", self._address())

    def local(self, type_: str, count: int = PIECE) -> Place:
        """Memory of the function for so many elements."""
        return Place(type_, "packed", self.emit(f"alloca {type_}, i64 {count}, align 64"))

    def local_ends(self, count: int) -> dict[str, Place]:
        """The same for the end of each array that is not one element for all."""
        return {name: self.local(place.type, count) for name, place in self._places.items() if place.step == "packed"}

    def load_attributes(self) -> None:
        """The frame has those of each of `elements` in turn."""
        for element in self._elements:
            types = [llvm_type(value.type) for value in element.parameters]
            self.attributes[element.name] = [f"{type_} {self._from_frame(type_)}" for type_ in types]

    def around(self, write: Callable[[str, dict[str, Place]], None]) -> None:
        """Loops over the outer dimensions; `write` writes what happens along the first of the inner ones, given its
        size, and where the arrays are there."""
        self._around(0, self._places, write)

    def inside(
        self,
        count: int,
        places: dict[str, Place],
        write: Callable[[str, dict[str, Place]], None],
        index: str = "0",
        least: int = 0,
    ) -> None:
        """Loops over the last `count` dimensions, which may be none, but for the `least` last ones; `write` writes what
        happens there, given how many elements of those looped over were before, and where the arrays are."""
        if count == least:
            write(index, places)
            return

        def body(each: str, accumulated: Sequence[str]) -> Sequence[str]:
            before = each if index == "0" else self.emit(f"add i64 {self.emit(f'mul i64 {index}, {size}')}, {each}")
            inner = {
                name: replace(place, base=self._moved(place.base, each, self._strides[name][-count]))
                for name, place in places.items()
            }
            self.inside(count - 1, inner, write, before, least)
            return ()

        size = self._sizes[-count]
        self.loop(size, body)

    def rows_inside(
        self, count: int, places: dict[str, Place], write: Callable[[str, dict[str, Place], str], None]
    ) -> None:
        """Loops over the rows that the last `count` dimensions have; `write` writes what happens to each, given how
        many elements were before, where the arrays are, and the size of a row."""
        size = self._sizes[-1]

        def row(index: str, there: dict[str, Place]) -> None:
            along = {name: replace(place, stride=self._strides[name][-1]) for name, place in there.items()}
            write(self.emit(f"mul i64 {index}, {size}"), along, size)

        self.inside(count, places, row, least=1)

    def size_of_last(self, count: int) -> str:
        """How many elements the last dimensions have together."""
        size = "1"
        for each in self._sizes[len(self._sizes) - count :]:
            size = self.emit(f"mul i64 {size}, {each}")
        return size

    def type_of(self, name: str) -> str:
        """LLVM's, of an array's elements."""
        return self._places[name].type

    def module(self, *, streams: bool = False) -> str:
        """All of it."""
        if streams:
            self._lines.append("fence seq_cst")  # what went past the cache is there for other threads, too
        declarations = self._declarations.union(*(element.declarations for element in self._elements))
        definitions = [line for element in self._elements for line in element.definition]
        head = [f"define void @kernel(ptr noalias readonly %frame){WIDE if self._is_wide else ''} {{", "entry:"]
        *metadata, side_by_side = _METADATA
        metadata.append(side_by_side % (2 if self.is_long else 4))
        return "\n".join([*sorted(declarations), *definitions, *head, *self._lines, "ret void", "}", *metadata])

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

    def loop_if_any(
        self,
        size: str,
        body: Callable[[str, Sequence[str]], Sequence[str]],
        starts: Sequence[tuple[str, str]],
        note: str = "",
    ) -> Sequence[str]:
        """The same for a `size` that may be 0."""
        number, before = next(self._names), self.block
        some = self.emit(f"icmp ne i64 {size}, 0")
        self._lines += [f"br i1 {some}, label %some{number}, label %none{number}", f"some{number}:"]
        self.block = f"some{number}"
        results = self.loop(size, body, starts, note)
        self._lines += [f"br label %none{number}", f"none{number}:"]
        last, self.block = self.block, f"none{number}"
        return [
            self.emit(f"phi {type_} [{start}, %{before}], [{result}, %{last}]")
            for (type_, start), result in zip(starts, results, strict=True)
        ]

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

    def store(self, value: str, place: Place, index: str) -> None:
        """`value`, as the array's element there."""
        self._lines.append(f"store {place.type} {value}, ptr {self.at(place, index)}, align 1{GROUP}")

    def before_line(self, place: Place) -> str:
        """How many elements there are up to the first line that begins with one of them."""
        before = self.emit(f"and i64 {self.emit(f'sub i64 0, {self._number_of(place)}')}, {LINE - 1}")
        return self.emit(f"udiv i64 {before}, {bytes_of(place.type)}")

    def stream(self, source: Place, target: Place, count: int) -> None:
        """Copy so many elements, which are whole lines, past the cache; the ordinary way if they are none there."""
        is_apart = self.emit(f"icmp ne i64 {self.emit(f'and i64 {self._number_of(target)}, {LINE - 1}')}, 0")
        self.if_(is_apart, lambda: self.move_all(source, target, count))
        is_line = self.emit(f"xor i1 {is_apart}, true")
        self.if_(is_line, lambda: self.move_all(source, target, count, f"align {LINE}, !nontemporal !5"))

    def fetch(self, place: Place, index: str, count: int) -> None:
        """Have so many elements of a packed array brought to the second cache, from FETCHED bytes after one on."""
        self._declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        first = self.at(place, index)
        for offset in range(FETCHED, FETCHED + count * bytes_of(place.type), LINE):
            there = self.emit(f"getelementptr i8, ptr {first}, i64 {offset}")
            self._lines.append(f"call void @llvm.prefetch.p0(ptr {there}, i32 0, i32 2, i32 1)")

    def _number_of(self, place: Place) -> str:
        return self.emit(f"ptrtoint ptr {place.base} to i64")

    def move(self, source: Place, target: Place, size: str) -> None:
        """Copy elements that lie one after the other to where they belong."""

        def one(index: str, accumulated: Sequence[str]) -> Sequence[str]:
            value = self.emit(f"load {source.type}, ptr {self.at(source, index)}, align 1{GROUP}")
            self.store(value, target, index)
            return ()

        self.loop(size, one, note=PARALLEL)

    def move_bits(self, source: Place, target: Place, size: str) -> None:
        """The same of what is only copied, and need be no number."""
        bits = f"i{8 * bytes_of(source.type)}"
        self.move(replace(source, type=bits), replace(target, type=bits), size)

    def move_all(self, source: Place, target: Place, count: int, how: str = "align 1") -> None:
        """The same of so many, which are as much as whole lines of the cache and belong one after the other too: a call
        of C takes as long as to compute a few."""
        for offset in range(0, count * bytes_of(source.type), LINE):
            given, taken = (self.emit(f"getelementptr i8, ptr {each.base}, i64 {offset}") for each in (source, target))
            value = self.emit(f"load <{LINE // 4} x i32>, ptr {given}, align 1")
            self._lines.append(f"store <{LINE // 4} x i32> {value}, ptr {taken}, {how}")

    def fill(self, source: Place, target: Place, size: str, count: int) -> None:
        """Copy `size` elements to memory for `count` of them, the others being 0."""
        self._declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        every = count * bytes_of(target.type)
        self._lines.append(f"call void @llvm.memset.p0.i64(ptr {target.base}, i8 0, i64 {every}, i1 false)")
        self.copy(source, target, size)

    def copy(self, source: Place, target: Place, size: str) -> None:
        """Copy elements that lie one after the other, at both places."""
        self._copy(source, target, "0", self.emit(f"mul i64 {size}, {bytes_of(source.type)}"))

    def if_(self, condition: str, write: Callable[[], object]) -> None:
        """What is written is done if the condition holds."""
        number = next(self._names)
        self._lines += [f"br i1 {condition}, label %some{number}, label %none{number}", f"some{number}:"]
        self.block = f"some{number}"
        write()
        self._lines += [f"br label %none{number}", f"none{number}:"]
        self.block = f"none{number}"

    def _copy(self, source: Place, target: Place, start: str, size: str) -> None:
        """So many bytes from `start` on, which mostly are none."""
        self._declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")

        def write() -> None:
            given, taken = (self.emit(f"getelementptr i8, ptr {each.base}, i64 {start}") for each in (source, target))
            self._lines.append(f"call void @llvm.memcpy.p0.p0.i64(ptr {taken}, ptr {given}, i64 {size}, i1 false)")

        self.if_(self.emit(f"icmp ne i64 {size}, 0"), write)

    def at(self, place: Place, index: str) -> str:
        """The address of an array's element."""
        if place.step == "packed":
            return self.emit(f"getelementptr {place.type}, ptr {place.base}, i64 {index}")
        return self._moved(place.base, index, place.stride)

    def _around(self, dimension: int, places: dict[str, Place], write: Callable[[str, dict[str, Place]], None]) -> None:
        if dimension == len(self._sizes) - self._inner:
            write(self._sizes[dimension], places)
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


def _is_wide(elements: Sequence[Element]) -> bool:
    """Whether it is sooner computed with whole registers. Bytes that are found of numbers of 32 bits are: those of half
    a register are half of the least that is stored at once."""
    output = elements[-1].output
    if bytes_of(output) == 1:
        return {bytes_of(each) for each in elements[-1].inputs.values()} == {4}
    return output == "float" and sum(element.instructions for element in elements) >= WIDE_FROM
