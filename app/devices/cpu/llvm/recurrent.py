"""Recurrent networks: what one direction of a layer begins with, its inputs weighted, all its steps, and its end.

Weights are read as they lie, a gate's row for each hidden element, in vectors along the row.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from app.devices.cpu.llvm import dots
from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.text import Text

FIELDS = (
    *("recurrence", "bias", "peephole", "projected", "lengths", "hidden", "cell", "sums", "reset", "sequence"),
    *("first", "count", "direction", "first_projected", "sequences"),
    *("size", "packed", "sequence_step", "threshold"),
)
"""What the frame has, 8 bytes each: ten addresses, then numbers, then the activations' attributes. Of the steps,
`count` are taken from the `first` on, each `direction` after the other. Of each, `projected` has the weighted input and
its biases, from those of a step on, the first one there, of so many `sequences`; `bias` are those of the states'
weights that are not in it. Of each item of the batch `hidden` has `size` elements, followed by zeros to so many as are
`packed`, and is as the last step left it; `cell` has as many as `size`, `sums` as all gates. `reset` is packed as well.
`sequence` is where the first step's output goes, and the next one's so far behind. The `threshold` is a float32."""


BEGIN_FIELDS = (
    *("given_bias", "given_hidden", "given_cell", "bias", "hidden", "reset", "cell"),
    *("rows", "together", "size", "packed"),
)
"""The same of what comes before: seven addresses, of which those that are given may be missing, then numbers. `bias`
has so many `rows`; the first ones, so many as are `together`, are sums of the weights' biases and the states'."""

WEIGHTING_FIELDS = (
    *("elements", "weights", "bias", "results", "panel"),
    *("first", "last", "count", "depth", "packed", "rows"),
)
"""The same of the inputs' weights: five addresses, then numbers. Of `count` inputs of `depth` elements, those from the
`first` to before the `last` are taken; `packed` is the depth in whole vectors. `panel` is memory for those at once."""

END_FIELDS = ("hidden", "cell", "single", "cell_single", "size", "packed")
"""The same of what is left: four addresses, of which the last two may be missing, then numbers."""


@dataclass(frozen=True, slots=True)
class CodeForm:
    """What the code is written for."""

    kind: Literal["rnn", "lstm", "gru"]
    width: int
    """Of vectors."""
    batch: int
    """Sequences that it takes the steps of."""
    has_lengths: bool
    has_sequence: bool
    has_peephole: bool = False
    is_clipped: bool = False
    is_coupled: bool = False
    is_linear: bool = False
    """Whether a GRU's states are weighted before they are reset."""
    weights: Literal["float", "half"] = "float"
    """What the states' weights are in memory; all else is float."""

    @property
    def gates(self) -> int:
        return {"rnn": 1, "lstm": 4, "gru": 3}[self.kind]


def source(form: CodeForm, activations: Sequence[Element]) -> str:
    """The module whose function `kernel` takes a frame. The activations differ in their names."""
    text = Text(form.width)
    frame = text.frame(FIELDS, 10)
    place, attributes = len(FIELDS), []
    for each in activations:
        attributes.append(text.attributes(each, place))
        place += len(each.parameters)
    with text.loop("0", frame["count"], "1") as step:
        at = text.add(frame["first"], text.mul(step.index, frame["direction"]))
        _Network(text, form, frame, at, [*zip(activations, attributes, strict=True)]).write()
    return text.module(*activations)


@lru_cache(64)
def beginning(width: int, batch: int, *, has_bias: bool, has_hidden: bool, has_cell: bool) -> str:
    """The module whose function `kernel` makes states and biases of what is given, and zeros of what is not."""
    text = Text(width)
    frame = text.frame(BEGIN_FIELDS, 7)
    size, packed, rows, together = (frame[name] for name in ("size", "packed", "rows", "together"))
    if has_bias:
        given, bias = frame["given_bias"], frame["bias"]
        text.each(
            together, [given, text.at(given, rows)], [bias], lambda own, other: text.let(f"fadd float {own}, {other}")
        )
        with text.when(text.let(f"icmp ult i64 {together}, {rows}")):
            text.each(text.sub(rows, together), [text.at(given, together)], [text.at(bias, together)], lambda own: own)
    else:
        text.each(rows, [], [frame["bias"]], lambda: "0.0")
    text.each(text.mul(packed, str(batch)), [], [frame["hidden"], frame["reset"]], lambda: "0.0")
    if has_hidden:
        _rows(text, batch, size, (frame["given_hidden"], size), (frame["hidden"], packed))
    given_cell = [frame["given_cell"]] if has_cell else []
    text.each(text.mul(size, str(batch)), given_cell, [frame["cell"]], lambda *given: given[0] if given else "0.0")
    return text.module()


