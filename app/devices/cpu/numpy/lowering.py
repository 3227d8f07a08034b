"""From a formula to NumPy calls that write into given arrays.

`lower` turns the graph of a formula into `Calls`: a list of steps over numbered slots (inputs, scalars, scratch
registers, the output). Running them on one block after another keeps the scratch in the cache and allocates nothing.
What is the same for all elements is a scalar, computed once for each request.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import le
from typing import Any, TypeAlias

import numpy as np

from app.contract.constants import DataType
from app.devices.cpu.threads import BLOCK_ELEMENTS
from app.formula.arrays import expanded
from app.formula.expansions import Ask
from app.formula.uniform import Evaluate, Numbers, evaluator, is_uniform, typed
from app.formula.values import BOOL, Input, Operation, Value
from app.memory.arrays import Array, ignoring_float_errors, numpy_type

Function: TypeAlias = Callable[..., object]
"""Takes arrays and scalars, and the array to write into as `out`."""


def _cast(x: Array, out: Array) -> None:
    np.copyto(out, x, casting="unsafe")


def _through_float16(x: Array, out: Array) -> None:
    np.copyto(out, x.astype(np.float16))


def _where(condition: Array, a: Array, b: Array, out: Array) -> None:
    """b ^ ((a ^ b) & mask) on the bits: a masked copy takes five times as long where the condition changes often."""
    bits = np.dtype(f"i{out.itemsize}")
    mask = condition.view(np.int8).astype(bits)
    np.negative(mask, out=mask)
    if b.ndim == 0 and b.view(bits) == 0:
        np.bitwise_and(mask, a.view(bits), out=out.view(bits))
        return
    mask &= np.bitwise_xor(a.view(bits), b.view(bits))
    np.bitwise_xor(mask, b.view(bits), out=out.view(bits))


UNSCRATCHED = 1 << 20
"""Elements of a block at most where a program needs no register: soon enough done for a dispatch to be cancelled."""

_CLIPPED = 1 << 12
"""Elements from which `clip`, which is called by way of Python, is quicker than `np.minimum` with a scalar."""


def _minimum(a: Array, b: Array, out: Array) -> None:
    """With a scalar by way of `clip`, which takes less than half the time."""
    if out.size >= _CLIPPED and (a.ndim == 0 or b.ndim == 0):
        x, scalar = (b, a) if a.ndim == 0 else (a, b)
        x.clip(-np.inf if out.dtype.kind == "f" else np.iinfo(out.dtype).min, scalar, out=out)
    else:
        np.minimum(a, b, out=out)


def _maximum(a: Array, b: Array, out: Array) -> None:
    if out.size >= _CLIPPED and (a.ndim == 0 or b.ndim == 0):
        x, scalar = (b, a) if a.ndim == 0 else (a, b)
        x.clip(scalar, np.inf if out.dtype.kind == "f" else np.iinfo(out.dtype).max, out=out)
    else:
        np.maximum(a, b, out=out)


def _clip(x: Array, least: Array, most: Array, out: Array) -> None:
    x.clip(least, most, out=out)


def _saturate(x: Array, out: Array) -> None:
    least, most = np.iinfo(out.dtype).min, np.iinfo(out.dtype).max
    largest = np.nextafter(np.float64(2) ** 64, 0) if out.dtype == np.uint64 else x.dtype.type(most)
    if out.dtype == np.int64:
        largest = np.nextafter(np.float64(2) ** 63, 0)
    limited = np.maximum(x, x.dtype.type(least))
    np.minimum(limited, largest, out=limited)
    limited[np.isnan(limited)] = 0
    np.copyto(out, limited, casting="unsafe")
    if out.dtype.itemsize == 8:
        out[np.greater(x, largest)] = most  # which is no float64


FUNCTIONS: dict[str, Function] = {
    name: getattr(np, name)
    for name in (
        *("add", "subtract", "multiply", "divide", "negative", "absolute", "copysign"),
        *("greater", "greater_equal", "less", "less_equal", "equal", "not_equal"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"),
        *("exp", "expm1", "log", "log1p", "sqrt", "power", "tanh", "sinh", "cosh", "arcsinh", "arccosh", "arctanh"),
        *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "floor", "ceil", "trunc", "rint"),
        *("floor_divide", "fmod"),
    )
} | {
    "clip": _clip,
    "minimum": _minimum,
    "maximum": _maximum,
    "where": _where,
    "cast": _cast,
    "through_float16": _through_float16,
    "saturate": _saturate,
    "bit_count": np.bitwise_count,
}
"""One row for each operation of `app/formula/values.py` that is no expansion: mostly NumPy's function of that name."""


@dataclass(frozen=True, slots=True)
class SlotCall:
    """`function(*arguments, out=out)`, all by slot."""

    function: Function
    arguments: tuple[int, ...]
    out: int


