"""What RNN, LSTM and GRU do on the CPU, as calls of loops that LLVM compiled.

They are in stages: states and biases are made ready, then by turns some inputs are weighted and some steps taken, and
what is left is stored. Directions take them at the same time, and so do sequences.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Literal, NamedTuple

from app.contract.constants import DataType, RecurrentNetworkDirection
from app.devices.cpu.alone import TooMuchWork
from app.devices.cpu.calls import Call, Calls, Of, Pointer, pieces
from app.devices.cpu.llvm.code import Code
from app.devices.cpu.llvm.compiler import Compiler
from app.devices.cpu.llvm.recurrent import (
    BEGIN_FIELDS,
    END_FIELDS,
    FIELDS,
    WEIGHTING_FIELDS,
    CodeForm,
    beginning,
    ending,
    source,
    weighting,
)
from app.devices.cpu.llvm.types import bytes_of
from app.devices.cpu.recurrent_cells import LoweredCell
from app.devices.cpu.threads import parts
from app.memory.addresses import whole_lines
from app.operators.arrays import SCRATCH
from app.operators.recurrent.steps import Recurrent
from app.programs.dispatchable import Dispatchable

AT_ONCE = 8
"""Inputs that are weighted at once."""

LEAST, MOST = 2, 8
"""Sequences that steps are taken of together: of one alone, weights would be read as long as of two, and registers have
the sums of so many."""

AT_A_TIME = 1 << 26
"""Products that take some 5 ms, after which it is asked whether to go on."""

MOST_CALLS = 1 << 14
"""For all steps. A call takes 2 KiB and some 60 us to be made, so many of them a second: of many steps of many
sequences there would be gigabytes of them."""

WEIGHTS = ("WeightTensor", "RecurrenceTensor")
"""What is read as it lies."""

_GIVEN = ("BiasTensor", "HiddenInitTensor", "CellMemInitTensor")
_SINGLES = ("OutputSingleTensor", "OutputCellSingleTensor")


class _Memory(NamedTuple):
    """Where a direction has its own, in bytes, and of weighted inputs each call a panel."""

    bias: int
    hidden: int
    reset: int
    cell: int
    sums: int
    projected: int
    panels: Sequence[int]
    end: int

    @classmethod
    def of(cls, start: int, sizes: Sequence[int], panels: Sequence[int]) -> "_Memory":
        """For so many float32 of each."""
        places = [start]
        for size in (*sizes, *panels):
            places.append(places[-1] + whole_lines(4 * size))
        bias, hidden, reset, cell, sums, projected, *others, end = places
        return cls(bias, hidden, reset, cell, sums, projected, others, end)


class RecurrentCalls:
    """The calls for a layer whose tensors are packed, on at most so many `threads`. They are float32 but for lengths,
    and weights, which lie as they are described. Raises TooMuchWork where there would be too many."""

    def __init__(
        self,
        compiled: Dispatchable,
        operator: Recurrent,
        cells: Sequence[LoweredCell],
        compiler: Compiler,
        threads: int,
    ) -> None:
        self._threads = threads
        _, self._steps, self._batch, self._depth = operator.InputTensor.Sizes
        many, rows, self._size = operator.RecurrenceTensor.Sizes[1:]
        self._gates = rows // self._size
        self._directions = [
            each == 1 or operator.Direction is RecurrentNetworkDirection.BACKWARD for each in range(many)
        ]
        """Whether each goes from the last step to the first."""
        self._places = {name: Pointer(0, Of.INPUT, number) for number, name in enumerate(compiled.inputs)}
        self._places |= {name: Pointer(0, Of.OUTPUT, number) for number, name in enumerate(compiled.outputs)}
        names = self._places
        self._weights: Literal["float", "half"] = (
            "half" if operator.InputTensor.DataType is DataType.FLOAT16 else "float"
        )
        shares = max(-(-self._batch // MOST), min(threads // many, self._batch // LEAST), 1)
        self._shares = [*parts(range(self._batch), shares)]
        form = partial(
            CodeForm,
            gates=self._gates,
            width=compiler.vector_floats,
            has_lengths="SequenceLengthsTensor" in names,
            has_sequence="OutputSequenceTensor" in names,
            weights=self._weights,
        )
        self._together = rows - len(operator.apart) * self._size
        """So many of the states' biases are added with those of the input."""
        self._codes = [
            {count: Code(compiler, _source(form(cell.rounds, batch=count))) for count in {*map(len, self._shares)}}
            for cell in cells
        ]
        """Of each direction, by how many sequences it is for."""
        self._attributes = [cell.attributes for cell in cells]
        self._width = width = compiler.vector_floats
        self._work = rows * (self._depth + self._size) * self._batch
        at_a_time = max(min(AT_A_TIME // self._work, SCRATCH["numpy"] // (4 * rows * self._batch)), 1)
        self._parts = list(parts(range(self._steps), -(-self._steps // at_a_time)))
        self._at_once = min(AT_ONCE, self._batch * min(map(len, self._parts)))
        self._packed = -(-self._depth // width) * width
        has_bias, has_hidden, has_cell = (name in names for name in _GIVEN)
        begin = beginning(width, self._batch, has_bias=has_bias, has_hidden=has_hidden, has_cell=has_cell)
        self._begin = Code(compiler, begin)
        self._weighting = Code(compiler, weighting(width, self._at_once, self._weights))
        has_single, has_cell = (name in names for name in _SINGLES)
        self._end = None
        if has_single or has_cell:
            self._end = Code(compiler, ending(width, self._batch, has_single=has_single, has_cell=has_cell))
        self.work = self._work * self._steps * len(self._directions)
        """Products."""
        of_a_part = len(self._shares) + len(self._cut(range(max(map(len, self._parts)))))
        if len(self._directions) * len(self._parts) * of_a_part > MOST_CALLS:
            raise TooMuchWork
        self.calls = Calls([*self._stages()], self._memory[-1].end)

    def _stages(self) -> Iterator[list[Call]]:
        many = range(len(self._directions))
        yield [self._beginning(each) for each in many]
        for turn in range(len(self._parts)):
            yield [call for each in many for call in self._weighted(each, turn)]
            yield [self._stepped(each, turn, own) for each in many for own in self._shares]
        if self._end:
            yield [self._ending(self._end, each) for each in many]

    @property
    def _rows(self) -> int:
        return self._gates * self._size

    @cached_property
    def _memory(self) -> Sequence[_Memory]:
        """Of each direction."""
        most = max(map(len, self._parts))
        states, rows = self._batch * self._states, self._batch * self._rows
        sizes = [self._rows, states, states, self._batch * self._size, rows, rows * most]
        panels = [self._at_once * self._packed] * len(self._cut(range(most)))
        made: list[_Memory] = []
        for _ in self._directions:
            made.append(_Memory.of(made[-1].end if made else 0, sizes, panels))
        return made

    def _part(self, direction: int, turn: int) -> range:
        """Steps that a direction takes at that turn."""
        return self._parts[-1 - turn if self._directions[direction] else turn]

    def _cut(self, part: range) -> list[range]:
        """Which of a part's inputs are weighted by which call."""
        count = self._batch * len(part)
        turns = range(-(-count // self._at_once))
        some = pieces(self._rows * self._depth * count, self._threads)
        return [range(own.start * self._at_once, min(own.stop * self._at_once, count)) for own in parts(turns, some)]

    def _call(
        self,
        code: Code,
        fields: Sequence[str],
        numbers: Mapping[str, int],
        pointers: Mapping[str, Pointer | None],
        work: int,
    ) -> Call:
        frame = dict.fromkeys(fields, 0) | dict(numbers)
        places = [each._replace(place=fields.index(name)) for name, each in pointers.items() if each]
        return Call(code, array("q", frame.values()), places, work)

    def _tensor(self, name: str, elements: int = 0) -> Pointer | None:
        """So many elements behind the beginning of a tensor, if there is one."""
        found = self._places.get(name)
        each = bytes_of(self._weights) if name in WEIGHTS else 4
        return found._replace(offset=each * elements) if found else None

    def _beginning(self, direction: int) -> Call:
        memory, states = self._memory[direction], direction * self._batch * self._size
        numbers = {"rows": self._rows, "together": self._together, "size": self._size, "packed": self._states}
        pointers = {
            "given_bias": self._tensor("BiasTensor", direction * 2 * self._rows),
            "given_hidden": self._tensor("HiddenInitTensor", states),
            "given_cell": self._tensor("CellMemInitTensor", states),
            "bias": _own(memory.bias),
            "hidden": _own(memory.hidden),
            "reset": _own(memory.reset),
            "cell": _own(memory.cell),
        }
        work = self._rows + 3 * self._batch * self._size
        return self._call(self._begin, BEGIN_FIELDS, numbers, pointers, work)

    def _weighted(self, direction: int, turn: int) -> Iterator[Call]:
        memory, part = self._memory[direction], self._part(direction, turn)
        for inputs, panel in zip(self._cut(part), memory.panels, strict=False):
            numbers = {
                "first": inputs.start,
                "last": inputs.stop,
                "count": self._batch * len(part),
                "depth": self._depth,
                "packed": self._packed,
                "rows": self._rows,
            }
            pointers = {
                "elements": self._tensor("InputTensor", part.start * self._batch * self._depth),
                "weights": self._tensor("WeightTensor", direction * self._rows * self._depth),
                "bias": _own(memory.bias),
                "results": _own(memory.projected),
                "panel": _own(panel),
            }
            yield self._call(
                self._weighting, WEIGHTING_FIELDS, numbers, pointers, self._rows * self._depth * len(inputs)
            )

    def _stepped(self, direction: int, turn: int, own: range) -> Call:
        """The steps of some sequences."""
        memory, part = self._memory[direction], self._part(direction, turn)
        is_backward = self._directions[direction]
        many = len(self._directions)
        states, packed, gates = (own.start * each for each in (self._size, self._states, self._rows))
        numbers = {
            "first": part.stop - 1 if is_backward else part.start,
            "count": len(part),
            "direction": -1 if is_backward else 1,
            "first_projected": part.start,
            "sequences": self._batch,
            "size": self._size,
            "packed": self._states,
            "sequence_step": many * self._batch * self._size,
        }
        pointers = {
            "recurrence": self._tensor("RecurrenceTensor", direction * self._rows * self._size),
            "bias": self._tensor("BiasTensor", (2 * direction + 1) * self._rows) or _own(memory.bias),
            "peephole": self._tensor("PeepholeTensor", direction * 3 * self._size),
            "projected": _own(memory.projected, gates),
            "lengths": self._tensor("SequenceLengthsTensor", own.start),
            "hidden": _own(memory.hidden, packed),
            "cell": _own(memory.cell, states),
            "sums": _own(memory.sums, gates),
            "reset": _own(memory.reset, packed),
            "sequence": self._tensor("OutputSequenceTensor", direction * self._batch * self._size + states),
        }
        work = self._rows * self._size * len(own) * len(part)
        made = self._call(self._codes[direction][len(own)], FIELDS, numbers, pointers, work)
        return made._replace(frame=made.frame + array("q", self._attributes[direction]))

    def _ending(self, code: Code, direction: int) -> Call:
        memory, states = self._memory[direction], direction * self._batch * self._size
        single, cell_single = (self._tensor(name, states) for name in _SINGLES)
        pointers = {
            "hidden": _own(memory.hidden),
            "cell": _own(memory.cell),
            "single": single,
            "cell_single": cell_single,
        }
        numbers = {"size": self._size, "packed": self._states}
        return self._call(code, END_FIELDS, numbers, pointers, 2 * self._batch * self._size)

    @property
    def _states(self) -> int:
        """Elements of a state in whole vectors."""
        return -(-self._size // self._width) * self._width


def _own(offset: int, elements: int = 0) -> Pointer:
    """So many elements behind a place in the calls' own memory."""
    return Pointer(0, Of.OWN, 0, offset + 4 * elements)


@lru_cache(64)
def _source(form: CodeForm) -> str:
    return source(form)
