"""Rows of phases, interleaved: what transposed convolutions with strides make phase by phase."""

from functools import lru_cache

from app.devices.cpu.llvm.text import Text

AXES = ("z", "y", "x")

FIELDS = (
    *("phases", "results", "table"),
    *("first", "last", "size", "size_z", "size_y", "size_x", "stride_z", "stride_y", "stride_x"),
)
"""What the frame has, 8 bytes each: three addresses, then numbers. Channels from the `first` to before the `last` are
taken, each of so many elements, its `size`, in rows along x. Along each dimension elements take turns of a stride. For
each of the phases that these make, the last dimension's fastest, the `table` has five numbers: how far behind `phases`
its first channel is, elements of a channel, its rows along y, elements of a row, and how many of these all phases have
that share the output's row."""

NUMBERS = 5


@lru_cache(8)
def source(stride: int) -> str:
    """The module whose function `kernel` takes a frame. `stride` is that along x, of which elements are stored side by
    side."""
    text = Text(0)
    frame = text.frame(FIELDS, 3)
    with (
        text.loop(frame["first"], frame["last"], "1") as channel,
        text.loop("0", frame["size_z"], "1") as z,
        text.loop("0", frame["size_y"], "1") as y,
    ):
        (turn_z, phase_z), (turn_y, phase_y) = (
            [text.let(f"u{name} i64 {each.index}, {frame[f'stride_{axis}']}") for name in ("div", "rem")]
            for each, axis in ((z, "z"), (y, "y"))
        )
        phase = text.mul(text.add(text.mul(phase_z, frame["stride_y"]), phase_y), str(stride * NUMBERS))
        rows, counts = [], []
        for number in range(stride):
            table = text.at(frame["table"], text.add(phase, str(number * NUMBERS)), "i64")
            before, elements, lines, count, whole = (
                text.let(f"load i64, ptr {text.at(table, str(each), 'i64')}") for each in range(NUMBERS)
            )
            line = text.add(text.mul(turn_z, lines), turn_y)
            row = text.add(text.add(before, text.mul(channel.index, elements)), text.mul(line, count))
            rows.append(text.at(frame["phases"], row))
            counts.append(count)
        line = text.add(text.mul(z.index, frame["size_y"]), y.index)
        made = text.add(text.mul(channel.index, frame["size"]), text.mul(line, frame["size_x"]))
        results = text.at(frame["results"], made)
        with text.when(text.let(f"icmp ne i64 {whole}, 0")), text.parallel(whole) as each:
            place = text.at(results, text.mul(each.index, str(stride)))
            for number, row in enumerate(rows):
                value = text.let(f"load float, ptr {text.at(row, each.index)}, align 4, !llvm.access.group !2")
                there = text.at(place, str(number))
                text.do(f"store float {value}, ptr {there}, align 4, !llvm.access.group !2")
        for number, (row, count) in enumerate(zip(rows, counts, strict=True)):
            with text.when(text.let(f"icmp ne i64 {count}, {whole}")):
                value = text.let(f"load float, ptr {text.at(row, whole)}, align 4")
                there = text.at(results, text.add(text.mul(whole, str(stride)), str(number)))
                text.do(f"store float {value}, ptr {there}, align 4")
    return text.module()
