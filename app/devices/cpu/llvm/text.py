"""Loops and vectors of float32 in LLVM's assembly, for code that is written instruction by instruction."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.types import bytes_of, llvm_type

_PARALLEL, ROLLED = ", !llvm.loop !0", ", !llvm.loop !3"
METADATA = """!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.parallel_accesses", !2}
!2 = distinct !{}
!3 = distinct !{!3, !4, !5}
!4 = !{!"llvm.loop.unroll.disable"}
!5 = !{!"llvm.loop.vectorize.enable", i1 false}"""
"""Says of one loop that what a turn stores, no other one loads, and of others that they are best as they are written,
which halves the time to compile them."""


WIDEST = 16
"""Elements of AVX-512's vectors, of which some are stored as quickly as all."""


class Text:
    """Lines of a function that takes the address of 64-bit numbers, its frame, and fresh names. Vectors have `width`
    elements."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.vector = f"<{width} x float>"
        self.lines: list[str] = []
        self._declarations: set[str] = set()
        self._names = 0

    def frame(self, fields: Sequence[str], addresses: int) -> dict[str, str]:
        """What the frame has, loaded: so many addresses, then numbers."""
        kinds = ["ptr"] * addresses + ["i64"] * (len(fields) - addresses)
        return {
            name: self.let(f"load {kind}, ptr {self.at('%frame', str(number), 'i64')}")
            for number, (name, kind) in enumerate(zip(fields, kinds, strict=True))
        }

    def name(self) -> str:
        self._names += 1
        return f"%n{self._names}"

    def let(self, expression: str) -> str:
        name = self.name()
        self.lines.append(f"{name} = {expression}")
        return name

    def do(self, line: str) -> None:
        self.lines.append(line)

    def at(self, pointer: str, index: str, type_: str = "float") -> str:
        return self.let(f"getelementptr {type_}, ptr {pointer}, i64 {index}")

    def behind(self, pointer: str, *ways: tuple[str, str]) -> str:
        """So many steps behind a pointer, each of so many bytes."""
        for number, step in ways:
            pointer = self.at(pointer, self.mul(number, step), "i8")
        return pointer

    def add(self, a: str, b: str) -> str:
        return self.let(f"add i64 {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        return self.let(f"sub i64 {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        return self.let(f"mul i64 {a}, {b}")

    def least(self, a: str, b: str) -> str:
        return self.call("i64", "llvm.umin.i64", f"i64 {a}, i64 {b}")

    def call(self, result: str, name: str, arguments: str) -> str:
        """Of a function that is declared elsewhere."""
        self.declare(result, name, arguments)
        return self.let(f"call {result} @{name}({arguments})")

    def declare(self, result: str, name: str, arguments: str) -> None:
        types = ", ".join(each.rsplit(" ", 1)[0] for each in arguments.split(", "))
        self._declarations.add(f"declare {result} @{name}({types})")

    def fused(self, a: str, b: str, c: str) -> str:
        """a * b + c of vectors, rounded once."""
        v = self.vector
        return self.call(v, f"llvm.fma.v{self.width}f32", f"{v} {a}, {v} {b}, {v} {c}")

    def totals(self, vectors: Sequence[str]) -> str:
        """A vector that begins with the sum of the elements of each, of which there are a power of two, at most as many
        as a vector has elements. From two vectors one is made that has half of the sums of both, until there is one.
        Elements are added in the same order however many vectors there are."""
        made = list(vectors)
        for bit in (1 << place for place in range(self.width.bit_length() - 1)):
            if len(made) > 1:
                made = [self._merged(*two, bit) for two in zip(made[::2], made[1::2], strict=True)]
            else:
                distance = 3 - bit if len(vectors) == 1 and bit < 4 else bit
                made = [self._sum(made[0], "poison", [each ^ distance for each in range(self.width)], made[0])]
        return made[0]

    def _merged(self, a: str, b: str, bit: int) -> str:
        """Elements of `a` and of `b` by turns, so many each, to which those are added that follow them there. The first
        time they are taken as processors do, of which one instruction interleaves neighbours."""
        every = range(self.width)
        if bit == 1:
            taken, distance = [each // 4 * 4 + each % 4 // 2 + self.width * (each % 2) for each in every], 2
        else:
            taken, distance = [(each & ~bit) + self.width * bool(each & bit) for each in every], bit
        return self._sum(a, b, [each + distance for each in taken], self._shuffled(a, b, taken))

    def _sum(self, a: str, b: str, taken: Sequence[int], other: str) -> str:
        """The elements that are `taken` from both, and a vector, added."""
        return self.let(f"fadd {self.vector} {other}, {self._shuffled(a, b, taken)}")

    def _shuffled(self, a: str, b: str, taken: Sequence[int]) -> str:
        mask = ", ".join(f"i32 {each}" for each in taken)
        return self.let(f"shufflevector {self.vector} {a}, {self.vector} {b}, <{len(taken)} x i32> <{mask}>")

    def spread(self, value: str, type_: str = "float") -> str:
        """A vector of the same in all elements."""
        vector = f"<{self.width} x {type_}>"
        one = self.let(f"insertelement {vector} poison, {type_} {value}, i64 0")
        return self.let(f"shufflevector {vector} {one}, {vector} poison, <{self.width} x i32> zeroinitializer")

    def lanes(self, start: str, step: int = 1) -> str:
        """32-bit integers that go up by `step` from `start`, of 64 bits."""
        vector = f"<{self.width} x i32>"
        numbers = ", ".join(f"i32 {step * number}" for number in range(self.width))
        return self.let(f"add {vector} {self.spread(self.let(f'trunc i64 {start} to i32'), 'i32')}, <{numbers}>")

    def steps(self) -> str:
        """A vector of 64-bit integers that go up from 0."""
        return f"<{', '.join(f'i64 {number}' for number in range(self.width))}>"

    def below(self, lanes: str, end: str) -> str:
        """Which of the lanes, without a sign, are below `end`, of 64 bits."""
        return self.let(
            f"icmp ult <{self.width} x i32> {lanes}, {self.spread(self.let(f'trunc i64 {end} to i32'), 'i32')}"
        )

    def load(self, pointer: str, mask: str, otherwise: str = "zeroinitializer", type_: str = "float") -> str:
        """A vector from memory; what is not in the mask is not read, and is as `otherwise` has it."""
        v, own = f"<{self.width} x {type_}>", self._own(type_)
        arguments = f"ptr {pointer}, i32 {bytes_of(type_)}, <{self.width} x i1> {mask}, {v} {otherwise}"
        self._declarations.add(f"declare {v} @llvm.masked.load.{own}.p0(ptr, i32, <{self.width} x i1>, {v})")
        return self.let(f"call {v} @llvm.masked.load.{own}.p0({arguments})")

    def load_as(self, stored: str, pointer: str, mask: str | None) -> str:
        """A vector of float from memory that has elements of another type; all of it, or as `load` does."""
        v = f"<{self.width} x {stored}>"
        if mask is None:
            made = self.let(f"load {v}, ptr {pointer}, align {bytes_of(stored)}")
        else:
            made = self.load(pointer, mask, type_=stored)
        return made if stored == "float" else self.let(f"fpext {v} {made} to {self.vector}")

    def spread_as(self, stored: str, pointer: str) -> str:
        """A vector with one element from memory in all places."""
        one = self.let(f"load {stored}, ptr {pointer}, align {bytes_of(stored)}")
        made = self.spread(one, stored)
        return made if stored == "float" else self.let(f"fpext <{self.width} x {stored}> {made} to {self.vector}")

    def store_as(self, stored: str, value: str, pointer: str, mask: str) -> None:
        """Those of a vector of float that are in the mask, rounded to what memory has."""
        if stored != "float":
            value = self.let(f"fptrunc {self.vector} {value} to <{self.width} x {stored}>")
        self.store(value, pointer, mask, stored)

    def store(self, value: str, pointer: str, mask: str, type_: str = "float") -> None:
        """Those elements of a vector that are in the mask. Where processors store some as slowly as one by one, a whole
        vector, which most are, is stored as such."""
        if self.width == WIDEST:
            self._store_some(value, pointer, mask, type_)
            return
        bits = f"<{self.width} x i1>"
        is_whole = self.call("i1", f"llvm.vector.reduce.and.v{self.width}i1", f"{bits} {mask}")
        with self.when(is_whole):
            self.do(f"store <{self.width} x {type_}> {value}, ptr {pointer}, align {bytes_of(type_)}")
        with self.when(self.let(f"xor i1 {is_whole}, true")):
            self._store_some(value, pointer, mask, type_)

    def _store_some(self, value: str, pointer: str, mask: str, type_: str) -> None:
        v, mask = f"<{self.width} x {type_}>", f"<{self.width} x i1> {mask}"
        arguments = f"{v} {value}, ptr {pointer}, i32 {bytes_of(type_)}, {mask}"
        name = f"llvm.masked.store.{self._own(type_)}.p0"
        self.declare("void", name, arguments)
        self.do(f"call void @{name}({arguments})")

    def gather(self, pointers: str, mask: str, type_: str = "float") -> str:
        """Elements from anywhere; what is not in the mask is not read, and 0."""
        v, n, name = f"<{self.width} x {type_}>", self.width, f"llvm.masked.gather.{self._own(type_)}.v{self.width}p0"
        self._declarations.add(f"declare {v} @{name}(<{n} x ptr>, i32, <{n} x i1>, {v})")
        given = f"<{n} x ptr> {pointers}, i32 {bytes_of(type_)}, <{n} x i1> {mask}, {v} zeroinitializer"
        return self.let(f"call {v} @{name}({given})")

    def _own(self, type_: str) -> str:
        """What LLVM's own functions call a vector."""
        names = {"double": "f64", "float": "f32", "half": "f16"}
        return f"v{self.width}{names.get(type_, type_)}"

    @contextmanager
    def loop(
        self,
        begin: str,
        end: str,
        step: str,
        carried: list[tuple[str, str]] | None = None,
        note: str = ROLLED,
        *,
        may_be_none: bool = False,
    ) -> Iterator["Loop"]:
        """A loop from `begin` to below `end`, which is larger, unless there `may_be_none`: no turn. `carried` are types
        and first values of what each turn gives to the next one. Where turns differ, they set the loop's `step`. The
        `note` is metadata."""
        loop = Loop(self, begin, end, step, carried or [], may_be_none=may_be_none)
        yield loop
        loop.close(note)

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """What is done on a condition."""
        then, after = self.name()[1:], self.name()[1:]
        self.do(f"br i1 {condition}, label %{then}, label %{after}")
        self.do(f"{then}:")
        yield
        self.do(f"br label %{after}")
        self.do(f"{after}:")

    def attributes(self, activation: Element, place: int) -> list[str]:
        """Those of an activation, which the frame has from a place on, with their types."""
        made = []
        for number, each in enumerate(activation.parameters):
            type_, address = llvm_type(each.type), self.at("%frame", str(place + number), "i64")
            made.append(f"{type_} {self.let(f'load {type_}, ptr {address}')}")
        return made

    def activate(self, activation: Element, attributes: Sequence[str], pointer: str, count: str) -> None:
        """So many elements, at least one, in place."""

        def made(value: str) -> str:
            given = [f"{type_} {value}" for type_ in activation.inputs.values()]
            return self.let(f"call float @{activation.name}({', '.join([*given, *attributes])})")

        self.each(count, [pointer], [pointer], made)

    def activated(
        self, activation: Element, attributes: Sequence[str], memory: str, vectors: Sequence[str]
    ) -> list[str]:
        """Those of so many vectors, by way of memory, which is aligned to them: there LLVM makes vectors of what is
        stated for one element."""
        places = [self.at(memory, str(number * self.width)) for number in range(len(vectors))]
        for vector, place in zip(vectors, places, strict=True):
            self.do(f"store {self.vector} {vector}, ptr {place}, align {4 * self.width}")
        self.activate(activation, attributes, memory, str(len(vectors) * self.width))
        return [self.let(f"load {self.vector}, ptr {place}, align {4 * self.width}") for place in places]

    def each(self, count: str, reads: Sequence[str], writes: Sequence[str], made: Callable[..., str]) -> None:
        """Of so many elements of each of `reads`, at least one, what is `made` to all of `writes`, of which some may be
        one of `reads`."""
        with self.parallel(count) as each:
            places = [self.at(pointer, each.index) for pointer in reads]
            value = made(*[self.let(f"load float, ptr {place}, align 4, !llvm.access.group !2") for place in places])
            for pointer in writes:
                self.do(f"store float {value}, ptr {self.at(pointer, each.index)}, align 4, !llvm.access.group !2")

    def parallel(self, count: str, carried: list[tuple[str, str]] | None = None) -> AbstractContextManager["Loop"]:
        """A loop of so many turns, at least one, of which none loads what another one stores: what they do so is of
        access group 2."""
        return self.loop("0", count, "1", carried, note=_PARALLEL)

    def module(self, *activations: Element) -> str:
        """The function `kernel`, after those of activations."""
        declared = self._declarations.union(*(each.declarations for each in activations))
        defined = [line for each in activations for line in each.definition]
        body = [f"  {line}" if not line.endswith(":") else line for line in [*self.lines, "ret void"]]
        return "\n".join(
            [*sorted(declared), *defined, "define void @kernel(ptr noalias %frame) {", *body, "}", METADATA]
        )


