"""All steps of a layer of FLOAT16 by one kernel on a GPU, whose blocks keep the weights of some hidden elements in
registers and pass the states to each other.

Products are those of tensor cores, which multiply halves and add in float32. A state is two halves, of which the second
is what the first has lost, times 2^11: together they have 22 digits, so that next to nothing of float32 is lost.
"""

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from app.formula.values import Constant, Input, Operation, Parameter, Value, parts
from app.operators.arrays import SCRATCH, product, spans
from app.operators.recurrent.cells import (
    CELL,
    GIVEN,
    HIDDEN,
    PEEPHOLE,
    THRESHOLD,
    WEIGHTED,
    Cell,
    Stage,
)
from app.operators.recurrent.layer import LAYER
from app.operators.written import kernel

MOST_WORDS = 190
"""Registers that a thread has for weights, states and sums; there are 255."""

MOST_TILES = 10
"""Columns of a block, 8 at a time, of which sums of all warps fit into its shared memory."""

WARPS = 8
"""Of a block, each of which adds up the products of as many hidden elements."""

MOST_CHUNKS = 4
"""Items of a block, 16 at a time."""

TURNS = 16
"""States that there is memory for, of as many steps one after the other."""

LEAST_CAPABILITY = 80
"""From which on GPUs have these instructions."""

STEPS = 2048
"""That a kernel goes through at most, since nothing stops it: some milliseconds."""

FUNCTIONS = {"DML_OPERATOR_ACTIVATION_SIGMOID": "sigmoid", "DML_OPERATOR_ACTIVATION_TANH": "tangent"}
"""Activations that keep states where halves have their digits, by what the kernel calls them."""


SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}
"""Of operations; of others the kernel has functions."""

VARIABLES = {
    GIVEN: "of_input[{}]",
    WEIGHTED: "of_state[{}]",
    PEEPHOLE: "of_cells[n][{}]",
    HIDDEN: "h",
    CELL: "cell",
    THRESHOLD: "clip",
}
"""What the kernel calls what formulas are made of."""


