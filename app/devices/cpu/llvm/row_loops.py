"""Rows: loops along the output's innermost dimension, or along the last index of a total, run by run (`runs.py`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.contract.constants import DataType
from app.devices.cpu.llvm.divisions import DIVISIONS
from app.devices.cpu.llvm.runs import FRACTION, LARGE, RunAlong, TensorNames, clamped
from app.devices.cpu.llvm.scopes import Key, Scope, Start, Writer
from app.devices.cpu.llvm.types import bytes_of, llvm_type
from app.formula.coordinates import Coordinate, Element, Index, Total
from app.formula.expansions import Ask
from app.formula.uniform import is_uniform
from app.formula.values import BOOL, INT64, Operation, Value

SHORT = 16
"""Iterations that are not worth a run of their own."""

DIVIDED = 64
"""Iterations that are done at once where runs are short, since something is divided."""

LOOKED_UP = 1 << 9
"""The same where there are tables of what is divided."""

GROUP = ", !llvm.access.group !2"
_PARALLEL, _SCALAR, _SPACED, _HALVES = (f", !llvm.loop !{number}" for number in (0, 3, 6, 9))
METADATA = [
    "!0 = distinct !{!0, !1}",
    '!1 = !{!"llvm.loop.parallel_accesses", !2}',
    "!2 = distinct !{}",
    "!3 = distinct !{!3, !4, !5}",
    '!4 = !{!"llvm.loop.vectorize.enable", i1 false}',
    '!5 = !{!"llvm.loop.unroll.disable"}',
    "!6 = distinct !{!6, !1, !7, !8}",
    '!7 = !{!"llvm.loop.vectorize.width", i32 1}',
    '!8 = !{!"llvm.loop.interleave.count", i32 4}',
    "!9 = distinct !{!9, !1, !10, !11}",
    '!10 = !{!"llvm.loop.vectorize.width", i32 8}',
    '!11 = !{!"llvm.loop.interleave.count", i32 1}',
]
"""Says of the innermost loops that what one iteration stores, no other one loads; of those that are short, to leave
them as they are, and of those whose elements lie apart, to take these one by one, which compiles sooner. Those of
FLOAT16 are put into vectors, to be widened together: one by one, each waits for the one before, since the instruction
that loads it keeps the rest of a register."""

Body = Callable[[Sequence[str]], Sequence[str]]
"""Writes what an iteration does, given what is accumulated before, and gives what is then."""


@dataclass(slots=True)
class RowScope(Scope):
    """The inside of a row's loop: the run that it is, if it is one, and the iteration."""

    run: RunAlong | None = None
    is_short: bool = False
    """Of the run, no more is known than `divisions`."""
    iteration: str = ""
    spacing: int = 0
    """How many places apart all elements are that may be packed, or 0 if that is not known."""
    is_packed: bool = False
    """What is stored is."""
    looks_up: bool = False
    """Elements are where tables say."""


@dataclass(slots=True)
class _Way:
    """A loop over one run."""

    label: str
    lines: list[str] = field(default_factory=list)
    last: str = ""
    results: Sequence[str] = ()

    @property
    def entry(self) -> str:
        return f"{self.label}.in"


