"""Scans: of sequences each element with all before it, one after the other, several sequences at a time."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

from app.devices.cpu.llvm.halves import rounding
from app.devices.cpu.llvm.text import Loop, Text

FIELDS = ("elements", "results", "first", "last", "begin", "end", "count", "size", "step")
"""What the frame has, 8 bytes each: the addresses of the first element to be scanned and of the first result, then
numbers. Sequences are those from the `first` block to before the `last`, blocks `size` elements apart, and in each
those that lie from the element `begin` to before the `end`. So many elements are scanned, the `count`, each a `step`
from the one before."""

ROWS = 4
"""Sequences at a time that lie one behind the other: as many as hide what an addition takes, and as few as the cache
next to the processor keeps lines of, wherever they begin."""

STRIP = 1 << 9
"""The same of sequences that lie side by side, of which what is accumulated stays in that cache."""


@lru_cache(32)
def source(type_: str, operation: str, *, by_rows: bool, is_exclusive: bool) -> str:
    """The module whose function `kernel` takes a frame. Elements are of LLVM's `type_`: floats are accumulated as
    doubles, "add" and "mul" are the operations. Sequences lie one behind the other, `by_rows`, or side by side. Where
    the scan is exclusive, the first result is 0 or 1, and the count is of the others."""
    scan = _Scan(type_, operation, is_exclusive)
    if by_rows:
        scan.rows()
    else:
        scan.columns()
    return scan.text.module(*[rounding(_NARROW)] if type_ == "half" else [])


_NARROW = "narrow"
"""What rounds a double to a half, for which processors have no instruction."""

_GROUP = ", align 1, !llvm.access.group !2"


class _Scan:
    def __init__(self, type_: str, operation: str, is_exclusive: bool) -> None:
        self.text = Text(0)
        self._frame = self.text.frame(FIELDS, 2)
        self._type = type_
        self._is_float = type_ in ("half", "float", "double")
        self._wide = "double" if self._is_float else type_
        self._operation = f"{'f' if self._is_float else ''}{operation}"
        if self._is_float:
            # -0 and 1 leave whatever is added or multiplied as it is.
            self._start, self._nothing = ("-0.0", "0.0") if operation == "add" else ("1.0", "1.0")
        else:
            self._start = self._nothing = "0" if operation == "add" else "1"
        self._is_exclusive = is_exclusive
        self._memory: Sequence[str] = ()
        """A strip of each of the sequences that lie one behind the other, where these are rounded together."""

    def rows(self) -> None:
        """Each block is one sequence."""
        text, frame = self.text, self._frame
        if self._type == "half":
            self._memory = [text.let(f"alloca {self._wide}, i64 {STRIP}, align 64") for _ in range(ROWS)]
        count = text.sub(frame["last"], frame["first"])
        rest = text.sub(frame["last"], text.let(f"urem i64 {count}, {ROWS}"))
        for number, begin, end in ((ROWS, frame["first"], rest), (1, rest, frame["last"])):
            with (
                text.when(text.let(f"icmp ult i64 {begin}, {end}")),
                text.loop(begin, end, str(number)) as row,
            ):
                self._some(row.index, number)

    def _some(self, row: str, number: int) -> None:
        """So many sequences."""
        text, frame = self.text, self._frame
        starts = [text.mul(text.add(row, str(place)), frame["size"]) for place in range(number)]
        read = [text.at(frame["elements"], each, self._type) for each in starts]
        written = [text.at(frame["results"], each, self._type) for each in starts]
        if self._is_exclusive:
            written = [self._after_nothing(each) for each in written]
        carried = [(self._wide, self._start)] * number
        if self._type == "half":
            with self._some_turns(), text.loop("0", frame["count"], str(STRIP), carried) as piece:
                self._piece(piece, read, written)
            return
        with self._some_turns(), text.loop("0", frame["count"], "1", carried) as turn:
            offset = text.mul(turn.index, frame["step"])
            loaded = [text.let(f"load {self._type}, ptr {text.at(each, offset, self._type)}, align 1") for each in read]
            turn.next = [self._next(before, each) for before, each in zip(turn.values, loaded, strict=True)]
            self._store(turn.next, [text.at(each, offset, self._type) for each in written])

    def _piece(self, piece: Loop, read: Sequence[str], written: Sequence[str]) -> None:
        """A strip of each sequence of halves: to round doubles to these takes long, and vectors of what was accumulated
        are rounded sooner than each when it is."""
        text, frame = self.text, self._frame
        size = text.least(str(STRIP), text.sub(frame["count"], piece.index))

        def at(pointer: str, index: str) -> str:
            return text.at(pointer, text.mul(text.add(piece.index, index), frame["step"]), self._type)

        with text.loop("0", size, "1", [(self._wide, each) for each in piece.values]) as turn:
            for before, row, memory in zip(turn.values, read, self._memory, strict=False):
                loaded = text.let(f"load {self._type}, ptr {at(row, turn.index)}, align 1")
                turn.next.append(self._next(before, loaded))
                text.do(f"store {self._wide} {turn.next[-1]}, ptr {text.at(memory, turn.index, self._wide)}, align 8")
        piece.next = turn.results
        for memory, row in zip(self._memory, written, strict=False):
            with text.parallel(size) as each:
                value = text.let(f"load {self._wide}, ptr {text.at(memory, each.index, self._wide)}{_GROUP}")
                self._keep(self._narrow(value), self._type, at(row, each.index))

    def columns(self) -> None:
        """Of each block there are some sequences, side by side."""
        text, frame = self.text, self._frame
        memory = text.let(f"alloca {self._wide}, i64 {STRIP}, align 64")
        with (
            text.loop(frame["first"], frame["last"], "1") as block,
            text.loop(frame["begin"], frame["end"], str(STRIP)) as strip,
        ):
            size = text.least(str(STRIP), text.sub(frame["end"], strip.index))
            offset = text.add(text.mul(block.index, frame["size"]), strip.index)
            read, written = (text.at(frame[name], offset, self._type) for name in ("elements", "results"))
            with text.parallel(size) as each:
                self._keep(self._start, self._wide, text.at(memory, each.index, self._wide))
                if self._is_exclusive:
                    self._keep(self._nothing, self._type, text.at(written, each.index, self._type))
            if self._is_exclusive:
                written = text.at(written, frame["step"], self._type)
            with self._some_turns(), text.loop("0", frame["count"], "1") as turn:
                offset = text.mul(turn.index, frame["step"])
                row, made = (text.at(each, offset, self._type) for each in (read, written))
                with text.parallel(size) as each:
                    place = text.at(memory, each.index, self._wide)
                    loaded = text.let(f"load {self._type}, ptr {text.at(row, each.index, self._type)}{_GROUP}")
                    result = self._next(text.let(f"load {self._wide}, ptr {place}{_GROUP}"), loaded)
                    self._keep(result, self._wide, place)
                    self._keep(self._narrow(result), self._type, text.at(made, each.index, self._type))

    def _some_turns(self) -> AbstractContextManager[None]:
        """On the condition that anything is left to be scanned, which always is where the first result is no given."""
        if not self._is_exclusive:
            return nullcontext()
        return self.text.when(self.text.let(f"icmp ne i64 {self._frame['count']}, 0"))

    def _after_nothing(self, written: str) -> str:
        """Where the second result goes, after the first one."""
        self.text.do(f"store {self._type} {self._nothing}, ptr {written}, align 1")
        return self.text.at(written, self._frame["step"], self._type)

    def _next(self, before: str, element: str) -> str:
        wide = element
        if self._wide != self._type:
            wide = self.text.let(f"fpext {self._type} {element} to {self._wide}")
        return self.text.let(f"{self._operation} {self._wide} {before}, {wide}")

    def _narrow(self, value: str) -> str:
        if self._type == "half":
            return self.text.let(f"call half @{_NARROW}(double {value})")
        return self.text.let(f"fptrunc double {value} to float") if self._type == "float" else value

    def _store(self, values: Sequence[str], places: Sequence[str]) -> None:
        for value, place in zip(values, places, strict=True):
            self.text.do(f"store {self._type} {self._narrow(value)}, ptr {place}, align 1")

    def _keep(self, value: str, type_: str, place: str) -> None:
        self.text.do(f"store {type_} {value}, ptr {place}{_GROUP}")
