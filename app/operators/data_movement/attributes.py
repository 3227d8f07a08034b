"""What operators of this family have in common: attributes with an entry for each dimension, an axis, typed numbers."""

import struct
from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from app.contract.constants import DataType
from app.contract.scalars import ScalarUnion, Uint, scalar_value
from app.contract.tensors import MAX_RANK
from app.contract.validation import abbreviate
from app.contract.violations import Violation
from app.formula.values import Parameter, converted, derived, is_float
from app.operators.operator import Operator

_Entries = Field(min_length=1, max_length=MAX_RANK)

Positive = Annotated[Uint, Field(ge=1)]
Uints = Annotated[list[Uint], _Entries]
Positives = Annotated[list[Positive], _Entries]
Strides = Annotated[
    list[Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]],
    _Entries,
]

SCALAR = 'A number, or DML_SCALAR_UNION. Not NaN; infinities are "Infinity" and "-Infinity" in JSON.'


def length_violations(operator: Operator, names: Sequence[str], tensor: str, rank: int) -> Iterator[Violation]:
    """Arrays that do not have an entry for each of the `rank` dimensions of `tensor`."""
    for name in names:
        length = len(getattr(operator, name))
        if length != rank:
            yield Violation(
                (name,),
                f"{name} has {length} entries but {tensor} has {rank} dimensions; give one for each dimension.",
                length,
                rank,
            )


def axis_violations(axis: int, tensor: str, rank: int) -> Iterator[Violation]:
    """An Axis that `tensor`, which has `rank` dimensions, does not have."""
    if axis >= rank:
        yield Violation(
            ("Axis",),
            f"Axis is {axis} but {tensor} has {rank} dimensions; it may be 0 to {rank - 1}.",
            axis,
            f"0 to {rank - 1}",
        )


def number_violations(
    operator: Operator, type_name: str, names: Sequence[str], tensor: str, expected: DataType
) -> Iterator[Violation]:
    """What is wrong with the numbers called `names` as numbers of the type in the field `type_name`, and that with
    `tensor`, which is of the type `expected`."""
    data_type = getattr(operator, type_name)
    if data_type != expected:
        yield Violation(
            (type_name,),
            f"{type_name} is {data_type} but {tensor} is {expected}; they must be equal.",
            data_type,
            expected,
        )
        return
    for name in names:
        given = getattr(operator, name)
        try:
            scalar_value(given, data_type)
        except ValueError as error:
            shown = abbreviate("an object" if isinstance(given, ScalarUnion) else given)
            yield Violation((name,), f"{name} is {shown}; it {error}.", shown, f"a number of {data_type}")


def raw(parameter: Parameter, data_type: DataType) -> Parameter:
    """An attribute as the bits of an element of `data_type`, to which it is converted (`converted`)."""
    number, bits = converted(parameter, data_type), data_type.bits
    if not is_float(number.type):
        return derived(number, f"uint{bits}", lambda whole: int(whole) & ((1 << bits) - 1))
    of_float, of_bits = {16: ("<e", "<H"), 32: ("<f", "<I"), 64: ("<d", "<Q")}[bits]
    return derived(number, f"uint{bits}", lambda real: int(struct.unpack(of_bits, struct.pack(of_float, real))[0]))
