"""LLVM's names of types and numbers, calls of its own functions, and conversions, from NumPy's types."""

from collections.abc import Sequence

import numpy as np

from app.formula.values import BOOL, is_float


def llvm_type(type_: str) -> str:
    """By NumPy name."""
    match type_:
        case "bool":
            return "i1"
        case "float16":
            return "half"
        case "float32":
            return "float"
        case "float64":
            return "double"
    return "i" + type_.lstrip("uint")


def bytes_of(type_: str) -> int:
    """Of an element in memory, by LLVM's name of its type."""
    return {"half": 2, "float": 4, "double": 8}.get(type_) or -(-int(type_.removeprefix("i")) // 8)


def bits_of(type_: str) -> int:
    """Of an element, by NumPy name."""
    return 1 if type_ == BOOL else 8 * np.dtype(type_).itemsize


def literal(type_: str, value: int | float) -> str:
    """A number of the NumPy type, to the last bit."""
    if type_ == BOOL:
        return "true" if value else "false"
    if not is_float(type_):
        return str(int(value))
    with np.errstate(over="ignore"):
        rounded = np.float64(np.dtype(type_).type(value))
    return f"0x{int(rounded.view(np.uint64)):016X}"


def intrinsic(name: str, type_: str, arguments: Sequence[str]) -> tuple[str, str]:
    """The declaration and a call of a function of LLVM's own, with arguments and a result of one type."""
    head = f"{type_} @llvm.{name}"
    given = ", ".join(f"{type_} {argument}" for argument in arguments)
    return f"declare {head}({', '.join([type_] * len(arguments))})", f"call {head}({given})"


def conversion(value: str, given: str, wanted: str) -> str:
    """The instruction; between floats and to floats it rounds to nearest even."""
    signed = given.startswith("int")
    if wanted == BOOL:
        return f"icmp ne {llvm_type(given)} {value}, 0"
    if is_float(given):
        name = "fpext" if bits_of(wanted) > bits_of(given) else "fptrunc"
    elif is_float(wanted):
        name = "sitofp" if signed else "uitofp"
    elif bits_of(given) == bits_of(wanted):
        name = "bitcast"
    elif bits_of(given) > bits_of(wanted):
        name = "trunc"
    else:
        name = "sext" if signed else "zext"
    return f"{name} {llvm_type(given)} {value} to {llvm_type(wanted)}"
