"""Elements written to where indices lead along an axis, one after the other, so that the last one stays."""

from collections.abc import Sequence

from app.devices.cpu.llvm.text import Text


def source(size: int, index: str, dimensions: int, *, is_signed: bool) -> str:
    """The module whose function `kernel` takes a frame, of 8 bytes each: the addresses of indices, of updates and of
    the output; for each dimension of the indices its size, its stride in elements, which updates have as well, and its
    stride in bytes of the output, 0 for the axis; the output's size and its stride along the axis, in bytes.

    Elements have `size` bytes, indices are of LLVM's type `index`. Those that are negative count from the end; beyond
    the output nothing is written.
    """
    text = Text(0)
    names = [(f"count{axis}", f"step{axis}", f"to{axis}") for axis in range(dimensions)]
    frame = text.frame(
        ("indices", "updates", "output", *(name for each in names for name in each), "size", "stride"), 3
    )
    type_ = f"i{8 * size}"

    def around(left: Sequence[tuple[str, str, str]], number: str, output: str) -> None:
        if left:
            count, step, to = (frame[name] for name in left[0])
            with text.loop("0", count, "1") as each:
                moved = text.at(output, text.mul(each.index, to), "i8")
                around(left[1:], text.add(number, text.mul(each.index, step)), moved)
            return
        at = text.let(f"load {index}, ptr {text.at(frame['indices'], number, index)}, align 1")
        if index != "i64":
            at = text.let(f"{'s' if is_signed else 'z'}ext {index} {at} to i64")
        if is_signed:
            from_end = text.add(at, frame["size"])
            at = text.let(f"select i1 {text.let(f'icmp slt i64 {at}, 0')}, i64 {from_end}, i64 {at}")
        with text.when(text.let(f"icmp ult i64 {at}, {frame['size']}")):
            value = text.let(f"load {type_}, ptr {text.at(frame['updates'], number, type_)}, align 1")
            place = text.at(output, text.mul(at, frame["stride"]), "i8")
            text.do(f"store {type_} {value}, ptr {place}, align 1")

    around(names, "0", frame["output"])
    return text.module()


def copies() -> str:
    """The module whose function `kernel` copies bytes: its frame has the addresses of them and of their copies, and how
    many they are."""
    text = Text(0)
    frame = text.frame(("bytes", "copies", "count"), 2)
    text.declare("void", "llvm.memcpy.p0.p0.i64", "ptr a, ptr b, i64 c, i1 d")
    arguments = f"ptr {frame['copies']}, ptr {frame['bytes']}, i64 {frame['count']}, i1 false"
    text.do(f"call void @llvm.memcpy.p0.p0.i64({arguments})")
    return text.module()
