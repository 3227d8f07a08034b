"""Convolution: what the filters meet at some positions is packed into a panel, and multiplied by the filters there.

A panel has, for each element of a filter (a term), what it meets at each of a tile's positions, and 0 where that is
beside the tensor. So the loop over terms reads one panel from its beginning to its end, for several channels at a time.
Their filters then meet the panels of the next positions, as many as the second cache has place for, and so do the next
filters while these are there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.text import Text

AXES = ("z", "y", "x")
OF_AXES = (
    *(f"{what}_{axis}" for what in ("extent", "dilation", "stride", "start", "size") for axis in AXES),
    *("positions_y", "positions_x"),
)
"""Numbers of the filter and, `size`, of the tensor along axes, and how many positions there are."""

FIELDS = (
    *("elements", "weights", "bias", "results", "panel"),
    *("first_group", "last_group", "first_channel", "last_channel", "first_place", "last_place"),
    *(
        "depth",
        "depth_at_a_time",
        "places_at_a_time",
        "taps",
        "channel_size",
        "channels_of_group",
        "results_of_channel",
    ),
    *OF_AXES,
)
"""What the frame has, 8 bytes each: five addresses, then numbers, then the activation's attributes. From `first` to
before `last` of each is computed: groups, channels of each group, and places, that is positions one after the other.
`depth` are the channels that a filter has, of which a panel has so many at a time, and `taps` its elements in each.
Panels are made for so many places at a time, a multiple of a tile's.
All are below 2^31."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Results in registers: so many channels, each with so many vectors of so many float32."""

    channels: int
    vectors: int
    width: int

    @property
    def places(self) -> int:
        return self.vectors * self.width


def source(tile: Tile, rest: int, stride: int, activation: Element | None) -> str:
    """The module whose function `kernel` takes a frame. Of the last channels, `rest` are left over by whole tiles.
    `stride` is that along x, or 0 where the frame tells. In the memory of the panels is place for all that is packed at
    a time."""
    text = Text(tile.width)
    frame = text.frame(FIELDS, 5)
    attributes = text.attributes(activation, len(FIELDS)) if activation else []
    if activation:
        size = tile.channels * tile.places
        frame["activated"] = text.let(f"alloca [{size} x float], align {4 * tile.width}")
    with text.loop(frame["first_group"], frame["last_group"], "1") as group:
        depth_before = text.mul(group.index, frame["depth"])
        elements = text.at(frame["elements"], text.mul(depth_before, frame["channel_size"]))
        before = text.mul(group.index, frame["channels_of_group"])
        with text.loop("0", frame["depth"], frame["depth_at_a_time"]) as part:
            channels = text.least(text.sub(frame["depth"], part.index), frame["depth_at_a_time"])
            some = text.at(elements, text.mul(part.index, frame["channel_size"]))
            is_first = text.let(f"icmp eq i64 {part.index}, 0")
            is_last = text.let(f"icmp eq i64 {text.add(part.index, channels)}, {frame['depth']}")
            terms = text.mul(channels, frame["taps"])
            first_term = text.mul(part.index, frame["taps"])
            with text.loop(frame["first_place"], frame["last_place"], frame["places_at_a_time"]) as packed:
                left = text.sub(frame["last_place"], packed.index)
                places = _Places(
                    packed.index, text.add(packed.index, text.least(left, frame["places_at_a_time"])), terms
                )
                with text.loop(places.first, places.last, str(tile.places)) as place:
                    count = text.least(text.sub(places.last, place.index), str(tile.places))
                    panel = places.panel(text, frame["panel"], place.index)
                    pack(text, tile, stride, frame, some, channels, (place.index, count, panel))
                block = _Block(text, tile, frame, places, first_term, (is_first, is_last), (activation, attributes))
                block.of_channels(before, rest)
    return text.module(*[activation] if activation else [])


@dataclass(frozen=True, slots=True)
class _Places:
    """Those whose panels there are at a time, and how many terms these have."""

    first: str
    last: str
    terms: str

    def panel(self, text: Text, panels: str, place: str) -> str:
        """That of a tile which begins at a place."""
        return text.at(panels, text.mul(text.sub(place, self.first), self.terms))


