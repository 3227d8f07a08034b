"""Words of Philox 4x32-10, of several counters at once, and the state after them."""

from collections.abc import Sequence
from functools import lru_cache

from app.devices.cpu.llvm.text import Text
from app.operators.random_numbers.generators import MULTIPLIERS, ROUNDS, STATE, WEYL

WORDS = ("state", "words", "first", "count")
"""What the frame of `words` has, 8 bytes each: the addresses of the state and of the first word, how many counters
after that of the state its own is, and how many words are wanted."""

AFTER = ("state", "after", "count")
"""The same of `after`: the addresses of a state, and of the one that is so many counters after it."""

COUNTERS, AT_ONCE = 8, 32
"""Counters that a block is of, and its words."""

_WORDS, _WIDE = f"<{COUNTERS} x i32>", f"<{COUNTERS} x i64>"


@lru_cache(1)
def words() -> str:
    """The module whose function `kernel` makes consecutive words."""
    text = Text(COUNTERS)
    frame = text.frame(WORDS, 2)
    state = _state(text, frame["state"])
    whole = text.let(f"and i64 {frame['count']}, {-AT_ONCE}")
    with text.when(text.let(f"icmp ne i64 {whole}, 0")), text.loop("0", whole, str(AT_ONCE)) as block:
        made = _block(text, state, text.add(frame["first"], text.let(f"lshr i64 {block.index}, 2")))
        target = text.at(frame["words"], block.index, "i32")
        text.do(f"store <{AT_ONCE} x i32> {made}, ptr {target}, align 4")
    rest = text.let(f"alloca <{AT_ONCE} x i32>, align 64")
    with text.when(text.let(f"icmp ult i64 {whole}, {frame['count']}")):
        made = _block(text, state, text.add(frame["first"], text.let(f"lshr i64 {whole}, 2")))
        text.do(f"store <{AT_ONCE} x i32> {made}, ptr {rest}, align 64")
        with text.loop(whole, frame["count"], "1") as each:
            word = text.let(f"load i32, ptr {text.at(rest, text.sub(each.index, whole), 'i32')}, align 4")
            text.do(f"store i32 {word}, ptr {text.at(frame['words'], each.index, 'i32')}, align 4")
    return text.module()


@lru_cache(1)
def after() -> str:
    """The module whose function `kernel` makes a state."""
    text = Text(1)
    frame = text.frame(AFTER, 2)
    *counter, first, second = _state(text, frame["state"])
    low, high = _whole(text, counter)
    more = text.add(low, frame["count"])
    high = text.add(high, text.let(f"zext i1 {text.let(f'icmp ult i64 {more}, {low}')} to i64"))
    made = [
        text.let(f"trunc i64 {part} to i32")
        for whole in (more, high)
        for part in (whole, text.let(f"lshr i64 {whole}, 32"))
    ]
    for place, word in enumerate([*made, first, second]):
        text.do(f"store i32 {word}, ptr {text.at(frame['after'], str(place), 'i32')}, align 4")
    return text.module()


def _state(text: Text, pointer: str) -> list[str]:
    return [text.let(f"load i32, ptr {text.at(pointer, str(word), 'i32')}, align 4") for word in range(STATE)]


def _whole(text: Text, counter: Sequence[str]) -> list[str]:
    """The two halves of a counter of four words, 64 bits each."""
    wide = [text.let(f"zext i32 {word} to i64") for word in counter]
    return [text.let(f"or i64 {low}, {text.let(f'shl i64 {high}, 32')}") for low, high in (wide[:2], wide[2:])]


def _block(text: Text, state: Sequence[str], first: str) -> str:
    """The words of COUNTERS counters, of which the `first` is so many after that of the state."""
    low, high = (text.spread(half, "i64") for half in _whole(text, state[:4]))
    place = text.let(f"add {_WIDE} {text.spread(first, 'i64')}, {text.steps()}")
    more = text.let(f"add {_WIDE} {low}, {place}")
    carry = text.let(f"icmp ult {_WIDE} {more}, {low}")
    high = text.let(f"add {_WIDE} {high}, {text.let(f'zext <{COUNTERS} x i1> {carry} to {_WIDE}')}")
    words = [half for each in (more, high) for half in _halves(text, each)[::-1]]
    for turn in range(ROUNDS):
        (high0, low0), (high1, low1) = (
            _halves(text, text.let(f"mul {_WIDE} {wide}, {text.spread(str(factor), 'i64')}"))
            for wide, factor in (
                (text.let(f"zext {_WORDS} {word} to {_WIDE}"), factor)
                for word, factor in zip((words[0], words[2]), MULTIPLIERS, strict=True)
            )
        )
        bumped = [
            text.spread(text.let(f"add i32 {word}, {turn * step & 0xFFFFFFFF}"), "i32")
            for word, step in zip(state[4:], WEYL, strict=True)
        ]
        words = [
            _xor(text, _xor(text, high1, words[1]), bumped[0]),
            low1,
            _xor(text, _xor(text, high0, words[3]), bumped[1]),
            low0,
        ]
    pairs = [_joined(text, a, b, COUNTERS, range(2 * COUNTERS)) for a, b in (words[:2], words[2:])]
    order = [COUNTERS * word + counter for counter in range(COUNTERS) for word in range(4)]
    return _joined(text, pairs[0], pairs[1], 2 * COUNTERS, order)


def _halves(text: Text, wide: str) -> tuple[str, str]:
    """The upper and the lower words."""
    upper = text.let(f"lshr {_WIDE} {wide}, {text.spread('32', 'i64')}")
    high, low = (text.let(f"trunc {_WIDE} {each} to {_WORDS}") for each in (upper, wide))
    return high, low


def _xor(text: Text, a: str, b: str) -> str:
    return text.let(f"xor {_WORDS} {a}, {b}")


def _joined(text: Text, a: str, b: str, width: int, order: Sequence[int]) -> str:
    """Elements of two vectors, one behind the other, in an order."""
    mask = ", ".join(f"i32 {place}" for place in order)
    vector = f"<{width} x i32>"
    return text.let(f"shufflevector {vector} {a}, {vector} {b}, <{len(order)} x i32> <{mask}>")
