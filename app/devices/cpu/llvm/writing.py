"""What the instructions of one function are written into: they, their declarations and the function's parameters."""

from abc import ABC, abstractmethod

from app.devices.cpu.llvm.types import conversion, intrinsic
from app.formula.expansions import Ask
from app.formula.precision import inverse_of
from app.formula.values import FLOAT32, FLOAT64, Constant, Number, Parameter, Value


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

    def call(self, name: str, type_: str, *arguments: str, result: str | None = None) -> str:
        """A call of an intrinsic function of LLVM whose arguments, and result unless `result` says, are of one type."""
        declaration, expression = intrinsic(name, type_, arguments, result)
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
        """A double as the float next to it, or of two the one with an odd last bit: it rounds to a half alike."""
        near = self.emit(f"fptrunc double {value} to float")
        back = self.emit(f"fpext float {near} to double")
        sizes = [self.emit(self.call("fabs.f64", "double", each)) for each in (back, value)]
        bits = self.emit(f"bitcast float {near} to i32")
        odd = self.emit(f"trunc i32 {bits} to i1")
        exact = self.emit(f"fcmp ueq double {back}, {value}")
        keep = self.emit(f"or i1 {odd}, {exact}")
        beyond = self.emit(f"fcmp ogt double {sizes[0]}, {sizes[1]}")
        step = self.emit(f"select i1 {beyond}, i32 -1, i32 1")
        moved = self.emit(f"add i32 {bits}, {step}")
        chosen = self.emit(f"select i1 {keep}, i32 {bits}, i32 {moved}")
        return self.emit(f"bitcast i32 {chosen} to float")


def _is_ordinary(number: Number) -> bool:
    return number < 0 or number > 0