class Strided:
    """Reads a vector of elements that are evenly spaced, and 0 outside of a row; nothing outside is touched."""

    def __init__(self, text: Text, row: str, first: str, stride: int, step: str, size: str) -> None:
        """`row` is how far behind a base the row begins, and `first` how far behind that the first element lies, with a
        sign; `step` is how far the next one, if `stride` is 0."""
        self._text, self._stride = text, stride
        self._start = text.add(row, first)
        width = text.width
        if stride in (1, 2):
            lanes = [text.lanes(text.add(first, str(number * width))) for number in range(stride)]
            self._masks = [text.below(each, size) for each in lanes]
        else:
            indices = f"<{width} x i32>"
            numbers = ", ".join(f"i32 {number}" for number in range(width))
            steps = text.spread(text.let(f"trunc i64 {step} to i32"), "i32")
            far = text.let(f"mul {indices} {steps}, <{numbers}>")
            begin = text.spread(text.let(f"trunc i64 {first} to i32"), "i32")
            self._masks = [text.below(text.let(f"add {indices} {begin}, {far}"), size)]
            self._far = text.let(f"sext {indices} {far} to <{width} x i64>")

    def read(self, base: str) -> str:
        text, width = self._text, self._text.width
        start = text.at(base, self._start)
        if self._stride == 1:
            return text.load(start, self._masks[0])
        if self._stride == 2:
            low, high = (
                text.load(text.at(start, str(number * width)), mask) for number, mask in enumerate(self._masks)
            )
            even = ", ".join(f"i32 {2 * number}" for number in range(width))
            return text.let(f"shufflevector {text.vector} {low}, {text.vector} {high}, <{width} x i32> <{even}>")
        pointers = text.let(f"getelementptr float, ptr {start}, <{width} x i64> {self._far}")
        return text.gather(pointers, self._masks[0])