@lru_cache(16)
def weighting(width: int, at_once: int, weights: Literal["float", "half"] = "float") -> str:
    """The module whose function `kernel` weights inputs, so many at once, to which the last ones go back. `weights` is
    what theirs are in memory."""
    text = Text(width)
    frame = text.frame(WEIGHTING_FIELDS, 5)
    depth, packed, rows = (frame[name] for name in ("depth", "packed", "rows"))
    text.each(text.mul(packed, str(at_once)), [], [frame["panel"]], lambda: "0.0")
    with text.loop(frame["first"], frame["last"], str(at_once)) as turn:
        start = text.least(turn.index, text.sub(frame["count"], str(at_once)))
        _rows(
            text, at_once, depth, (text.at(frame["elements"], text.mul(start, depth)), depth), (frame["panel"], packed)
        )
        own = {
            "results": text.at(frame["results"], text.mul(start, rows)),
            "results_of_place": rows,
            "results_of_channel": "1",
        }
        products = dots.Products(text, dots.rows_for(at_once, width), at_once, frame | own, weights)
        products.write(("0", rows), depth)
    return text.module()


@lru_cache(64)
def ending(width: int, batch: int, *, has_single: bool, has_cell: bool) -> str:
    """The module whose function `kernel` stores the last states."""
    text = Text(width)
    frame = text.frame(END_FIELDS, 4)
    size = frame["size"]
    if has_single:
        _rows(text, batch, size, (frame["hidden"], frame["packed"]), (frame["single"], size))
    if has_cell:
        _rows(text, batch, size, (frame["cell"], size), (frame["cell_single"], size))
    return text.module()


def _rows(text: Text, count: int, size: str, source: tuple[str, str], target: tuple[str, str]) -> None:
    """Copy rows of so many elements; each array is where it begins, and how far it is to the next row."""
    with text.loop("0", str(count), "1") as row:
        (read, read_step), (written, written_step) = source, target
        text.each(
            size,
            [text.at(read, text.mul(row.index, read_step))],
            [text.at(written, text.mul(row.index, written_step))],
            lambda x: x,
        )


class _Network:
    """Writes one step."""

    def __init__(
        self,
        text: Text,
        form: CodeForm,
        frame: dict[str, str],
        step: str,
        activations: Sequence[tuple[Element, Sequence[str]]],
    ) -> None:
        self._text, self._form, self._step = text, form, step
        self._activations = activations
        self._size = frame["size"]
        of_place = text.mul(self._size, str(form.gates))
        before = text.mul(text.mul(text.sub(step, frame["first_projected"]), frame["sequences"]), of_place)
        self._frame = frame | {
            "projected": text.at(frame["projected"], before),
            "results_of_place": of_place,
            "results_of_channel": "1",
        }

    def write(self) -> None:
        {"rnn": self._rnn, "lstm": self._lstm, "gru": self._gru}[self._form.kind]()

    def _rnn(self) -> None:
        self._multiply(0, 1)
        with self._item() as item:
            item.activate(0, 0)
            item.keep([item.sums(0)], lambda x: x)

    def _lstm(self) -> None:
        text = self._text
        i, o, f, c = range(4)
        self._multiply(0, 4)
        with self._item() as item:
            cell = item.cell
            item.gate(i, 0)
            if self._form.is_coupled:
                item.each([item.sums(i)], [item.sums(f)], lambda x: text.let(f"fsub float 1.0, {x}"))
            else:
                item.gate(f, 2)
            if self._form.is_clipped:
                item.each([item.sums(c)], [item.sums(c)], item.clipped)
            item.activate(c, 1)
            item.each(
                [*map(item.sums, (f, i, c)), cell],
                [cell],
                lambda kept, added, new, old: item.sum(kept, old, added, new),
            )
            item.gate(o, 1)
            item.each([cell], [item.sums(c)], item.clipped)
            item.activate(c, 2)
            item.keep([item.sums(o), item.sums(c)], lambda gate, new: text.let(f"fmul float {gate}, {new}"))

    def _gru(self) -> None:
        text = self._text
        z, r, h = range(3)
        self._multiply(z, h)
        if self._form.is_linear:
            self._multiply(h, 3, bias=self._frame["bias"], bias_of_place="0")
            with self._item() as item:
                self._gru_gates(item)
                item.each(
                    [item.projected(h), item.sums(r), item.sums(h)],
                    [item.sums(h)],
                    lambda x, gate, state: text.let(f"fadd float {x}, {text.let(f'fmul float {gate}, {state}')}"),
                )
                self._gru_state(item)
        else:
            with self._item(ends=False) as item:
                self._gru_gates(item)
                item.each(
                    [item.sums(r), item.hidden],
                    [item.reset],
                    lambda gate, state: text.let(f"fmul float {gate}, {state}"),
                )
            self._multiply(h, 3, panel=self._frame["reset"])
            with self._item() as item:
                self._gru_state(item)

    def _gru_gates(self, item: "_Item") -> None:
        item.activate(0, 0)
        item.activate(1, 0)

    def _gru_state(self, item: "_Item") -> None:
        item.activate(2, 1)
        item.keep(
            [item.sums(0), item.sums(2), item.hidden],
            lambda kept, new, old: item.sum(self._text.let(f"fsub float 1.0, {kept}"), new, kept, old),
        )

    def _multiply(self, first: int, last: int, **others: str) -> None:
        """The sums of gates, of all items."""
        text, frame = self._text, self._frame
        channels = [text.mul(self._size, str(each)) for each in (first, last)]
        given = frame | {
            "weights": frame["recurrence"],
            "panel": frame["hidden"],
            "bias": frame["projected"],
            "bias_of_place": frame["results_of_place"],
            "results": frame["sums"],
        }
        batch = self._form.batch
        rows = dots.rows_for(batch, text.width)
        products = dots.Products(text, rows, batch, given | others, self._form.weights)
        products.write((channels[0], channels[1]), self._size)

    @contextmanager
    def _item(self, *, ends: bool = True) -> Iterator["_Item"]:
        """What is done for each item of the batch whose sequence is as long. `ends` says whether outputs of others are
        written here."""
        text, frame = self._text, self._frame
        with text.loop("0", str(self._form.batch), "1") as number:
            item = _Item(text, self._form, frame, number.index, self._step, self._activations)
            if not self._form.has_lengths:
                yield item
                return
            length = text.let(f"load i32, ptr {text.at(frame['lengths'], number.index, 'i32')}, align 4")
            length = text.let(f"zext i32 {length} to i64")
            with text.when(text.let(f"icmp ult i64 {self._step}, {length}")):
                yield item
            if self._form.has_sequence and ends:
                with text.when(text.let(f"icmp uge i64 {self._step}, {length}")):
                    item.each([], [item.output], lambda: "0.0")


