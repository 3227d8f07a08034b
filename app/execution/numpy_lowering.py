"""From a formula to NumPy calls that write into given arrays.

`lower` turns the graph of a formula into a `Program`: a list of steps over numbered slots (inputs, scalars, scratch
registers, the output). Running it on one block after another keeps the scratch in the cache and allocates nothing.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from app.contract.constants import DataType
from app.formula.values import FLOAT32, Constant, Input, Operation, Parameter, Value, where, widen

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Function: TypeAlias = Callable[..., object]
"""Takes arrays and scalars, and the array to write into as `out`."""


def numpy_type(data_type: DataType) -> np.dtype[Any]:
    """How elements of `data_type` lie in memory: little-endian."""
    return np.dtype(data_type.value.lower()).newbyteorder("<")


def _cast(x: Array, out: Array) -> None:
    np.copyto(out, x, casting="unsafe")


def _where(condition: Array, a: Array, b: Array, out: Array) -> None:
    """b ^ ((a ^ b) & mask) on the bits: a masked copy takes five times as long where the condition changes often."""
    bits = np.dtype(f"i{out.itemsize}")
    mask = condition.view(np.int8).astype(bits)
    np.negative(mask, out=mask)
    mask &= np.bitwise_xor(a.view(bits), b.view(bits))
    np.bitwise_xor(mask, b.view(bits), out=out.view(bits))


FUNCTIONS: dict[str, Function] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "where": _where,
    "exp": np.exp,
    "expm1": np.expm1,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "power": np.power,
    "cast": _cast,
}
"""One row for each operation of `app/formula/values.py` that NumPy has a function for."""


def _multiply_add(node: Operation) -> Value:
    """A product of two float32 is exact in float64, so the sum's two roundings there and back count as one."""
    a, b, c = node.arguments
    return Operation(node.type, "cast", (widen(a) * widen(b) + widen(c),)) if node.type == FLOAT32 else a * b + c


def _expm1_of_negative(node: Operation) -> Value:
    """NumPy's expm1 computes one element at a time; these take a third of its time.

    In float32 with t = tanh(x / 2) it is 2t / (1 - t), where nothing cancels: 1 - t is between 1 and 2; 3 ULP at most.
    In float64, where digits abound, exp(x) - 1, but near 0 the beginning of its series; 1e-12 relative.
    """
    (x,) = node.arguments
    if node.type == FLOAT32:
        t = Operation(node.type, "tanh", (x * 0.5,))
        return (t + t) / (1 - t)
    return where(x >= -1e-4, x + x * x * (0.5 + x * (1 / 6)), Operation(node.type, "exp", (x,)) - 1)


EXPANSIONS: dict[str, Callable[[Operation], Value]] = {
    "multiply_add": _multiply_add,
    "expm1_of_negative": _expm1_of_negative,
}
"""Operations that NumPy has no function for, as others."""


@dataclass(frozen=True, slots=True)
class Step:
    """`function(*arguments, out=out)`, all by slot."""

    function: Function
    arguments: tuple[int, ...]
    out: int


@dataclass(frozen=True, slots=True)
class Program:
    """Slots are numbered: the inputs in the order of `inputs`, the output, `scalars`, then one for each register."""

    inputs: tuple[str, ...]
    scalars: tuple[np.generic, ...]
    registers: tuple[np.dtype[Any], ...]
    steps: tuple[Step, ...]

    def run(self, inputs: Sequence[Array], output: Array, registers: Sequence[Array]) -> None:
        """Compute one block. All arrays have the block's shape; `output` may be one of `inputs`, element by element."""
        slots = [*inputs, output, *self.scalars, *registers]
        for step in self.steps:
            step.function(*[slots[slot] for slot in step.arguments], out=slots[step.out])


