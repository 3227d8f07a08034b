"""What a step of a recurrent network computes of each hidden element, once inputs and states are weighted: its cell.

Operators state the formulas once (`networks.py`). NumPy and kernels on a GPU compute them from step to step
(`stepping.py`), code by LLVM does within its loop over steps (`devices/cpu/recurrent_cells.py`), and the kernel for all
steps of FLOAT16 has them in its registers (`lasting.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from app.contract.constants import DataType
from app.formula.arrays import ArrayFormula
from app.formula.expansions import Ask
from app.formula.structures import Questions
from app.formula.uniform import Numbers
from app.formula.values import FLOAT32, Input, Number, Operation, Parameter, Value, maximum, minimum, parts
from app.operators.fusion import Fused
from app.operators.parameters import bare, numbers_in, parameters_for
from app.programs.program import Map, Program

if TYPE_CHECKING:
    from app.operators.operator import Operator

HIDDEN, CELL, RESET = "Hidden", "Cell", "Reset"
"""The state that is the output, an LSTM's cell, and a GRU's state behind its reset gate."""

GIVEN, WEIGHTED, BIAS, PEEPHOLE = "Given", "Weighted", "Bias", "Peephole"
"""What is there of each gate, by its number: the input, weighted, with biases; the state, weighted; the state's bias;
and peepholes, in the order of PeepholeTensor."""

THRESHOLD = "ClipThreshold"

Apply: TypeAlias = Callable[[Value], Value]


def element(name: str) -> Input:
    """Of an array of float32 { batch, hidden }."""
    return Input(FLOAT32, name, DataType.FLOAT32)


def given(gate: int) -> Input:
    return element(f"{GIVEN}{gate}")


def weighted(gate: int) -> Input:
    return element(f"{WEIGHTED}{gate}")


def peephole(number: int) -> Input:
    return element(f"{PEEPHOLE}{number}")


class Terms(NamedTuple):
    """What is there of each gate."""

    sums: Sequence[Value]
    """Input and state, weighted, and their biases."""
    inputs: Sequence[Value]
    states: Sequence[Value]
    """The same apart, each with its own bias."""


def in_two(gates: int) -> Terms:
    """Inputs and states, which are added up in the formula."""
    inputs, states = [given(gate) for gate in range(gates)], [weighted(gate) for gate in range(gates)]
    return Terms([a + b for a, b in zip(inputs, states, strict=True)], inputs, states)


def in_arrays(gates: int) -> Terms:
    """The same of arrays of NumPy and CuPy: biases are all among those of the input, but where states stay apart."""
    terms = in_two(gates)
    return terms._replace(states=[state + element(f"{BIAS}{gate}") for gate, state in enumerate(terms.states)])


class Ingredients(NamedTuple):
    """What formulas are made of."""

    terms: Terms
    activations: Sequence[Apply]
    clip: Apply
    """Of an activation's argument."""
    has_peephole: bool

    def looked(self, x: Value, number: int, cell: Value) -> Value:
        """The argument of a gate that may look at the cell."""
        return self.clip(x + peephole(number) * cell if self.has_peephole else x)


class Stage(NamedTuple):
    """One of the states, or what takes the place of one on the way, of what is there before it."""

    made: str
    element: Value

    @property
    def inputs(self) -> list[str]:
        """Names of those of its formula."""
        return list(dict.fromkeys(node.name for node in parts(self.element) if isinstance(node, Input)))

    def as_asked(self, ask: Ask) -> Value:
        """The formula, which has asked already."""
        return self.element


BIASED = Stage(GIVEN, element(GIVEN) + element(BIAS))
"""What is given of all gates at once, before a step."""


class Round(NamedTuple):
    """Gates whose states are weighted at once, and stages that follow."""

    gates: range
    of: str
    """The state that is weighted."""
    stages: Sequence[Stage]


class Network(Protocol):
    """What is stated of a network."""

    def rounds(self, of: Ingredients) -> Iterator[Round]: ...


@dataclass(frozen=True, eq=False)
class Cell:
    """A cell's formulas and the numbers of their parameters. The same one is given again for the same."""

    rounds: Sequence[Round]
    numbers: Numbers

    @property
    def _stages(self) -> Iterator[Stage]:
        yield BIASED
        for each in self.rounds:
            yield from each.stages

    @cached_property
    def programs(self) -> dict[str, Program]:
        """Of each stage and of BIASED, by what it makes."""
        stored = DataType.FLOAT32
        return {
            each.made: Program(dict.fromkeys(each.inputs, stored), {each.made: Map(each.element, stored)})
            for each in self._stages
        }

    @cached_property
    def formulas(self) -> dict[str, ArrayFormula]:
        """The same for NumPy's arrays."""
        return {each.made: ArrayFormula(each.as_asked, self.numbers) for each in self._stages}


class Form(NamedTuple):
    """What cells are told apart by."""

    network: "type[Operator]"
    choices: tuple[tuple[str, bool], ...]
    """Attributes that choose formulas, and what they are."""
    activations: tuple[tuple[type[Fused], str], ...]
    """Each with its JSON."""
    threshold: float | None
    has_peephole: bool

    @property
    def stated(self) -> Network:
        """An operator that has nothing but what chooses formulas."""
        made: Network = bare(self.network, dict(self.choices))  # type: ignore[assignment]  # a network has `rounds`
        return made

    @property
    def clip(self) -> Apply:
        if self.threshold is None:
            return lambda x: x
        threshold = Parameter(FLOAT32, THRESHOLD)
        return lambda x: minimum(maximum(x, -threshold), threshold)


@lru_cache(256)
def cell_of(form: Form, gates: int, terms: Callable[[int], Terms], functions: tuple[str, ...] = ()) -> Cell:
    """The cell of a network with so many `gates`; `terms` are made for so many. If there are `functions`, they take
    the activations' places, as operations that only who gives them knows."""
    numbers: dict[str, Number] = {} if form.threshold is None else {THRESHOLD: form.threshold}
    fused = [kind.model_validate_json(text) for kind, text in form.activations]
    for place, each in enumerate(fused):
        numbers |= {f"{place}.{name}": number for name, number in numbers_in(each).items()}
    symbols = parameters_for(numbers, Questions(numbers).ask)

    def applied(place: int) -> Apply:
        if functions:
            return lambda x: Operation(FLOAT32, functions[place], (x,))
        return lambda x: fused[place].formula(symbols.below(f"{place}."), x)

    of = Ingredients(terms(gates), [applied(place) for place in range(len(fused))], form.clip, form.has_peephole)
    return Cell(tuple(form.stated.rounds(of)), numbers)
