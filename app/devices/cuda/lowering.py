"""From a formula to CUDA C++: the function `element`, which computes one element from one of each input.

The graph is the one that NumPy's lowering walks. What depends on attributes only is computed once, on the host, and
given to the kernel as an argument, so that a kernel serves all values of an attribute; only what chooses code becomes
part of the source: types, and the class of an exponent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.contract.constants import DataType
from app.devices.cuda.c_types import C_TYPES, convert, literal
from app.devices.cuda.functions import library
from app.devices.cuda.operations import FUNCTIONS, through_half
from app.devices.cuda.real_operations import (
    are_reals,
    constant_of,
    is_of_host,
    multiplied,
    narrowed_of,
    of_reals,
    real_of,
    stored_half_of,
    uniform_of,
)
from app.devices.cuda.shortcuts import Shortcut, in_float32, in_half, in_integers
from app.devices.cuda.writing import Writing
from app.formula.costs import CHEAP
from app.formula.expansions import Ask
from app.formula.precision import is_for_half, is_smooth, narrowed
from app.formula.uniform import typed
from app.formula.values import BOOL, FLOAT32, FLOAT64, Constant, Input, Operation, Parameter, Value, is_float, parts

LONG, MOST_FUNCTIONS = 32, 4
"""More operations, or functions among them, than any operator's formula has are a graph's, of which kernels have one
copy, since that is what takes the compiler long; memory is quick enough for what they compute if each thread loads one
element at once."""

OF_WORDS = {"rounded_sum": (0, 3)}
"""Functions of bytes that have another with an s at its end, of words with four of these arguments each."""

HAVE_FAR = frozenset(
    {"power_near", "power_of_each", "gelu", "rounded_sum", "scaled_softplus", "floor_of_sum", "reals", "real_sums"}
)
"""Functions whose quick way does not lead everywhere."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`source` defines `element<NEAR>`, a function of one stored element of each input, then of `arguments`.

    Its last parameter becomes true where NEAR must be false: quick ways do not lead everywhere. If `far` is false, this
    does not happen.
    """

    source: str
    far: bool
    is_long: bool
    inputs: tuple[str, ...]
    output: str
    parameters: tuple[str, ...]
    arguments: tuple[Value, ...]
    """C types of the stored elements and of the arguments, and what the arguments are."""
    in_words: frozenset[int] = frozenset()
    """If there are any, `source` also defines `elements`, which makes a word of four bytes of words of these inputs."""


def is_long(root: Value, *, integers: bool = True) -> bool:
    """Whether a formula is longer than any operator's, of which what is computed of `integers` is a part or not."""
    operations = [node for node in parts(root) if isinstance(node, Operation)]
    names = [node.name for node in operations if integers or is_float(node.type)]
    return len(names) > LONG or sum(name not in CHEAP for name in names) > MOST_FUNCTIONS


def lower(ask: Ask, expression: Value, inputs: Sequence[tuple[str, DataType]], stored: DataType) -> Arithmetic:
    """The arithmetic of an output whose elements are `expression`, stored as `stored`, over the inputs by name."""
    return Lowering(ask, expression, inputs, stored).arithmetic()


