"""From a formula to LLVM's assembly: the function `element`, which computes one element from one of each input.

The graph is the one that those for NumPy and CUDA walk. Attributes are arguments, so that compiled code serves all
their values.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from app.contract.constants import DataType
from app.devices.cpu.llvm.divisions import DIVISIONS
from app.devices.cpu.llvm.math import angles, remainders
from app.devices.cpu.llvm.math.functions import EXPANSIONS, FOR_HALF, STORED_AS_HALF
from app.devices.cpu.llvm.math.gates import gated
from app.devices.cpu.llvm.math.primitives import CHOSEN
from app.devices.cpu.llvm.math.quantization import quick_sum
from app.devices.cpu.llvm.operations import FUNCTIONS
from app.devices.cpu.llvm.roots import ROOT_INSTRUCTIONS
from app.devices.cpu.llvm.types import literal, llvm_type
from app.devices.cpu.llvm.writing import Writing
from app.formula.expansions import Ask, Expansion
from app.formula.precision import is_for_half, is_smooth, narrowed, operations
from app.formula.values import (
    FLOAT32,
    Constant,
    Input,
    Operation,
    Parameter,
    Value,
    cast,
    is_float,
    stored_whole,
)

WRITERS = FUNCTIONS | {"divided": DIVISIONS["quotient"], "left_over": DIVISIONS["fmod"]}
"""Of operations, and of those of `math/`."""

_CHOSEN = re.compile(r"@chosen\.(\w+)\(")
_SLOW = (" = fdiv ", " = sdiv ", " = udiv ", " = srem ", " = urem ", "@llvm.sqrt.")


@dataclass(frozen=True, slots=True)
class Element:
    """A function called `name`, of one stored element of each input that it reads and of the attributes."""

    name: str
    declarations: frozenset[str]
    body: tuple[str, ...]
    inputs: dict[str, str]
    output: str
    """LLVM's types of the stored elements, of the inputs by their names."""
    parameters: tuple[Value, ...]
    """Attributes, and other values that are the same for all elements."""
    kept: "tuple[Element, ...]" = ()
    """What is computed of many elements before, and read under their names."""
    quick: "tuple[Element, Element] | None" = None
    """What is computed in its place, and where that is not 0 for any of some elements this is computed of all these."""

    @property
    def every(self) -> "list[Element]":
        """It, after all that is computed with it."""
        return [*self.kept, *(self.quick or ()), self]

    @property
    def instructions(self) -> int:
        """How many it is, with those of the functions that it calls and that have no instruction of their own."""
        called = [name for line in self.body for name in _CHOSEN.findall(line)]
        roots = sum("@root." in line for line in self.body)
        return len(self.body) + sum(CHOSEN[name] for name in called) + (ROOT_INSTRUCTIONS - 1) * roots

    @property
    def slow(self) -> int:
        """How many of these a processor does not begin each cycle: divisions, and roots of float64."""
        return sum(any(each in line for each in _SLOW) for line in self.body)

    @property
    def of_float64(self) -> int:
        """How many of these are of float64, of which a register has half as many numbers."""
        return sum("double " in line for line in self.body)

    @property
    def definition(self) -> list[str]:
        """Its source, without the declarations."""
        arguments = [f"{kind} %x{number}" for number, kind in enumerate(self.inputs.values())]
        arguments += [f"{llvm_type(value.type)} %p{number}" for number, value in enumerate(self.parameters)]
        head = f"define internal {self.output} @{self.name}({', '.join(arguments)}) alwaysinline {{"
        return [head, *self.body, "}"]


def lower(ask: Ask, expression: Value, stored: DataType) -> Element:
    """The function of an output whose elements are `expression`, stored as `stored`.

    Raises LookupError if NumPy is to compute it.
    """
    # Float64 alone costs little, and rounds right to float16; not so what is made of many operations.
    half = not operations(expression).isdisjoint(FOR_HALF) and is_for_half(ask, expression, stored)
    expansions = FOR_HALF if half else STORED_AS_HALF if stored is DataType.FLOAT16 else EXPANSIONS
    lowering = Lowering(ask, is_smooth(expression, stored), half, expansions=expansions)
    element = lowering.element(narrowed(expression) if half else expression, stored, "element")
    quick = quick_sum(expression)
    if quick:
        value, is_doubtful = quick
    else:
        far = [*angles.far(expression), *remainders.far(expression)]
        if not far or element.kept:
            return element
        value, is_doubtful = expression, reduce(or_, far)
        expansions = expansions | angles.OF_NEAR | remainders.OF_NEAR
    made = lower_part(ask, value, stored, "quick", expansions)
    return replace(element, quick=(made, lower_part(ask, is_doubtful, DataType.INT32, "doubtful", expansions)))