class Form(NamedTuple):
    """What chooses code beside the cell."""

    kind: str
    """RNN, LSTM, or GRU that weights the state before the reset gate."""
    functions: tuple[str, ...]
    units: int
    """Hidden elements of a block."""
    depth: int
    """Hidden elements that a warp adds up products of, 32 at a time."""
    chunks: int
    """Items of a block, 16 at a time."""

    @property
    def gates(self) -> int:
        return {"RNN": 1, "LSTM": 4, "GRU": 3}[self.kind]

    @property
    def tiles(self) -> int:
        """Columns of a block, 8 at a time."""
        return -(-self.gates * self.units // 8)

    @property
    def words(self) -> int:
        """Registers for weights, states, as they are read, and sums."""
        each = -(-16 * self.units // (32 * WARPS)) * (3 + self.gates)
        return 4 * self.depth * self.tiles + 16 * self.depth + 8 * self.tiles + self.chunks * each


def form_of(kind: str, activations: Sequence[str], sizes: tuple[int, int], processors: int) -> Form | None:
    """For `sizes`, items and hidden elements, on a GPU with so many multiprocessors that can run it: the one of the
    fewest items in a block, each of which is a multiprocessor's only one. None if it is not for the kernel."""
    batch, hidden = sizes
    functions = tuple(FUNCTIONS.get(each, "") for each in activations)
    if "" in functions or (kind != "RNN" and functions[0] != "sigmoid"):
        return None
    for chunks in range(1, MOST_CHUNKS + 1):
        beside = processors // -(-batch // (16 * chunks))
        if beside:
            form = Form(kind, functions, max(2 * -(-hidden // (2 * beside)), 2), -(-hidden // (32 * WARPS)), chunks)
            if form.words <= MOST_WORDS and form.tiles <= MOST_TILES:
                return form
    return None


@lru_cache(256)
def source(form: Form, cell: Cell) -> str:
    """The kernel, in CUDA C++, of a cell whose terms are `in_two`."""
    (only,) = cell.rounds
    values = {
        **form._asdict(),
        "gates": form.gates,
        "tiles": form.tiles,
        "turns": TURNS,
        "warps": WARPS,
        "is_lstm": int(form.kind == "LSTM"),
        "step": "\n".join(" " * 24 + line for stage in only.stages for line in _lines(stage)),
    }
    return LAYER % values


def _lines(stage: Stage) -> Iterator[str]:
    """Its formula in CUDA C++."""
    written: dict[Value, str] = {}
    for node in parts(stage.element):
        match node:
            case Input(name=name) | Parameter(name=name):
                written[node] = _variable(name)
            case Constant(value=value):
                written[node] = f"{float(value)}f"
            case Operation(name=name):
                arguments = [written[each] for each in node.arguments]
                made = f" {SIGNS[name]} ".join(arguments) if name in SIGNS else f"{name}({', '.join(arguments)})"
                written[node] = f"{stage.made.lower()}_{len(written)}"
                yield f"const float {written[node]} = {made};"
    yield f"{_variable(stage.made)} = {written[stage.element]};"


def _variable(name: str) -> str:
    """What the kernel calls it."""
    for kind, variable in VARIABLES.items():
        if name.startswith(kind):
            return variable.format(name.removeprefix(kind))
    raise KeyError(name)


class Layer(NamedTuple):
    """One direction: CuPy's arrays, of float16 where tensors are, and otherwise as `layer` takes them."""

    x: Any
    """{ steps, batch, input }"""
    weights: Any
    """{ gates * hidden, input }"""
    bias: Any
    """float32 { 2 * gates * hidden }"""
    recurrence: Any
    """{ gates * hidden, hidden }"""
    peephole: Any
    """float32 { 3 * hidden }"""
    lengths: Any
    """uint32 { batch }, or None."""
    states: Any
    """float32 { 1 or 2, batch, hidden }: from these on, and in the end the last."""
    sequence: Any
    """float16 { steps, batch, hidden }, which it is made in, or None; only steps may lie apart."""


def processors(cupy: Any) -> int:
    """Multiprocessors of the current GPU; 0 if it does not do what the kernel needs."""
    return _processors(cupy, cupy.cuda.runtime.getDevice())


@cache
def _processors(cupy: Any, ordinal: int) -> int:
    device = cupy.cuda.Device(ordinal)
    known = device.attributes
    able = known["CooperativeLaunch"] and int(device.compute_capability) >= LEAST_CAPABILITY
    return int(known["MultiProcessorCount"]) if able else 0


def run(cupy: Any, form: Form, cell: Cell, layer: Layer, *, is_backward: bool) -> None:
    """Queue all of it on the current stream."""
    steps, batch, _ = layer.x.shape
    hidden = layer.recurrence.shape[-1]
    width = form.gates * hidden
    blocks = -(-hidden // form.units), -(-batch // (16 * form.chunks))
    nothing = np.uint64(0)
    order = [*spans(steps, min(max(SCRATCH["cupy"] // (4 * batch * width), 1), STEPS))]
    for some in reversed(order) if is_backward else order:
        made = product(cupy, layer.x[some], layer.weights.T)
        # What is repeated in the input or the weights has size 1.
        projected = cupy.ascontiguousarray(cupy.broadcast_to(made, (some.stop - some.start, batch, width)))
        exchanged = cupy.full((TURNS, blocks[1] * 16 * form.chunks, 32 * WARPS * form.depth), ~np.uint32(0))
        exchanged[:, batch:] = 0
        exchanged[:, :, hidden:] = 0
        sequence = layer.sequence
        apart = 0 if sequence is None else sequence.strides[0] // sequence.itemsize
        kernel(cupy, source(form, cell), "layer")(
            blocks,
            (32 * WARPS,),
            (
                *(projected, layer.bias, layer.recurrence, layer.peephole),
                nothing if layer.lengths is None else layer.lengths,
                *(layer.states, exchanged, nothing if sequence is None else sequence[some]),
                *(np.uint64(apart), np.uint32(some.stop - some.start), np.uint32(batch), np.uint32(hidden)),
                *(np.uint32(some.start), np.bool_(is_backward), np.float32(cell.numbers.get(THRESHOLD, 0))),
            ),
            enable_cooperative_groups=True,
        )
