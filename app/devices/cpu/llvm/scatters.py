"""Elements written to where indices lead along an axis, one after the other, so that the last one stays."""

from collections.abc import Sequence
from functools import lru_cache

from app.devices.cpu.llvm.bytes import copy
from app.devices.cpu.llvm.text import Text


@lru_cache(32)
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
        at = _place(text, text.at(frame["indices"], number, index), index, frame["size"], is_signed=is_signed)
        with text.when(text.let(f"icmp ult i64 {at}, {frame['size']}")):
            value = text.let(f"load {type_}, ptr {text.at(frame['updates'], number, type_)}, align 1")
            place = text.at(output, text.mul(at, frame["stride"]), "i8")
            text.do(f"store {type_} {value}, ptr {place}, align 1")

    around(names, "0", frame["output"])
    return text.module()


@lru_cache(32)
def tuples(size: int, index: str, length: int, *, is_signed: bool, is_one: bool) -> str:
    """The same of tuples of so many indices, a coordinate each, of which each leads to a part of the output: to one
    element of `size` bytes, if it `is_one`, else to some bytes.

    The frame has the addresses of indices, of updates and of the output; how many tuples there are, from one update to
    the next and how much is taken of it, in bytes; for each coordinate the size along it and its stride in bytes.
    """
    text = Text(0)
    names = [(f"size{number}", f"stride{number}") for number in range(length)]
    frame = text.frame(
        ("indices", "updates", "output", "count", "step", "taken", *(name for each in names for name in each)), 3
    )
    with text.loop("0", frame["count"], "1") as each:
        first = text.mul(each.index, str(length))
        inside, to = "true", frame["output"]
        for number, (along, stride) in enumerate(names):
            address = text.at(frame["indices"], text.add(first, str(number)), index)
            at = _place(text, address, index, frame[along], is_signed=is_signed)
            inside = text.let(f"and i1 {inside}, {text.let(f'icmp ult i64 {at}, {frame[along]}')}")
            to = text.at(to, text.mul(at, frame[stride]), "i8")
        with text.when(inside):
            update = text.at(frame["updates"], text.mul(each.index, frame["step"]), "i8")
            if is_one:
                value = text.let(f"load i{8 * size}, ptr {update}, align 1")
                text.do(f"store i{8 * size} {value}, ptr {to}, align 1")
            else:
                copy(text, to, update, frame["taken"])
    return text.module()


def _place(text: Text, address: str, index: str, size: str, *, is_signed: bool) -> str:
    """The coordinate that an index means along a dimension of a `size`, beyond it as a number without a sign."""
    at = text.let(f"load {index}, ptr {address}, align 1")
    if index != "i64":
        at = text.let(f"{'s' if is_signed else 'z'}ext {index} {at} to i64")
    if not is_signed:
        return at
    from_end = text.add(at, size)
    return text.let(f"select i1 {text.let(f'icmp slt i64 {at}, 0')}, i64 {from_end}, i64 {at}")
