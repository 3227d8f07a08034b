"""Totals: loops over their indices, for one element of the output or for a strip of them at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.devices.cpu.llvm.row_loops import GROUP, Body, Rows, RowScope
from app.devices.cpu.llvm.scopes import Key, Scope
from app.devices.cpu.llvm.types import bytes_of, literal, llvm_type
from app.formula.coordinates import Index, Total, accumulated_type
from app.formula.expansions import Ask
from app.formula.values import INT64, Operation, Value, integer_range, is_float, parts, replaced

STRIP = 1 << 10
"""Elements of the output whose totals are accumulated at once."""

AT_ONCE = 4
"""Terms that are added to each total of a strip at once, for which it is loaded and stored once."""

PIECE = 1 << 10
"""Elements among which a position is looked for at once."""

_NOWHERE, _NOWHERE_NEAR = (1 << 63) - 1, (1 << 31) - 1
"""After all positions, and after those in a piece."""


_StripBody = Callable[[Sequence[Total]], Sequence[str]]
"""Writes what the totals of a strip become by some terms: the total itself, with each its last index."""


@dataclass(frozen=True, slots=True)
class Fold:
    """How something is accumulated: in `type` from `start`; `step` gives what is then, of that and of a value, and
    `result` what it is in the end."""

    type: str
    start: str
    step: Callable[[str, str], str]
    result: Callable[[str], str] = lambda accumulated: accumulated


class Totals(Rows):
    """Writes totals wherever they belong, over rows of the output along its `innermost` dimension."""

    def __init__(self, ask: Ask, innermost: int) -> None:
        super().__init__(ask)
        self.innermost = innermost
        self.strip = "0"
        """The coordinate at which the present strip begins."""
        self._places: dict[Total, Value] = {}

    def value_of(self, key: Key) -> str:
        """The value that a key has here."""
        scope: Scope | None = self.scope
        while scope and key not in scope.bound:
            scope = scope.outer
        assert scope, "it is bound by a loop around this"
        return scope.bound[key]

    def scratch(self, type_: str, count: int = STRIP) -> str:
        """Memory for a strip, or so many elements."""
        with self.within(self.entry):
            return self.emit(f"alloca {type_}, i64 {count}, align 64")

    def _write(self, node: Value) -> str:
        if not isinstance(node, Total):
            return super()._write(node)
        if node in self.lanes:
            fold = self.folds(node)[-1]
            lane = self._lane(self.lanes[node][-1], fold.type)
            result = fold.result(self.emit(f"load {fold.type}, ptr {lane}, align 1{GROUP}"))
        else:
            result = self._total(node)
        return self._finished(node, result)

    def _total(self, node: Total) -> str:
        """All of it, where the scope is now."""
        value, *places = self.folds(node)

        def accumulate(start: str) -> str:
            (result,) = self._row_of(node, lambda before: [value.step(before[0], self._folded(node, ()))], value, start)
            return result

        result = value.result(self._over(node, 0, accumulate, value))
        if not places:
            return result
        (where,) = places
        return self._over(node, 0, lambda start: self._found(node, result, where, start), where)

    def _over(self, node: Total, place: int, accumulate: Callable[[str], str], fold: Fold, start: str = "") -> str:
        """Loops over the indices of `node` from that place on; over the last one goes `accumulate`, from what it is
        given."""
        index, start = node.indices[place], start or fold.start

        def around(at: str, before: Sequence[str]) -> Sequence[str]:
            result = self._over(node, place + 1, accumulate, fold, before[0])
            self.count()  # which may be all that happens, if there are none of the other indices
            return [result]

        if place == len(node.indices) - 1:
            return accumulate(start)
        (result,) = self.loop("0", self.write(node.counts[place]), lambda at: {index: at}, around, [(fold.type, start)])
        return result

    def _found(self, node: Total, value: str, fold: Fold, start: str) -> str:
        """Where along the last index the `value` is: piece by piece from the end where it is looked for, up to the
        first one that has it. Places in a piece have 32 bits, of which vectors hold more."""
        index, count, step = node.indices[-1], self.write(node.counts[-1]), self.name("s")
        is_first = node.name.startswith("first")
        nowhere = str(_NOWHERE_NEAR if is_first else -1)
        near = Fold("i32", nowhere, lambda a, b: self.intrinsic(f"{'smin' if is_first else 'smax'}.i32", "i32", a, b))

        def piece(at: str, before: Sequence[str]) -> Sequence[str]:
            if is_first:
                begin, end = at, self.intrinsic("smin.i64", "i64", count, self.emit(f"add i64 {at}, {PIECE}"))
            else:
                end = self.emit(f"sub i64 {count}, {at}")
                begin = self.intrinsic("smax.i64", "i64", "0", self.emit(f"sub i64 {end}, {PIECE}"))

            def body(known: Sequence[str]) -> Sequence[str]:
                scope = self.scope
                assert isinstance(scope, RowScope)
                assert scope.outer, "what a row is in"
                first = self.emit(f"trunc i64 {self.emit(f'sub i64 {scope.outer.bound[index]}, {begin}')} to i32")
                place = self.emit(f"add i32 {first}, {self.emit(f'trunc i64 {scope.iteration} to i32')}")
                return [
                    near.step(known[0], self.emit(f"select i1 {self._is(node, value)}, i32 {place}, i32 {nowhere}"))
                ]

            (found,) = self.row(index, begin, end, node.argument, body, [(near.type, near.start)])
            none = self.emit(f"icmp eq i32 {found}, {nowhere}")
            place = self.emit(f"add i64 {begin}, {self.emit(f'zext i32 {found} to i64')}")
            if len(node.indices) > 1:
                place = self.emit(f"add i64 {place}, {self.write(self._before(node))}")
            self.emit_as(step, f"select i1 {none}, i64 {PIECE}, i64 {count}")
            return [fold.step(before[0], self.emit(f"select i1 {none}, i64 {fold.start}, i64 {place}"))]

        (result,) = self.loop("0", count, lambda at: {}, piece, [(fold.type, start)], step)
        return result

    def _row_of(self, node: Total, body: Body, fold: Fold, start: str) -> Sequence[str]:
        """All along the last index."""
        index, count, starts = node.indices[-1], self.write(node.counts[-1]), [(fold.type, start)]
        first, inside, done = self.scope, self.name("g"), self.name("g")
        inner = Scope(first, inside[1:], {})
        with self.within(inner):
            results = self.row(index, "0", count, node.argument, body, starts)
        some = self.emit(f"icmp sgt i64 {count}, 0")
        before = first.block
        first.lines += [f"br i1 {some}, label {inside}, label {done}", f"{inside[1:]}:", *inner.lines]
        first.lines.append(f"br label {done}")
        self.begin(done[1:])
        return [
            self.emit(f"phi {type_} [{start}, %{before}], [{result}, %{inner.block}]")
            for (type_, start), result in zip(starts, results, strict=True)
        ]

    def total_of_strip(self, node: Total, memory: Sequence[str], begin: str, end: str, size: str) -> None:
        """That of each element of a strip, in `memory`."""

        def over(place: int, body: _StripBody) -> Sequence[str]:
            if place == len(node.indices):
                return self.row(self.innermost, begin, end, node.argument, lambda _: body([node]))
            index, count = node.indices[place], self.write(node.counts[place])

            def around(at: str, _: Sequence[str]) -> Sequence[str]:
                over(place + 1, body)
                self.count()
                return ()

            def several(at: str, _: Sequence[str]) -> Sequence[str]:
                others = [Index(INT64) for _ in range(1, AT_ONCE)]
                places = [self.emit(f"add i64 {at}, {number}") for number in range(1, AT_ONCE)]
                self.scope.bound = {index: at, **dict(zip(others, places, strict=True))}
                terms = [node, *(_with_last(node, other) for other in others)]
                self.row(self.innermost, begin, end, node.argument, lambda _: body(terms))
                self.count()
                return ()

            first = "0"
            if place == len(node.indices) - 1 and _is_read(node.argument):
                whole = self.emit(f"and i64 {count}, {-AT_ONCE}")
                first = self.intrinsic("smax.i64", "i64", whole, "0")
                self.loop("0", first, lambda at: {index: at}, several, step=str(AT_ONCE))
            return self.loop(first, count, lambda at: {index: at}, around)

        for number, fold in enumerate(self.folds(node)):

            def start(index: str, _: Sequence[str], number: int = number, fold: Fold = fold) -> Sequence[str]:
                address = self.emit(f"getelementptr {fold.type}, ptr {memory[number]}, i64 {index}")
                self.store(fold.type, fold.start, address)
                return ()

            def body(terms: Sequence[Total], number: int = number, fold: Fold = fold) -> Sequence[str]:
                *before, made = [
                    self.emit(f"load {each.type}, ptr {self._lane(place, each.type)}, align 1{GROUP}")
                    for each, place in zip(self.folds(node)[: number + 1], memory, strict=False)
                ]
                known = [each.result(value) for each, value in zip(self.folds(node), before, strict=False)]
                for term in terms:
                    made = fold.step(made, self._folded(term, known))
                self.store(fold.type, made, self._lane(memory[number], fold.type), GROUP)
                return ()

            self.loop("0", size, lambda index: {}, start)
            over(0, body)

    def _lane(self, memory: str, type_: str) -> str:
        """Where something is for the present element of the strip."""
        index = self.emit(f"sub nsw i64 {self.value_of(self.innermost)}, {self.strip}")
        return self.emit(f"getelementptr {type_}, ptr {memory}, i64 {index}")

    def folds(self, node: Total) -> list[Fold]:
        """What is accumulated: of a position, first the value and then where it is."""
        argument, exact = node.argument.type, accumulated_type(node)
        type_ = llvm_type(exact)
        match node.name:
            case "sum" | "product" as name:
                operation = "add" if name == "sum" else "mul"
                if is_float(exact):
                    operation = f"f{operation} reassoc"
                start = literal(exact, 0 if name == "sum" else 1)
                return [Fold(type_, start, lambda a, b: self.emit(f"{operation} {type_} {a}, {b}"))]
            case "maximum" | "minimum" as name:
                return [self._extreme(name.removesuffix("imum"), argument)]
            case "first_maximum" | "first_minimum":
                where = Fold("i64", str(_NOWHERE), lambda a, b: self.intrinsic("smin.i64", "i64", a, b))
            case "last_maximum" | "last_minimum" as name:
                where = Fold("i64", "-1", lambda a, b: self.intrinsic("smax.i64", "i64", a, b))
        return [self._extreme(node.name[-7:-4], argument), where]

    def _extreme(self, name: str, type_: str) -> Fold:
        """Of "max" or "min"."""
        kind = llvm_type(type_)
        if is_float(type_):
            return self._extreme_of_floats(name, kind)
        full = f"{'s' if type_.startswith('int') else 'u'}{name}.{kind}"
        start = str(integer_range(type_)[name == "min"])
        return Fold(kind, start, lambda a, b: self.intrinsic(full, kind, a, b))

    def _extreme_of_floats(self, name: str, kind: str) -> Fold:
        """By unsigned integers in the order of the floats, with all NaNs beyond the infinity that is looked for. LLVM's
        `maximum`, which heeds NaN and the sign of 0, is six instructions that wait for each other."""
        bits = 8 * bytes_of(kind)
        whole, negative = f"i{bits}", (1 << bits - 1) - 1
        nans = (0xFF << 23) + 1 if bits == 32 else (0x7FF << 52) + 1
        there, back = ("add", "sub") if name == "max" else ("sub", "add")

        def turned(number: str) -> str:
            """Signed integers in the order of the floats of these bits, or back."""
            sign = self.emit(f"and {whole} {self.emit(f'ashr {whole} {number}, {bits - 1}')}, {negative}")
            return self.emit(f"xor {whole} {number}, {sign}")

        def step(before: str, value: str) -> str:
            number = turned(self.emit(f"bitcast {kind} {value} to {whole}"))
            return self.intrinsic(f"u{name}.{whole}", whole, before, self.emit(f"{there} {whole} {number}, {nans}"))

        def result(number: str) -> str:
            return self.emit(f"bitcast {whole} {turned(self.emit(f'{back} {whole} {number}, {nans}'))} to {kind}")

        return Fold(whole, "0" if name == "max" else "-1", step, result)

    def _folded(self, node: Total, known: Sequence[str]) -> str:
        """What comes to what is accumulated: the argument, or once the extreme value is known, where that is found."""
        if not known:
            argument, type_ = self.write(node.argument), node.argument.type
            is_exact = node.name in ("sum", "product")
            return self.convert(argument, type_, accumulated_type(node)) if is_exact else argument
        nowhere = _NOWHERE if node.name.startswith("first") else -1
        return self.emit(f"select i1 {self._is(node, known[0])}, i64 {self.write(self._place(node))}, i64 {nowhere}")

    def _is(self, node: Total, value: str) -> str:
        """Whether the argument of a position is the extreme `value`."""
        argument, kind = self.write(node.argument), llvm_type(node.argument.type)
        if not is_float(node.argument.type):
            return self.emit(f"icmp eq {kind} {argument}, {value}")
        found = self.emit(f"fcmp ueq {kind} {argument}, {value}")
        nan = self.emit(f"fcmp uno {kind} {argument}, {argument}")
        number = self.emit(f"fcmp ord {kind} {value}, {value}")
        return self.emit(f"select i1 {number}, i1 {found}, i1 {nan}")

    def _place(self, node: Total) -> Value:
        """Which combination of its indices it is."""
        if node not in self._places:
            place: Value = node.indices[-1]
            if len(node.indices) > 1:
                place = Operation(INT64, "add", (self._before(node), place))
            self._places[node] = place
        return self._places[node]

    def _before(self, node: Total) -> Value:
        """How many combinations there are before those that differ in the last index."""
        place: Value = node.indices[0]
        for index, count in list(zip(node.indices, node.counts, strict=True))[1:-1]:
            place = Operation(INT64, "add", (Operation(INT64, "multiply", (place, count)), index))
        return Operation(INT64, "multiply", (place, node.counts[-1]))

    def _finished(self, node: Total, result: str) -> str:
        """The total, of what was accumulated."""
        if not node.name.startswith(("first", "last")):
            return self.convert(result, accumulated_type(node), node.type)
        if node.name.startswith("first"):
            nothing = self.emit(f"icmp eq i64 {result}, {_NOWHERE}")
            return self.emit(f"select i1 {nothing}, i64 0, i64 {result}")
        return self.intrinsic("smax.i64", "i64", result, "0")


def _is_read(value: Value) -> bool:
    """Whether it takes hardly longer to compute than to read and to write it."""
    computed = [each for each in parts(value) if each.type != INT64]
    return sum(isinstance(each, Operation) for each in computed) <= 1 and not any(
        isinstance(each, Total) for each in computed
    )


def _with_last(node: Total, index: Index) -> Total:
    """The same with another last index."""
    *outer, last = node.indices
    return replace(node, indices=(*outer, index), argument=replaced(node.argument, {last: index}))
