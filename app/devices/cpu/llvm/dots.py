"""Convolution with few positions: vectors go along the elements of a filter, which are read once.

What the filters meet is packed for one position after the other, each as a filter's elements lie, and filled up with
zeros to whole vectors.
"""

from collections.abc import Mapping

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.panels import AXES, OF_AXES, offset_of
from app.devices.cpu.llvm.text import Text

FIELDS = (
    *("elements", "weights", "bias", "results", "panel"),
    *("first_group", "last_group", "first_channel", "last_channel"),
    *("depth", "taps", "packed", "channel_size", "channels_of_group"),
    *OF_AXES,
)
"""What the frame has, 8 bytes each: five addresses, then numbers, then the activation's attributes. From `first` to
before `last` of each is computed: groups, and channels of each group. `depth` are the channels that a filter has, and
`taps` its elements in each. For each position so many elements are `packed`, a multiple of a vector's."""


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
        products(text, (rows, places), frame, channels, text.mul(frame["depth"], frame["taps"]))
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


def products(
    text: Text, tile: tuple[int, int], frame: Mapping[str, str], channels: tuple[str, str], terms: str
) -> None:
    """The results of channels from the first to before the last, which there may be none of: `weights` of so many terms
    times the `panel`, where there are so many `packed` for each of the places, and `bias`. The tile are channels and
    places."""
    (rows, places), (first, last) = tile, channels
    whole = text.sub(last, text.let(f"urem i64 {text.sub(last, first)}, {rows}"))
    for step, begin, end in ((rows, first, whole), (1, whole, last)):
        with (
            text.when(text.let(f"icmp ult i64 {begin}, {end}")),
            text.loop(begin, end, str(step)) as block,
        ):
            _rows(text, step, places, frame, block.index, terms)


def _rows(text: Text, rows: int, places: int, frame: Mapping[str, str], channel: str, terms: str) -> None:
    """The results of some channels from one on."""
    vector, width = text.vector, text.width
    own = [text.add(channel, str(row)) for row in range(rows)]
    weights = [text.at(frame["weights"], text.mul(each, terms)) for each in own]
    panels = [text.at(frame["panel"], text.mul(str(place), frame["packed"])) for place in range(places)]
    zeros = [(vector, "zeroinitializer")] * (rows * places)
    with text.loop("0", terms, str(width), zeros, note="") as term:
        there = text.below(text.lanes(term.index), terms)
        weight = [text.load(text.at(each, term.index), there) for each in weights]
        for place, panel in enumerate(panels):
            met = text.let(f"load {vector}, ptr {text.at(panel, term.index)}, align 4")
            term.next += [text.fused(each, met, term.values[place * rows + row]) for row, each in enumerate(weight)]
    for row in range(rows):
        bias = text.let(f"load float, ptr {text.at(frame['bias'], own[row])}, align 4")
        for place in range(places):
            total = text.total(term.results[place * rows + row])
            result = text.at(frame["results"], text.add(text.mul(own[row], str(places)), str(place)))
            text.do(f"store float {text.let(f'fadd float {total}, {bias}')}, ptr {result}, align 4")
