"""Convolution with a filter or two to each group of channels: there is nothing to pack that would be read often.

A group's channels are copied with their padding, so that a filter's element meets the elements of one row, one after
the other, at the positions of one row. Strides along rows make phases: a row of a copy has first all elements that one
of the filter's meets, then those that another one meets.
"""

from dataclasses import dataclass

from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.panels import Strided
from app.devices.cpu.llvm.text import Text

FIELDS = (
    *("elements", "weights", "bias", "results", "copy", "table"),
    *("first_group", "last_group", "depth", "terms", "copied"),
    *("channel_size", "channels_of_group", "results_of_channel"),
    *("size_y", "size_x", "rows_y", "row", "part", "phases", "phase_step", "start_x", "stride_x"),
    *("first_z", "count_z", "first_y", "count_y", "copy_of_channel"),
    *("positions_z", "positions_y", "positions_x", "step_z", "step_y"),
)
"""What the frame has, 8 bytes each: six addresses, then numbers, then the activation's attributes. Groups from `first`
to before `last` are computed. `table` tells how far behind a position's place each of a filter's `terms` meets its own.
A `copy` has so many elements, `copied`, with what is read behind it, and of each channel `rows_y` rows along z; a `row`
has `phases` parts, each `phase_step` elements after the one before. Of the rows of the copy, `count` from the `first`
on are the tensor's first ones. `step` is the way from position to position in the copy."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Results in registers: of so many rows, each with so many vectors of so many float32."""

    rows: int
    vectors: int
    width: int
    taps: tuple[int, int, int] | None = None
    """Of filters that lie in one plane: how many there are along y and x, and the stride along y, if the code is to be
    written for them. What an element of the tensor meets for several rows is then loaded once."""


def source(tile: Rows, stride: int, activation: Element | None) -> str:
    """The module whose function `kernel` takes a frame. `stride` is that along x, or 0 where the frame tells. There are
    as many rows of positions as the tile has, or more. Behind the last row is read as far as a tile is wide."""
    text = Text(tile.width)
    frame = text.frame(FIELDS, 6)
    attributes = text.attributes(activation, len(FIELDS)) if activation else []
    with text.loop("0", frame["copied"], "1") as each:
        text.do(f"store float 0.0, ptr {text.at(frame['copy'], each.index)}, align 4")
    with text.loop(frame["first_group"], frame["last_group"], "1") as group:
        _copy(text, stride, frame, text.mul(group.index, frame["depth"]))
        with text.loop("0", frame["channels_of_group"], "1") as output:
            channel = text.add(text.mul(group.index, frame["channels_of_group"]), output.index)
            results = text.at(frame["results"], text.mul(channel, frame["results_of_channel"]))
            weights = text.at(frame["weights"], text.mul(channel, frame["terms"]))
            bias = text.let(f"load float, ptr {text.at(frame['bias'], channel)}, align 4")
            _channel(text, tile, frame, weights, text.spread(bias), results)
            if activation:
                text.activate(activation, attributes, results, frame["results_of_channel"])
    return text.module(*[activation] if activation else [])


def _copy(text: Text, stride: int, frame: dict[str, str], first: str) -> None:
    """The channels of a group, from the `first` on."""
    some = text.let(f"icmp ne i64 {text.mul(frame['count_z'], frame['count_y'])}, 0")
    with (
        text.when(some),
        text.loop("0", frame["depth"], "1") as channel,
        text.loop("0", frame["phases"], "1") as phase,
        text.loop("0", frame["part"], str(text.width)) as along,
    ):
        elements = text.at(frame["elements"], text.mul(text.add(first, channel.index), frame["channel_size"]))
        before = text.mul(phase.index, frame["part"])
        there = text.at(frame["copy"], text.add(text.mul(channel.index, frame["copy_of_channel"]), before))
        there = text.at(there, along.index)
        kept = text.below(text.lanes(along.index), frame["part"])
        begin = text.add(text.mul(along.index, frame["stride_x"]), text.mul(phase.index, frame["phase_step"]))
        begin = text.sub(begin, frame["start_x"])
        met = Strided(text, "0", begin, stride, frame["stride_x"], frame["size_x"])
        with text.loop("0", frame["count_z"], "1") as z, text.loop("0", frame["count_y"], "1") as y:
            row = text.add(text.mul(z.index, frame["size_y"]), y.index)
            found = met.read(text.at(elements, text.mul(row, frame["size_x"])))
            copy_z = text.mul(text.add(z.index, frame["first_z"]), frame["rows_y"])
            copied = text.add(copy_z, text.add(y.index, frame["first_y"]))
            text.store(found, text.at(there, text.mul(copied, frame["row"])), kept)