class Lowering(Writing):
    """Writes the nodes of one formula as declarations of C++; as `exact` as they say, or as the stored type needs."""

    def __init__(
        self,
        ask: Ask,
        root: Value,
        inputs: Sequence[tuple[str, DataType]],
        stored: DataType,
        *,
        exact: bool = False,
    ) -> None:
        half = not exact and is_for_half(ask, root, stored)
        super().__init__(ask, smooth=not exact and is_smooth(root, stored), half=half)
        self.stored = stored
        self.inputs = inputs
        self._half_root = None if exact or stored is not DataType.FLOAT16 else in_half(ask, root)
        self._root = narrowed(root) if half else root
        self._is_long = is_long(root, integers=not exact)
        self.looks_again = self.looks_again and not self._is_long
        self._find_reals()
        self._written: dict[Value, str] = {}

    def _find_reals(self) -> None:
        self._in_reals = self.looks_again and self.stored is not DataType.FLOAT64 and are_reals(self._root)
        if self.of_terms and self._in_reals:
            self.multiplied = multiplied(self._root)

    @property
    def has_far(self) -> bool:
        """Whether what is written so far is to be computed again if it was not near."""
        return self.looks_again and bool(self._functions & HAVE_FAR)

    def arithmetic(self) -> Arithmetic:
        words = self._of_words()
        result = self.result()
        types = tuple(C_TYPES[stored.value.lower()] for _, stored in self.inputs)
        output = C_TYPES[self.stored.value.lower()]
        parameters = tuple(C_TYPES[value.type] for _, value in self._arguments.values())
        declared = [f"{kind} x{number}" for number, kind in enumerate(types)]
        declared += [f"{kind} {name}" for kind, (name, _) in zip(parameters, self._arguments.values(), strict=True)]
        body = _body(self._lines, result)
        source = f"template <bool NEAR>\nDEVICE {output} element({', '.join([*declared, 'bool& far'])})\n{body}"
        if words:
            numbers, body = words
            declared = [f"unsigned x{n}" if n in numbers else each for n, each in enumerate(declared)]
            source += f"DEVICE unsigned elements({', '.join([*declared, 'bool& far'])})\n{body}"
        return Arithmetic(
            source=f"{library(self._functions)}\n{source}",
            far=self.has_far,
            is_long=self._is_long,
            inputs=types,
            output=output,
            parameters=parameters,
            arguments=tuple(value for _, value in self._arguments.values()),
            in_words=words[0] if words else frozenset(),
        )

    def _of_words(self) -> tuple[frozenset[int], str] | None:
        """Which inputs are words to `elements`, and its body, where there is a function of four bytes."""
        shortcut = in_integers(self._root) if isinstance(self._root, Operation) and self.looks_again else None
        if shortcut is None or shortcut.function not in OF_WORDS:
            return None
        given = [shortcut.arguments[n] for n in OF_WORDS[shortcut.function]]
        words = [each for each in given if isinstance(each, Input)]
        if len(words) < len(given):
            return None
        names = [name for name, _ in self.inputs]
        numbers = [names.index(each.name) for each in words]
        self._written |= {each: f"x{n}" for each, n in zip(words, numbers, strict=True)}
        arguments = ", ".join([*(self.write(each) if each else "0" for each in shortcut.arguments), "far"])
        template = ", ".join(map(str, shortcut.template))
        body = _body(self._lines, f"{self.function(shortcut.function)}s<{template}>({arguments})")
        for each in dict.fromkeys(words):
            del self._written[each]
        return frozenset(numbers), body

    def write(self, node: Value) -> str:
        if node not in self._written:
            self._written[node] = self._write(node)
        return self._written[node]

    def declare(self, kind: str, expression: str) -> str:
        if kind != FLOAT64 or not self._in_reals:
            return super().declare(kind, expression)
        self.function("reals")
        return self.declare_as("auto", expression)

    def _write(self, node: Value) -> str:
        is_real = self._in_reals and of_reals(node)
        if isinstance(node, Constant):
            return self.declare(FLOAT64, constant_of(node.value)) if is_real else literal(typed(node.type, node.value))
        if is_real and is_of_host(self, node):
            return self.declare(FLOAT64, uniform_of(self, node))
        if isinstance(node, Parameter) or (self.is_uniform(node) and node.type != BOOL and not is_real):
            return self.argument(node, node)
        if isinstance(node, Input):
            number = [name for name, _ in self.inputs].index(node.name)
            return self.declare(node.type, convert(f"x{number}", node.stored.value.lower(), node.type))
        assert isinstance(node, Operation)
        shortcut = in_integers(node)
        if shortcut:
            return self.declare(node.type, self._taken(shortcut))
        if node.name in ("cast", "through_float16") and node.type == FLOAT32:
            rounded = self._rounded(node.arguments[0])
            if rounded:
                return rounded if node.name == "cast" else self.declare(FLOAT32, through_half(rounded, FLOAT32))
        if is_real:
            return self.declare(node.type, real_of(self, node))
        arguments = [self.write(argument) for argument in node.arguments]
        return self.declare(node.type, FUNCTIONS[node.name](self, node, arguments))

    def _rounded(self, node: Value) -> str | None:
        """The float64 `node` in float32, where that needs no float64."""
        shortcut = in_float32(node)
        return self.declare(FLOAT32, self._taken(shortcut)) if shortcut else None

    def _taken(self, shortcut: Shortcut) -> str:
        template = [str(each) for each in shortcut.template]
        arguments = [self.write(each) if each else "0" for each in shortcut.arguments]
        return self.call(shortcut.function, arguments, template, far=shortcut.far)

    def result(self) -> str:
        """What is stored."""
        if self._half_root:
            return convert(self._taken(self._half_root), FLOAT32, self.stored.value.lower())
        rounded = self._rounded(self._root)
        if not rounded and self._root.type == FLOAT64 and self._in_reals:
            if self.stored is DataType.FLOAT16:
                return stored_half_of(self, self._root)
            return self.declare(FLOAT32, narrowed_of(self, self._root))
        value, kind = (rounded, FLOAT32) if rounded else (self.write(self._root), self._root.type)
        return convert(value, kind, self.stored.value.lower())


def _body(lines: Sequence[str], result: str) -> str:
    """Of a function."""
    return "{\n" + "".join(f"    {line}\n" for line in [*lines, f"return {result};"]) + "}\n"
