"""Channels of bytes with their padding, of which any element of a filter meets a run of bytes at neighbouring places.

With a stride, elements so many apart lie together: a channel is one plane for each remainder of coordinates (a phase).
Rows of a plane have place for what filters meet beside the last position, so the next row follows evenly.
"""

from functools import lru_cache

from app.devices.cpu.llvm.text import Text

WINDOWS = (
    *("elements", "zero", "padded"),
    *("first_group", "end_group", "first", "end"),
    *("group", "channel", "padded_group", "padded_channel"),
    *(f"{what}_{axis}" for what in ("size", "stride", "start", "phases", "padded") for axis in ("y", "x")),
)
"""What the frame has, 8 bytes each: three addresses, then numbers. From `first` to before `end` of each is written:
groups, that is items, and channels, which lie so many bytes apart, as they are and padded. `padded` are the sizes of a
plane."""


@lru_cache(8)
def source(stride: int) -> str:
    """The module whose function `kernel` takes a frame. `stride` is that along x, or 0 where the frame tells."""
    text = Text(1)
    frame = text.frame(WINDOWS, 3)
    zero = text.let(f"load i8, ptr {frame['zero']}")
    step = str(stride) if stride else frame["stride_x"]
    with (
        text.loop(frame["first_group"], frame["end_group"], "1") as group,
        text.loop(frame["first"], frame["end"], "1") as channel,
    ):
        given = text.behind(frame["elements"], (group.index, frame["group"]), (channel.index, frame["channel"]))
        padded = text.behind(frame["padded"], (group.index, frame["padded_group"]))
        padded = text.behind(padded, (channel.index, frame["padded_channel"]))
        text.declare("void", "llvm.memset.p0.i64", "ptr a, i8 b, i64 c, i1 d")
        filled = f"ptr {padded}, i8 {zero}, i64 {frame['padded_channel']}, i1 false"
        text.do(f"call void @llvm.memset.p0.i64({filled})")
        with (
            text.loop("0", frame["phases_y"], "1") as of_y,
            text.loop("0", frame["phases_x"], "1") as of_x,
        ):
            low, high = _met(text, frame, step, of_x.index)
            count = text.sub(high, low)
            plane = text.add(text.mul(of_y.index, frame["phases_x"]), of_x.index)
            first = text.sub(text.add(text.mul(low, step), of_x.index), frame["start_x"])
            with text.loop("0", frame["padded_y"], "1") as row:
                y = text.add(text.mul(row.index, frame["stride_y"]), text.sub(of_y.index, frame["start_y"]))
                is_inside = text.let(f"icmp ult i64 {y}, {frame['size_y']}")
                is_any = text.let(f"icmp ne i64 {count}, 0")
                with text.when(text.let(f"and i1 {is_inside}, {is_any}")):
                    line = text.at(given, text.add(text.mul(y, frame["size_x"]), first), "i8")
                    before = text.add(text.mul(plane, frame["padded_y"]), row.index)
                    there = text.at(padded, text.add(text.mul(before, frame["padded_x"]), low), "i8")
                    with text.parallel(count) as each:
                        place = text.at(line, text.mul(each.index, step), "i8")
                        byte = text.let(f"load i8, ptr {place}, !llvm.access.group !2")
                        text.do(f"store i8 {byte}, ptr {text.at(there, each.index, 'i8')}, !llvm.access.group !2")
    return text.module()


def _met(text: Text, frame: dict[str, str], step: str, phase: str) -> tuple[str, str]:
    """From which place of a row of a plane to before which one the tensor is."""
    shift = text.sub(text.add(frame["start_x"], text.sub(step, "1")), phase)
    shift_or_0 = text.call("i64", "llvm.smax.i64", f"i64 {shift}, i64 0")
    low = text.least(text.let(f"udiv i64 {shift_or_0}, {step}"), frame["padded_x"])
    end = text.call("i64", "llvm.smax.i64", f"i64 {text.add(frame['size_x'], shift)}, i64 0")
    high = text.least(text.let(f"udiv i64 {end}, {step}"), frame["padded_x"])
    return low, text.call("i64", "llvm.umax.i64", f"i64 {high}, i64 {low}")
