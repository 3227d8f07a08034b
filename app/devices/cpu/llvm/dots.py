"""Convolution with few positions: vectors go along the elements of a filter, which are read once.

What the filters meet is packed for one position after the other, each as a filter's elements lie, and filled up with
zeros to whole vectors.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.panels import AXES, OF_AXES, offset_of
from app.devices.cpu.llvm.text import Loop, Text

FIELDS = (
    *("elements", "weights", "bias", "results", "panel"),
    *("first_group", "last_group", "first_channel", "last_channel"),
    *("depth", "taps", "packed", "channel_size", "channels_of_group", "results_of_channel", "results_of_place"),
    *OF_AXES,
)
"""What the frame has, 8 bytes each: five addresses, then numbers, then the activation's attributes. From `first` to
before `last` of each is computed: groups, and channels of each group. `depth` are the channels that a filter has, and
`taps` its elements in each. For each position so many elements are `packed`, a multiple of a vector's. Results of a
channel's positions lie one after the other if there is an activation."""


def are_few(places: int, width: int) -> bool:
    """Whether registers have the sums of two channels for so many positions."""
    return 2 * places <= _sums(width)


def rows_for(places: int, width: int) -> int:
    """How many channels to take at a time for so many positions: one, unless they are few."""
    return min(8, 1 << (_sums(width) // places).bit_length() - 1) if are_few(places, width) else 1


def _sums(width: int) -> int:
    """Of how many sums registers have room: 32 of AVX-512 and NEON of 24, 16 of AVX2 of 12."""
    return 12 if width == 8 else 24


def source(rows: int, places: int, width: int, activation: Element | None) -> str:
    """The module whose function `kernel` takes a frame, for so many positions in all, and so many channels at a
    time."""
    text = Text(width)
    frame = text.frame(FIELDS, 5)
    attributes = text.attributes(activation, len(FIELDS)) if activation else []
    with text.loop("0", text.mul(str(places), frame["packed"]), str(width)) as each:
        text.do(f"store {text.vector} zeroinitializer, ptr {text.at(frame['panel'], each.index)}, align 4")
    with text.loop(frame["first_group"], frame["last_group"], "1") as group:
        before = text.mul(text.mul(group.index, frame["depth"]), frame["channel_size"])
        _pack(text, places, frame, text.at(frame["elements"], before))
        before = text.mul(group.index, frame["channels_of_group"])
        first, last = frame["first_channel"], frame["last_channel"]
        channels = (text.add(before, first), text.add(before, last))
        Products(text, rows, places, frame).write(channels, text.mul(frame["depth"], frame["taps"]))
        if activation:
            start = text.mul(text.add(before, first), str(places))
            count = text.mul(text.sub(last, first), str(places))
            text.activate(activation, attributes, text.at(frame["results"], start), count)
    return text.module(*[activation] if activation else [])


def _pack(text: Text, places: int, frame: dict[str, str], elements: str) -> None:
    """What the channels of a group have for the filters at all places, where there is any."""
    with text.loop("0", str(places), "1") as place:
        x = text.let(f"urem i64 {place.index}, {frame['positions_x']}")
        row = text.let(f"udiv i64 {place.index}, {frame['positions_x']}")
        y = text.let(f"urem i64 {row}, {frame['positions_y']}")
        z = text.let(f"udiv i64 {row}, {frame['positions_y']}")
        panel = text.at(frame["panel"], text.mul(place.index, frame["packed"]))
        with (
            text.loop("0", frame["extent_z"], "1") as k_z,
            text.loop("0", frame["extent_y"], "1") as k_y,
            text.loop("0", frame["extent_x"], "1") as k_x,
        ):
            met, tap = [], "0"
            for at, k, axis in zip((z, y, x), (k_z, k_y, k_x), AXES, strict=True):
                begin = text.sub(text.mul(at, frame[f"stride_{axis}"]), frame[f"start_{axis}"])
                met.append((text.add(begin, text.mul(k.index, frame[f"dilation_{axis}"])), frame[f"size_{axis}"]))
                tap = text.add(text.mul(tap, frame[f"extent_{axis}"]), k.index)
            inside, offset = offset_of(text, met)
            with text.when(inside), text.loop("0", frame["depth"], "1") as channel:
                there = text.at(elements, text.add(text.mul(channel.index, frame["channel_size"]), offset))
                found = text.let(f"load float, ptr {there}, align 4")
                term = text.add(text.mul(channel.index, frame["taps"]), tap)
                text.do(f"store float {found}, ptr {text.at(panel, term)}, align 4")


class Products:
    """Writes products of weights, a row of terms for each channel, and of a panel, in which there are so many `packed`
    for each place, and biases. How far it is in memory from place to place the frame tells as `results_of_place` and,
    if they are not the same for all, `bias_of_place`."""

    def __init__(
        self, text: Text, rows: int, places: int, frame: Mapping[str, str], weights: Literal["float", "half"] = "float"
    ) -> None:
        """Of so many channels and places at a time. `weights` is what they are in memory."""
        self._text, self._most, self._places, self._frame = text, rows, range(places), frame
        self._stored = weights

    def write(self, channels: tuple[str, str], terms: str) -> None:
        """Of the channels from the first to before the last; there may be none."""
        text, (first, last) = self._text, channels
        whole = text.sub(last, text.let(f"urem i64 {text.sub(last, first)}, {self._most}"))
        for step, begin, end in ((self._most, first, whole), (1, whole, last)):
            with (
                text.when(text.let(f"icmp ult i64 {begin}, {end}")),
                text.loop(begin, end, str(step)) as block,
            ):
                self._rows([text.add(block.index, str(row)) for row in range(step)], terms)

    def _rows(self, channels: list[str], terms: str) -> None:
        text, frame, places = self._text, self._frame, self._places
        weights = [text.at(frame["weights"], text.mul(each, terms), self._stored) for each in channels]
        panels = [text.at(frame["panel"], text.mul(str(place), frame["packed"])) for place in places]
        sums = ["zeroinitializer"] * (len(channels) * len(places))
        if self._stored == "float":
            with text.loop("0", terms, str(text.width), self._carried(sums), note="") as term:
                there = text.below(text.lanes(term.index), terms)
                self._add(term, weights, panels, there)
        else:  # of 16 bits, processors may load some only one by one
            whole = text.sub(terms, text.let(f"urem i64 {terms}, {text.width}"))
            for begin, end in (("0", whole), (whole, terms)):
                with text.loop(begin, end, str(text.width), self._carried(sums), note="", may_be_none=True) as term:
                    left = None if end == whole else text.below(text.lanes(term.index), terms)
                    self._add(term, weights, panels, left)
                sums = term.results
        self._store(channels, term.results)

    def _carried(self, sums: Sequence[str]) -> list[tuple[str, str]]:
        return [(self._text.vector, each) for each in sums]

    def _add(self, term: Loop, weights: Sequence[str], panels: Sequence[str], there: str | None) -> None:
        """A vector of terms to each of the sums; all of them, or those that are `there`."""
        text = self._text
        weight = [text.load_as(self._stored, text.at(each, term.index, self._stored), there) for each in weights]
        known = iter(term.values)
        for panel in panels:
            met = text.let(f"load {text.vector}, ptr {text.at(panel, term.index)}, align 4")
            term.next += [text.fused(each, met, next(known)) for each in weight]

    def _store(self, channels: list[str], sums: Sequence[str]) -> None:
        """The totals of sums, which there are of each place for all channels, with their biases."""
        at = 0
        while at < len(sums):
            count = min(self._text.width, 1 << (len(sums) - at).bit_length() - 1)
            totals = self._text.totals(sums[at : at + count])
            run = min(count, len(channels))
            for start in range(0, count, run):
                place, channel = divmod(at + start, len(channels))
                self._store_run(place, channels[channel : channel + run], totals, start)
            at += count

    def _store_run(self, place: int, channels: list[str], totals: str, start: int) -> None:
        """Those totals from the `start` on, which are of channels one after the other at a place."""
        text, frame = self._text, self._frame
        biases = text.at(frame["bias"], text.mul(str(place), frame.get("bias_of_place", "0")))
        results = text.at(frame["results"], text.mul(str(place), frame["results_of_place"]))
        kind, mask = f"<{len(channels)} x float>", ", ".join(f"i32 {start + n}" for n in range(len(channels)))
        own = text.let(f"shufflevector {text.vector} {totals}, {text.vector} poison, <{len(channels)} x i32> <{mask}>")
        bias = text.let(f"load {kind}, ptr {text.at(biases, channels[0])}, align 4")
        made = text.let(f"fadd {kind} {own}, {bias}")
        if frame["results_of_channel"] == "1":
            text.do(f"store {kind} {made}, ptr {text.at(results, channels[0])}, align 4")
            return
        for number, channel in enumerate(channels):
            one = text.let(f"extractelement {kind} {made}, i64 {number}")
            result = text.at(results, text.mul(channel, frame["results_of_channel"]))
            text.do(f"store float {one}, ptr {result}, align 4")
