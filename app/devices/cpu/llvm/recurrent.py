"""Recurrent networks: all steps of one direction of a layer, for inputs that are weighted already.

Weights of the states are read as they lie, a gate's row for each hidden element, in vectors along the row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from app.devices.cpu.llvm import dots
from app.devices.cpu.llvm.lowering import Element
from app.devices.cpu.llvm.text import Text

FIELDS = (
    *("recurrence", "bias", "peephole", "projected", "lengths", "hidden", "cell", "sums", "reset", "sequence"),
    *("first", "count", "direction", "first_projected", "batch", "size", "packed", "sequence_step", "threshold"),
)
"""What the frame has, 8 bytes each: ten addresses, then numbers, then the activations' attributes. Of the steps,
`count` are taken from the `first` on, each `direction` after the other. Of each, `projected` has the weighted input and
its biases, from those of a step on, the first one there; `bias` are those of the states' weights that are not in it.
Of each item of the batch `hidden` has `size` elements, followed by zeros to so many as are `packed`, and is as the last
step left it; `cell` has as many as `size`, `sums` as all gates. `reset` is packed as well. `sequence` is where the
first step's output goes, and the next one's so far behind. The `threshold` is a float32."""

ROWS = 8
"""Of weights that are multiplied at a time."""


@dataclass(frozen=True, slots=True)
class Form:
    """What the code is written for."""

    kind: Literal["rnn", "lstm", "gru"]
    width: int
    """Of vectors."""
    has_lengths: bool
    has_sequence: bool
    has_peephole: bool = False
    is_clipped: bool = False
    is_coupled: bool = False
    is_linear: bool = False
    """Whether a GRU's states are weighted before they are reset."""

    @property
    def gates(self) -> int:
        return {"rnn": 1, "lstm": 4, "gru": 3}[self.kind]


def source(form: Form, activations: Sequence[Element]) -> str:
    """The module whose function `kernel` takes a frame. The activations differ in their names."""
    text = Text(form.width)
    frame = text.frame(FIELDS, 10)
    place, attributes = len(FIELDS), []
    for each in activations:
        attributes.append(text.attributes(each, place))
        place += len(each.parameters)
    with text.loop("0", frame["count"], "1") as step, text.loop("0", frame["batch"], "1") as item:
        at = text.add(frame["first"], text.mul(step.index, frame["direction"]))
        states = text.mul(frame["size"], item.index)
        output = text.at(frame["sequence"], text.add(text.mul(at, frame["sequence_step"]), states))
        row = text.add(text.mul(text.sub(at, frame["first_projected"]), frame["batch"]), item.index)
        network = _Network(
            text,
            form,
            frame
            | {
                "weights": frame["recurrence"],
                "panel": text.at(frame["hidden"], text.mul(frame["packed"], item.index)),
                "bias_of_states": frame["bias"],
                "bias": text.at(frame["projected"], text.mul(row, text.mul(frame["size"], str(form.gates)))),
                "results": frame["sums"],
                "cell": text.at(frame["cell"], states),
            },
            output,
            [*zip(activations, attributes, strict=True)],
        )
        if not form.has_lengths:
            network.step()
        else:
            length = text.let(f"load i32, ptr {text.at(frame['lengths'], item.index, 'i32')}, align 4")
            length = text.let(f"zext i32 {length} to i64")
            with text.when(text.let(f"icmp ult i64 {at}, {length}")):
                network.step()
            if form.has_sequence:
                with text.when(text.let(f"icmp uge i64 {at}, {length}")):
                    text.each(frame["size"], [], [output], lambda: "0.0")
    return text.module(*activations)