def lower(expression: Value, inputs: Sequence[str], stored: DataType) -> Program:
    """The program for an output whose elements are `expression`, stored as `stored`, over the named inputs.

    Only its last step writes the output, so the output may share memory with an input.
    """
    return _Lowering(inputs).program(_expand(expression, {}), numpy_type(stored))


def _expand(node: Value, done: dict[Value, Value]) -> Value:
    """`node` made of what NumPy has: EXPANSIONS applied, casts of scalars folded. A node used twice stays one node."""
    if node not in done:
        result = node
        if isinstance(node, Operation):
            arguments = tuple(_expand(argument, done) for argument in node.arguments)
            result = Operation(node.type, node.name, arguments)
            if node.name in EXPANSIONS:
                result = _expand(EXPANSIONS[node.name](result), done)
            elif node.name == "cast" and isinstance(arguments[0], Constant | Parameter):
                result = Constant(node.type, _scalar(arguments[0]).item())
        done[node] = done[result] = result
    return done[node]


def _scalar(node: Constant | Parameter) -> np.generic:
    """The number of `node`, in its type."""
    scalar: np.generic = np.dtype(node.type).type(node.value)
    return scalar


class _Lowering:
    """Lays the nodes of a formula out as steps. A register is free again once its value has had its last reader."""

    def __init__(self, inputs: Sequence[str]) -> None:
        self._inputs = tuple(inputs)
        self._output = len(self._inputs)
        self._scalars: dict[Constant | Parameter, int] = {}
        self._readers = Counter[Value]()
        self._slots: dict[Value, int] = {}
        self._registers: list[np.dtype[Any]] = []
        self._free: list[int] = []
        self._steps: list[Step] = []

    def program(self, root: Value, stored: np.dtype[Any]) -> Program:
        self._survey(root)
        if isinstance(root, Operation) and np.dtype(root.type) == stored:
            self._append(root, self._output)
        else:
            self._steps.append(Step(_cast, (self._slot(root),), self._output))
        scalars = tuple(map(_scalar, self._scalars))
        return Program(self._inputs, scalars, tuple(self._registers), tuple(self._steps))

    def _survey(self, node: Value) -> None:
        """Number the scalars and count how often each value is read."""
        self._readers[node] += 1
        if isinstance(node, Constant | Parameter):
            self._scalars.setdefault(node, self._output + 1 + len(self._scalars))
        elif isinstance(node, Operation) and self._readers[node] == 1:
            for argument in node.arguments:
                self._survey(argument)

    def _slot(self, node: Value) -> int:
        """Where the value of `node` is, once the steps appended here have run."""
        if isinstance(node, Constant | Parameter):
            return self._scalars[node]
        if node not in self._slots:
            if isinstance(node, Input):
                slot = self._inputs.index(node.name)
                if np.dtype(node.type) != numpy_type(node.stored):
                    loaded = self._register(node)
                    self._steps.append(Step(_cast, (slot,), loaded))
                    slot = loaded
                self._slots[node] = slot
            else:
                self._slots[node] = self._append(node)
        return self._slots[node]

    def _append(self, node: Value, out: int | None = None) -> int:
        """Append the step that computes `node`, into a register unless `out` says where."""
        assert isinstance(node, Operation)
        arguments = tuple(self._slot(argument) for argument in node.arguments)
        for argument in node.arguments:
            self._readers[argument] -= 1
            slot = self._slots.get(argument, 0)
            if slot >= self._first_register and self._readers[argument] == 0:
                self._free.append(slot)
        if out is None:
            out = self._register(node)
        self._steps.append(Step(FUNCTIONS[node.name], arguments, out))
        return out

    @property
    def _first_register(self) -> int:
        return self._output + 1 + len(self._scalars)

    def _register(self, node: Value) -> int:
        """A free register of the node's type."""
        dtype = np.dtype(node.type)
        for slot in self._free:
            if self._registers[slot - self._first_register] == dtype:
                self._free.remove(slot)
                return slot
        self._registers.append(dtype)
        return self._first_register + len(self._registers) - 1
