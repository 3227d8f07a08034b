"""All steps of one direction of a recurrent network, one after the other: over arrays of NumPy, or of CuPy, on a GPU
each formula by a kernel of its own."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.formula.values import FLOAT32
from app.operators.arrays import SCRATCH, for_blas, multiplied, product, spans
from app.operators.looks import look
from app.operators.recurrent.cells import BIAS, GIVEN, HIDDEN, PEEPHOLE, WEIGHTED, Cell
from app.operators.written import OverArrays, formula_kernel
from app.programs.dispatchable import Dispatchable

_Make: TypeAlias = Callable[..., Any]
"""Makes an array, by what it is called, of others by their names, in one that is there or a new one."""


class Direction(NamedTuple):
    """What its steps compute with. Weights are of all gates, transposed, to be multiplied from the right."""

    cell: Cell
    apart: range
    """Gates of which the state's bias is not added to the input."""
    is_backward: bool
    weights: Any
    """{ input, gates * hidden }"""
    recurrence: Any
    """{ hidden, gates * hidden }"""
    biases: Any
    """{ 2 * gates * hidden }: the inputs', then the states'."""
    peepholes: Any
    """{ 3 * hidden }"""


def step_by_step(
    xp: Any, direction: Direction, x: Any, states: Mapping[str, Any], lengths: Any, sequence: Any
) -> Mapping[str, Any]:
    """The last states, by their names, from the first ones, { batch, hidden }, over the inputs { steps, batch, input }.
    Each item takes as many steps as `lengths`, { batch, 1 }, say, if there are any. The output of each step is made in
    `sequence`, { steps, batch, hidden }, if there is one."""
    size = len(direction.recurrence)
    of_input, of_state = direction.biases.reshape(2, -1)
    make = _Kernels(xp, direction.cell) if xp.__name__ == "cupy" else partial(_evaluated, xp, direction.cell)
    together = make(GIVEN, {GIVEN: of_input, BIAS: of_state})
    apart = slice(direction.apart.start * size, direction.apart.stop * size)
    together[apart] = of_input[apart]
    values = {name: xp.ascontiguousarray(state) for name, state in states.items()}
    for name, vector in (BIAS, of_state), (PEEPHOLE, direction.peepholes):
        whole = xp.broadcast_to(vector, (len(values[HIDDEN]), len(vector)))
        values |= _named(name, range(len(vector) // size), whole, size)
    rounds = [
        (each, for_blas(xp, direction.recurrence[:, each.gates.start * size : each.gates.stop * size]))
        for each in direction.cell.rounds
    ]
    is_direct = sequence is not None and sequence.dtype == FLOAT32  # so that kernels make states where they are wanted
    for step, given in _given(xp, x, direction, make, together):
        look()
        into = {HIDDEN: sequence[step]} if is_direct else {}
        values |= _named(GIVEN, range(given.shape[-1] // size), given, size)
        before = {name: values[name] for name in states}
        for each, weights in rounds:
            values |= _named(WEIGHTED, each.gates, multiplied(xp, values[each.of], weights), size)
            for stage in each.stages:
                values[stage.made] = make(stage.made, values, into.get(stage.made))
        output = values[HIDDEN]
        if lengths is not None:
            there = lengths > step
            output = xp.where(there, output, xp.zeros_like(output))
            values |= {name: xp.where(there, values[name], each) for name, each in before.items()}
        if sequence is not None and output is not into.get(HIDDEN):
            sequence[step] = output
    return {name: values[name] for name in states}


def _named(name: str, numbers: range, array: Any, size: int) -> dict[str, Any]:
    """Columns of an array, so many for each of the numbers."""
    return {f"{name}{each}": array[:, place * size : (place + 1) * size] for place, each in enumerate(numbers)}


def _given(xp: Any, x: Any, direction: Direction, make: "_Make", bias: Any) -> Iterator[tuple[int, Any]]:
    """The number of each step in its order, and its input weighted: { batch, gates * hidden }. Products are of as many
    steps at once as are bounded in memory."""
    steps, batch, _ = x.shape
    width = direction.weights.shape[1]
    order = list(spans(steps, max(SCRATCH[xp.__name__] // (batch * width * x.itemsize), 1)))
    for some in reversed(order) if direction.is_backward else order:
        made = product(xp, x[some], direction.weights)
        sizes = len(made), batch, width
        made = make(GIVEN, {GIVEN: xp.broadcast_to(made, sizes), BIAS: xp.broadcast_to(bias, sizes)})
        made = xp.broadcast_to(made, (some.stop - some.start, batch, width))
        numbers = range(some.start, some.stop)
        for step in reversed(numbers) if direction.is_backward else numbers:
            yield step, made[step - some.start]


def _evaluated(xp: Any, cell: Cell, made: str, values: Mapping[str, Any], into: Any = None) -> Any:
    return cell.formulas[made](xp, values)


class _Kernels:
    """A cell's formulas on the current GPU, over arrays that are all of the same sizes."""

    def __init__(self, cupy: Any, cell: Cell) -> None:
        self._cupy, self._cell = cupy, cell
        self._ready: dict[tuple[Any, ...], OverArrays] = {}

    def __call__(self, made: str, values: Mapping[str, Any], into: Any = None) -> Any:
        program = self._cell.programs[made]
        arrays = [values[name] for name in program.inputs]
        result = self._cupy.empty(arrays[0].shape, FLOAT32) if into is None else into
        key = (made, result.shape, *[each.strides for each in (*arrays, result)])
        if key not in self._ready:
            inputs = dict(zip(program.inputs, map(_desc, arrays), strict=True))
            compiled = Dispatchable(inputs, {made: _desc(result)}, program, self._cell.numbers)
            self._ready[key] = formula_kernel(self._cupy, compiled)
        self._ready[key]([*arrays, result])
        return result


def _desc(array: Any) -> TensorDesc:
    strides = [step // array.itemsize for step in array.strides]
    return TensorDesc(DataType=DataType.FLOAT32, Sizes=[*array.shape], Strides=strides)