class _Network:
    """Writes one step of one item."""

    def __init__(
        self,
        text: Text,
        form: Form,
        frame: dict[str, str],
        output: str,
        activations: Sequence[tuple[Element, Sequence[str]]],
    ) -> None:
        """What `frame` has of weights, panel, bias and results is as `dots.products` wants it."""
        self._text, self._form, self._frame = text, form, frame
        self._output = output
        self._activations = activations
        self._size = frame["size"]

    def step(self) -> None:
        {"rnn": self._rnn, "lstm": self._lstm, "gru": self._gru}[self._form.kind]()

    def _rnn(self) -> None:
        self._multiply(0, 1)
        self._activate(0, 0)
        self._keep([self._sums(0)], lambda x: x)

    def _lstm(self) -> None:
        text, cell = self._text, self._frame["cell"]
        i, o, f, c = range(4)
        self._multiply(0, 4)
        self._gate(i, 0)
        if self._form.is_coupled:
            self._each([self._sums(i)], [self._sums(f)], lambda x: text.let(f"fsub float 1.0, {x}"))
        else:
            self._gate(f, 2)
        if self._form.is_clipped:
            self._each([self._sums(c)], [self._sums(c)], self._clipped)
        self._activate(c, 1)
        self._each(
            [*map(self._sums, (f, i, c)), cell], [cell], lambda kept, added, new, old: self._sum(kept, old, added, new)
        )
        self._gate(o, 1)
        self._each([cell], [self._sums(c)], self._clipped)
        self._activate(c, 2)
        self._keep([self._sums(o), self._sums(c)], lambda gate, new: text.let(f"fmul float {gate}, {new}"))

    def _gru(self) -> None:
        text, frame = self._text, self._frame
        hidden, reset = frame["panel"], frame["reset"]
        z, r, h = range(3)
        self._multiply(0, 2)
        self._activate(z, 0)
        self._activate(r, 0)
        if self._form.is_linear:
            self._multiply(2, 3, bias=frame["bias_of_states"])
            projected = text.at(frame["bias"], text.mul(self._size, str(h)))
            self._each(
                [projected, self._sums(r), self._sums(h)],
                [self._sums(h)],
                lambda x, gate, state: text.let(f"fadd float {x}, {text.let(f'fmul float {gate}, {state}')}"),
            )
        else:
            self._each([self._sums(r), hidden], [reset], lambda gate, state: text.let(f"fmul float {gate}, {state}"))
            self._multiply(2, 3, panel=reset)
        self._activate(h, 1)
        self._keep(
            [self._sums(z), self._sums(h), hidden],
            lambda kept, new, old: self._sum(text.let(f"fsub float 1.0, {kept}"), new, kept, old),
        )

    def _multiply(self, first: int, last: int, **others: str) -> None:
        """The sums of gates."""
        channels = [self._text.mul(self._size, str(each)) for each in (first, last)]
        dots.products(self._text, (ROWS, 1), self._frame | others, (channels[0], channels[1]), self._size)

    def _sums(self, gate: int) -> str:
        return self._text.at(self._frame["sums"], self._text.mul(self._size, str(gate)))

    def _gate(self, gate: int, peephole: int) -> None:
        """One that may look at the cell, activated."""
        text, sums, cell = self._text, self._sums(gate), self._frame["cell"]
        if self._form.has_peephole:
            own = text.at(self._frame["peephole"], text.mul(self._size, str(peephole)))

            def made(x: str, weight: str, cell: str) -> str:
                return self._clipped(text.let(f"fadd float {x}, {text.let(f'fmul float {weight}, {cell}')}"))

            self._each([sums, own, cell], [sums], made)
        elif self._form.is_clipped:
            self._each([sums], [sums], self._clipped)
        self._activate(gate, 0)

    def _clipped(self, x: str) -> str:
        """What is no number stays as it is."""
        if not self._form.is_clipped:
            return x
        text = self._text
        bits = text.let(f"trunc i64 {self._frame['threshold']} to i32")
        most = text.let(f"bitcast i32 {bits} to float")
        least = text.let(f"fneg float {most}")
        x = text.let(f"select i1 {text.let(f'fcmp olt float {x}, {least}')}, float {least}, float {x}")
        return text.let(f"select i1 {text.let(f'fcmp ogt float {x}, {most}')}, float {most}, float {x}")

    def _sum(self, a: str, b: str, c: str, d: str) -> str:
        """a * b + c * d"""
        products = [self._text.let(f"fmul float {x}, {y}") for x, y in ((a, b), (c, d))]
        return self._text.let(f"fadd float {products[0]}, {products[1]}")

    def _each(self, reads: Sequence[str], writes: Sequence[str], made: Callable[..., str]) -> None:
        self._text.each(self._size, reads, writes, made)

    def _activate(self, gate: int, number: int) -> None:
        activation, attributes = self._activations[number]
        self._text.activate(activation, attributes, self._sums(gate), self._size)

    def _keep(self, reads: Sequence[str], made: Callable[..., str]) -> None:
        """The state that is the output."""
        outputs = [self._output] if self._form.has_sequence else []
        self._each(reads, [self._frame["panel"], *outputs], made)
