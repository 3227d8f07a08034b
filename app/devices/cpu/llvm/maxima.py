"""Maxima of windows, channel by channel: each element of a window is taken at all positions at once."""

from app.devices.cpu.llvm.spreading import meetings
from app.devices.cpu.llvm.text import Text

FIELDS = (
    *("elements", "results", "table"),
    *("first", "last", "channel_size", "size"),
    *("extent_z", "extent_y", "extent_x", "positions_y", "positions_x", "size_y", "size_x"),
    *("stride_z", "stride_y", "stride_x"),
)
"""What the frame has, 8 bytes each: three addresses, then numbers. Of channels, those from the `first` to before the
`last` are taken, of `channel_size` elements each, and so many results, the `size`. The `table` is that of
`spreading`."""

_LEAST = "0xFFF0000000000000"
"""-inf"""


def source(width: int, stride: int) -> str:
    """The module whose function `kernel` takes a frame. `stride` is that along x, or 0 where the frame tells."""
    text = Text(width)
    frame = text.frame(FIELDS, 3)
    step = str(stride) if stride else frame["stride_x"]
    with text.loop(frame["first"], frame["last"], "1") as channel:
        elements = text.at(frame["elements"], text.mul(channel.index, frame["channel_size"]))
        results = text.at(frame["results"], text.mul(channel.index, frame["size"]))
        text.each(frame["size"], [], [results], lambda: _LEAST)
        with meetings(text, frame, frame["extent_x"]) as (_, position, element, count):
            read, written = text.at(elements, element), text.at(results, position)
            with text.parallel(count) as each:
                target = text.at(written, each.index)
                old, new = (
                    text.let(f"load float, ptr {pointer}, align 4, !llvm.access.group !2")
                    for pointer in (target, text.at(read, text.mul(each.index, step)))
                )
                made = text.call("float", "llvm.maximum.f32", f"float {old}, float {new}")
                text.do(f"store float {made}, ptr {target}, align 4, !llvm.access.group !2")
    return text.module()