def lower_part(
    ask: Ask, expression: Value, stored: DataType, name: str, expansions: Mapping[str, Expansion] = EXPANSIONS
) -> Element:
    """The same of a part of a formula, which may go on to magnify what is lost. It keeps nothing."""
    return Lowering(ask, False, False, keeps=False, expansions=expansions).element(expression, stored, name)


class Lowering(Writing):
    """Writes the nodes of one formula as instructions. `smooth` and `half` are what `precision.py` says of it.

    A formula of which something is kept, or that is kept, `is_long`: it has more numbers than the processor registers,
    and LLVM finds arguments sooner again than its own constants.
    """

    def __init__(
        self,
        ask: Ask,
        smooth: bool,
        half: bool,
        *,
        keeps: bool = True,
        is_long: bool = False,
        expansions: Mapping[str, Expansion] | None = None,
    ) -> None:
        super().__init__(ask, smooth, half)
        self._keeps = keeps
        self._is_long = is_long
        self._expansions = expansions or (FOR_HALF if half else EXPANSIONS)
        self._inputs: dict[str, tuple[str, str]] = {}
        self._written: dict[Value, str] = {}
        self._kept: list[Element] = []

    def element(self, root: Value, stored: DataType, name: str) -> Element:
        """All of it."""
        while isinstance(root, Operation) and root.name in self._expansions:
            root = self._expansions[root.name](self._ask, *root.arguments)
        match root:
            # Of two roundings LLVM makes one in places, from double to half, for which processors have no instruction.
            case Operation(type="float32", name="cast", arguments=(Value(type="float64") as exact,)):
                if stored is DataType.FLOAT16:
                    root = exact
            case Value(type="float64") if stored is DataType.FLOAT32:
                root = cast(root, FLOAT32)  # which may be found together
        result = self.convert(self.write(root), root.type, stored.value.lower())
        output = llvm_type(stored.value.lower())
        return Element(
            name,
            frozenset(self._declarations),
            (*self._lines, f"ret {output} {result}"),
            {name: kind for name, (kind, _) in self._inputs.items()},
            output,
            tuple(self._parameters),
            tuple(self._kept),
        )

    def write(self, node: Value) -> str:
        if node not in self._written:
            self._written[node] = self._write(node)
        return self._written[node]

    def _write(self, node: Value) -> str:
        match node:
            case Constant() if self._is_long and is_float(node.type):
                return self.parameter(node)
            case Constant():
                return literal(node.type, node.value)
            case Parameter():
                return self.parameter(node)
            case Input():
                stored = node.stored.value.lower()
                return self.convert(self._input(node.name, stored), stored, node.type)
            case Operation(name="kept", arguments=(argument,)):
                return self._keep(argument) if self._keeps else self.write(argument)
            case Operation(name=name) if name in self._expansions:
                return self.write(self._expansions[name](self._ask, *node.arguments))
            case Operation():
                other = gated(node)
                if other is not None:
                    return self.write(other)
                arguments = [self.write(argument) for argument in node.arguments]
                return self.emit(WRITERS[node.name](self, node, arguments))
        raise TypeError(f"{node} is no value of one element")

    def _input(self, name: str, stored: str) -> str:
        """The name of the argument that is an element of the NumPy type `stored` of an input."""
        return self._inputs.setdefault(name, (llvm_type(stored), f"%x{len(self._inputs)}"))[1]

    def _keep(self, node: Value) -> str:
        self._is_long = True
        lowering = Lowering(self._ask, self._smooth, self._half, keeps=False, is_long=True)
        element = lowering.element(node, stored_whole(node.type), f"kept{len(self._kept)}")
        self._kept.append(element)
        return self._input(element.name, node.type)