class Loop:
    """One that is being written: its index, and the values carried from turn to turn."""

    def __init__(
        self, text: Text, begin: str, end: str, step: str, carried: list[tuple[str, str]], *, may_be_none: bool = False
    ) -> None:
        self._text, self._end, self.step = text, end, step
        before, self._label = text.name()[1:], text.name()[1:]
        self._after = text.name()[1:] if may_be_none else None
        """Where it goes on if there is no turn."""
        text.do(f"br label %{before}")
        text.do(f"{before}:")
        if self._after:
            is_some = text.let(f"icmp ult i64 {begin}, {end}")
            text.do(f"br i1 {is_some}, label %{self._label}, label %{self._after}")
        else:
            text.do(f"br label %{self._label}")
        text.do(f"{self._label}:")
        self.index = text.name()
        self._head = len(text.lines)
        self._before, self._begin, self._carried = before, begin, carried
        self.values = [text.name() for _ in carried]
        self.next: list[str] = []
        self.results: list[str] = []

    def close(self, note: str) -> None:
        text = self._text
        last, after = text.name()[1:], self._after or text.name()[1:]
        text.do(f"br label %{last}")
        text.do(f"{last}:")
        following = text.let(f"add i64 {self.index}, {self.step}")
        more = text.let(f"icmp ult i64 {following}, {self._end}")
        text.do(f"br i1 {more}, label %{self._label}, label %{after}{note}")
        text.do(f"{after}:")
        phis = [f"{self.index} = phi i64 [{self._begin}, %{self._before}], [{following}, %{last}]"]
        for name, (type_, first), value in zip(self.values, self._carried, self.next, strict=True):
            phis.append(f"{name} = phi {type_} [{first}, %{self._before}], [{value}, %{last}]")
        text.lines[self._head : self._head] = phis
        self.results = self.next
        if self._after:
            self.results = [
                text.let(f"phi {type_} [{first}, %{self._before}], [{value}, %{last}]")
                for (type_, first), value in zip(self._carried, self.next, strict=True)
            ]
