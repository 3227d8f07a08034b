"""Recurrent networks: what one direction of a layer begins with, its inputs weighted, all its steps, and its end.

Weights are read as they lie, a gate's row for each hidden element, in vectors along the row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from string import ascii_letters
from typing import Literal, NamedTuple

from app.devices.cpu.llvm import dots
from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.text import Text
from app.operators.recurrent.cells import CELL, GIVEN, HIDDEN, PEEPHOLE

FIELDS = (
    *("recurrence", "bias", "peephole", "projected", "lengths", "hidden", "cell", "sums", "reset", "sequence"),
    *("first", "count", "direction", "first_projected", "sequences"),
    *("size", "packed", "sequence_step"),
)
"""What the frame has, 8 bytes each: ten addresses, then numbers, then the attributes of the formulas. Of the steps,
`count` are taken from the `first` on, each `direction` after the other. Of each, `projected` has the weighted input and
its biases, from those of a step on, the first one there, of so many `sequences`; `bias` are those of the states'
weights that are not in it. Of each item of the batch `hidden` has `size` elements, followed by zeros to so many as are
`packed`, and is as the last step left it; `cell` has as many as `size`, `sums` as all gates. `reset` is packed as well.
`sequence` is where the first step's output goes, and the next one's so far behind."""


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


SUM = "Sum"
"""Of a gate, what is left of its products: all, or the state, weighted, with its bias where that stands apart."""


@dataclass(frozen=True, eq=False, slots=True)
class Stage:
    """What is made of which arrays: they are called as in `operators/recurrent/cells.py`."""

    made: str
    element: Element


class Round(NamedTuple):
    """Gates whose states are weighted at once, and stages that follow."""

    gates: tuple[int, ...]
    apart: tuple[int, ...]
    """Those, after all others, whose states are not added to what is given."""
    of: str
    """The state that is weighted."""
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class CodeForm:
    """What the code is written for."""

    rounds: tuple[Round, ...]
    gates: int
    width: int
    """Of vectors."""
    batch: int
    """Sequences that it takes the steps of."""
    has_lengths: bool
    has_sequence: bool
    weights: Literal["float", "half"] = "float"
    """What the states' weights are in memory; all else is float."""


def source(form: CodeForm) -> str:
    """The module whose function `kernel` takes a frame."""
    text = Text(form.width)
    frame = text.frame(FIELDS, 10)
    elements = [stage.element for each in form.rounds for stage in each.stages]
    place, attributes = len(FIELDS), {}
    for each in elements:
        attributes[each.name] = text.attributes(each, place)
        place += len(each.parameters)
    with text.loop("0", frame["count"], "1") as step:
        at = text.add(frame["first"], text.mul(step.index, frame["direction"]))
        _Network(text, form, frame, at, attributes).write()
    return text.module(*elements)


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
        self, text: Text, form: CodeForm, frame: dict[str, str], step: str, attributes: Mapping[str, Sequence[str]]
    ) -> None:
        self._text, self._form, self._step = text, form, step
        self._attributes = attributes
        self._size = frame["size"]
        of_place = text.mul(self._size, str(form.gates))
        before = text.mul(text.mul(text.sub(step, frame["first_projected"]), frame["sequences"]), of_place)
        self._frame = frame | {
            "projected": text.at(frame["projected"], before),
            "results_of_place": of_place,
            "results_of_channel": "1",
        }

    def write(self) -> None:
        for each in self._form.rounds:
            panel = self._frame[each.of.lower()]
            together = [gate for gate in each.gates if gate not in each.apart]
            if together:
                self._multiply(together, panel=panel)
            if each.apart:
                self._multiply(each.apart, panel=panel, bias=self._frame["bias"], bias_of_place="0")
            self._compute(each.stages, is_last=each is self._form.rounds[-1])

    def _multiply(self, gates: Sequence[int], **others: str) -> None:
        """The sums of gates, of all items."""
        text, frame = self._text, self._frame
        channels = [text.mul(self._size, str(each)) for each in (gates[0], gates[-1] + 1)]
        given = frame | {
            "weights": frame["recurrence"],
            "bias": frame["projected"],
            "bias_of_place": frame["results_of_place"],
            "results": frame["sums"],
        }
        batch = self._form.batch
        rows = dots.rows_for(batch, text.width)
        products = dots.Products(text, rows, batch, given | others, self._form.weights)
        products.write((channels[0], channels[1]), self._size)

    def _compute(self, stages: Sequence[Stage], *, is_last: bool) -> None:
        """Stages, of each item of the batch whose sequence is as long; outputs of others are 0 after the last one."""
        text, frame = self._text, self._frame
        with text.loop("0", str(self._form.batch), "1") as number:
            if not self._form.has_lengths:
                self._compute_item(stages, number.index)
                return
            length = text.let(f"load i32, ptr {text.at(frame['lengths'], number.index, 'i32')}, align 4")
            length = text.let(f"zext i32 {length} to i64")
            with text.when(text.let(f"icmp ult i64 {self._step}, {length}")):
                self._compute_item(stages, number.index)
            if self._form.has_sequence and is_last:
                with text.when(text.let(f"icmp uge i64 {self._step}, {length}")):
                    text.each(self._size, [], [self._output(number.index)], lambda: "0.0")

    def _compute_item(self, stages: Sequence[Stage], item: str) -> None:
        for each in stages:
            reads = [self._place(name, item) for name in each.element.inputs]
            outputs = [self._output(item)] if each.made == HIDDEN and self._form.has_sequence else []
            writes = [self._place(each.made, item), *outputs]
            self._text.each(self._size, reads, writes, partial(self._call, each.element))

    def _call(self, element: Element, *given: str) -> str:
        arguments = [f"float {each}" for each in given] + [*self._attributes[element.name]]
        return self._text.let(f"call float @{element.name}({', '.join(arguments)})")

    def _place(self, name: str, item: str) -> str:
        """Where an item's elements of an array begin."""
        text, frame = self._text, self._frame
        kind, number = name.rstrip("0123456789"), name.lstrip(ascii_letters)
        if kind == PEEPHOLE:
            return text.at(frame["peephole"], text.mul(self._size, number))
        if number:
            array = text.at(frame["projected" if kind == GIVEN else "sums"], text.mul(frame["results_of_place"], item))
            return text.at(array, text.mul(self._size, number))
        return text.at(frame[name.lower()], text.mul(self._size if name == CELL else frame["packed"], item))

    def _output(self, item: str) -> str:
        text, frame = self._text, self._frame
        of_step = text.mul(self._step, frame["sequence_step"])
        return text.at(frame["sequence"], text.add(of_step, text.mul(self._size, item)))
