"""Convolution at few positions, by filters that are known before: vectors are along the channels of the output.

Filters are packed once, for so many channels as some vectors have: element by element of them (term by term), those of
all these channels. So they are read from the beginning to the end, which is most of the work where they meet little.
What they meet at all positions is packed as for `panels.py`, unless filters have one element.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.panels import OF_AXES, Tile, pack
from app.devices.cpu.llvm.text import Text

FIELDS = (
    *("elements", "weights", "bias", "results", "panel"),
    *("first_channel", "last_channel", "channels", "depth", "taps", "channel_size"),
    *OF_AXES,
)
"""What the frame has, 8 bytes each: five addresses, then numbers, then the activation's attributes. From `first` to
before `last` of the `channels` is computed, and the first one is a multiple of what vectors have; `weights` begin at
whole vectors. A filter has so many channels, its `depth`, and `taps` in each."""

MOST_TOGETHER = 12
"""Positions whose sums are in registers together, two vectors of each: with a position's element and the filters',
these are 27 of 32."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Results in registers: so many vectors of so many channels, for each of so many positions one after the other."""

    vectors: int
    width: int
    positions: tuple[int, ...]
    is_pointwise: bool = False
    """Whether a filter's one element meets all elements of a channel: these are read where they lie."""

    @property
    def channels(self) -> int:
        return self.vectors * self.width

    @property
    def panel(self) -> Tile:
        """What is packed: all positions, as whole vectors."""
        return Tile(1, -(-sum(self.positions) // self.width), self.width)


def source(lanes: Lanes, stride: int, activation: Element | None) -> str:
    """The module whose function `kernel` takes a frame. `stride` is that along x, or 0 where the frame tells. In the
    memory of the panel is place for all terms, if they are packed."""
    text = Text(lanes.width)
    frame = text.frame(FIELDS, 5)
    attributes = text.attributes(activation, len(FIELDS)) if activation else []
    aligned = 4 * lanes.width
    made = text.let(f"alloca [{max(lanes.positions) * lanes.channels} x float], align {aligned}")
    terms = text.mul(frame["depth"], frame["taps"])
    if not lanes.is_pointwise:
        where = "0", str(sum(lanes.positions)), frame["panel"]
        pack(text, lanes.panel, stride, frame, frame["elements"], frame["depth"], where)
    with text.loop(frame["first_channel"], frame["last_channel"], str(lanes.channels)) as block:
        left = text.least(text.sub(frame["last_channel"], block.index), str(lanes.channels))
        weights = text.at(frame["weights"], text.mul(block.index, terms))
        first = 0
        for count, alike in groupby(lanes.positions):
            end = first + sum(alike)
            with text.loop(str(first), str(end), str(count)) as place:
                places = place.index, count
                sums = _sums(text, lanes, frame, (block.index, left, weights), terms, places)
                for number, value in enumerate(sums):
                    there = text.at(made, str(number * lanes.width))
                    text.do(f"store {text.vector} {value}, ptr {there}, align {aligned}")
                if activation:
                    text.activate(activation, attributes, made, str(count * lanes.channels))
                _turned(text, lanes, frame, made, (block.index, left), places)
            first = end
    return text.module(*[activation] if activation else [])


def _sums(
    text: Text, lanes: Lanes, frame: dict[str, str], block: tuple[str, str, str], terms: str, places: tuple[str, int]
) -> Sequence[str]:
    """Of the channels of a block, which is the first one, how many, and their filters, at so many places from the first
    on: vectors, place by place."""
    (channel, left, weights), (first, count) = block, places
    biases = []
    for number in range(lanes.vectors):
        kept = text.below(text.lanes(str(number * lanes.width)), left)
        biases.append(text.load(text.at(text.at(frame["bias"], channel), str(number * lanes.width)), kept))
    known = [(text.vector, bias) for _ in range(count) for bias in biases]
    met_here = text.at(frame["elements"] if lanes.is_pointwise else frame["panel"], first)
    of_term = frame["channel_size"] if lanes.is_pointwise else str(lanes.panel.places)
    with text.loop("0", terms, "1", known, note="") as term:
        filters = text.at(weights, text.mul(term.index, str(lanes.channels)))
        each = [
            text.let(f"load {text.vector}, ptr {text.at(filters, str(number * lanes.width))}, align {4 * lanes.width}")
            for number in range(lanes.vectors)
        ]
        met_by_term = text.at(met_here, text.mul(term.index, of_term))
        for number in range(count):
            met = text.spread(text.let(f"load float, ptr {text.at(met_by_term, str(number))}, align 4"))
            for vector, weight in enumerate(each):
                term.next.append(text.fused(weight, met, term.values[number * lanes.vectors + vector]))
    return term.results


def _turned(
    text: Text, lanes: Lanes, frame: dict[str, str], made: str, block: tuple[str, str], places: tuple[str, int]
) -> None:
    """What is made, place by place, into the results, which lie channel by channel."""
    (channel, left), (first, count) = block, places
    with text.loop("0", left, "1") as lane:
        before = text.mul(text.add(channel, lane.index), str(sum(lanes.positions)))
        results = text.at(frame["results"], text.add(before, first))
        for number in range(count):
            there = text.at(made, text.add(lane.index, str(number * lanes.channels)))
            found = text.let(f"load float, ptr {there}, align 4")
            text.do(f"store float {found}, ptr {text.at(results, str(number))}, align 4")