class Rows(Writer):
    """Writes rows, and elements and uniform values wherever they belong. The frame is a list of 64-bit numbers."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(ask)
        self._slots = 0
        self.tensors: dict[str, TensorNames] = {}
        self.lanes: dict[Total, Sequence[str]] = {}
        """The memory that totals are in which are there for several elements."""
        self.looks_up = ""
        """Whether there are tables of where elements are, if there may be."""
        self._look, self._watch, self._between_looks = self.address(), self.address(), self.number()
        self._counter = self.emit("alloca i64")
        self.store("i64", "0", self._counter)

    # The frame

    def number(self) -> str:
        """The next one of the frame."""
        return self._from_frame("i64")

    def numbers(self, count: int) -> list[str]:
        return [self.number() for _ in range(count)]

    def address(self) -> str:
        """The next number as an address."""
        return self.emit(f"inttoptr i64 {self.number()} to ptr")

    def _from_frame(self, type_: str) -> str:
        with self.within(self.entry):
            place = self.emit(f"getelementptr i64, ptr %frame, i64 {self._slots}")
            self._slots += 1
            return self.emit(f"load {type_}, ptr {place}")

    def parameter(self, value: Value) -> str:
        self._parameters.append(value)
        return self._from_frame(llvm_type(value.type))

    # Values

    def _write(self, node: Value) -> str:
        scope = self.scope
        if isinstance(scope, RowScope) and scope.run:
            known = (self._divided if scope.is_short else self._of_run)(node, scope, scope.run)
            if known is not None:
                return known
        match node:
            case Coordinate():
                return scope.bound[node.axis]
            case Index():
                return scope.bound[node]
            case Element():
                return self._loaded(node, self._address_of(node))
            case Operation() if is_uniform(node):
                return self.parameter(node)
            case Operation(name=name) if name in DIVISIONS:
                return self.emit(DIVISIONS[name](self, node, [self.write(each) for each in node.arguments]))
        return super()._write(node)

    def _of_run(self, node: Value, scope: RowScope, run: RunAlong) -> str | None:
        """What is known of `node` in a run."""
        if node.type == BOOL:
            return run.condition(node)
        if node.type == INT64 and isinstance(node, Operation):
            line = run.line(node)
            if line:
                return self.emit(f"add i64 {line.start}, {self.emit(f'mul i64 {line.slope}, {scope.iteration}')}")
        place = run.place(node)
        if place is None:
            return None
        run.expect(place)
        step = place.step
        if scope.spacing and place.may_pack:
            step = str(scope.spacing * bytes_of(llvm_type(place.element.stored.value.lower())))
        elif place.element.stored is DataType.FLOAT16:
            step = self._computed(step, run.scope)
        offset = self.emit(f"mul i64 {step}, {scope.iteration}")
        return self._loaded(place.element, self.emit(f"getelementptr i8, ptr {place.address}, i64 {offset}"))

    def _computed(self, step: str, scope: Scope) -> str:
        """The same number, of which LLVM does not see that it is one that is chosen or loaded: it would take that for
        1, and make vectors for 1 alone."""
        with self.within(scope):
            hidden = self.emit(f'call i64 asm "", "=r,0"(i64 {step})')
            return self.intrinsic("smin.i64", "i64", hidden, str(LARGE))

    def _divided(self, node: Value, scope: RowScope, run: RunAlong) -> str | None:
        """A quotient or a remainder, if it is known."""
        division = run.divisions.get(node)
        if division is None or not isinstance(node, Operation):
            return None
        moved = self.emit(f"add i64 {division.rest}, {scope.iteration}")
        steps = self.emit(f"lshr i64 {self.emit(f'mul i64 {moved}, {division.inverse}')}, {FRACTION}")
        if node.name == "quotient":
            return self.emit(f"add i64 {division.quotient}, {steps}")
        return self.emit(f"sub i64 {moved}, {self.emit(f'mul i64 {steps}, {division.divisor}')}")

    def _address_of(self, node: Element) -> str:
        address = self.tensors[node.name].address
        for axis in range(len(node.at)):
            address = self.emit(f"getelementptr i8, ptr {address}, i64 {self.offset(node, axis)}")
        return address

    def offset(self, node: Element, axis: int) -> str:
        """By how many bytes an element is moved by its coordinate along a dimension."""
        tensor = self.tensors[node.name]
        place = clamped(self, self.write(node.at[axis]), tensor.sizes[axis])
        return self.emit(f"mul i64 {place}, {tensor.strides[axis]}")

    def _loaded(self, node: Element, address: str) -> str:
        stored = node.stored.value.lower()
        return self.convert(self.emit(f"load {llvm_type(stored)}, ptr {address}, align 1{GROUP}"), stored, node.type)

    # Loops

    def row(
        self, key: Key, begin: str, end: str, node: Value, body: Body, starts: Sequence[Start] = (), packed: str = ""
    ) -> Sequence[str]:
        """A loop over a row, which is not empty, run by run. `body` writes what it does, of which `node` is most.

        It is written up to six times: for runs in which all is `packed` that may be, for those in which elements are at
        every other place, for others, and for what is too short to be a run, by tables or inverses of divisors if it
        can be.
        """
        outer = self.scope
        head, done = self.name("r"), self.name("r")
        position, following = self.name("p"), self.name("p")
        before, after = [[self.name("a") for _ in starts] for _ in range(2)]
        scope = Scope(outer, head[1:], {key: position})
        run = None if self._has_totals(node, key) else RunAlong(self, scope, key, self.tensors)
        size = self.name("n")

        def way(
            using: RunAlong | None,
            spacing: int,
            *,
            stores: bool = False,
            looks_up: bool = False,
            note: str = _PARALLEL,
        ) -> _Way:
            inner = RowScope(scope, "", {}, run=using, is_short=note == _SCALAR, spacing=spacing, is_packed=stores)
            inner.looks_up = looks_up
            return self._way(inner, key, size, body, starts, before, note)

        ways = [way(run, 1, stores=True)]
        flags = [self._flags(run, 1, packed)]
        if run and run.may_skip:
            ways.append(way(run, 2, stores=True))
            flags.append(self._flags(run, 2, packed))
        if any(flags):
            ways.append(way(run, 0, note=_HALVES if run and run.reads_halves else _SPACED))
        with self.within(scope):
            left = self.emit(f"sub i64 {end}, {position}")
            most = self.intrinsic("umin.i64", "i64", left, self._between_looks)
            if run and run.is_bounded:
                length = run.length(most)
                is_run = self.emit(f"icmp uge i64 {length}, {SHORT}")
                holds = [each.holds for each in run.divisions.values()]
                most_short = str(DIVIDED if holds else SHORT)
                rest = [(way(run, 0, note=_SCALAR), holds)] if holds else []
                if self.looks_up and packed:
                    looked_up = self.emit(f"and i1 {self.looks_up}, {packed}")
                    most_short = self.emit(f"select i1 {looked_up}, i64 {LOOKED_UP}, i64 {most_short}")
                    rest.insert(0, (way(None, 0, stores=True, looks_up=True), [looked_up]))
                rest.append((way(None, 0, note=_SCALAR), []))
                short = self.intrinsic("umin.i64", "i64", left, most_short)
                self.emit_as(size, f"select i1 {is_run}, i64 {length}, i64 {short}")
                runs, rests = self.name("b"), self.name("b")
                scope.lines += [f"br i1 {is_run}, label {runs}, label {rests}", f"{rests[1:]}:"]
                for each, needed in rest:
                    self._choose(each, needed)
                    ways.append(each)
                scope.lines.append(f"br label {ways[-1].entry}")
                self.begin(runs[1:])
            else:
                self.emit_as(size, f"add i64 {most}, 0")
            for each, needed in zip(ways, flags, strict=False):
                self._choose(each, needed)
            last = ways[len(flags)] if any(flags) else ways[0]
            scope.lines.append(f"br label {last.entry}")
            self._join(ways, starts, after)
            self.emit_as(following, f"add i64 {position}, {size}")
            self.count(size)
            more = self.emit(f"icmp slt i64 {following}, {end}")
            scope.lines.append(f"br i1 {more}, label {head}, label {done}")
        first = outer.block
        outer.lines += [f"br label {head}", f"{head[1:]}:"]
        self._phi(position, "i64", {first: begin, scope.block: following})
        for name, (type_, start), result in zip(before, starts, after, strict=True):
            self._phi(name, type_, {first: start, scope.block: result})
        outer.lines += scope.lines
        self.begin(done[1:])
        return after

    def _way(
        self,
        scope: RowScope,
        key: Key,
        size: str,
        body: Body,
        starts: Sequence[Start],
        before: Sequence[str],
        note: str,
    ) -> _Way:
        """A loop over `size` elements of a row, from where the scope around it is."""
        made = _Way(self.name("w"))
        assert scope.outer
        scope.block, scope.iteration, at = made.label[1:], self.name("t"), self.name("x")
        scope.bound = {key: at}
        accumulated = [self.name("a") for _ in starts]
        with self.within(scope):
            self.emit_as(at, f"add nsw i64 {scope.outer.bound[key]}, {scope.iteration}")
            made.results = body(accumulated)
            following = self.emit(f"add nuw nsw i64 {scope.iteration}, 1")
            more = self.emit(f"icmp ult i64 {following}, {size}")
            scope.lines.append(f"br i1 {more}, label {made.label}, label {made.label}.out{note}")
        made.last = f"{made.label[1:]}.out"
        inside, scope.lines = scope.lines, [f"{made.entry[1:]}:", f"br label {made.label}", f"{made.label[1:]}:"]
        with self.within(scope):
            self._phi(scope.iteration, "i64", {made.entry[1:]: "0", scope.block: following})
            for name, (type_, _), start, result in zip(accumulated, starts, before, made.results, strict=True):
                self._phi(name, type_, {made.entry[1:]: start, scope.block: result})
        made.lines = [*scope.lines, *inside, f"{made.last}:"]
        return made

    def _join(self, ways: Sequence[_Way], starts: Sequence[Start], after: Sequence[str]) -> None:
        joined = self.name("j")
        for each in ways:
            self.scope.lines += [*each.lines, f"br label {joined}"]
        self.begin(joined[1:])
        for place, (name, (type_, _)) in enumerate(zip(after, starts, strict=True)):
            self._phi(name, type_, {each.last: each.results[place] for each in ways})

    def _phi(self, name: str, type_: str, came: dict[str, str]) -> None:
        values = ", ".join(f"[{value}, %{block}]" for block, value in came.items())
        self.emit_as(name, f"phi {type_} {values}")

    @staticmethod
    def _flags(run: RunAlong | None, spacing: int, packed: str) -> list[str]:
        """What must hold for elements that are so many places apart."""
        return [*([packed] if packed else []), *(run.flags(spacing) if run else [])]

    def _choose(self, way: _Way, needed: Sequence[str]) -> None:
        """That way, if all holds that is `needed`."""
        if not needed:
            return
        holds = needed[0]
        for each in needed[1:]:
            holds = self.emit(f"and i1 {holds}, {each}")
        other = self.name("b")
        self.scope.lines.append(f"br i1 {holds}, label {way.entry}, label {other}")
        self.begin(other[1:])

    def count(self, iterations: str = "1") -> None:
        """After many iterations, ask whether to go on."""
        asks, on = self.name("q"), self.name("q")
        count = self.emit(f"add i64 {self.emit(f'load i64, ptr {self._counter}')}, {iterations}")
        self.store("i64", count, self._counter)
        many = self.emit(f"icmp uge i64 {count}, {self._between_looks}")
        self.scope.lines += [f"br i1 {many}, label {asks}, label {on}", f"{asks[1:]}:"]
        self.store("i64", "0", self._counter)
        stop = self.emit(f"icmp ne i32 {self.emit(f'call i32 {self._look}(ptr {self._watch})')}, 0")
        self.scope.lines.append(f"br i1 {stop}, label %end, label {on}")
        self.begin(on[1:])

    def _has_totals(self, node: Value, key: Key) -> bool:
        """Whether there are loops in the row's."""
        seen, left = {node}, [node]
        while left:
            each = left.pop()
            if key in self.free(each) and each not in self.lanes:
                if isinstance(each, Total):
                    return True
                left += set(each.operands()) - seen
                seen.update(left)
        return False
