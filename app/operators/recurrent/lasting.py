"""All steps of a layer of FLOAT16 by one kernel on a GPU, whose blocks keep the weights of some hidden elements in
registers and pass the states to each other.

Products are those of tensor cores, which multiply halves and add in float32. A state is two halves, of which the second
is what the first has lost, times 2^11: together they have 22 digits, so that next to nothing of float32 is lost.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from app.operators.arrays import SCRATCH, product, spans
from app.operators.recurrent.layer import LAYER, STEPS_OF
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


class Form(NamedTuple):
    """What chooses code."""

    kind: str
    """RNN, LSTM, or GRU that weights the state before the reset gate."""
    functions: tuple[str, ...]
    units: int
    """Hidden elements of a block."""
    depth: int
    """Hidden elements that a warp adds up products of, 32 at a time."""
    chunks: int
    """Items of a block, 16 at a time."""
    clips: bool = False
    couples: bool = False

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


@cache
def source(form: Form) -> str:
    """The kernel, in CUDA C++."""
    step = STEPS_OF[form.kind].format(*form.functions)
    values = {
        **form._asdict(),
        "gates": form.gates,
        "tiles": form.tiles,
        "turns": TURNS,
        "warps": WARPS,
        "clips": int(form.clips),
        "is_lstm": int(form.kind == "LSTM"),
        "step": "\n".join(" " * 24 + line for line in step.split("\n")),
    }
    return f"#define COUPLES {int(form.couples)}\n" + LAYER % values


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


def run(cupy: Any, form: Form, layer: Layer, *, is_backward: bool, clip: float) -> None:
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
        kernel(cupy, source(form), "layer")(
            blocks,
            (32 * WARPS,),
            (
                *(projected, layer.bias, layer.recurrence, layer.peephole),
                nothing if layer.lengths is None else layer.lengths,
                *(layer.states, exchanged, nothing if sequence is None else sequence[some]),
                *(np.uint64(apart), np.uint32(some.stop - some.start), np.uint32(batch), np.uint32(hidden)),
                *(np.uint32(some.start), np.bool_(is_backward), np.float32(clip)),
            ),
            enable_cooperative_groups=True,
        )