class _Item:
    """Writes what happens to the elements of one item of the batch."""

    def __init__(
        self,
        text: Text,
        form: CodeForm,
        frame: dict[str, str],
        number: str,
        step: str,
        activations: Sequence[tuple[Element, Sequence[str]]],
    ) -> None:
        self._text, self._form, self._frame = text, form, frame
        self._activations = activations
        self._size = frame["size"]
        states, packed = text.mul(self._size, number), text.mul(frame["packed"], number)
        gates = text.mul(frame["results_of_place"], number)
        self._sums, self._projected = text.at(frame["sums"], gates), text.at(frame["projected"], gates)
        self.hidden, self.reset = text.at(frame["hidden"], packed), text.at(frame["reset"], packed)
        self.cell = text.at(frame["cell"], states)
        self.output = text.at(frame["sequence"], text.add(text.mul(step, frame["sequence_step"]), states))

    def sums(self, gate: int) -> str:
        return self._text.at(self._sums, self._text.mul(self._size, str(gate)))

    def projected(self, gate: int) -> str:
        return self._text.at(self._projected, self._text.mul(self._size, str(gate)))

    def gate(self, gate: int, peephole: int) -> None:
        """One that may look at the cell, activated."""
        text, sums, cell = self._text, self.sums(gate), self.cell
        if self._form.has_peephole:
            own = text.at(self._frame["peephole"], text.mul(self._size, str(peephole)))

            def made(x: str, weight: str, cell: str) -> str:
                return self.clipped(text.let(f"fadd float {x}, {text.let(f'fmul float {weight}, {cell}')}"))

            self.each([sums, own, cell], [sums], made)
        elif self._form.is_clipped:
            self.each([sums], [sums], self.clipped)
        self.activate(gate, 0)

    def clipped(self, x: str) -> str:
        """What is no number stays as it is."""
        if not self._form.is_clipped:
            return x
        text = self._text
        bits = text.let(f"trunc i64 {self._frame['threshold']} to i32")
        most = text.let(f"bitcast i32 {bits} to float")
        least = text.let(f"fneg float {most}")
        x = text.let(f"select i1 {text.let(f'fcmp olt float {x}, {least}')}, float {least}, float {x}")
        return text.let(f"select i1 {text.let(f'fcmp ogt float {x}, {most}')}, float {most}, float {x}")

    def sum(self, a: str, b: str, c: str, d: str) -> str:
        """a * b + c * d"""
        products = [self._text.let(f"fmul float {x}, {y}") for x, y in ((a, b), (c, d))]
        return self._text.let(f"fadd float {products[0]}, {products[1]}")

    def each(self, reads: Sequence[str], writes: Sequence[str], made: Callable[..., str]) -> None:
        self._text.each(self._size, reads, writes, made)

    def activate(self, gate: int, number: int) -> None:
        activation, attributes = self._activations[number]
        self._text.activate(activation, attributes, self.sums(gate), self._size)

    def keep(self, reads: Sequence[str], made: Callable[..., str]) -> None:
        """The state that is the output."""
        outputs = [self.output] if self._form.has_sequence else []
        self.each(reads, [self.hidden, *outputs], made)