def offset_of(text: Text, coordinates: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Whether there is something at these coordinates, each with the size along its axis, and how far behind the
    first."""
    inside, offset = "true", "0"
    for coordinate, size in coordinates:
        inside = text.let(f"and i1 {inside}, {text.let(f'icmp ult i64 {coordinate}, {size}')}")
        offset = text.add(text.mul(offset, size), coordinate)
    return inside, offset


def pack(
    text: Text,
    tile: Tile,
    stride: int,
    frame: dict[str, str],
    elements: str,
    channels: str,
    where: tuple[str, str, str],
) -> None:
    """A panel with what so many channels have `where`: at the first place, for how many, and where the panel lies.

    Behind the last of less than a tile's places is something of the tensor or 0, too: products with it are computed,
    though nothing becomes of them, and where memory happened to hold subnormal numbers processors would take a hundred
    times as long.
    """
    place, count, panel = where
    with text.loop("0", count, "") as segment:  # places of one row
        here = text.add(place, segment.index)
        x = text.let(f"urem i64 {here}, {frame['positions_x']}")
        row = text.let(f"udiv i64 {here}, {frame['positions_x']}")
        y = text.let(f"urem i64 {row}, {frame['positions_y']}")
        z = text.let(f"udiv i64 {row}, {frame['positions_y']}")
        left = text.sub(count, segment.index)
        segment.step = text.least(text.sub(frame["positions_x"], x), left)
        is_last = text.let(f"icmp eq i64 {segment.step}, {left}")
        end = text.let(f"select i1 {is_last}, i64 {text.sub(str(tile.places), segment.index)}, i64 {segment.step}")
        with text.loop("0", end, str(tile.width)) as along:
            kept = text.below(text.lanes(along.index), end)
            first = [
                text.sub(text.mul(each, frame[f"stride_{axis}"]), frame[f"start_{axis}"])
                for each, axis in zip((z, y, text.add(x, along.index)), AXES, strict=True)
            ]
            there = text.at(panel, text.add(segment.index, along.index))
            with text.loop("0", frame["extent_z"], "1") as k_z, text.loop("0", frame["extent_y"], "1") as k_y:
                met = [
                    (text.add(begin, text.mul(k.index, frame[f"dilation_{axis}"])), frame[f"size_{axis}"])
                    for begin, k, axis in zip(first, (k_z, k_y), AXES, strict=False)
                ]
                inside, row = offset_of(text, met)
                size = text.let(f"select i1 {inside}, i64 {frame['size_x']}, i64 0")
                start = text.mul(row, frame["size_x"])
                rows_before = text.add(text.mul(k_z.index, frame["extent_y"]), k_y.index)
                with text.loop("0", frame["extent_x"], "1") as k_x:
                    begin = text.add(first[2], text.mul(k_x.index, frame["dilation_x"]))
                    elements_met = Strided(text, start, begin, stride, frame["stride_x"], size)
                    tap = text.add(text.mul(rows_before, frame["extent_x"]), k_x.index)
                    with text.loop("0", channels, "1") as channel:
                        found = elements_met.read(text.at(elements, text.mul(channel.index, frame["channel_size"])))
                        term = text.add(text.mul(channel.index, frame["taps"]), tap)
                        text.store(found, text.at(there, text.mul(term, str(tile.places))), kept)


class _Block:
    """The results of some places."""

    def __init__(
        self,
        text: Text,
        tile: Tile,
        frame: dict[str, str],
        places: _Places,
        first_term: str,
        ends: tuple[str, str],
        activation: tuple[Element | None, Sequence[str]],
    ) -> None:
        """`ends` say whether the panels have the first terms, and the last ones, after which results are activated."""
        self._text, self._tile, self._frame, self._places = text, tile, frame, places
        self._first_term = first_term
        self._is_first, self._is_last = ends
        self._activation, self._attributes = activation

    def of_channels(self, before: str, rest: int) -> None:
        """Of all channels; the group begins with channel `before`."""
        text, rows, first, last = (
            self._text,
            self._tile.channels,
            self._frame["first_channel"],
            self._frame["last_channel"],
        )
        left = text.let(f"urem i64 {text.sub(last, first)}, {rows}")
        whole = text.sub(last, left)
        with (
            text.when(text.let(f"icmp ult i64 {first}, {whole}")),
            text.loop(first, whole, str(rows)) as block,
        ):
            self._of_places(text.add(before, block.index), rows)
        if rest:
            with text.when(text.let(f"icmp ne i64 {left}, 0")):
                self._of_places(text.add(before, whole), rest)

    def _of_places(self, channel: str, rows: int) -> None:
        """One tile after the other. What is one vector at the end is no more work than that."""
        text, tile, places = self._text, self._tile, self._places
        with text.loop(places.first, places.last, str(tile.places)) as place:
            count = text.least(text.sub(places.last, place.index), str(tile.places))
            if tile.vectors == 1:
                self._rows(channel, rows, 1, place.index, count)
                return
            is_short = text.let(f"icmp ule i64 {count}, {tile.width}")
            with text.when(is_short):
                self._rows(channel, rows, 1, place.index, count)
            with text.when(text.let(f"xor i1 {is_short}, true")):
                self._rows(channel, rows, tile.vectors, place.index, count)

    def _rows(self, channel: str, count: int, vectors: int, place: str, places: str) -> None:
        """So many channels' results at so many places from one on, in so many vectors."""
        text, tile, frame = self._text, self._tile, self._frame
        vector, weights, results, sums = text.vector, [], [], []
        weights_of_channel = text.mul(frame["depth"], frame["taps"])
        panel_of_place = self._places.panel(text, frame["panel"], place)
        masks = [text.below(text.lanes(str(number * tile.width)), places) for number in range(vectors)]
        first, bits = text.spread(self._is_first, "i1"), f"<{tile.width} x i1>"
        known = [text.let(f"select {bits} {first}, {bits} zeroinitializer, {bits} {mask}") for mask in masks]
        for row in range(count):
            own = text.add(channel, str(row))
            behind = text.add(text.mul(own, weights_of_channel), self._first_term)
            weights.append(text.at(frame["weights"], behind))
            result = text.at(frame["results"], text.add(text.mul(own, frame["results_of_channel"]), place))
            bias = text.spread(text.let(f"load float, ptr {text.at(frame['bias'], own)}, align 4"))
            for number, mask in enumerate(known):
                results.append(text.at(result, str(number * tile.width)))
                sums.append((vector, text.load(results[-1], mask, bias)))
        # what is not known is biased: the first terms
        with text.loop("0", self._places.terms, "1", sums, note="") as term:
            panel = text.at(panel_of_place, text.mul(term.index, str(tile.places)))
            met = [
                text.let(f"load {vector}, ptr {text.at(panel, str(number * tile.width))}, align {4 * tile.width}")
                for number in range(vectors)
            ]
            for row in range(count):
                weight = text.spread(text.let(f"load float, ptr {text.at(weights[row], term.index)}, align 4"))
                for number in range(vectors):
                    term.next.append(text.fused(weight, met[number], term.values[row * vectors + number]))
        if self._activation is None:
            self._store(term.results, results, masks)
            return
        with text.when(text.let(f"xor i1 {self._is_last}, true")):
            self._store(term.results, results, masks)
        with text.when(self._is_last):
            made = text.activated(self._activation, self._attributes, frame["activated"], term.results)
            self._store(made, results, masks)

    def _store(self, values: Sequence[str], results: Sequence[str], masks: Sequence[str]) -> None:
        for number, (value, there) in enumerate(zip(values, results, strict=True)):
            self._text.store(value, there, masks[number % len(masks)])
