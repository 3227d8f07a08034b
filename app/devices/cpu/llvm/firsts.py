"""The first elements of an order in sequences. Those found so far are kept in order, and most elements are only
compared with the last one of them; those that come before it are put together until there are as many as are kept, or
all that may come, and then sorted and merged with these."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from app.devices.cpu.llvm import sorting
from app.devices.cpu.llvm.text import ROLLED, Text
from app.devices.cpu.llvm.types import bytes_of

LANES = (32, 8, 1)
"""Elements that are compared at once, of one sequence or of so many side by side. There are functions for each."""

LEAST = 4
"""Elements that are put together at least: to sort one takes as long as that."""

FIELDS = (
    *("elements", "values", "indices", "memory", "look", "watch"),
    *("first", "after", "tiles", "size", "inner", "count", "room", "reach"),
)
"""What the frame has, 8 bytes each: addresses; of tiles of sequences the first one and the one after the last, and how
many lie side by side; how many elements a sequence has, how far they are apart, and how many are wanted; how many are
put together before they are sorted, and how many entries of memory a sequence has."""

_ADDRESSES = 6


def reach(type_: str, count: int, room: int) -> int:
    """Entries of memory that a sequence has, of which `count` are kept and so many put together, each time with one
    behind them."""
    return max(sorting.whole(type_, count), count + sorting.whole(type_, room)) + 1


def memory_bytes(type_: str, together: int, count: int, room: int) -> int:
    """Of a call's own for so many sequences, and to sort and merge those of one. A run is read as if it was a whole
    one."""
    each = reach(type_, count, room)
    shared = max(sorting.whole(type_, count), sorting.whole(type_, room) + count, each) + 1 + sorting.run(type_)
    return sorting.entry_bytes(type_) * (together * each + shared)


@lru_cache(32)
def source(type_: str, index: str, lanes: int, *, by_rows: bool, is_unsigned: bool, is_decreasing: bool) -> str:
    """The module whose function `kernel` takes a frame.

    Elements are of LLVM's `type_`, integers or floats of at most 32 bits, indices of type `index`. Sequences that lie
    one behind the other, `by_rows`, have at least so many elements, `lanes`; else as many lie side by side, as a tile.
    """
    made = _Firsts(type_, index, lanes, by_rows, is_unsigned, is_decreasing)
    return f"{sorting.functions(type_, FIELDS)}\n{made.text.module()}"


class _Firsts:
    def __init__(
        self, type_: str, index: str, lanes: int, by_rows: bool, is_unsigned: bool, is_decreasing: bool
    ) -> None:
        self.text = text = Text(lanes)
        self._type, self._index, self._by_rows = type_, index, by_rows
        self._is_unsigned, self._is_decreasing = is_unsigned, is_decreasing
        self._key, self._entry = sorting.key_type(type_), f"i{8 * sorting.entry_bytes(type_)}"
        self._together = together = "1" if by_rows else str(lanes)
        self._frame = frame = text.frame(FIELDS, _ADDRESSES)
        self._worsts, self._news = (text.let(f"alloca [{together} x {each}], align 64") for each in (self._key, "i64"))
        block = text.let(f"alloca [{lanes} x {self._key}], align 64")
        size, inner, count = frame["size"], frame["inner"], frame["count"]
        self._shared = text.at(frame["memory"], text.mul(frame["reach"], together), self._entry)
        with text.loop(frame["first"], frame["after"], "1") as tile:
            outer, inside = (text.let(f"u{name} i64 {tile.index}, {frame['tiles']}") for name in ("div", "rem"))
            column = text.least(text.mul(inside, together), text.sub(inner, together))
            row = text.at(frame["elements"], text.add(text.mul(outer, text.mul(size, inner)), column), type_)
            self._begin(row)
            step = str(lanes) if by_rows else "1"
            with text.loop(count, size, step, may_be_none=True) as place:
                begin = text.least(place.index, text.sub(size, step)) if by_rows else place.index
                keys, bits = self._better(text.at(row, text.mul(begin, inner), type_), place.index, begin)
                with text.when(text.let(f"icmp ne i{lanes} {bits}, 0")):
                    text.do(f"store {_of(self._key, lanes)} {keys}, ptr {block}")
                    with self._each_bit(bits) as lane:
                        sequence, element = ("0", text.add(begin, lane)) if by_rows else (lane, place.index)
                        self._put(self._load(self._key, text.at(block, lane, self._key)), sequence, element)
            with text.loop("0", together, "1") as each:
                new = self._load("i64", text.at(self._news, each.index, "i64"))
                with text.when(text.let(f"icmp ne i64 {new}, 0")):
                    self._keep("new", each.index)
            self._end(row, text.add(text.mul(outer, text.mul(count, inner)), column))

    def _begin(self, row: str) -> None:
        """The first elements of each sequence, in order."""
        text, frame, type_ = self.text, self._frame, self._type
        with text.loop("0", frame["count"], "1") as place, text.loop("0", self._together, "1") as each:
            x = text.at(text.at(row, text.mul(place.index, frame["inner"]), type_), each.index, type_)
            key = self._key_of(text.let(f"load {type_}, ptr {x}, align 1"), 1)
            there = text.at(self._kept(each.index), place.index, self._entry)
            text.do(f"store {self._entry} {self._entry_of(key, place.index)}, ptr {there}")
        with text.loop("0", self._together, "1") as each:
            self._keep("first", each.index)
            text.do(f"store i64 0, ptr {text.at(self._news, each.index, 'i64')}")

    def _better(self, block: str, place: str, begin: str) -> tuple[str, str]:
        """The keys of a block, and which of them come before the last that is kept. The last block of a row begins
        where it still is a whole one: those that were in the one before are left out."""
        text, lanes = self.text, self.text.width
        keys = self._key_of(text.let(f"load {_of(self._type, lanes)}, ptr {block}, align 1"), lanes)
        if self._by_rows:
            worst = text.spread(self._load(self._key, self._worsts), self._key)
        else:
            worst = self._load(_of(self._key, lanes), self._worsts)
        better = text.let(f"icmp slt {_of(self._key, lanes)} {keys}, {worst}")
        bits = text.let(f"bitcast {_of('i1', lanes)} {better} to i{lanes}")
        if self._by_rows:
            again = text.let(f"trunc i64 {text.sub(place, begin)} to i{lanes}")
            bits = text.let(f"and i{lanes} {bits}, {text.let(f'shl i{lanes} -1, {again}')}")
        return keys, bits

    def _put(self, key: str, sequence: str, number: str) -> None:
        """One that may come before the last of its sequence, together with others, which are kept when there are as
        many as may be."""
        text, frame = self.text, self._frame
        worst = self._load(self._key, text.at(self._worsts, sequence, self._key))
        with text.when(text.let(f"icmp slt {self._key} {key}, {worst}")):
            new_at = text.at(self._news, sequence, "i64")
            new = self._load("i64", new_at)
            there = text.at(self._kept(sequence), text.add(frame["count"], new), self._entry)
            text.do(f"store {self._entry} {self._entry_of(key, number)}, ptr {there}")
            now = text.add(new, "1")
            text.do(f"store i64 {now}, ptr {new_at}")
            with text.when(text.let(f"icmp eq i64 {now}, {frame['room']}")):
                self._keep("new", sequence)

    def _end(self, row: str, made: str) -> None:
        """What is kept of each sequence, as elements and indices."""
        text, frame, item = self.text, self._frame, f"i{8 * bytes_of(self._type)}"
        low = (1 << 8 * bytes_of(self._key)) - 1
        with text.loop("0", frame["count"], "1") as place, text.loop("0", self._together, "1") as each:
            own = self._load(self._entry, text.at(self._kept(each.index), place.index, self._entry))
            number = text.let(sorting.resized(text.let(f"and {self._entry} {own}, {low}"), self._entry, "i64"))
            given = text.at(row, text.add(text.mul(number, frame["inner"]), each.index), item)
            at = text.add(text.add(made, text.mul(place.index, frame["inner"])), each.index)
            value = text.let(f"load {item}, ptr {given}, align 1")
            text.do(f"store {item} {value}, ptr {text.at(frame['values'], at, item)}, align 1")
            found = text.let(sorting.resized(number, "i64", self._index))
            text.do(f"store {self._index} {found}, ptr {text.at(frame['indices'], at, self._index)}, align 1")

    def _keep(self, which: str, sequence: str) -> None:
        """Those that a sequence begins with in order, or as many of them and of its new ones."""
        text = self.text
        given = ["%frame", self._kept(sequence), self._shared, text.at(self._worsts, sequence, self._key)]
        if which == "new":
            given.append(text.at(self._news, sequence, "i64"))
        text.do(f"call void @keep_{which}({', '.join(f'ptr {each}' for each in given)})")

    def _kept(self, sequence: str) -> str:
        """Where the entries of a sequence are."""
        return self.text.at(self._frame["memory"], self.text.mul(sequence, self._frame["reach"]), self._entry)

    def _load(self, type_: str, place: str) -> str:
        return self.text.let(f"load {type_}, ptr {place}")

    @contextmanager
    def _each_bit(self, bits: str) -> Iterator[str]:
        """What is done for each bit that is 1, from the lowest on, given its number; there is one."""
        text, type_ = self.text, f"i{self.text.width}"
        before, one, after, left, further = (text.name() for _ in range(5))
        text.do(f"br label {before}")
        text.do(f"{before[1:]}:")
        text.do(f"br label {one}")
        text.do(f"{one[1:]}:")
        at = len(text.lines)
        zeros = text.call(type_, f"llvm.cttz.{type_}", f"{type_} {left}, i1 true")
        yield text.let(f"zext {type_} {zeros} to i64")
        last = text.name()
        text.do(f"br label {last}")
        text.do(f"{last[1:]}:")
        text.do(f"{further} = and {type_} {left}, {text.let(f'sub {type_} {left}, 1')}")
        more = text.let(f"icmp ne {type_} {further}, 0")
        text.do(f"br i1 {more}, label {one}, label {after}{ROLLED}")
        text.do(f"{after[1:]}:")
        text.lines.insert(at, f"{left} = phi {type_} [{bits}, {before}], [{further}, {last}]")

    def _entry_of(self, key: str, number: str) -> str:
        """A key, and below it the element's place in its sequence."""
        text, half = self.text, 8 * bytes_of(self._key)
        high = text.let(f"shl {self._entry} {text.let(f'sext {self._key} {key} to {self._entry}')}, {half}")
        return text.let(f"or {self._entry} {high}, {text.let(sorting.resized(number, 'i64', self._entry))}")

    def _key_of(self, x: str, width: int) -> str:
        """The keys of so many elements: of two the one with the smaller key comes first. Both zeros have one, and all
        NaN have one beyond infinity."""
        text, type_, key = self.text, self._type, self._key

        def constant(kind: str, value: str) -> str:
            return value if width == 1 else f"<{', '.join([f'{kind} {value}'] * width)}>"

        integer, floats = _of("i32", width), _of("float", width)
        if type_ in ("half", "float"):
            if type_ == "half":
                x = text.let(f"fpext {_of(type_, width)} {x} to {floats}")
            number = text.let(f"fadd {floats} {x}, {constant('float', '0.0')}")
            is_nan = text.let(f"fcmp uno {floats} {x}, {x}")
            some = text.let(f"bitcast {floats} {number} to {integer}")
            nan = constant("i32", "2143289344")
            bits = text.let(f"select {_of('i1', width)} {is_nan}, {integer} {nan}, {integer} {some}")
            sign = text.let(f"ashr {integer} {bits}, {constant('i32', '31')}")
            others = text.let(f"and {integer} {sign}, {constant('i32', str(0x7FFFFFFF))}")
            order = text.let(f"xor {integer} {bits}, {others}")
        elif type_ == key:
            least = -(1 << 8 * bytes_of(key) - 1) if self._is_unsigned else 0
            order = text.let(f"xor {_of(key, width)} {x}, {constant(key, str(least))}")
        else:
            order = text.let(f"{'z' if self._is_unsigned else 's'}ext {_of(type_, width)} {x} to {integer}")
        return text.let(f"xor {_of(key, width)} {order}, {constant(key, '-1' if self._is_decreasing else '0')}")


def _of(kind: str, width: int) -> str:
    """So many of a type."""
    return kind if width == 1 else f"<{width} x {kind}>"
