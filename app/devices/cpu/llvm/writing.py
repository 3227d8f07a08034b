"""What the instructions of one function are written into: they, their declarations and the function's parameters."""

from abc import ABC, abstractmethod

from app.devices.cpu.llvm.types import conversion, intrinsic
from app.formula.expansions import Ask
from app.formula.precision import inverse_of
from app.formula.values import FLOAT32, FLOAT64, Constant, Number, Parameter, Value

_BEYOND_FLOAT = (1 << 52 - 23) - 1
"""The digits of a double beyond those of a float."""


class Writing(ABC):
    """All that operations need to write themselves. `smooth` and `half` are what `precision.py` says of the formula."""

    def __init__(self, ask: Ask, smooth: bool, half: bool) -> None:
        self._ask = ask
        self._smooth = smooth
        self._half = half
        self._lines: list[str] = []
        self._declarations: set[str] = set()
        self._parameters: list[Value] = []

    @abstractmethod
    def write(self, node: Value) -> str:
        """The name of the value of `node`, or its literal."""

    def emit(self, expression: str) -> str:
        """The name of what the instruction `expression` gives."""
        name = f"%v{len(self._lines)}"
        self._lines.append(f"{name} = {expression}")
        return name

    def call(self, name: str, type_: str, *arguments: str) -> str:
        """A call of an intrinsic function of LLVM whose arguments and result are of one type."""
        declaration, expression = intrinsic(name, type_, arguments)
        self.declare(declaration)
        return expression

    def declare(self, declaration: str) -> None:
        """Say so in the module, once."""
        self._declarations.add(declaration)

    def inverse(self, divisor: Value) -> str | None:
        """The name of what to multiply by instead of dividing, where that will do."""
        if self._half or (self._smooth and divisor.type == FLOAT64):
            inverse = inverse_of(self._ask, divisor)
            if inverse is not None:
                return self.parameter(inverse)
        return None

    def is_ordinary(self, value: Value) -> bool:
        """Whether it is known to be neither NaN nor 0, of which there are two, or belongs to the formula."""
        if isinstance(value, Parameter):
            return bool(self._ask(_is_ordinary, value))
        return isinstance(value, Constant)  # no formula has a NaN in it

    def parameter(self, value: Value) -> str:
        """The name of one more, for `value`."""
        self._parameters.append(value)
        return f"%p{len(self._parameters) - 1}"

    def convert(self, value: str, given: str, wanted: str) -> str:
        """`value` of the NumPy type `given` as `wanted`, rounded once."""
        if given == wanted:
            return value
        if wanted == "float16" and given == FLOAT64:
            return self.convert(self._rounded_to_odd(value), FLOAT32, wanted)
        if "float16" in (given, wanted) and FLOAT32 not in (given, wanted):
            return self.convert(self.convert(value, given, FLOAT32), FLOAT32, wanted)
        return self.emit(conversion(value, given, wanted))

    def _rounded_to_odd(self, value: str) -> str:
        """A double as a float that rounds to a half alike: what a float has no digits for is cut off, and the last
        digit that is left is 1 if anything was there."""
        bits = self.emit(f"bitcast double {value} to i64")
        above = self.emit(f"add i64 {self.emit(f'and i64 {bits}, {_BEYOND_FLOAT}')}, {_BEYOND_FLOAT}")
        kept = self.emit(f"and i64 {self.emit(f'or i64 {bits}, {above}')}, {~_BEYOND_FLOAT}")
        return self.emit(f"fptrunc double {self.emit(f'bitcast i64 {kept} to double')} to float")


def _is_ordinary(number: Number) -> bool:
    return number < 0 or number > 0