@dataclass(frozen=True, slots=True)
class Calls:
    """Implements `Routine`, for any numbers of requests.

    Slots are numbered: the inputs in the order of `inputs`, the output, `scalars`, then one for each register.
    """

    inputs: tuple[str, ...]
    scalars: tuple[tuple[str, Evaluate], ...]
    """Each with its type."""
    registers: tuple[np.dtype[Any], ...]
    steps: tuple[SlotCall, ...]
    boolean: bool = False
    """The last step writes true and false, into an output of bytes."""

    def arguments(self, numbers: Numbers) -> tuple[Array, ...]:
        """The scalars of a request, as arrays without dimensions, which are quicker to call with."""
        return tuple([np.asarray(typed(type_, evaluate(numbers))) for type_, evaluate in self.scalars])

    def is_small(self, elements: int) -> bool:
        """Whether so many are computed in less time than it takes to hand them to another thread."""
        return elements <= BLOCK_ELEMENTS

    def block(self, elements: int, threads: int) -> int:
        """How many of `elements` to compute at a time: so many that the registers stay in the cache."""
        if self.registers:
            return max(4 // max(dtype.itemsize for dtype in self.registers), 1) * BLOCK_ELEMENTS
        return min(max(elements // (2 * threads), BLOCK_ELEMENTS), UNSCRATCHED)

    @ignoring_float_errors
    def run(
        self, arguments: Sequence[Array], inputs: Sequence[Array], output: Array, registers: Sequence[Array]
    ) -> None:
        """Compute one block. All arrays have the block's shape; `output` may be one of `inputs`, element by element."""
        written = output.view(np.bool_) if self.boolean else output
        slots = [*inputs, written, *arguments, *registers]
        for step in self.steps:
            step.function(*[slots[slot] for slot in step.arguments], out=slots[step.out])


def lower(ask: Ask, expression: Value, inputs: Sequence[str], stored: DataType) -> Calls:
    """The calls for an output whose elements are `expression`, stored as `stored`, over the named inputs.

    Only the last step writes the output, so the output may share memory with an input.
    """
    return _Lowering(inputs).calls(expand(ask, expression, {}), numpy_type(stored))


def expand(ask: Ask, node: Value, done: dict[Value, Value]) -> Value:
    """`node` made of what NumPy has. A node that is used twice stays one, in all that is expanded with this `done`."""
    return expanded(ask, node, done, _clipped)


def _clipped(ask: Ask, node: Operation) -> Operation:
    """A minimum and a maximum with scalars in one pass, where the order of the two makes no difference."""
    if node.name != "maximum":
        return node
    for inner, least in (node.arguments, node.arguments[::-1]):
        match inner:
            case Operation(name="minimum", arguments=(x, most)) if is_uniform(most) and is_uniform(least):
                if ask(le, least, most):
                    return Operation(node.type, "clip", (x, least, most))
    return node


class _Lowering:
    """Lays the nodes of a formula out as steps. A register is free again once its value has had its last reader."""

    def __init__(self, inputs: Sequence[str]) -> None:
        self._inputs = tuple(inputs)
        self._output = len(self._inputs)
        self._scalars: dict[Value, int] = {}
        self._readers = Counter[Value]()
        self._slots: dict[Value, int] = {}
        self._registers: list[np.dtype[Any]] = []
        self._free: list[int] = []
        self._steps: list[SlotCall] = []

    def calls(self, root: Value, stored: np.dtype[Any]) -> Calls:
        self._survey(root)
        boolean = root.type == BOOL and stored.itemsize == 1
        if root not in self._scalars and isinstance(root, Operation) and (boolean or np.dtype(root.type) == stored):
            self._append(root, self._output)
        else:
            self._steps.append(SlotCall(_cast, (self._slot(root),), self._output))
        scalars = tuple((each.type, evaluator(each)) for each in self._scalars)
        return Calls(self._inputs, scalars, tuple(self._registers), tuple(self._steps), boolean)

    def _survey(self, node: Value) -> None:
        """Number the scalars and count how often each value is read."""
        self._readers[node] += 1
        if is_uniform(node):
            self._scalars.setdefault(node, self._output + 1 + len(self._scalars))
        elif isinstance(node, Operation) and self._readers[node] == 1:
            for argument in node.arguments:
                self._survey(argument)

    def _slot(self, node: Value) -> int:
        """Where the value of `node` is, once the steps appended here have run."""
        if node in self._scalars:
            return self._scalars[node]
        if node not in self._slots:
            if isinstance(node, Input):
                slot = self._inputs.index(node.name)
                if np.dtype(node.type) != numpy_type(node.stored):
                    loaded = self._register(node)
                    self._steps.append(SlotCall(_cast, (slot,), loaded))
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
        self._steps.append(SlotCall(FUNCTIONS[node.name], arguments, out))
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
