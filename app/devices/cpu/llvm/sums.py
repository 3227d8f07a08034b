"""Sums of products over places in memory that a table tells: the loop that convolutions are made of.

A result is a bias and, for each k of a table, a weight times the element `table[k]` behind the result's place. Several
results of several channels are in registers at a time, so that what is loaded is used several times.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

FIELDS = (
    *("elements", "weights", "table", "bias", "results"),
    *("terms", "first_group", "last_group", "first_channel", "last_channel", "first_tile", "last_tile"),
    *("elements_of_group", "channels_of_group", "weights_of_channel", "results_of_channel", "last_place"),
    *("terms_at_a_time", "more_of_tile"),
)
"""What the frame has, 8 bytes each: five addresses, then numbers. From `first` to before `last` of each is computed:
groups, channels of each group, as many as a multiple of those of a tile, and tiles. What is "of" one is the way to the
next one, in elements or channels. No tile begins behind `last_place`: one that would begins there, over results of
others, which takes that all terms are added up at a time. From tile to tile, elements go on by `more_of_tile` more
than results do."""

MOST_TERMS = 512
"""Terms that are added up before the results go back to memory, so that the elements of a tile stay in the cache."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Results in registers: so many channels, each with so many vectors of so many float32."""

    channels: int
    vectors: int
    width: int

    @property
    def places(self) -> int:
        return self.vectors * self.width