def _channel(text: Text, tile: Rows, frame: dict[str, str], weights: str, bias: str, results: str) -> None:
    """One of the output."""
    rows, vectors = range(tile.rows), range(tile.vectors)
    last_y = text.sub(frame["positions_y"], str(tile.rows))
    with (
        text.loop("0", frame["positions_z"], "1") as z,
        text.loop("0", frame["positions_y"], str(tile.rows)) as block,
        text.loop("0", frame["positions_x"], str(tile.vectors * tile.width)) as x,
    ):
        y = text.least(block.index, last_y)  # the last tile goes back to where the one before has been
        begin = text.add(text.mul(z.index, frame["step_z"]), text.mul(y, frame["step_y"]))
        here = text.at(frame["copy"], text.add(begin, x.index))
        sums = (_written if tile.taps else _looped)(text, tile, frame, weights, bias, here)
        left = text.sub(frame["positions_x"], x.index)
        masks = [text.below(text.lanes(str(number * tile.width)), left) for number in vectors]
        before = text.add(text.mul(z.index, frame["positions_y"]), y)
        for row in rows:
            own = text.mul(text.add(before, str(row)), frame["positions_x"])
            there = text.at(results, text.add(own, x.index))
            for number in vectors:
                place = text.at(there, str(number * tile.width))
                text.store(sums[row * len(vectors) + number], place, masks[number])


def _looped(text: Text, tile: Rows, frame: dict[str, str], weights: str, bias: str, here: str) -> list[str]:
    """The sums of a tile, term after term."""
    places = [text.at(here, text.mul(frame["step_y"], str(row))) for row in range(tile.rows)]
    sums = [(text.vector, bias)] * (tile.rows * tile.vectors)
    with text.loop("0", frame["terms"], "1", sums, note="") as term:
        offset = text.let(f"load i64, ptr {text.at(frame['table'], term.index, 'i64')}")
        weight = text.spread(text.let(f"load float, ptr {text.at(weights, term.index)}, align 4"))
        for row, place in enumerate(places):
            for number, met in enumerate(_vectors(text, tile, text.at(place, offset))):
                term.next.append(text.fused(weight, met, term.values[row * tile.vectors + number]))
    return term.results


def _written(text: Text, tile: Rows, frame: dict[str, str], weights: str, bias: str, here: str) -> list[str]:
    """The same for the taps of the tile, in the same order for each sum."""
    assert tile.taps
    along_y, along_x, stride = tile.taps
    sums = [bias] * (tile.rows * tile.vectors)
    spread = [
        text.spread(text.let(f"load float, ptr {text.at(weights, str(term))}, align 4"))
        for term in range(along_y * along_x)
    ]
    offsets = [text.let(f"load i64, ptr {text.at(frame['table'], str(place), 'i64')}") for place in range(along_x)]
    # Lines that no row meets are left out: between far strides there are thousands, which would be code.
    for line in sorted({row * stride + k_y for row in range(tile.rows) for k_y in range(along_y)}):
        start = text.at(here, text.mul(frame["row"], str(line)))
        for k_x, offset in enumerate(offsets):
            met = _vectors(text, tile, text.at(start, offset))
            for row in range(tile.rows):
                k_y = line - row * stride
                if 0 <= k_y < along_y:
                    weight = spread[k_y * along_x + k_x]
                    for number, each in enumerate(met):
                        place = row * tile.vectors + number
                        sums[place] = text.fused(weight, each, sums[place])
    return sums


def _vectors(text: Text, tile: Rows, pointer: str) -> list[str]:
    """Those that lie there."""
    places = [text.at(pointer, str(number * tile.width)) for number in range(tile.vectors)]
    return [text.let(f"load {text.vector}, ptr {place}, align 4") for place in places]
