"""What operators on quantized tensors have in common: exact sums of products, scales and zero points, saturation.

Sums of products of 8-bit integers are computed by the library's float products, in which they are exact: in float32 up
to 2^24, else in float64. Where the CPU has compiled loops, those do it (`devices/cpu/integer_products.py`); on a GPU
they are multiplied as bytes (`signed.py`).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.memory.arrays import numpy_type
from app.operators.arrays import product, unrepeated

LARGEST = 255 * 255
"""Of a product of two 8-bit integers, each less its zero point."""

OVERFLOW = "The sum wraps around (two's complement) beyond INT32. DirectML's documentation does not say."
EXACT = "Sums of products are exact, scaled in float64 and rounded once."
PADDING = "Padding is the input's zero point, so it adds nothing. DirectML's documentation does not say."


def float_type(terms: int) -> str:
    """The float type in which sums of so many products of 8-bit integers are exact."""
    return "float32" if terms * LARGEST <= 1 << 24 else "float64"


def difference(xp: Any, x: Any, zero: Any, dtype: str) -> Any:
    """`x` less its zero point, in `dtype`; what `x` repeats and `zero` does not differ in is there once."""
    made = unrepeated(x).astype(dtype)
    return made if zero is None else made - zero.astype(dtype)


def integer_product(xp: Any, a: Any, a_zero: Any, b: Any, b_zero: Any, dtype: str) -> Any:
    """(a - a_zero) x (b - b_zero) in the float type `dtype`; rows, columns or leading dimensions may be 1 where all are
    alike. Zero points have as many dimensions as there are, or fewer."""
    depth = a.shape[-1]
    left, right = difference(xp, a, a_zero, dtype), difference(xp, b, b_zero, dtype)
    left = xp.broadcast_to(left, (*left.shape[:-1], depth))
    right = xp.broadcast_to(right, (*right.shape[:-2], depth, right.shape[-1]))
    return product(xp, left, right)


def wrap(xp: Any, sums: Any) -> None:
    """Whole numbers, in place, as INT32 holds them."""
    sums -= xp.floor((sums + 2.0**31) / 2.0**32) * 2.0**32


def saturated(xp: Any, quotient: Any, zero: Any, data_type: DataType) -> Any:
    """`quotient`, a new array of floats, rounded in place with halves to even, moved by `zero` and limited to the range
    of the type; 0 of NaN."""
    xp.rint(quotient, out=quotient)
    if zero is not None:
        quotient += zero
    bits = data_type.bits
    least, most = (0, (1 << bits) - 1) if data_type.value.startswith("U") else (-(1 << bits - 1), (1 << bits - 1) - 1)
    xp.clip(quotient, least, most, out=quotient)
    xp.copyto(quotient, 0, where=xp.isnan(quotient))
    return quotient


def quantized(xp: Any, quotient: Any, zero: Any, data_type: DataType) -> Any:
    """The same in the type itself."""
    return saturated(xp, quotient, zero, data_type).astype(numpy_type(data_type))


# Scales and zero points: one element for all, or one for each row, column or channel


def each_row(x: Any, rank: int) -> Any:
    """As a column, to go with matrices of so many dimensions; None stays None."""
    return x.reshape(-1, 1) if x is not None and x.ndim == 1 else each_column(x, rank)


def each_column(x: Any, rank: int) -> Any:
    """As a row, to go with them: without the leading dimensions that they do not have, which are 1."""
    return x if x is None else x.reshape(x.shape[-rank:])


def over_matrices(x: TensorDesc, sizes: list[int], *, by_row: bool) -> TensorDesc:
    """The same of a tensor that is as long as matrices, or one element for all, over those of these `sizes`."""
    steps = [*x.steps, 0] if by_row and x.rank == 1 else x.steps
    steps = steps[-len(sizes) :]
    return TensorDesc(DataType=x.DataType, Sizes=sizes, Strides=[*[0] * (len(sizes) - len(steps)), *steps])


def over_channels(x: TensorDesc, sizes: list[int]) -> TensorDesc:
    """One element for all, or one for each channel, over an output of these `sizes`."""
    return TensorDesc(DataType=x.DataType, Sizes=sizes, Strides=[0, max(x.steps), *[0] * (len(sizes) - 2)])


def row_violations(name: str, desc: TensorDesc | None, of: str, matrices: Sequence[int]) -> Iterator[Violation]:
    """Whether `desc` has one element, or one for each row of the tensor `of`, matrices of these sizes: { M },
    { ..., M, 1 }."""
    if desc is None or desc.elements == 1:
        return
    rows = matrices[-2]
    is_column = desc.Sizes[-2:] == [rows, 1] and _leads(desc.Sizes[:-2], matrices[:-2])
    if desc.Sizes != [rows] and not is_column:
        right = [rows] if desc.rank == 1 else [*[1] * (desc.rank - 2), rows, 1]
        yield _wrong(name, desc, f"{rows} elements, one for each row of {of}", right)


def column_violations(name: str, desc: TensorDesc | None, of: str, matrices: Sequence[int]) -> Iterator[Violation]:
    """Whether it has one element, or one for each column: { N }, { ..., 1, N }."""
    if desc is None or desc.elements == 1:
        return
    columns = matrices[-1]
    is_row = desc.Sizes[-2:] in ([1, columns], [columns]) and _leads(desc.Sizes[:-2], matrices[:-2])
    if not is_row:
        right = [*[1] * (desc.rank - 1), columns]
        yield _wrong(name, desc, f"{columns} elements, one for each column of {of}", right)


def channel_violations(name: str, desc: TensorDesc | None, of: str, channels: int) -> Iterator[Violation]:
    """Whether it has one element, or one for each channel that the output has, because of the tensor `of`: { O },
    { 1, O, ... }."""
    if desc is None or desc.elements == 1:
        return
    right = [channels] if desc.rank == 1 else [1, channels, *[1] * (desc.rank - 2)]
    if desc.Sizes != right:
        yield _wrong(name, desc, f"{channels} elements, one for each channel of the output by {of}", right)


def single_violations(name: str, desc: TensorDesc | None) -> Iterator[Violation]:
    """Whether it has one element."""
    if desc is not None and desc.elements != 1:
        right = [1] * desc.rank
        yield Violation(
            (name, "Sizes"),
            f"{name} has Sizes {desc.Sizes}; it must have one element, which is {right}.",
            desc.Sizes,
            right,
        )


def _leads(given: Sequence[int], batch: Sequence[int]) -> bool:
    """Whether leading dimensions are 1 or those of the matrices, of which there may be fewer."""
    there = [1] * len(given) + [*batch]
    return all(size in (1, one) for size, one in zip(given, there[len(batch) :], strict=True))


def _wrong(name: str, desc: TensorDesc, many: str, right: list[int]) -> Violation:
    return Violation(
        (name, "Sizes"),
        f"{name} has Sizes {desc.Sizes}; it must have one element or {right}, which are {many}.",
        desc.Sizes,
        right,
    )


def spread(xp: Any, x: Any, sizes: tuple[int, ...]) -> Any:
    """`x` with each element as often as makes these sizes. Other threads run while NumPy copies, not in its repeat."""
    parts = [part for given, size in zip(x.shape, sizes, strict=True) for part in (given, size // given)]
    return xp.broadcast_to(x.reshape([part for given in x.shape for part in (given, 1)]), parts).reshape(sizes)