class _Text:
    """Lines of a function, and fresh names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names = 0

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

    @contextmanager
    def loop(self, begin: str, end: str, step: str, carried: list[tuple[str, str]] | None = None) -> Iterator["_Loop"]:
        """A loop from `begin` to below `end`, which is larger. `carried` are types and first values of what each turn
        gives to the next one."""
        loop = _Loop(self, begin, end, step, carried or [])
        yield loop
        loop.close()


class _Loop:
    def __init__(self, text: _Text, begin: str, end: str, step: str, carried: list[tuple[str, str]]) -> None:
        self._text, self._end, self._step = text, end, step
        before, self._label = text.name()[1:], text.name()[1:]
        text.do(f"br label %{before}")
        text.do(f"{before}:")
        text.do(f"br label %{self._label}")
        text.do(f"{self._label}:")
        self.index = text.name()
        self._head = len(text.lines)
        self._before, self._begin, self._carried = before, begin, carried
        self.values = [text.name() for _ in carried]
        self.next: list[str] = []
        self.results: list[str] = []

    def close(self) -> None:
        text = self._text
        last, after = text.name()[1:], text.name()[1:]
        text.do(f"br label %{last}")
        text.do(f"{last}:")
        following = text.let(f"add i64 {self.index}, {self._step}")
        more = text.let(f"icmp ult i64 {following}, {self._end}")
        text.do(f"br i1 {more}, label %{self._label}, label %{after}")
        text.do(f"{after}:")
        phis = [f"{self.index} = phi i64 [{self._begin}, %{self._before}], [{following}, %{last}]"]
        for name, (type_, first), value in zip(self.values, self._carried, self.next, strict=True):
            phis.append(f"{name} = phi {type_} [{first}, %{self._before}], [{value}, %{last}]")
        text.lines[self._head : self._head] = phis
        self.results = self.next


def source(tile: Tile, ahead: int = 0) -> str:
    """The module whose function `kernel` takes a frame of FIELDS. Where elements are read one after the other, those so
    far `ahead` are asked for meanwhile; there need be no memory."""
    text = _Text()
    frame = {}
    for number, name in enumerate(FIELDS):
        kind = "ptr" if number < 5 else "i64"
        frame[name] = text.let(f"load {kind}, ptr {text.at('%frame', str(number), 'i64')}")
    with text.loop(frame["first_group"], frame["last_group"], "1") as group:
        elements = text.at(frame["elements"], text.let(f"mul i64 {group.index}, {frame['elements_of_group']}"))
        before = text.let(f"mul i64 {group.index}, {frame['channels_of_group']}")
        with text.loop("0", frame["terms"], frame["terms_at_a_time"]) as part:
            rest = text.let(f"add i64 {part.index}, {frame['terms_at_a_time']}")
            end = text.let(f"call i64 @llvm.umin.i64(i64 {rest}, i64 {frame['terms']})")
            is_first = text.let(f"icmp eq i64 {part.index}, 0")
            with text.loop(frame["first_tile"], frame["last_tile"], "1") as place:
                own = text.let(f"mul i64 {place.index}, {tile.places}")
                start = text.let(f"call i64 @llvm.umin.i64(i64 {own}, i64 {frame['last_place']})")
                more = text.let(f"mul i64 {place.index}, {frame['more_of_tile']}")
                here = text.at(elements, text.let(f"add i64 {start}, {more}"))
                with text.loop(frame["first_channel"], frame["last_channel"], str(tile.channels)) as block:
                    channel = text.let(f"add i64 {before}, {block.index}")
                    _tile(text, tile, frame, here, start, channel, part.index, end, is_first, ahead)
    text.do("ret void")
    vector = f"<{tile.width} x float>"
    body = "\n".join(f"  {line}" if not line.endswith(":") else line for line in text.lines)
    return (
        f"declare {vector} @llvm.fma.v{tile.width}f32({vector}, {vector}, {vector})\n"
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)\n"
        "declare i64 @llvm.umin.i64(i64, i64)\n"
        f"define void @kernel(ptr noalias %frame) {{\n{body}\n}}\n"
    )


def _tile(
    text: _Text,
    tile: Tile,
    frame: dict[str, str],
    here: str,
    start: str,
    channel: str,
    begin: str,
    end: str,
    is_first: str,
    ahead: int,
) -> None:
    """One tile of results, the terms from `begin` to below `end` of it."""
    vector = f"<{tile.width} x float>"
    rows, weights, results = range(tile.channels), [], []
    for row in rows:
        own = text.let(f"add i64 {channel}, {row}")
        weights.append(text.at(frame["weights"], text.let(f"mul i64 {own}, {frame['weights_of_channel']}")))
        channel_results = text.at(frame["results"], text.let(f"mul i64 {own}, {frame['results_of_channel']}"))
        results.append(text.at(channel_results, start))
    sums = []
    for row in rows:
        bias = text.let(f"load float, ptr {text.at(text.at(frame['bias'], channel), str(row))}, align 4")
        spread = _spread(text, bias, tile.width)
        for number in range(tile.vectors):
            place = text.at(results[row], str(number * tile.width))
            known = text.let(f"load {vector}, ptr {place}, align 4")
            sums.append((vector, text.let(f"select i1 {is_first}, {vector} {spread}, {vector} {known}")))
    with text.loop(begin, end, "1", sums) as term:
        offset = text.let(f"load i64, ptr {text.at(frame['table'], term.index, 'i64')}")
        there = text.at(here, offset)
        for line in range(0, ahead and tile.places, 16):  # of 64 bytes
            text.do(f"call void @llvm.prefetch.p0(ptr {text.at(there, str(ahead + line))}, i32 0, i32 3, i32 1)")
        loaded = [
            text.let(f"load {vector}, ptr {text.at(there, str(number * tile.width))}, align 4")
            for number in range(tile.vectors)
        ]
        for row in rows:
            weight = text.let(f"load float, ptr {text.at(weights[row], term.index)}, align 4")
            spread = _spread(text, weight, tile.width)
            for number in range(tile.vectors):
                known = term.values[row * tile.vectors + number]
                term.next.append(
                    text.let(
                        f"call {vector} @llvm.fma.v{tile.width}f32({vector} {spread}, {vector} {loaded[number]}, "
                        f"{vector} {known})"
                    )
                )
    for row in rows:
        for number in range(tile.vectors):
            place = text.at(results[row], str(number * tile.width))
            text.do(f"store {vector} {term.results[row * tile.vectors + number]}, ptr {place}, align 4")


def _spread(text: _Text, value: str, width: int) -> str:
    vector = f"<{width} x float>"
    one = text.let(f"insertelement {vector} poison, float {value}, i64 0")
    return text.let(f"shufflevector {vector} {one}, {vector} poison, <{width} x i32> zeroinitializer")
